"""How devices are wired, as far as labels and measured rates tell: NVLinks, switches, PCIe, in matrices.

Rows are sources and columns destinations, in the order of the given devices; rates in GB/s, 0 where nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.capacity import pair_capacities, port_capacities
from collbench.affinity.pcie import Uplinks, joined, single_hops, uplinks
from collbench.machine import theory
from collbench.machine.impossible import HIDDEN
from collbench.machine.labels import is_nvlink, nvlinks
from collbench.model import Audit, Device, Path

Rates = NDArray[np.float64]
Pair = tuple[int, int]

# NV_DEGRADED begins below 0.7 of what its links promise [METHOD.md §5]; an NVLink label at PCIe's rate is not in use.
_DEGRADED, _NO_FASTER = 0.7, 1.1
# A pair this near to its whole number of links has them all: visits are no surer than that.
_WHOLE = 0.04
_BELOW_A_HOST = ("PIX", "PXB", "PHB")
# What is left of a PCIe hop's bandwidth in a ring of many [METHOD.md §6: 5.6 of 9.5 GB/s were measured on a DGX-1V].
CROWDED = 0.6


@dataclass(frozen=True, slots=True)
class Wiring:
    """The matrices that predictions rest on, of shape (n, n); `plane`, `host` and `port` are (n,).

    `rates` are each pair's own, `nvlink` those over NVLinks, `links` counts those, `alone` is what a hop has that
    shares its way with none; none exceeds what its links or its slots carry. `share` is what a hop over PCIe keeps of
    its rate in a ring. `plane` numbers the NVSwitch that a device is on, −1 without. `capacity` is what each pair
    carries at most, `port` what a device sends over all its NVLinks; ∞ where that is not known, or there are none.
    `uplinks` are the PCIe switches, level by level, `host` numbers the host bridge. `broken` pairs corrupt or hang.

    `missing` pairs were not measured: their rates are 0 here, and what they might hide is taken for the worst.
    `filled` is the same machine with each of them as slow as the slowest pair like it, None where none is missing.
    """

    rates: Rates
    nvlink: Rates
    links: Rates
    alone: Rates
    share: Rates
    plane: NDArray[np.intp]
    capacity: Rates
    port: Rates
    uplinks: tuple[Uplinks, ...]
    host: NDArray[np.intp]
    broken: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    filled: Wiring | None = None

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
            alone=self.alone[some],
            share=self.share[some],
            plane=self.plane[place],
            capacity=self.capacity[some],
            port=self.port[place],
            uplinks=tuple(level.of(place) for level in self.uplinks),
            host=self.host[place],
            broken=self.broken[some],
            missing=self.missing[some],
            filled=self.filled and self.filled.of(place),
        )


def wiring(
    devices: Sequence[Device],
    paths: Mapping[Pair, Path],
    rates: Rates,
    audits: Sequence[Audit] = (),
    broken: NDArray[np.bool_] | None = None,
) -> Wiring:
    """Return the wiring that labels and measured rates show together; where they contradict, the rate decides.

    `paths` are keyed by places in `devices`, lower first; `rates` are the measured ones, 0 where a pair has none: such
    a pair never changes what kind of machine it is, for its label and the pairs like it tell that.
    """
    broken = np.zeros(rates.shape, dtype=bool) if broken is None else broken
    missing = (np.minimum(rates, rates.T) <= 0) & ~np.eye(len(rates), dtype=bool)
    if not missing.any():
        return _wired(devices, paths, rates, audits, broken)
    filled = _wired(devices, paths, _filled(devices, paths, rates, missing), audits, broken)
    found = _wired(devices, paths, np.where(missing, 0.0, rates), audits, broken, filled)
    return replace(found, missing=missing & ~broken, filled=filled)


def _wired(
    devices: Sequence[Device],
    paths: Mapping[Pair, Path],
    rates: Rates,
    audits: Sequence[Audit],
    broken: NDArray[np.bool_],
    filled: Wiring | None = None,
) -> Wiring:
    """Return the wiring of these rates; the kind of machine is that of `filled` where there is one."""
    n = len(devices)
    pairs = {pair: path for pair, path in paths.items() if _slower(rates, pair) > 0}
    links = _links(n, pairs, rates)
    joins = links if filled is None else filled.links
    plane = _planes(devices, np.where(links > 0, rates, 0.0), links) if filled is None else filled.plane
    capacity = pair_capacities(devices, paths, joins)
    rates = np.minimum(rates, capacity)
    nvlink = np.where(links > 0, rates, 0.0)
    below = uplinks(n, paths, rates, links, capacity)
    return Wiring(
        rates=rates,
        nvlink=np.minimum(_snapped(nvlink, links), capacity),
        links=links,
        alone=np.minimum(single_hops(rates, links, below, capacity), capacity),
        share=np.where(links > 0, 1.0, _shares(n, paths, audits)),
        plane=plane,
        capacity=capacity,
        port=port_capacities(devices, paths, joins, plane, capacity),
        uplinks=below,
        host=joined([pair for pair, path in paths.items() if (path.ancestor or path.label) in _BELOW_A_HOST], n),
        broken=broken,
        missing=np.zeros(rates.shape, dtype=bool),
    )


def _filled(devices: Sequence[Device], paths: Mapping[Pair, Path], rates: Rates, missing: NDArray[np.bool_]) -> Rates:
    """Return the rates with each missing pair at the slowest of its label, or at its limit where none was measured."""
    slowest: dict[tuple[str, int], float] = {}
    for pair, path in paths.items():
        if not missing[pair]:
            kind = path.label, nvlinks(path)
            slowest[kind] = min(slowest.get(kind, np.inf), _slower(rates, pair))
    known = np.minimum(rates, rates.T)[~missing & ~np.eye(len(rates), dtype=bool)]
    filled = np.where(missing, known.min(initial=np.inf) if len(known) else 0.0, rates)
    for pair, path in paths.items():
        if missing[pair]:
            port = min(theory.most_nvlink_gbs(devices[end].name) for end in pair)
            limit = path.theory_gbs or (port if nvlinks(path) else theory.FASTEST_SLOT_GBS)
            filled[pair] = filled[pair[::-1]] = slowest.get((path.label, nvlinks(path)), limit)
    return filled


def _slower(rates: Rates, pair: Pair) -> float:
    return float(min(rates[pair], rates[pair[::-1]]))


def _links(n: int, pairs: Mapping[Pair, Path], rates: Rates) -> Rates:
    """Return how many NVLinks each pair uses: the label's, unless the rate says that it uses none or hides some."""
    best = _best_over_pcie(n, pairs, rates)
    each = _each_link(pairs, rates)
    found = np.zeros((n, n))
    for pair, path in pairs.items():
        rate, labelled = _slower(rates, pair), nvlinks(path)
        if labelled:
            # What is no faster than its two devices are over PCIe, and far below its links, does not use them.
            instead, whole = _NO_FASTER * min(best[place] for place in pair), labelled * each
            used = rate > instead or (rate >= _DEGRADED * whole and whole > instead)
            found[pair] = found[pair[::-1]] = labelled if used else 0
        elif rate > HIDDEN * (path.theory_gbs or theory.FASTEST_SLOT_GBS):
            found[pair] = found[pair[::-1]] = max(1, round(rate / each)) if each else 1
    return found


