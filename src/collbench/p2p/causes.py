"""Why peer access between GPUs does not work: one table of causes with their symptoms, facts, certainty and fix.

Pure. A cause is named only for links with its symptom, so a machine on which all is well has none (docs/p2p.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal, NamedTuple

from collbench.machine import kernel, labels, theory
from collbench.machine.device_names import NAME
from collbench.model.errors import Failure, FailureKind
from collbench.model.run import PeerStatus
from collbench.model.units import STAGED_FASTER, format_approximate_size
from collbench.p2p.peer_map import Link, PeerLink, PeerMap, PeerState
from collbench.preflight.findings import GpuState, MachineFacts, Slot


class Certainty(StrEnum):
    """How sure a cause is."""

    SHOWN = "shown"  # an answer or an experiment on this link shows it
    CONSISTENT = "consistent"  # the fact is there and is known to have this effect
    POSSIBLE = "possible"  # the fact is not known here, or need not have this effect


class _Found(NamedTuple):
    """What is the matter with a link, and what to do about it.

    `each` names the parts that have the fact, which the text ends with: links that differ only in these have one cause.
    `command` can be pasted into a shell, once for each of the parts if it has a place for one ("{}"). `variable` is
    NCCL's, if one is blamed.
    """

    certainty: Certainty
    text: str
    fix: str = ""
    each: tuple[str, ...] = ()
    command: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class PeerCause:
    """A cause of what these links show: the facts, and what to do about it.

    `command`, if there is one, can be pasted into a shell, and `further` says what more to do. `variable` is NCCL's, if
    one is blamed.
    """

    name: str
    links: tuple[Link, ...]
    certainty: Certainty
    text: str
    command: str
    further: str
    variable: str = ""

    @property
    def fix(self) -> str:
        """What to do, in one line."""
        return "; then ".join(filter(None, (self.command, self.further)))


@dataclass(frozen=True, slots=True)
class _Case:
    """One link with all that is known of it, and what all links show together."""

    link: PeerLink
    label: str
    ends: tuple[GpuState, ...]  # those that the driver reports
    slots: tuple[Slot, Slot]
    facts: MachineFacts
    variables: Mapping[str, str]
    offered: bool  # whether the driver offers P2P over PCIe on any link
    nccl_fails: bool  # with an error, although no link did
    carried: Mapping[int, float]  # by the GPUs' indices: the highest rate of what crossed a link of each, GB/s
    positions: Mapping[int, int]  # by the GPUs' indices
    others: Sequence[PeerLink]  # all links of the machine
    labels: Mapping[Link, str]
    cpus: Mapping[int, int]  # by position: the first GPU at the same CPU

    def is_spared(self, crosses: Callable[[Link], bool]) -> bool:
        """Return whether a link that crosses the same part works, and carries more by as much as decides elsewhere."""
        own = self.link.copied or 0.0
        return any(
            other.state is PeerState.WORKS and (other.copied or 0.0) > STAGED_FASTER * own
            for other in self.others
            if crosses(other.devices)
        )

    @property
    def over_pcie(self) -> bool:
        return not labels.is_nvlink(self.label)

    @property
    def virtual(self) -> bool:
        return bool(self.facts.host.hypervisor) or self.facts.driver.virtualization not in ("", "none")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(gpu.device.name for gpu in self.ends)

    @property
    def status(self) -> PeerStatus | None:
        """The driver's own reason, of NVML or of nvidia-smi; None if it gives none."""
        answers = (*(self.link.nvml.get(way) for way in "rw"), *(self.link.tool.get(way) for way in "rw"))
        return next((status for status in answers if status is not None and status.allows is False), None)


