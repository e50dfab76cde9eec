"""How devices are wired, by labels and measured rates: NVLinks, switches, PCIe, in GB/s (docs/method/choosing.md 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from collbench.machine import theory
from collbench.machine.labels import chained, is_nvlink, nvlinks
from collbench.machine.theory import DEGRADED, HIDDEN
from collbench.model.run import Device, InterferenceCheck, Pair, Path
from collbench.model.units import grouped

# Capacities of pairs and ports in one direction, GB/s, by labels and the GPUs' names; ∞ if not known.

Values = NDArray[np.float64]
Rates = Values
Sets = NDArray[np.intp]  # positions, shape (sets, members)


def pair_capacities(devices: Sequence[Device], paths: Mapping[Pair, Path], links: Rates) -> Rates:
    """Return each pair's capacity: that of its NVLinks if `links` > 0, else of the slots."""
    capacity = np.full((len(devices), len(devices)), math.inf)
    for pair, path in paths.items():
        ends = devices[pair[0]], devices[pair[1]]
        if links[pair] > 0:
            port = min(theory.product(end.name).nvlink_gbs for end in ends)
            carried = (path.theory_gbs or port) if nvlinks(path) else port
        else:
            slots = (limit.gbs for end in ends if (limit := theory.slot(end)))
            carried = min(path.theory_gbs or math.inf, *slots, math.inf)
        capacity[pair] = capacity[pair[::-1]] = carried
    return capacity


def port_capacities(
    devices: Sequence[Device], paths: Mapping[Pair, Path], links: Rates, plane: NDArray[np.intp], capacity: Rates
) -> Rates:
    """Return the most that each device sends over all its NVLinks, shape (n,); ∞ for those without any.

    Through a switch every pair has the whole port. Direct links add up, but, if labels hide some of them, to no more
    than the GPU has.
    """
    ports = np.full(len(devices), math.inf)
    hidden = {position for pair, path in paths.items() if links[pair] > 0 and not nvlinks(path) for position in pair}
    for position, device in enumerate(devices):
        there = capacity[position, links[position] > 0]
        if len(there):
            total = float(there.max() if plane[position] >= 0 else there.sum())
            ports[position] = min(total, theory.product(device.name).nvlink_gbs) if position in hidden else total
    return ports


# Expected rates in GB/s by labels alone, if nothing was measured.

# One direction of an NVLink of unknown rate: what a V100's achieves [method/verdicts.md 2]. Only the count decides.
_NVLINK_GBS = 24.2
# The achieved share of the rate that NVML reports: 0.97 on a V100, 0.88 on an H200 [docs/method/verdicts.md 2].
_NVLINK_SHARE = 0.9
# PCIe, one way: NODE as achieved on a V100 machine [method/verdicts.md 2], the others in the order of the labels alone.
_PCIE_GBS = {"PIX": 12.0, "PXB": 11.0, "PHB": 10.0, "NODE": 9.5, "SYS": 9.0}
_UNKNOWN_GBS = 8.0


def guessed_rates(n: int, paths: Mapping[tuple[int, int], Path]) -> NDArray[np.float64]:
    """Return the expected rate of each pair of n devices in each direction, GB/s; 0 for pairs without a label."""
    rates = np.zeros((n, n))
    for pair, path in paths.items():
        guess = _PCIE_GBS.get(path.label, _UNKNOWN_GBS)
        if links := nvlinks(path):
            guess = _NVLINK_SHARE * path.theory_gbs if path.theory_gbs else _NVLINK_GBS * links
        rates[pair] = rates[pair[::-1]] = guess
    return rates


# If NVLinks do not make a ring through a set, its ring is over PCIe, whose links the hops share (method/choosing.md 3).
#
# A ring crosses the uplink of a PCIe switch once in each direction, however many members are below it. But if its GPUs
# cannot reach each other directly, every hop goes up to the host and down again, and all of them share the uplink. Then
# two GPUs below one switch are slower than two of different switches, with half of the uplink's rate.

