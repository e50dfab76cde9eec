"""What pairs and ports carry in one direction at most, GB/s, by labels and the GPUs' names; ∞ where not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from collbench.machine import theory
from collbench.machine.labels import nvlinks
from collbench.model import Device, Path

Rates = NDArray[np.float64]
Pair = tuple[int, int]


def pair_capacities(devices: Sequence[Device], paths: Mapping[Pair, Path], links: Rates) -> Rates:
    """Return what each pair carries at most over what it uses: its NVLinks where `links` > 0, else the slots."""
    capacity = np.full((len(devices), len(devices)), math.inf)
    for pair, path in paths.items():
        ends = devices[pair[0]], devices[pair[1]]
        if links[pair] > 0:
            port = min(theory.most_nvlink_gbs(end.name) for end in ends)
            carried = (path.theory_gbs or port) if nvlinks(path) else port
        else:
            carried = min(path.theory_gbs or math.inf, *map(_slot, ends))
        capacity[pair] = capacity[pair[::-1]] = carried
    return capacity


def port_capacities(
    devices: Sequence[Device], paths: Mapping[Pair, Path], links: Rates, plane: NDArray[np.intp], capacity: Rates
) -> Rates:
    """Return what each device sends at most over all its NVLinks, shape (n,); ∞ for those without any.

    Through a switch every pair has the whole port; direct links add up, to no more than the GPU has where labels hide
    some of them.
    """
    ports = np.full(len(devices), math.inf)
    hidden = {place for pair, path in paths.items() if links[pair] > 0 and not nvlinks(path) for place in pair}
    for place, device in enumerate(devices):
        there = capacity[place, links[place] > 0]
        if len(there):
            total = float(there.max() if plane[place] >= 0 else there.sum())
            ports[place] = min(total, theory.most_nvlink_gbs(device.name)) if place in hidden else total
    return ports


def _slot(device: Device) -> float:
    limit = theory.slot(device)
    return limit.gbs if limit else math.inf
