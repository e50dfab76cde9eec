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
_PER_SECOND = {"µs": 1e6, "ns": 1e9}


def unit_of(run: Run, work: Work, size_bytes: int) -> str:
    """Return the unit that says most: GB/s, below 1 MiB the time in µs, of the pointer chase in ns.

    A chase over PCIe takes 1100 ns, and so many digits for each of 16 devices would break 80 columns.
    """
    if work.operation is Operation.CHASE and len(run.devices) <= DEVICES_WITH_DECIMALS:
        return "ns"
    return "GB/s" if size_bytes >= _MIB else "µs"


def value(seconds: float, gbs: float, unit: str) -> float:
    """Return a cell's figure in a unit of `unit_of`."""
    return gbs if unit not in _PER_SECOND else seconds * _PER_SECOND[unit]


def heat_map(run: Run, ranking: Ranking, *, unit: str = "GB/s") -> Text:
    """Return a ranking of links or pairs as a matrix in a unit of `unit_of`, at most 80 columns for 16 devices."""
    matrix = _matrix(run, ranking, lambda standing: value(standing.seconds, standing.gbs, unit))
    return render_matrix(run, matrix, best_is_least=unit in _PER_SECOND)


def tier_map(run: Run, ranking: Ranking) -> Text:
    """Return the tier of each link or pair as a matrix, 1 is best: what the shades say, without colour."""
    matrix = _matrix(run, ranking, lambda standing: float(standing.tier))
    return render_matrix(run, matrix, shaded=False, printed=lambda tier: f"{tier:.0f}")


def _matrix(run: Run, ranking: Ranking, figure: Callable[[Standing], float]) -> Matrix:
    matrix = np.full((len(run.devices),) * 2, np.nan)
    for standing in ranking.standings:
        src, dst = standing.pair
        matrix[src, dst] = figure(standing)
        if ranking.kind == "pair":
            matrix[dst, src] = matrix[src, dst]
    return matrix