_BELOW_A_SWITCH = (("PIX",), ("PIX", "PXB"))  # level by level
# If one hop fills an uplink, two get half of it each; if not, both keep their rate. The limit lies between.
_SHARED = 0.75
# A device is slow itself if its best path across is below this share of the others', a pair if below that of its
# label's.
_SLOW = 0.9


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The PCIe switches of one level, by device, shape (n,): `group` numbers the switch that a device is below.

    `staged`: hops inside that group go through the host. `capacity` is its uplink's limit one way, GB/s, infinite
    where no pair filled it.
    """

    group: NDArray[np.intp]
    staged: NDArray[np.bool_]
    capacity: Values

    def of(self, positions: Sequence[int]) -> Uplinks:
        """Return the same for some of the devices."""
        some = list(positions)
        return Uplinks(self.group[some], self.staged[some], self.capacity[some])


def uplinks(n: int, paths: Mapping[Pair, Path], rates: Values, links: Values, capacity: Values) -> tuple[Uplinks, ...]:
    """Return the switches above the devices by the labels, level by level, and what the rates of pairs show of each.

    `capacity` is that of each pair, GB/s. A pair without a rate is given the one that makes a switch look slowest: 0
    below it, its capacity across.
    """
    slower = np.minimum(rates, rates.T)
    over_pcie = (links == 0) & ~np.eye(n, dtype=bool)
    within = np.where(over_pcie, slower, np.nan)
    across = np.where(over_pcie, np.where(slower > 0, slower, capacity), np.nan)
    denied = np.zeros((n, n), dtype=bool)
    for pair, path in paths.items():
        denied[pair] = denied[pair[::-1]] = path.peers_denied and not links[pair]
    return tuple(_level(_joined_by(labels, paths, n), within, across, denied) for labels in _BELOW_A_SWITCH)


def _level(group: NDArray[np.intp], within: Values, across: Values, denied: NDArray[np.bool_]) -> Uplinks:
    staged, capacity = np.zeros(len(group), dtype=bool), np.full(len(group), np.inf)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1].tolist():
        inside = group == number
        # Beyond the switch, too, a pair is as fast as its slower device: a slow slot does not fill an uplink.
        reach = np.array([_median(across, alone, ~inside) or np.nan for alone in np.eye(len(group), dtype=bool)])
        below = _median(within, inside, inside)
        beyond = _median(np.where(np.isnan(within), np.nan, np.minimum.outer(reach, reach)), inside, inside)
        full = below is not None and beyond is not None and below < _SHARED * beyond
        staged[inside] = full or denied[np.ix_(inside, inside)].any()
        capacity[inside] = 2 * below if full and below is not None else np.inf
    return Uplinks(group, staged, capacity)


def _median(values: Values, here: NDArray[np.bool_], there: NDArray[np.bool_]) -> float | None:
    """Return the median over the pairs from here to there, None without any."""
    between = values[np.outer(here, there)]
    between = between[~np.isnan(between)]
    return float(median(between)) if len(between) else None


def joined(pairs: Sequence[Pair], n: int) -> NDArray[np.intp]:
    """Return for each of n devices the lowest one that it is joined to, by any chain of the pairs."""
    group = np.arange(n, dtype=np.intp)
    for island in chained(pairs):
        group[list(island)] = min(island)
    return group


def uplink_limits(sets: Sets, levels: Sequence[Uplinks], links: Values) -> tuple[Values, Values]:
    """Return for each set the rate that the fullest uplink leaves to each hop, GB/s, and the hops through the host."""
    out = _ways_out(sets, links)
    limits, hops = np.full(len(sets), np.inf), np.zeros(len(sets))
    for level in levels:
        hops[:] = 0.0
        for number in set(level.group.tolist()):
            inside = level.group[sets] == number
            leaving = inside.any(axis=1) & ~inside.all(axis=1)
            member = int(np.flatnonzero(level.group == number)[0])
            shares = level.staged[member] | (inside.sum(axis=1) == 1)  # else a single hop leaves the switch
            load = np.where(shares, (inside * out).sum(axis=1), leaving)
            carried = np.where(load > 0, level.capacity[member] / np.maximum(load, 1e-9), np.inf)
            limits = np.minimum(limits, carried)
            hops += load
    return limits, hops


def single_hops(rates: Values, links: Values, levels: Sequence[Uplinks], capacity: Values) -> Values:
    """Return the rate of a hop that shares its path with none, GB/s: a measured pair's two directions share an uplink.

    A device that is also slow across switches reaches no more than it does there. For others, `capacity` stands for
    rates across switches that were not measured.
    """
    alone, slower = rates.copy(), np.minimum(rates, rates.T)
    for level in levels:
        together = np.equal.outer(level.group, level.group) & (links == 0)
        apart = ~np.equal.outer(level.group, level.group) & (links == 0)
        best = np.where(apart, slower, 0.0).max(axis=1)
        able = np.where(apart, np.where(slower > 0, slower, capacity), 0.0).max(axis=1)
        own = np.where(best < _SLOW * median(able), best, np.inf)
        doubled = np.minimum(2 * rates, np.minimum.outer(own, own))
        filled = together & np.isfinite(level.capacity)[:, None]
        alone = np.where(filled, np.maximum(rates, doubled), alone)
    return alone


def _ways_out(sets: Sets, links: Values) -> Values:
    """Return each member's share of a hop over PCIe: members that NVLinks chain together leave the chain by one hop."""
    size = sets.shape[1]
    if not links.any():
        return np.ones(sets.shape)
    near = links[sets[:, :, None], sets[:, None, :]] > 0
    reach = near | np.eye(size, dtype=bool)
    for _ in range(int(np.ceil(np.log2(size)))):  # paths of 1, 2, 4, … links
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    return np.asarray(1.0 / reach.sum(axis=2))


