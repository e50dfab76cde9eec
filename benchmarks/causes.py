#!/usr/bin/env python3
"""Whether `check --map-p2p` names the planted cause first, among facts that are there and do no harm (sim).

    python benchmarks/causes.py [--machines N] [--seed S]

A machine is a random PCIe tree: switches below roots below sockets, with a GPU model, and with facts that look like
causes and are none: a container, a list of visible GPUs, GPUs that a container was not given, an IOMMU that translates,
a redirecting bridge, a small BAR1, a slot of eight lanes, a PCIe generation that was read at rest, registers that only
root may read, a patched driver that works. N of them are healthy, N have each fault, and N have each two faults that
leave links to each other. What a fault does to links is written here, apart from the table that names causes, by what
people report:

- A driver that is patched for P2P over PCIe maps the whole memory into BAR1. Without Resizable BAR, or on one GPU for
  which the firmware found no room, it still offers P2P, and what is sent to or from that GPU's memory hangs, is wrong,
  or is refused when it is mapped (tinygrad/open-gpu-kernel-modules#13, noonghunna/club-3090#873).
- NCCL needs a file in /dev/shm for each link without P2P. Docker gives 64 MiB: NCCL fails with an error after some
  links, and logs only these (NVIDIA/nccl#290, #342, pytorch/pytorch#73775).
- Missing lanes and a lower PCIe generation slow copies by peer access and through the host alike: P2P works at a part
  of its rate.
- A process that sees one GPU has no link, whatever else is wrong. On PCI a container still sees all of them.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from unittest.mock import patch

from collbench.machine.device_names import NAME
from collbench.measurement.backends import factory
from collbench.model.errors import Cause, Failure, FailureKind, UsageError, WrongData
from collbench.model.run import NO_PEERS, Device, Health, Path, PeerStatus, SkipKind, Skipped
from collbench.p2p.causes import causes
from collbench.p2p.peer_map import BY_PEER_ACCESS, COPY_ENGINE, THROUGH_HOST, Crossing, Link, PeerLink, PeerMap
from collbench.preflight.findings import Driver, GpuState, Host, MachineFacts, Slot, Space

GIB, SIZE = 2**30, 16 * 2**20
X16_GBS = {1: 3.2, 2: 6.5, 3: 13.0, 4: 26.0, 5: 52.0}  # what a copy reaches on sixteen lanes of a generation
MODELS = (
    ("NVIDIA RTX A6000", 4, 48),
    ("NVIDIA L40S", 4, 48),
    ("NVIDIA A100-PCIE-40GB", 4, 40),
    ("NVIDIA H100 PCIe", 5, 80),
)
GEFORCE = ("NVIDIA GeForce RTX 4090", 4, 24)
FAILED = Failure(FailureKind.ERROR, Cause.REPORTED, detail="unhandled system error")
HUNG = Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=8.0)


@dataclass
class Machine:
    """One machine, and what each link does: "" works, or the symptom."""

    random: random.Random
    model: tuple[str, int, int]
    places: list[tuple[int, int, int]]  # of each GPU: socket, root, switch
    slots: list[int]  # lanes of each
    redirecting: list[set[str]]
    lanes: dict[int, int] = field(default_factory=dict)  # by GPU, where some are missing
    generations: dict[int, int] = field(default_factory=dict)  # by GPU, where it is below the best
    at_rest: set[int] = field(default_factory=set)  # GPUs whose generation was read late
    shown: dict[Link, str] = field(default_factory=dict)
    nccl: dict[Link, str] = field(default_factory=dict)
    status: dict[Link, PeerStatus] = field(default_factory=dict)
    small_bar1: set[int] = field(default_factory=set)
    not_given: int = 0  # GPUs that the container lacks
    without_room: bool = False  # NCCL finds no shared memory
    translated: bool = False
    unreadable: bool = False
    hypervisor: str = ""
    registry: str = ""
    container: str = ""
    shared_memory: int = 64 * GIB
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def links(self) -> list[Link]:
        return list(permutations(range(len(self.places)), 2))

    @property
    def far(self) -> list[Link]:
        return [link for link in self.links if self.label(link) == "SYS"]

    def label(self, link: Link) -> str:
        (socket, root, switch), (other_socket, other_root, other_switch) = (self.places[end] for end in link)
        if socket != other_socket:
            return "SYS"
        return "PHB" if root != other_root else "PXB" if switch != other_switch else "PIX"

    def show(self, links: Iterable[Link], *symptoms: str, status: PeerStatus | None = None) -> bool:
        """Let links that are still sound show one of these symptoms each; return whether there was one."""
        free = [link for link in links if link not in self.shown and link not in self.nccl]
        for link in free:
            self.shown[link] = self.random.choice(symptoms)
            if status is not None:
                self.status[link] = status
        return bool(free)

    def way(self, link: Link) -> str:
        """Return what NCCL takes for a link where nothing fails."""
        return self.nccl.get(link, "SHM/direct/direct" if self.shown.get(link) == "none" else "P2P/CUMEM")

    def carried(self, links: Iterable[Link], transport: str) -> bool:
        """Let NCCL carry what is sent over links that are still sound by another way; return whether there was one."""
        free = [link for link in links if link not in self.nccl]
        self.nccl.update(dict.fromkeys(free, transport))
        return any(link not in self.shown for link in free)

    def rate(self, gpu: int) -> float:
        """Return the rate of copies over a GPU's own PCIe link, GB/s."""
        lanes, generation = self.lanes.get(gpu, self.slots[gpu]), self.generations.get(gpu, self.model[1])
        return X16_GBS[generation] * lanes / 16

    def crossings(self, link: Link) -> tuple[Crossing, ...]:
        """Return what arrived. Copies through the host cross the links of both GPUs one after the other."""
        rates = [self.rate(end) for end in link]
        direct, staged = min(rates), 1 / sum(1 / rate for rate in rates)
        shown = self.shown.get(link, "")
        if shown == "slow":
            direct = staged * self.random.uniform(0.1, 0.6)
        if shown in ("none", "refused"):
            refusal = NO_PEERS if shown == "none" else Skipped(SkipKind.PEERS_REFUSED, detail="error 217")
            ways = [Crossing(work, SIZE, refusal=refusal) for work in BY_PEER_ACCESS]
        else:
            ways = [Crossing(work, SIZE, gbs=direct) for work in BY_PEER_ACCESS]
        if shown == "wrong":
            bad = self.random.randrange(3)
            ways[bad] = Crossing(ways[bad].work, SIZE, wrong=WrongData(ways[bad].work, SIZE, link, 1, 0))
        if shown == "hangs":
            ways = [
                Crossing(COPY_ENGINE, SIZE, failure=HUNG),
                *(way for way in ways if way.work != COPY_ENGINE),
            ]
        return (*ways, Crossing(THROUGH_HOST, SIZE, gbs=staged))

    def seen(self) -> tuple[PeerMap, MachineFacts]:
        """Return it as collbench sees it."""
        name, generation, memory = self.model
        gpus = tuple(
            GpuState(
                Device(
                    index,
                    f"GPU-{index}",
                    name,
                    f"00000000:{index + 1:02X}:00.0",
                    memory_bytes=memory * GIB,
                    pcie_generation=generation,
                    pcie_width=slot,
                ),
                Health(
                    pcie_generation=1 if index in self.at_rest else self.generations.get(index, generation),
                    pcie_width=self.lanes.get(index, slot),
                ),
                bar1_bytes=GIB // 4 if index in self.small_bar1 else 2 * memory * GIB,
            )
            for index, slot in enumerate(self.slots)
        )
        kind = "DMA-FQ" if self.translated else "identity"
        slots = {
            index: Slot(kind, () if self.unreadable else tuple(sorted(bridges)), 2 if self.unreadable else 0)
            for index, bridges in enumerate(self.redirecting)
        }
        host = Host(
            "sim",
            shm=Space(self.shared_memory, self.shared_memory),
            container=self.container,
            hypervisor=self.hypervisor,
            slots=slots,
            registry=self.registry,
        )
        ways, trouble = self.nccl_answers()
        links = tuple(
            PeerLink(
                link,
                self.crossings(link),
                {letter: self.status.get(link, PeerStatus.OK) for letter in "rw"},
                nccl=ways.get(link, ""),
            )
            for link in self.links
        )
        paths = tuple(Path(link, self.label(link)) for link in self.links if link[0] < link[1])
        driver = Driver("580.95.05", gpus=gpus, virtualization="none", on_the_bus=len(gpus) + self.not_given)
        facts = MachineFacts("cuda", host, driver, environment=self.variables)
        devices = tuple(gpu.device for gpu in gpus)
        return PeerMap("cuda", "sim", devices, links, paths, nccl_failure=trouble), facts

    def nccl_answers(self) -> tuple[dict[Link, str], Failure | WrongData | None]:
        """Return what NCCL logs that it takes, and how it fails: with what it meets first."""
        ways = {link: self.way(link) for link in self.links}
        by_peers = {self.shown[link] for link in self.links if link in self.shown and ways[link].startswith("P2P")}
        if "refused" in by_peers:
            return ways, FAILED
        if self.without_room:
            through_files = [link for link in self.links if ways[link].startswith("SHM")]
            some = self.random.sample(through_files, self.random.randint(1, len(through_files)))
            return {link: way for link, way in ways.items() if link in some or link not in through_files}, FAILED
        if "hangs" in by_peers:
            return ways, HUNG
        wrong = WrongData(COPY_ENGINE, SIZE, (0, 1), 1, 0) if "wrong" in by_peers else None
        return ways, wrong


