"""The problem of choosing k devices, and its answer; posed by labels alone or a run (method/choosing.md 2 to 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.choose.bands import MAX_MEMBERS, all_sets, masks
from collbench.choose.choice import EXCLUDED, Candidate, Choice, LeftOut, TieBreak, Unfit
from collbench.choose.search import best, finalists, search, with_default
from collbench.choose.wiring import Sets, Values, Wiring, guessed_rates, wiring
from collbench.machine.labels import labels_within
from collbench.model.errors import UsageError
from collbench.model.run import Device, Members, Path, device_sets, tags
from collbench.model.units import DELTA, abridged, amount, fixed, verb

# How to choose among sets that tie by bandwidth (docs/method/choosing.md 4): level by level, until one is left.


class Level(NamedTuple):
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
    """Return the function that gives a set 0 if it leaves as good a set as any other does, up to δ, and else 1.

    A set leaves the best of `sets` among the other devices.
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


# The problem: the fit devices in the order of their PCI bus ids, how they are wired, and what else distinguishes them.


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


def in_bus_order(devices: Sequence[Device], among: Collection[int]) -> tuple[int, ...]:
    """Return positions in the order of PCI bus ids, so that the order in which devices were listed decides nothing."""

    def identity(position: int) -> tuple[str, str, str, int]:
        device = devices[position]
        bus = device.pci_bus_id.upper()
        return device.host, bus, device.uuid if bus else "", device.index

    return tuple(sorted(among, key=identity))


def ordered_by(devices: Sequence[Device]) -> TieBreak:
    """Return what the order of positions stands for: PCI bus ids, or indices for devices without."""
    return TieBreak.BUS_ID if all(device.pci_bus_id for device in devices) else TieBreak.INDEX


def paths_by_pair(paths: Sequence[Path], index: dict[int, int]) -> dict[tuple[int, int], Path]:
    """Return the paths among the positions of `index` by the numbers that it gives them, the lower first."""
    inside = (path for path in paths if set(path.devices) <= index.keys())
    return {(min(pair), max(pair)): path for path in inside for pair in [tuple(index[d] for d in path.devices)]}


