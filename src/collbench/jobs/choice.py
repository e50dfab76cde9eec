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
from collbench.judge.stats import DELTA, FEWEST_TRIALS, geometric_mean, simultaneous_quantile
from collbench.model.capabilities import capabilities
from collbench.model.failures import Failure
from collbench.model.run import Run
from collbench.model.units import amount, columns
from collbench.overlaps.factors import Figure
from collbench.report import sentences


class Standing(StrEnum):
    """How a set compares with the one on which the job communicates least."""

    BEST = "best"
    TIED = "tied"
    UNDECIDED = "undecided"
    SLOWER = "slower"  # significantly
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobFinalist:
    """A set on which the job's step was replayed, by positions.

    `seconds` are its communication a step, the geometric mean over trials with its own 95% interval; `ratio` is that
    over the best set's, with an interval that holds for all sets at once. None if the set failed. `rounds` are the
    seconds of each round, in which all sets had their turn. `failure` has positions of the run of the replays.
    """

    members: Members
    standing: Standing
    seconds: Figure | None = None
    ratio: Figure | None = None
    rounds: tuple[float, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class JobContest:
    """The sets on which a job was replayed, the fastest first, those that failed last; `trials` is of each.

    `by_bandwidth` is the set with the best bandwidth, `chosen` the one to use: `by_bandwidth` if it ties with the best.
    """

    finalists: tuple[JobFinalist, ...]
    trials: int
    by_bandwidth: Members
    chosen: Members

    @property
    def sound(self) -> tuple[JobFinalist, ...]:
        """Those that did not fail, the best one first."""
        return tuple(one for one in self.finalists if one.standing is not Standing.FAILED)

    @property
    def tied(self) -> bool:
        """True if several sets are left and all tie."""
        return len(self.sound) > 1 and all(one.standing in {Standing.BEST, Standing.TIED} for one in self.sound)

    @property
    def significant(self) -> bool:
        """True if all others are significantly slower than the best."""
        return len(self.sound) > 1 and all(one.standing is Standing.SLOWER for one in self.sound[1:])

    def of(self, members: Members) -> JobFinalist | None:
        """Return the finalist on these positions."""
        return next((one for one in self.finalists if one.members == members), None)

    def saved(self, members: Members) -> Figure | None:
        """Return the seconds a step that the chosen set saves against another, as their ratio says; None if it failed.

        The interval is one of those that hold at once.
        """
        chosen, other = self.of(self.chosen), self.of(members)
        if chosen is None or chosen.seconds is None or other is None or not other.rounds or other is chosen:
            return None
        ratio, mine = _ratio(other.rounds, chosen.rounds, len(self.sound)), chosen.seconds.value
        ends = None if ratio.interval is None else (mine * (ratio.interval[0] - 1), mine * (ratio.interval[1] - 1))
        return Figure(mine * (ratio.value - 1), ends)


def contest(run: Run, by_bandwidth: Members, positions: Sequence[int]) -> JobContest | None:
    """Return how the sets of a run's replays compare; None if none has a trial.

    `positions` are those of the run's devices among all that were chosen from, as in `by_bandwidth`.
    The sets took turns in each round of trials, so they are compared round by round: drift affects all alike. With n
    sets, each of n(n−1)/2 differences gets its share of the 5% (Bonferroni), because the best is not known before.
    """
    sound = [replay for replay in replays_of(run) if replay.trials and replay.failure is None and not replay.wrong]
    failed = [replay for replay in replays_of(run) if replay.failure is not None or replay.wrong]
    rounds = min((len(replay.trials) for replay in sound), default=0)
    if not rounds:
        return None

    def devices_of(replay: Replay) -> Members:
        return tuple(sorted(positions[member] for member in replay.members))

    # If a clock shows no time at all, a tick of it stands for the time.
    seconds = {
        devices_of(replay): tuple(max(communication_seconds(trial), 1e-9) for trial in replay.trials[:rounds])
        for replay in sound
    }
    means = {devices: _mean([math.log(one) for one in own]) for devices, own in seconds.items()}
    order = sorted(means, key=lambda devices: means[devices].value)
    best = order[0]
    made = []
    for devices in order:
        ratio = _ratio(seconds[devices], seconds[best], len(order))
        made.append(JobFinalist(devices, _standing(devices == best, ratio), means[devices], ratio, seconds[devices]))
    tied = {one.members for one in made if one.standing in {Standing.BEST, Standing.TIED}}
    lost = tuple(JobFinalist(devices_of(replay), Standing.FAILED, failure=replay.failure) for replay in failed)
    return JobContest((*made, *lost), rounds, by_bandwidth, by_bandwidth if by_bandwidth in tied else best)


def _ratio(one: Sequence[float], other: Sequence[float], sets: int) -> Figure:
    """Return the ratio of two of so many sets, round by round, with an interval that holds for all of them at once."""
    logs = [math.log(a / b) for a, b in zip(one, other, strict=True)]
    return _mean(logs, math.comb(sets, 2))


def _mean(logs: Sequence[float], comparisons: int = 1) -> Figure:
    """Return the mean of logarithms as a ratio, with its interval, simultaneous for this many means."""
    if len(logs) < FEWEST_TRIALS:
        return Figure(math.exp(fmean(logs)), None)
    middle, low, high = geometric_mean(logs, simultaneous_quantile(len(logs) - 1, comparisons))
    return Figure(middle, (low, high))


def _standing(best: bool, ratio: Figure) -> Standing:
    """Return how a set compares, by its time over the best's: as links do (docs/method/statistics.md 3)."""
    if best:
        return Standing.BEST
    if ratio.interval is None:
        return Standing.UNDECIDED
    low, high = ratio.interval
    if ratio.value > 1 + DELTA and low > 1:
        return Standing.SLOWER
    return Standing.TIED if high <= 1 + DELTA and low >= 1 / (1 + DELTA) else Standing.UNDECIDED


def settle(choice: Choice, job_contest: JobContest, job: str, links: Run) -> Choice:
    """Return the choice that the replays of its finalists decide; `links` is the run that it was made from."""
    best = job_contest.of(job_contest.chosen)
    assert best is not None  # noqa: S101  # it has trials
    assert best.seconds is not None  # noqa: S101
    how = "simulated" if capabilities(links.backend).simulated else "measured"
    finalists = len(job_contest.sound)
    if finalists < 2:
        least = "the only finalist that did not fail"
    elif job_contest.tied:
        least = f"{finalists} finalists tie"
    elif job_contest.significant:
        least = f"the shortest of {finalists} finalists"
    else:
        least = f"none of {finalists} finalists is significantly faster"
    others = [one for one in job_contest.sound if one is not best]
    kept = job_contest.chosen == choice.members
    ties = kept and any(one.standing in {Standing.BEST, Standing.TIED} for one in others)
    return replace(
        choice,
        members=job_contest.chosen,
        reason=f"a step of {job} communicates for {best.seconds.value * 1e3:.3f} ms ({how}): {least}",
        band=next((some.band for some in choice.finalists if some.members == job_contest.chosen), None),
        decided_by=(choice.decided_by or (TieBreak.PREDICTED,)) if ties else (),
        tied=job_contest.tied,
        failed=choice.failed if kept else outcome(links).within(job_contest.chosen),
        impossible=choice.impossible if kept else (),
    )


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


# What the page and the JSON of a selection show of it, devices by name.

# How a finalist compares with the fastest, in the table of a job's replays.
_STANDING = {
    Standing.BEST: "fastest",
    Standing.TIED: "tie",
    Standing.UNDECIDED: "undecided",
    Standing.SLOWER: "slower",
    Standing.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class JobSet:
    """A finalist on which a recorded job was replayed, by its devices' tags.

    `communication` is (low, middle, high) of its seconds a step, `ratio` of them over those of the fastest set, with a
    95% interval that holds for all sets at once; a set of fewer than three trials has the middle alone, thrice. None
    where the set failed: `failure` says how. `standing` is best, tied, undecided, slower or failed. `first` as in
    Finalist.
    """

    devices: tuple[str, ...]
    standing: str
    communication: tuple[float, float, float] | None = None
    ratio: tuple[float, float, float] | None = None
    failure: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True)
class ForJob:
    """What replaying a recorded job on the finalists showed.

    `sets` are the fastest first, out of `possible` sets; `trials` of each. `by_bandwidth` are the devices that
    bandwidth alone chose. `saved_worst` and `saved_bandwidth` are the seconds a step that the chosen set saves against
    the slowest finalist and against that choice, (low, middle, high); None if there is none to compare with.
    """

    job: str
    ranks: int
    trials: int
    possible: int
    sets: tuple[JobSet, ...]
    by_bandwidth: tuple[str, ...]
    saved_worst: tuple[float, float, float] | None = None
    saved_bandwidth: tuple[float, float, float] | None = None

    def lines(self, sim: str, *, tied: bool) -> Iterator[str]:
        """Yield how long the job communicates on each finalist, and what the choice saves."""
        yield f"job       {self.job} on {self.ranks} ranks, {amount(self.trials, 'trial')} of each set in turn{sim}"
        yield (
            f"finalists {len(self.sets)} of {amount(self.possible, 'set')}: at most {MOST_FINALISTS} that bandwidth "
            f"does not rule out, and the first {self.ranks}; communication per step, and its ratio to the fastest "
            f"(95%, simultaneous){sim}"
        )
        rows = [("set", "ms (95%)", "vs fastest", "")]
        for one in self.sets:
            note = _STANDING[Standing(one.standing)] + (f", the first {self.ranks}" if one.first else "")
            rows.append((", ".join(one.devices), _figure(one.communication, 1e3), _figure(one.ratio), note))
        yield from (f"  {line}" for line in columns(rows))
        yield from (f"failed    {', '.join(one.devices)}: {one.failure}{sim}" for one in self.sets if one.failure)
        if tied:
            yield f"tie       the choice does not change the communication time of this job{sim}"
        slowest = next((one for one in reversed(self.sets) if one.communication is not None), None)
        if slowest is not None and self.saved_worst is not None:
            devices = ", ".join(slowest.devices)
            yield f"saves     {_saved(self.saved_worst)} compared with the slowest finalist, {devices}{sim}"
        by_bandwidth = f"compared with the choice by bandwidth, {', '.join(self.by_bandwidth)}"
        if self.saved_bandwidth is not None:
            yield f"saves     {_saved(self.saved_bandwidth)} {by_bandwidth}{sim}"
        else:
            failed = any(one.failure and one.devices == self.by_bandwidth for one in self.sets)
            yield f"saves     nothing {by_bandwidth}: {'it failed' if failed else 'it is the same set'}"


def _figure(interval: tuple[float, float, float] | None, scale: float = 1.0) -> str:
    """Return "1.775 (1.770–1.780)", only the middle where there is no interval."""
    if interval is None:
        return "-"
    low, middle, high = (f"{value * scale:.3f}" for value in interval)
    return middle if low == middle == high else f"{middle} ({low}–{high})"


def _saved(seconds: tuple[float, float, float]) -> str:
    low, middle, high = (f"{value * 1e3:.3f}" for value in seconds)
    return f"{middle} ms a step (95%: {low} to {high} ms)"


def shown(job: str, choice: Choice, contest: JobContest, run: Run, links: Run) -> ForJob:
    """Return what the replays in a run showed, with devices by name; `links` is the run of the choice."""
    default = next((some.members for some in choice.finalists if some.default), ())

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(links.devices[position].tag for position in members)

    sets = tuple(
        JobSet(
            tags(finalist.members),
            finalist.standing.value,
            _three(finalist.seconds),
            _three(finalist.ratio),
            "" if finalist.failure is None else sentences.failure(finalist.failure, run.devices),
            finalist.members == default,
        )
        for finalist in contest.finalists
    )
    return ForJob(
        job,
        len(choice.members),
        contest.trials,
        math.comb(len(links.devices) - len(choice.left_out), len(choice.members)),
        sets,
        tags(contest.by_bandwidth),
        _three(contest.saved(contest.sound[-1].members)),
        _three(contest.saved(contest.by_bandwidth)),
    )


def _three(figure: Figure | None) -> tuple[float, float, float] | None:
    """Return a figure as low end, middle, high end; the middle thrice without an interval."""
    if figure is None:
        return None
    low, high = figure.interval or (figure.value, figure.value)
    return low, figure.value, high
