"""Bandwidth over message size: the figures of every set of devices, and the few lines that stand for many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from collbench.judge.diagnose.readings import Facts
from collbench.judge.stats import Summary, summarize
from collbench.judge.tiers import Members, kind_of, rank_links, work_order
from collbench.machine.theory import memory_gbs, slot
from collbench.model.capabilities import capabilities
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import Run
from collbench.report.text.frame import device_names

_MOST_LINES = 4  # as many as a reader distinguishes without color; the table of tiers has the others
_MOST_NAMES = 6  # devices of a communicator by name; more break 80 columns


@dataclass(frozen=True, slots=True)
class Spread:
    """Several sets of devices at one size: the median of their seconds; lowest, median and highest busbw in GB/s."""

    seconds: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line over sizes in bytes, ascending, that stands for some `sets` of devices."""

    name: str
    sets: int
    points: dict[int, Spread]


Curves = dict[Members, dict[int, Summary]]


def works_of(run: Run) -> list[Work]:
    """Return the works that have a sample, in the model's order: plain ones first."""
    works = {measurement.point.work for measurement in run.measurements if measurement.samples}
    return sorted(works, key=work_order)


def curves_of(run: Run, work: Work) -> Curves:
    """Return the figures of each set of devices by size in bytes, both ascending."""
    curves: Curves = defaultdict(dict)
    for measurement in run.measured(work.variant):
        if measurement.point.work == work:
            curves[measurement.point.members][measurement.point.size_bytes] = summarize(measurement)
    return {devices: dict(sorted(curves[devices].items())) for devices in sorted(curves)}


def sizes_of(work: Work, curves: Curves) -> list[int]:
    """Return the sizes in bytes, ascending, at which most links, pairs or devices were measured.

    Without links, pairs or devices, those at which most sets were.
    """
    counts = Counter(size for curve in (_alone(work, curves) or curves).values() for size in curve)
    return sorted(size for size, count in counts.items() if count == max(counts.values()))


def abridged_device_names(run: Run, work: Work, devices: Members) -> str:
    """Return `frame.device_names`, for a larger communicator shortened: "GPU0, GPU1, GPU2, … GPU7 (8 ranks)"."""
    if len(devices) <= _MOST_NAMES or not work.operation.is_collective:
        return device_names(run.devices, work, devices)
    tags = [run.devices[position].tag for position in devices]
    return f"{', '.join(tags[: _MOST_NAMES - 3])}, … {tags[-1]} ({len(tags)} ranks)"


def limits_of(run: Run, work: Work, sets: Iterable[Members]) -> dict[Members, float]:
    """Return the theory of each set of devices in GB/s, where a single path, slot or memory limits it.

    A copy both ways has twice the path's theory, a local copy half of the memory's, because it reads and writes. More
    than two GPUs depend on rings and switches, and have none.
    """
    off_path = work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS or work.variant is Variant.STAGED
    if work.operation is Operation.CHASE or off_path:
        return {}
    facts, limits = Facts(run), dict[Members, float | None]()
    for devices in sets:
        if work.variant is Variant.LOCAL:
            memory = memory_gbs(run.devices[devices[0]].name)
            limits[devices] = None if memory is None else memory / 2
        elif len(devices) == 1 and not capabilities(run.backend).cores:
            theory = slot(run.devices[devices[0]])
            limits[devices] = None if theory is None else theory.gbs
        elif len(devices) == 2:
            limits[devices] = facts.limit(devices)
    directions = 2 if work.variant is Variant.BOTH_WAYS else 1
    return {devices: directions * limit for devices, limit in limits.items() if limit is not None}


def spreads(curves: Iterable[Mapping[int, Summary]]) -> dict[int, Spread]:
    """Return the spread of these sets by size in bytes, ascending."""
    summaries_at: dict[int, list[Summary]] = defaultdict(list)
    for curve in curves:
        for size, summary in curve.items():
            summaries_at[size].append(summary)
    spread_by_size = {}
    for size, summaries in sorted(summaries_at.items()):
        rates = [summary.busbw for summary in summaries]
        spread_by_size[size] = Spread(median(one.seconds for one in summaries), min(rates), median(rates), max(rates))
    return spread_by_size


def lines_of(run: Run, work: Work, curves: Curves) -> list[Line]:
    """Return a line for each tier of links, pairs or devices, and for each larger number of ranks.

    Tiers are those at the largest size that most sets have. Of more than four lines the best three and the worst stay.
    """
    alone = _alone(work, curves)
    lines = _tier_lines(run, work, alone) if alone else []
    groups: dict[int, list[Members]] = defaultdict(list)
    for devices in curves.keys() - alone.keys():
        groups[len(devices)].append(devices)
    for count, sets in sorted(groups.items()):
        name = f"{count} ranks" if work.operation.is_collective else str(work.variant)
        lines.append(_line(name, sets, curves))
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], lines[-1]]


def _tier_lines(run: Run, work: Work, alone: Curves) -> list[Line]:
    ranking = rank_links(run, work, sizes_of(work, alone)[-1])
    standings = {} if ranking is None else {standing.members: standing.tier for standing in ranking.standings}
    tiers: dict[int, list[Members]] = defaultdict(list)
    for devices in alone.keys() & standings.keys():
        tiers[standings[devices]].append(devices)
    kind = f"all {kind_of(work)}s" if len(tiers) == 1 else ""
    return [_line(kind or f"tier {tier}", tiers[tier], alone) for tier in sorted(tiers)]


def _line(name: str, sets: Sequence[Members], curves: Curves) -> Line:
    return Line(name, len(sets), spreads(curves[devices] for devices in sets))


def _alone(work: Work, curves: Curves) -> Curves:
    """Return the sets that `rank` puts in tiers: links, pairs, or devices for host copies."""
    if work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS:
        return {}
    wanted = 1 if work.variant.endpoints is Endpoints.DEVICE else 2
    return {devices: curve for devices, curve in curves.items() if len(devices) == wanted}