# The whole wiring, in matrices.
#
# Rows are sources and columns destinations, in the order of the given devices; rates in GB/s, 0 if nothing is known.

# An NVLink label at PCIe's rate is not in use.
_NO_FASTER = 1.1
# A pair this near to the rate of its number of links has all of them: trials are no more precise than that.
_WHOLE = 0.04
_BELOW_A_HOST = ("PIX", "PXB", "PHB")
_ON_A_SOCKET = (*_BELOW_A_HOST, "NODE")
# The share of its bandwidth that a PCIe hop keeps in a ring of many [method/choosing.md 3: 5.6 of 9.5 GB/s, DGX-1V].
CROWDED = 0.6


@dataclass(frozen=True, slots=True)
class Wiring:
    """The matrices that predictions rest on, of shape (n, n); `plane`, `host`, `socket` and `port` are (n,).

    `rates` are those of the pairs, `nvlink` those over NVLinks, `links` counts the NVLinks, `unshared` is the rate of a
    hop that shares its path with none; none exceeds the capacity of its links or slots. `share` is the part of its rate
    that a hop over PCIe keeps in a ring. `plane` numbers the NVSwitch that a device is on, −1 without one. `capacity`
    is that of each pair, `port` the most that a device sends over all its NVLinks; ∞ if not known or without NVLinks.
    `uplinks` are the PCIe switches, level by level; `host` numbers the host bridge, `socket` the NUMA node. `broken`
    pairs corrupt or hang; `slow` ones have less than 0.9 of the median of their label.

    `missing` pairs were not measured: their rates are 0 here, the worst case. `filled` is the same machine with each of
    them as fast as the fastest similar pair, None if none is missing. `labelled` is the same machine if NVLinks that
    look unused beside others, being no faster than PCIe, are slow ones that NCCL uses; None if there are none.
    """

    rates: Rates
    nvlink: Rates
    links: Rates
    unshared: Rates
    share: Rates
    plane: NDArray[np.intp]
    capacity: Rates
    port: Rates
    uplinks: tuple[Uplinks, ...]
    host: NDArray[np.intp]
    socket: NDArray[np.intp]
    broken: NDArray[np.bool_]
    slow: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    filled: Wiring | None = None
    labelled: Wiring | None = None

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.rates)

    def of(self, members: Sequence[int]) -> Wiring:
        """Return the wiring of some of the devices, in the order given."""
        positions = list(members)
        some = np.ix_(positions, positions)
        arrays = {
            field.name: value for field in fields(self) if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(
            self,
            **{name: array[some if array.ndim == 2 else positions] for name, array in arrays.items()},
            uplinks=tuple(level.of(positions) for level in self.uplinks),
            filled=self.filled and self.filled.of(positions),
            labelled=self.labelled and self.labelled.of(positions),
        )


def wiring(
    devices: Sequence[Device],
    paths: Mapping[Pair, Path],
    rates: Rates,
    checks: Sequence[InterferenceCheck] = (),
    broken: NDArray[np.bool_] | None = None,
) -> Wiring:
    """Return the wiring that labels and measured rates show together; if they contradict, the rate decides.

    `paths` are keyed by indices of `devices`, lower first; `rates` are the measured ones, 0 if a pair has none. Then
    its label and similar pairs decide what it is.
    """
    broken = np.zeros(rates.shape, dtype=bool) if broken is None else broken
    missing = (np.minimum(rates, rates.T) <= 0) & ~np.eye(len(rates), dtype=bool)
    if not missing.any():
        wired = _wired(devices, paths, rates, checks, broken)
        links = np.zeros(rates.shape)
        for pair, path in paths.items():
            links[pair] = links[pair[::-1]] = max(nvlinks(path), wired.links[pair])
        if (links == wired.links).all() or not wired.links.any():
            return wired
        return replace(wired, labelled=_wired(devices, paths, rates, checks, broken, links=links))
    filled = _wired(devices, paths, _filled(devices, paths, rates, missing), checks, broken)
    wired = _wired(devices, paths, np.where(missing, 0.0, rates), checks, broken, filled)
    return replace(wired, missing=missing & ~broken, filled=filled)


def _wired(
    devices: Sequence[Device],
    paths: Mapping[Pair, Path],
    rates: Rates,
    checks: Sequence[InterferenceCheck],
    broken: NDArray[np.bool_],
    filled: Wiring | None = None,
    links: Rates | None = None,
) -> Wiring:
    """Return the wiring of these rates; the kind of machine is that of `filled` where there is one.

    `links` counts the NVLinks, by default those that the rates show.
    """
    n = len(devices)
    pairs = {pair: path for pair, path in paths.items() if _slower(rates, pair) > 0}
    links = _links(n, pairs, rates) if links is None else links
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
        unshared=np.minimum(single_hops(rates, links, below, capacity), capacity),
        share=np.where(links > 0, 1.0, _shares(n, paths, checks)),
        plane=plane,
        capacity=capacity,
        port=port_capacities(devices, paths, joins, plane, capacity),
        uplinks=below,
        host=_joined_by(_BELOW_A_HOST, paths, n),
        socket=_joined_by(_ON_A_SOCKET, paths, n),
        broken=broken,
        slow=_slow_for_label(pairs, rates),
        missing=np.zeros(rates.shape, dtype=bool),
    )