def causes(peer_map: PeerMap, facts: MachineFacts) -> tuple[PeerCause, ...]:
    """Return the causes of what the links show: those of faults first, the surest of them first, like ones together.

    Among equally sure causes, those whose fact is on the fewest links without the symptom come first, then those that
    explain the most links. What stops NCCL even where P2P is not offered comes before all of them.
    """
    grouped: dict[tuple[str, _Found], list[tuple[Link, tuple[str, ...]]]] = {}
    explained, spared = Counter[str](), Counter[str]()  # by cause: links with its fact, with the symptom and without
    for case in _cases(peer_map, facts):
        for name, shown_by, find in _TABLE:
            if (found := find(case)) is None:
                continue
            if shown_by(case):
                grouped.setdefault((name, found._replace(each=())), []).append((case.link.devices, found.each))
                explained[name] += 1
            else:
                spared[name] += 1
    every = [_cause(name, found, links) for (name, found), links in grouped.items()]

    order = [name for name, *_ in _TABLE]
    states = {link.devices: link.state for link in peer_map.links}

    def rank(cause: PeerCause) -> tuple[bool, int, int, int, int, int]:
        later = 0 if cause.name in _BELOW_BEST else min(_LATER.get(states[link], 0) for link in cause.links)
        surest, row = list(Certainty).index(cause.certainty), order.index(cause.name)
        return cause.name != _SHARED_MEMORY, later, surest, spared[cause.name], -explained[cause.name], row

    return tuple(sorted(every, key=rank))


def _cause(name: str, found: _Found, links: Sequence[tuple[Link, tuple[str, ...]]]) -> PeerCause:
    each = [*dict.fromkeys(part for _, parts in links for part in parts)]
    command = "; ".join(dict.fromkeys(found.command.replace("{}", part) for part in each or [""]))
    text = f"{found.text}{', '.join(each)}"
    return PeerCause(name, tuple(link for link, _ in links), found.certainty, text, command, found.fix, found.variable)


def _cases(peer_map: PeerMap, facts: MachineFacts) -> Iterator[_Case]:
    states, trouble = {link.state for link in peer_map.links}, peer_map.nccl_failure
    nccl_fails = (
        isinstance(trouble, Failure)
        and trouble.kind is FailureKind.ERROR
        and not states & {PeerState.FAILS, PeerState.REFUSED}
    )
    carried: dict[int, float] = {}
    for link in peer_map.links:
        for end in link.devices:
            index = peer_map.devices[end].index
            carried[index] = max(carried.get(index, 0.0), *(crossing.gbs or 0.0 for crossing in link.crossings))
    offered = any(link.cuda and not labels.is_nvlink(_label(peer_map, link)) for link in peer_map.links)
    by_index = {gpu.device.index: gpu for gpu in facts.driver.gpus}
    label_of = {link.devices: _label(peer_map, link) for link in peer_map.links}
    cpus = {position: position for position in range(len(peer_map.devices))}
    for path in peer_map.paths:
        if _distance(path.in_tree) in _ONE_CPU:
            first, second = sorted(path.devices)
            cpus[second] = min(cpus[second], first)
    positions = {device.index: position for position, device in enumerate(peer_map.devices)}
    for link in peer_map.links:
        first, second = (peer_map.devices[position].index for position in link.devices)
        yield _Case(
            link,
            label_of[link.devices],
            tuple(by_index[index] for index in (first, second) if index in by_index),
            (facts.host.slots.get(first, Slot()), facts.host.slots.get(second, Slot())),
            facts,
            {**{name: value for _, name, value in facts.configured}, **facts.environment},
            offered=offered,
            nccl_fails=nccl_fails,
            carried=carried,
            positions=positions,
            others=peer_map.links,
            labels=label_of,
            cpus=cpus,
        )


def _label(peer_map: PeerMap, link: PeerLink) -> str:
    path = peer_map.path(link.devices)
    return path.label if path else labels.UNKNOWN


# What NVIDIA's driver says itself.

_NO_FIX = "no software fix"
_INSTEAD = "NCCL sees this and uses host memory; start vLLM and SGLang with --disable-custom-all-reduce"


def _gpu_model(case: _Case) -> _Found | None:
    """NVIDIA's own driver gives peer access only to GeForce cards with an NVLink bridge."""
    named = case.status is PeerStatus.GNS
    own_driver = not case.offered and any("GeForce" in name for name in case.names)
    if not named and not (case.over_pcie and own_driver):
        return None
    models = " and ".join(dict.fromkeys(case.names)) or "these GPUs"
    said = f" (the driver says {case.status}: {labels.PEER_STATES[case.status]})" if case.status else ""
    text = f"NVIDIA's driver has no P2P for {models} over PCIe{said}"
    return _Found(Certainty.SHOWN if named else Certainty.CONSISTENT, text, f"{_NO_FIX}; {_INSTEAD}")


