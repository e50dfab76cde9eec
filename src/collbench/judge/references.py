"""A run against published figures of healthy machines: normal, below or above, with band, conditions and source."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import chain, combinations

from collbench.judge import between_runs
from collbench.judge.between_runs import Key, estimates, points_by_key
from collbench.judge.outcome import UNANSWERED, TroubleKind, outcome, unordered
from collbench.judge.physics import MARGIN, Impossible, Nvls, impossible, nvls
from collbench.judge.stats import MIN_TRIALS, Variance, reach, summarize
from collbench.judge.tiers import Estimate, pair_labels, sets_of
from collbench.machine import theory
from collbench.machine.labels import nvlink_count
from collbench.model.errors import ExitStatus, near
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import Layout, Measurement, Run, capabilities, ordinary, registrations
from collbench.model.units import DELTA, grouped
from collbench.runfile.codec import build

# Published figures of healthy machines: single ones in figures.json, curves over sizes in curves.json in this folder.
#
# The files hold only what their sources say; the interpretation is in this module. collbench's own measurements are not
# in them: they would call their own machines normal. docs/reference-figures.schema.json describes the files.

# A measured figure holds for other machines of its kind within ±5%: where two sources measured the same thing, they
# differ by up to 4% (8 × H200, all-reduce at 8G: 473 and 480; H100 links by one tool: 363 to 394).
_AROUND = 0.05


_OF_LAPTOPS = re.compile(r"\b(?:laptop|mobile|max-q design)\b", re.IGNORECASE)
_SHORT_NAME = re.compile(r"(?:\d+ × )?((?:RTX (?:PRO )?)?\w+(?: (?:Ti|SXM\d?|PCIe|NVL)\b)?)")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it is of, GB/s (busbw; of copies the bytes of all messages over the time), and where it is from.

    `gpus` and `links` are regular expressions for the product name and for the label of every pair among the members
    ("" for one device). `ranks` is the number of members, `sizes` the smallest and the largest message in bytes that
    the figure holds for. It has either `measured`, values of healthy machines; or `curve`, one for each doubling of the
    size; or `at_least`, what an acceptance test asks for. `nvls` is "on" or "off" if NCCL's use of NVLink SHARP
    matters. Nothing is below it at sizes smaller than `judges_from` (docs/method/verdicts.md 7).
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
    curve: tuple[float, ...] = ()
    at_least: float | None = None
    nvls: str | None = None
    nccl: str = ""
    license: str = ""
    judges_from: int = 1

    @property
    def largest(self) -> int:
        """The largest message that it says something about: a curve goes on for one doubling (`values_at`)."""
        return self.sizes[1] * 2 if self.curve else self.sizes[1]

    @property
    def origin(self) -> str:
        """Who measured it: figures of the same origin are one source."""
        return self.source.split()[0].rstrip(",")

    def values_at(self, size_bytes: int) -> tuple[float, float] | None:
        """Return the least and the most that was measured at a size; None for a minimum, or outside its sizes.

        A curve is interpolated, both axes logarithmic. Beyond its end the rate grows by nothing at the least, and at
        the most as in its last doubling, because the curve flattens.
        """
        if not self.sizes[0] <= size_bytes <= self.largest or self.at_least is not None:
            return None
        if not self.curve:
            return min(self.measured), max(self.measured)
        step = math.log2(size_bytes / self.sizes[0])
        index = min(int(step), len(self.curve) - 2)
        before, after = self.curve[index : index + 2]
        gbs = before * (after / before) ** (step - index)
        return (min(after, gbs), max(after, gbs)) if size_bytes > self.sizes[1] else (gbs, gbs)

    def is_of(self, name: str) -> bool:
        """Return whether it applies to GPUs with this product name. A laptop's GPU of the same number is another."""
        return re.search(self.gpus, name, re.IGNORECASE) is not None and not _OF_LAPTOPS.search(name)

    @property
    def gpu(self) -> str:
        """The short name of its GPUs, as its machine's words begin: "H100 SXM", "RTX 4090"."""
        name = _SHORT_NAME.match(self.machine)
        return name[1] if name else self.machine

    def links_are(self, label: str) -> bool:
        """Return whether it applies to a pair with this label."""
        return re.fullmatch(self.links, label) is not None


