"""Matrices of devices × devices: rates or times as a heat map, shaded by share of the best; readable without color."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from collbench.judge.stats import summarize
from collbench.judge.tiers import Members, Ranking
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Run
from collbench.model.units import TELLING_BYTES, figure, format_size
from collbench.report.prose import NARROW
from collbench.report.text.layout import styles

Matrix = NDArray[np.float64]

# Beyond this many devices a decimal place would break 80 columns.
DEVICES_WITH_DECIMALS = 9
_KINDS = {
    Variant.PLAIN: "row sends to column",
    Variant.STAGED: "row sends to column, through host memory",
    Variant.BOTH_WAYS: "both ways at once, their sum",
}


def pair_matrix(run: Run, work: Work, size_bytes: int, figure: Callable[[Measurement], float]) -> Matrix:
    """Return a figure of each data point on two devices: shape (devices, devices), row = source, NaN if not measured.

    A collective on a pair and a copy both ways fill both halves.
    """
    figures: dict[Members, float] = {
        one.point.members: figure(one)
        for one in run.measured(work.variant)
        if one.point.work == work and one.point.size_bytes == size_bytes and len(one.point.members) == 2
    }
    return _filled(run, figures, symmetric=work.operation.is_collective or work.variant is Variant.BOTH_WAYS)


def _filled(run: Run, figures: Mapping[Members, float], *, symmetric: bool) -> Matrix:
    matrix = np.full((len(run.devices),) * 2, np.nan)
    for (src, dst), entry in figures.items():
        matrix[src, dst] = entry
        if symmetric:
            matrix[dst, src] = entry
    return matrix


def render_bandwidths(run: Run, operation: Operation, size_bytes: int, variant: Variant = Variant.PLAIN) -> Text:
    """Return the matrix in GB/s, or µs for a small size, as text, at most 80 columns wide for 16 devices."""
    work = Work(operation, variant)
    unit = unit_of(run, work, size_bytes)
    matrix = pair_matrix(run, work, size_bytes, lambda measurement: value_of(measurement, unit))
    kind = "a communicator per pair, busbw" if operation.is_collective else _KINDS[variant]
    kind = kind if unit == "GB/s" else kind.removesuffix(", busbw").removesuffix(", their sum")
    text = Text(f"{operation} at {format_size(size_bytes)}, {unit} ({kind})\n")
    return text.append_text(render_matrix(run, matrix, best_is_least=unit in _PER_SECOND))


def render_matrix(
    run: Run,
    matrix: Matrix,
    *,
    extra: Sequence[str] = (),
    best_is_least: bool = False,
    shaded: bool = True,
    printed: Callable[[float], str] | None = None,
) -> Text:
    """Return a matrix with its heads, `shaded` by shares of the best, in blocks of at most 80 columns.

    `extra` are the heads of columns beyond the devices', `printed` returns the text of a figure.
    """
    tags = [device.tag for device in run.devices]
    wide = len(tags) <= DEVICES_WITH_DECIMALS
    # Past nine devices the columns are too narrow for "GPU10": the bare index stands for it.
    heads = [*(tags if wide else [str(device.index) for device in run.devices]), *extra]
    text_of = printed or (lambda value: figure(value, decimals=int(wide)))
    cells = [["-" if np.isnan(value) else text_of(value) for value in row] for row in matrix]
    least, gap = (7, 2) if wide else (4, 1)
    columns = zip(heads, zip(*cells, strict=True), strict=True)
    widths = [max(least, len(head) + gap, *(len(cell) + 1 for cell in column)) for head, column in columns]
    first = max(map(len, tags))
    known = matrix[np.isfinite(matrix)]
    best = (known.min() if best_is_least else known.max()) if known.size else 0.0
    shares = best / matrix if best_is_least else matrix / best if best else np.full(matrix.shape, np.nan)
    style = styles(shares) if shaded else np.full(matrix.shape, "", dtype=object)
    blocks = []
    # As many columns in each block: 16 of four digits need two blocks.
    each = ceil(len(widths) / ceil(sum(widths) / (NARROW - first)))
    for start in range(0, len(widths), each):
        block = range(start, min(start + each, len(widths)))
        text = Text(" " * first + "".join(f"{heads[column]:>{widths[column]}}" for column in block))
        for tag, row, colours in zip(tags, cells, style, strict=True):
            text.append(f"\n{tag:<{first}}")
            for column in block:
                text.append(f"{row[column]:>{widths[column]}}", style=colours[column])
        blocks.append(text)
    return Text("\n").join(blocks)


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


def heat_map(run: Run, ranking: Ranking, *, unit: str = "GB/s") -> Text:
    """Return a ranking of links or pairs as a heat map in a unit that `unit_of` returns."""
    figures: dict[Members, float] = {one.members: value(one.seconds, one.gbs, unit) for one in ranking.standings}
    matrix = _filled(run, figures, symmetric=ranking.kind == "pair")
    return render_matrix(run, matrix, best_is_least=unit in _PER_SECOND)


def tier_map(run: Run, ranking: Ranking) -> Text:
    """Return the tier of each link or pair as a matrix, 1 is the best: what shades show, for readers without color."""
    tiers: dict[Members, float] = {one.members: float(one.tier) for one in ranking.standings}
    matrix = _filled(run, tiers, symmetric=ranking.kind == "pair")
    return render_matrix(run, matrix, shaded=False, printed=lambda tier: f"{tier:.0f}")