def _chipset(case: _Case) -> _Found | None:
    if case.status not in (PeerStatus.CNS, PeerStatus.TNS) or _gpu_model(case):
        return None
    text = f"the driver says {case.status} ({labels.PEER_STATES[case.status]}) for a path {case.label}"
    if case.label in _NEAR:
        text += ", though that stays below one PCIe switch"
        return _Found(Certainty.POSSIBLE, text, _INSTEAD, command="sudo dmesg | grep -i -e iommu -e NVRM")
    fix = f"put both GPUs below one PCIe switch{'' if case.label == 'PHB' else ' or CPU root'}"
    if case.virtual:
        fix = f"on the host, show the GPUs below one PCIe switch; in this machine {_NO_FIX}"
    return _Found(Certainty.SHOWN, text, f"{fix}; {_INSTEAD}")


def _registry(case: _Case) -> _Found | None:
    if case.status is not PeerStatus.DR:
        return None
    settings = f": {case.facts.host.registry}" if case.facts.host.registry else ""
    text = f"a setting of the driver's module switches P2P off{settings}"
    fix = "remove it from NVreg_RegistryDwords in /etc/modprobe.d, update the initramfs, and reboot"
    return _Found(Certainty.SHOWN, text, fix)


_FLAVORS = {True: " (open kernel modules)", False: " (proprietary kernel modules)", None: ""}


def _patched(case: _Case) -> _Found | None:
    """A driver that offers GeForce cards P2P over PCIe, or whose settings force P2P, is not NVIDIA's own."""
    forced = [word for word in case.facts.host.registry.split(";") if _forces_p2p(word)]
    geforce = case.over_pcie and any("GeForce" in name for name in case.names)
    if not forced and not geforce:
        return None
    why = f"settings force P2P ({'; '.join(forced)})" if forced else "it offers GeForce cards P2P over PCIe"
    flavor = _FLAVORS[case.facts.host.open_modules]
    text = f"the driver {case.facts.driver.version}{flavor} is patched: {why}"
    fix = "install NVIDIA's driver, or the patch made for exactly this version, with the IOMMU off"
    return _Found(Certainty.CONSISTENT, text, fix)


def _forces_p2p(setting: str) -> bool:
    """ForceP2P=0 of the driver's module switches P2P off [nvrm_registry.h, NV_REG_STR_CL_FORCE_P2P]."""
    name, _, value = setting.partition("=")
    return "P2P" in name.upper() and value.strip().lower() not in ("0", "0x0", "0x00")


# The way over PCIe.


def _acs(case: _Case) -> _Found | None:
    """Redirecting bridges between two GPUs are above one of them alone: those above both see no traffic of the pair."""
    bridges = sorted(set(case.slots[0].redirecting) ^ set(case.slots[1].redirecting))
    if not case.over_pcie:
        return None
    if bridges:
        text = "ACS sends peer traffic up to the CPU at "
        fix = (
            "turn ACS off in the firmware: the command lasts until the next boot; "
            "risk: devices below are no longer isolated from each other, so not on hosts of virtual machines"
        )
        command = "sudo setpci -s {} ECAP_ACS+0x6.w=0000"
        return _Found(Certainty.CONSISTENT, text, fix, tuple(bridges), command)
    if any(slot.unreadable for slot in case.slots):
        text = "ACS may send peer traffic up to the CPU: only root may read the bridges' registers"
        return _Found(Certainty.POSSIBLE, text, "see what root sees: sudo $(which collbench) check --map-p2p")
    if case.virtual:
        text = "a virtual machine does not show the bridges of its host, whose ACS is usually on"
        return _Found(
            Certainty.POSSIBLE, text, "ask the host's operator for ACS between these GPUs (lspci -vvv: ACSCtl)"
        )
    return None


