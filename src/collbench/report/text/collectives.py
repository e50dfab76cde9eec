"""The page of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import kinds_of, ordinary
from collbench.judge.stats import summarize
from collbench.judge.tiers import rank_pairs
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import DataPoint, Measurement, Run, tags
from collbench.model.skew import imbalance
from collbench.model.units import DTYPE_BYTES, format_size
from collbench.report.text.frame import ending, header, sim
from collbench.report.text.layout import Block, Lines, both, listed, short, table, whole
from collbench.report.text.pairs import at_largest, operations_of, ranked_pairs, rates_line
from collbench.report.text.reference import normal_line
from collbench.report.text.registration import comparison

# On the short page: rows of a table, and the columns that it lacks, so that its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, a table for each communicator; the short page compares several at the largest size."""
    for operation in operations_of(run.measured()):
        of_operation = [one for one in ordinary(run).measured() if one.point.operation is operation]
        yield from short(rates_line(run, of_operation))
    yield from whole("header", Lines(header(run)))
    groups = sorted(dict.fromkeys((m.point.operation, m.point.members) for m in run.measurements))
    few, impossible_points, kinds = len(groups) <= 1, by_point(run), kinds_of(run)
    if any(measurement.samples for measurement in run.measurements):
        yield from both("notes", *normal_line(run))
    if not few:
        yield from short(*_communicators(ordinary(run)))
    for operation, devices in groups:
        measurements = [m for m in run.measurements if (m.point.operation, m.point.members) == (operation, devices)]
        head = Lines(f"\n{_title(run, operation, devices, measurements, kinds)}")
        compared = comparison(run, operation, devices) if len(kinds) > 1 else []
        if compared:
            yield from both("tables", head, *compared)
            yield from whole("tables", Text(), _table(run, measurements, impossible_points))
            continue
        yield from whole("tables", head, _table(run, measurements, impossible_points))
        if few:
            # The largest size, and below it every second, third, … size, so that all rows fit.
            sizes = sorted({measurement.point.size_bytes for measurement in measurements}, reverse=True)
            kept = sizes[:: ceil(len(measurements) / _FEW_ROWS)]
            spaced = [measurement for measurement in measurements if measurement.point.size_bytes in kept]
            yield from short(head, _table(run, spaced, impossible_points, without=_ONLY_WHOLE))
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield from whole("tables", Text(_legend(run, operation)))
    if run.latencies:
        from collbench.report.text.tails import blocks as single_launches  # late: few runs need it

        yield from single_launches(run)
    yield from ending(run)


def _communicators(run: Run) -> Iterator[RenderableType]:
    """Yield the rates at the largest size: of pairs a ranking and a matrix, of larger communicators a table."""
    for operation in dict.fromkeys(m.point.operation for m in run.measurements):
        measurements = [m for m in run.measured() if m.point.operation is operation]
        pairs = [m for m in measurements if len(m.point.members) == 2]
        if pairs:
            ranking = rank_pairs(run, operation, max(m.point.size_bytes for m in pairs))
            if ranking is not None:
                yield from ranked_pairs(run, ranking)
        if len(pairs) < len(measurements):
            yield from _sets(run, operation, [m for m in measurements if len(m.point.members) != 2])


