"""Which links and pairs differ and which tie: order, tiers and words (METHOD.md §4; docs/method.md has the rule)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from collbench.affinity.estimates import (
    FEWEST_VISITS,
    Estimate,
    Members,
    cells_of,
    differs,
    estimates,
    labels_of,
    margin,
    ties,
    tolerance,
)
from collbench.model import Measurement, Run
from collbench.operations import Operation, Variant, Work
from collbench.stats import summarize

# Where equals may look further apart than this many δ, their looking alike says nothing.
_WIDEST_NOISE = 3
_MIB = 2**20


class Relation(StrEnum):
    """How a link stands to the best of all."""

    TIED = "tied"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Standing:
    """One link, pair or device: bandwidth in GB/s with its 95 % interval, seconds, tier (1 is best), and relation."""

    members: Members
    label: str
    gbs: float
    interval: tuple[float, float] | None
    seconds: float
    tier: int
    relation: Relation

    @property
    def pair(self) -> tuple[int, int]:
        """The two members. Raises ValueError for a single device."""
        first, second = self.members
        return first, second


@dataclass(frozen=True, slots=True)
class Ranking:
    """All links, pairs or devices (`kind`) of one work and size, best first.

    Ratios: `spread` is (best − worst) / best; `delta` the difference that changes nobody's decision; `noise` how far
    apart equals may look. `visits` are the fewest that any got.
    """

    work: Work
    size_bytes: int
    kind: str
    standings: tuple[Standing, ...]
    delta: float
    noise: float
    spread: float
    visits: int

    @property
    def operation(self) -> Operation:
        """What was timed."""
        return self.work.operation

    @property
    def tiers(self) -> int:
        """How many tiers there are."""
        return self.standings[-1].tier

    @property
    def one_tier(self) -> bool:
        """True where none is distinguishable from the best; that may also mean that too little was measured."""
        return self.tiers == 1

    @property
    def all_tied(self) -> bool:
        """True where enough visits put all within δ, or within what noise makes of equals: the choice does not matter.

        It asks for the spread of all at once. Single ones may still be undecided against the best, which was picked
        for being the highest of many noisy figures. Noise that would hide three times δ proves nothing.
        """
        proves = self.visits >= FEWEST_VISITS and self.noise <= _WIDEST_NOISE * self.delta
        return self.one_tier and proves and self.spread <= max(self.delta, self.noise)

    @property
    def verdict(self) -> str:
        """Return in half a sentence whether they differ."""
        if len(self.standings) == 1:
            return f"there is one {self.kind}, so there is nothing to choose"
        if self.all_tied:
            what = "bandwidth" if self.size_bytes >= _MIB else "latency"
            noise = ", which is noise" if self.spread > self.delta else ""
            return f"all {self.kind}s tie within {self.spread:.1%}{noise}: the choice does not affect {what}"
        if self.one_tier:
            return f"no {self.kind} differs for certain: the worst looks {self.spread:.1%} slower than the best"
        return f"{self.tiers} tiers: the worst {self.kind} is {self.spread:.0%} slower than the best"


# The same statistics; a name for those whose members are directed links where the work has a direction.
LinkRanking = Ranking


def rank_links(run: Run, work: Work, size_bytes: int) -> LinkRanking | None:
    """Return what a work was measured on in tiers, None without any: directed links, unordered pairs, or devices."""
    cells = cells_of(run, work, size_bytes)
    return _ranking(work, size_bytes, kind_of(work), cells, estimates(cells, labels_of(run, cells)))


def rank_pairs(run: Run, operation: Operation, size_bytes: int) -> Ranking | None:
    """Return the unordered pairs of a run in tiers, None without any. A copy counts by its slower direction.

    A ring needs both directions.
    """
    work = Work(operation)
    cells = cells_of(run, work, size_bytes)
    found = estimates(cells, labels_of(run, cells))
    slower: dict[Members, Members] = {}
    for members in found:
        pair = (min(members), max(members))
        other = slower.get(pair)
        if other is None or (found[members].middle, members) < (found[other].middle, other):
            slower[pair] = members
    return _ranking(
        work,
        size_bytes,
        "pair",
        {pair: cells[members] for pair, members in slower.items()},
        {pair: found[members] for pair, members in slower.items()},
    )


def kind_of(work: Work) -> str:
    """Return what one standing of a work is: "device", "pair" or "link"."""
    if work.variant is Variant.HOST:
        return "device"
    return "pair" if work.operation.is_collective or work.variant is Variant.BOTH_WAYS else "link"


def _ranking(
    work: Work,
    size_bytes: int,
    kind: str,
    cells: Mapping[Members, Measurement],
    found: Mapping[Members, Estimate],
) -> Ranking | None:
    if not found:
        return None
    order = sorted(found, key=lambda members: (-found[members].middle, members))
    delta = tolerance(size_bytes)
    ordered = [found[members] for members in order]
    tiers = tiers_of(ordered, delta)
    best, worst = ordered[0], ordered[-1]
    standings = []
    for members, estimate, tier in zip(order, ordered, tiers, strict=True):
        summary = summarize(cells[members])
        relation = _relation(best, estimate, len(ordered), delta)
        standings.append(
            Standing(members, estimate.label, summary.busbw, summary.interval, summary.seconds, tier, relation)
        )
    return Ranking(
        work=work,
        size_bytes=size_bytes,
        kind=kind,
        standings=tuple(standings),
        delta=delta,
        noise=max((margin(best, other, len(ordered)) for other in ordered[1:]), default=0.0),
        spread=1 - math.exp(worst.middle - best.middle),
        visits=min(len(estimate.visits) for estimate in ordered),
    )


def tiers_of(ordered: Sequence[Estimate], delta: float) -> list[int]:
    """Return each link's tier; one opens where a link differs from its tier's *top*, so that steps do not chain.

    It begins below the widest gap between the two: links of one kind whose rate is near the limit stay together, though
    only some of them differ for certain.
    """
    starts = [0]
    for place, estimate in enumerate(ordered):
        while differs(ordered[starts[-1]], estimate, len(ordered), delta):
            starts.append(_below_widest_gap(ordered, starts[-1], place))
    return [bisect_right(starts, place) for place in range(len(ordered))]


def _below_widest_gap(ordered: Sequence[Estimate], top: int, place: int) -> int:
    """Return where the widest gap between neighbours ends, from a top to a place below; of equal ones the last."""
    gaps = {p: round(ordered[p - 1].middle - ordered[p].middle, 9) for p in range(top + 1, place + 1)}
    return max(gaps, key=lambda p: (gaps[p], p))


def _relation(best: Estimate, other: Estimate, count: int, delta: float) -> Relation:
    if differs(best, other, count, delta):
        return Relation.DIFFERENT
    return Relation.TIED if ties(best, other, delta) else Relation.UNDECIDED