def _iommu(case: _Case) -> _Found | None:
    translated = sorted({slot.iommu_type for slot in case.slots if slot.iommu_type.startswith("DMA")})
    if not case.over_pcie or not translated:
        return None
    booted = ", ".join(case.facts.host.iommu_parameters) or "no iommu parameter"
    text = f"the IOMMU translates the GPUs' addresses (group type {', '.join(translated)}; kernel booted with {booted})"
    fix = (
        "boot with iommu=pt, or with amd_iommu=off or intel_iommu=off, or turn AMD-Vi or VT-d off in the firmware; "
        "risk: without it no device can be passed to a virtual machine"
    )
    return _Found(Certainty.CONSISTENT, text, fix)


def _bar1(case: _Case) -> _Found | None:
    """A BAR1 smaller than the memory: P2P through it needs all of the memory in it; other ways have mailboxes."""
    small = [gpu for gpu in case.ends if gpu.bar1_bytes is not None and gpu.bar1_bytes < gpu.device.memory_bytes]
    if not case.over_pcie or not small:
        return None
    each = tuple(
        f"{gpu.device.tag} {format_approximate_size(gpu.bar1_bytes or 0)} of "
        f"{format_approximate_size(gpu.device.memory_bytes)}"
        for gpu in small
    )
    sure = _patched(case) is not None
    text = "other devices can address only a part of the memory (BAR1): "
    fix = "turn on Resizable BAR and Above 4G Decoding in the firmware"
    return _Found(Certainty.CONSISTENT if sure else Certainty.POSSIBLE, text, fix, each)


def _width(case: _Case) -> _Found | None:
    lanes = [
        f"{gpu.device.tag} x{gpu.health.pcie_width} of x{gpu.device.pcie_width}" for gpu in _reduced(case, "width")
    ]
    return _below_best(case, "PCIe lanes are missing", lanes, "check lane sharing (bifurcation) in the firmware")


def _generation(case: _Case) -> _Found | None:
    reduced = _reduced(case, "generation")
    generations = [
        f"{gpu.device.tag} gen {gpu.health.pcie_generation} of gen {gpu.device.pcie_generation}" for gpu in reduced
    ]
    what = "the PCIe link is at a lower generation under load"
    return _below_best(case, what, generations, "let the firmware choose the slot's link speed (Auto)")


def _reduced(case: _Case, part: Literal["width", "generation"]) -> Iterator[GpuState]:
    """Yield the GPUs whose PCIe link has less than its best, unless more crossed it: then it was read at rest."""
    for gpu in case.ends:
        now, best = (getattr(source, f"pcie_{part}") for source in (gpu.health, gpu.device))
        generation = now if part == "generation" else gpu.device.pcie_generation
        limit = theory.pcie(generation, gpu.health.pcie_width or gpu.device.pcie_width)
        if not now or not best or now >= best or not limit or not 0 < case.carried[gpu.device.index] <= limit.gbs:
            continue
        of_gpu = partial(_ends_at, case.positions[gpu.device.index])
        if case.link.state is not PeerState.SLOW or not case.is_spared(of_gpu):
            yield gpu


def _ends_at(position: int, link: Link) -> bool:
    return position in link


def _below_best(case: _Case, what: str, each: Sequence[str], firmware: str) -> _Found | None:
    """It slows copies through host memory just as much, so it does not explain why these are faster."""
    if not case.over_pcie or not each:
        return None
    slower = case.link.state is PeerState.SLOW
    text = f"{what}{', for copies through host memory too' if slower else ''}: "
    fix = f"reseat the card and its riser, try another slot, and {firmware}"
    return _Found(Certainty.POSSIBLE if slower else Certainty.CONSISTENT, text, fix, tuple(each))


def _root_complex(case: _Case) -> _Found | None:
    """Paths between sockets cross the root complexes of both: what slows a nearer path slows them."""
    level = _distance(case.label)
    if level not in _FAR:
        return None
    cpus = {case.cpus[end] for end in case.link.devices}
    slow = {
        case.cpus[link.devices[0]]
        for link in case.others
        if link.state is PeerState.SLOW and _distance(case.labels[link.devices]) == "PHB"
    }

    def is_spared(cpu: int) -> bool:
        return case.is_spared(
            lambda link: _distance(case.labels[link]) in _FAR and cpu in {case.cpus[end] for end in link}
        )

    if all(map(is_spared, cpus & slow)):
        return None
    text = "the path crosses a root complex of a CPU, which carries peer traffic slowly"
    return _beyond(case, "PHB", Certainty.POSSIBLE, text, "take GPUs below one PCIe switch")


