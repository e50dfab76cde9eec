"""The pages of `collbench copies` and `collbench latency`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from collbench.judge.stats import half_width, summarize
from collbench.judge.summary import HostShare, host_shares, share_of_all
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Run, tags
from collbench.model.units import figure, format_size
from collbench.report.text.collectives import point_figures
from collbench.report.text.frame import ending, header, sim
from collbench.report.text.layout import Block, Lines, both, legend, short, table, whole
from collbench.report.text.pairs import at_largest, operations_of, rates_line
from collbench.report.text.ranking import pair_matrix, render_bandwidths, render_matrix, unit_of, value_of
from collbench.report.text.reference import normal_line

# The page of `collbench copies`: the rates of every link or device, for each pattern and kind of copy.

_MATRICES = (Variant.PLAIN, Variant.BOTH_WAYS, Variant.STAGED)
_TABLES = {
    Variant.ONE_TO_ALL: "one to all others at once: all that a device sends",
    Variant.ALL_TO_ONE: "all others to one at once: all that a device receives",
    Variant.HOST: "h2d: from pinned host memory to the device, d2h: back",
    Variant.LOCAL: "within a device's memory; each byte is read and written",
}
# The columns of the table that compares concurrent host copies with isolated ones.
_SHARES = {
    Variant.HOST_BOTH_WAYS: "both ways",
    Variant.HOST_ALL: "all at once",
    Variant.HOST_ALL_BOTH_WAYS: "all, both ways",
}
_RANGE = ("size", "lowest", "median", "highest")
_NODES_WITH_INTERVALS = 4  # with more NUMA nodes, intervals would break 80 columns
_COPIES_LEGEND = """\
ce: copy engine; sm: a kernel's loads and stores; write: the source issues it;
read: the destination does; ±: half of the median's 95% interval"""


def copies_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: matrices of links and pairs, tables of devices; on the short page a row for each."""
    copies = [m for m in run.measured() or run.measurements if m.samples and m.point.operation.is_copy]
    for operation in operations_of(copies)[:1]:
        yield from short(rates_line(run, [one for one in copies if one.point.operation is operation]))
    yield from whole("header", Lines(header(run)))
    yield from _copies_summary(run)
    for variant in (*_MATRICES, *_TABLES):
        measurements = [m for m in run.measured(variant) if m.point.operation.is_copy]
        if measurements:
            several = len({measurement.point.numa_node for measurement in measurements}) > 1
            tables = _nodes if several else _matrices if variant in _MATRICES else _devices
            yield from whole("matrices" if tables is _matrices else "tables", *tables(run, variant, measurements))
    yield from whole("tables", *_shares(run))
    yield from whole("tables", Text(f"\n{_COPIES_LEGEND}"))
    lacks = "skipped   copies both ways, one to all, all to one, staged, to devices: not on CPU cores"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _copies_summary(run: Run) -> Iterator[Block]:
    """Yield the short page's table of ranges, and the matrix of the first kind of copy."""
    rows = []
    for variant in (*_MATRICES, *_TABLES):
        measurements = [m for m in run.measured(variant) if m.point.operation.is_copy]
        for operation in operations_of(measurements):
            work, largest = Work(operation, variant), at_largest(measurements, operation)
            unit = unit_of(run, work, largest[0].point.size_bytes)
            figures = _least_to_most([value_of(one, unit) for one in largest], f" {unit}")
            rows.append((str(work), format_size(largest[0].point.size_bytes), *figures))
    if rows:
        yield from both("notes", *normal_line(run))
        yield from short(
            *_host_lines(run, host_shares(run)),
            Text(f"{sim(run)}copies, lowest to highest of all links or devices"),
            table("copy", *_RANGE, rows=rows, keys=2),
        )
    plain = [m for m in run.measured() if m.point.operation.is_copy and len(m.point.members) == 2]
    for operation in operations_of(plain)[:1]:
        size_bytes = at_largest(plain, operation)[0].point.size_bytes
        yield from short(Text(), render_bandwidths(run, operation, size_bytes), legend())


def _shares(run: Run) -> Iterator[RenderableType]:
    """Yield a table of concurrent host copies for each NUMA node: GB/s and the share of the isolated rate."""
    shares = host_shares(run)
    for node in dict.fromkeys(one.work.numa_node for one in shares):
        here = [one for one in shares if one.work.numa_node == node]
        variants = [variant for variant in _SHARES if any(one.work.variant is variant for one in here)]
        size = format_size(max(one.size_bytes for one in here))
        yield Text(f"\nhost at {size}, concurrently{_host_memory(run, node)}: GB/s one way, % of isolated")
        rows = []
        for device, operation in dict.fromkeys((one.device, one.work.operation) for one in here):
            by_variant = {
                one.work.variant: one for one in here if (one.device, one.work.operation) == (device, operation)
            }
            isolated = next(iter(by_variant.values())).isolated_gbs
            cells = [_cell(by_variant.get(variant)) for variant in variants]
            rows.append((run.devices[device].tag, operation, "-" if isolated is None else figure(isolated), *cells))
        heads = ("device", "copy", "isolated", *map(_SHARES.__getitem__, variants))
        yield table(*heads, rows=rows, left=heads[:2])
    yield from _host_lines(run, shares)


