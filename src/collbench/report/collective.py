"""The tables of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.dtypes import DTYPE_BYTES
from collbench.machine.impossible import by_cell
from collbench.model import Chosen, Measurement, Run
from collbench.operations import Operation, Variant
from collbench.report.blocks import Lines
from collbench.report.header import header
from collbench.report.notes import notes
from collbench.stats import summarize
from collbench.units import format_size

# nccl-tests, doc/PERFORMANCE.md
_FACTORS = {
    Operation.ALLREDUCE: "2(n-1)/n",
    **dict.fromkeys((Operation.BROADCAST, Operation.REDUCE, Operation.SENDRECV), "1"),
}
_SHARED_FACTOR = "(n-1)/n"
# In place their ranks overwrite what others still read: nccl-tests times that and checks nothing, and so do we.
_UNCHECKED_IN_PLACE = (Operation.ALLTOALL, Operation.SENDRECV)


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks, one table for each communicator."""
    yield Lines(header(run))
    groups = dict.fromkeys((m.cell.operation, m.cell.members) for m in run.measurements)
    for operation, members in sorted(groups):
        found = [m for m in run.measurements if (m.cell.operation, m.cell.members) == (operation, members)]
        yield Lines(f"\n{_title(run, operation, members, found)}")
        yield _table(run, found)
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield Text(_legend(run, operation))
    lines = notes(run)
    if lines:
        yield Lines("\n" + "\n".join(lines))


def _title(run: Run, operation: Operation, members: tuple[int, ...], found: Sequence[Measurement]) -> str:
    words = [run.settings.dtype]
    words += [run.settings.redop] * operation.reduces
    words += [f"root {run.settings.root} ({run.devices[members[run.settings.root]].tag})"] * operation.rooted
    if any(sample.concurrent for measurement in found for sample in measurement.samples):
        words.append("other sets busy at the same time")
    tags = ", ".join(run.devices[member].tag for member in members)
    return f"{operation} over {tags} ({len(members)} ranks): {', '.join(words)}"


def _legend(run: Run, operation: Operation) -> str:
    """Explain the columns in lines of at most 80 characters."""
    launches = any(s.launch_seconds is not None for m in run.measurements for s in m.samples)
    lines = ["time: one collective on the device, the slowest rank, median;"]
    if launches:
        lines = [
            "time: one collective on the device, the slowest rank, median; launch: one call",
            "of an ungraphed loop, as a training step makes it;",
        ]
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block;")
    lines.append(f"busbw = algbw × {_FACTORS.get(operation, _SHARED_FACTOR)}; interval: 95 % of busbw, GB/s;")
    lines.append("wrong: elements that failed verification")
    return "\n".join(lines)


def _table(run: Run, measurements: Sequence[Measurement]) -> Table:
    columns = _columns(run, sorted(measurements, key=_row_order))
    table = Table(box=None, pad_edge=False, header_style="")
    for head, values in columns.items():
        if head in ("size", "wrong") or any(value not in ("", "-") for value in values):
            table.add_column(head, justify="left" if head in ("in place", "flags") else "right")
    kept = [columns[str(column.header)] for column in table.columns]
    for row in zip(*kept, strict=True):
        table.add_row(*row)
    return table


def _row_order(measurement: Measurement) -> tuple[int, bool]:
    return measurement.cell.size_bytes, measurement.cell.variant is Variant.IN_PLACE


def _columns(run: Run, cells: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the cells of each column; those without a single figure are left out of the table."""
    beaten = by_cell(run)
    flags = (_flags(found, impossible=found.cell in beaten) for found in cells)
    rows = [
        {**_identity(run, found), **_figures(found), **_choice(run, found), "flags": words}
        for found, words in zip(cells, flags, strict=True)
    ]
    return {head: [row[head] for row in rows] for head in rows[0]}


def _identity(run: Run, measurement: Measurement) -> dict[str, str]:
    cell = measurement.cell
    blocks = len(cell.members) if cell.operation.shares else 1
    return {
        "size": format_size(cell.size_bytes),
        "in place": "yes" if cell.variant is Variant.IN_PLACE else "",
        "count": str(cell.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks),
    }


def _figures(measurement: Measurement) -> dict[str, str]:
    if not measurement.samples:
        return dict.fromkeys(("time µs", "launch µs", "algbw", "busbw", "interval", "wrong"), "-")
    summary = summarize(measurement)
    unchecked = measurement.cell.variant is Variant.IN_PLACE and measurement.cell.operation in _UNCHECKED_IN_PLACE
    return {
        "time µs": f"{summary.seconds * 1e6:.2f}",
        "launch µs": f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-",
        "algbw": f"{summary.algbw:.2f}",
        "busbw": f"{summary.busbw:.2f}",
        "interval": "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "wrong": "-" if measurement.wrong is None or unchecked else str(measurement.wrong),
    }


def _choice(run: Run, measurement: Measurement) -> dict[str, str]:
    """Return what NCCL said that it chose for this message."""
    cell = measurement.cell
    wanted = (cell.operation, len(cell.members), cell.size_bytes)
    told = (chosen for chosen in run.chosen if (chosen.operation, chosen.ranks, chosen.size_bytes) == wanted)
    chosen: Chosen | None = next(told, None)
    if chosen is None:
        return dict.fromkeys(("algo", "proto", "ch"), "-")
    return {"algo": chosen.algorithm, "proto": chosen.protocol, "ch": str(chosen.channels)}


def _flags(measurement: Measurement, *, impossible: bool) -> str:
    """Return the first words of what was wrong: "failed", "throttled, shared"; the text stands below the table."""
    words = ["impossible"] * impossible + [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    return ", ".join(dict.fromkeys((["failed"] if measurement.failure else []) + words))
