"""Which devices are fit for a job: not in use, not throttled, not faulty (METHOD.md §6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collbench.affinity.choice import LeftOut, Unfit, Why
from collbench.machine.limits import BUSY_PERCENT, holds_back, only_opened
from collbench.model import FlagKind, Health, Measurement, Run
from collbench.outcome import outcome

# A CUDA context takes 300 MB and more: less in use, and no process, means nobody.
_NOBODY_BYTES = 256 * 2**20
# A training job wants most of the memory; a desktop's own use of it is a few percent.
_LEAST_FREE = 0.5
# A single flagged visit may be a spike of power; a tenth of them is a state.
_FLAGGED_SHARE = 0.1
# One failed pair may be either device's or the link's; with two partners it is the device that they share.
_BLAMED_PARTNERS = 2


@dataclass(frozen=True, slots=True)
class _Signs:
    """What the visits say of each device: how many it has, how many are flagged with what, and whom to blame."""

    visits: Counter[int]
    flagged: Counter[tuple[FlagKind, int]]
    blamed: int | None

    def share(self, place: int, kind: FlagKind) -> float:
        """Return the share of a device's visits that have such a flag about it."""
        return self.flagged[kind, place] / max(1, self.visits[place])


def left_out(run: Run, exclude: Collection[int] = (), *, allow_busy: bool = False) -> tuple[LeftOut, ...]:
    """Return the devices that are not to be chosen, by position, each with its reason.

    Faulty ones always; busy and throttled ones unless `allow_busy`. Throttling of all devices alike picks none out.
    """
    rest = [place for place in range(len(run.devices)) if place not in exclude]
    signs = _signs(run)
    slowed = {place: _throttled(run, place, signs) for place in rest}
    reasons = {place: [Why(Unfit.EXCLUDED)] for place in exclude}
    for place in rest:
        reasons[place] = _faults(run, place, signs)
        if not allow_busy:
            reasons[place] += _busy(run, place, signs) + (slowed[place] if not all(slowed.values()) else [])
    return tuple(LeftOut(place, tuple(why)) for place, why in sorted(reasons.items()) if why)


def marks(run: Run, order: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Return for each of these positions whether others use it, and whether anything was said against it, even once."""
    signs = _signs(run)
    opened = [only_opened(_state(run.health_before, place)) for place in order]
    busy = [bool(_busy(run, place, signs)) or others for place, others in zip(order, opened, strict=True)]
    suspect = [
        bool(_throttled(run, place, signs) or _faults(run, place, signs))
        or signs.flagged[FlagKind.THROTTLED, place] > 0
        for place in order
    ]
    return busy, suspect


def _busy(run: Run, place: int, signs: _Signs) -> list[Why]:
    """Return how a device is in use by others: processes, utilisation in percent, memory; empty where it is not."""
    before = _state(run.health_before, place)
    reasons = _others(before, _state(run.health_after, place), signs.share(place, FlagKind.SHARED))
    used = before.memory_used
    nobody = before.processes == 0 and used is not None and used < _NOBODY_BYTES
    if (before.utilization or 0) > BUSY_PERCENT and not nobody:
        reasons.append(Why(Unfit.UTILISATION, before.utilization or 0))
    memory = run.devices[place].memory_bytes
    if used is not None and memory and memory - used < _LEAST_FREE * memory:
        reasons.append(Why(Unfit.MEMORY, max(memory - used, 0), memory))
    return reasons


def _others(before: Health, after: Health, share: float) -> list[Why]:
    """Return that others are at work on a device, or were in this share of its visits."""
    if only_opened(before):
        return []  # the tie-break tells such a device from one that nobody opened
    if count := max(before.processes or 0, after.processes or 0):
        return [Why(Unfit.PROCESSES, count)]
    return [Why(Unfit.VISITS_SHARED, share)] if share >= _FLAGGED_SHARE else []


def _throttled(run: Run, place: int, signs: _Signs) -> list[Why]:
    """Return what holds a device's clocks back, at the run's ends or in a tenth of its visits; empty where nothing."""
    states = (_state(run.health_before, place), _state(run.health_after, place))
    reasons = {reason for state in states for reason in state.throttle if holds_back(reason)}
    if reasons:
        return [Why(Unfit.THROTTLED, reasons=tuple(sorted(reasons)))]
    share = signs.share(place, FlagKind.THROTTLED)
    return [Why(Unfit.VISITS_THROTTLED, share)] if share >= _FLAGGED_SHARE else []


def broken_pairs(run: Run) -> set[frozenset[int]]:
    """Return the pairs on which anything failed or moved wrong data."""
    return {frozenset(place) for place in outcome(run).places if len(place) == 2}


def _faults(run: Run, place: int, signs: _Signs) -> list[Why]:
    before, after = _state(run.health_before, place), _state(run.health_after, place)
    reasons = []
    if ecc := max(before.ecc_errors or 0, after.ecc_errors or 0):
        reasons.append(Why(Unfit.ECC_ERRORS, ecc))
    if before.nvlink_errors is not None and after.nvlink_errors is not None:
        grown = after.nvlink_errors - before.nvlink_errors
        reasons += [Why(Unfit.NVLINK_ERRORS, grown)] if grown > 0 else []
    if place == signs.blamed:
        reasons.append(Why(Unfit.FAILING_PAIRS))
    return reasons


def _blamed(run: Run) -> int | None:
    """Return the one device that all failed pairs share, where that is certain."""
    failed = [m for m in run.measurements if len(m.cell.members) == 2 and _bad(m)]
    partners = Counter(member for pair in {frozenset(m.cell.members) for m in failed} for member in pair)
    pairs = len({frozenset(m.cell.members) for m in failed})
    shared = [member for member, count in partners.items() if count == pairs >= _BLAMED_PARTNERS]
    return shared[0] if len(shared) == 1 else None


def _bad(found: Measurement) -> bool:
    return bool(found.wrong or (found.failure and not found.untried))


def _state(states: tuple[Health, ...], place: int) -> Health:
    return states[place] if place < len(states) else Health()


def _signs(run: Run) -> _Signs:
    visits, flagged = Counter[int](), Counter[tuple[FlagKind, int]]()
    for found in run.measurements:
        for place in found.cell.members:
            visits[place] += len(found.samples)
        for sample in found.samples:
            about = {(flag.kind, place) for flag in sample.flags for place in flag.devices}
            flagged.update((kind, place) for kind, place in about if place in found.cell.members)
    return _Signs(visits, flagged, _blamed(run))
