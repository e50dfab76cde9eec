"""One run against another, data point by data point: faster, slower, the same or undecided (docs/compare.md)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median_high, median_low
from typing import Any

from collbench.judge.between_runs import (
    NO_VARIATION,
    OF_HISTORY,
    Key,
    PointPair,
    Variation,
    in_both,
    parts_of,
    points_by_key,
)
from collbench.judge.outcome import flagged_trials, outcome, without_idle
from collbench.judge.stats import Variance, reach, summarize
from collbench.judge.tiers import tolerance
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Layout, Measurement, Run, tags
from collbench.model.units import TELLING_BYTES, amount, counted, format_size, grouped

# Which device of one run corresponds to which of another: by UUID if it is the same GPU, else by order in the list.


@dataclass(frozen=True, slots=True)
class Match:
    """How devices correspond: `positions` maps positions of the new run to those of the base.

    `by_uuid` counts the devices that are the same; `by_order` are the others (position in the new run, in the base),
    matched by their order in the list. `only_base` and `only_new` are devices without a counterpart.
    """

    positions: dict[int, int]
    by_uuid: int
    by_order: tuple[tuple[int, int], ...]
    only_base: tuple[int, ...]
    only_new: tuple[int, ...]


def match_devices(base: Run, new: Run) -> Match:
    """Return how the devices of two runs correspond."""
    position_of = _positions(base)
    same = {position: position_of[device] for device, position in _positions(new).items() if device in position_of}
    left = [position for position in range(len(base.devices)) if position not in same.values()]
    rest = [position for position in range(len(new.devices)) if position not in same]
    by_order = dict(zip(rest, left, strict=False))
    count = len(by_order)
    return Match(same | by_order, len(same), tuple(by_order.items()), tuple(left[count:]), tuple(rest[count:]))


def _positions(run: Run) -> dict[tuple[str, int], int]:
    """Return each device's position by its UUID, and by which it is with that: ranks may share a GPU."""
    seen = Counter[str]()
    positions = {}
    for position, device in enumerate(run.devices):
        positions[device.uuid, seen[device.uuid]] = position
        seen[device.uuid] += 1
    return positions


# Whether a data point became faster or slower from one run to another: the same statistics as between links.
#
# Everything is in log bandwidth, so that differences are ratios. docs/compare.md has the rule and what it was tried
# on.

_TIE_ALPHA = 0.10  # docs/method/statistics.md 7: tied is a 90% interval within ±δ


@dataclass(frozen=True, slots=True)
class Level:
    """The chance that an answer is wrong, and that one of those is that share what earlier runs show, by its pool."""

    answer: float
    shared: Mapping[str, float]


class ChangeVerdict(StrEnum):
    """What became of a data point or a group."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of a data point, or of several together. `ratio` is new over base bandwidth.

    With 99%, 97% with history, its `interval` and those of all data points and groups hold at the same time; None below
    three trials in either run. `delta` is the ratio up to which a difference changes no decision. `regressed`:
    significantly slower by more than the comparison allows.
    """

    ratio: float
    interval: tuple[float, float] | None
    delta: float
    verdict: ChangeVerdict
    regressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Judged):
    """One data point in both runs. Bandwidths in GB/s (busbw), times in seconds.

    `between` is how much the data point varies from run to run. `slower_in_trials`: it would be worse if it did not.
    """

    key: Key
    operation: Operation
    base_gbs: float
    new_gbs: float
    base_seconds: float
    new_seconds: float
    trials: tuple[int, int]
    between: Variation
    slower_in_trials: bool


def _judged(
    difference: float,
    shift: float,
    ends: tuple[float, float],
    parts: Sequence[Variance],
    delta: float,
    level: Level,
    fail_below: float,
) -> dict[str, Any]:
    """Return the fields of `Judged` for a difference with these parts of its variance; none: noise is unknown.

    The runs may be the reason for `shift` in it, or may not. It counts as faster only if the lower one of the `ends` is
    above δ, too, and as slower only if the higher one is below: few must not decide.
    """
    least, most = ends
    far = _far(parts, level) if parts else math.inf
    lower, upper = difference - max(0.0, shift), difference - min(0.0, shift)
    verdict = ChangeVerdict.UNDECIDED
    if upper + far < -delta and most < -delta:
        verdict = ChangeVerdict.WORSE
    elif lower - far > delta and least > delta:
        verdict = ChangeVerdict.BETTER
    elif parts and abs(difference) + reach(parts, _TIE_ALPHA) <= delta:
        verdict = ChangeVerdict.SAME
    limit = -max(delta, -math.log1p(-fail_below))
    return {
        "ratio": math.exp(difference),
        "interval": (math.exp(lower - far), math.exp(upper + far)) if parts else None,
        "delta": delta,
        "verdict": verdict,
        "regressed": verdict is ChangeVerdict.WORSE and difference + far < limit and most < limit,
    }