def _sockets(case: _Case) -> _Found | None:
    """Where all nearer paths are slow, too, what slows them is not between the sockets."""
    cpus = {case.cpus[end] for end in case.link.devices}
    if case.label != "SYS" or _root_complex(case):
        return None
    nearer = [link for link in case.others if len(at := {case.cpus[end] for end in link.devices}) == 1 and at <= cpus]
    if nearer and all(link.state is PeerState.SLOW for link in nearer):
        return None
    if case.is_spared(lambda link: case.labels[link] == "SYS" and {case.cpus[end] for end in link} == cpus):
        return None
    text = "the path crosses the link between two CPU sockets (SYS), which carries peer traffic slowly"
    return _beyond(case, "SYS", Certainty.CONSISTENT, text, "take GPUs of one socket")


def _beyond(case: _Case, distance: str, certainty: Certainty, text: str, fix: str) -> _Found:
    """Return what is slow from a distance on, with the level that leaves NCCL's P2P on nearer links only.

    The level is proposed only where it takes P2P from no link that works, and leaves it to none that is slow.
    """
    at = _LEVELS.index(distance)
    beyond = _LEVELS[at:]
    states = {(_distance(case.labels[link.devices]) in beyond, link.state) for link in case.others}
    if states & {(True, PeerState.WORKS), (False, PeerState.SLOW)}:
        return _Found(certainty, text, fix)
    return _Found(certainty, text, f"compare, or {fix}", command=f"export NCCL_P2P_LEVEL={_LEVELS[at - 1]}")


def _virtual_machine(case: _Case) -> _Found | None:
    if not case.virtual or not case.over_pcie:
        return None
    maker = case.facts.host.hypervisor or f"GPU {case.facts.driver.virtualization}"
    text = f"this is a virtual machine ({maker}): it sees no PCIe switches, and its host isolates the GPUs"
    fix = f"on the host, for QEMU: x-nv-gpudirect-clique=0 for both GPUs, and ACS off between them; inside it {_NO_FIX}"
    return _Found(Certainty.POSSIBLE, text, fix)


# What NCCL was told, and what a container leaves it.

_SHARED_MEMORY = "shared memory"
_DOCKER_SHM = 64 * 2**20
_NEAR = ("PIX", "PXB")
_FAR = ("PHB", "SYS")
_ONE_CPU = (*_NEAR, "PHB")
# NCCL_P2P_LEVEL by name and by number; NCCL counts NODE as PHB [NCCL user guide, "Environment Variables"].
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_NUMBERED = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}


def _variable(case: _Case) -> _Found | None:
    name, value = "NCCL_P2P_DISABLE", case.variables.get("NCCL_P2P_DISABLE", "").strip()
    if not value.isdigit() or int(value) != 1:  # NCCL compares with 1 [src/graph/paths.cc, ncclGetLevel]
        name, value = "NCCL_P2P_LEVEL", case.variables.get("NCCL_P2P_LEVEL", "").strip().upper()
        if not value or _within(case.label, _NUMBERED.get(value, value)):
            return None
    taken = _transport(case.link.nccl)
    text = f"{name}={value} is set{_file(case, name, ' in {}')}: NCCL takes {taken}, though P2P delivers"
    return _blamed(case, name, text, lambda transport: "P2P/" in transport)


def _blamed(case: _Case, name: str, text: str, mends: Callable[[str], bool]) -> _Found:
    """Return that a variable is the cause, as surely as NCCL showed when it was asked again without the variable."""
    remove = _file(case, name, f"remove {name} from {{}}")
    found = _Found(Certainty.CONSISTENT, text, remove, command="" if remove else f"unset {name}", variable=name)
    again = case.link.without.get(name)
    if again is None:  # not asked
        return found
    if not again:
        return found._replace(text=f"{text}; without the variable NCCL failed", fix="leave it set", command="")
    text = f"{text}; without the variable it took {_transport(again)}"
    if mends(again):
        return found._replace(certainty=Certainty.SHOWN, text=text)
    return found._replace(certainty=Certainty.POSSIBLE, text=f"{text}, so this is not the only cause")


