"""GPUs that others use, in poor slots or slower for a while; pairs that slow each other down (method/verdicts.md 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.judge.diagnose.blame import (
    THROTTLED,
    Blame,
    clock_state,
    named_or_all,
    of_devices,
    unhealthy_devices,
    verdict_on,
)
from collbench.judge.diagnose.collectives import by_setting
from collbench.judge.diagnose.readings import CE, COPY_BYTES, SM, STAGED, Facts
from collbench.judge.diagnose.verdict import Cause, Kind, Link, Verdict, both_ways, names, on, slots
from collbench.judge.outcome import FLAGGED_SHARE, flagged_shares, flagged_trials
from collbench.judge.physics import most_over_pcie
from collbench.judge.stats import MIN_TRIALS, Variance, reach, row_medians, trial_seconds
from collbench.machine import theory
from collbench.machine.health import errors
from collbench.machine.labels import is_nvlink, rank_key
from collbench.machine.theory import Theory, slot
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import FlagKind, InterferenceCheck, tags
from collbench.model.units import TELLING_BYTES, grouped, verb

_BY_ENGINE = (Operation.H2D_CE, Operation.D2H_CE)  # between a device and host memory


def other_processes(facts: Facts) -> Iterator[Verdict]:
    """Yield the GPUs that other people's processes used during the run: what was measured on them includes those."""
    shared = unhealthy_devices(facts).shared
    gpus = tuple(sorted(shared))
    if gpus:
        by_time = grouped((shared[gpu], gpu) for gpu in gpus)
        seen = ", ".join(f"on {tags(alike, facts.run.devices)} {when}" for when, alike in by_time.items())
        cause = Cause(
            "other_jobs",
            "another job computes, copies or holds memory there; measure again when it has ended",
            f"nvidia-smi{on(facts.run, gpus)} --query-compute-apps=pid,name,used_memory --format=csv",
        )
        links = frozenset[Link]().union(*(facts.links_of(gpu) for gpu in gpus))
        yield Verdict(Kind.CONTENTION, gpus, f"another process was {seen}", "", cause, links=links)


def interference(facts: Facts) -> Iterator[Verdict]:
    """Yield pairs that an interference check finds slower concurrently than isolated, although they share no link.

    NVLinks of disjoint pairs share nothing, nor do peer copies below one PCIe bridge. The labels of longer PCIe paths
    imply shared links, so there it is no contradiction.
    """
    worse = [
        check
        for check in facts.run.interference_checks
        if not check.trusted
        and _shares_nothing(facts, check)
        and -math.log(max(check.ratio, 1e-9)) > check.delta + _check_noise(facts, check)
    ]
    for over_nvlink in (True, False):
        checks = [check for check in worse if is_nvlink(check.label) is over_nvlink]
        if checks:
            yield _disturbed(facts, checks, over_nvlink=over_nvlink)


def _disturbed(facts: Facts, checks: list[InterferenceCheck], *, over_nvlink: bool) -> Verdict:
    check = min(checks, key=lambda check: check.ratio)
    labels = tuple(sorted({check.label for check in checks}, key=rank_key))
    works = names(Work(check.operation, check.variant) for check in checks)
    links = both_ways((a, b) for path in facts.run.paths if path.label in labels for a, b in [path.devices])
    members = tuple(sorted({member for link in links for member in link}))
    state = "nvidia-smi topo -m; nvidia-smi pmon -c 1"
    if over_nvlink:
        cause = Cause(
            "nvlink_traffic",
            "traffic of other jobs on the NVLinks, GPUs that share ports, or NCCL and copies that share another link",
            f"{state}; nvidia-smi nvlink -gt d{on(facts.run, members[:1])}",
        )
    else:
        cause = Cause(
            "bridge_detour",
            "copies below one bridge are routed through the root complex (ACS, an IOMMU), or other jobs load the "
            "bridge",
            f"{state}; sudo lspci -vvv | grep ACSCtl",
        )
    gbs, off = check.concurrent_gbs, math.exp(_check_noise(facts, check))
    text = f"concurrently they reach {check.ratio:.2f} of their isolated rate ({works})"
    return verdict_on(
        facts,
        Kind.CONTENTION,
        Blame(links, members, f"{' and '.join(labels)} pairs"),
        text,
        cause,
        label=check.label,
        theory_gbs=check.isolated_gbs,
        limit="isolated",
        measured=(gbs / off, gbs, gbs * off),
    )


