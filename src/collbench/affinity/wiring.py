"""How devices are wired, as far as labels and measured rates tell: NVLinks, switches, PCIe, in matrices.

Rows are sources and columns destinations, in the order of the given devices; rates in GB/s, 0 where nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.pcie import Uplinks, joined, uplinks
from collbench.machine.labels import is_nvlink, nvlink_count
from collbench.model import Audit, Device, Path

Rates = NDArray[np.float64]
Pair = tuple[int, int]

# NVLinks of one GPU [NVIDIA's product pages]; the most of any stands for a name that is not known. More links by the
# labels than a GPU has: each is counted once for every neighbour that it reaches, so there is a switch.
_LINKS_OF = {"P100": 4, "V100": 6, "A100": 12, "A800": 12}
_MOST_LINKS = 18
# GB/s one way of all NVLinks of one GPU, for those whose labels are hidden: 18 × 50 of a B200 [METHOD.md §5].
_MOST_GBS_OF = {"P100": 80.0, "V100": 150.0, "A100": 300.0, "A800": 200.0, "H100": 450.0, "H200": 450.0}
_MOST_GBS = 900.0
# A ×16 slot of generation 5, one way [METHOD.md §5]; HIDDEN_NVLINK is what exceeds the slot's limit by 5 %.
_FASTEST_PCIE_GBS, _ABOVE_PCIE = 63.0, 1.05
# NV_DEGRADED begins below 0.7 of what its links promise [METHOD.md §5]; an NVLink label at PCIe's rate is not in use.
_DEGRADED, _NO_FASTER = 0.7, 1.1
# A pair this near to its whole number of links has them all: visits are no surer than that.
_WHOLE = 0.04
_BELOW_A_HOST = ("PIX", "PXB", "PHB")
# What is left of a PCIe hop's bandwidth in a ring of many [METHOD.md §6: 5.6 of 9.5 GB/s were measured on a DGX-1V].
CROWDED = 0.6


@dataclass(frozen=True, slots=True)
class Wiring:
    """The matrices that predictions rest on, of shape (n, n); `plane` and `host` are (n,).

    `rates` are each pair's own, `nvlink` those over NVLinks, `links` counts those. `share` is what a hop over PCIe
    keeps of its rate in a ring. `plane` numbers the NVSwitch that a device is on, −1 without. `uplinks` are the PCIe
    switches, level by level, `host` numbers the host bridge. `broken` pairs corrupt or hang.
    """

    rates: Rates
    nvlink: Rates
    links: Rates
    share: Rates
    plane: NDArray[np.intp]
    uplinks: tuple[Uplinks, ...]
    host: NDArray[np.intp]
    broken: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.rates)

    def of(self, members: Sequence[int]) -> Wiring:
        """Return the wiring of some of the devices, in the order given."""
        place = list(members)
        some = np.ix_(place, place)
        return Wiring(
            rates=self.rates[some],
            nvlink=self.nvlink[some],
            links=self.links[some],
            share=self.share[some],
            plane=self.plane[place],
            uplinks=tuple(level.of(place) for level in self.uplinks),
            host=self.host[place],
            broken=self.broken[some],
        )


def wiring(
    devices: Sequence[Device],
    paths: Mapping[Pair, Path],
    rates: Rates,
    audits: Sequence[Audit] = (),
    broken: NDArray[np.bool_] | None = None,
) -> Wiring:
    """Return the wiring that labels and measured rates show together; where they contradict, the rate decides.

    `paths` are keyed by places in `devices`, lower first; `rates` are the measured ones.
    """
    pairs = {pair: path for pair, path in paths.items() if _slower(rates, pair) > 0}
    links = _links(len(devices), pairs, rates)
    nvlink = np.where(links > 0, rates, 0.0)
    return Wiring(
        rates=rates,
        nvlink=_snapped(nvlink, links),
        links=links,
        share=np.where(links > 0, 1.0, _shares(len(devices), paths, audits)),
        plane=_planes(devices, nvlink, links),
        uplinks=uplinks(len(devices), paths, rates, links),
        host=joined(
            [pair for pair, path in paths.items() if (path.ancestor or path.label) in _BELOW_A_HOST], len(rates)
        ),
        broken=np.zeros(rates.shape, dtype=bool) if broken is None else broken,
    )


def _slower(rates: Rates, pair: Pair) -> float:
    return float(min(rates[pair], rates[pair[::-1]]))


def _count(path: Path) -> int:
    return path.nvlinks or nvlink_count(path.label)


def _links(n: int, pairs: Mapping[Pair, Path], rates: Rates) -> Rates:
    """Return how many NVLinks each pair uses: the label's, unless the rate says that it uses none or hides some."""
    best = _best_over_pcie(n, pairs, rates)
    each = _each_link(pairs, rates)
    found = np.zeros((n, n))
    for pair, path in pairs.items():
        rate, count = _slower(rates, pair), _count(path)
        if count:
            # What is no faster than its two devices are over PCIe, and far below its links, does not use them.
            instead, whole = _NO_FASTER * min(best[place] for place in pair), count * each
            used = rate > instead or (rate >= _DEGRADED * whole and whole > instead)
            found[pair] = found[pair[::-1]] = count if used else 0
        elif rate > _ABOVE_PCIE * (path.theory_gbs or _FASTEST_PCIE_GBS):
            found[pair] = found[pair[::-1]] = max(1, round(rate / each)) if each else 1
    return found


