"""The rate of each data point that decides, with an error that is simultaneous for all (docs/method/verdicts.md 4)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from statistics import NormalDist, median

from collbench.judge.diagnose.verdict import Interval, Link
from collbench.judge.physics import Check, Hardware
from collbench.judge.stats import (
    MIN_TRIALS,
    OwnNoise,
    log_rates,
    median_deviation,
    most_measured,
    own_noise,
    trial_noise,
    widening,
)
from collbench.judge.tiers import TRIALS_WITH_AN_OUTLIER, pair_labels
from collbench.machine.labels import UNKNOWN, is_nvlink
from collbench.machine.theory import slot
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Path, Run, capabilities
from collbench.model.units import TELLING_BYTES, grouped

# The chance that any bound of a run's readings lies on the wrong side of its true rate, all together. Thresholds lie
# beyond the bounds, so a false contradiction is rarer still.
_CHANCE_OF_ANY = 0.005
# Fewer trials than this make a poor σ̂: the wider pool then counts, too.
_FEW_TRIALS = 30
# From this many trials on, a data point may have noise of its own; with fewer, only all those of its link together may.
_TRIALS_FOR_OWN_NOISE = 5
# Two copies on one link get half of it each, three a third; noise alone does not make an interference check's ratio
# this low.
_SHARES = 0.9
# Pairs of one H200 machine keep differences of up to 2% from run to run, so an outlier lies significantly below that.
OUTLYING = 0.025
# docs/method/verdicts.md 2: healthy paths over PCIe reach 0.54 (between sockets) to 0.84 in the shipped machines.
FAR_BELOW = 0.5
# Against a limit more is needed than to compare links: on 4 × H200 a copy of 16 MiB comes within 5% of its plateau, and
# an all-reduce of 64 MiB within 20%.
COPY_BYTES, COLLECTIVE_BYTES = 16 * 2**20, 64 * 2**20

CE = (Work(Operation.CE_WRITE), Work(Operation.CE_READ))
SM = (Work(Operation.SM_WRITE), Work(Operation.SM_READ))
CPU = (Work(Operation.CPU_WRITE), Work(Operation.CPU_READ))
STAGED = Work(Operation.CE_WRITE, Variant.STAGED)


@dataclass(frozen=True, slots=True)
class Reading:
    """One data point: the median log of its trials' busbw (GB/s) and that median's standard error.

    `trials` are the logs, ascending. `isolated`: nothing else ran. `confirmed`: isolated, or an interference check
    found that its label is as fast concurrently. `noisier`: by what factor its link or pair is noisier than its kind,
    1 if it may be equally noisy.
    """

    work: Work
    members: tuple[int, ...]
    size_bytes: int
    label: str
    middle: float
    error: float
    confirmed: bool
    isolated: bool
    trials: tuple[float, ...]
    noisier: float = 1.0

    @property
    def high(self) -> float:
        """The highest trial, of seven or more the second highest: nearly all are below it."""
        return self.trials[-1 - int(len(self.trials) >= TRIALS_WITH_AN_OUTLIER)]

    @property
    def gbs(self) -> float:
        """The median in GB/s."""
        return math.exp(self.middle)


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings of a run, at one size for each work: the one that most links have, of equal ones the largest.

    A bound lies `z` standard errors from the median.
    """

    points: tuple[Reading, ...]
    z: float
    _by_work: dict[Work, dict[tuple[int, ...], Reading]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        """Sort the readings by work and members: judging a link asks for each work's in turn."""
        for reading in self.points:
            self._by_work.setdefault(reading.work, {})[reading.members] = reading

    def of(self, work: Work, least_bytes: int = TELLING_BYTES) -> Mapping[tuple[int, ...], Reading]:
        """Return the readings of a work by members; none if its messages were smaller than that."""
        readings = self._by_work.get(work, {})
        return readings if any(r.size_bytes >= least_bytes for r in readings.values()) else {}

    def host(self, member: int) -> tuple[Reading, ...]:
        """Return the copies of 16 MiB or more between a device and host memory, on whatever NUMA node."""
        works = (work for work in self._by_work if work.variant is Variant.HOST and work.operation.is_copy)
        return tuple(copy for work in works if (copy := self.of(work, COPY_BYTES).get((member,))))

    def works(self, *, collective: bool) -> tuple[Work, ...]:
        """Return the works that were measured plainly, in the run's order."""
        plain = (work for work in self._by_work if work.variant is Variant.PLAIN)
        return tuple(work for work in plain if work.operation.is_collective is collective)

    def interval(self, reading: Reading) -> Interval:
        """Return (lo, mid, hi) in GB/s."""
        off = self.z * reading.error
        return math.exp(reading.middle - off), reading.gbs, math.exp(reading.middle + off)

    def best(self, link: Link, least_bytes: int = COPY_BYTES) -> Reading | None:
        """Return the fastest copy on a link, by copy engine if any: that shows the link (method/measuring.md 2)."""
        for kinds in (CE, SM, CPU):
            there = [best for work in kinds if (best := self.of(work, least_bytes).get(link))]
            if there:
                return max(there, key=lambda reading: reading.middle)
        return None

    def exceeds(self, higher: Reading, lower: Reading, by: float) -> bool:
        """Return whether one reading is above another by more than `by` (a difference of logs), noise included."""
        return higher.middle - lower.middle - self.z * math.hypot(higher.error, lower.error) > by

    def tied(self, readings: Collection[Reading]) -> list[Reading]:
        """Return the best of some readings, and those that tie with it."""
        best = max(readings, key=lambda reading: reading.middle)
        return [reading for reading in readings if not self.exceeds(best, reading, OUTLYING)]

    def span(self, readings: Iterable[Reading]) -> Interval:
        """Return the lowest bound, the middle and the highest bound of several readings, GB/s."""
        intervals = [self.interval(reading) for reading in readings]
        return min(i[0] for i in intervals), median(i[1] for i in intervals), max(i[2] for i in intervals)


class Facts:
    """What verdicts are made from: the run, its readings, and its paths by unordered pair."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.paths: dict[frozenset[int], Path] = {frozenset(path.devices): path for path in run.paths}
        reach = (path for path in run.paths if path.cuda_peers is not False and not path.peers_denied)
        self._peers = {frozenset(path.devices) for path in reach}

    @cached_property
    def readings(self) -> Readings:
        """The rates that verdicts rest on."""
        return read(self.run)

    @cached_property
    def check(self) -> Check:
        """The limits of its data points, by the labels and as copies show."""
        return Check(self.run)

    @property
    def hardware(self) -> Hardware:
        """The capacities of links, ports and slots, by the labels."""
        return self.check.labelled

    @cached_property
    def on_cores(self) -> bool:
        """True if the devices are CPU cores, whose labels are our own."""
        return capabilities(self.run.backend).cores

    @cached_property
    def nccl_by_host(self) -> bool:
        """True if a variable sends NCCL through host memory between all GPUs."""
        return self.run.settings.environment.get("NCCL_P2P_DISABLE", "") not in ("", "0")

    def label(self, link: Sequence[int]) -> str:
        """Return the label between two positions, "?" where none was reported."""
        path = self.paths.get(frozenset(link))
        return path.label if path else "?"

    def labelled(self, link: Sequence[int]) -> bool:
        """Return whether a label says which path is between two positions."""
        return self.label(link) not in ("?", UNKNOWN)

    def over_nvlink(self, link: Sequence[int]) -> bool:
        """Return whether the label between two positions is one of NVLinks."""
        return is_nvlink(self.label(link))

    def links_of(self, position: int) -> frozenset[Link]:
        """Return all links from and to a device."""
        others = (other for other in range(len(self.run.devices)) if other != position)
        return frozenset(link for other in others for link in ((position, other), (other, position)))

    def limit(self, link: Sequence[int]) -> float | None:
        """Return the theory of a path in GB/s; of a PCIe path the slower slot's where the path has none."""
        a, b = link
        return self.hardware.link(a, b)

    def pcie_ceiling(self, members: Collection[int]) -> float | None:
        """Return the most that PCIe carries between devices in GB/s, by their slots or as measured; None if unknown."""
        slots = [slot(self.run.devices[member]) for member in members]
        if all(slots):
            return min(limit.gbs for limit in slots if limit)
        host = [reading for member in members for reading in self.readings.host(member)]
        staged = [r for pair, r in self.readings.of(STAGED, COPY_BYTES).items() if set(pair) <= set(members)]
        return max((self.readings.interval(reading)[2] for reading in (*host, *staged)), default=None)

    def has_peers(self, link: Sequence[int]) -> bool:
        """Return whether no source denies peer access to a pair."""
        return frozenset(link) in self._peers


@dataclass(slots=True)
class _Timed:
    """A data point with its trials as logs of GB/s; `noise` is σ̂ of one of its kind, `own` how much noisier it is."""

    point: DataPoint
    label: str
    logs: list[float]
    isolated: bool
    noise: float = 0.0
    own: OwnNoise | None = None


def read(run: Run) -> Readings:
    """Return the readings of a run: data points with three trials or more, each at its work's deciding size."""
    points, of_pairs = _deciding(run), pair_labels(run.paths)
    timed = [
        _Timed(one.point, _label_of(of_pairs, one.point.members), log_rates(one), _isolated(one)) for one in points
    ]
    _note_noise(timed)
    _note_own_noise(timed)
    chance = _CHANCE_OF_ANY / 2 / max(1, len(timed))
    z = NormalDist().inv_cdf(1 - chance)
    wider, trusted = widening(points), _trusted(run)

    def reading(one: _Timed) -> Reading:
        work, undisturbed = one.point.work, one.isolated or is_nvlink(one.label)
        error = wider * one.noise * (median_deviation(len(one.logs)) if undisturbed else 1.0)
        return Reading(
            work=work,
            members=one.point.members,
            size_bytes=one.point.size_bytes,
            label=one.label,
            # Concurrent copies can only slow a copy over PCIe down, and partners change: the fastest trial counts.
            middle=median(one.logs) if undisturbed else max(one.logs),
            error=error * one.own.widen(z, chance) if one.own else error,
            confirmed=one.isolated or (work, one.label) in trusted,
            isolated=one.isolated,
            trials=tuple(sorted(one.logs)),
            noisier=one.own.ratio if one.own else 1.0,
        )

    return Readings(tuple(map(reading, timed)), z)


def _deciding(run: Run) -> list[Measurement]:
    """Return the data points that decide, at the size of its work that most have, each with the trials that count."""
    counts: dict[Work, Counter[int]] = defaultdict(Counter)
    for measurement in run.measurements:
        if measurement.samples:
            counts[measurement.point.work][measurement.point.size_bytes] += 1
    sizes = {work: most_measured(have) for work, have in counts.items()}
    points: dict[DataPoint, Measurement] = {}
    for measurement in run.measurements:
        if measurement.samples and measurement.point.size_bytes == sizes[measurement.point.work]:
            # Only those that no judgment selected, else only isolated ones, if there are enough: the better evidence.
            confirming = [sample for sample in measurement.samples if sample.confirms]
            alone = confirming or [sample for sample in measurement.samples if not sample.concurrent]
            fewer = MIN_TRIALS <= len(alone) < len(measurement.samples)
            used = replace(measurement, samples=alone) if fewer else measurement
            if len(used.samples) >= MIN_TRIALS:
                points[used.point] = used
    return list(points.values())


def _trusted(run: Run) -> set[tuple[Work, str]]:
    """Return the works whose groups may run concurrently on a label, according to the interference checks.

    An interference check samples two pairs, and chance decides whether these share a PCIe link. So if one work's check
    found sharing on a PCIe label, no work is trusted on it.
    """
    sharing = {check.label for check in run.interference_checks if check.ratio < _SHARES and not is_nvlink(check.label)}
    return {
        (Work(check.operation, check.variant), check.label)
        for check in run.interference_checks
        if check.trusted and check.label not in sharing
    }


def _isolated(measurement: Measurement) -> bool:
    return not any(sample.concurrent for sample in measurement.samples)


def _label_of(labels: Mapping[frozenset[int], str], members: Sequence[int]) -> str:
    """Return the label that members share, "" for one device, "mixed" where several differ."""
    names = {labels.get(frozenset(pair), "?") for pair in combinations(members, 2)}
    return next(iter(names), "") if len(names) < 2 else "mixed"


def _note_noise(timed: Sequence[_Timed]) -> None:
    """Set σ̂ of one trial's log of each point's kind: within its work and label, more widely if these are few."""
    of_kinds = grouped((one.point.operation.is_collective, one.logs) for one in timed)
    wide = {collective: trial_noise(logs) for collective, logs in of_kinds.items()}
    for alike in grouped(((one.point.work, one.label), one) for one in timed).values():
        noise = trial_noise(one.logs for one in alike)
        few = sum(len(one.logs) for one in alike) < _FEW_TRIALS
        for one in alike:
            one.noise = max(noise, wide[one.point.operation.is_collective]) if few else noise


def _note_own_noise(timed: Sequence[_Timed]) -> None:
    """Set the noise of points that have their own: of all data points on the same devices, or theirs alone.

    A link that is noisy shows it in every kind of copy and collective, both ways: three trials of each are enough then.
    """
    for alike in grouped((frozenset(one.point.members), one) for one in timed).values():
        together = own_noise((one.logs, one.noise) for one in alike)
        for one in alike:
            alone = own_noise([(one.logs, one.noise)]) if len(one.logs) >= _TRIALS_FOR_OWN_NOISE else None
            one.own = max(filter(None, (together, alone)), key=lambda own: own.ratio, default=None)
