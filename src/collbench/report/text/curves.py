"""Bandwidth over message size: the figures of every set of devices, and the few lines that stand for many."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.judge.diagnose.readings import Facts
from collbench.judge.stats import Summary, summarize
from collbench.judge.tiers import Members, Ranking, kind_of, labels_of, rank_links, work_order
from collbench.machine.theory import memory_gbs, slot
from collbench.model.capabilities import capabilities
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import Run
from collbench.model.units import figure, fixed, format_size
from collbench.report import sentences
from collbench.report.text.frame import alarm, device_names, header, origin, sim
from collbench.report.text.layout import Block, Lines, both, legend, short, table, whole
from collbench.report.text.measured import rates_line
from collbench.report.text.ranking import answer, section, tier_map, unit_of, value

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


# The page of `collbench show --operation`: heat maps and tiers of one operation, and its bandwidth over size.


_MOST_FAILURES = 8
_FEW_TIERS, _FEW_SIZES = 4, 8  # on the short page
_MOST_LIMITS = 3  # labels whose theory is named


def page(run: Run, works: Sequence[Work], size_bytes: int | None) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: each work at `size_bytes`, or at its largest and smallest size and over all sizes.

    The short page has the first work at its largest size, and its figures over sizes.
    """
    yield from alarm(run)
    yield from short(_answer(run, works[0], size_bytes))
    yield from whole("header", Lines(header(run)))
    mapped = False
    for number, work in enumerate(works):
        curves = curves_of(run, work)
        full = sizes_of(work, curves)
        for size in [size_bytes] if size_bytes is not None else dict.fromkeys((full[-1], full[0])):
            first = number == 0 and size in (size_bytes, full[-1])
            ranking = rank_links(run, work, size)
            if ranking is not None:
                map_it = ranking.kind != "device"
                mapped = mapped or map_it
                yield from whole("tiers", *section(run, ranking, mapped=map_it))
                if map_it and ranking.tiers > 1:  # what the shades say, without color
                    yield from whole("tiers", Text("tier of each, 1 is the best"), tier_map(run, ranking))
                if first:
                    yield from short(*section(run, ranking, mapped=map_it, most_tiers=_FEW_TIERS))
                    yield from short(*([legend()] if map_it else []))
            parts = [*_unmapped(run, work, size, ranking), *_failures(run, work, size)]
            yield from both("tables", *parts) if first else whole("tables", *parts)
        if size_bytes is None and len({size for curve in curves.values() for size in curve}) > 1:
            yield from whole("tables", *_over_sizes(run, work, curves))
            if number == 0:
                # As many sizes as the short page has room for, the largest included.
                sizes = sorted({size for curve in curves.values() for size in curve}, reverse=True)
                kept = sizes[:: math.ceil(len(sizes) / _FEW_SIZES)]
                few = {devices: {size: at[size] for size in at if size in kept} for devices, at in curves.items()}
                yield from short(Text(), _table(lines_of(run, work, curves), few, limits_of(run, work, curves)))
    if mapped:
        yield from whole("tiers", legend("\n"))
    yield from short(Lines(f"\n{origin(run)}"))


def _answer(run: Run, work: Work, size_bytes: int | None) -> Text:
    """Return whether links or pairs differ at the work's largest size; of other sets of devices their rates."""
    measurements = [m for m in run.measured(work.variant) if m.point.work == work]
    size = size_bytes or sizes_of(work, curves_of(run, work))[-1]
    ranking = rank_links(run, work, size)
    if ranking is not None:
        return answer(run, ranking)
    return rates_line(run, [m for m in measurements if m.point.size_bytes == size])


def _unmapped(run: Run, work: Work, size: int, ranking: Ranking | None) -> Iterator[RenderableType]:
    """Yield a table of the sets that are on no heat map: single devices, and more than two devices."""
    mapped = {standing.members for standing in ranking.standings if ranking.kind != "device"} if ranking else set()
    measurements = [m for m in run.measured(work.variant) if m.point.work == work and m.point.size_bytes == size]
    unmapped = [measurement for measurement in measurements if measurement.point.members not in mapped]
    if not unmapped:
        return
    title = f"{sim(run)}{work} at {format_size(size)}"
    yield Text("" if ranking else f"\n{title}{', busbw' if work.operation.is_collective else ''}")
    unit = unit_of(run, work, size)
    rows = []
    for measurement in sorted(unmapped, key=lambda m: (len(m.point.members), m.point.members)):
        summary = summarize(measurement)
        figures = [figure(summary.seconds * 1e6), figure(summary.busbw)]
        figures.append("-" if summary.interval is None else " to ".join(map(figure, summary.interval)))
        if unit == "ns":
            figures = [figure(value(summary.seconds, summary.busbw, unit))]
        rows.append((abridged_device_names(run, work, measurement.point.members), *figures))
    yield table("devices", *(("ns",) if unit == "ns" else ("µs", "GB/s", "95% interval")), rows=rows)


def _failures(run: Run, work: Work, size: int) -> Iterator[Text]:
    failed = [m for m in run.measurements if m.failure and m.point.work == work and m.point.size_bytes == size]
    for measurement in failed[:_MOST_FAILURES]:
        where = device_names(run.devices, work, measurement.point.members)
        why = sentences.failure(measurement.failure, run.devices) if measurement.failure else ""
        yield Lines(f"failed    {work} at {format_size(size)} on {where}: {why}")
    if len(failed) > _MOST_FAILURES:
        yield Lines(f"failed    {len(failed) - _MOST_FAILURES} more")


def _over_sizes(run: Run, work: Work, curves: Curves) -> Iterator[RenderableType]:
    """Yield a table of the figures over sizes, and what its columns stand for."""
    what = "busbw" if work.operation.is_collective else "bandwidth"
    lines, limits = lines_of(run, work, curves), limits_of(run, work, curves)
    yield Text(f"\n{sim(run)}{work}: {what} over message size")
    yield _table(lines, curves, limits)
    labels = labels_of(run, limits)
    named = {
        "/".join(sorted({labels[devices] for devices in limits if limits[devices] == gbs})): gbs
        for gbs in sorted(set(limits.values()), reverse=True)[:_MOST_LIMITS]
    }
    if columns := _columns_legend(lines, named):
        yield Lines(columns)


def _table(lines: Sequence[Line], curves: Curves, limits: dict[Members, float]) -> Table:
    together = spreads(curves.values())
    heads = ("size", "µs", *(line.name for line in lines), "lowest", "highest", *(["of theory"] if limits else []))
    rows = []
    for size, all_of_them in together.items():
        row = [format_size(size), figure(all_of_them.seconds * 1e6)]
        row += [figure(line.points[size].middle) if size in line.points else "-" for line in lines]
        row += [figure(all_of_them.low), figure(all_of_them.high)]
        shares = [curves[devices][size].busbw / limit for devices, limit in limits.items() if size in curves[devices]]
        if limits:
            row.append(f"{median(shares):.1%}" if shares else "-")
        rows.append(row)
    return table(*heads, rows=rows, left=())


def _columns_legend(lines: Sequence[Line], limits: Mapping[str, float]) -> str:
    """Return what the columns stand for; `limits` are GB/s by the labels of the paths that have them, "NV18"."""
    entries = [f"{line.name}: median of {line.sets}" for line in lines if line.sets > 1]
    if limits:
        entries.append("theory: " + ", ".join(f"{fixed(gbs, 6)} GB/s {name}".rstrip() for name, gbs in limits.items()))
    return "; ".join(entries)