def _host_memory(run: Run, node: int | None) -> str:
    """Return the NUMA node of host memory if it was chosen; None is each device's own node."""
    chosen = {measurement.point.numa_node for measurement in run.measured(Variant.HOST)} - {None}
    if node is not None:
        return f" on NUMA node {node}"
    return " on own NUMA nodes" if chosen else ""


def _cell(one: HostShare | None) -> str:
    if one is None:
        return "-"
    return figure(one.gbs) if one.share is None else f"{figure(one.gbs)} {one.share:4.0%}"


def _host_lines(run: Run, shares: Sequence[HostShare]) -> Iterator[RenderableType]:
    """Yield for each NUMA node the share of their isolated rate that host copies of all devices at once keep."""
    for node in dict.fromkeys(one.work.numa_node for one in shares if one.work.variant.at_once):
        parts: list[str] = []
        for variant in (Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS):
            kept = [
                f"{name} {share:.0%}"
                for name, operation in (("h2d", Operation.H2D_CE), ("d2h", Operation.D2H_CE))
                if (share := share_of_all(shares, Work(operation, variant, node))) is not None
            ]
            if kept:
                parts.append(f"{'both ways ' if variant.opposed else ''}{', '.join(kept)}")
        if parts:
            where = f"all {len(run.devices)} at once{_host_memory(run, node)}"
            yield Lines(f"host      {where}: {'; '.join(parts)} of isolated{sim(run, ' (sim)')}")


def _matrices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield the matrix of each kind of copy on links or pairs, its range and its widest interval."""
    for operation in operations_of(measurements):
        largest = at_largest(measurements, operation)
        size_bytes = largest[0].point.size_bytes
        unit = unit_of(run, Work(operation, variant), size_bytes)
        low, middle, high = _least_to_most([value_of(one, unit) for one in largest])
        half = max(half_width(one) for one in largest)
        within = f"each ±{half:.1%} at most" if np.isfinite(half) else "too few trials for intervals"
        yield Text()
        yield render_bandwidths(run, operation, size_bytes, variant)
        yield Text(f"{low} to {high}, median {middle}; {within}")
    yield legend()


def _devices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    operations = operations_of(measurements)
    size_bytes = max(measurement.point.size_bytes for measurement in measurements)
    unit = unit_of(run, Work(operations[0], variant), size_bytes)
    yield Text(f"\n{variant} at {format_size(size_bytes)}, {unit} ({_TABLES[variant]})")
    largest = [at_largest(measurements, operation) for operation in operations]
    columns = [{m.point.members[0]: _with_interval(m, unit) for m in points} for points in largest]
    rows = (
        (device.tag, *(values.get(position, "-") for values in columns)) for position, device in enumerate(run.devices)
    )
    yield table("device", *operations, rows=rows)


def _nodes(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield copies to and from the memory of each NUMA node: a row for each device and kind of copy."""
    size_bytes = max(measurement.point.size_bytes for measurement in measurements)
    unit = unit_of(run, measurements[0].point.work, size_bytes)
    size = format_size(size_bytes)
    yield Text(f"\n{variant} at {size} by NUMA node of the pinned memory, {unit} (h2d: from it, d2h: to it)")
    nodes = sorted(
        {measurement.point.numa_node for measurement in measurements}, key=lambda node: -1 if node is None else node
    )
    heads = ("device", "copy", *("anywhere" if node is None else f"node {node}" for node in nodes))
    operations = operations_of(measurements)
    printed = _with_interval if len(nodes) <= _NODES_WITH_INTERVALS else _middle
    figures = {
        (m.point.members[0], m.point.work): printed(m, unit) for op in operations for m in at_largest(measurements, op)
    }
    rows = (
        (device.tag, operation.value, *(figures.get((at, Work(operation, variant, node)), "-") for node in nodes))
        for at, device in enumerate(run.devices)
        for operation in operations
    )
    yield table(*heads, rows=rows, left=heads[:2])


def _with_interval(measurement: Measurement, unit: str) -> str:
    half, middle = half_width(measurement), _middle(measurement, unit)
    return f"{middle} ±{half:.1%}" if np.isfinite(half) else middle