def _slow_for_label(paths: Mapping[Pair, Path], rates: Rates) -> NDArray[np.bool_]:
    slow = np.zeros(rates.shape, dtype=bool)
    for pairs in grouped((path.label, pair) for pair, path in paths.items()).values():
        usual = median(_slower(rates, pair) for pair in pairs)
        for pair in pairs:
            slow[pair] = slow[pair[::-1]] = _slower(rates, pair) < _SLOW * usual
    return slow


def _joined_by(labels: Sequence[str], paths: Mapping[Pair, Path], n: int) -> NDArray[np.intp]:
    return joined([pair for pair, path in paths.items() if path.in_tree in labels], n)


def _filled(devices: Sequence[Device], paths: Mapping[Pair, Path], rates: Rates, missing: NDArray[np.bool_]) -> Rates:
    """Return the rates with each missing pair at the fastest of its label, or at its limit if none was measured.

    So a set that it makes the best is not passed over before it was measured.
    """
    fastest: dict[tuple[str, int], float] = {}
    for pair, path in paths.items():
        if not missing[pair]:
            kind = path.label, nvlinks(path)
            fastest[kind] = max(fastest.get(kind, 0.0), _slower(rates, pair))
    known = np.minimum(rates, rates.T)[~missing & ~np.eye(len(rates), dtype=bool)]
    filled = np.where(missing, known.max(initial=0.0), rates)
    for pair, path in paths.items():
        if missing[pair]:
            port = min(theory.product(devices[end].name).nvlink_gbs for end in pair)
            limit = path.theory_gbs or (port if nvlinks(path) else theory.FASTEST_SLOT_GBS)
            filled[pair] = filled[pair[::-1]] = fastest.get((path.label, nvlinks(path)), limit)
    return filled


