"""What a GPU does in a step: compute, communication that no compute hides, copies, nothing. Pure.

Each moment counts once, on the GPU's own clock: the union of its intervals, not their sum (docs/job-page.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.jobs.job import MICRO, GpuTime, JobRank

Intervals = NDArray[np.float64]  # of beginnings and ends, µs, shape (n, 2)


class Timeline:
    """What ran on a GPU, from the first beginning to the last end."""

    def __init__(self, compute: Intervals, communication: Intervals, copies: Intervals) -> None:
        """Take the intervals, which may overlap one another, in any order."""
        parts = (compute, communication, copies)
        self._moments = np.concatenate([part.T.ravel() for part in parts])
        classes = np.repeat(range(len(parts)), [2 * len(part) for part in parts])
        change = np.zeros((len(parts), len(classes)))
        change[classes, range(len(classes))] = np.concatenate([np.repeat([1.0, -1.0], len(part)) for part in parts])
        order = np.argsort(self._moments, kind="stable")
        self._moments = self._moments[order]
        runs = change[:, order].cumsum(axis=1)[:, :-1] > 0
        computes, sends, copying = runs
        states = np.stack([computes, computes & sends, sends & ~computes, copying & ~sends & ~computes, ~runs.any(0)])
        self._passed = np.pad((states * np.diff(self._moments)).cumsum(axis=1), ((0, 0), (1, 0)))

    @property
    def ends(self) -> tuple[float, float]:
        """Its beginning and end, µs."""
        return float(self._moments[0]), float(self._moments[-1])

    def between(self, start: float, end: float) -> GpuTime:
        """Return how the time from one moment to another passed."""
        both = np.array([start, end])
        times = [float(np.diff(np.interp(both, self._moments, passed))[0]) for passed in self._passed]
        return GpuTime(*(round(time, 3) for time in times))

    def exposed(self, pieces: Intervals) -> NDArray[np.float64]:
        """Return how much of each piece of a kernel of communication ran exposed, µs."""
        begins, ends = np.interp(pieces.T, self._moments, self._passed[2])
        passed: NDArray[np.float64] = ends - begins
        return passed


def pieces(kernels: Intervals) -> Intervals:
    """Return the part of each kernel in which none that began earlier still ran: each moment is in one of them."""
    order = np.lexsort((kernels[:, 1], kernels[:, 0]))
    starts, ends = kernels[order].T
    until = np.maximum.accumulate(ends)
    begins = np.maximum(starts, np.concatenate([[-np.inf], until[:-1]]))
    found = np.empty_like(kernels)
    found[order] = np.stack([begins, np.maximum(begins, ends)], axis=1)
    return found


@dataclass(frozen=True, slots=True)
class Exposure:
    """How a step passes on a rank's GPU, in seconds: compute, exposed communication, copies and idle add up to it.

    `whole`: there is no step, and it is the whole trace. `overlapped` communication is part of `compute`, and
    `exposed_waiting` for other ranks of `exposed`, None if some call's transfer is unknown.
    """

    rank: int
    step: float
    exposed: float
    compute: float
    overlapped: float
    exposed_waiting: float | None
    copies: float
    idle: float
    whole: bool


def exposure(rank: JobRank, repetitions: Collection[int], waiting: float | None) -> Exposure | None:
    """Return how a rank's step passes, or without a step its whole trace; None if the source has no compute.

    Each part is what it adds to the median of the parts before it, with exposed communication first: they add up to the
    median step, and `exposed` is its own median. One step cannot stand for all: a rank waits in some and not in others.
    `waiting` are the seconds that all its kernels wait in a step, None if some call's transfer is unknown.
    """
    samples = [] if rank.step is None else [sample for sample in rank.step.samples if sample.repetition in repetitions]
    known = [sample.gpu_time for sample in samples if sample.gpu_time]
    passed = known or ([] if rank.gpu_time is None else [rank.gpu_time])
    if not passed:
        return None
    parts = np.array([(step.exposed, step.compute, step.copies, step.idle) for step in passed]) * MICRO
    until = np.median(parts.cumsum(axis=1), axis=0)
    exposed, compute, copies, idle = map(float, np.diff(until, prepend=0.0))
    hidden = float(np.median([step.overlapped for step in passed])) * MICRO
    waits = [sum(sample.exposed_waiting) for sample in samples if sample.gpu_time and sample.exposed_waiting]
    bare = None if waiting is None or not waits else min(exposed, waiting, float(np.median(waits)) * MICRO)
    return Exposure(
        rank.rank,
        step=float(until[-1]),
        exposed=exposed,
        compute=compute,
        overlapped=min(hidden, compute),
        exposed_waiting=bare,
        copies=copies,
        idle=idle,
        whole=not known,
    )