def drawn(rng: random.Random) -> Machine:
    """Return a healthy machine with facts that do no harm."""
    shape = rng.choice(((1, 2, 1), (1, 1, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2)))
    sockets, roots, below = shape
    places = [
        (socket, socket * roots + root, (socket * roots + root) * 2 + (gpu if rng.random() < 0.3 else 0))
        for socket in range(sockets)
        for root in range(roots)
        for gpu in range(below)
    ]
    machine = Machine(rng, rng.choice((*MODELS, GEFORCE)), places, [16] * len(places), [set() for _ in places])
    if rng.random() < 0.2:
        machine.slots[rng.randrange(len(places))] = 8
    if rng.random() < 0.2:
        machine.at_rest.add(rng.randrange(len(places)))
    if machine.model != GEFORCE:  # a patched driver would not work with these
        machine.small_bar1 = set(range(len(places))) if rng.random() < 0.2 else set()
        machine.translated = rng.random() < 0.2
    machine.unreadable = rng.random() < 0.3
    if len(places) > 2 and rng.random() < 0.1:  # two GPUs have no other way
        machine.redirecting[rng.randrange(len(places))].add("0000:40:01.1")
    if rng.random() < 0.3:
        machine.container, machine.shared_memory = "docker", rng.choice((GIB // 16, 64 * GIB))
        machine.not_given = rng.choice((0, 2))
    if rng.random() < 0.3:
        machine.variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(places))))
    return machine


