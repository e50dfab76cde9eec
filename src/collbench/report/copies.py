"""The pages of `collbench copies` and `latency`: the figures of every link or device, for each kind of copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np
from rich.text import Text

from collbench.judge.diagnose import Diagnosis
from collbench.judge.stats import half_width, summarize
from collbench.judge.summary import host_shares
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Run, capabilities
from collbench.model.units import every, figure, format_size
from collbench.report.frame import ending, header, sim
from collbench.report.layout import Lines, Page, Part, both, prose, short, table, whole
from collbench.report.matrix import at_largest, legend, rates_line, render_bandwidths, unit_of, value_of
from collbench.report.verdicts import normal_line

_MATRICES = (Variant.PLAIN, Variant.BOTH_WAYS, Variant.STAGED)
_TABLES = {
    Variant.ONE_TO_ALL: "one to all others at once: all that a device sends",
    Variant.ALL_TO_ONE: "all others to one at once: all that a device receives",
    Variant.HOST: "h2d: from pinned host memory to the device, d2h: back",
    Variant.HOST_BOTH_WAYS: "one way, while the same device copies the other way",
    Variant.HOST_ALL: "one device's, while all others copy the same way",
    Variant.HOST_ALL_BOTH_WAYS: "one device's one way, while all devices copy both ways",
    Variant.LOCAL: "within a device's memory; each byte is read and written",
}
_RANGE = ("size", "lowest", "median", "highest")
_COPIES_LEGEND = """\
ce: copy engine; sm: a kernel's loads and stores; write: the source issues it;
read: the destination does; ±: half of the median's 95% interval"""


def copies_page(diagnosis: Diagnosis) -> Page:
    """Yield the page's blocks: matrices of links and pairs, tables of devices; on the short page a row for each."""
    run = diagnosis.run
    copies = [m for m in run.measured() or run.measurements if m.samples and m.point.operation.is_copy]
    for largest in [*at_largest(copies).values()][:1]:
        yield rates_line(run, largest)
    yield from whole("header", Lines(header(run)))
    timed = {kind: [m for m in run.measured(kind) if m.point.operation.is_copy] for kind in (*_MATRICES, *_TABLES)}
    yield from _copies_summary(diagnosis, timed)
    for variant, measurements in timed.items():
        if measurements:
            tables = _matrices if variant in _MATRICES else _devices
            yield from whole("matrices" if tables is _matrices else "tables", *tables(run, variant, measurements))
    yield from whole("tables", Text(), *_host_lines(run), Text(f"\n{_COPIES_LEGEND}"))
    lacks = "skipped   copies both ways, one to all, all to one, staged, to devices: not on CPU cores"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _copies_summary(diagnosis: Diagnosis, timed: Mapping[Variant, Sequence[Measurement]]) -> Page:
    """Yield the short page's table of ranges, and the matrix of the first kind of copy."""
    run = diagnosis.run
    rows = [
        _range_row(run, Work(operation, variant), points)
        for variant, measurements in timed.items()
        if not variant.covered
        for operation, points in at_largest(measurements).items()
    ]
    if rows:
        yield from both("notes", *normal_line(diagnosis))
        yield from short(
            *_host_lines(run),
            Text(f"{sim(run)}copies, lowest to highest of all links or devices"),
            table("copy", *_RANGE, rows=rows, keys=2),
        )
    plain = [m for m in timed[Variant.PLAIN] if len(m.point.members) == 2]
    for operation, largest in [*at_largest(plain).items()][:1]:
        yield from short(Text(), *render_bandwidths(run, operation, largest[0].point.size_bytes), legend())


