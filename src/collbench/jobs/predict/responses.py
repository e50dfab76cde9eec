"""How a recorded step responds to longer transfers, estimated from the record alone, which contains no compute.

Ranks never arrive at a collective at exactly the same time. The rank that arrives first waits in its kernel, so its
kernel takes longer, by chance, and nothing else changes. If its next kernel then begins later by the same time, compute
waited for the transfer. If it begins when it would have begun anyway, compute ran during the transfer. If it begins a
little later, compute was slowed down (docs/method.md 12.2). Kernels that begin right after the host's call are left
out: there the GPU had waited for its host.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.jobs.calls import shown_phase
from collbench.jobs.job import MICRO, Call, Job, Phase
from collbench.judge.stats import MAD_TO_SIGMA, huber_weights

Values = NDArray[np.float64]
Where = tuple[int, int]  # a rank, and a kernel of its step
Likeness = tuple[tuple[str, int, bool], tuple[str, int, bool], bool]

# If a kernel begins this soon after the host's call, its GPU was idle until then: a launch takes 5 to 20 µs, and the
# clocks of host and GPU are known to differ by 10 µs at most.
_HOST_BOUND = 50e-6
# A source may have the framework's call instead of NCCL's: then a launch takes up to this much longer.
_SLOWEST_LAUNCH = 500e-6
# A kernel that is ready begins 2 to 4 µs after the one before it on its communicator ends: within this, it was ready.
_BEHIND = 8e-6
# With at least this share compute waits for a transfer; with a smaller one it runs during the transfer, more slowly.
_WAITED = 0.5
# A kernel keeps its own slope if that differs from the slope of its like by more standard errors than this.
_ODD = 2.5
_MEDIAN_ERROR = 1.25  # of a mean's: √(π/2), as for normal values
# A slope needs at least this many samples; its standard error is assumed to be at least this.
_FEWEST, _LEAST_ERROR = 8, 0.02
# If the GPU waits for its host for more than this share of a step, faster links do not shorten the step.
SLACK = 0.02


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a longer transfer that delays the next kernel, with its 95% interval; 1: compute waits for it."""

    share: float
    low: float
    high: float

    @property
    def unknown(self) -> bool:
        """True if the record says nothing: any share is possible."""
        return self.low == 0.0 and self.high == 1.0