# What a fault does: to facts, and to links. Each returns False where no link is left for it.

_ON_THE_WAY = ("hangs", "wrong", "slow")


def _acs(machine: Machine) -> bool:
    groups: dict[int, list[int]] = {}
    for gpu, (_, root, _) in enumerate(machine.places):
        groups.setdefault(root, []).append(gpu)
    crowded = [group for group in groups.values() if len(group) > 1]
    if not crowded or machine.unreadable:
        return False
    group = machine.random.choice(crowded)
    for gpu in group:
        machine.redirecting[gpu].add(f"0000:{gpu:02x}:01.0")
    return machine.show(permutations(group, 2), *_ON_THE_WAY)


def _iommu(machine: Machine) -> bool:
    machine.translated = True
    return machine.show(machine.links, *_ON_THE_WAY)


def _sockets(machine: Machine) -> bool:
    return machine.show(machine.far, "slow")


def _patch(machine: Machine) -> None:
    """Give the machine a patched driver, and nothing that would break one."""
    if machine.model != GEFORCE:
        machine.model, machine.small_bar1, machine.translated = GEFORCE, set(), False


def _patched(machine: Machine) -> bool:
    _patch(machine)
    return machine.show(machine.links, "wrong", "refused", "hangs")


def _bar1(machine: Machine) -> bool:
    _patch(machine)
    every = range(len(machine.places))
    machine.small_bar1 = set(every) if machine.random.random() < 0.5 else {machine.random.choice(every)}
    links = [link for link in machine.links if machine.small_bar1.intersection(link)]
    return machine.show(links, "wrong", "refused", "hangs")


