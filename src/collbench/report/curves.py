"""Bandwidth over message size, as figures: what every place of a work reached, and few lines that stand for many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from collbench.affinity.estimates import Members
from collbench.affinity.tiers import kind_of, rank_links
from collbench.affinity.verdicts.limits import path_limit
from collbench.affinity.verdicts.readings import Facts
from collbench.machine.theory import slot
from collbench.model import Run
from collbench.operations import Operation, Variant, Work
from collbench.report.notes import place
from collbench.stats import Summary, summarize

# A reader tells so many lines apart in a terminal without colour; the other tiers are in the table of tiers.
_MOST_LINES = 4
_MOST_NAMES = 6  # of a communicator; more break 80 columns
_MANY = (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE)


@dataclass(frozen=True, slots=True)
class Spread:
    """What several places reached at one size: the median's seconds, and lowest, median and highest GB/s (busbw)."""

    seconds: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line over the sizes in bytes, ascending. `name` says whose it is, `mark` is one character for it."""

    name: str
    mark: str
    places: int
    points: dict[int, Spread]


Curves = dict[Members, dict[int, Summary]]


def works_of(run: Run) -> list[Work]:
    """Return the works that hold a sample, in the model's order: plain ones first."""
    works = {found.cell.work for found in run.measurements if found.samples}
    return sorted(works, key=work_order)


def work_order(work: Work) -> tuple[int, int, int]:
    """Return the place of a work in the model's order: plain ones first, then by operation and NUMA node."""
    node = -1 if work.numa_node is None else work.numa_node
    return list(Variant).index(work.variant), list(Operation).index(work.operation), node


def curves_of(run: Run, work: Work) -> Curves:
    """Return each place's figures by size in bytes, both ascending. A place is the members of a cell."""
    found: Curves = defaultdict(dict)
    for measurement in run.measured(work.variant):
        if measurement.cell.work == work:
            found[measurement.cell.members][measurement.cell.size_bytes] = summarize(measurement)
    return {members: dict(sorted(found[members].items())) for members in sorted(found)}


def sizes_of(work: Work, curves: Curves) -> list[int]:
    """Return the sizes in bytes, ascending, that most links, pairs or devices have; without these most sets.

    At another size fewer would be compared.
    """
    counts = Counter(size for curve in (_alone(work, curves) or curves).values() for size in curve)
    return sorted(size for size, count in counts.items() if count == max(counts.values()))


def place_name(run: Run, work: Work, members: Members) -> str:
    """Name a place as `notes.place` does; of a larger communicator the first ranks, the last, and how many."""
    if len(members) <= _MOST_NAMES or not work.operation.is_collective:
        return place(run.devices, work, members)
    tags = [run.devices[member].tag for member in members]
    return f"{', '.join(tags[: _MOST_NAMES - 3])}, … {tags[-1]} ({len(tags)} ranks)"


def limits_of(run: Run, work: Work, places: Iterable[Members]) -> dict[Members, float]:
    """Return the theory of each place in GB/s, none for what takes another way than the path, or many.

    Of a copy both ways at once it is twice the path's. Between more than two GPUs it depends on rings and switches.
    """
    if work.operation is Operation.CHASE or work.variant in (*_MANY, Variant.STAGED):
        return {}
    facts = Facts(run)
    ways = 2 if work.variant is Variant.BOTH_WAYS else 1
    found = {members: _limit(facts, members) for members in places}
    return {members: ways * limit for members, limit in found.items() if limit is not None}


def _limit(facts: Facts, members: Members) -> float | None:
    if len(members) == 1:
        told = slot(facts.run.devices[members[0]])
        return told.gbs if told is not None and facts.run.backend != "host" else None
    return path_limit(facts, (members[0], members[1])) if len(members) == 2 else None


def spreads(curves: Iterable[Mapping[int, Summary]]) -> dict[int, Spread]:
    """Return what these places reached together, by size in bytes, ascending."""
    by_size: dict[int, list[Summary]] = defaultdict(list)
    for curve in curves:
        for size, summary in curve.items():
            by_size[size].append(summary)
    return {size: _spread(by_size[size]) for size in sorted(by_size)}


def _spread(found: Sequence[Summary]) -> Spread:
    rates = [summary.busbw for summary in found]
    return Spread(median(summary.seconds for summary in found), min(rates), median(rates), max(rates))


def lines_of(run: Run, work: Work, curves: Curves) -> list[Line]:
    """Return a line for each tier of links, pairs or devices, and for each larger number of ranks; four at most.

    Tiers are those at the largest size that most places have. Of many the best three and the worst are kept.
    """
    alone = _alone(work, curves)
    lines = _tier_lines(run, work, alone) if alone else []
    groups: dict[int, list[Members]] = defaultdict(list)
    for members in curves.keys() - alone.keys():
        groups[len(members)].append(members)
    for count, places in sorted(groups.items()):
        name = f"{count} ranks" if work.operation.is_collective else str(work.variant)
        lines.append(_line(name, "abcdefghij"[len(lines) % 10], places, curves))
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], lines[-1]]


def _tier_lines(run: Run, work: Work, alone: Curves) -> list[Line]:
    ranking = rank_links(run, work, sizes_of(work, alone)[-1])
    standings = {} if ranking is None else {standing.members: standing.tier for standing in ranking.standings}
    tiers: dict[int, list[Members]] = defaultdict(list)
    for members in alone.keys() & standings.keys():
        tiers[standings[members]].append(members)
    kind = f"all {kind_of(work)}s" if len(tiers) == 1 else ""
    return [_line(kind or f"tier {tier}", str(tier % 10), tiers[tier], alone) for tier in sorted(tiers)]


def _line(name: str, mark: str, places: Sequence[Members], curves: Curves) -> Line:
    return Line(name, mark, len(places), spreads(curves[members] for members in places))


def _alone(work: Work, curves: Curves) -> Curves:
    """Return the places that `affinity` ranks: links, pairs, or of host copies devices."""
    wanted = 1 if work.variant is Variant.HOST else 2
    return {some: curve for some, curve in curves.items() if work.variant not in _MANY and len(some) == wanted}
