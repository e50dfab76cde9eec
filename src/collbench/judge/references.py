"""A run against published figures of healthy machines: normal, below or above, with band, conditions and source."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from itertools import chain, combinations

from collbench.judge import between_runs
from collbench.judge.data_points import Key, Named, Part, estimates, points_by_key, reach
from collbench.judge.outcome import TroubleKind, outcome, unordered
from collbench.judge.physics import Impossible, Nvls, impossible, nvls
from collbench.judge.registration import ordinary
from collbench.judge.stats import FEWEST_TRIALS, summarize
from collbench.judge.tiers import Estimate, pair_labels, sets_of
from collbench.model.capabilities import capabilities
from collbench.model.errors import ExitStatus
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Layout, Run
from collbench.runfile.codec import build

# Figures of healthy machines, published or measured by us; they are in figures.json in this folder.
#
# The file holds only what its sources say; the interpretation is in this module.
# docs/reference-figures.schema.json describes it.

# A measured figure holds for other machines of its kind within ±5%: where two sources measured the same thing, they
# differ by up to 4% (8 × H200, all-reduce at 8G: 473 and 480; H100 links by one tool: 363 to 394).
_AROUND = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it is of, GB/s (busbw; of copies the bytes of all messages over the time), and where it is from.

    `gpus` and `links` are regular expressions for the product name and for the label of every pair among the members
    ("" for one device). `ranks` is the number of members, `sizes` the smallest and the largest message in bytes that
    the figure holds for. It has either `measured`, values of healthy machines, or `at_least`, what an acceptance test
    asks for. `nvls` is "on" or "off" if NCCL's use of NVLink SHARP matters.
    """

    gpus: str
    machine: str
    links: str
    operation: Operation
    ranks: int
    sizes: tuple[int, int]
    conditions: str
    source: str
    variant: Variant = Variant.PLAIN
    measured: tuple[float, ...] = ()
    at_least: float | None = None
    nvls: str | None = None
    nccl: str = ""

    @property
    def band(self) -> tuple[float, float | None]:
        """What is normal, GB/s: from and to; an acceptance test has no upper end."""
        if self.at_least is not None:
            return self.at_least, None
        return min(self.measured) * (1 - _AROUND), max(self.measured) * (1 + _AROUND)

    def is_of(self, name: str) -> bool:
        """Return whether it applies to GPUs with this product name."""
        return re.search(self.gpus, name) is not None

    def links_are(self, label: str) -> bool:
        """Return whether it applies to a pair with this label."""
        return re.fullmatch(self.links, label) is not None


def check(figure: Figure) -> None:
    """Raise ValueError where the fields of a figure do not fit each other."""
    for pattern in (figure.gpus, figure.links):
        re.compile(pattern)
    if bool(figure.measured) == (figure.at_least is not None):
        raise ValueError(f"{figure.machine}, {figure.operation}: give either 'measured' or 'at_least'")
    if not all(value > 0 for value in (*figure.measured, figure.at_least or 1.0)):
        raise ValueError(f"{figure.machine}, {figure.operation}: a bandwidth is above 0 GB/s")
    if not 0 < figure.sizes[0] <= figure.sizes[1]:
        raise ValueError(f"{figure.machine}, {figure.operation}: sizes go from the smaller to the larger")
    if figure.nvls not in (None, "on", "off"):
        raise ValueError(f"{figure.machine}, {figure.operation}: 'nvls' is on, off or null")


# The shipped file of reference figures.

_NAME = "figures.json"
_FORMAT, _VERSION = "collbench-figures", 1


def load() -> tuple[Figure, ...]:
    """Return the shipped figures. Raises ValueError for a file that is none: it is a part of the program."""
    text = resources.files("collbench.judge").joinpath(_NAME).read_text(encoding="utf-8")
    data = json.loads(text)
    if (data.get("format"), data.get("format_version")) != (_FORMAT, _VERSION):
        raise ValueError(f"{_NAME} is not {_FORMAT} {_VERSION}")
    figures: tuple[Figure, ...] = build(tuple[Figure, ...], data["figures"], "figures")
    for figure in figures:
        check(figure)
    return figures