def _shares_nothing(facts: Facts, check: InterferenceCheck) -> bool:
    """Return whether a checked pair has its links to itself, by the labels: NVLinks in use, or one bridge with peers.

    Four GPUs have only one other pair; if each of the two pairs has its own NUMA node, they share nothing. Where a
    variable sends NCCL through host memory, its pairs below one bridge share the uplink.
    """
    if is_nvlink(check.label):
        ceiling = facts.pcie_ceiling(check.members)
        return ceiling is None or check.isolated_gbs > ceiling  # else it runs over PCIe, which is another verdict's
    a, b = check.members
    if check.operation.is_collective and by_setting(facts, (a, b), paths_only=True) is not None:
        return False
    others = [m for m in range(len(facts.run.devices)) if m not in check.members]
    nodes = [{facts.run.devices[member].numa_node for member in pair} for pair in (check.members, others)]
    apart = len(others) == 2 and nodes[0].isdisjoint(nodes[1]) and all(len(node) == 1 for node in nodes)
    own = check.label == "PIX" or (apart and None not in nodes[0] | nodes[1])
    return own and facts.has_peers(check.members)


def _check_noise(facts: Facts, check: InterferenceCheck) -> float:
    """Return how far noise may lower the log ratio of an interference check, which has two medians of three trials."""
    alike = [r for r in facts.readings.points if r.work == Work(check.operation, check.variant)]
    if not alike:
        return check.delta
    # A reading's error is that of a median of at least three, as an interference check's two medians are
    # (measurement/sweep.py).
    return facts.readings.z * math.sqrt(2) * max(reading.error for reading in alike)


def counted_errors(facts: Facts) -> Iterator[Verdict]:
    """Yield the GPUs that counted uncorrected errors of their memory, or new ones of their NVLinks during the run."""
    for position, device in enumerate(facts.run.devices):
        if counted := [*errors(facts.run, position)]:
            cause = Cause(
                "failing_hardware",
                "its memory or an NVLink is failing: reset it, and replace it if the errors return",
                f"nvidia-smi -q -d ECC,ROW_REMAPPER{on(facts.run, (position,))}; "
                f"nvidia-smi nvlink -e{on(facts.run, (position,))}",
            )
            yield Verdict(Kind.GPU_ERRORS, (position,), device.tag, " and ".join(counted), cause)