def _least_to_most(values: Sequence[float], unit: str = "") -> list[str]:
    return [f"{figure(value)}{unit}" for value in (min(values), median(values), max(values))]


def _middle(measurement: Measurement, unit: str) -> str:
    return figure(value_of(measurement, unit))


# The page of `collbench latency`: one access, one small copy, one small all-reduce.

_CHASE = "pointer chase, ns an access (row reads column's memory; host: pinned memory)"
_TIME_LEGEND = "time: one all-reduce on the device, the slowest rank, median"
_LAUNCH_LEGEND = """; launch: one call
of an ungraphed loop, as in a training step, the mean of the ranks"""


# The names of works in the answer of the short page.
_LATENCIES = {
    Operation.ALLREDUCE: "all-reduce",
    Operation.CE_WRITE: "copy",
    Operation.CPU_WRITE: "copy",
    Operation.SM_WRITE: "copy by kernel",
    Operation.CHASE: "access",
}


def latency_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: matrices of accesses and copies, a table of pairs; the short page has a row for each."""
    yield from whole("header", Lines(header(run)))
    yield from short(*_latency_summary(run))
    matrices = [*_chase(run), *_copies(run)]
    if matrices:
        yield from both("matrices", matrices[0])
        yield from short(legend())
        yield from whole("matrices", *matrices[1:], legend())
    yield from whole("tables", *_allreduce(run))
    lacks = "skipped   pointer chase: not on CPU cores; their small copies run back to back, and so overlap"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _latency_summary(run: Run) -> Iterator[RenderableType]:
    """Yield a line with the median of each kind of latency, and a table of their ranges."""
    medians: dict[str, str] = {}
    rows = []
    works = dict.fromkeys(measurement.point.work for measurement in run.measurements if measurement.samples)
    for work in sorted(works, key=lambda work: (list(Operation).index(work.operation), work.variant is Variant.HOST)):
        measurements = [m for m in run.measured(work.variant) if m.point.work == work]
        smallest = min(m.point.size_bytes for m in measurements)
        scale, unit = (1e9, " ns") if work.operation is Operation.CHASE else (1e6, " µs")
        times = [summarize(m).seconds * scale for m in measurements if m.point.size_bytes == smallest]
        figures = _least_to_most(times, unit)
        rows.append((str(work), format_size(smallest), *figures))
        medians[str(work)] = figures[1]
    if rows:
        answer = ", ".join(f"{name} {medians[work]}" for work, name in _LATENCIES.items() if work in medians)
        yield Lines(f"latency   {answer or next(iter(medians.values()))} (medians{sim(run, ', sim')})\n")
        yield table(f"{sim(run)}latency", *_RANGE, rows=rows, keys=2)


def _chase(run: Run) -> Iterator[RenderableType]:
    matrix = pair_matrix(run, Work(Operation.CHASE), 8, lambda measurement: summarize(measurement).seconds * 1e9)
    host = np.full((len(run.devices), 1), np.nan)
    for measurement in run.measured(Variant.HOST):
        if measurement.point.operation is Operation.CHASE:
            host[measurement.point.members[0], 0] = summarize(measurement).seconds * 1e9
    every = np.hstack((matrix, host))
    if np.isfinite(every).any():
        yield Text(f"\n{_CHASE}\n").append_text(render_matrix(run, every, extra=("host",), best_is_least=True))


def _copies(run: Run) -> Iterator[RenderableType]:
    for operation in Operation:
        sizes = [m.point.size_bytes for m in run.measured() if m.point.operation is operation]
        if operation.is_copy and sizes:
            matrix = pair_matrix(
                run, Work(operation), min(sizes), lambda measurement: summarize(measurement).seconds * 1e6
            )
            text = Text(f"\n{operation} of {format_size(min(sizes))}, µs (row sends to column)\n")
            yield text.append_text(render_matrix(run, matrix, best_is_least=True))


def _allreduce(run: Run) -> Iterator[RenderableType]:
    measurements = [m for m in run.measured() if m.point.operation is Operation.ALLREDUCE]
    if not measurements:
        return
    yield Text(f"\nallreduce of {format_size(measurements[0].point.size_bytes)} on each pair")
    launches = any(summarize(measurement).launch_seconds for measurement in measurements)
    heads = ("time µs", "launch µs") if launches else ("time µs",)
    rows = (
        (tags(measurement.point.members, run.devices, "-"), *map(point_figures(measurement).__getitem__, heads))
        for measurement in sorted(measurements, key=lambda m: m.point.members)
    )
    yield table("pair", *heads, rows=rows)
    yield Text(f"{_TIME_LEGEND}{_LAUNCH_LEGEND if launches else ''}")
