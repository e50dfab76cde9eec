"""What repeats in a rank's sequence of calls, the order of its phases, and how the times of a phase spread."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from collbench.jobs.job import Spread
from collbench.jobs.streams import Numbers

# A sequence is folded where it comes at least twice and covers so many calls.
_WORTH = 4
_KEPT, _FEWEST_KEPT = 8192, 32  # calls, and repetitions, of a phase that are kept whole: the last ones


def kept_of(repetitions: int, period: int) -> range:
    """Return which repetitions of a phase of so many calls are kept whole: in a row, for steps that span two."""
    return range(max(0, repetitions - max(_FEWEST_KEPT, _KEPT // period)), repetitions)


@dataclass(slots=True)
class PhaseOrder:
    """A rank's phases by their symbols, numbered as they are first met, and the order in which they came."""

    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)  # a phase, and how often it was repeated there

    def add(self, symbols: tuple[int, ...], repetitions: int) -> None:
        """Note that a phase came next, so many times in a row."""
        number = self.numbers.setdefault(symbols, len(self.numbers))
        if self.order and self.order[-1][0] == number:
            repetitions += self.order.pop()[1]
        self.order.append((number, repetitions))


def fold(symbols: Numbers) -> Iterable[tuple[int, int, int]]:
    """Yield (start, period, repetitions) in order: the sequence as what repeats in it, the widest first.

    Time grows with the square of its length; a stream's tail has 32,768 calls at most.
    """
    pending = [(0, len(symbols))]
    pieces: list[tuple[int, int, int]] = []
    floor = max(_WORTH, len(symbols) // 256)  # else a tail without order would be searched again for each small piece
    while pending:
        start, end = pending.pop()
        run = _widest(symbols[start:end], floor) if end - start >= floor else None
        if run is None:
            pieces += [(start, end - start, 1)] if end > start else []
            continue
        offset, period, repetitions = run
        pieces.append((start + offset, period, repetitions))
        pending += [(start, start + offset), (start + offset + period * repetitions, end)]
    return sorted(pieces)


def _widest(symbols: Numbers, floor: int) -> tuple[int, int, int] | None:
    """Return where, with which period and how often the sequence repeats that covers most calls; None for none."""
    best: tuple[int, int, int] | None = None
    covered = floor - 1
    length = len(symbols)
    if len(np.unique(symbols)) == length:  # nothing comes twice
        return None
    for period in range(1, length // 2 + 1):
        if length <= covered:
            break
        breaks = np.flatnonzero(symbols[period:] != symbols[:-period])
        edges = np.concatenate([[-1], breaks, [length - period]])
        widths = np.diff(edges) - 1  # calls that equal the one a period later, in a row
        widest = int(np.argmax(widths))
        width = int(widths[widest]) + period
        if width >= 2 * period and width // period * period > covered:
            covered = width // period * period
            best = (int(edges[widest]) + 1, period, width // period)
    return best


def spreads(times: Numbers) -> list[Spread | None]:
    """Return the spread of each column of times in µs, a row for each repetition, NaN where unknown; None of none."""
    repetitions, length = times.shape
    if not repetitions:
        return [None] * length
    ordered = np.sort(times, axis=0)  # NaN last
    counts, columns = (~np.isnan(ordered)).sum(axis=0), np.arange(length)
    last = np.maximum(counts - 1, 0)
    median = (ordered[last // 2, columns] + ordered[counts // 2, columns]) / 2
    mean = np.nansum(ordered, axis=0) / np.maximum(counts, 1)
    figures = np.stack([ordered[0], median, mean, ordered[last, columns]], axis=1).tolist()
    return [
        Spread(count, *(round(figure, 3) for figure in four)) if count else None
        for count, four in zip(counts.tolist(), figures, strict=True)
    ]


def micros(times: Numbers) -> tuple[float, ...]:
    """Return times in µs for a file, 0 where one is unknown; () if all are."""
    if not np.isfinite(times).any():
        return ()
    return tuple(round(time, 3) if math.isfinite(time) else 0.0 for time in times.tolist())