def _far(parts: Sequence[Variance], level: Level) -> float:
    """Return how far a difference may be from the true one.

    If most of it is what many answers share, that errs for all of these at once, and has a level of its own.
    """
    whole, most = reach(parts, level.answer), max(parts, key=lambda part: part.variance)
    if most.pool not in level.shared:
        return whole
    rest = [part for part in parts if part is not most]
    return min(whole, reach([most], level.shared[most.pool]) + reach(rest, level.answer))


def _slower_in_trials(change: PointPair, alpha: float, delta: float) -> bool:
    """Return whether a data point would be worse if it did not vary from run to run."""
    of_trials = parts_of([(1.0, replace(change, between=NO_VARIATION))])
    return change.decided and change.difference + reach([*of_trials], alpha) < -delta


def judge_change(change: PointPair, level: Level, fail_below: float) -> Change:
    """Return what became of a data point; `level` is this answer's error, `fail_below` a ratio such as 0.05.

    Nearly every trial has to agree, because a data point may be noisier than its pool, or disturbed for a moment.
    """
    old, now = change.old, change.now
    before, after = summarize(change.base), summarize(change.new)
    ends = (
        min(now.middle - old.bounds[1], now.bounds[0] - old.middle),
        max(now.middle - old.bounds[0], now.bounds[1] - old.middle),
    )
    parts = [*parts_of([(1.0, change)])] if change.decided else []
    delta = tolerance(change.key.size_bytes)
    return Change(
        key=change.key,
        operation=change.base.point.operation,
        base_gbs=before.busbw,
        new_gbs=after.busbw,
        base_seconds=before.seconds,
        new_seconds=after.seconds,
        trials=(len(old.trials), len(now.trials)),
        between=change.between,
        slower_in_trials=ends[1] < -delta and _slower_in_trials(change, level.answer, delta),
        **_judged(change.difference, change.between.shift, ends, parts, delta, level, fail_below),
    )


# Groups of data points that are judged together: all works of a set of devices, and all sets of a work, at the largest
# size.
#
# A link that is 8% slower is slower for every copy and collective. The noise of one data point may hide that; that of
# all of them does not.


class GroupKind(StrEnum):
    """What a group's data points share."""

    DEVICES = "devices"
    WORK = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGroup(Judged):
    """Data points of one place (`members`, positions of the base) or of one work, each at its work's largest size.

    The ratio is the mean weighted by the data points' precision. The runs may be the reason for its part `shift`, a
    difference of logs.
    """

    interval: tuple[float, float]
    shift: float
    kind: GroupKind
    work: str
    members: tuple[int, ...]
    points: int
    size_bytes: int


Together = tuple[GroupKind, str, tuple[int, ...], list[PointPair]]  # a group before it is judged


def find_groups(candidates: Sequence[PointPair]) -> list[Together]:
    """Return the groups of two data points or more, each with enough trials and at its work's largest size."""
    largest: dict[str, int] = defaultdict(int)
    for pair in candidates:
        largest[pair.key.work] = max(largest[pair.key.work], pair.key.size_bytes)
    groups: dict[tuple[GroupKind, str, tuple[int, ...], int], list[PointPair]] = defaultdict(list)
    for pair in candidates:
        if pair.decided and pair.key.size_bytes == largest[pair.key.work] >= TELLING_BYTES:
            groups[GroupKind.DEVICES, "", tuple(sorted(pair.key.members)), 0].append(pair)
            groups[GroupKind.WORK, pair.key.work, (), len(pair.key.members)].append(pair)
    return [
        (kind, work, members, pairs) for (kind, work, members, _), pairs in sorted(groups.items()) if len(pairs) > 1
    ]