def _model(machine: Machine) -> bool:
    machine.model = GEFORCE
    status = machine.random.choice((PeerStatus.CNS, PeerStatus.GNS, PeerStatus.NS))
    return machine.show(machine.links, "none", status=status)


def _chipset(machine: Machine) -> bool:
    if len(machine.far) == len(machine.links):  # the cause would be their model if all were GeForce cards
        machine.model = machine.random.choice(MODELS)
    return machine.show(machine.far, "none", status=machine.random.choice((PeerStatus.CNS, PeerStatus.TNS)))


def _registry(machine: Machine) -> bool:
    machine.registry = "ForceP2P=0x0"
    return machine.show(machine.links, "none", status=PeerStatus.DR)


def _virtual(machine: Machine) -> bool:
    machine.model = machine.random.choice(MODELS)
    machine.hypervisor, machine.redirecting = "QEMU", [set() for _ in machine.places]
    machine.translated = machine.unreadable = False  # a guest has neither bridges nor groups
    return machine.show(machine.links, "none", "refused")


def _small_shm(machine: Machine) -> bool:
    """Where every link has P2P, some are too far for NCCL, or the driver offers none."""
    if "refused" in machine.shown.values() or "NCCL_SHM_DISABLE" in machine.variables:
        return False  # NCCL does not get that far
    if not any(machine.way(link).startswith("SHM") for link in machine.links) and not _distance(machine):
        if machine.shown:
            return False
        _model(machine)
    machine.container, machine.shared_memory, machine.without_room = "docker", GIB // 16, True
    return True


def _works_somewhere(machine: Machine) -> list[int]:
    """Return GPUs with a link that still delivers at its full rate."""
    return sorted({end for link in machine.links if link not in machine.shown for end in link})


def _width(machine: Machine) -> bool:
    gpus = [gpu for gpu in _works_somewhere(machine) if machine.slots[gpu] == 16]
    if gpus:
        machine.lanes[machine.random.choice(gpus)] = machine.random.choice((1, 2, 4, 8))
    return bool(gpus)


def _generation(machine: Machine) -> bool:
    gpus = [gpu for gpu in _works_somewhere(machine) if gpu not in machine.lanes and gpu not in machine.at_rest]
    if gpus:
        machine.generations[machine.random.choice(gpus)] = machine.random.randrange(1, machine.model[1])
    return bool(gpus)


def _disabled(machine: Machine) -> bool:
    machine.variables["NCCL_P2P_DISABLE"] = "1"
    return machine.carried(machine.links, "SHM/direct/direct")


def _distance(machine: Machine) -> bool:
    return machine.carried(machine.far, "SHM/direct/direct")


def _no_shm(machine: Machine) -> bool:
    machine.variables["NCCL_SHM_DISABLE"] = "1"
    return machine.carried(machine.far, "NET/Socket/0")