_UNKNOWN = Share(0.5, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Response:
    """One kernel of a step after the one before it in the host's order, seconds on the GPU.

    It is ready `compute` + `share` × (the time of the kernel before) after that kernel was ready. `low` and `high` are
    the 95% interval of the share, 0 and 1 if nothing is known about it. `took` is this kernel's own recorded time,
    with the wait for other ranks.
    """

    lane: int
    took: float
    compute: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Responses:
    """The kernels of one rank's step; `places` are their positions in the phase.

    `host_bound` is the share of recorded kernels before which the GPU waited for its host.
    """

    places: tuple[int, ...]
    kernels: tuple[Response, ...]
    host_bound: float

    def step(self, longer: Sequence[float], which: int = 1) -> float:
        """Return the seconds of a step if each kernel takes `longer` seconds more.

        `which` of the shares: 0 `low`, 1 `share`, 2 `high`.
        """
        shares = [(one.low, one.share, one.high)[which] for one in self.kernels]
        # Every line passes through what was recorded, so with a smaller share more of that time is compute.
        before = [self.kernels[at - 1].took for at in range(len(self.kernels))]
        compute = [
            one.compute + (one.share - share) * took
            for one, share, took in zip(self.kernels, shares, before, strict=True)
        ]
        took = [max(0.0, one.took + more) for one, more in zip(self.kernels, longer, strict=True)]
        ready, ends = 0.0, defaultdict[int, float](float)
        rounds = list[float]()
        last_ready = last_end = 0.0
        for _ in range(_ROUNDS):
            for at, one in enumerate(self.kernels):
                if rounds or at:
                    lasted = last_end - last_ready if shares[at] >= _WAITED else took[at - 1]
                    ready = last_ready + compute[at] + shares[at] * lasted
                began = max(ready, ends[one.lane])
                ends[one.lane] = began + took[at]
                last_ready, last_end = ready, ends[one.lane]
            rounds.append(max(last_ready, *ends.values()))
        return rounds[-1] - rounds[-2]


_ROUNDS = 4  # steps until one is like the one before


def responses(job: Job) -> dict[int, Responses]:
    """Return the responses of each rank's step, by job rank; of none if the record lacks kernels' beginnings."""
    steps = {}
    for rank in job.ranks:
        phase = shown_phase(rank)
        if phase is not None and phase.repetitions > 1:
            step = _Step.of(job, rank.rank, phase)
            if step is not None:
                steps[rank.rank] = step
    slopes = _slopes(steps)
    return {rank: step.answered(rank, slopes) for rank, step in steps.items()}


@dataclass(frozen=True, slots=True)
class _Step:
    """One rank's step: arrays of (samples, kernels), seconds; NaN of the first kernel where the one before is unknown.

    `between` is from the beginning of the kernel before to this one's, `before` how long that one took, `lag` from the
    host's call to the kernel's beginning. `alike` is what each kernel and the one before it are, `groups` the ranks
    that meet in the one before.
    """

    places: tuple[int, ...]
    lanes: tuple[int, ...]
    repetitions: tuple[int, ...]
    took: Values
    between: Values
    before: Values
    lag: Values
    alike: tuple[Likeness, ...]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, job: Job, rank: int, phase: Phase) -> _Step | None:
        """Return a rank's step; None if fewer than three samples have every kernel's beginning and time."""
        samples = [one for one in phase.samples if one.gpu_starts and one.gpu and all(one.gpu)]
        if len(samples) < _SAMPLES:
            return None
        indices = tuple(index for index, position in enumerate(phase.positions) if not (position.together and index))
        calls = [job.calls[phase.positions[index].call] for index in indices]
        starts = np.array([_units(phase, one.gpu_starts, min) for one in samples]) * MICRO
        took = np.array([_units(phase, one.gpu, max) for one in samples]) * MICRO
        hosts = np.array([one.starts for one in samples])[:, list(indices)] * MICRO
        last = np.array([one.gpu_before or (np.nan, np.nan) for one in samples]) * MICRO
        begun_before = np.concatenate([last[:, :1], starts[:, :-1]], axis=1)
        pairs = [(calls[at - 1], calls[at]) for at in range(len(calls))]
        return cls(
            indices,
            tuple(call.group for call in calls),
            tuple(one.repetition for one in samples),
            took,
            starts - begun_before,
            np.concatenate([last[:, 1:], took[:, :-1]], axis=1),
            starts - hosts,
            tuple((_like(one), _like(other), one.group == other.group) for one, other in pairs),
            tuple(job.groups[one.group].ranks or (rank,) for one, _ in pairs),
        )

    def host_bound(self) -> NDArray[np.bool_]:
        """True if the GPU had nothing to do until the host called."""
        quickest = float(self.lag.min())
        return self.lag < _HOST_BOUND + (quickest if 0 < quickest < _SLOWEST_LAUNCH else 0.0)

    def free(self, at: int) -> Values:
        """Return the times between two beginnings; NaN if the host, or NCCL's order, decided when the later one began.

        If NCCL's order decided in every sample, all are returned: the kernel always waits for the one before.
        """
        between, behind = self.between[:, at], self.behind(at)
        return between if behind.all() else np.where(self.host_bound()[:, at] | behind, np.nan, between)

    def behind(self, at: int) -> NDArray[np.bool_]:
        """True if a kernel began as soon as the one before it on the same communicator ended."""
        return self.alike[at][2] & (self.between[:, at] - self.before[:, at] < _BEHIND)

    def answered(self, rank: int, slopes: Mapping[Where, _Slope]) -> Responses:
        """Return this rank's responses, given the slopes from the samples of all ranks."""
        answered = []
        for at in range(len(self.alike)):
            slope = _share(slopes.get((rank, at)))
            free, rest = (own - slope.share * self.before[:, at] for own in (self.free(at), self.between[:, at]))
            if np.isfinite(free).any():
                compute = float(np.nanmedian(free))
            else:  # the host decided each time, so compute takes no longer than the shortest of these times
                compute = float(np.nanmin(rest)) if np.isfinite(rest).any() else 0.0
            took = float(np.median(self.took[:, at]))
            answered.append(Response(self.lanes[at], took, compute, slope.share, slope.low, slope.high))
        return Responses(self.places, tuple(answered), float(np.mean(self.host_bound())))


_SAMPLES = 3


def _units(phase: Phase, values: Sequence[float], choose: Callable[[float, float], float]) -> list[float]:
    """Return values by kernel: calls that NCCL got together share one."""
    units = list[float]()
    for position, value in zip(phase.positions, values, strict=True):
        if position.together and units:
            units[-1] = choose(units[-1], value)
        else:
            units.append(value)
    return units


def _like(call: Call) -> tuple[str, int, bool]:
    return call.operation, call.size_bytes, call.captured


@dataclass(frozen=True, slots=True)
class _Slope:
    """Seconds by which a kernel began later per second that the one before took longer, with the standard error."""

    value: float
    error: float


