"""The problem of choosing k devices: those that are fit, their wiring, tie-breaks (docs/method/choosing.md 1 to 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from collbench.choose.bands import on_one_plane
from collbench.choose.choice import EXCLUDED, LeftOut, TieBreak, Unfit, Why
from collbench.choose.rings import Sets, masks
from collbench.choose.wiring import Wiring, guessed_rates, wiring
from collbench.judge.outcome import outcome
from collbench.judge.registration import ordinary
from collbench.judge.stats import DELTA, summarize
from collbench.judge.tier_words import verdict_of
from collbench.judge.tiers import Ranking, points_of, rank_links, rank_pairs
from collbench.machine.health import BUSY_PERCENT, holds_back, only_opened
from collbench.model.operations import Operation, Work
from collbench.model.run import Device, FlagKind, Health, Path, Run, new_errors
from collbench.model.units import SMALL_BYTES, amount, format_approximate_size

# How to choose among sets that tie by bandwidth (docs/method/choosing.md 4): level by level, until one is left.

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """One tie-break: `costs` returns a figure for each set, the lower the better."""

    tie_break: TieBreak
    costs: Callable[[Sets], Values]


def decide(sets: Sets, levels: Sequence[Level], order: TieBreak) -> tuple[int, tuple[TieBreak, ...]]:
    """Return the index of the set that wins and the tie-breaks that decided, none for a single set.

    Sets are rows of positions, and their order decides last; `order` is the tie-break that it stands for.
    """
    indices, used = np.arange(len(sets)), list[TieBreak]()
    for level in levels:
        if len(indices) > 1:
            costs = level.costs(sets[indices])
            used += [level.tie_break] if costs.max() > costs.min() else []
            indices = indices[costs == costs.min()]
    if len(indices) > 1:
        used.append(order)
        indices = indices[np.lexsort(sets[indices].T[::-1])]
    return int(indices[0]), tuple(used)


def members_with(marks: NDArray[np.bool_]) -> Callable[[Sets], Values]:
    """Return the function that counts the marked members of each set."""
    return lambda sets: marks[sets].sum(axis=1).astype(float)


def worst_inside(tiers: Values) -> Callable[[Sets], Values]:
    """Return the function that finds the worst value of any pair within each set."""
    return lambda sets: np.asarray(tiers[sets[:, :, None], sets[:, None, :]].max(axis=(1, 2)))


def different(groups: NDArray[np.intp]) -> Callable[[Sets], Values]:
    """Return the function that counts the groups to which the members of each set belong."""

    def count(sets: Sets) -> Values:
        ordered = np.sort(groups[sets], axis=1)
        return np.asarray(1.0 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1))

    return count


def what_remains(sets: Sets, values: Values, delta: float) -> Callable[[Sets], Values]:
    """Return the function that costs 0 for a set if the best of `sets` among the devices that it leaves is as good as
    any other set leaves, up to δ, and 1 if not.
    """
    every = masks(sets)
    order = np.argsort(-values, kind="stable")

    def costs(some: Sets) -> Values:
        mine = masks(some)
        left, open_indices = np.zeros(len(some)), np.arange(len(some))
        for position in order.tolist():
            apart = (mine[open_indices] & every[position]) == 0
            left[open_indices[apart]] = values[position]
            open_indices = open_indices[~apart]
            if not len(open_indices):
                break
        return np.where(left >= left.max() * (1 - delta), 0.0, 1.0)

    return costs


# Which devices are fit for a job: not in use, not throttled, not faulty (docs/method/choosing.md 1).

# A CUDA context takes 300 MB and more: less in use, and no process, means that the GPU is idle.
_IDLE_BYTES = 256 * 2**20
# A training job wants most of the memory; a desktop's own use of it is a few percent.
_LEAST_FREE = 0.5
# A single flagged trial may be a spike of power; a tenth of them is a state.
_FLAGGED_SHARE = 0.1
# One failed pair may be either device's or the link's; with two partners it is the device that they share.
_BLAMED_PARTNERS = 2


@dataclass(frozen=True, slots=True)
class _Signs:
    """Each device's number of trials and of trials with each flag, and the device to blame for failed pairs."""

    trials: Counter[int]
    flagged: Counter[tuple[FlagKind, int]]
    blamed: int | None

    def share(self, position: int, kind: FlagKind) -> float:
        """Return the share of a device's trials that have such a flag about it."""
        return self.flagged[kind, position] / max(1, self.trials[position])


