"""Cells that belong together, judged as one: all works of a place, and all places of a work, at the largest size.

A link that is 8 % slower is so in every copy and collective on it. Each cell alone may hide that in its noise; together
they do not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from collbench.comparison.changes import Change, Found, Verdict
from collbench.comparison.estimating import reach

_MIB = 2**20  # below, time is latency, which runs keep to themselves
_TIE_ALPHA = 0.10


class Kind(StrEnum):
    """What a group's cells share."""

    PLACE = "place"
    WORK = "work"


@dataclass(frozen=True, slots=True)
class Group:
    """Cells of one place (`members`, positions of the base) or of one work, each at its work's largest size.

    `ratio` is new over base bandwidth, the mean weighted by what the cells know; `interval` holds it as those of all
    cells and groups at once with 99 %.
    """

    kind: Kind
    work: str
    members: tuple[int, ...]
    cells: int
    size_bytes: int
    ratio: float
    interval: tuple[float, float]
    delta: float
    verdict: Verdict
    regressed: bool


@dataclass(frozen=True, slots=True)
class Bunch:
    """The cells of a group before they are judged."""

    kind: Kind
    work: str
    members: tuple[int, ...]
    found: tuple[Found, ...]


def bunches(found: Sequence[Found]) -> list[Bunch]:
    """Return the groups of two cells or more; every cell has enough visits and is at its work's largest size."""
    largest: dict[str, int] = defaultdict(int)
    for one in found:
        largest[one.key.work] = max(largest[one.key.work], one.key.size_bytes)
    ours = [one for one in found if one.decided and one.key.size_bytes == largest[one.key.work] >= _MIB]
    return [bunch for bunch in (*_by_place(ours), *_by_work(ours)) if len(bunch.found) > 1]


def _by_place(found: Sequence[Found]) -> Iterator[Bunch]:
    places: dict[tuple[int, ...], list[Found]] = defaultdict(list)
    for one in found:
        places[tuple(sorted(one.key.members))].append(one)
    for members, ours in sorted(places.items()):
        yield Bunch(Kind.PLACE, "", members, tuple(ours))


def _by_work(found: Sequence[Found]) -> Iterator[Bunch]:
    works: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for one in found:
        works[one.key.work, len(one.key.members)].append(one)
    for (work, _), ours in sorted(works.items()):
        yield Bunch(Kind.WORK, work, (), tuple(ours))


def judge(bunch: Bunch, changes: Sequence[Change], alpha: float, fail_below: float) -> Group:
    """Return what became of a group. `changes` are its cells'; `alpha` is what this one answer may err."""
    differences = [one.now.middle - one.old.middle for one in bunch.found]
    weights = _weights(bunch.found)
    middle = sum(weight * difference for weight, difference in zip(weights, differences, strict=True))
    parts = [part for weight, one in zip(weights, bunch.found, strict=True) for part in one.parts(weight)]
    delta = max(change.delta for change in changes)
    far = reach(parts, alpha)
    worse, better = _beyond(-middle, far, delta), _beyond(middle, far, delta)
    # One disturbed cell must not speak for all: most of them have to agree.
    typical = median(differences)
    verdict = Verdict.UNDECIDED
    if worse and typical < -delta:
        verdict = Verdict.WORSE
    elif better and typical > delta:
        verdict = Verdict.BETTER
    elif abs(middle) + reach(parts, _TIE_ALPHA) <= delta:
        verdict = Verdict.SAME
    limit = max(delta, -math.log1p(-fail_below))
    return Group(
        kind=bunch.kind,
        work=bunch.work,
        members=bunch.members,
        cells=len(bunch.found),
        size_bytes=max(one.key.size_bytes for one in bunch.found),
        ratio=math.exp(middle),
        interval=(math.exp(middle - far), math.exp(middle + far)),
        delta=delta,
        verdict=verdict,
        regressed=_beyond(-middle, far, limit) and typical < -limit,
    )


def _beyond(slower: float, far: float, delta: float) -> bool:
    return slower > delta + far


def _weights(found: Sequence[Found]) -> list[float]:
    """Return each cell's weight, by what its error is; alike where some have none."""
    variances = [one.old.wary**2 + one.now.wary**2 for one in found]
    if min(variances) == 0:
        return [1 / len(found)] * len(found)
    inverse = [1 / variance for variance in variances]
    return [one / sum(inverse) for one in inverse]
