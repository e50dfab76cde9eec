"""On which set of devices a recorded job communicates fastest, by replays of its step (method/choosing.md 8). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice
from statistics import fmean

from collbench.choose.choice import Choice, Members, TieBreak
from collbench.choose.search import MOST_FINALISTS
from collbench.jobs.replay.results import Replay, replays_of
from collbench.jobs.replay.steps import communication_seconds
from collbench.judge.outcome import outcome
from collbench.judge.stats import FEWEST_TRIALS, geometric_mean, simultaneous_quantile
from collbench.model.capabilities import capabilities
from collbench.model.run import Run
from collbench.model.units import DELTA, amount, columns
from collbench.report import sentences

Three = tuple[float, float, float]  # (low, middle, high); of fewer than three trials the middle alone, thrice


class Standing(StrEnum):
    """How a set compares with the one on which the job communicates least."""

    BEST = "best"
    TIED = "tied"
    UNDECIDED = "undecided"
    SLOWER = "slower"  # significantly
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobSet:
    """A finalist on which a recorded job was replayed, by its devices' tags.

    `communication` is (low, middle, high) of its seconds a step, the geometric mean over trials with its own 95%
    interval; `ratio` is that over the best set's, with an interval that holds for all sets at once. None where the set
    failed: `failure` says how. `first` as in Finalist.
    """

    devices: tuple[str, ...]
    standing: Standing
    communication: Three | None = None
    ratio: Three | None = None
    failure: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True)
class ForJob:
    """What replaying a recorded job on the finalists showed.

    `sets` are the fastest first, those that failed last, out of `possible` sets; `trials` of each. `by_bandwidth` are
    the devices that bandwidth alone chose.
    """

    job: str
    ranks: int
    trials: int
    possible: int
    sets: tuple[JobSet, ...]
    by_bandwidth: tuple[str, ...]

    @property
    def sound(self) -> tuple[JobSet, ...]:
        """Those that did not fail, the best one first."""
        return tuple(one for one in self.sets if one.standing is not Standing.FAILED)

    @property
    def tied(self) -> bool:
        """True if several sets are left and all tie."""
        return len(self.sound) > 1 and all(one.standing is Standing.TIED for one in self.sound[1:])

    @property
    def significant(self) -> bool:
        """True if all others are significantly slower than the best."""
        return len(self.sound) > 1 and all(one.standing is Standing.SLOWER for one in self.sound[1:])

    @property
    def chosen(self) -> JobSet:
        """The set to use: the choice by bandwidth if it ties with the best."""
        near = (one for one in self.sound if one.standing in {Standing.BEST, Standing.TIED})
        return next((one for one in near if one.devices == self.by_bandwidth), self.sound[0])

    def lines(self, sim: str, *, tied: bool) -> Iterator[str]:
        """Yield how long the job communicates on each finalist."""
        yield f"job       {self.job} on {self.ranks} ranks, {amount(self.trials, 'trial')} of each set in turn{sim}"
        yield (
            f"finalists {len(self.sets)} of {amount(self.possible, 'set')}: at most {MOST_FINALISTS} that bandwidth "
            f"does not rule out, and the first {self.ranks}; communication per step, and its ratio to the best "
            f"(95%, simultaneous){sim}"
        )
        rows = [("set", "ms (95%)", "vs best", "")]
        for one in self.sets:
            note = one.standing + (f", the first {self.ranks}" if one.first else "")
            rows.append((", ".join(one.devices), _figure(one.communication, 1e3), _figure(one.ratio), note))
        yield from (f"  {line}" for line in columns(rows))
        yield from (f"failed    {', '.join(one.devices)}: {one.failure}{sim}" for one in self.sets if one.failure)
        yield f"bandwidth alone chooses {', '.join(self.by_bandwidth)}{sim}"
        if tied:
            yield f"tie       the choice does not change the communication time of this job{sim}"


def _figure(interval: Three | None, scale: float = 1.0) -> str:
    """Return "1.775 (1.770–1.780)", only the middle where there is no interval."""
    if interval is None:
        return "-"
    low, middle, high = (f"{value * scale:.3f}" for value in interval)
    return middle if low == middle == high else f"{middle} ({low}–{high})"


def contest(job: str, run: Run, choice: Choice, links: Run, positions: Sequence[int]) -> ForJob | None:
    """Return how the sets of a run's replays compare; None if none has a trial.

    `links` is the run of the choice, and `positions` are there those of the replays' devices. The sets took turns in
    each round of trials, so they are compared round by round: drift affects all alike. With n sets, each of n(n−1)/2
    differences gets its share of the 5% (Bonferroni), because the best is not known before.
    """
    sound = [replay for replay in replays_of(run) if replay.trials and replay.failure is None and not replay.wrong]
    failed = [replay for replay in replays_of(run) if replay.failure is not None or replay.wrong]
    trials = min((len(replay.trials) for replay in sound), default=0)
    if not trials:
        return None

    def devices_of(members: Members) -> tuple[str, ...]:
        return tuple(links.devices[position].tag for position in members)

    def members_of(replay: Replay) -> Members:
        return tuple(sorted(positions[member] for member in replay.members))

    # If a clock shows no time at all, a tick of it stands for the time.
    rounds = {
        members_of(replay): tuple(max(communication_seconds(trial), 1e-9) for trial in replay.trials[:trials])
        for replay in sound
    }
    means = {members: _mean([math.log(one) for one in own]) for members, own in rounds.items()}
    best, *others = sorted(means, key=lambda members: means[members][1])
    comparisons = math.comb(len(rounds), 2)

    def ratio(members: Members, other: Members) -> Three:
        pairs = zip(rounds[members], rounds[other], strict=True)
        return _mean([math.log(one / base) for one, base in pairs], comparisons)

    default = next((some.members for some in choice.finalists if some.default), ())
    compared = [(best, Standing.BEST), *((members, _standing(ratio(members, best), trials)) for members in others)]
    sets = [
        JobSet(devices_of(members), standing, means[members], ratio(members, best), "", members == default)
        for members, standing in compared
    ]
    for replay in failed:
        why = "" if replay.failure is None else sentences.failure(replay.failure, run.devices)
        members = members_of(replay)
        sets.append(JobSet(devices_of(members), Standing.FAILED, failure=why, first=members == default))
    possible = math.comb(len(links.devices) - len(choice.left_out), len(choice.members))
    return ForJob(job, len(choice.members), trials, possible, tuple(sets), devices_of(choice.members))


def _mean(logs: Sequence[float], comparisons: int = 1) -> Three:
    """Return the mean of logarithms as a ratio, with its interval, simultaneous for this many means."""
    if len(logs) < FEWEST_TRIALS:
        return (math.exp(fmean(logs)),) * 3
    middle, low, high = geometric_mean(logs, simultaneous_quantile(len(logs) - 1, comparisons))
    return low, middle, high


def _standing(ratio: Three, trials: int) -> Standing:
    """Return how a set compares, by its time over the best's: as links do (docs/method/statistics.md 3)."""
    low, middle, high = ratio
    if trials < FEWEST_TRIALS:
        return Standing.UNDECIDED
    if middle > 1 + DELTA and low > 1:
        return Standing.SLOWER
    return Standing.TIED if high <= 1 + DELTA and low >= 1 / (1 + DELTA) else Standing.UNDECIDED


