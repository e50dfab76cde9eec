#!/usr/bin/env python3
"""Whether `check --map-p2p` names the planted cause first, among facts that are there and do no harm (sim).

    python benchmarks/causes.py [--machines N] [--seed S]

A machine is a random PCIe tree: switches below roots below sockets, with a GPU model, and with facts that look like
causes and are none: a container, a list of visible GPUs, an IOMMU that translates, a redirecting bridge, a small BAR1,
registers that only root may read. N of them are healthy, N have each fault, and N each two that leave links to each
other. What a fault does to links is written here, apart from the table that names causes.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from collbench.judge.peer_causes import causes
from collbench.machine.doctor.facts import Driver, Facts, Gpu, Host, Slot, Space
from collbench.model.errors import Cause, Failure, FailureKind, WrongData
from collbench.model.peer_map import BY_PEER_ACCESS, COPY_ENGINE, THROUGH_HOST, Crossing, Link, PeerLink, PeerMap
from collbench.model.run import NO_PEERS, Device, Health, Path, PeerStatus, Refusal, SkipKind

GIB, SIZE = 2**30, 16 * 2**20
X16_GBS = {4: 26.0, 5: 52.0}  # what a copy reaches on sixteen lanes of a generation
MODELS = (
    ("NVIDIA RTX A6000", 4, 48),
    ("NVIDIA L40S", 4, 48),
    ("NVIDIA A100-PCIE-40GB", 4, 40),
    ("NVIDIA H100 PCIe", 5, 80),
)
GEFORCE = ("NVIDIA GeForce RTX 4090", 4, 24)


@dataclass
class Machine:
    """One machine, and what each link does: "" works, or the symptom."""

    random: random.Random
    model: tuple[str, int, int]
    places: list[tuple[int, int, int]]  # of each GPU: socket, root, switch
    lanes: list[int]
    redirecting: list[set[str]]
    shown: dict[Link, str] = field(default_factory=dict)
    nccl: dict[Link, str] = field(default_factory=dict)
    status: dict[Link, PeerStatus] = field(default_factory=dict)
    small_bar1: bool = False
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

    def carried(self, links: Iterable[Link], transport: str) -> bool:
        """Let NCCL carry what is sent over links that are still sound by another way; return whether there was one."""
        free = [link for link in links if link not in self.shown and link not in self.nccl]
        self.nccl.update(dict.fromkeys(free, transport))
        return bool(free)

    def crossings(self, link: Link) -> tuple[Crossing, ...]:
        """Return what arrived. Copies through the host cross the lanes of both GPUs one after the other."""
        lanes = [X16_GBS[self.model[1]] * self.lanes[end] / 16 for end in link]
        direct, staged = min(lanes), 1 / sum(1 / rate for rate in lanes)
        shown = self.shown.get(link, "")
        if shown == "slow":
            direct = staged * self.random.uniform(0.1, 0.6)
        if shown in ("none", "refused"):
            refusal = NO_PEERS if shown == "none" else Refusal(SkipKind.PEERS_REFUSED, detail="error 217")
            ways = [Crossing(work, SIZE, refusal=refusal) for work in BY_PEER_ACCESS]
        else:
            ways = [Crossing(work, SIZE, gbs=direct) for work in BY_PEER_ACCESS]
        if shown == "wrong":
            bad = self.random.randrange(3)
            ways[bad] = Crossing(ways[bad].work, SIZE, wrong=WrongData(ways[bad].work, SIZE, link, 1, 0))
        if shown == "hangs":
            ways = [
                Crossing(COPY_ENGINE, SIZE, failure=Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=8.0)),
                *(way for way in ways if way.work != COPY_ENGINE),
            ]
        return (*ways, Crossing(THROUGH_HOST, SIZE, gbs=staged))

    def seen(self) -> tuple[PeerMap, Facts]:
        """Return it as collbench sees it."""
        name, generation, memory = self.model
        gpus = tuple(
            Gpu(
                Device(
                    index,
                    f"GPU-{index}",
                    name,
                    f"00000000:{index + 1:02X}:00.0",
                    memory_bytes=memory * GIB,
                    pcie_generation=generation,
                    pcie_width=16,
                ),
                Health(pcie_generation=generation, pcie_width=lanes),
                bar1_bytes=GIB // 4 if self.small_bar1 else 2 * memory * GIB,
            )
            for index, lanes in enumerate(self.lanes)
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
        links = tuple(
            PeerLink(
                link,
                self.crossings(link),
                {letter: self.status.get(link, PeerStatus.OK) for letter in "rw"},
                nccl=self.nccl.get(link, "SHM/direct/direct" if self.shown.get(link) == "none" else "P2P/CUMEM"),
            )
            for link in self.links
        )
        paths = tuple(Path(link, self.label(link)) for link in self.links if link[0] < link[1])
        driver = Driver("580.95.05", gpus=gpus, virtualization="none", on_the_bus=len(gpus))
        facts = Facts("cuda", host, driver, environment=self.variables)
        return PeerMap("cuda", "sim", tuple(gpu.device for gpu in gpus), links, paths), facts


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
    machine = Machine(rng, rng.choice(MODELS), places, [16] * len(places), [set() for _ in places])
    if rng.random() < 0.2:
        machine.lanes[rng.randrange(len(places))] = 8
    machine.small_bar1, machine.translated = rng.random() < 0.2, rng.random() < 0.2
    machine.unreadable = rng.random() < 0.3
    if len(places) > 2 and rng.random() < 0.1:  # of two GPUs it is on their only way
        machine.redirecting[rng.randrange(len(places))].add("0000:40:01.1")
    if rng.random() < 0.3:
        machine.container, machine.shared_memory = "docker", rng.choice((GIB // 16, 64 * GIB))
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


def _patched(machine: Machine) -> bool:
    machine.model = GEFORCE
    return machine.show(machine.links, "wrong", "refused", "hangs")


def _model(machine: Machine) -> bool:
    machine.model = GEFORCE
    status = machine.random.choice((PeerStatus.CNS, PeerStatus.GNS, PeerStatus.NS))
    return machine.show(machine.links, "none", status=status)


def _chipset(machine: Machine) -> bool:
    return machine.show(machine.far, "none", status=machine.random.choice((PeerStatus.CNS, PeerStatus.TNS)))


def _registry(machine: Machine) -> bool:
    machine.registry = "ForceP2P=0x0"
    return machine.show(machine.links, "none", status=PeerStatus.DR)


def _virtual(machine: Machine) -> bool:
    machine.hypervisor, machine.redirecting = "QEMU", [set() for _ in machine.places]
    machine.translated = machine.unreadable = False  # a guest has neither bridges nor groups
    return machine.show(machine.links, "none", "refused")


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
}
_TRIES = 100  # a random machine has room for a fault in every fourth


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
    for names in combinations(FAULTS, 2):
        if names == ("NCCL's distance", "NCCL variable"):  # the variable alone explains it all
            continue
        answers = [named(machine) for _ in range(count) if (machine := planted(rng, names))]
        if answers:
            first_right = sum(answer[:1] in ([names[0]], [names[1]]) for answer in answers)
            every = sum(set(names) <= set(answer) for answer in answers)
            print(f"{' + '.join(names):34} one first in {first_right} of {len(answers)}, both named in {every}")


if __name__ == "__main__":
    main()
