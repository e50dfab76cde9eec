"""What a choice rests on: the fit devices in the order of their PCI bus ids, how they are wired, what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from collbench.affinity import fitness, tiebreak
from collbench.affinity.bands import on_one_plane
from collbench.affinity.estimates import cells_of
from collbench.affinity.guess import guessed_rates
from collbench.affinity.rings import Sets
from collbench.affinity.tiebreak import Level
from collbench.affinity.tiers import Ranking, rank_links, rank_pairs
from collbench.affinity.wiring import Wiring, wiring
from collbench.model import Device, Path, Run
from collbench.operations import Operation, Work
from collbench.stats import summarize

Rates = NDArray[np.float64]

_COPIES = (
    Operation.CE_WRITE,
    Operation.SM_WRITE,
    Operation.CPU_WRITE,
    Operation.CE_READ,
    Operation.SM_READ,
    Operation.CPU_READ,
)
# What training runs comes first; the copies stand in for it where no collective was measured.
_EVIDENCE = (Operation.ALLREDUCE, *_COPIES, Operation.BROADCAST)
# Two directions of a link differ from here on [METHOD.md §5, ASYMMETRY].
_ASYMMETRIC = 1.10
# Sets are told apart by what several noisy pairs show together, up to this much.
_MOST_NOISE = 0.05
# METHOD.md §4: a smaller difference changes nobody's decision.
_DELTA = 0.02
# A message this small takes its latency; larger ones show bandwidth.
_SMALL_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Case:
    """One question of which k. Places are in the order of PCI bus ids; `order` has the run's position of each place.

    `order_of` names what places are in order of: devices without PCI bus ids, CPU cores say, are in that of indices.
    `delta` is the ratio up to which two sets are equal. `verdict` says in words whether pairs differ, `worst` is the
    slowest measured pair in GB/s. `tied`: no set can be better than another. `undecided`: no pair is certainly better,
    nor are all known to be equal.
    """

    order: tuple[int, ...]
    order_of: str
    wired: Wiring
    levels: tuple[Level, ...]
    delta: float
    verdict: str
    worst: float
    tied: bool
    undecided: bool


def evidence(run: Run, among: Collection[int] | None = None) -> Ranking | None:
    """Return the ranking that decides: the first operation with pairs, at its largest size. None without any.

    An interrupted run may hold few pairs at the largest size; then the largest that has half as many as any decides.
    `among` restricts it to pairs of these positions.
    """
    for operation in _EVIDENCE:
        pairs = _sizes(run, operation, among)
        if pairs:
            enough = max(pairs.values()) / 2
            size = max(size for size, count in pairs.items() if count >= enough)
            return rank_pairs(_only(run, among), operation, size, among)
    return None


def in_bus_order(devices: Sequence[Device], among: Collection[int]) -> tuple[int, ...]:
    """Return positions in the order of PCI bus ids: what a device is decides, never the place that it was listed at."""

    def identity(place: int) -> tuple[str, str, str, int]:
        one = devices[place]
        bus = one.pci_bus_id.upper()
        return one.host, bus, one.uuid if bus else "", one.index

    return tuple(sorted(among, key=identity))


def _order_of(devices: Sequence[Device]) -> str:
    return "PCI bus id" if all(one.pci_bus_id for one in devices) else "index"


def from_run(run: Run, fit: Collection[int], ranking: Ranking) -> Case:
    """Return the case that a run makes for its fit devices, by the ranking of their pairs.

    How the machine is wired is what all of its devices show, also those that may not be chosen.
    """
    every = in_bus_order(run.devices, range(len(run.devices)))
    order = tuple(position for position in every if position in set(fit))
    place = {position: at for at, position in enumerate(every)}
    rates = _rates(run, ranking, place)
    broken = np.zeros(rates.shape, dtype=bool)
    for pair in fitness.broken_pairs(run):
        a, b = (place[member] for member in pair)
        broken[a, b] = broken[b, a] = True
    devices = [run.devices[position] for position in every]
    audits = [audit for audit in run.audits if audit.operation is ranking.operation]
    wired = wiring(devices, _paths(run.paths, place), rates, audits, broken).of([place[one] for one in order])
    alike = len({path.label for path in run.paths if set(path.devices) <= set(fit)}) <= 1
    # An interrupted run may lack some pairs, or all but a few at its largest size: not known to tie.
    whole = len(ranking.standings) == comb(len(order), 2) and not wired.missing.any()
    largest = ranking.size_bytes == max(_sizes(run, ranking.operation, fit))
    equal = ranking.all_tied and whole and largest
    return Case(
        order=order,
        order_of=_order_of(devices),
        wired=wired,
        levels=_levels(run, order, ranking),
        delta=max(ranking.delta, min(ranking.noise, _MOST_NOISE)),
        verdict=ranking.verdict,
        worst=min(standing.gbs for standing in ranking.standings),
        tied=equal and (alike or on_one_plane(wired)) and not wired.broken.any(),
        undecided=ranking.one_tier and not ranking.all_tied and whole and len(ranking.standings) > 1,
    )


def _rates(run: Run, ranking: Ranking, place: Mapping[int, int]) -> Rates:
    """Return what each pair of a run carries by what decides, GB/s; 0 where it, or one way of a copy, has no sample."""
    rates = np.zeros((len(place), len(place)))
    one_way = ranking.operation.is_copy
    found = {
        members: summarize(cell).busbw
        for members, cell in cells_of(run, Work(ranking.operation), ranking.size_bytes).items()
    }
    for (source, target), gbs in found.items():
        if not one_way or (target, source) in found:
            a, b = place[source], place[target]
            rates[a, b] = rates[b, a] = min(gbs, found.get((target, source), gbs))
    for (source, target), more in _faster_ways(run, ranking).items():
        rates[place[source], place[target]] *= more
    return rates


def from_labels(devices: Sequence[Device], paths: Sequence[Path], fit: Collection[int]) -> Case:
    """Return the case that labels alone make, with the rates that such labels have on healthy machines."""
    order = in_bus_order(devices, fit)
    place = {position: at for at, position in enumerate(order)}
    known = _paths(paths, place)
    rates = guessed_rates(len(order), known)
    found = sorted({path.label for path in known.values()})
    return Case(
        order=order,
        order_of=_order_of(devices),
        wired=wiring([devices[position] for position in order], known, rates),
        levels=(_numa([devices[position] for position in order]),),
        delta=_DELTA,
        verdict=f"all pairs have the label {found[0]}" if len(found) == 1 else f"{len(found)} different labels",
        worst=float(rates[~np.eye(len(order), dtype=bool)].min()) if len(order) > 1 else 0.0,
        tied=len(found) <= 1,
        undecided=False,
    )


def from_rates(devices: Sequence[Device], rates: Rates, paths: Sequence[Path] = ()) -> Case:
    """Return the case that a matrix of rates makes, GB/s, row source and column destination; 0 is not measured."""
    order = in_bus_order(devices, range(len(devices)))
    place = {position: at for at, position in enumerate(order)}
    ordered = rates[np.ix_(order, order)]
    inside = ordered[~np.eye(len(order), dtype=bool)]
    spread = 1 - inside.min() / inside.max() if len(inside) and inside.max() > 0 else 0.0
    return Case(
        order=order,
        order_of=_order_of(devices),
        wired=wiring([devices[position] for position in order], _paths(paths, place), ordered),
        levels=(_numa([devices[position] for position in order]),),
        delta=_DELTA,
        verdict=f"all pairs are within {spread:.1%}" if spread <= _DELTA else f"pairs differ by up to {spread:.0%}",
        worst=float(inside.min()) if len(inside) else 0.0,
        tied=bool(spread <= _DELTA),
        undecided=False,
    )


def _sizes(run: Run, operation: Operation, among: Collection[int] | None) -> Counter[int]:
    """Return how many pairs each size of an operation has."""
    cells = (m.cell for m in run.measured() if m.cell.operation is operation and len(m.cell.members) == 2)
    return Counter(cell.size_bytes for cell in cells if among is None or set(cell.members) <= set(among))


def _only(run: Run, among: Collection[int] | None) -> Run:
    """Return the run with the cells of these positions alone."""
    if among is None or len(among) == len(run.devices):
        return run
    return replace(run, measurements=[m for m in run.measurements if set(m.cell.members) <= set(among)])


def _faster_ways(run: Run, ranking: Ranking) -> dict[tuple[int, int], float]:
    """Return links that are faster than the way back, by how much: a ranking has the slower direction of each pair."""
    for operation in (ranking.operation,) if ranking.operation.is_copy else _COPIES:
        sizes = _sizes(run, operation, None)
        links = rank_links(run, Work(operation), max(sizes)) if sizes else None
        if links:
            rates = {standing.pair: standing.gbs for standing in links.standings}
            more = {link: rate / rates.get(link[::-1], rate) for link, rate in rates.items()}
            return {(a, b): ratio for (a, b), ratio in more.items() if ratio > _ASYMMETRIC}
    return {}


def _paths(paths: Sequence[Path], place: dict[int, int]) -> dict[tuple[int, int], Path]:
    inside = (path for path in paths if set(path.devices) <= place.keys())
    return {(min(pair), max(pair)): path for path in inside for pair in [tuple(place[d] for d in path.devices)]}


def _levels(run: Run, order: tuple[int, ...], ranking: Ranking) -> tuple[Level, ...]:
    """Return METHOD.md §6's tie-breaks but the remainder and the PCI bus id, which need no run."""
    busy, suspect = fitness.marks(run, order)
    return (
        Level("the fewest GPUs that others use", tiebreak.members_with(np.array(busy))),
        Level("the fewest GPUs with throttling or errors", tiebreak.members_with(np.array(suspect))),
        Level("the lower latency of small messages", _latencies(run, order, ranking)),
        _numa([run.devices[position] for position in order]),
    )


def _latencies(run: Run, order: tuple[int, ...], ranking: Ranking) -> Callable[[Sets], Rates]:
    """Return what finds each set's worst tier by the smallest message; no set is worse where not all pairs have one."""
    tiers = np.ones((len(order), len(order)))
    sizes = _sizes(run, ranking.operation, order)
    size = min(sizes)
    if size <= _SMALL_BYTES and size < ranking.size_bytes and sizes[size] >= sizes[ranking.size_bytes]:
        found = rank_pairs(_only(run, order), ranking.operation, size, order)
        for standing in found.standings if found else ():
            a, b = (order.index(member) for member in standing.pair)
            tiers[a, b] = tiers[b, a] = standing.tier
    return tiebreak.worst_inside(tiers)


def _numa(devices: Sequence[Device]) -> Level:
    names = [(device.host, device.numa_node) for device in devices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = np.array([numbers[name] for name in names], dtype=np.intp)
    return Level("the fewest NUMA nodes", tiebreak.different(groups))