# The answers of the figures.

_ALPHA = 0.01  # the chance that any answer of a run is wrong
# Normal is a claim, too: a rate below the band is called normal in at most 2.5% of cases.
_NORMAL_ALPHA = 0.05
# Where nothing failed: it was not tried, or its rates are wrong.
_NO_FAILURES = (TroubleKind.UNTRIED, TroubleKind.IMPOSSIBLE)
_Matched = tuple[Figure, list[Key]]


class ReferenceVerdict(StrEnum):
    """How a run compares with a figure."""

    NORMAL = "normal"
    BELOW = "below"
    ABOVE = "above"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Measured:
    """One set of devices at one size: busbw in GB/s, and how it compares with the figure."""

    members: tuple[int, ...]
    gbs: float
    standing: ReferenceVerdict


@dataclass(frozen=True, slots=True)
class Answer:
    """How one figure judges a run: `sets` are all links, pairs or sets that it applies to, the slowest first.

    `mismatch` is the run's NVLS if the figure's differs, else None; with a mismatch nothing is called below the figure.
    `failed` are sets of its kind where something failed or moved wrong data. `impossible` is a rate above a limit, in
    the same operation at this size or on a set of this kind; then nothing is judged but "below".
    """

    figure: Figure
    size_bytes: int
    sets: tuple[Measured, ...]
    mismatch: Nvls | None
    failed: tuple[tuple[int, ...], ...] = ()
    impossible: Impossible | None = None

    @property
    def standing(self) -> ReferenceVerdict:
        """The worst significant verdict on any set; never normal if one failed, undecided if one is unclear."""
        standings = {one.standing for one in self.sets}
        if ReferenceVerdict.BELOW in standings:
            return ReferenceVerdict.UNDECIDED if self.mismatch else ReferenceVerdict.BELOW
        if self.failed:
            return ReferenceVerdict.FAILED
        order = (
            ReferenceVerdict.NOT_JUDGED,
            ReferenceVerdict.UNDECIDED,
            ReferenceVerdict.NORMAL,
            ReferenceVerdict.ABOVE,
        )
        return next(standing for standing in order if standing in standings)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A work of the run, on a number of members, that no figure applies to; `others` are figures at other sizes."""

    work: Work
    ranks: int
    others: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The devices, links or pairs of a judged work that no figure judges: `total` is how many there are of them.

    Those of `labels`, each with its count, have no figure; those of `unmeasured` have one, and no data point.
    """

    work: Work
    total: int
    labels: tuple[tuple[str, int], ...]
    unmeasured: tuple[tuple[int, ...], ...]

    @property
    def judged(self) -> int:
        """How many of them figures judge."""
        return self.total - len(self.unmeasured) - sum(count for _, count in self.labels)


@dataclass(frozen=True, slots=True)
class Answers:
    """How all figures judge a run, and what they do not cover. `known`: some figures are of this kind of machine."""

    run: Run
    nvls: Nvls
    answers: tuple[Answer, ...]
    unknown: tuple[Unknown, ...]
    unjudged: tuple[Unjudged, ...]
    known: bool

    @property
    def below(self) -> bool:
        """True if something is significantly below its band, under the figure's own conditions."""
        return any(answer.standing is ReferenceVerdict.BELOW for answer in self.answers)

    @property
    def judged(self) -> bool:
        """True if any figure says something significant."""
        unknown = (ReferenceVerdict.UNDECIDED, ReferenceVerdict.NOT_JUDGED, ReferenceVerdict.FAILED)
        return any(answer.standing not in unknown for answer in self.answers)

    @property
    def status(self) -> ExitStatus:
        """The command's exit status: DONE needs a judged figure, no link left out, and a run that did not fail."""
        below = ExitStatus.CONTRADICTION if self.below else ExitStatus.DONE
        judged = ExitStatus.DONE if self.judged and not self.unjudged else ExitStatus.FAILED
        return max(below, judged, outcome(self.run).status)