def judge_group(together: Together, level: Level, fail_below: float) -> ChangeGroup:
    """Return what became of a group; `level` is this answer's error.

    Most of its data points have to agree: a disturbed one must not decide.
    """
    kind, work, members, pairs = together
    # Weights by each data point's variance; equal ones if some have none.
    inverse = [pair.of_trials + 2 * pair.between.sigma**2 for pair in pairs]
    inverse = [1 / variance for variance in inverse] if min(inverse) else [1.0] * len(inverse)
    weights = [variance / sum(inverse) for variance in inverse]
    middle = sum(weight * pair.difference for weight, pair in zip(weights, pairs, strict=True))
    parts = [*parts_of([*zip(weights, pairs, strict=True)])]
    every = [pair.difference for pair in pairs]
    shift = sum(weight * pair.between.shift for weight, pair in zip(weights, pairs, strict=True))
    delta = max(tolerance(pair.key.size_bytes) for pair in pairs)
    return ChangeGroup(
        shift=shift,
        kind=kind,
        work=work,
        members=members,
        points=len(pairs),
        size_bytes=max(pair.key.size_bytes for pair in pairs),
        **_judged(middle, shift, (median_low(every), median_high(every)), parts, delta, level, fail_below),
    )


# Differences between two runs apart from their rates: each may be why something became faster or slower.