def _best_over_pcie(n: int, pairs: Mapping[Pair, Path], rates: Rates) -> list[float]:
    """Return each device's fastest pair without an NVLink label, GB/s; 0 without any."""
    best = [0.0] * n
    for pair, path in pairs.items():
        for place in pair if not nvlinks(path) else ():
            best[place] = max(best[place], _slower(rates, pair))
    return best


def _each_link(pairs: Mapping[Pair, Path], rates: Rates) -> float:
    """Return what one NVLink carries, GB/s: the median over labelled pairs; 0 without any."""
    labelled = [_slower(rates, pair) / nvlinks(path) for pair, path in pairs.items() if nvlinks(path)]
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
    """Return the NVSwitch plane of each device: a switch gives more links or GB/s than a GPU has, counted pair by pair.

    Nothing but a switch can, so a pair of it that is slow or hangs takes none of its devices away.
    """
    n = len(devices)
    group = joined([(int(i), int(j)) for i, j in np.argwhere(links)], n)
    planes = np.full(n, -1, dtype=np.intp)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1]:
        inside = np.flatnonzero(group == number)
        block = np.ix_(inside, inside)
        counted, carried = links[block].sum(axis=1), nvlink[block].sum(axis=1)
        names = [devices[place].name for place in inside.tolist()]
        ports = [theory.most_nvlink_gbs(name) for name in names]
        if any(counted > [theory.most_nvlinks(name) for name in names]) or any(carried > ports):
            planes[inside] = number
    return planes