def _slopes(steps: Mapping[int, _Step]) -> dict[Where, _Slope]:
    """Return the slope of each kernel of each rank's step.

    A step has many pairs of kernels that are alike, and they share the median slope of all of them, save those that
    differ from it: the first layer's gather, the last bucket.
    """
    alone = dict[Where, _Slope]()
    pools = defaultdict[Likeness, list[_Slope]](list)
    chances = defaultdict[tuple[Likeness, int], list[tuple[int, Values, Values]]](list)
    for rank, at, longer, later in _chances(steps):
        chances[steps[rank].alike[at], at].append((rank, longer, later))
    for (alike, at), pairs in chances.items():
        longer, later = (np.concatenate([values[which] for _, *values in pairs]) for which in (0, 1))
        slope = _slope(longer, later, len(pairs))
        if slope is not None:
            if not all(steps[rank].behind(at).all() for rank, *_ in pairs):
                pools[alike].append(slope)
            alone.update({(rank, at): slope for rank, *_ in pairs})
    shared = {alike: _shared(pool) for alike, pool in pools.items()}
    slopes = dict[Where, _Slope]()
    for rank, step in steps.items():
        for at, alike in enumerate(step.alike):
            own, usual = alone.get((rank, at)), shared.get(alike)
            if own and usual and abs(own.value - usual.value) <= _ODD * math.hypot(own.error, usual.error):
                own = None
            if chosen := own or usual:
                slopes[rank, at] = chosen
    return slopes


def _shared(slopes: Sequence[_Slope]) -> _Slope:
    """Return the median of slopes, each weighted by what it knows."""
    order = sorted(slopes, key=lambda one: one.value)
    known = np.cumsum([1 / one.error**2 for one in order])
    middle = order[int(np.searchsorted(known, known[-1] / 2))]
    return _Slope(middle.value, max(_MEDIAN_ERROR / math.sqrt(known[-1]), _LEAST_ERROR))


def _chances(steps: Mapping[int, _Step]) -> Iterator[tuple[int, int, Values, Values]]:
    """Yield of each rank's kernels by how much the one before lasted longer than usual, and this one began later.

    Both against the other ranks in the same repetition, where these are known: what is common to all of them (another
    batch, another block of the network) is no answer to a transfer.
    """
    for rank, step in steps.items():
        for at in range(len(step.alike)):
            others = [steps[other] for other in step.groups[at] if other != rank and other in steps]
            as_long = [other for other in others if len(other.alike) == len(step.alike)]
            peers = [other for other in as_long if other.alike[at] == step.alike[at]]
            longer, later = step.before[:, at], step.free(at)
            if peers:
                longer = longer - np.mean([_matched(step, one, one.before[:, at]) for one in peers], axis=0)
                later = later - np.mean([_matched(step, one, one.free(at)) for one in peers], axis=0)
            usable = np.isfinite(longer) & np.isfinite(later)
            if usable.sum() >= _SAMPLES:
                yield rank, at, longer[usable] - np.mean(longer[usable]), later[usable] - np.mean(later[usable])


def _matched(step: _Step, other: _Step, values: Values) -> Values:
    """Return another rank's times of the same repetitions, NaN where it did not keep them."""
    own = dict(zip(other.repetitions, values, strict=True))
    return np.array([own.get(repetition, np.nan) for repetition in step.repetitions])


def _slope(longer: Values, later: Values, ranks: int) -> _Slope | None:
    """Return a robust slope through 0; None if the transfers hardly differed.

    Of ranks that are compared with each other the last one says nothing new.
    """
    weights = np.ones(len(longer))
    if len(longer) < _FEWEST or not (longer**2).sum():
        return None
    for _ in range(_ITERATIONS):
        squares = float((weights * longer**2).sum())
        slope = float((weights * longer * later).sum()) / squares
        rest = later - slope * longer
        sigma = max(float(np.median(np.abs(rest))) * MAD_TO_SIGMA, _LEAST_SIGMA)
        weights = huber_weights(np.abs(rest), sigma, _LEAST_SIGMA)
    alone = (ranks - 1) / ranks if ranks > 1 else 1.0
    variance = float((weights * rest**2).sum()) / (len(rest) - 2) / alone
    return _Slope(slope, max(math.sqrt(variance / squares), _LEAST_ERROR))


_ITERATIONS, _LEAST_SIGMA = 10, 1e-7


def _share(slope: _Slope | None) -> Share:
    """Return the mean and the 95% interval of what a slope may be.

    Before anything was seen it is even whether compute waits, and the share is 1, or does not, and any share is as
    likely as any other.
    """
    if slope is None:
        return _UNKNOWN
    grid = np.linspace(0.0, 1.0, _GRID)
    exponent = -0.5 * ((grid - slope.value) / slope.error) ** 2
    density = np.exp(exponent - exponent.max()) / _GRID
    density[-1] += np.exp(exponent[-1] - exponent.max())
    density /= density.sum()
    shares = np.cumsum(density)
    low, high = (float(grid[np.argmax(shares >= edge)]) for edge in (0.025, 0.975))
    return Share(float((grid * density).sum()), low, high)


_GRID = 1001
