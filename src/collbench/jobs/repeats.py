"""A rank's calls as phases: what repeats in their sequence, in which order it came, and its usual times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from collbench.jobs.job import Phase, Position, Sample
from collbench.jobs.streams import Numbers

# A sequence is folded where it comes at least twice and covers so many calls.
_WORTH = 4
_KEPT, _MIN_KEPT = 8192, 32  # calls, and repetitions, of a phase that are kept whole: the last ones
_FOLDED_AT_ONCE = 2**15  # calls: the time that fold() takes grows with the square, and a trace may have a million
_LONGEST_PERIOD, _NEARLY = 2**12, 0.9  # calls, and the share of them that come again


@dataclass(frozen=True, slots=True)
class Times:
    """When calls were made and ran, one after another, µs on the job's clock, NaN where unknown: shape (calls,).

    All calls of a repetition began later on their GPU than `begins` says, by the `ahead` of its last call.
    """

    starts: Numbers
    pauses: Numbers  # since the call before
    gpu: Numbers
    begins: Numbers
    ahead: Numbers


@dataclass(slots=True)
class PartialPhase:
    """One phase while it is put together: what its source says of its repetitions, and where others stand in Times."""

    repetitions: int = 0
    samples: list[Sample] = field(default_factory=list)
    pauses: list[float | None] | None = None
    gpu: list[float | None] | None = None
    numbers: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)


class Folded:
    """A rank's phases while they are put together, by their symbols, and how they came.

    A symbol is a call of the job's table × 2, + 1 where NCCL got it together with the one before it.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._phases: list[PartialPhase] = []
        self._order: list[tuple[int, int]] = []

    def add(self, symbols: tuple[int, ...], repetitions: int) -> PartialPhase:
        """Note that a phase came next, so many times in a row."""
        number = self._numbers.setdefault(symbols, len(self._phases))
        if number == len(self._phases):
            self._phases.append(PartialPhase())
        partial = self._phases[number]
        partial.repetitions += repetitions
        if self._order and self._order[-1][0] == number:
            repetitions += self._order.pop()[1]
        self._order.append((number, repetitions))
        return partial

    def fold(self, symbols: Numbers) -> None:
        """Add calls that came one by one as what repeats in them."""
        for first in range(0, len(symbols), _FOLDED_AT_ONCE):
            for start, period, repetitions in fold(symbols[first : first + _FOLDED_AT_ONCE]):
                at = first + start
                partial = self.add(tuple(symbols[at : at + period].tolist()), repetitions)
                partial.begins += range(at, at + period * repetitions, period)
                partial.numbers += range(partial.repetitions - repetitions, partial.repetitions)

    def phases(self, times: Times) -> tuple[Phase, ...]:
        """Return the phases; `times` are of the calls that came one by one."""
        return tuple(_phase(*named, times) for named in zip(self._numbers, self._phases, strict=True))

    @property
    def order(self) -> tuple[tuple[int, int], ...]:
        """JobRank.order."""
        return () if len(self._order) == len(self._phases) else tuple(self._order)


def _phase(symbols: tuple[int, ...], partial: PartialPhase, times: Times) -> Phase:
    length = len(symbols)
    rows = np.array(partial.begins, int)[:, None] + np.arange(length)
    pauses, gpu = partial.pauses or typical(times.pauses[rows]), partial.gpu or typical(times.gpu[rows])
    positions = tuple(
        Position(symbol // 2, symbol % 2 == 1, pause, took)
        for symbol, pause, took in zip(symbols, pauses, gpu, strict=True)
    )
    kept = slice(-max(_MIN_KEPT, _KEPT // length), None)  # in a row, for steps that span two
    samples = [
        sample(number, times.starts[row], times.gpu[row], times.begins[row] + times.ahead[row[-1]])
        for number, row in zip(partial.numbers[kept], rows[kept], strict=True)
        if np.isfinite(times.starts[row]).all()
    ]
    whole = sorted([*partial.samples, *samples], key=lambda kept: kept.repetition)
    return Phase(positions, partial.repetitions, tuple(whole))


def sample(number: int, starts: Numbers, gpu: Numbers, begins: Numbers) -> Sample:
    """Return a repetition with its times, µs, NaN where unknown."""
    return Sample(number, micros(starts), micros(gpu), micros(begins))


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
        again = symbols[period:] == symbols[:-period]
        if np.count_nonzero(again) + period <= covered:  # as after most periods
            continue
        breaks = np.flatnonzero(~again)
        edges = np.concatenate([[-1], breaks, [length - period]])
        widths = np.diff(edges) - 1  # calls that equal the one a period later, in a row
        widest = int(np.argmax(widths))
        width = int(widths[widest]) + period
        if width >= 2 * period and width // period * period > covered:
            covered = width // period * period
            best = (int(edges[widest]) + 1, period, width // period)
    return best


def periods(symbols: Numbers) -> list[int]:
    """Return the lengths after which a sequence comes again nearly throughout, the shortest first."""
    seen = symbols[: 4 * _LONGEST_PERIOD]
    lengths = range(1, min(_LONGEST_PERIOD, len(seen) // 2) + 1)
    return [
        length
        for length in lengths
        if np.count_nonzero(seen[length:] == seen[:-length]) >= _NEARLY * (len(seen) - length)
    ]


def typical(times: Numbers) -> list[float | None]:
    """Return the median of each column of times in µs, a row for each repetition, NaN where unknown; None of none."""
    return [None if math.isnan(middle) else round(middle, 3) for middle in medians(times, 0).tolist()]


def micros(times: Numbers) -> tuple[float, ...]:
    """Return times in µs for a file, 0 where one is unknown; () if all are."""
    if not np.isfinite(times).any():
        return ()
    return tuple(round(time, 3) if math.isfinite(time) else 0.0 for time in times.tolist())


def medians(values: Numbers, axis: int) -> Numbers:
    """Return medians of the known values, NaN where none is."""
    unknown = np.isnan(values).all(axis=axis)
    if not values.shape[axis]:  # numpy would warn of it
        return np.full(unknown.shape, np.nan)
    middle = np.nanmedian(np.where(np.expand_dims(unknown, axis), 0.0, values), axis=axis)
    return np.where(unknown, np.nan, middle)