def _range_row(run: Run, work: Work, measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return a work's row at one size: lowest, median and highest figure in the unit that says most."""
    size_bytes = measurements[0].point.size_bytes
    unit = unit_of(run, work, size_bytes)
    figures = _least_to_most([value_of(measurement, unit) for measurement in measurements], f" {unit}")
    return (str(work), format_size(size_bytes), *figures)


def _host_memory(run: Run, node: int | None) -> str:
    """Return the NUMA node of host memory if it was chosen; None is each device's own node."""
    chosen = {measurement.point.numa_node for measurement in run.measured(Variant.HOST)} - {None}
    if node is not None:
        return f" on NUMA node {node}"
    return " on own NUMA nodes" if chosen else ""


def _host_lines(run: Run) -> Iterator[Part]:
    """Yield for each NUMA node the share of their isolated rate that host copies of all devices at once keep."""
    shares = host_shares(run)
    for node in sorted({work.numa_node for work in shares}, key=_node_order):
        parts: list[str] = []
        for variant in (Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS):
            kept = [
                f"{name} {shares[work]:.0%}"
                for name, operation in (("h2d", Operation.H2D_CE), ("d2h", Operation.D2H_CE))
                if (work := Work(operation, variant, node)) in shares
            ]
            if kept:
                parts.append(f"{'both ways ' if variant.opposed else ''}{', '.join(kept)}")
        if parts:
            where = f"{every(len(run.devices))} at once{_host_memory(run, node)}"
            yield Lines(f"host      {where}: {'; '.join(parts)} of isolated{sim(run, ' (sim)')}")


def _node_order(node: int | None) -> int:
    return -1 if node is None else node


def _matrices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[Part]:
    """Yield the matrix of each kind of copy on links or pairs, its range and its widest interval."""
    for operation, largest in at_largest(measurements).items():
        size_bytes = largest[0].point.size_bytes
        unit = unit_of(run, Work(operation, variant), size_bytes)
        low, middle, high = _least_to_most([value_of(measurement, unit) for measurement in largest])
        half = max(half_width(measurement) for measurement in largest)
        within = f"each ±{half:.1%} at most" if np.isfinite(half) else "too few trials for intervals"
        yield Text()
        yield from render_bandwidths(run, operation, size_bytes, variant)
        yield Text(f"{low} to {high}, median {middle}; {within}")
    yield legend()


def _devices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[Part]:
    """Yield a table of devices and kinds of copy; one for each NUMA node whose memory was used."""
    size_bytes = max(measurement.point.size_bytes for measurement in measurements)
    for node in sorted({measurement.point.numa_node for measurement in measurements}, key=_node_order):
        largest = at_largest(measurement for measurement in measurements if measurement.point.numa_node == node)
        first = next(iter(largest))
        unit = unit_of(run, Work(first, variant), size_bytes)
        about = _HOST_CHASE if first is Operation.CHASE else _TABLES[variant]
        where = _host_memory(run, node) if variant.host_memory else ""
        yield Text(f"\n{variant}{where} at {format_size(size_bytes)}, {unit} ({about})")
        cells: dict[int, dict[Operation, str]] = defaultdict(dict)
        for operation, points in largest.items():
            for timed in points:
                half, middle = half_width(timed), figure(value_of(timed, unit))
                cells[timed.point.members[0]][operation] = f"{middle} ±{half:.1%}" if np.isfinite(half) else middle
        rows = ((device.tag, *(cells[at].get(of, "-") for of in largest)) for at, device in enumerate(run.devices))
        yield table("device", *largest, rows=rows)


def _least_to_most(values: Sequence[float], unit: str = "") -> list[str]:
    return [f"{figure(value)}{unit}" for value in (min(values), median(values), max(values))]


# The page of `collbench latency`: one access, one small copy, one small all-reduce.

_HOST_CHASE = "accesses to pinned host memory"
# The names of works in the answer of the short page.
_LATENCIES = {
    Operation.ALLREDUCE: "all-reduce",
    Operation.CE_WRITE: "copy",
    Operation.CPU_WRITE: "copy",
    Operation.SM_WRITE: "copy by kernel",
    Operation.CHASE: "access",
}


def latency_page(run: Run) -> Page:
    """Yield the page's blocks: matrices of accesses, copies and all-reduces; the short page has a row for each."""
    yield from _latency_summary(run)
    yield from whole("header", Lines(header(run)))
    chase = [measurement for measurement in run.measured() if measurement.point.operation is Operation.CHASE]
    copies = [measurement for measurement in run.measured() if measurement.point.operation.is_copy]
    allreduces = [measurement for measurement in run.measured() if measurement.point.operation is Operation.ALLREDUCE]
    for index, points in enumerate(filter(None, (chase, copies, allreduces))):
        matrices = _matrices(run, Variant.PLAIN, points)
        yield from both("matrices", *matrices) if index == 0 else whole("matrices", *matrices)
    yield from whole("tables", *_launched(run))
    if host := run.measured(Variant.HOST):
        yield from whole("tables", *_devices(run, Variant.HOST, host))
    lacks = "skipped   pointer chase: not on CPU cores; their small copies run back to back, and so overlap"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _latency_summary(run: Run) -> Page:
    """Yield a line with the median of each kind of latency, and on the short page a table of their ranges."""
    rows = []
    works = dict.fromkeys(measurement.point.work for measurement in run.measurements if measurement.samples)
    for work in sorted(works, key=lambda work: (list(Operation).index(work.operation), work.variant is Variant.HOST)):
        measurements = [m for m in run.measured(work.variant) if m.point.work == work]
        smallest = min(m.point.size_bytes for m in measurements)
        rows.append(_range_row(run, work, [m for m in measurements if m.point.size_bytes == smallest]))
    medians = {row[0]: row[3] for row in rows}
    if rows:
        answer = ", ".join(f"{name} {medians[work]}" for work, name in _LATENCIES.items() if work in medians)
        yield Lines(f"latency   {answer or next(iter(medians.values()))} (medians{sim(run, ', sim')})\n")
        yield from short(table(f"{sim(run)}latency", *_RANGE, rows=rows, keys=2))


def _launched(run: Run) -> Iterator[Text]:
    """Yield how long ungraphed all-reduces take: as in a training step, which launches each."""
    summaries = [summarize(timed) for timed in run.measured() if timed.point.operation is Operation.ALLREDUCE]
    launches = [1e6 * summary.launch_seconds for summary in summaries if summary.launch_seconds]
    if launches:
        low, middle, high = _least_to_most(launches)
        yield prose(f"one call of an ungraphed loop, mean of the ranks: {low} to {high} µs, median {middle}")