def _transport(nccl: str) -> str:
    """Return a transport without the details of NCCL's log, as the table has it: "SHM" of "SHM/direct/direct"."""
    return nccl.partition("/")[0]


def _file(case: _Case, name: str, text: str) -> str:
    """Return a text with the file that sets a variable, "" if none does."""
    files = (file for file, key, _ in case.facts.configured if key == name and name not in case.facts.environment)
    return next((text.format(file) for file in files), "")


def _within(label: str, level: str) -> bool:
    """Return whether a path is as near as a level asks, or the level is none that NCCL knows."""
    own = _distance(label)
    return level not in _LEVELS or own not in _LEVELS or _LEVELS.index(own) <= _LEVELS.index(level)


def _distance(label: str) -> str:
    """Return the level of NCCL_P2P_LEVEL that a path needs; a label that NCCL has no level for as it is."""
    return "NVL" if labels.is_nvlink(label) else "PHB" if label == "NODE" else label


def _default_level(case: _Case) -> _Found | None:
    """By itself NCCL uses P2P over PCIe up to a distance that depends on the CPU."""
    variable = _variable(case)
    blamed = variable is not None and variable.certainty is not Certainty.POSSIBLE
    if blamed or not case.over_pcie or case.label in _NEAR:
        return None
    text = f"NCCL does not use P2P over this distance ({case.label}) by itself: it takes {_transport(case.link.nccl)}"
    if any(link.state is PeerState.SLOW for link in case.others):
        return _Found(Certainty.POSSIBLE, text, "none: NCCL_P2P_LEVEL=SYS would use P2P on links where it is slow, too")
    return _Found(Certainty.POSSIBLE, text, "compare with collbench allreduce", command="export NCCL_P2P_LEVEL=SYS")


def _no_shared_memory(case: _Case) -> _Found | None:
    if case.variables.get("NCCL_SHM_DISABLE", "").strip() != "1" or "NET/" not in case.link.nccl:
        return None
    text = f"NCCL_SHM_DISABLE=1 is set: without P2P, NCCL takes {case.link.nccl} even on this host"
    if case.variables.get("NCCL_IB_DISABLE", "").strip() == "1":
        text += ", and NCCL_IB_DISABLE=1 leaves it no InfiniBand"
    return _blamed(case, "NCCL_SHM_DISABLE", text, lambda transport: "NET/" not in transport)


def _shared_memory(case: _Case) -> _Found | None:
    """Where NCCL uses no P2P it needs shared memory, in a file unless driver and NCCL are newer."""
    host = case.facts.host
    if host.shm is None or min(host.shm.total, host.shm.free) > _DOCKER_SHM:
        return None
    if case.link.state is not PeerState.NONE and "SHM/" not in case.link.nccl:
        return None
    where = f"the {host.container} container" if host.container else "this machine"
    free, total = format_approximate_size(host.shm.free), format_approximate_size(host.shm.total)
    text = (
        f"NCCL fails, and {where} has only {free} of {total} shared memory left, which NCCL needs where it uses no P2P"
    )
    return _Found(Certainty.CONSISTENT, text, "docker run --ipc=host, or --shm-size=1g")


def _states(*states: PeerState) -> Callable[[_Case], bool]:
    return lambda case: case.link.state in states


def _unused(case: _Case) -> bool:
    """Return whether P2P works, and NCCL takes another way."""
    return case.link.state is PeerState.WORKS and case.link.nccl != "" and "P2P/" not in case.link.nccl


