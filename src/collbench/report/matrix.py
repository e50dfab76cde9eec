"""The measured matrix: bandwidth by source and destination, coloured by how it compares with the best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from collbench.model import Operation, Run
from collbench.stats import summarize
from collbench.units import format_size

Matrix = NDArray[np.float64]

# Colour-blind safe, dark to light as viridis runs; 256-colour numbers. The steps are fractions of the best link.
_SCALE = ((0.98, "color(154)"), (0.90, "color(78)"), (0.75, "color(37)"), (0.50, "color(68)"), (0.0, "color(99)"))
# Beyond this many devices a decimal place would break 80 columns.
_DEVICES_WITH_DECIMALS = 9


def bandwidth_matrix(run: Run, operation: Operation, size_bytes: int) -> Matrix:
    """Return busbw in GB/s, shape (devices, devices), row = src, column = dst; NaN where nothing was measured.

    A collective on a pair is symmetric and fills both halves.
    """
    n = len(run.devices)
    matrix = np.full((n, n), np.nan)
    for measurement in run.measurements:
        cell = measurement.cell
        if cell.operation is operation and cell.size_bytes == size_bytes and len(cell.members) == 2:
            src, dst = cell.members
            matrix[src, dst] = summarize(measurement).busbw
            if not operation.is_copy:
                matrix[dst, src] = matrix[src, dst]
    return matrix


def render_bandwidths(run: Run, operation: Operation, size_bytes: int) -> Text:
    """Return the matrix as text, at most 80 columns wide for 16 devices."""
    matrix = bandwidth_matrix(run, operation, size_bytes)
    tags = [device.tag for device in run.devices]
    width = 7 if len(tags) <= _DEVICES_WITH_DECIMALS else 4
    first = max(map(len, tags))
    kind = "row sends to column" if operation.is_copy else "a communicator per pair, busbw"
    text = Text(f"{operation} at {format_size(size_bytes)}, GB/s ({kind})\n")
    # Past nine devices the columns are too narrow for "GPU10": the bare index stands for it.
    heads = tags if width == 7 else [str(device.index) for device in run.devices]
    text.append(" " * first + "".join(f"{head:>{width}}" for head in heads))
    best = float(np.nanmax(matrix)) if np.isfinite(matrix).any() else 0.0
    for tag, row in zip(tags, matrix, strict=True):
        text.append(f"\n{tag:<{first}}")
        for value in row:
            text.append(_cell(value, width), style=_style(value, best))
    return text


def _cell(value: float, width: int) -> str:
    if np.isnan(value):
        return f"{'-':>{width}}"
    decimals = 1 if width == 7 else 0
    # Small rates get a digit more, so that 0.12 does not print as 0.1; 9.96 rounds up to a number without it.
    return f"{value:>{width}.{decimals if value >= 9.95 else decimals + 1}f}"


def _style(value: float, best: float) -> str:
    if np.isnan(value) or best <= 0:
        return ""
    return next(style for fraction, style in _SCALE if value >= fraction * best)