def _sets(run: Run, operation: Operation, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    largest = at_largest(measurements, operation)
    yield Text(f"\n{sim(run)}{operation} at {format_size(largest[0].point.size_bytes)}")
    figures = [(tags(one.point.members, run.devices), point_figures(one)) for one in largest]
    rows = [(name, shown["time µs"], shown["busbw"], shown["interval"]) for name, shown in figures]
    yield from listed("devices", "time µs", "busbw GB/s", "95% interval", rows=rows, most=_FEW_ROWS)


def _title(
    run: Run,
    operation: Operation,
    devices: tuple[int, ...],
    measurements: Sequence[Measurement],
    kinds: Sequence[Registration],
) -> str:
    settings = [run.settings.dtype]
    if operation.reduces:
        settings.append(run.settings.redop)
    if operation.irregular:
        largest = max((one.point for one in measurements), key=lambda point: point.size_bytes)
        uneven = f"{largest.skew}, busiest rank {imbalance(largest.blocks):.2f} × the mean"
        settings.append("uniform" if largest.skew is None else uneven)
    if len(kinds) == 1 and kinds[0] is not Registration.NONE:
        settings.append(f"memory registered as {kinds[0]}")
    if operation.rooted:
        root = run.settings.root
        settings.append(f"root {root} ({run.devices[devices[root]].tag})")
    if any(sample.concurrent for measurement in measurements for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    return f"{operation} over {tags(devices, run.devices)} ({len(devices)} ranks): {', '.join(settings)}"


def _legend(run: Run, operation: Operation) -> str:
    """Return the meaning of the columns in lines of at most 80 characters."""
    samples = [sample for measurement in run.measurements for sample in measurement.samples]
    lines = ["time: one collective on the device, the slowest rank, median;"]
    if any(sample.launch_seconds is not None for sample in samples):
        lines = [f"{lines[0]} launch: one call", "of an ungraphed loop, as in a training step, the mean of the ranks;"]
    if any(sample.plain for sample in samples):
        lines.append("between hosts, time is of plain launches, not of CUDA graph replays;")
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block;")
    if operation.irregular:
        lines.append("size: bytes of the busiest rank, the more of sent and received;")
    lines.append(f"busbw = algbw × {operation.collective.busbw.formula}; interval: 95% of busbw, GB/s;")
    lines.append("wrong: elements that failed verification")
    return "\n".join(lines)


def _table(
    run: Run,
    measurements: Sequence[Measurement],
    impossible_points: Mapping[DataPoint, Impossible],
    without: Sequence[str] = (),
) -> Table:
    """Return the table of one communicator, without columns that have no figure."""
    memory = list(Registration)
    ordered = sorted(
        measurements,
        key=lambda m: (m.point.size_bytes, m.point.variant is Variant.IN_PLACE, memory.index(m.point.registration)),
    )
    several = kinds_of(run) if len({measurement.point.registration for measurement in ordered}) > 1 else ()
    rows = [
        _columns(run, measurement, several, impossible=measurement.point in impossible_points)
        for measurement in ordered
    ]
    filled = {head for row in rows for head, text in row.items() if text not in ("", "-")} | {"size", "wrong"}
    heads = [head for head in rows[0] if head in filled and head not in without]
    keys = sum(head in ("size", "in place", "memory") for head in heads)
    shown = ("busbw GB/s" if head == "busbw" else head for head in heads)
    cells = ([row[head] for head in heads] for row in rows)
    return table(*shown, rows=cells, left=("in place", "memory", "flags"), keys=keys)


def _columns(run: Run, measurement: Measurement, kinds: Sequence[Registration], *, impossible: bool) -> dict[str, str]:
    """Return a data point's text in each column; of a flag one word, the page's notes say more."""
    point = measurement.point
    blocks = len(point.members) if point.operation.shares else 1
    wanted = (point.operation, len(point.members), point.size_bytes, point.registration)
    chosen = next(
        (one for one in run.chosen if (one.operation, one.ranks, one.size_bytes, one.registration) == wanted), None
    )
    flags = ["failed"] if measurement.failure else []
    flags += ["impossible"] if impossible else []
    flags += [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    return {
        "size": format_size(point.size_bytes),
        "in place": "yes" if point.variant is Variant.IN_PLACE else "",
        "memory": point.registration.value if kinds else "",
        "count": str(point.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks),
        **point_figures(measurement),
        "algo": chosen.algorithm if chosen else "-",
        "proto": chosen.protocol if chosen else "-",
        "ch": str(chosen.channels or "-") if chosen else "-",
        "flags": ", ".join(dict.fromkeys(flags)),
    }


def point_figures(measurement: Measurement) -> dict[str, str]:
    """Return a data point's figures by the head of their column; all "-" where nothing was measured."""
    if not measurement.samples:
        return dict.fromkeys(("time µs", "launch µs", "algbw", "busbw", "interval", "wrong"), "-")
    summary = summarize(measurement)
    unchecked = not measurement.point.work.verifiable
    return {
        "time µs": f"{summary.seconds * 1e6:.2f}",
        "launch µs": f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-",
        "algbw": f"{summary.algbw:.2f}",
        "busbw": f"{summary.busbw:.2f}",
        "interval": "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "wrong": "-" if measurement.wrong is None or unchecked else str(measurement.wrong),
    }
