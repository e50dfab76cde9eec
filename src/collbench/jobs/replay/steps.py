"""Summaries of a replayed step: its communication and how much of it is exposed, arm against arm. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collbench.jobs.replay.results import Replay, ReplayTrial
from collbench.overlaps.factors import Figure, median_figure


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """One arm, seconds a step, of the slowest rank (docs/method/collectives.md 10).

    `step` is with pauses and calls, `pauses` without the calls, `exposed` what the calls add, trial by trial.
    `communication` is the sum of a rank's calls within the step, without waiting.
    `by_kind` is the seconds of one call of each of `Replay.calls`.
    """

    step: Figure
    pauses: Figure
    exposed: Figure
    communication: Figure
    by_kind: tuple[Figure, ...]


def summarize(replay: Replay) -> ReplaySummary:
    """Return the figures of an arm with at least one trial."""

    def over_trials(value: Callable[[ReplayTrial], float]) -> Figure:
        return median_figure([value(trial) for trial in replay.trials])

    return ReplaySummary(
        step=over_trials(step_seconds),
        pauses=over_trials(lambda trial: max(trial.pauses)),
        exposed=over_trials(lambda trial: step_seconds(trial) - max(trial.pauses)),
        communication=over_trials(communication_seconds),
        by_kind=tuple(
            median_figure([trial.call_seconds[kind] for trial in replay.trials]) for kind in range(len(replay.calls))
        ),
    )


def ratio(first: Replay, other: Replay) -> Figure | None:
    """Return how many times as long an arm communicates as the first one, trial by trial: they took turns.

    None without a trial of both.
    """
    pairs = list(zip(first.trials, other.trials, strict=False))
    if not pairs:
        return None
    return median_figure(
        [communication_seconds(b) / communication_seconds(a) for a, b in pairs if communication_seconds(a) > 0]
    )


def step_seconds(trial: ReplayTrial) -> float:
    """Return a step's seconds on the slowest rank."""
    return max(trial.step)


def communication_seconds(trial: ReplayTrial) -> float:
    """Return the seconds of communication on the rank that has most."""
    return max(trial.communication)
