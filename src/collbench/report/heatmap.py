"""A ranking as a heat map: row and column are devices, the shade is the share of the best. Readable without colour."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from collbench.affinity.tiers import Ranking
from collbench.model import Run
from collbench.report.matrix import Matrix, render_matrix

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


def heat_map(run: Run, ranking: Ranking, *, seconds: bool = False) -> Text:
    """Return a ranking of links or pairs as a matrix, in GB/s or with `seconds` in µs, at most 80 columns for 16."""
    return render_matrix(run, _matrix(run, ranking, seconds=seconds), best_is_least=seconds, style=_shade)


def shades() -> Text:
    """Return what the shades mean, one line."""
    text = Text("shade: share of the best")
    for share, style in _RAMP:
        text.append(" ")
        text.append(f" {share:.0%} " if share else " less ", style=style)
    return text


def _matrix(run: Run, ranking: Ranking, *, seconds: bool) -> Matrix:
    matrix = np.full((len(run.devices),) * 2, np.nan)
    for standing in ranking.standings:
        src, dst = standing.pair
        matrix[src, dst] = standing.seconds * 1e6 if seconds else standing.gbs
        if ranking.kind == "pair":
            matrix[dst, src] = matrix[src, dst]
    return matrix


def _shade(share: float) -> str:
    return next((style for least, style in _RAMP if share >= least), "")