def numa_level(devices: Sequence[Device]) -> Level:
    """Return the tie-break that prefers sets on few NUMA nodes."""
    names = [(device.host, device.numa_node) for device in devices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = np.array([numbers[name] for name in names], dtype=np.intp)
    return Level(TieBreak.NUMA_NODES, different(groups))


# Its answer: by bandwidth where it matters, then by the tie-breaks.

_FEW_LEFT_OUT, _FEW_PAIRS = 3, 4  # devices and pairs that a reason names

_HEURISTIC = ", found by a heuristic search"


def remaining(devices: Sequence[Device], k: int, out: tuple[LeftOut, ...]) -> list[int]:
    """Return the positions that may be chosen. Raises UsageError if they are too few."""
    n = len(devices)
    if not 1 <= k <= n:
        raise UsageError(f"cannot choose {k} of {n} devices: choose 1 to {n}")
    gone = {left.member: left for left in out}
    unknown = sorted(set(gone) - set(range(n)))
    if unknown:
        raise UsageError(f"cannot leave out device {unknown[0]}: there are {n}, counted from 0")
    fit = [position for position in range(n) if position not in gone]
    if len(fit) < k:
        named = "; ".join(f"{devices[left.member].tag} ({left.reason})" for left in out)
        busy = any(not {why.sort for why in left.why} & {Unfit.EXCLUDED, Unfit.FAULTY} for left in out)
        left = f"{len(fit)} {verb(len(fit), 'is', 'are')} left without {named}"
        advice = "choose fewer, or add --allow-busy" if busy else "choose fewer"
        raise UsageError(f"cannot choose {k} of {n} devices: {left}; {advice}")
    return fit


def without_clause(devices: Sequence[Device], out: Sequence[LeftOut]) -> str:
    """Return " without GPU3", "" if no device was left out."""
    few = tags([left.member for left in out], devices) if len(out) <= _FEW_LEFT_OUT else f"the {len(out)} left out"
    return f" without {few}" if out else ""


def decided(problem: SelectionProblem, k: int, without: str) -> Choice:
    """Return the choice among the devices of a problem: by bandwidth where it matters, then by the tie-breaks."""
    tied = k == 1 or problem.tied
    if tied:
        sets, heuristic = _tied_sets(problem, k)
        sets = sets[preferred(sets, problem.failed)]
        index, used = decide(sets, problem.levels, problem.order_of)
        members = tuple(sets[index].tolist())
        shortlist = with_default(problem.wired, [members]) if k > 1 else ()
        reason = "one device: there is no pair to compare" if k == 1 else problem.grounds
    else:
        candidates = search(problem.wired, k, problem.delta)
        candidates = candidates.only(preferred(candidates.sets, problem.failed))
        heuristic = candidates.heuristic
        equal = best(candidates, problem.delta)
        levels = problem.levels
        if not heuristic and 2 * k <= len(problem.order):
            costs = what_remains(candidates.sets, candidates.quick, problem.delta)
            levels = (*levels, Level(TieBreak.REMAINDER, costs))
        index, used = decide(candidates.sets[equal], levels, problem.order_of)
        shortlist = finalists(problem.wired, candidates, int(equal[index]), problem.delta)
        members, reason = shortlist[0].members, _why(problem, shortlist, without)
        reason += _HEURISTIC if heuristic else ""

    def positions(some: Members) -> Members:
        return tuple(sorted(problem.order[index] for index in some))

    return Choice(
        members=positions(members),
        reason=reason,
        band=shortlist[0].band if shortlist else None,
        finalists=tuple(replace(some, members=positions(some.members)) for some in shortlist),
        decided_by=used,
        tied=tied,
        heuristic=heuristic,
    )


def preferred(sets: Sets, failed: Sequence[Members]) -> NDArray[np.bool_]:
    """Return which sets to choose from, one flag each: those without a failure inside, all where there are none."""
    sound = np.ones(len(sets), dtype=bool)
    for some in failed:
        sound &= np.isin(sets, some).sum(axis=1) < len(some)
    return sound if sound.any() else ~sound


def _tied_sets(problem: SelectionProblem, k: int) -> tuple[Sets, bool]:
    """Return the sets for tie-breaks, and whether these are only some: above 16 devices, k in a row."""
    n = len(problem.order)
    if n <= MAX_MEMBERS or k == 1:
        return all_sets(n, k), False
    return np.sort((np.arange(n)[:, None] + np.arange(k)) % n, axis=1), True


def _why(problem: SelectionProblem, shortlist: tuple[Candidate, ...], without: str) -> str:
    """Return the reason, with the rate that the chosen set should reach unless no difference is significant."""
    chosen, default, k = shortlist[0], next(some for some in shortlist if some.default), len(shortlist[0].members)
    if problem.undecided:
        return problem.grounds
    if chosen.band.hi <= 0:
        return f"no set of {k} is without a fault"
    whole = "" if not default.band.unmeasured else ", not all of its pairs measured"
    other = f"same as the first {k}" if chosen is default else f"the first {k}: {default.band}{whole}"
    if k == 2 and not chosen.band.unmeasured:
        pair = f"worst {'measured ' if problem.wired.missing.any() else ''}pair"
        whose = f"the {pair}{without}" if without else f"the machine's {pair}"
        best, worst = fixed(chosen.band.lo, 3), fixed(problem.worst, 3)
        return f"{best} GB/s ({other}); {whose} reaches {f'{worst} GB/s' if worst != best else 'the same'}"
    return f"predicted {chosen.band} over {chosen.band.basis} ({other})"


# Labels alone, where nothing was measured.


def from_labels(
    devices: Sequence[Device], paths: Sequence[Path], fit: Collection[int], without: str = ""
) -> SelectionProblem:
    """Return the problem that labels alone pose, with the rates that such labels have on healthy machines."""
    order = in_bus_order(devices, fit)
    known = paths_by_pair(paths, {position: at for at, position in enumerate(order)})
    labels = sorted({path.label for path in known.values()})
    ours, rates = [devices[position] for position in order], guessed_rates(len(order), known)
    inside = rates[~np.eye(len(order), dtype=bool)]
    return SelectionProblem(
        order=order,
        order_of=ordered_by(devices),
        wired=wiring(ours, known, rates),
        levels=(numa_level(ours),),
        delta=DELTA,
        grounds=f"all pairs{without} have the label {labels[0]}" if len(labels) == 1 else "",
        worst=float(inside.min()) if len(inside) else 0.0,
        tied=len(labels) <= 1,
        undecided=False,
    )


def choose_by_labels(
    devices: Sequence[Device], paths: Sequence[Path], k: int, *, exclude: Collection[int] = ()
) -> Choice:
    """Return the k devices that are best by labels alone. Raises UsageError for an impossible k.

    A set with a pair to which nvidia-smi denies P2P is taken only if there is no other, and the reason then says so.
    """
    out = tuple(LeftOut(position, (EXCLUDED,)) for position in sorted(exclude))
    fit, without = remaining(devices, k, out), without_clause(devices, out)
    problem, denied = from_labels(devices, paths, fit, without), denied_peers(paths, fit)
    places = tuple(tuple(map(problem.order.index, pair)) for pair in denied)
    some_have_peers = len(denied) < math.comb(len(fit), 2)
    problem = replace(problem, failed=places, tied=problem.tied and not (denied and some_have_peers))
    choice = decided(problem, k, without)
    if choice.heuristic and denied_peers(paths, choice.members):
        apart = np.zeros((len(fit), len(fit)), dtype=bool)  # the search then grows sets without such pairs
        for a, b in places:
            apart[a, b] = apart[b, a] = True
        grown = decided(replace(problem, wired=replace(problem.wired, broken=apart), tied=False), k, without)
        choice = choice if denied_peers(paths, grown.members) else grown
    reason = choice.reason
    if not choice.tied and choice.band is not None:  # labels have an order, not rates
        between = labels_within(paths, choice.members)
        first = next(some for some in choice.finalists if some.default)
        basis = labels_within(paths, first.members)[0] if k == 2 else first.band.basis
        basis = "a pair without P2P" if denied_peers(paths, first.members) else basis
        other = f"same as the first {k}" if first.members == choice.members else f"the first {k}: {basis}"
        if k == 2:
            whose = f"the worst pair{without}" if without else "the machine's worst pair"
            reason = f"{between[0]} ({other}); {whose} has {labels_within(paths, fit)[-1]}"
        else:
            reason = f"{', '.join(between)} over {choice.band.basis} ({other})"
        reason += _HEURISTIC if choice.heuristic else ""
    if not some_have_peers and k > 1:
        reason += "; no pair has P2P"
    elif inside := denied_peers(paths, choice.members):
        names = abridged([device_sets([pair], devices) for pair in inside], _FEW_PAIRS)
        tried = " that was tried" if choice.heuristic else ""
        reason += f"; every set{tried} includes a pair without P2P, this one {names}"
    elif denied and k > 1:
        reason += f"; without {amount(len(denied), 'pair')} that {verb(len(denied), 'has', 'have')} no P2P"
    return replace(choice, reason=f"by labels, nothing was measured: {reason}", left_out=out, estimated=True)


def denied_peers(paths: Sequence[Path], members: Collection[int]) -> list[Members]:
    """Return the pairs among these positions to which `nvidia-smi topo -p2p` denies peer access, one way or both."""
    among = set(members)
    denied = (path.devices for path in paths if any(state.allows is False for state in path.tool_peer_access))
    return [pair for pair in denied if set(pair) <= among]
