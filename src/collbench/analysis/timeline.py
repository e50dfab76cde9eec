"""One recorded step as bars: what each rank sent when, and how long its kernel ran. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isfinite

from collbench.analysis.job import MICRO, shown_phase
from collbench.model.job import Job, Sample, Unknown


@dataclass(frozen=True, slots=True)
class Bar:
    """One call: when the host made it, seconds from the timeline's start, and its kernel's seconds, None if unknown.

    The kernel may have begun later than the host's call: only its length is known.
    """

    call: int
    start: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One repetition of the step on the ranks that kept it. `seconds` is its length.

    Without `common_clock` each rank counts from its own first call.
    """

    repetition: int
    lanes: tuple[tuple[int, tuple[Bar, ...]], ...]
    seconds: float
    common_clock: bool


def timeline(job: Job, rank: int | None = None) -> Timeline | None:
    """Return the repetition that most ranks kept whole; None where none did, or nobody knows when calls were made.

    With `rank` that rank's alone.
    """
    if Unknown.PAUSES in job.unknown:
        return None
    kept: dict[int, dict[int, tuple[Sample, tuple[int, ...]]]] = {}
    hosts = {}
    for one in sorted(job.ranks, key=lambda one: one.rank):
        phase = shown_phase(one)
        if phase is None or rank not in (None, one.rank):
            continue
        hosts[one.rank] = one.host
        calls = tuple(position.call for position in phase.positions)
        kept[one.rank] = {
            sample.repetition: (sample, calls) for sample in phase.samples if all(map(isfinite, sample.starts))
        }
    counts = Counter(repetition for samples in kept.values() for repetition in samples)
    if not counts:
        return None
    repetition = max(counts, key=lambda one: (counts[one], -one))
    found = {number: samples[repetition] for number, samples in kept.items() if repetition in samples}
    names = {hosts[number] for number in found}
    common = len(found) == 1 or (len(names) == 1 and names != {""})
    first = min(min(sample.starts) for sample, _ in found.values())
    lanes = tuple(
        (number, _bars(sample, calls, first if common else min(sample.starts)))
        for number, (sample, calls) in found.items()
    )
    seconds = max(bar.start + (bar.seconds or 0.0) for _, bars in lanes for bar in bars)
    return Timeline(repetition, lanes, seconds, common)


def _bars(sample: Sample, calls: tuple[int, ...], first: float) -> tuple[Bar, ...]:
    lengths = sample.gpu or (float("nan"),) * len(calls)
    return tuple(
        Bar(call, (start - first) * MICRO, length * MICRO if isfinite(length) and length > 0 else None)
        for call, start, length in zip(calls, sample.starts, lengths, strict=True)
    )