def _slower(rates: Rates, pair: Pair) -> float:
    return float(min(rates[pair], rates[pair[::-1]]))


def _links(n: int, pairs: Mapping[Pair, Path], rates: Rates) -> Rates:
    """Return how many NVLinks each pair uses: the label's, unless the rate says that it uses none or hides some."""
    # Each device's fastest pair without an NVLink label, and the rate of one NVLink; 0 without any.
    best = [0.0] * n
    for pair, path in pairs.items():
        for device in pair if not nvlinks(path) else ():
            best[device] = max(best[device], _slower(rates, pair))
    carried = [_slower(rates, pair) / nvlinks(path) for pair, path in pairs.items() if nvlinks(path)]
    each = median(carried) if carried else 0.0
    matrix = np.zeros((n, n))
    for pair, path in pairs.items():
        rate, labelled = _slower(rates, pair), nvlinks(path)
        if labelled:
            # A pair no faster than its devices are over PCIe, and far below its NVLinks, does not use them.
            instead, whole = _NO_FASTER * min(best[device] for device in pair), labelled * each
            used = rate > instead or (rate >= DEGRADED * whole and whole > instead)
            matrix[pair] = matrix[pair[::-1]] = labelled if used else 0
        elif rate > HIDDEN * (path.theory_gbs or theory.FASTEST_SLOT_GBS):
            matrix[pair] = matrix[pair[::-1]] = max(1, round(rate / each)) if each else 1
    return matrix


def _snapped(nvlink: Rates, links: Rates) -> Rates:
    """Return NVLink rates with those at a whole number of links set to it: equal links must look equal to a packing."""
    used = links > 0
    if not used.any():
        return nvlink
    each = float(median(nvlink[used] / links[used]))
    whole = links * each
    near = used & (np.abs(nvlink - whole) <= _WHOLE * whole)
    return np.where(near, whole, nvlink)


def _shares(n: int, paths: Mapping[Pair, Path], checks: Sequence[InterferenceCheck]) -> Rates:
    """Return the share that a hop achieves concurrently: 0.6 (method/choosing.md 3), or more if checks of its label do.

    It is never less: an interference check loads all switches at once, a ring of few devices does not.
    """
    by_label: dict[str, float] = {}
    for check in checks:
        if not is_nvlink(check.label):
            by_label[check.label] = min(by_label.get(check.label, 1.0), max(check.ratio, CROWDED))
    shares = np.full((n, n), CROWDED)
    for pair, path in paths.items():
        shares[pair] = shares[pair[::-1]] = by_label.get(path.label, CROWDED)
    return shares


def _planes(devices: Sequence[Device], nvlink: Rates, links: Rates) -> NDArray[np.intp]:
    """Return the NVSwitch plane of each device: pairs through a switch add up to more links or GB/s than a GPU has.

    Only a switch does that, so a slow or hanging pair does not change the plane of its devices.
    """
    n = len(devices)
    group = joined([(int(i), int(j)) for i, j in np.argwhere(links)], n)
    planes = np.full(n, -1, dtype=np.intp)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1]:
        inside = np.flatnonzero(group == number)
        block = np.ix_(inside, inside)
        counted, carried = links[block].sum(axis=1), nvlink[block].sum(axis=1)
        names = [devices[position].name for position in inside.tolist()]
        ports = [theory.product(name).nvlink_gbs for name in names]
        if any(counted > [theory.product(name).nvlinks for name in names]) or any(carried > ports):
            planes[inside] = number
    return planes