# The shipped files of reference figures.

_NAMES = ("figures.json", "curves.json")


@cache
def load() -> tuple[Figure, ...]:
    """Return the shipped figures. Raises ValueError for a file that has none: it is a part of the program."""
    return tuple(chain.from_iterable(map(_load, _NAMES)))


def gpu_names() -> tuple[str, ...]:
    """Return the short names of the GPUs that the figures are of: "RTX 4090"."""
    return tuple(sorted({figure.gpu for figure in load()}))


# What people call a GPU: nvidia-smi's name, a product's or a shop's.

# The size and the kind of memory, brands, architectures, and the racks of GB200 tell no two kinds here apart.
_SAYS_NOTHING = re.compile(
    r"\b(?:\d+ ?gb?|hbm\de?|nvidia|tesla|geforce|quadro|gpus?|ampere|hopper|blackwell|server|edition|nvl\d+)\b"
)
_RUN_TOGETHER = re.compile(r"(?<=\d)(?=sxm|pcie|nvl|ti\b)|(?<=rtx)(?=a?\d)|(?<=pro)(?=\d)")  # "rtx4090", "h100pcie"
_ON_A_BOARD = frozenset({"sxm", "hgx", "dgx"})
_ON_A_CARD = frozenset({"pcie", "nvl"})


def _words(name: str) -> frozenset[str]:
    """Return the words of a GPU's name that say which it is: {"h100", "sxm"} of "NVIDIA H100-SXM5-80GB"."""
    spaced = _RUN_TOGETHER.sub(" ", name.casefold().replace("pci-e", "pcie").replace("-", " "))
    words = re.findall(r"[a-z0-9]+", _SAYS_NOTHING.sub(" ", spaced))
    return frozenset("sxm" if re.fullmatch(r"sxm\d", word) else word for word in words)


def _is_called(figure: Figure, words: frozenset[str]) -> bool:
    """Return whether a figure's GPUs may be called by these words. Which form an H100 has may be left out."""
    own = _words(figure.gpu)
    if "rtx" in own:  # an RTX 6000 is no RTX PRO 6000
        return own - {"rtx"} <= words <= own
    own = own if own & _ON_A_CARD else own | _ON_A_BOARD
    return bool(words - _ON_A_BOARD - _ON_A_CARD) and words <= own


def named(figures: Iterable[Figure], name: str) -> list[Figure]:
    """Return the figures of GPUs that a person calls so: by nvidia-smi's name, else by the words of the product's."""
    every, words = list(figures), _words(name)
    of_product = [figure for figure in every if figure.is_of(name)]
    return of_product or [figure for figure in every if _is_called(figure, words)]


def _load(name: str) -> tuple[Figure, ...]:
    data = json.loads(resources.files("collbench.judge").joinpath(name).read_text(encoding="utf-8"))
    rows = [data.get("shared", {}) | row for row in data["figures"]]
    figures: tuple[Figure, ...] = build(tuple[Figure, ...], rows, name)
    return figures


def unknown_gpu(name: str) -> str:
    """Return that no figure is of a GPU that somebody calls so, with the nearest names and all."""
    known = gpu_names()
    meant = near(name.upper(), known, cutoff=0.7, most=2)
    nearest = f"; nearest: {', '.join(meant)}" if meant else ""
    return f"no reference figure is of a GPU '{name}'{nearest}; all names: {', '.join(known)}"


# What figures of one kind say together.


