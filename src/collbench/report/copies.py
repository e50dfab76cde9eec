"""The page of `collbench copies`: for each pattern and kind of copy, what every link or device carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.model import Measurement, Run
from collbench.operations import Operation, Variant, Work
from collbench.report.blocks import Lines
from collbench.report.header import header
from collbench.report.matrix import render_bandwidths
from collbench.report.notes import notes
from collbench.report.shades import legend
from collbench.stats import half_width, summarize, trial_seconds
from collbench.units import figure, format_size

_MATRICES = (Variant.PLAIN, Variant.BOTH_WAYS, Variant.STAGED)
_TABLES = {
    Variant.ONE_TO_ALL: "one to all others at once: all that a device sends",
    Variant.ALL_TO_ONE: "all others to one at once: all that a device receives",
    Variant.HOST: "h2d: from pinned host memory to the device, d2h: back",
}
# More nodes, with intervals, would break 80 columns.
_NODES_WITH_INTERVALS = 4
_LEGEND = """\
ce: copy engine; sm: a kernel's loads and stores; write: the source issues it;
read: the destination does; ±: half of the median's 95 % interval"""


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks: matrices of links and pairs, tables of devices."""
    yield Lines(header(run))
    for variant in (*_MATRICES, *_TABLES):
        found = [m for m in run.measured(variant) if m.cell.operation.is_copy]
        if found:
            several = len({measurement.cell.numa_node for measurement in found}) > 1
            tables = _nodes if several else _matrices if variant in _MATRICES else _devices
            yield from tables(run, variant, found)
    yield Text(f"\n{_LEGEND}")
    lines = notes(run)
    if run.backend == "host":
        lines.append("not here  copies both ways, one to all, all to one, staged, to devices: cores have none")
    if lines:
        yield Lines("\n" + "\n".join(lines))


def _matrices(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    for operation in _operations(found):
        largest = _at_largest(found, operation)
        yield Text()
        yield render_bandwidths(run, operation, largest[0].cell.size_bytes, variant)
        yield Text(_spread(largest))
    if found:
        yield legend()


def _spread(largest: Sequence[Measurement]) -> str:
    """Return the range of the figures above in GB/s, and the widest interval."""
    rates = [summarize(found).busbw for found in largest]
    told = f"{figure(min(rates))} to {figure(max(rates))}, median {figure(float(np.median(rates)))}"
    return f"{told}; {_within(max(half_width(trial_seconds(found)) for found in largest))}"


def _within(half: float) -> str:
    return f"each ±{half:.1%} at most" if np.isfinite(half) else "too few visits for intervals"


def _devices(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    size = format_size(max(measurement.cell.size_bytes for measurement in found))
    yield Text(f"\n{variant} at {size}, GB/s ({_TABLES[variant]})")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("device")
    columns = {}
    for operation in _operations(found):
        table.add_column(operation.value, justify="right")
        columns[operation] = {m.cell.members[0]: _figure(m) for m in _at_largest(found, operation)}
    for position, device in enumerate(run.devices):
        table.add_row(device.tag, *(values.get(position, "-") for values in columns.values()))
    yield table


def _nodes(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield copies to and from the memory of each NUMA node: a row for each device and kind of copy."""
    size = format_size(max(measurement.cell.size_bytes for measurement in found))
    yield Text(f"\n{variant} at {size} by NUMA node of the pinned memory, GB/s (h2d: from it, d2h: to it)")
    nodes = sorted({measurement.cell.numa_node for measurement in found}, key=lambda node: -1 if node is None else node)
    table = Table(box=None, pad_edge=False, header_style="")
    for head in ("device", "copy"):
        table.add_column(head)
    for node in nodes:
        table.add_column("anywhere" if node is None else f"node {node}", justify="right")
    told = _figure if len(nodes) <= _NODES_WITH_INTERVALS else _rate
    cells = {(m.cell.members[0], m.cell.work): told(m) for op in _operations(found) for m in _at_largest(found, op)}
    for position, device in enumerate(run.devices):
        for operation in _operations(found):
            works = (Work(operation, variant, node) for node in nodes)
            table.add_row(device.tag, operation.value, *(cells.get((position, work), "-") for work in works))
    yield table


def _figure(measurement: Measurement) -> str:
    half = half_width(trial_seconds(measurement))
    return f"{_rate(measurement)} ±{half:.1%}" if np.isfinite(half) else _rate(measurement)


def _rate(measurement: Measurement) -> str:
    return figure(summarize(measurement).busbw)


def _operations(found: Sequence[Measurement]) -> list[Operation]:
    """Return the operations present, in the order of the model."""
    present = {measurement.cell.operation for measurement in found}
    return [operation for operation in Operation if operation in present]


def _at_largest(found: Sequence[Measurement], operation: Operation) -> list[Measurement]:
    these = [measurement for measurement in found if measurement.cell.operation is operation]
    largest = max(measurement.cell.size_bytes for measurement in these)
    return [measurement for measurement in these if measurement.cell.size_bytes == largest]
