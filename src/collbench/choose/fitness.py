"""Which devices are fit for a job: not in use, not throttled, not faulty (docs/method/choosing.md 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from collbench.choose.choice import EXCLUDED, LeftOut, Unfit, Why
from collbench.judge.outcome import FLAGGED_SHARE, flagged_shares, outcome
from collbench.machine.health import BUSY_PERCENT, errors, holds_back, only_opened
from collbench.model.run import FlagKind, Health, Run
from collbench.model.units import format_approximate_size

# A CUDA context takes 300 MB and more: less in use, and no process, means that the GPU is idle.
_IDLE_BYTES = 256 * 2**20
# A training job wants most of the memory; a desktop's own use of it is a few percent.
_MIN_FREE = 0.5
# One failed pair may be either device's or the link's; with two partners it is the device that they share.
_BLAMED_PARTNERS = 2


class _Signs(NamedTuple):
    """The share of each device's trials that have each flag, and the device to blame for failed pairs."""

    shares: dict[tuple[FlagKind, int], float]
    blamed: int | None

    def share(self, position: int, kind: FlagKind) -> float:
        """Return the share of a device's trials that have such a flag about it."""
        return self.shares.get((kind, position), 0.0)


def left_out(
    run: Run, exclude: Collection[int] = (), *, allow_busy: bool = False, allow_throttled: bool = False
) -> tuple[LeftOut, ...]:
    """Return the devices that are not to be chosen, by position, each with its reasons.

    Faulty ones are always left out; busy and throttled ones unless `allow_busy`, throttled ones unless
    `allow_throttled`. If all devices are throttled, throttling leaves none out.
    """
    rest = [position for position in range(len(run.devices)) if position not in exclude]
    signs = _signs(run)
    slowed = {position: _throttled(run, position, signs) for position in rest}
    reasons = {position: [EXCLUDED] for position in exclude}
    for position in rest:
        reasons[position] = _faults(run, position, signs)
        if not allow_busy:
            reasons[position] += _busy(run, position, signs)
            reasons[position] += slowed[position] if not (allow_throttled or all(slowed.values())) else []
    return tuple(LeftOut(position, tuple(why)) for position, why in sorted(reasons.items()) if why)


def marks(run: Run, order: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Return for each of these positions whether others use it, and whether any sign of a fault was seen on it."""
    signs = _signs(run)
    opened = [only_opened(_state(run.health_before, position)) for position in order]
    busy = [bool(_busy(run, position, signs)) or others for position, others in zip(order, opened, strict=True)]
    suspect = [
        bool(_throttled(run, position, signs) or _faults(run, position, signs))
        or signs.share(position, FlagKind.THROTTLED) > 0
        for position in order
    ]
    return busy, suspect


def _busy(run: Run, position: int, signs: _Signs) -> list[Why]:
    """Return how a device is in use by others: processes, utilization in percent, memory; empty if it is not."""
    before = _state(run.health_before, position)
    reasons = _others(before, _state(run.health_after, position), signs.share(position, FlagKind.SHARED))
    used = before.memory_used
    idle = before.processes == 0 and used is not None and used < _IDLE_BYTES
    if (before.utilization or 0) > BUSY_PERCENT and not idle:
        reasons.append(Why(Unfit.BUSY, f"busy: {before.utilization:.0f}% utilization"))
    memory = run.devices[position].memory_bytes
    if used is not None and memory and memory - used < _MIN_FREE * memory:
        free, total = map(format_approximate_size, (max(memory - used, 0), memory))
        reasons.append(Why(Unfit.BUSY, f"busy: only {free} of {total} free"))
    return reasons


def _others(before: Health, after: Health, share: float) -> list[Why]:
    """Return whether other processes use a device, or used it in this share of its trials."""
    if only_opened(before):
        return []  # a tie-break prefers a device that no process has opened
    if count := max(before.processes or 0, after.processes or 0):
        return [Why(Unfit.BUSY, f"busy: {count} other process{'' if count == 1 else 'es'}")]
    return [Why(Unfit.BUSY, f"busy: another process in {share:.0%} of its trials")] if share >= FLAGGED_SHARE else []


def _throttled(run: Run, position: int, signs: _Signs) -> list[Why]:
    """Return why a device was throttled, before or after the run or in a tenth of its trials; empty if it was not."""
    states = (_state(run.health_before, position), _state(run.health_after, position))
    reasons = {reason for state in states for reason in state.throttle if holds_back(reason)}
    if reasons:
        return [Why(Unfit.THROTTLED, f"throttled: {', '.join(sorted(reasons))}")]
    share = signs.share(position, FlagKind.THROTTLED)
    return [Why(Unfit.THROTTLED, f"throttled in {share:.0%} of its trials")] if share >= FLAGGED_SHARE else []


def broken_pairs(run: Run) -> set[frozenset[int]]:
    """Return the pairs on which anything failed or moved wrong data."""
    return {frozenset(members) for members in outcome(run).device_sets if len(members) == 2}


def _faults(run: Run, position: int, signs: _Signs) -> list[Why]:
    reasons = [Why(Unfit.FAULTY, f"faulty: {error}") for error in errors(run, position)]
    if position == signs.blamed:
        reasons.append(Why(Unfit.FAULTY, "faulty: only its pairs failed or moved wrong data"))
    return reasons


def _blamed(run: Run) -> int | None:
    """Return the one device that all failed pairs share, None without two failed pairs and one such device."""
    bad = (m.point.work.place(m.point.members) for m in run.measurements if m.wrong or (m.failure and not m.untried))
    pairs = {frozenset(members) for members in bad if len(members) == 2}
    partners = Counter(member for pair in pairs for member in pair)
    shared = [member for member, count in partners.items() if count == len(pairs) >= _BLAMED_PARTNERS]
    return shared[0] if len(shared) == 1 else None


def _state(states: tuple[Health, ...], position: int) -> Health:
    return states[position] if position < len(states) else Health()


def _signs(run: Run) -> _Signs:
    return _Signs(flagged_shares(run), _blamed(run))