_BROKEN = tuple(state for state in PeerState if state.is_broken)
# Causes of what is wrong come first, and of what the driver does not offer last.
_LATER = {PeerState.WORKS: 1, PeerState.NONE: 2}
_ON_THE_WAY = (*_BROKEN, PeerState.SLOW)
_BELOW_BEST = ("PCIe width", "PCIe generation")
# Each cause with what links show that have it. Of causes that nothing else tells apart the first one is named first: a
# patch that forces P2P cannot work without the whole memory in BAR1, and needs addresses that nothing translates.
_TABLE: tuple[tuple[str, Callable[[_Case], bool], Callable[[_Case], _Found | None]], ...] = (
    (_SHARED_MEMORY, lambda case: case.nccl_fails, _shared_memory),
    ("GPU model", _states(PeerState.NONE), _gpu_model),
    ("chipset", _states(PeerState.NONE), _chipset),
    ("driver setting", _states(PeerState.NONE), _registry),
    ("virtual machine", _states(PeerState.NONE, PeerState.REFUSED, *_ON_THE_WAY), _virtual_machine),
    ("BAR1", _states(*_BROKEN, PeerState.REFUSED), _bar1),
    ("ACS", _states(*_ON_THE_WAY), _acs),
    ("IOMMU", _states(*_ON_THE_WAY), _iommu),
    ("patched driver", _states(*_BROKEN, PeerState.REFUSED), _patched),
    ("root complex", _states(PeerState.SLOW), _root_complex),
    ("CPU sockets", _states(PeerState.SLOW), _sockets),
    (_BELOW_BEST[0], _states(PeerState.WORKS, PeerState.SLOW), _width),
    (_BELOW_BEST[1], _states(PeerState.WORKS, PeerState.SLOW), _generation),
    ("NCCL variable", _unused, _variable),
    ("NCCL's distance", _unused, _default_level),
    ("NCCL_SHM_DISABLE", lambda case: _unused(case) or case.link.state is PeerState.NONE, _no_shared_memory),
)


def held_back(peer_map: PeerMap, every: Sequence[PeerCause]) -> tuple[PeerCause, ...]:
    """Return the causes that slow links that work, and copies through host memory as well."""
    works = {link.devices for link in peer_map.links if link.state is PeerState.WORKS}
    return tuple(cause for cause in every if cause.name in _BELOW_BEST and works.issuperset(cause.links))


# GPUs of the machine that the map lacks: they have no link here that could show a symptom.


def hidden(facts: MachineFacts) -> tuple[PeerCause, ...]:
    """Return what hides GPUs of this machine from this process, and what that does to P2P with them."""
    from collbench.preflight.judge import visible_gpus  # late: simulated machines hide none

    gpus, left = facts.driver.gpus, visible_gpus(facts)
    by_variable = len(gpus) - len(left)
    found = [_by_variable(len(left), len(gpus))] if by_variable else []
    unseen = kernel.unseen_in_step(len(gpus), facts.environment)
    more = (facts.driver.on_the_bus or 0) - len(gpus)
    if unseen and not any(gpu.mig for gpu in gpus):  # Slurm may count MIG devices
        text = f"Slurm's step has {unseen} more here, which this task is not bound to: it has no P2P with them"
        then = "NCCL up to 2.21 then takes host memory without a word, newer ones may fail"
        found.append(PeerCause("Slurm", (), Certainty.CONSISTENT, f"{text}; {then}", kernel.UNBOUND, ""))
    elif more > 0 and unseen is None:
        container = facts.host.container
        owner = f"the {container} container was not given" if container else "the driver does not show"
        fix = kernel.container_fix(container, "")
        fix = f"if a job needs them, {fix}" if fix else "see collbench doctor"
        text = f"PCI has {more} more, which {owner}: no process in it has P2P with them"
        found.append(PeerCause(container or "PCI", (), Certainty.POSSIBLE, text, "", fix))
    return tuple(found)


def _by_variable(left: int, gpus: int) -> PeerCause:
    text = f"it leaves {left} of {gpus} GPUs; by itself it takes P2P with the others from no process"
    return PeerCause(NAME, (), Certainty.SHOWN, text, f"unset {NAME}", "examine them")


_MEANWHILE = "export NCCL_P2P_DISABLE=1"


def workarounds(peer_map: PeerMap) -> Iterator[str]:
    """Yield a command that lets jobs run meanwhile, and a remark; nothing if no link is broken or slower than the host.

    The command can be pasted into a shell.
    """
    if any(link.state.is_broken for link in peer_map.links):
        yield _MEANWHILE
        yield (
            "NCCL then sends all data through host memory, which is slower; vLLM, SGLang: --disable-custom-all-reduce "
            "as well, because their own kernels use P2P without NCCL"
        )
    elif any(link.state is PeerState.SLOW for link in peer_map.links):
        yield _MEANWHILE
        yield "compare jobs on slow links: NCCL then sends all data through host memory"