def _best_over_pcie(n: int, pairs: Mapping[Pair, Path], rates: Rates) -> list[float]:
    """Return each device's fastest pair without an NVLink label, GB/s; 0 without any."""
    best = [0.0] * n
    for pair, path in pairs.items():
        for place in pair if not _count(path) else ():
            best[place] = max(best[place], _slower(rates, pair))
    return best


def _each_link(pairs: Mapping[Pair, Path], rates: Rates) -> float:
    """Return what one NVLink carries, GB/s: the median over labelled pairs; 0 without any."""
    labelled = [_slower(rates, pair) / _count(path) for pair, path in pairs.items() if _count(path)]
    return float(np.median(labelled)) if labelled else 0.0


def _snapped(nvlink: Rates, links: Rates) -> Rates:
    """Return NVLink rates with those at a whole number of links set to it: equal links must look equal to a packing."""
    used = links > 0
    if not used.any():
        return nvlink
    each = float(np.median(nvlink[used] / links[used]))
    whole = links * each
    near = used & (np.abs(nvlink - whole) <= _WHOLE * whole)
    return np.where(near, whole, nvlink)


def _shares(n: int, paths: Mapping[Pair, Path], audits: Sequence[Audit]) -> Rates:
    """Return what a hop keeps beside others: METHOD.md's 0.6, or more where the audit of its label found more.

    Less is left to `pcie`: an audit loads all switches at once, a ring of few devices does not.
    """
    found: dict[str, float] = {}
    for audit in audits:
        if not is_nvlink(audit.label):
            found[audit.label] = min(found.get(audit.label, 1.0), max(audit.ratio, CROWDED))
    shares = np.full((n, n), CROWDED)
    for pair, path in paths.items():
        shares[pair] = shares[pair[::-1]] = found.get(path.label, CROWDED)
    return shares


def _planes(devices: Sequence[Device], nvlink: Rates, links: Rates) -> NDArray[np.intp]:
    """Return the NVSwitch plane of each device: all in it are joined, by more links or GB/s than a GPU has."""
    n = len(devices)
    group = joined([(int(i), int(j)) for i, j in np.argwhere(links)], n)
    planes = np.full(n, -1, dtype=np.intp)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1]:
        inside = np.flatnonzero(group == number)
        block = np.ix_(inside, inside)
        if (links[block] + np.eye(len(inside)) == 0).any():
            continue
        name = devices[inside[0]].name
        most = next((count for part, count in _LINKS_OF.items() if part in name), _MOST_LINKS)
        most_gbs = next((gbs for part, gbs in _MOST_GBS_OF.items() if part in name), _MOST_GBS)
        if links[block].sum(axis=1).max() > most or nvlink[block].sum(axis=1).max() > most_gbs:
            planes[inside] = number
    return planes