@dataclass(frozen=True, slots=True)
class Reference:
    """What is normal for one work at one size, by figures of the same machine, ranks, labels and NVLS.

    It is either one acceptance test, or everything that was measured.
    """

    figures: tuple[Figure, ...]
    size_bytes: int

    @property
    def figure(self) -> Figure:
        """One of the figures, for what they have in common."""
        return self.figures[0]

    @property
    def sources(self) -> dict[str, tuple[float, float]]:
        """The least and the most that each source measured; empty for an acceptance test."""
        values: dict[str, tuple[float, float]] = {}
        for figure in self.figures:
            if found := figure.values_at(self.size_bytes):
                low, high = values.get(figure.origin, found)
                values[figure.origin] = min(low, found[0]), max(high, found[1])
        return values

    @property
    def band(self) -> tuple[float, float | None]:
        """What is normal, GB/s: from and to; an acceptance test has no upper end."""
        if self.figure.at_least is not None:
            return self.figure.at_least, None
        return _band(self.sources.values())

    @property
    def disagree(self) -> bool:
        """True if what a source measured is not within the band of the others."""
        for origin, (low, high) in self.sources.items():
            others = [values for other, values in self.sources.items() if other != origin]
            if others and not (_band(others)[0] <= low and high <= _band(others)[1]):
                return True
        return False

    @property
    def slot_gbs(self) -> float | None:
        """What a PCIe slot of such a machine carries, GB/s; None if its generation is not known."""
        generation = re.search(r"gen (\d)", self.figure.machine)
        slot = theory.pcie(int(generation[1]), 16) if generation else None
        return slot.gbs if slot else None

    @property
    def may_have_a_bridge(self) -> bool:
        """True if it is of GPUs joined by PCIe, and others of their name may be joined by NVLinks."""
        links = self.figure.links
        return bool(links) and not links.startswith("NV") and theory.may_have_nvlinks(self.figure.machine)

    @property
    def ceiling(self) -> float | None:
        """The most that the links of such a machine carry, GB/s; None if that is not known (docs/method/verdicts.md 3).

        It is never too low: where links of several kinds join the GPUs, it is what all of them carry together, and GPUs
        joined by PCIe may be asked about that have a bridge.
        """
        figure = self.figure
        product = theory.product(figure.machine)
        kinds = {nvlink_count(label) for label in figure.links.split("|")}
        most = self.slot_gbs
        if kinds != {0}:
            share = max(kinds) / product.nvlinks if len(kinds) == 1 else 1.0
            most = share * product.nvlink_gbs + (theory.FASTEST_SLOT_GBS if 0 in kinds else 0.0)
        elif most is not None and self.may_have_a_bridge:
            most = max(most, product.nvlink_gbs)
        if most is None:
            return None
        # The GPUs with 18 NVLinks are those whose switches reduce.
        if figure.operation is Operation.ALLREDUCE and kinds == {18} and figure.nvls != "off":
            return most * max(1.0, Operation.ALLREDUCE.busbw_factor(figure.ranks))
        return 2 * most if figure.variant is Variant.BOTH_WAYS else most

    @property
    def orients(self) -> bool:
        """True if nothing is below it: of a small message, or of a collective over PCIe by one source, it is a guide.

        There the rate depends on more than the machine's kind [docs/method/verdicts.md 7].
        """
        return self.alone_on_pcie or self.size_bytes < self.judges_from

    @property
    def alone_on_pcie(self) -> bool:
        """True if it is of a collective over PCIe by one source."""
        figure = self.figure
        return figure.operation.is_collective and not figure.links.startswith("NV") and len(self.sources) == 1

    @property
    def judges_from(self) -> int:
        """The size in bytes below which its figures are only a guide."""
        return max(figure.judges_from for figure in self.figures)


