"""What labels alone promise in GB/s, where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from collbench.machine.labels import nvlinks
from collbench.model import Path

# One way of an NVLink, where nobody says which: a V100's as achieved [METHOD.md §5]. Only the count matters for order.
_NVLINK_GBS = 24.2
# Of what NVML says its links can: 0.97 is achieved on a V100, 0.88 on an H200 [METHOD.md §5].
_NVLINK_SHARE = 0.9
# PCIe, one way: NODE as achieved on a V100 machine [METHOD.md §5], the others in the order of the labels alone.
_PCIE_GBS = {"PIX": 12.0, "PXB": 11.0, "PHB": 10.0, "NODE": 9.5, "SYS": 9.0}
_UNKNOWN_GBS = 8.0


def guessed_rates(n: int, paths: Mapping[tuple[int, int], Path]) -> NDArray[np.float64]:
    """Return what each pair of n devices is expected to carry in each direction, GB/s; 0 for pairs without a label."""
    rates = np.zeros((n, n))
    for pair, path in paths.items():
        rates[pair] = rates[pair[::-1]] = _guess(path)
    return rates


def _guess(path: Path) -> float:
    links = nvlinks(path)
    if not links:
        return _PCIE_GBS.get(path.label, _UNKNOWN_GBS)
    return _NVLINK_SHARE * path.theory_gbs if path.theory_gbs else _NVLINK_GBS * links
