"""Rates or times in a line, and as a matrix of devices × devices: a heat map, which is readable without color."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from collbench.judge.stats import summarize
from collbench.judge.tiers import Ranking, Relation, kind_of
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Members, Run
from collbench.model.units import NARROW, TELLING_BYTES, amount, figure, format_size, grouped, span
from collbench.report.frame import device_names, sim
from collbench.report.layout import Figures, Legend, Lines, Part

# Beyond this many devices a decimal place would break 80 columns.
DEVICES_WITH_DECIMALS = 9
_KINDS = {
    Variant.PLAIN: "row sends to column",
    Variant.STAGED: "row sends to column, through host memory",
    Variant.BOTH_WAYS: "both ways at once, their sum",
}


def render_bandwidths(
    run: Run, operation: Operation, size_bytes: int, variant: Variant = Variant.PLAIN
) -> Iterator[Part]:
    """Yield a title and the matrix, in GB/s or for a small size in µs, at most 80 columns wide for 16 devices."""
    work = Work(operation, variant)
    unit = unit_of(run, work, size_bytes)
    figures: dict[Members, float] = {
        timed.point.members: value_of(timed, unit)
        for timed in run.measured(variant)
        if timed.point.work == work and timed.point.size_bytes == size_bytes and len(timed.point.members) == 2
    }
    kind = "a communicator per pair, busbw" if operation.is_collective else _KINDS[variant]
    kind = "an access: row reads column's memory" if operation is Operation.CHASE else kind
    kind = kind if unit == "GB/s" else kind.removesuffix(", busbw").removesuffix(", their sum")
    yield Text(f"{operation} at {format_size(size_bytes)}, {unit} ({kind})")
    yield _matrix(run, figures, unit, symmetric=operation.is_collective or variant is Variant.BOTH_WAYS)


def _matrix(run: Run, figures: Mapping[Members, float], unit: str, *, symmetric: bool) -> Figures:
    """Return figures of pairs as a matrix, row = source, shaded by shares of the best, in blocks of at most 80 columns.

    What was not measured is a dash; a `symmetric` figure fills both halves.
    """
    matrix = np.full((len(run.devices),) * 2, np.nan)
    for (source, destination), entry in figures.items():
        matrix[source, destination] = entry
        if symmetric:
            matrix[destination, source] = entry
    tags = [device.tag for device in run.devices]
    wide = len(tags) <= DEVICES_WITH_DECIMALS
    # Past nine devices the columns are too narrow for "GPU10": the bare index stands for it.
    heads = tags if wide else [str(device.index) for device in run.devices]
    cells = [["-" if np.isnan(value) else figure(value, decimals=int(wide)) for value in row] for row in matrix]
    least, gap = (7, 2) if wide else (4, 1)
    columns = zip(heads, zip(*cells, strict=True), strict=True)
    widths = [max(least, len(head) + gap, *(len(cell) + 1 for cell in column)) for head, column in columns]
    first = max(map(len, tags))
    known = matrix[np.isfinite(matrix)]
    best = (known.min() if unit in _PER_SECOND else known.max()) if known.size else 0.0
    shares = best / matrix if unit in _PER_SECOND else matrix / best if best else np.full(matrix.shape, np.nan)
    style = _styles(shares)
    text = Figures()
    # All blocks have about as many columns: 16 of four digits need two blocks. Long names (of hosts) leave room for
    # one.
    each = ceil(len(widths) / ceil(sum(widths) / max(NARROW - first, *widths)))
    for start in range(0, len(widths), each):
        block = range(start, min(start + each, len(widths)))
        text.append("\n" if start else "").append(" " * first)
        text.append("".join(f"{heads[column]:>{widths[column]}}" for column in block))
        for tag, row, colours in zip(tags, cells, style, strict=True):
            text.append(f"\n{tag:<{first}}")
            for column in block:
                text.append(f"{row[column]:>{widths[column]}}", style=colours[column])
    return text


# A ranking as a matrix.

_PER_SECOND = {"µs": 1e6, "ns": 1e9}


def unit_of(run: Run, work: Work, size_bytes: int) -> str:
    """Return the unit that says most: GB/s, below 1 MiB µs, for the pointer chase ns.

    With many devices the chase is in µs, too: over PCIe it takes 1100 ns, and four digits for each of 16 devices would
    break 80 columns.
    """
    if work.operation is Operation.CHASE and len(run.devices) <= DEVICES_WITH_DECIMALS:
        return "ns"
    return "GB/s" if size_bytes >= TELLING_BYTES else "µs"


def value(seconds: float, gbs: float, unit: str) -> float:
    """Return the figure in a unit that `unit_of` returns."""
    return gbs if unit not in _PER_SECOND else seconds * _PER_SECOND[unit]


def value_of(measurement: Measurement, unit: str) -> float:
    """Return a data point's figure in a unit that `unit_of` returns."""
    summary = summarize(measurement)
    return value(summary.seconds, summary.busbw, unit)