def throttled(facts: Facts, found: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield the GPUs that were throttled in a tenth of their trials or more, and for which no other verdict says so.

    Where all are throttled, no link is slower than the others, and copies may still be within their path's limits.
    """
    named = {gpu for verdict in found if verdict.cause.name == THROTTLED for gpu in verdict.cause.devices}
    shares = {gpu: share for (kind, gpu), share in flagged_shares(facts.run).items() if kind is FlagKind.THROTTLED}
    gpus = tuple(sorted(gpu for gpu, share in shares.items() if share >= FLAGGED_SHARE and gpu not in named))
    if gpus:
        flags = flagged_trials(facts.run)
        reasons = sorted({why for kind, gpu, why in flags if kind is FlagKind.THROTTLED and gpu in gpus and why})
        place = named_or_all(facts.run, gpus)
        low, high = (f"{of(shares[gpu] for gpu in gpus):.0%}" for of in (min, max))
        share = low if low == high else f"{low} to {high}"
        text = f"throttled in {share} of {verb(len(gpus), 'its', 'their')} trials ({', '.join(reasons)})"
        likely = "heat or power: the cooling, the power supply, or a limit that is set below what the GPU needs"
        cause = Cause(THROTTLED, likely, clock_state(facts.run, gpus), gpus)
        yield Verdict(Kind.THROTTLED, gpus, place, text, cause)


_FEWER_LANES = "the slot has fewer lanes, the card is badly seated or on a riser, or the link trained down"
_LOWER_GENERATION = "the link trained down to a lower generation, or power management holds it there under load"


def degraded_slots(facts: Facts) -> Iterator[Verdict]:
    """Yield the GPUs whose PCIe link is narrower or slower than its best, read with their contexts still open.

    A link that carried more than its state allows was only read after it had gone to rest. Resting lowers the
    generation, never the width, so a low generation needs evidence that the slot is slow: copies to or from host memory
    that are no faster than it allows. A copy to another GPU may be slow for other reasons.
    """
    for position, (device, state) in enumerate(zip(facts.run.devices, facts.run.health_after, strict=False)):
        best = (device.pcie_generation, device.pcie_width)
        now = (state.pcie_generation, state.pcie_width)
        if not (_below(now[0], best[0]) or _below(now[1], best[1])):
            continue
        copies = (reading for reading in facts.readings.host(position) if reading.work.operation in _BY_ENGINE)
        seen = max(copies, key=lambda reading: reading.middle, default=None)
        carried = _carried(facts, position)
        few_lanes = _below(now[1], best[1]) and not _beats(carried, theory.pcie(best[0] or now[0], now[1]))
        low_generation = _below(now[0], best[0]) and not _beats(carried, theory.pcie(now[0], now[1] or best[1]))
        if not few_lanes and not (low_generation and seen):
            continue
        ideal, fix = slot(device), slots(facts.run, (position,))
        yield Verdict(
            Kind.PCIE_DEGRADED,
            (position,),
            device.tag,
            f"PCIe gen {now[0]} ×{now[1]} right after measuring; its maximum is gen {best[0]} ×{best[1]}",
            Cause("fewer_lanes", _FEWER_LANES, fix) if few_lanes else Cause("lower_generation", _LOWER_GENERATION, fix),
            theory_gbs=ideal.gbs if ideal else None,
            measured=facts.readings.interval(seen) if seen else None,
            links=frozenset(link for link in facts.links_of(position) if not facts.over_nvlink(link)),
        )


def _below(now: int | None, best: int | None) -> bool:
    return now is not None and best is not None and now < best


def _beats(gbs: float, limit: Theory | None) -> bool:
    return limit is not None and gbs > limit.gbs


def _carried(facts: Facts, device: int) -> float:
    """Return the lower bound in GB/s of the fastest copy over a device's slot, 0 if there is none.

    Copies to other GPUs count unless their label or their rate says that they take NVLinks.
    """
    copies = list(facts.readings.host(device))
    for reading in facts.readings.points:
        if reading.work in (*CE, *SM, STAGED) and reading.size_bytes >= COPY_BYTES and device in reading.members:
            copies.append(reading)
    most = most_over_pcie(limit.gbs if (limit := slot(facts.run.devices[device])) else None)
    over_slot = [r for r in copies if r.work.variant is not Variant.PLAIN or not facts.over_nvlink(r.members)]
    return max((facts.readings.interval(r)[0] for r in over_slot if r.gbs <= most), default=0.0)


# GPUs that were slower for a part of a run: its passes against each other.

# Chance alone names a device in at most this share of runs.
_CHANCE_OF_ANY = 0.001
# docs/method/verdicts.md 5: 5%, as a difference of log times, against data points of other devices; without these 10%,
# because a machine that warms up slows down everywhere.
_MIN_SLOWER, _MIN_SLOWER_ALONE = -math.log(0.95), -math.log(0.9)
_MIN_POINTS = 3  # that show what is typical, and how much it varies
_ENOUGH_POINTS = 8
_CHANGED = "clocks, heat or a power limit changed during the run, or another job was there for a part of it"

_Array = NDArray[np.float64]
_Flags = NDArray[np.bool_]


class _Slow(NamedTuple):
    """Devices that were slower, as a difference of log times, from one pass (from 0) to before another."""

    devices: tuple[int, ...]
    by: float
    begin: int
    end: int


def unsteady(facts: Facts) -> Iterator[Verdict]:
    """Yield the devices whose data points are slower in some passes than in others, while those of others are not.

    CPU cores are left out: other programs disturb them all the time.
    """
    if facts.on_cores:
        return
    logs, touches = _trials(facts)
    passes = logs.shape[1]
    while (slow := _slowest(logs, touches)) is not None:
        first, last = slow.begin + 1, slow.end
        part = f"pass {first}" if first == last else f"passes {first} to {last}"
        gpus = on(facts.run, slow.devices)
        fix = (
            f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER{gpus}; "
            f"nvidia-smi{gpus} --query-compute-apps=pid,name,used_memory --format=csv"
        )
        cause = replace(unhealthy_devices(facts).cause(slow.devices) or Cause("changed", _CHANGED), fix=fix)
        text = f"{1 - math.exp(-slow.by):.0%} slower in {part} of {passes} than in the others"
        yield verdict_on(facts, Kind.UNSTEADY, of_devices(facts, slow.devices), text, cause)
        left = ~touches[[*slow.devices]].any(axis=0)  # data points that touch none of these devices
        logs, touches = logs[left], touches[:, left]


def _trials(facts: Facts) -> tuple[_Array, _Flags]:
    """Return log times of large messages, shape (data points, passes), NaN where there is none; and what they touch.

    The latter, of shape (devices, data points), says in which data points a device takes part. Confirming trials belong
    to no pass.
    """
    points = []
    for measurement in facts.run.measurements:
        trials = zip(measurement.samples, trial_seconds(measurement), strict=True)
        passes = [seconds for sample, seconds in trials if not sample.confirms]
        if measurement.point.size_bytes >= TELLING_BYTES and len(passes) >= MIN_TRIALS:
            points.append((measurement, np.log(passes)))
    logs = np.full((len(points), max((len(times) for _, times in points), default=0)), np.nan)
    for row, (_, times) in zip(logs, points, strict=True):
        row[: len(times)] = times
    touches = [[device in timed.point.members for timed, _ in points] for device in range(len(facts.run.devices))]
    return logs, np.array(touches, dtype=bool)


def _slowest(logs: _Array, touches: _Flags) -> _Slow | None:
    """Return the devices that were slowed down the most for some passes in a row; None if noise may be all."""
    windows, timed = [*combinations(range(logs.shape[1] + 1), 2)] if len(logs) else [], ~np.isnan(logs)
    found: list[_Slow] = []
    for begin, end in windows:
        chance = _CHANCE_OF_ANY / len(windows) / len(touches)
        inside = np.zeros(logs.shape[1], dtype=bool)
        inside[begin:end] = True
        both = timed[:, inside].any(axis=1) & timed[:, ~inside].any(axis=1)
        here, there, touched = logs[both][:, inside], logs[both][:, ~inside], touches[:, both]
        excess = _Excess.of(np.nanmean(here, axis=1) - np.nanmean(there, axis=1), touched)
        if not (suspects := np.flatnonzero(excess.by > excess.least)).size:
            continue
        outside = logs[:, ~inside]
        outside = outside[(~np.isnan(outside)).sum(axis=1) > 1]  # a single trial has no deviation
        elsewhere = _there(outside - row_medians(outside))
        shifts = _Shifts.of(here, there, elsewhere)
        for device in map(int, suspects):
            if _is_slower(shifts, excess, touched, device, chance):
                found.append(_Slow((device,), float(shifts.slower[touched[device]].mean()), begin, end))
    if not found:
        return None
    worst = max(found, key=lambda slow: slow.by)
    touched = touches[worst.devices[0]]
    alike = [device for device, others in enumerate(touches) if np.array_equal(others, touched)]
    return worst._replace(devices=tuple(alike))


class _Excess(NamedTuple):
    """By how much each device's data points were slower than those of others, as a difference of log times.

    All have the shape (devices,). `usual` is what others lost, 0 where they are too few; more than `least` is told.
    """

    by: _Array
    usual: _Array
    least: _Array

    @classmethod
    def of(cls, slower: _Array, touches: _Flags) -> _Excess:
        """Return it from how much slower each data point was; -inf for a device that is in none of them."""
        total, own = touches @ slower, touches.sum(axis=1)
        others = len(slower) - own
        enough = others >= _MIN_POINTS
        usual = np.where(enough, (slower.sum() - total) / np.maximum(others, 1), 0.0)
        by = np.where(own > 0, total / np.maximum(own, 1) - usual, -math.inf)
        return cls(by, usual, np.where(enough, _MIN_SLOWER, _MIN_SLOWER_ALONE))


class _Shifts(NamedTuple):
    """By how much each data point was slower in some passes, as a difference of log times.

    `squares` are those of its trials in the other passes around their mean, with `freedom` degrees of freedom; `share`
    times the variance of one trial is that of the difference.
    """

    slower: _Array
    here: _Array  # trials in these passes, each less the median of its point's in the others
    elsewhere: _Array  # the same of trials in the others, of all data points, shape (trials,)
    squares: _Array
    freedom: _Array
    share: _Array

    @classmethod
    def of(cls, here: _Array, there: _Array, elsewhere: _Array) -> _Shifts:
        """Return the shifts from trials in some passes and in the others, each with one of every data point."""
        middle = np.nanmean(there, axis=1)
        inside, outside = ((~np.isnan(part)).sum(axis=1) for part in (here, there))
        squares = np.nansum((there - middle[:, None]) ** 2, axis=1)
        typical = row_medians(there)[:, 0]
        return cls(
            slower=np.nanmean(here, axis=1) - middle,
            here=here - typical[:, None],
            elsewhere=elsewhere,
            squares=squares,
            freedom=outside - 1.0,
            share=1 / inside + 1 / outside,
        )

    def chance(self, part: _Flags, least: float) -> float:
        """Return the chance of so many slow trials of some data points, by how many of all other trials are as slow.

        A bound that assumes nothing of the distribution of noise [Hoeffding, JASA 58 (1963), theorem 1].
        """
        ours, others = _there(self.here[part]), np.concatenate([self.elsewhere, _there(self.here[~part])])
        usual = (1 + int((others > least).sum())) / (1 + len(others))
        share = int((ours > least).sum()) / len(ours)
        if share <= usual:
            return 1.0
        log = share * math.log(share / usual)
        if share < 1:
            log += (1 - share) * math.log((1 - share) / (1 - usual))
        return math.exp(-len(ours) * log)

    def by_spread(self, part: _Flags, pool: str) -> Variance:
        """Return the variance of the mean of some data points, as they show it."""
        count = int(part.sum())
        if count < _MIN_POINTS:
            return Variance(math.inf, 1.0, pool)
        return Variance(float(self.slower[part].var(ddof=1)) / count, count - 1.0, pool)

    def by_trials(self, part: _Flags, pool: str) -> Variance:
        """Return it from the noise of trials in the other passes: a device slow in half a pass does not widen it."""
        freedom = float(self.freedom[part].sum())
        if freedom < _MIN_POINTS:
            return Variance(math.inf, 1.0, pool)
        of_trial = float(self.squares[part].sum()) / freedom
        return Variance(of_trial * float(self.share[part].sum()) / int(part.sum()) ** 2, freedom, pool)


def _there(trials: _Array) -> _Array:
    return trials[~np.isnan(trials)]


def _is_slower(shifts: _Shifts, excess: _Excess, touches: _Flags, device: int, chance: float) -> bool:
    """Return whether the data points of a device with an excess were slower than noise explains.

    Without any one of its pairs it is more than half as slow: what slows one link for a while, in all works, is no
    device's.
    """
    touched, (by, usual, least) = touches[device], (float(each[device]) for each in excess)
    parts = [touched, ~touched] if (~touched).sum() >= _MIN_POINTS else [touched]
    shared = touched & (touches.sum(axis=0) > 1)
    without = (shared & ~other for other in np.delete(touches, device, axis=0))
    of_one_pair = any(float(shifts.slower[rest].mean()) - usual < by / 2 for rest in without if rest.any())
    if of_one_pair or shifts.chance(touched, least) > chance:
        return False
    # Two ways to know the noise, so each may err half as often. Of few data points one wild trial moves the mean, and
    # only their spread tells.
    ways = (shifts.by_spread, shifts.by_trials) if touched.sum() >= _ENOUGH_POINTS else (shifts.by_spread,)
    return any(by > reach([known(part, str(at)) for at, part in enumerate(parts)], chance) for known in ways)