# NVIDIA's container images set it; it does not affect NCCL.
_IDLE = {"NCCL_VERSION"}
_MAX_LABELS = 4  # if many labels differ, the first ones show which


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same, and what it is in the base and in the new run, in words; "" if it has none."""

    what: str
    base: str
    new: str


STARTED = "started"
DISTURBED = "disturbed trials"
Fact = tuple[Callable[[Run], Any], Callable[[Any], str]]  # what a run says of something, and how that is written


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _or_default(text_of: Callable[[Any], str] = str) -> Callable[[Any], str]:
    return lambda value: "default" if value is None else text_of(value)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _flags(run: Run) -> list[tuple[int, str, str]]:
    """Return how many trials have a flag, of which kind and for what reason, and on which devices, most first."""
    flagged = sorted(flagged_trials(without_idle(run)).items())
    alike = grouped(((-count, f"{kind} ({why})" if why else kind), at) for (kind, at, why), count in flagged)
    return [(-count, what, tags(devices, run.devices)) for (count, what), devices in sorted(alike.items())]


# The likeliest causes of a change first. The seed is another one every time. Variables come after facts of machines,
# and labels after those of requests; both are compared one by one.
_OF_MACHINES: dict[str, Fact] = {
    "hostname": (lambda run: run.machine.hostname, str),
    "driver": (lambda run: run.machine.driver, str),
    "CUDA": (lambda run: run.machine.cuda, str),
    "NCCL": (lambda run: run.machine.nccl, str),
    "NCCL library": (lambda run: run.machine.nccl_path, str),
    "kernels": (lambda run: run.machine.kernel_image, str),
    "system": (lambda run: run.machine.system, str),
    "cpu": (lambda run: run.machine.cpu, str),
    "virtualization": (lambda run: run.machine.virtualization, str),
    "multicast (NVLS)": (lambda run: run.machine.multicast, _yes),
    "simulated machine": (lambda run: run.machine.fabric, str),
}
_OF_COLLECTIVES: dict[str, Fact] = {
    "dtype": (lambda run: run.settings.dtype, str),
    "redop": (lambda run: run.settings.redop, str),
}
_OF_REQUESTS: dict[str, Fact] = {
    "processes": (lambda run: run.settings.processes, str),
    "command": (lambda run: run.settings.command_name, str),
    "sizes": (
        lambda run: run.settings.requested_sizes,
        lambda sizes: ", ".join(map(format_size, sizes or ())) or "default",
    ),
    "copies": (lambda run: run.settings.copies, _listed),
    "collectives": (lambda run: run.settings.collectives, _listed),
    "layout": (
        lambda run: f"{run.settings.layout}{f' {run.settings.split}' if run.settings.layout is Layout.SPLIT else ''}",
        str,
    ),
    "quick": (lambda run: run.settings.quick, _yes),
    "precision": (lambda run: run.settings.precision, _or_default("{:.2%}".format)),
    "budget": (lambda run: run.settings.budget_seconds, _or_default("{:.1f} s".format)),
    "iterations": (lambda run: run.settings.iterations, _or_default()),
    "warm-up": (lambda run: run.settings.warmup, _or_default()),
    "verification": (lambda run: run.settings.verify, _yes),
    "root": (lambda run: run.settings.root, str),
    "devices": (lambda run: tuple(device.name for device in run.devices), counted),
}
_OF_RUNS: dict[str, Fact] = {
    DISTURBED: (_flags, lambda flags: _listed(f"{count} {what} on {names}" for count, what, names in flags)),
    "data points that failed": (lambda run: sum(bool(measurement.failure) for measurement in run.measurements), str),
    "complete": (lambda run: run.complete, _yes),
    "collbench": (lambda run: run.version, str),
    STARTED: (lambda run: run.started, str),
}


def differences(base: Run, new: Run, positions: Mapping[int, int]) -> tuple[Difference, ...]:
    """Return what differs, the likeliest causes first; `positions` are the new run's devices as the base's."""

    def unlike(facts: Mapping[str, Fact]) -> Iterator[Difference]:
        for what, (of, text_of) in facts.items():
            if of(base) != of(new):
                yield Difference(what, text_of(of(base)), text_of(of(new)))

    old, now = base.settings.environment, new.settings.environment
    collectives = any(operation.is_collective for operation in base.settings.operations)
    return (
        *unlike(_OF_MACHINES),
        *(
            Difference(name, old.get(name, "not set"), now.get(name, "not set"))
            for name in sorted({*old, *now} - _IDLE)
            if old.get(name) != now.get(name)
        ),
        *(unlike(_OF_COLLECTIVES) if collectives else ()),
        *unlike(_OF_REQUESTS),
        *_of_labels(base, new, positions),
        *unlike(_OF_RUNS),
    )


def _of_labels(base: Run, new: Run, positions: Mapping[int, int]) -> Iterator[Difference]:
    old = {frozenset(path.devices): path for path in base.paths}
    changed = []
    for path in new.paths:
        before = old.get(frozenset(positions.get(device, -1) for device in path.devices))
        if before is not None and before.label != path.label:
            of_pair = f"label of {tags(before.devices, base.devices, '-')}"
            changed.append(Difference(of_pair, before.label, path.label))
    yield from changed[:_MAX_LABELS]
    if len(changed) > _MAX_LABELS:
        yield Difference("more labels", "", f"{len(changed) - _MAX_LABELS} others differ")


# Two runs data point by data point: what is the same, better, worse or undecided, what else differs, and what only one
# of them has.

# The chance that any answer of a comparison is wrong where the true difference is exactly δ.
_ALPHA = 0.01
# That what answers share is more than what earlier runs show. An unchanged machine must be off by δ, too: if its runs
# vary by 2% it is called changed in less than 1% of comparisons (benchmarks/between_runs.py).
_SHARED_ALPHA = 0.02


def _level(pairs: Sequence[PointPair], groups: int) -> Level:
    """Return the chance of error of each answer. Small sizes, whose δ is three times as large, share none."""
    decided = [pair.key for pair in pairs if pair.decided]
    large = [key for key in decided if key.size_bytes >= TELLING_BYTES]
    of_runs = len({key.size_bytes for key in large})
    of_links = len({(key.size_bytes, frozenset(key.members)) for key in large})
    of_works = len({(key.size_bytes, key.work) for key in large})
    answers = zip(OF_HISTORY, (of_runs, of_links, of_works), strict=True)
    shared = {pool: _SHARED_ALPHA / max(1, count) for pool, count in answers}
    return Level(_ALPHA / max(1, len(decided) + groups), shared)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What became of each data point of `base` in `new`. `fail_below` is the share of its rate that each may lose.

    Members of `changes` and `only_base` are positions of the base; of `only_new` those of the new run. `lost` are those
    of `only_base` that the new run was asked for, too, or measured elsewhere. `history` counts the earlier runs that
    show how much runs of this machine vary.
    """

    base: Run
    new: Run
    match: Match
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    groups: tuple[ChangeGroup, ...]
    only_base: tuple[Key, ...]
    only_new: tuple[Key, ...]
    lost: tuple[Key, ...]
    fail_below: float
    history: int = 0

    def __repr__(self) -> str:
        """Return one line, for people."""
        counts = ", ".join(f"{count} {verdict}" for verdict in ChangeVerdict if (count := self.count(verdict)))
        points = amount(len(self.changes), "data point")
        regressed = "a regression" if self.regressions else "no regression"
        return f"<Comparison of {points} in both: {counts or 'none judged'}; {regressed}>"

    @property
    def regressions(self) -> tuple[Change | ChangeGroup, ...]:
        """The groups and data points that are significantly slower by more than `fail_below` allows."""
        beyond = tuple(group for group in self.groups if group.regressed)
        return (*beyond, *(change for change in self.changes if change.regressed))

    @property
    def judged(self) -> int:
        """The number of data points with enough trials in both runs to estimate noise; the others are not judged."""
        return sum(change.interval is not None for change in self.changes)

    @property
    def status(self) -> ExitStatus:
        """The command's exit status: not DONE if nothing was judged, or the new run failed or lacks something."""
        regressed = ExitStatus.CONTRADICTION if self.regressions else ExitStatus.DONE
        whole = self.judged and not self.lost and self.new.complete
        judged = ExitStatus.DONE if whole else ExitStatus.FAILED
        return max(regressed, judged, outcome(self.new).status)

    def count(self, verdict: ChangeVerdict) -> int:
        """Return how many data points have this verdict."""
        return Counter(change.verdict for change in self.changes)[verdict]

    @property
    def mostly_undecided(self) -> bool:
        """Whether more than half of the data points are undecided."""
        return 2 * self.count(ChangeVerdict.UNDECIDED) > len(self.changes)