def heat_map(run: Run, ranking: Ranking) -> Figures:
    """Return a ranking of links or pairs as a heat map in the unit that says most."""
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    figures: dict[Members, float] = {pair.members: value(pair.seconds, pair.gbs, unit) for pair in ranking.standings}
    return _matrix(run, figures, unit, symmetric=ranking.kind == "pair")


# The shades of all matrices.

# Viridis in 256-color numbers, which every terminal with colors has; safe for the color-blind, because lightness rises
# with the value. Each shade begins at a share of the best.
_RAMP = (
    (0.98, "black on color(227)"),
    (0.95, "black on color(149)"),
    (0.90, "black on color(77)"),
    (0.75, "black on color(36)"),
    (0.50, "white on color(31)"),
    (0.25, "white on color(60)"),
    (0.00, "white on color(54)"),
)
_ALIKE = 0.02  # figures within 2% have one shade, even if a step lies between them


def _styles(shares: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return the style of each share of the best, of any shape; "" for NaN.

    From the best down, shares within 2% of the first of their group have its shade.
    """
    shades = np.full(shares.shape, "", dtype=object)
    left = np.isfinite(shares)
    while left.any():
        top = shares[left].max()
        group = left & (shares >= top * (1 - _ALIKE))
        shades[group] = next(style for least, style in _RAMP if top >= least)
        left &= ~group
    return shades


def legend(before: str = "") -> Legend:
    """Return a line that explains the shades; `before` are line breaks."""
    text = Legend(f"{before}shade: share of the best")
    for share, style in _RAMP:
        text.append(" ")
        text.append(f" {share:.0%} " if share else " less ", style=style)
    return text


def undecided(column: Iterable[str]) -> Iterator[Text]:
    """Yield what the word says, if a table's column has it; only whole pages have the legend of all such words."""
    if Relation.UNDECIDED.value in column:
        yield Text("undecided: neither tied nor significantly different; more trials may decide")


def rates_line(run: Run, largest: Sequence[Measurement]) -> Lines:
    """Return one operation's rate at its largest size: "allreduce, 8 GPUs: 362.4 GB/s busbw at 1G".

    Of several sets of devices it has the range, and names the slowest. Small messages have a time instead.
    """
    work, size_bytes = largest[0].point.work, largest[0].point.size_bytes
    unit = unit_of(run, work, size_bytes)
    figures = sorted((value_of(measurement, unit), measurement.point.members) for measurement in largest)
    (least, first), (most, last) = figures[0], figures[-1]
    rates = f"{span((least, most), figure)} {unit}"
    busbw = " busbw" if work.operation.is_collective and unit == "GB/s" else ""
    slowest = device_names(run.devices, work, first if unit == "GB/s" else last)
    sets = [*dict.fromkeys(timed.point.members for timed in largest)]  # host copies of one GPU may be on several nodes
    where = f", slowest on {slowest}" if least < most and len(sets) > 1 else ""
    said = f"{work}, {_counted_sets(run, work, sets)}: {rates}{busbw}"
    return Lines(f"{said} at {format_size(size_bytes)}{where}{sim(run, ' (sim)')}")


def _counted_sets(run: Run, work: Work, sets: Sequence[Members]) -> str:
    """Return on what a work was measured: "8 GPUs", "28 pairs", "2 sets of 4 GPUs"."""
    device = "core" if run.devices[0].is_core else "GPU"
    sizes = {len(members) for members in sets}
    if sizes <= {1, 2} and len(sets) > 1:
        kind = kind_of(work)
        return amount(len(sets), device if kind == "device" else kind)
    each = amount(max(sizes), device)
    return each if len(sets) == 1 else f"{len(sets)} sets of {each}"


def at_largest(measurements: Iterable[Measurement]) -> dict[Operation, list[Measurement]]:
    """Return each operation's data points of its largest size; operations in the order of the model."""
    points = grouped(((timed.point.operation, timed.point.size_bytes), timed) for timed in measurements)
    largest = {operation: points[operation, size] for operation, size in sorted(points, key=lambda key: key[1])}
    return {operation: largest[operation] for operation in Operation if operation in largest}
