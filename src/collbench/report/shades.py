"""The one scale of colours of all matrices: a figure's shade is its share of the best, in steps, and what they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collbench.report.blocks import Legend

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
# Figures so near each other have one shade, on whichever side of a step they lie: one link reaches half of two.
_ALIKE = 0.02


def styles(shares: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return the style of each share of the best, of any shape; "" for NaN.

    From the best down, all that lie within 2 % of the first of their group have its shade.
    """
    found = np.full(shares.shape, "", dtype=object)
    left = np.isfinite(shares)
    while left.any():
        top = shares[left].max()
        group = left & (shares >= top * (1 - _ALIKE))
        found[group] = next(style for least, style in _RAMP if top >= least)
        left &= ~group
    return found


def legend(before: str = "") -> Legend:
    """Return what the shades mean, one line, after the line breaks that it needs."""
    text = Legend(f"{before}shade: share of the best")
    for share, style in _RAMP:
        text.append(" ")
        text.append(f" {share:.0%} " if share else " less ", style=style)
    return text
