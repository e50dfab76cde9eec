"""Verdicts: what is wrong, where, why; of those with one cause only the strongest stands (docs/method/verdicts.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from collbench.machine.labels import is_nvlink
from collbench.model.errors import Failure
from collbench.model.operations import Endpoints, Variant, Work
from collbench.model.run import Pair, Run, Skipped

Link = tuple[int, int]
Interval = tuple[float, float, float]


class Kind(StrEnum):
    """The kinds of docs/check.md. LABELS_DIFFER is a disagreement between reported labels that is no fault."""

    DATA_CORRUPT = "DATA_CORRUPT"
    HANG = "HANG"
    CONTENTION = "CONTENTION"
    P2P_CAP_MISMATCH = "P2P_CAP_MISMATCH"
    LINKCOUNT_MISMATCH = "LINKCOUNT_MISMATCH"
    NV_NOT_USED = "NV_NOT_USED"
    NV_DEGRADED = "NV_DEGRADED"
    HIDDEN_NVLINK = "HIDDEN_NVLINK"
    IMPOSSIBLE = "IMPOSSIBLE"
    GPU_ERRORS = "GPU_ERRORS"
    THROTTLED = "THROTTLED"
    PCIE_DEGRADED = "PCIE_DEGRADED"
    P2P_SLOWER_THAN_STAGED = "P2P_SLOWER_THAN_STAGED"
    ORDER_INVERSION = "ORDER_INVERSION"
    ASYMMETRY = "ASYMMETRY"
    INTRA_LABEL_OUTLIER = "INTRA_LABEL_OUTLIER"
    UNSTEADY = "UNSTEADY"
    COLLECTIVE_CONTRADICTION = "COLLECTIVE_CONTRADICTION"
    FAILED = "FAILED"
    VIRTUAL_FLAT = "VIRTUAL_FLAT"
    LABELS_DIFFER = "LABELS_DIFFER"


class Severity(StrEnum):
    """How bad it is: `hard` is data corruption or a hang, `failure` any other failed data point, `info` is no fault."""

    HARD = "hard"
    CONTRADICTION = "contradiction"
    FAILURE = "failure"
    INFO = "info"


_SEVERITIES = {
    Kind.DATA_CORRUPT: Severity.HARD,
    Kind.HANG: Severity.HARD,
    Kind.FAILED: Severity.FAILURE,
    Kind.VIRTUAL_FLAT: Severity.INFO,
    Kind.LABELS_DIFFER: Severity.INFO,
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What probably causes a verdict: a name, for programs, and a clause without a full stop, for people.

    `fix` are the shell commands that show whether it is the true one. `devices` are those to blame, if some are.
    `part` is what is to blame in a few words, "" if the place of the verdict says it.
    `seen`: it was seen during the run, not inferred. `either`: explanations, each of one fault or of several, that fit
    what was measured equally well. `by_design`: the machine was built so, which is no fault.
    """

    name: str
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()
    seen: bool = False
    either: tuple[tuple[Cause, ...], ...] = ()
    by_design: bool = False
    part: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """One disagreement. `theory_gbs` and `measured` (lo, mid, hi) are GB/s one way, None if the kind has none.

    `limit` says what `theory_gbs` is: what copies showed of the "links", the "isolated" rate, or "theory".
    `members` are positions: (src, dst) of one direction, (low, high) of a pair, (gpu,) where one is to blame, or all.
    `place` names them and their links, and `text` is what was found there, "" if `place` says it. `label` is that of
    the links, "" if there is none. `confirmed` is False if only concurrent samples showed it, and no interference check
    says that those count. `failure` and `skipped` are the first ones that it rests on, if there are any.
    `links` are the directed links that it and what it explains are about; none if it is about devices. `reach` are
    those that cross the element to blame, if several pairs share it; `works` show it. `explains` are kinds that would
    have been found for the same links without this verdict: of copies below `explains_from_gbs` it explains nothing.
    """

    kind: Kind
    members: tuple[int, ...]
    place: str
    text: str
    cause: Cause
    label: str = ""
    theory_gbs: float | None = None
    limit: str = "theory"
    measured: Interval | None = None
    confirmed: bool = True
    failure: Failure | None = None
    skipped: Skipped | None = None
    links: frozenset[Link] = frozenset()
    reach: frozenset[Link] = frozenset()
    works: frozenset[Work] = frozenset()
    explains: tuple[Kind, ...] = ()
    explains_from_gbs: float = 0.0

    def __repr__(self) -> str:
        """Return one line, for people."""
        label = f" ({self.label})" if self.label else ""
        return f"<Verdict {self.kind} on devices {self.members}{label}: {self.severity}>"

    @property
    def severity(self) -> Severity:
        """How bad it is, which its kind decides; what was built so is no fault."""
        return Severity.INFO if self.cause.by_design else _SEVERITIES.get(self.kind, Severity.CONTRADICTION)

    @property
    def pairs(self) -> tuple[Link, ...]:
        """The pairs of its links, ascending."""
        return tuple(sorted({(min(link), max(link)) for link in self.links}))

    @property
    def fix(self) -> str:
        """The shell commands that show whether the cause is the true one."""
        return self.cause.fix

    @property
    def by_other_processes(self) -> bool:
        """Whether it says that other processes used its devices: nothing was measured to find that."""
        return self.kind is Kind.CONTENTION and self.measured is None

    def concerns(self, pair: Pair) -> bool:
        """Return whether it is a fault of this pair, in ascending positions, or of one of its devices."""
        if self.severity is Severity.INFO:
            return False
        if not self.pairs and self.works and all(work.variant.host_memory for work in self.works):
            return False  # such copies cross no link between GPUs
        if len(self.members) == 1 or self.by_other_processes:
            return not {*pair}.isdisjoint(self.members)
        return pair in self.pairs if self.pairs else {*pair} <= {*self.members}