def left_out(
    run: Run, exclude: Collection[int] = (), *, allow_busy: bool = False, allow_throttled: bool = False
) -> tuple[LeftOut, ...]:
    """Return the devices that are not to be chosen, by position, each with its reasons.

    Faulty ones are always left out; busy and throttled ones unless `allow_busy`, throttled ones unless
    `allow_throttled`. If all devices are throttled, throttling leaves none out.
    """
    rest = [position for position in range(len(run.devices)) if position not in exclude]
    signs = _signs(run)
    slowed = {position: _throttled(run, position, signs) for position in rest}
    reasons = {position: [EXCLUDED] for position in exclude}
    for position in rest:
        reasons[position] = _faults(run, position, signs)
        if not allow_busy:
            reasons[position] += _busy(run, position, signs)
            reasons[position] += slowed[position] if not (allow_throttled or all(slowed.values())) else []
    return tuple(LeftOut(position, tuple(why)) for position, why in sorted(reasons.items()) if why)


def marks(run: Run, order: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Return for each of these positions whether others use it, and whether any sign of a fault was seen on it."""
    signs = _signs(run)
    opened = [only_opened(_state(run.health_before, position)) for position in order]
    busy = [bool(_busy(run, position, signs)) or others for position, others in zip(order, opened, strict=True)]
    suspect = [
        bool(_throttled(run, position, signs) or _faults(run, position, signs))
        or signs.flagged[FlagKind.THROTTLED, position] > 0
        for position in order
    ]
    return busy, suspect


def _busy(run: Run, position: int, signs: _Signs) -> list[Why]:
    """Return how a device is in use by others: processes, utilisation in percent, memory; empty if it is not."""
    before = _state(run.health_before, position)
    reasons = _others(before, _state(run.health_after, position), signs.share(position, FlagKind.SHARED))
    used = before.memory_used
    idle = before.processes == 0 and used is not None and used < _IDLE_BYTES
    if (before.utilization or 0) > BUSY_PERCENT and not idle:
        reasons.append(Why(Unfit.BUSY, f"busy: {before.utilization:.0f}% utilization"))
    memory = run.devices[position].memory_bytes
    if used is not None and memory and memory - used < _LEAST_FREE * memory:
        free, total = map(format_approximate_size, (max(memory - used, 0), memory))
        reasons.append(Why(Unfit.BUSY, f"busy: only {free} of {total} free"))
    return reasons


def _others(before: Health, after: Health, share: float) -> list[Why]:
    """Return whether other processes use a device, or used it in this share of its trials."""
    if only_opened(before):
        return []  # a tie-break prefers a device that no process has opened
    if count := max(before.processes or 0, after.processes or 0):
        return [Why(Unfit.BUSY, f"busy: {count} other process{'' if count == 1 else 'es'}")]
    return [Why(Unfit.BUSY, f"busy: another process in {share:.0%} of its trials")] if share >= _FLAGGED_SHARE else []


def _throttled(run: Run, position: int, signs: _Signs) -> list[Why]:
    """Return why a device was throttled, before or after the run or in a tenth of its trials; empty if it was not."""
    states = (_state(run.health_before, position), _state(run.health_after, position))
    reasons = {reason for state in states for reason in state.throttle if holds_back(reason)}
    if reasons:
        return [Why(Unfit.THROTTLED, f"throttled: {', '.join(sorted(reasons))}")]
    share = signs.share(position, FlagKind.THROTTLED)
    return [Why(Unfit.THROTTLED, f"throttled in {share:.0%} of its trials")] if share >= _FLAGGED_SHARE else []


def broken_pairs(run: Run) -> set[frozenset[int]]:
    """Return the pairs on which anything failed or moved wrong data."""
    return {frozenset(members) for members in outcome(run).device_sets if len(members) == 2}


def _faults(run: Run, position: int, signs: _Signs) -> list[Why]:
    before, after = _state(run.health_before, position), _state(run.health_after, position)
    reasons = []
    if ecc := max(before.ecc_errors or 0, after.ecc_errors or 0):
        reasons.append(Why(Unfit.FAULTY, f"faulty: {amount(ecc, 'uncorrected ECC error')}"))
    if grown := new_errors(run, "nvlink_errors").get(position):
        reasons.append(Why(Unfit.FAULTY, f"faulty: {amount(grown[1] - grown[0], 'new NVLink error')}"))
    if position == signs.blamed:
        reasons.append(Why(Unfit.FAULTY, "faulty: only its pairs failed or moved wrong data"))
    return reasons


def _blamed(run: Run) -> int | None:
    """Return the one device that all failed pairs share, None without two failed pairs and one such device."""
    bad = (m.point.work.place(m.point.members) for m in run.measurements if m.wrong or (m.failure and not m.untried))
    pairs = {frozenset(members) for members in bad if len(members) == 2}
    partners = Counter(member for pair in pairs for member in pair)
    shared = [member for member, count in partners.items() if count == len(pairs) >= _BLAMED_PARTNERS]
    return shared[0] if len(shared) == 1 else None


def _state(states: tuple[Health, ...], position: int) -> Health:
    return states[position] if position < len(states) else Health()


def _signs(run: Run) -> _Signs:
    trials, flagged = Counter[int](), Counter[tuple[FlagKind, int]]()
    for measurement in run.measurements:
        for position in measurement.point.members:
            trials[position] += len(measurement.samples)
        for sample in measurement.samples:
            if not sample.flags:
                continue
            about = {(flag.kind, position) for flag in sample.flags for position in flag.devices}
            flagged.update((kind, position) for kind, position in about if position in measurement.point.members)
    return _Signs(trials, flagged, _blamed(run))


# The problem: the fit devices in the order of their PCI bus ids, how they are wired, and what else distinguishes them.

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
# Two directions of a link differ from here on [docs/method/verdicts.md 5, ASYMMETRY].
_ASYMMETRIC = 1.10
# Sets are distinguished by what several noisy pairs show together, up to this much.
_MOST_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class SelectionProblem:
    """Which k of these devices are best? They are numbered by PCI bus id; `order` has the run's position of each.

    `order_of` is BUS_ID, or INDEX for devices without PCI bus ids, such as CPU cores. `delta` is the ratio up to which
    two sets are equal. `grounds` says in a clause whether pairs differ, `worst` is the slowest measured pair in GB/s.
    `tied`: no set can be better than another. `undecided`: no pair is significantly better, but not all are known to be
    equal. `failed` are the sets, in these numbers, on which something failed.
    """

    order: tuple[int, ...]
    order_of: TieBreak
    wired: Wiring
    levels: tuple[Level, ...]
    delta: float
    grounds: str
    worst: float
    tied: bool
    undecided: bool
    failed: tuple[tuple[int, ...], ...] = ()


def evidence(run: Run, among: Collection[int] | None = None) -> Ranking | None:
    """Return the ranking that decides: the first operation with pairs, at its largest size. None without any.

    An interrupted run may hold few pairs at the largest size; then the largest that has half as many as any decides.
    `among` restricts it to pairs of these positions. What differs or ties does so in another run, too: the job has
    communicators of its own. What a run does to all pairs alike cancels.
    """
    from collbench.judge.between_runs import another_run  # late: only what was measured needs it

    run = ordinary(run)
    for operation in _EVIDENCE:
        pairs = _sizes(run, operation, among)
        if pairs:
            enough = max(pairs.values()) / 2
            size = max(size for size, count in pairs.items() if count >= enough)
            return rank_pairs(_only(run, among), operation, size, among, another_run)
    return None


def in_bus_order(devices: Sequence[Device], among: Collection[int]) -> tuple[int, ...]:
    """Return positions in the order of PCI bus ids, so that the order in which devices were listed decides nothing."""

    def identity(position: int) -> tuple[str, str, str, int]:
        one = devices[position]
        bus = one.pci_bus_id.upper()
        return one.host, bus, one.uuid if bus else "", one.index

    return tuple(sorted(among, key=identity))


def _order_of(devices: Sequence[Device]) -> TieBreak:
    return TieBreak.BUS_ID if all(one.pci_bus_id for one in devices) else TieBreak.INDEX


def from_run(run: Run, fit: Collection[int], ranking: Ranking, without: str = "") -> SelectionProblem:
    """Return the problem of choosing among a run's fit devices, by the ranking of their pairs.

    How the machine is wired is what all of its devices show, also those that may not be chosen, which `without` names.
    """
    every = in_bus_order(run.devices, range(len(run.devices)))
    order = tuple(position for position in every if position in set(fit))
    index = {position: at for at, position in enumerate(every)}
    rates = _rates(run, ranking, index)
    broken = np.zeros(rates.shape, dtype=bool)
    for pair in broken_pairs(run):
        a, b = (index[member] for member in pair)
        broken[a, b] = broken[b, a] = True
    devices = [run.devices[position] for position in every]
    checks = [check for check in run.interference_checks if check.operation is ranking.operation]
    wired = wiring(devices, _paths(run.paths, index), rates, checks, broken).of([index[one] for one in order])
    alike = len({path.label for path in run.paths if set(path.devices) <= set(fit)}) <= 1
    # An interrupted run may lack some pairs, or all but a few at its largest size: not known to tie.
    whole = len(ranking.standings) == comb(len(order), 2) and not wired.missing.any()
    largest = ranking.size_bytes == max(_sizes(run, ranking.operation, fit))
    equal = ranking.all_tied and whole and largest
    return SelectionProblem(
        order=order,
        order_of=_order_of(devices),
        wired=wired,
        levels=_levels(run, order, ranking),
        delta=max(ranking.delta, min(ranking.noise, _MOST_NOISE)),
        grounds=verdict_of(ranking, without),
        worst=min(standing.gbs for standing in ranking.standings),
        tied=equal and (alike or on_one_plane(wired)) and not wired.broken.any(),
        undecided=ranking.one_tier and not ranking.all_tied and whole and len(ranking.standings) > 1,
        failed=tuple(tuple(map(order.index, some)) for some in outcome(run).within(order) if some),
    )


def _rates(run: Run, ranking: Ranking, index: Mapping[int, int]) -> Rates:
    """Return each pair's rate at the ranking's size, GB/s; 0 if the pair, or one direction of a copy, has no sample."""
    rates = np.zeros((len(index), len(index)))
    one_way = ranking.operation.is_copy
    measured = {
        members: summarize(point).busbw
        for members, point in points_of(run, Work(ranking.operation), ranking.size_bytes).items()
    }
    for (source, target), gbs in measured.items():
        if not one_way or (target, source) in measured:
            a, b = index[source], index[target]
            rates[a, b] = rates[b, a] = min(gbs, measured.get((target, source), gbs))
    for (source, target), more in _faster_ways(run, ranking).items():
        rates[index[source], index[target]] *= more
    return rates


def from_labels(
    devices: Sequence[Device], paths: Sequence[Path], fit: Collection[int], without: str = ""
) -> SelectionProblem:
    """Return the problem that labels alone pose, with the rates that such labels have on healthy machines."""
    order = in_bus_order(devices, fit)
    known = _paths(paths, {position: at for at, position in enumerate(order)})
    labels = sorted({path.label for path in known.values()})
    ours, rates = [devices[position] for position in order], guessed_rates(len(order), known)
    inside = rates[~np.eye(len(order), dtype=bool)]
    return SelectionProblem(
        order=order,
        order_of=_order_of(devices),
        wired=wiring(ours, known, rates),
        levels=(_numa(ours),),
        delta=DELTA,
        grounds=f"all pairs{without} have the label {labels[0]}" if len(labels) == 1 else "",
        worst=float(inside.min()) if len(inside) else 0.0,
        tied=len(labels) <= 1,
        undecided=False,
    )


def _sizes(run: Run, operation: Operation, among: Collection[int] | None) -> Counter[int]:
    """Return how many pairs each size of an operation has."""
    points = (m.point for m in run.measured() if m.point.operation is operation and len(m.point.members) == 2)
    return Counter(point.size_bytes for point in points if among is None or set(point.members) <= set(among))


def _only(run: Run, among: Collection[int] | None) -> Run:
    """Return the run with the data points of these positions alone."""
    if among is None or len(among) == len(run.devices):
        return run
    return replace(run, measurements=[m for m in run.measurements if set(m.point.members) <= set(among)])


def _faster_ways(run: Run, ranking: Ranking) -> dict[tuple[int, int], float]:
    """Return links that are faster than the opposite ones, with the ratio: a ranking has a pair's slower direction."""
    for operation in (ranking.operation,) if ranking.operation.is_copy else _COPIES:
        sizes = _sizes(run, operation, None)
        links = rank_links(run, Work(operation), max(sizes)) if sizes else None
        if links:
            rates = {standing.pair: standing.gbs for standing in links.standings}
            more = {link: rate / rates.get(link[::-1], rate) for link, rate in rates.items()}
            return {(a, b): ratio for (a, b), ratio in more.items() if ratio > _ASYMMETRIC}
    return {}


def _paths(paths: Sequence[Path], index: dict[int, int]) -> dict[tuple[int, int], Path]:
    inside = (path for path in paths if set(path.devices) <= index.keys())
    return {(min(pair), max(pair)): path for path in inside for pair in [tuple(index[d] for d in path.devices)]}


def _levels(run: Run, order: tuple[int, ...], ranking: Ranking) -> tuple[Level, ...]:
    """Return the tie-breaks of method/choosing.md 4, except the remainder and the PCI bus id, which need no run."""
    busy, suspect = marks(run, order)
    return (
        Level(TieBreak.IN_USE, members_with(np.array(busy))),
        Level(TieBreak.SUSPECT, members_with(np.array(suspect))),
        Level(TieBreak.LATENCY, _latencies(run, order, ranking)),
        _numa([run.devices[position] for position in order]),
    )


def _latencies(run: Run, order: tuple[int, ...], ranking: Ranking) -> Callable[[Sets], Rates]:
    """Return the function that finds each set's worst tier of latency; all are 1 unless every pair has a small size."""
    tiers = np.ones((len(order), len(order)))
    sizes = _sizes(run, ranking.operation, order)
    size = min(sizes)
    if size <= SMALL_BYTES and size < ranking.size_bytes and sizes[size] >= sizes[ranking.size_bytes]:
        ranking_here = rank_pairs(_only(run, order), ranking.operation, size, order)
        for standing in ranking_here.standings if ranking_here else ():
            a, b = (order.index(member) for member in standing.pair)
            tiers[a, b] = tiers[b, a] = standing.tier
    return worst_inside(tiers)


def _numa(devices: Sequence[Device]) -> Level:
    names = [(device.host, device.numa_node) for device in devices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = np.array([numbers[name] for name in names], dtype=np.intp)
    return Level(TieBreak.NUMA_NODES, different(groups))