def settle(choice: Choice, found: ForJob, links: Run) -> Choice:
    """Return the choice that the replays of its finalists decide; `links` is the run that it was made from."""
    best = found.chosen
    assert best.communication is not None  # noqa: S101  # it has trials
    how = "simulated" if capabilities(links.backend).simulated else "measured"
    finalists = len(found.sound)
    if finalists < 2:
        least = "the only finalist that did not fail"
    elif found.tied:
        least = f"{finalists} finalists tie"
    elif found.significant:
        least = f"the shortest of {finalists} finalists"
    else:
        least = f"none of {finalists} finalists is significantly faster"
    kept = best.devices == found.by_bandwidth
    members = choice.members if kept else _positions(best, links)
    ties = kept and any(one.standing in {Standing.BEST, Standing.TIED} for one in found.sound if one is not best)
    return replace(
        choice,
        members=members,
        reason=f"a step of {found.job} communicates for {best.communication[1] * 1e3:.3f} ms ({how}): {least}",
        band=next((some.band for some in choice.finalists if some.members == members), None),
        decided_by=(choice.decided_by or (TieBreak.PREDICTED,)) if ties else (),
        tied=found.tied,
        failed=choice.failed if kept else outcome(links).within(members),
        impossible=choice.impossible if kept else (),
    )


def _positions(one: JobSet, links: Run) -> Members:
    return tuple(position for position, device in enumerate(links.devices) if device.tag in one.devices)


def contenders(choice: Choice, links: Run) -> tuple[Members, ...]:
    """Return the sets to replay a job on, the chosen one first: the choice's finalists without a failure.

    If all sets tie by bandwidth and there is no other finalist, the set that shares the fewest devices with the chosen,
    of those on which nothing failed in `links`, the run of the choice.
    """
    sets = [some.members for some in choice.finalists if some.sound]
    if len(sets) < 2 and choice.tied:
        out, ended = {left.member for left in choice.left_out}, outcome(links)
        fit = [member for member in range(len(links.devices)) if member not in out]
        order = sorted(fit, key=lambda member: member in choice.members)
        others = (tuple(sorted(some)) for some in combinations(order, len(choice.members)))
        sets += islice((some for some in others if not ended.within(some)), 1)
    return tuple(dict.fromkeys([choice.members, *sets]))