def judge(run: Run, figures: Sequence[Figure], operation: Operation | None = None) -> Answers:
    """Return how the figures judge a run; only one operation if given. They judge no simulated machine."""
    run = ordinary(run)
    names = {device.name for device in run.devices}
    alike = len(names) == 1 and not capabilities(run.backend).simulated
    ours = [figure for figure in figures if alike and figure.is_of(next(iter(names)))]
    points = {key: named for key, named in points_by_key(run).items() if operation in (None, named.work.operation)}
    labels = pair_labels(run.paths)
    state = nvls(run)
    matched = _conforming([(figure, keys) for figure in ours if (keys := _keys(figure, points, labels))], state)
    errors = estimates(points, run.paths)
    tested = sum(len(keys) for _, keys in matched)
    failures = [one.devices for one in outcome(run).troubles if one.kind not in _NO_FAILURES]
    shown = _Evidence(points, errors, _ALPHA / max(1, tested), failures, impossible(run), labels)
    answers = tuple(_answer(figure, keys, shown, state) for figure, keys in matched)
    answered = {(answer.figure.operation, answer.figure.variant, answer.figure.ranks) for answer in answers}
    unjudged = tuple(_unjudged(run, points, answers, labels))
    return Answers(run, state, answers, tuple(_unknown(points, ours, answered)), unjudged, bool(ours))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a run shows: its data points with estimates, failures, impossible rates; `alpha` is for each answer."""

    points: dict[Key, Named]
    errors: dict[Key, Estimate]
    alpha: float
    failures: Sequence[tuple[int, ...]]
    beaten: Sequence[Impossible]
    labels: dict[frozenset[int], str]


def _answer(figure: Figure, keys: Sequence[Key], run: _Evidence, state: Nvls) -> Answer:
    size_bytes = keys[0].size_bytes
    failed = tuple(dict.fromkeys(devices for devices in run.failures if _is_of(figure, devices, run.labels)))
    beaten = _beaten(figure, size_bytes, run)
    sets = []
    for key in keys:
        summary = summarize(run.points[key].measurement)
        between = between_runs.default(run.points[key].work, summary.seconds).sigma
        standing = _standing(figure, summary.busbw, run.errors[key], between, run.alpha)
        if beaten is not None and standing is not ReferenceVerdict.BELOW:
            standing = ReferenceVerdict.NOT_JUDGED
        sets.append(Measured(key.members, summary.busbw, standing))
    sets.sort(key=lambda one: (one.gbs, one.members))
    return Answer(figure, size_bytes, tuple(sets), _mismatch(figure, state), failed, beaten)


def _beaten(figure: Figure, size_bytes: int, run: _Evidence) -> Impossible | None:
    """Return a rate above a limit that makes the run's rates for this figure untrustworthy, None if there is none.

    Times that are wrong in one pattern of an operation may be wrong in the others, where no limit shows it.
    """
    of_work = (
        one for one in run.beaten if (one.point.operation, one.point.size_bytes) == (figure.operation, size_bytes)
    )
    of_devices = (one for one in run.beaten if _is_of(figure, one.capacity.devices, run.labels))
    return next(chain(of_work, of_devices), None)


def _is_of(figure: Figure, devices: tuple[int, ...], labels: dict[frozenset[int], str]) -> bool:
    """Return whether a set of devices is of the figure's kind."""
    return len(devices) == figure.ranks and _links_are(figure, devices, labels)


def _links_are(figure: Figure, members: tuple[int, ...], labels: dict[frozenset[int], str]) -> bool:
    return all(figure.links_are(labels.get(frozenset(pair), "?")) for pair in combinations(members, 2))


def _conforming(matched: list[_Matched], state: Nvls) -> list[_Matched]:
    """Leave out figures with another NVLS than the run's, if the same work has one with the run's."""
    fitting = {(figure.operation, figure.ranks) for figure, _ in matched if not _mismatch(figure, state)}
    return [
        (figure, keys)
        for figure, keys in matched
        if not _mismatch(figure, state) or (figure.operation, figure.ranks) not in fitting
    ]