def _band(ranges: Collection[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in ranges) * (1 - _AROUND), max(high for _, high in ranges) * (1 + _AROUND)


def by_kind(figures: Iterable[Figure]) -> tuple[tuple[Figure, ...], ...]:
    """Return the figures by what they are of; each acceptance test alone."""
    kinds: dict[object, list[Figure]] = defaultdict(list)
    for figure in figures:
        alone = None if figure.at_least is None else figure
        kinds[figure.gpus, figure.links, figure.operation, figure.variant, figure.ranks, figure.nvls, alone].append(
            figure
        )
    return tuple(map(tuple, kinds.values()))


def sizes_of(kind: Iterable[Figure]) -> tuple[int, ...]:
    """Return the sizes at which figures of one kind were measured."""
    curves = (figure.sizes[0] << step for figure in kind for step in range(len(figure.curve)))
    return tuple(sorted({*curves, *(size for figure in kind for size in figure.sizes)}))


def reference_at(kind: Sequence[Figure], size_bytes: int) -> Reference | None:
    """Return what figures of one kind say about a size; None if it is in none's sizes."""
    covering = tuple(figure for figure in kind if figure.sizes[0] <= size_bytes <= figure.largest)
    return Reference(covering, size_bytes) if covering else None


def place(reference: Reference, gbs: float) -> ReferenceVerdict:
    """Return how one rate without an interval compares with a band or a minimum; NOT_JUDGED for a guide.

    Above what the links carry it is IMPOSSIBLE, whatever the figures are. Less than δ below the band it is UNDECIDED:
    whoever typed it does not say how much it varies. Minima are limits.
    """
    low, high = reference.band
    if reference.ceiling is not None and gbs > MARGIN * reference.ceiling:
        return ReferenceVerdict.IMPOSSIBLE
    if reference.orients:
        return ReferenceVerdict.NOT_JUDGED
    if gbs < low:
        at_its_end = high is not None and gbs >= (1 - DELTA) * low
        return ReferenceVerdict.UNDECIDED if at_its_end else ReferenceVerdict.BELOW
    return ReferenceVerdict.ABOVE if high is not None and gbs > high else ReferenceVerdict.NORMAL


def place_among(references: Iterable[Reference], gbs: float) -> ReferenceVerdict:
    """Return how one rate compares with all that is known of one machine: a minimum is a limit beside the band."""
    standings = {place(reference, gbs) for reference in references}
    return next(standing for standing in _LIMITS_FIRST if standing in standings)


# The answers of the figures.

_ALPHA = 0.01  # the chance that any answer of a run is wrong
# Normal is a claim, too: a rate below the band is called normal in at most 2.5% of cases.
_NORMAL_ALPHA = 0.05
# Where nothing failed: it was not tried, its host was busy, or its rates are wrong.
_NO_FAILURES = (*UNANSWERED, TroubleKind.IMPOSSIBLE)
_Judging = tuple[Reference, list[Key]]


class ReferenceVerdict(StrEnum):
    """How a run compares with a figure."""

    NORMAL = "normal"
    BELOW = "below"
    ABOVE = "above"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    FAILED = "failed"
    IMPOSSIBLE = "impossible"  # of one rate, without a run; in a run such batches are marked


_LIMITS_FIRST = (
    ReferenceVerdict.IMPOSSIBLE,
    ReferenceVerdict.BELOW,
    ReferenceVerdict.UNDECIDED,
    ReferenceVerdict.ABOVE,
    ReferenceVerdict.NORMAL,
    ReferenceVerdict.NOT_JUDGED,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One set of devices at one size: busbw in GB/s, and how it compares with the figure."""

    members: tuple[int, ...]
    gbs: float
    standing: ReferenceVerdict


@dataclass(frozen=True, slots=True)
class Answer:
    """How one reference judges a run: `sets` are all links, pairs or sets that it applies to, the slowest first.

    `mismatch` is the run's NVLS if the figures' differs, else None; with a mismatch nothing is called below them.
    `failed` are sets of its kind where something failed or moved wrong data. `impossible` is a rate above a limit, in
    the same operation at this size or on a set of this kind; then nothing is judged but "below".
    """

    reference: Reference
    sets: tuple[Measured, ...]
    mismatch: Nvls | None
    failed: tuple[tuple[int, ...], ...] = ()
    impossible: Impossible | None = None

    @property
    def figure(self) -> Figure:
        """One of its figures, for what they have in common."""
        return self.reference.figure

    @property
    def size_bytes(self) -> int:
        """The size at which it judges."""
        return self.reference.size_bytes

    @property
    def standing(self) -> ReferenceVerdict:
        """The worst significant verdict on any set; never normal if one failed, undecided if one is unclear."""
        standings = {device_set.standing for device_set in self.sets}
        if ReferenceVerdict.BELOW in standings:
            lenient = self.mismatch or self.reference.orients
            return ReferenceVerdict.UNDECIDED if lenient else ReferenceVerdict.BELOW
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
class Unjudged:
    """The devices, links, pairs or sets of `ranks` devices of a work that no figure judges: `total` is how many it has.

    Those of `labels`, each with its count, have no figure; those of `unmeasured` have one, and no data point. Of a work
    that no figure judges at all, `others` are figures at other sizes.
    """

    work: Work
    ranks: int
    total: int
    labels: tuple[tuple[str, int], ...]
    unmeasured: tuple[tuple[int, ...], ...] = ()
    others: tuple[Figure, ...] = ()

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
    left_out: tuple[Unjudged, ...]
    known: bool

    @property
    def unknown(self) -> tuple[Unjudged, ...]:
        """The works, each on a number of ranks, that no figure judges."""
        return tuple(left for left in self.left_out if not left.judged)

    @property
    def unjudged(self) -> tuple[Unjudged, ...]:
        """The works that figures judge in part."""
        return tuple(left for left in self.left_out if left.judged)

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
    memory, run = registrations(run), ordinary(run)
    names = {device.name for device in run.devices}
    alike = len(names) == 1 and not capabilities(run.backend).simulated
    ours = [
        figure for figure in figures if alike and figure.is_of(next(iter(names))) and not _unlike(figure, run, memory)
    ]
    points = {key: timed for key, timed in points_by_key(run).items() if operation in (None, timed.point.operation)}
    labels = pair_labels(run.paths)
    state = nvls(run)
    alike_points = grouped(
        ((timed.point.operation, timed.point.variant, len(key.members)), key) for key, timed in points.items()
    )
    judging = []
    for kind in by_kind(ours):
        keys = alike_points.get((kind[0].operation, kind[0].variant, kind[0].ranks), ())
        if found := _judging(kind, [key for key in keys if _links_are(kind[0], key.members, labels)], points):
            judging.append(found)
    matched = _conforming(judging, state)
    works = {key.work for _, keys in matched for key in keys}  # noise is pooled within a work
    errors = estimates({key: measurement for key, measurement in points.items() if key.work in works}, run.paths)
    tested = sum(len(keys) for _, keys in matched)
    failures = [trouble.devices for trouble in outcome(run).troubles if trouble.kind not in _NO_FAILURES]
    shown = _Evidence(points, errors, _ALPHA / max(1, tested), failures, impossible(run), labels)
    answers = tuple(_answer(reference, keys, shown, state) for reference, keys in matched)
    return Answers(run, state, answers, tuple(_unjudged(run, points, ours, answers, labels)), bool(ours))


def _unlike(figure: Figure, run: Run, memory: Collection[Registration]) -> bool:
    """Return whether a run's collectives differ from those of all sources: registered memory, sums of integers.

    NCCL sums integers without NVLS.
    """
    registered = figure.operation.is_collective and bool(memory) and Registration.NONE not in memory
    return registered or (figure.operation.reduces and run.settings.dtype.lstrip("u").startswith("int"))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a run shows: its data points with estimates, failures, impossible rates; `alpha` is for each answer."""

    points: dict[Key, Measurement]
    errors: dict[Key, Estimate]
    alpha: float
    failures: Sequence[tuple[int, ...]]
    beaten: Sequence[Impossible]
    labels: dict[frozenset[int], str]


def _answer(reference: Reference, keys: Sequence[Key], run: _Evidence, state: Nvls) -> Answer:
    figure = reference.figure
    failed = tuple(dict.fromkeys(devices for devices in run.failures if _is_of(figure, devices, run.labels)))
    beaten = _beaten(reference, run)
    sets = []
    for key in keys:
        summary = summarize(run.points[key])
        between = between_runs.default(run.points[key].point.work, summary.seconds).sigma
        standing = _standing(reference.band, summary.busbw, run.errors[key], between, run.alpha)
        if beaten is not None and standing is not ReferenceVerdict.BELOW:
            standing = ReferenceVerdict.NOT_JUDGED
        sets.append(Measured(key.members, summary.busbw, standing))
    sets.sort(key=lambda device_set: (device_set.gbs, device_set.members))
    return Answer(reference, tuple(sets), _mismatch(figure, state), failed, beaten)


def _beaten(reference: Reference, run: _Evidence) -> Impossible | None:
    """Return a rate above a limit that makes the run's rates for a reference untrustworthy, None if there is none.

    Times that are wrong in one pattern of an operation may be wrong in the others, where no limit shows it.
    """
    figure, wanted = reference.figure, (reference.figure.operation, reference.size_bytes)
    of_work = (excess for excess in run.beaten if (excess.point.operation, excess.point.size_bytes) == wanted)
    of_devices = (excess for excess in run.beaten if _is_of(figure, excess.capacity.devices, run.labels))
    return next(chain(of_work, of_devices), None)


def _is_of(figure: Figure, devices: tuple[int, ...], labels: dict[frozenset[int], str]) -> bool:
    """Return whether a set of devices is of the figure's kind."""
    return len(devices) == figure.ranks and _links_are(figure, devices, labels)


def _links_are(figure: Figure, members: tuple[int, ...], labels: dict[frozenset[int], str]) -> bool:
    return all(figure.links_are(labels.get(frozenset(pair), "?")) for pair in combinations(members, 2))


def _conforming(judging: list[_Judging], state: Nvls) -> list[_Judging]:
    """Leave out references with another NVLS than the run's, if the same work has one with the run's."""
    figures = [reference.figure for reference, _ in judging]
    fitting = {(figure.operation, figure.ranks) for figure in figures if not _mismatch(figure, state)}
    return [
        judged
        for judged, figure in zip(judging, figures, strict=True)
        if not _mismatch(figure, state) or (figure.operation, figure.ranks) not in fitting
    ]


def _judging(kind: Sequence[Figure], ours: Sequence[Key], points: dict[Key, Measurement]) -> _Judging | None:
    """Return what figures of one kind say about points of their kind, and about which of these; None if about none.

    The size is the one about which most sources say something, the largest of these. Of host copies it is the best
    node's.
    """
    covered = [published for size in {key.size_bytes for key in ours} if (published := reference_at(kind, size))]
    if not covered:
        return None
    reference = max(covered, key=lambda reference: (len(reference.sources), reference.size_bytes))
    best: dict[tuple[int, ...], Key] = {}
    for key in (key for key in ours if key.size_bytes == reference.size_bytes):
        # Memory on another NUMA node is slower by design: the nearest node shows the rate of the slot.
        other = best.get(key.members)
        if other is None or summarize(points[key]).busbw > summarize(points[other]).busbw:
            best[key.members] = key
    return reference, list(best.values())


def _standing(
    band: tuple[float, float | None], gbs: float, estimate: Estimate, between: float, alpha: float
) -> ReferenceVerdict:
    """Return what an interval shows: below or above if all of it is outside the band; normal if it is not below.

    `between` is the standard deviation from run to run, because another run would have another rate.
    """
    low, high = band
    if len(estimate.trials) < MIN_TRIALS:
        return ReferenceVerdict.UNDECIDED
    parts = [
        Variance(estimate.cautious_error**2, estimate.freedom, estimate.label),
        Variance(between**2, between_runs.DEFAULT_FREEDOM, "runs"),
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
    if figure.nvls in (None, state.value) or (figure.nvls, state) == ("on", Nvls.POSSIBLE):
        return None
    return state


def _unjudged(
    run: Run,
    points: dict[Key, Measurement],
    figures: Sequence[Figure],
    answers: Sequence[Answer],
    labels: dict[frozenset[int], str],
) -> Iterator[Unjudged]:
    """Yield what the answers leave out: of works that they judge on devices, links and pairs, and whole works."""
    works = {key: Work(timed.point.operation, timed.point.variant) for key, timed in points.items()}
    measured = grouped(((work, len(key.members)), key.members) for key, work in works.items())
    for (work, ranks), places in measured.items():
        alike = [
            figure
            for figure in figures
            if (figure.operation, figure.variant, figure.ranks) == (work.operation, work.variant, ranks)
        ]
        ours = [answer for answer in answers if answer.figure in alike]
        if not ours:
            strange = Counter(labels.get(frozenset(place), "?") for place in {*places})
            yield Unjudged(work, ranks, strange.total(), tuple(sorted(strange.items())), others=tuple(alike))
            continue
        if work.operation.is_collective and run.settings.layout is not Layout.PAIRS:
            continue  # no run has all larger sets, or all pairs if pairs were chosen
        settled = {device_set.members for answer in ours for device_set in answer.sets}
        settled |= {unordered(work, devices) for answer in ours for devices in answer.failed}
        every = [place for place in sets_of(work, range(len(run.devices))) if len(place) == ranks]
        left = [place for place in every if place not in settled]
        known = [place for place in left if any(_is_of(answer.figure, place, labels) for answer in ours)]
        strange = Counter(labels.get(frozenset(place), "?") for place in left if place in places and place not in known)
        if known or strange:
            total = len(settled & {*every}) + len(known) + strange.total()
            yield Unjudged(work, ranks, total, tuple(sorted(strange.items())), tuple(known))
