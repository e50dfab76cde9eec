"""The page of `collbench latency`: one access, one small copy, one small all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.model import Run
from collbench.operations import Operation, Variant, Work
from collbench.report.blocks import Lines
from collbench.report.header import header
from collbench.report.matrix import Matrix, pair_matrix, render_matrix
from collbench.report.notes import notes
from collbench.report.shades import legend
from collbench.stats import summarize
from collbench.units import format_size

_CHASE = "pointer chase, ns an access (row reads column's memory; host: pinned memory)"
_LEGEND = """\
time: one all-reduce on the device, the slowest rank, median; launch: one call
of an ungraphed loop, as a training step makes it"""


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks: two kinds of matrices and a table of pairs."""
    yield Lines(header(run))
    yield from _chase(run)
    yield from _copies(run)
    if any(len(found.cell.members) == 2 for found in run.measurements):
        yield legend()
    yield from _allreduce(run)
    lines = notes(run)
    if run.backend == "host":
        lines.append("not here  pointer chase: cores have none; their small copies run back to back, so overlap")
    if lines:
        yield Lines("\n" + "\n".join(lines))


def _chase(run: Run) -> Iterator[RenderableType]:
    chase = Work(Operation.CHASE)
    matrix = pair_matrix(run, chase, 8, lambda found: summarize(found).seconds * 1e9)
    host = _host_memory(run)
    if np.isfinite(matrix).any() or np.isfinite(host).any():
        both = np.hstack((matrix, host))
        yield Text(f"\n{_CHASE}\n").append_text(render_matrix(run, both, extra=("host",), best_is_least=True))


def _host_memory(run: Run) -> Matrix:
    """Return each device's ns an access of host memory, shape (devices, 1)."""
    column = np.full((len(run.devices), 1), np.nan)
    for found in run.measured(Variant.HOST):
        if found.cell.operation is Operation.CHASE:
            column[found.cell.members[0], 0] = summarize(found).seconds * 1e9
    return column


def _copies(run: Run) -> Iterator[RenderableType]:
    for operation in Operation:
        sizes = [m.cell.size_bytes for m in run.measured() if m.cell.operation is operation]
        if operation.is_copy and sizes:
            matrix = pair_matrix(run, Work(operation), min(sizes), lambda found: summarize(found).seconds * 1e6)
            text = Text(f"\n{operation} of {format_size(min(sizes))}, µs (row sends to column)\n")
            yield text.append_text(render_matrix(run, matrix, best_is_least=True))


def _allreduce(run: Run) -> Iterator[RenderableType]:
    found = [m for m in run.measured() if m.cell.operation is Operation.ALLREDUCE]
    if not found:
        return
    yield Text(f"\nallreduce of {format_size(found[0].cell.size_bytes)} on each pair")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("pair")
    launches = any(summarize(measurement).launch_seconds for measurement in found)
    for head in ("time µs", *(["launch µs"] if launches else [])):
        table.add_column(head, justify="right")
    for measurement in sorted(found, key=lambda m: m.cell.members):
        summary = summarize(measurement)
        launch = f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-"
        name = "-".join(run.devices[member].tag for member in measurement.cell.members)
        table.add_row(name, f"{summary.seconds * 1e6:.2f}", *([launch] if launches else []))
    yield table
    yield Text(_LEGEND if launches else _LEGEND.partition("; launch")[0])