FAULTS: dict[str, Callable[[Machine], bool]] = {  # those that leave no link for another first
    "IOMMU": _iommu,
    "BAR1": _bar1,
    "patched driver": _patched,
    "GPU model": _model,
    "driver setting": _registry,
    "virtual machine": _virtual,
    "ACS": _acs,
    "CPU sockets": _sockets,
    "chipset": _chipset,
    "NCCL's distance": _distance,
    "NCCL_SHM_DISABLE": _no_shm,
    "NCCL variable": _disabled,
    "shared memory": _small_shm,
    "PCIe width": _width,
    "PCIe generation": _generation,
}
HIDING = ("visible devices", "container")


def refused(machine: Machine, hides: Sequence[str]) -> list[str]:
    """Return what collbench says of a process that sees one GPU, because a variable or its container hides the rest."""
    every = tuple(gpu.device for gpu in machine.seen()[1].driver.gpus)
    given = every[:1] if "container" in hides else every
    variables = {NAME: "0"} if "visible devices" in hides else {}
    with (
        patch.dict(os.environ, variables, clear=True),
        patch("collbench.machine.kernel.gpus_on_pci", return_value=len(every)),
        patch("collbench.machine.kernel.container_kind", return_value="docker" if "container" in hides else ""),
    ):
        try:
            factory.choose_devices(factory.may_use(given), None)
        except UsageError as error:
            text = str(error)
            words = {
                "visible devices": text.find(f"check what {NAME} hides"),
                "container": text.find("docker container"),
            }
            return sorted((name for name, at in words.items() if at >= 0), key=words.__getitem__)
    return []


# Two faults that contradict each other, or of which one alone explains what the other would.
_ONE_OF = (
    ("BAR1", "GPU model"),
    ("BAR1", "driver setting"),
    ("BAR1", "virtual machine"),
    ("NCCL's distance", "NCCL variable"),
)
_TRIES = 100  # every fourth random machine has room for a fault


def named(machine: Machine) -> list[str]:
    """Return the causes that collbench names, first things first."""
    return list(dict.fromkeys(cause.name for cause in causes(*machine.seen())))


def planted(rng: random.Random, names: Sequence[str]) -> Machine | None:
    """Return a machine on which each of these faults has links of its own, None if there is none."""
    for _ in range(_TRIES):
        machine = drawn(rng)
        if all(FAULTS[name](machine) for name in names):
            return machine
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=1000, metavar="N", help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, count = random.Random(options.seed), options.machines
    accused = sum(bool(named(drawn(rng))) for _ in range(count))
    print(f"(sim) {count} machines of each kind, seed {options.seed}\nhealthy: {accused} have a cause")
    for name in FAULTS:
        answers = [named(machine) for _ in range(count) if (machine := planted(rng, (name,)))]
        first = Counter(answer[0] if answer else "nothing" for answer in answers)
        others = ", ".join(f"{other} {times}" for other, times in first.most_common() if other != name)
        every = sum(name in answer for answer in answers)
        print(f"{name:17} first in {first[name]} of {len(answers)}, named in {every}  {others}")
    for hides in (*((name,) for name in HIDING), HIDING):
        machines = [planted(rng, (rng.choice([*FAULTS]),) * rng.randint(0, 1)) for _ in range(count)]
        answers = [refused(machine, hides) for machine in machines if machine]
        right = sum(answer[:1] in ([name] for name in hides) for answer in answers)
        print(f"{' + '.join(hides):27} first in {right} of {len(answers)}, alone and with one of these")
    for names in combinations(FAULTS, 2):
        if names in _ONE_OF:
            continue
        answers = [named(machine) for _ in range(count) if (machine := planted(rng, names))]
        if answers:
            first_right = sum(answer[:1] in ([names[0]], [names[1]]) for answer in answers)
            every = sum(set(names) <= set(answer) for answer in answers)
            print(f"{' + '.join(names):34} one first in {first_right} of {len(answers)}, both named in {every}")


if __name__ == "__main__":
    main()