def _keys(figure: Figure, points: dict[Key, Named], labels: dict[frozenset[int], str]) -> list[Key]:
    """Return the points that a figure applies to, at the largest size it covers; of host copies the best node's."""
    low, high = figure.sizes
    ours = [
        key
        for key, named in points.items()
        if (named.work.operation, named.work.variant) == (figure.operation, figure.variant)
        and len(key.members) == figure.ranks
        and low <= key.size_bytes <= high
        and _links_are(figure, key.members, labels)
    ]
    largest = max((key.size_bytes for key in ours), default=None)
    best: dict[tuple[int, ...], Key] = {}
    for key in (key for key in ours if key.size_bytes == largest):
        # Memory on another NUMA node is slower by design: the nearest node shows the rate of the slot.
        other = best.get(key.members)
        if other is None or points[key].gbs > points[other].gbs:
            best[key.members] = key
    return list(best.values())


def _standing(figure: Figure, gbs: float, estimate: Estimate, between: float, alpha: float) -> ReferenceVerdict:
    """Return what an interval shows: below or above if all of it is outside the band; normal if it is not below.

    `between` is the standard deviation from run to run, because another run would have another rate.
    """
    low, high = figure.band
    if len(estimate.trials) < FEWEST_TRIALS:
        return ReferenceVerdict.UNDECIDED
    parts = [
        Part(estimate.cautious_error**2, estimate.freedom, estimate.label),
        Part(between**2, between_runs.DEFAULT_FREEDOM, "runs"),
    ]
    far = math.exp(reach(parts, alpha))
    if gbs * far < low:
        return ReferenceVerdict.BELOW
    if high is not None and gbs / far > high:
        return ReferenceVerdict.ABOVE
    within = gbs >= low * math.exp(reach(parts, _NORMAL_ALPHA)) and (high is None or gbs <= high)
    return ReferenceVerdict.NORMAL if within else ReferenceVerdict.UNDECIDED


def _mismatch(figure: Figure, state: Nvls) -> Nvls | None:
    """Return the run's NVLS if it differs from the figure's, else None. POSSIBLE agrees with "on"."""
    if figure.nvls in (None, state.value) or (figure.nvls, state) == (Nvls.ON.value, Nvls.POSSIBLE):
        return None
    return state


def _unjudged(
    run: Run, points: dict[Key, Named], answers: Sequence[Answer], labels: dict[frozenset[int], str]
) -> Iterator[Unjudged]:
    """Yield what the answers leave out of each work that they judge, on devices, links and pairs.

    Of larger sets, and of pairs that were chosen, no run has all.
    """
    answers_of: dict[Work, list[Answer]] = defaultdict(list)
    for answer in answers:
        answers_of[Work(answer.figure.operation, answer.figure.variant)].append(answer)
    for work, ours in answers_of.items():
        if work.operation.is_collective and run.settings.layout is not Layout.PAIRS:
            continue
        measured = {
            key.members
            for key, named in points.items()
            if (named.work.operation, named.work.variant) == (work.operation, work.variant)
        }
        settled = {one.members for answer in ours for one in answer.sets}
        settled |= {unordered(work, devices) for answer in ours for devices in answer.failed}
        places = [*sets_of(work, range(len(run.devices)))]
        figures = [answer.figure for answer in ours if answer.figure.ranks == len(places[0])]
        left = [place for place in places if place not in settled and figures]
        known = [place for place in left if any(_is_of(figure, place, labels) for figure in figures)]
        strange = Counter(
            labels.get(frozenset(place), "?") for place in left if place in measured and place not in known
        )
        if known or strange:
            total = len(settled & {*places}) + len(known) + strange.total()
            yield Unjudged(work, total, tuple(sorted(strange.items())), tuple(known))


def _unknown(
    points: dict[Key, Named], figures: Sequence[Figure], answered: set[tuple[Operation, Variant, int]]
) -> Iterator[Unknown]:
    works: dict[tuple[str, int], Work] = {}
    for key, named in points.items():
        works.setdefault((str(Work(named.work.operation, named.work.variant)), len(key.members)), named.work)
    for (_, ranks), work in works.items():
        if (work.operation, work.variant, ranks) not in answered:
            kind = (work.operation, work.variant)
            others = (f for f in figures if (f.operation, f.variant) == kind and f.ranks == ranks)
            yield Unknown(Work(work.operation, work.variant), ranks, tuple(others))
