"""What a run holds of `collbench replay`: the arms of a recorded step, their calls and trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from collbench.model.errors import Failure
from collbench.model.run import Flag, Result, Run, Trial
from collbench.model.values import Amount, Count, Ordinal, Positive


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One kind of call of a replayed step: all that agree in these fields, the members of a group being one call."""

    operation: str  # a collective's value, "p2p" for sends and receives, or "mixed" for a group of several collectives
    # As in a data point; of a group the sum, of sends and receives the most that a rank sends or gets.
    size_bytes: Count
    ranks: Ordinal  # that took part
    count: Ordinal  # per step
    recorded_seconds: Amount | None = None  # the mean that a call took in the job, None if unknown


@dataclass(frozen=True, slots=True)
class ReplayTrial:
    """One trial of a replayed step: raw seconds a step by rank, in the order of `Replay.members`."""

    step: tuple[Positive, ...]  # with pauses and calls
    pauses: tuple[Amount, ...]  # the pauses alone
    # Within the step: the sum over a rank's calls, each as long as on the rank that waited least.
    communication: tuple[Amount, ...]
    call_seconds: tuple[Amount, ...]  # the same for each of `Replay.calls`: a call's mean
    steps: Ordinal  # that the seconds are means over
    queued: bool = True  # False: a host was too slow to keep its device supplied
    kernels: bool = False  # a call is as long as its kernel; else as what lies between two events, its launch included
    flags: tuple[Flag, ...] = ()  # as in Sample


@dataclass(slots=True)
class Replay:
    """A recorded step on these devices."""

    job: str  # its file's name
    members: tuple[int, ...]  # positions: the job's rank r ran on members[r]
    calls: tuple[ReplayedCall, ...]
    without: tuple[str, ...] = ()  # what NCCL went without ("p2p")
    # The job's own communication a step, as in ReplayTrial; None if unknown.
    recorded_seconds: Amount | None = None
    recorded_step_seconds: Positive | None = None  # of the job's slowest rank, as its page has it; None likewise
    trials: list[ReplayTrial] = field(default_factory=list)
    wrong: Count | None = None  # elements that did not arrive as sent; None: nothing was compared
    failure: Failure | None = None

    @property
    def wrong_data(self) -> bool:
        """True if something did not arrive as sent."""
        return bool(self.wrong)


# What the run file's reader needs (runfile/run_file.py).
NAME, CALLS = "replays", "call_seconds"
RESULT: type[Result] = Replay


def check_calls(result: Result, trial: Trial, where: str) -> None:
    """Raise ValueError for a trial whose times are not one for each kind of call, and for none."""
    times, calls = getattr(trial, CALLS), cast("Replay", result).calls
    if len(times) != len(calls):
        raise ValueError(f"{where}.{CALLS} has {len(times)} times, but there are {len(calls)} calls")
    if not times:
        raise ValueError(f"{where} has no calls")


def replays_of(run: Run) -> list[Replay]:
    """Return the replays of a run."""
    return run.sections.get(NAME, [])