def check_history(base: Run, run: Run, name: str) -> None:
    """Raise UsageError for a run of other GPUs: it does not show how much runs on the base's vary."""
    if match_devices(base, run).by_uuid < len(base.devices):
        raise UsageError(f"{name} lacks GPUs of the base: it does not show how much runs on these vary")


def compare(
    base: Run, new: Run, fail_below: float, operation: Operation | None = None, history: Sequence[Run] = ()
) -> Comparison:
    """Return the comparison of two runs of one backend; of one operation where it is given.

    `history` are other runs of the base's machine, of any date: they show how much its runs vary. Raises UsageError for
    runs of different backends, and for one run as the history.
    """
    for run in (new, *history):
        if run.backend != base.backend:
            raise UsageError(
                f"the base is of the {base.backend} backend and another run of the {run.backend} backend: their "
                "figures measure different things; compare runs of the same backend"
            )

    def wanted(points: dict[Key, Measurement]) -> dict[Key, Measurement]:
        return {key: timed for key, timed in points.items() if operation in (None, timed.point.operation)}

    match = match_devices(base, new)
    for run in history:
        check_history(base, run, f"the run of {run.started} in the history")
    if len(history) == 1:  # what all links share in a run would be estimated from one difference: 3% false (sim)
        raise UsageError("one earlier run shows too little of how much runs vary: give two or more as history, or none")
    old, now = wanted(points_by_key(base)), wanted(points_by_key(new, match.positions))
    earlier = [points_by_key(run, match_devices(base, run).positions) for run in history]
    paired = in_both(old, now, base.paths, earlier)
    together = find_groups(paired)
    level = _level(paired, len(together))
    judged = [judge_change(pair, level, fail_below) for pair in paired]
    grouped = [judge_group(group, level, fail_below) for group in together]
    own = wanted(points_by_key(new))
    renamed = dict(zip(now, own, strict=True))
    only_base = sorted((key for key in old if key not in now), key=_order)
    measured = {(key.work, key.size_bytes) for key in old if key in now}
    return Comparison(
        base=base,
        new=new,
        match=match,
        differences=differences(base, new, match.positions),
        changes=tuple(sorted(judged, key=lambda change: (change.ratio, _order(change.key)))),
        groups=tuple(sorted(grouped, key=lambda group: (group.ratio, group.work, group.members))),
        only_base=tuple(only_base),
        only_new=tuple(sorted((renamed[key] for key in now if key not in old), key=_order)),
        lost=tuple(
            key for key in only_base if (key.work, key.size_bytes) in measured or _asked(new, base, old[key].point)
        ),
        fail_below=fail_below,
        history=len(history),
    )


def _asked(new: Run, base: Run, point: DataPoint) -> bool:
    """Return whether the new run was asked for a data point of the base, whatever it holds of that."""
    asked, work = new.settings, point.work
    if work.operation not in asked.operations or point.size_bytes not in asked.sizes:
        return False
    if work.operation.is_collective:
        return asked.layout is base.settings.layout and work in asked.collectives
    return work.variant in asked.copies


def _order(key: Key) -> tuple[str, tuple[int, ...], int]:
    return key.work, key.members, key.size_bytes