def directed_links(work: Work, members: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the directed links of a work on two devices, both for a collective; none for other numbers of devices."""
    if len(members) != 2 or work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS:
        return ()
    a, b = members
    both = work.operation.is_collective or work.variant is Variant.BOTH_WAYS
    return ((a, b), (b, a)) if both else ((a, b),)


def both_ways(links: Iterable[Link]) -> frozenset[Link]:
    """Return the links and their opposites."""
    return frozenset(link for a, b in links for link in ((a, b), (b, a)))


# One root cause, one verdict: a verdict names the weaker ones that it explains, and these are not reported.

# A link slower than others.
SLOW_LINK = (Kind.ASYMMETRY, Kind.INTRA_LABEL_OUTLIER, Kind.ORDER_INVERSION)
_RATES = (*SLOW_LINK, Kind.COLLECTIVE_CONTRADICTION, Kind.P2P_SLOWER_THAN_STAGED)
# What each kind explains on its links, strongest kind first. A verdict that is explained explains nothing itself.
_EXPLAINS = {
    Kind.DATA_CORRUPT: (Kind.HANG, Kind.FAILED, Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.HANG: (Kind.FAILED, Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.P2P_CAP_MISMATCH: (Kind.NV_NOT_USED, Kind.NV_DEGRADED, *_RATES),
    Kind.CONTENTION: (Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.LINKCOUNT_MISMATCH: (Kind.NV_DEGRADED, Kind.HIDDEN_NVLINK, Kind.IMPOSSIBLE, *SLOW_LINK),
    Kind.HIDDEN_NVLINK: SLOW_LINK,
    Kind.IMPOSSIBLE: (*SLOW_LINK, Kind.COLLECTIVE_CONTRADICTION),
    Kind.NV_NOT_USED: (Kind.NV_DEGRADED, *_RATES),
    Kind.NV_DEGRADED: (Kind.P2P_SLOWER_THAN_STAGED, *SLOW_LINK),
    Kind.PCIE_DEGRADED: _RATES,
    Kind.P2P_SLOWER_THAN_STAGED: SLOW_LINK,
    Kind.VIRTUAL_FLAT: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.COLLECTIVE_CONTRADICTION: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.ORDER_INVERSION: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.ASYMMETRY: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.INTRA_LABEL_OUTLIER: (Kind.INTRA_LABEL_OUTLIER,),  # copies that are slow explain NCCL's
}


# A variable that is set, or peer access that is refused, slows these whatever other jobs do and whichever element is
# slow: where that was seen, these do not explain them.
_BY_SETTINGS = (Kind.COLLECTIVE_CONTRADICTION, Kind.NV_NOT_USED)


def explained(found: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that stand, strongest first, each with the kinds that it explains."""
    order = [*_EXPLAINS, *(kind for kind in Kind if kind not in _EXPLAINS)]
    left = sorted(found, key=lambda verdict: order.index(verdict.kind))
    standing: list[Verdict] = []
    while left:
        # The verdict on a device stands for all that the device explains.
        alike = [verdict for verdict in left if verdict is left[0] or _by_one_cause(left[0], verdict)]
        strong = next(filter(_of_device, alike), left[0])
        left.remove(strong)
        # What is wrong with one device is said of its links of each label.
        beside = [
            one for one in left if (one.kind, one.members) == (strong.kind, strong.members) and len(one.members) == 1
        ]
        covered = [weak for weak in left if _covers(strong, weak, strong.links.union(*(one.links for one in beside)))]
        left = [weak for weak in left if weak not in covered]
        kinds = tuple(dict.fromkeys(weak.kind for weak in covered if weak.kind is not strong.kind))
        links = strong.links.union(*(weak.links for weak in covered))
        found_here = replace(_with_other_links(strong, covered), explains=kinds, links=links)
        # What shows the same part on more links says better where it is.
        widest = max([strong, *(weak for weak in covered if _same_part(strong, weak))], key=lambda one: len(one.links))
        standing.append(replace(found_here, place=widest.place, members=widest.members))
    return [_or_by_its_gpu(verdict, standing) for verdict in standing]


def _or_by_its_gpu(verdict: Verdict, standing: Iterable[Verdict]) -> Verdict:
    """Return a verdict on one pair with what slows the other links of one of its GPUs, which may slow this one, too."""
    cause, slow = verdict.cause, (one for one in standing if one.cause.name == GPU and not one.cause.seen)
    gpu = next((one for one in slow if {*one.members} < {*verdict.members} and one.place), None)
    if gpu is None or verdict.kind not in _SLOWED or cause.seen or len(verdict.pairs) != 1:
        return verdict
    return replace(verdict, cause=replace(cause, text=f"{cause.text}; or what slows {gpu.place}, too"))


def _with_other_links(strong: Verdict, covered: Iterable[Verdict]) -> Verdict:
    """Return a verdict on a GPU's NVLinks with what shows that its PCIe paths or slot are slow, or the reverse."""
    cause = strong.cause
    alike = (weak for weak in covered if weak.works and _by_one_cause(strong, weak) and not cause.seen)
    others = (weak for weak in alike if is_nvlink(weak.label) is not is_nvlink(strong.label))
    if (other := next(others, None)) is None:
        return strong
    cause = replace(cause, text=f"{cause.text}; also {other.cause.text}", fix=f"{cause.fix}; {other.fix}", part="")
    return replace(strong, cause=cause, works=strong.works | other.works)


GPU, NVLINKS_DOWN = "gpu", "nvlinks_down"  # causes of what is slow on all links of a GPU
NEW_ERRORS = "new_errors"  # the cause of what is slow on a device that counted errors meanwhile
# What one cause that was seen on some devices slows, whatever their labels, links and kinds of work.
_SLOWED = (Kind.NV_NOT_USED, Kind.NV_DEGRADED, *_RATES)


def _of_device(verdict: Verdict) -> bool:
    """Return whether a verdict is about the one device on which its cause was seen."""
    return len(verdict.members) == 1 and verdict.cause.seen and bool(verdict.cause.devices)


def _by_one_cause(one: Verdict, other: Verdict) -> bool:
    """Return whether both are slow by one cause, a GPU or one that was seen, whichever of its links show it."""
    known = one.cause.seen or len(one.cause.devices) == 1
    return known and _root(one.cause) == _root(other.cause) and {one.kind, other.kind} <= {*_SLOWED}


def _root(cause: Cause) -> Cause:
    """Return a cause without what differs between a GPU's links, unless it was seen."""
    if cause.seen:
        return replace(cause, fix="")
    of_gpu = len(cause.devices) == 1 and cause.name in (GPU, NVLINKS_DOWN)
    return replace(cause, name=GPU if of_gpu else cause.name, text="", fix="", part="")


def _same_part(one: Verdict, other: Verdict) -> bool:
    """Return whether both blame one part that several pairs share, and the other is about all links of the one."""
    parts = {(verdict.cause.name, verdict.cause.devices, verdict.cause.either) for verdict in (one, other)}
    known = one.cause.devices or one.cause.either
    return bool(one.reach and known) and len(parts) == 1 and one.links <= other.links


def _covers(strong: Verdict, weak: Verdict, links: frozenset[Link]) -> bool:
    """Return whether one verdict explains another; `links` are those that its kind is about on its device.

    It does if all that the other is about crosses the element to blame; if both are slow by one cause that was seen,
    and it is about the device with that cause, or about all that the other is about; or by kind, on all of its links,
    if no cause was seen for it.
    """
    if weak.kind is Kind.GPU_ERRORS:
        return strong.cause.name == NEW_ERRORS and strong.cause.devices == weak.members
    collective = any(work.operation.is_collective for work in weak.works)  # which is as slow as the slower direction
    of_nccl = bool(strong.works) and all(work.operation.is_collective for work in strong.works)
    if weak.works and not collective and of_nccl:
        return False  # what slows NCCL slows no copies
    with_host = any(work.variant.host_memory for work in weak.works)
    # The one kind says that copies with host memory are faster; and these cross no NVLink that is down.
    spared = with_host and strong.kind in (Kind.P2P_SLOWER_THAN_STAGED, Kind.LINKCOUNT_MISMATCH)
    if spared or (weak.measured is not None and not collective and weak.measured[2] < strong.explains_from_gbs):
        return False
    sure = weak.kind in _BY_SETTINGS and weak.cause.seen and not weak.cause.devices
    reach = both_ways(strong.reach) if collective else strong.reach
    if weak.kind in _SLOWED and not sure and weak.links and weak.links <= reach:
        return True
    by_cause = _by_one_cause(strong, weak) and (_of_device(strong) or {*weak.members} <= {*strong.members})
    # Where NVLinks join all GPUs, copies with host memory cross no link. A job on the GPU slows them as its slot does.
    slows_host = strong.kind is Kind.PCIE_DEGRADED or strong.by_other_processes
    of_host = with_host and not weak.links and weak.kind in _RATES and {*weak.members} <= {*strong.members}
    if by_cause or (slows_host and of_host):
        return True
    by_kind = weak.kind in _EXPLAINS.get(strong.kind, ()) and not (sure and strong.kind is Kind.CONTENTION)
    one_way = strong.kind is Kind.ASYMMETRY and not collective  # a link that is slow, too, is not slow by its opposite
    return by_kind and bool(weak.links) and weak.links <= (links if one_way else both_ways(links))


# Words that several rules use: names of works and devices, and parts of the shell commands that check a cause.

# As NVML writes it, "00000000:1B:00.0"; a run file may contain anything.
_BUS_ID = re.compile(r"([0-9A-Fa-f]+):([0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f])")


def names(works: Iterable[Work]) -> str:
    """Return each work once, by name: "ce-read, ce-write"."""
    return ", ".join(sorted(map(str, {*works})))


def indices(run: Run, positions: Iterable[int]) -> str:
    """Return devices as nvidia-smi and --devices name them: "0,1"."""
    return ",".join(str(run.devices[position].index) for position in positions)


def on(run: Run, positions: Sequence[int]) -> str:
    """Return nvidia-smi's option for some devices, " -i 0,1"; "" for none, which means all."""
    return f" -i {indices(run, positions)}" if positions else ""


def slots(run: Run, positions: Iterable[int]) -> str:
    """Return the commands that show the state of PCIe links: of all where a bus id is unknown or malformed."""
    known = [address for position in positions if (address := _pci_address(run, position))]
    if not known:
        return "sudo lspci -vvv | grep -e NVIDIA -e LnkSta"
    return "; ".join(f"sudo lspci -vvv -s {address} | grep LnkSta:" for address in known)


def uplink(run: Run, positions: Iterable[int], switches: int) -> str:
    """Return the command that shows the state of the uplink of so many PCIe switches in a row above some GPUs.

    The kernel has a switch's upstream port two folders above the GPU's: between them is the downstream port.
    """
    address = next(filter(None, (_pci_address(run, position) for position in positions)), "")
    if not address:
        return slots(run, ())
    port = f"/sys/bus/pci/devices/{address}{switches * '/../..'}"
    return f"sudo lspci -vvv -s $(basename $(readlink -f {port})) | grep LnkSta:"


def _pci_address(run: Run, position: int) -> str:
    """Return a device's PCI address as the kernel writes it, "" if it is unknown or malformed."""
    match = _BUS_ID.fullmatch(run.devices[position].pci_bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else ""
