"""A ranking as a heat map: row and column are devices, the shade is the share of the best. Readable without colour."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.text import Text

from collbench.affinity.tiers import Ranking, Standing
from collbench.model import Run
from collbench.operations import Operation, Work
from collbench.report.matrix import DEVICES_WITH_DECIMALS, Matrix, render_matrix

_MIB = 2**20
_PER_SECOND = {"us": 1e6, "ns": 1e9}
# Viridis from its dark end to its bright one, in 256-colour numbers, which every terminal with colours has; safe for
# the colour-blind, as lightness rises with the value. Each step begins at a share of the best.
_RAMP = (
    (0.98, "black on color(227)"),
    (0.95, "black on color(149)"),
    (0.90, "black on color(77)"),
    (0.75, "black on color(36)"),
    (0.50, "white on color(31)"),
    (0.25, "white on color(60)"),
    (0.00, "white on color(54)"),
)


def unit_of(run: Run, work: Work, size_bytes: int) -> str:
    """Return the unit that says most: GB/s, below 1 MiB the time in us, of the pointer chase in ns.

    A chase over PCIe takes 1100 ns, and so many digits for each of 16 devices would break 80 columns.
    """
    if work.operation is Operation.CHASE and len(run.devices) <= DEVICES_WITH_DECIMALS:
        return "ns"
    return "GB/s" if size_bytes >= _MIB else "us"


def value(seconds: float, gbs: float, unit: str) -> float:
    """Return a cell's figure in a unit of `unit_of`."""
    return gbs if unit not in _PER_SECOND else seconds * _PER_SECOND[unit]


def heat_map(run: Run, ranking: Ranking, *, unit: str = "GB/s") -> Text:
    """Return a ranking of links or pairs as a matrix in a unit of `unit_of`, at most 80 columns for 16 devices."""
    matrix = _matrix(run, ranking, lambda standing: value(standing.seconds, standing.gbs, unit))
    return render_matrix(run, matrix, best_is_least=unit in _PER_SECOND, style=_shade)


def tier_map(run: Run, ranking: Ranking) -> Text:
    """Return the tier of each link or pair as a matrix, 1 is best: what the shades say, without colour."""
    matrix = _matrix(run, ranking, lambda standing: float(standing.tier))
    return render_matrix(run, matrix, best_is_least=True, style=lambda _share: "", printed=lambda tier: f"{tier:.0f}")


def shades() -> Text:
    """Return what the shades mean, one line."""
    text = Text("shade: share of the best")
    for share, style in _RAMP:
        text.append(" ")
        text.append(f" {share:.0%} " if share else " less ", style=style)
    return text


def _matrix(run: Run, ranking: Ranking, figure: Callable[[Standing], float]) -> Matrix:
    matrix = np.full((len(run.devices),) * 2, np.nan)
    for standing in ranking.standings:
        src, dst = standing.pair
        matrix[src, dst] = figure(standing)
        if ranking.kind == "pair":
            matrix[dst, src] = matrix[src, dst]
    return matrix


def _shade(share: float) -> str:
    return next((style for least, style in _RAMP if share >= least), "")
