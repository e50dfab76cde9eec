"""The table of `collbench allreduce` and `collbench broadcast`: nccl-tests' columns, and the interval of busbw."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.dtypes import DTYPE_BYTES
from collbench.model import Measurement, Operation, Run
from collbench.report.header import header
from collbench.stats import Summary, summarize
from collbench.units import format_size

_LEGEND = """\
time: one collective on the device, the slowest rank, median; launch: one call
of an ungraphed loop, as a training step makes it; busbw = algbw × {factor};
interval: 95 % of busbw, GB/s; wrong: elements that failed verification"""
_FACTORS = {Operation.ALLREDUCE: "2(n-1)/n", Operation.BROADCAST: "1"}


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks, one table for each communicator."""
    yield Text(header(run))
    groups = dict.fromkeys((m.cell.operation, m.cell.members) for m in run.measurements)
    for operation, members in sorted(groups):
        yield Text(f"\n{operation} over {', '.join(run.devices[m].tag for m in members)} ({len(members)} ranks)")
        yield _table(run, [m for m in run.measurements if (m.cell.operation, m.cell.members) == (operation, members)])
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield Text(_LEGEND.format(factor=_FACTORS[operation]))
    for skipped in run.skipped:
        yield Text(f"skipped   {skipped.what}: {skipped.reason}")


def _table(run: Run, measurements: list[Measurement]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    launches = any(summarize(m).launch_seconds for m in measurements)
    heads = ["size", "count", "type", "redop", "time us", *(["launch us"] if launches else [])]
    for head in (*heads, "algbw", "busbw", "interval", "wrong"):
        table.add_column(head, justify="right")
    for measurement in sorted(measurements, key=lambda m: m.cell.size_bytes):
        table.add_row(*_row(run, measurement, summarize(measurement), launches=launches))
    return table


def _row(run: Run, measurement: Measurement, summary: Summary, *, launches: bool) -> tuple[str, ...]:
    size, dtype = measurement.cell.size_bytes, run.settings.dtype
    redop = run.settings.redop if measurement.cell.operation is Operation.ALLREDUCE else "none"
    launch = f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-"
    return (
        format_size(size),
        str(size // DTYPE_BYTES[dtype]),
        dtype,
        redop,
        f"{summary.seconds * 1e6:.2f}",
        *([launch] if launches else []),
        f"{summary.algbw:.2f}",
        f"{summary.busbw:.2f}",
        "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        str(measurement.wrong),
    )
