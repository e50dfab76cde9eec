"""Which k devices to use, from a run: the set with the best ring, or a tie-break where the choice does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import comb

from collbench.affinity.rings import bottleneck_ring, ring_bound
from collbench.affinity.tiers import Ranking, rank_pairs
from collbench.errors import UsageError
from collbench.machine.limits import holds_back
from collbench.model import Run
from collbench.operations import Operation

# What training runs comes first; the copies stand in for it where no collective was measured.
_EVIDENCE = (
    Operation.ALLREDUCE,
    Operation.CE_WRITE,
    Operation.SM_WRITE,
    Operation.CPU_WRITE,
    Operation.CE_READ,
    Operation.SM_READ,
    Operation.CPU_READ,
    Operation.BROADCAST,
)
# C(16, 8) = 12,870 sets are searched exactly; more devices than that need the heuristic that is not written yet.
_MOST_DEVICES = 16
# Another process with memory on a GPU shares its time: METHOD.md §6's first tie-break.
_BUSY_UTILIZATION = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen positions, ascending, and why in half a sentence. `gbs` is the best ring's slowest edge."""

    members: tuple[int, ...]
    reason: str
    gbs: float


def evidence(run: Run) -> Ranking | None:
    """Return the ranking that decides: the first operation with pairs, at its largest size. None without any.

    An interrupted run may hold few pairs at the largest size; then the largest with the most pairs decides.
    """
    for operation in _EVIDENCE:
        pairs = Counter(
            m.cell.size_bytes for m in run.measured() if m.cell.operation is operation and len(m.cell.members) == 2
        )
        if pairs:
            return rank_pairs(run, operation, max(pairs, key=lambda size: (pairs[size], size)))
    return None


def choose(run: Run, k: int) -> Choice:
    """Return the best k devices of the run. Raises UsageError for a k that cannot be, or a run without pairs."""
    n = len(run.devices)
    if not 1 <= k <= n:
        raise UsageError(f"cannot choose {k} of {n} devices: choose 1 to {n}")
    ranking = evidence(run)
    if k == n:
        return Choice(tuple(range(n)), f"all {n} devices", ranking.standings[-1].gbs if ranking else 0.0)
    if ranking is None:
        raise UsageError("the run holds no pair: measure with 'collbench pairs' first")
    every_pair = len(ranking.standings) == comb(n, 2)  # an interrupted run may lack some: they are not known to tie
    if k == 1 or (ranking.all_tied and every_pair):
        return _tie_break(run, k, ranking)
    return _best_ring(run, k, ranking)


def _tie_break(run: Run, k: int, ranking: Ranking) -> Choice:
    members = min(combinations(range(len(run.devices)), k), key=lambda some: preference(run, some))
    word = "one device has no pair to compare" if k == 1 else ranking.verdict
    return Choice(members, word, ranking.standings[-1].gbs)


def _best_ring(run: Run, k: int, ranking: Ranking) -> Choice:
    """Search all sets: the best ring, then the best tie-break among rings that the tie threshold cannot tell apart."""
    if len(run.devices) > _MOST_DEVICES:
        raise UsageError(
            f"cannot search {len(run.devices)} devices exactly: choose among {_MOST_DEVICES} with --devices"
        )
    rates = {frozenset(standing.pair): standing.gbs for standing in ranking.standings}

    def rate(a: int, b: int) -> float:
        return rates.get(frozenset((a, b)), 0.0)

    bounded = sorted(
        ((ring_bound(some, rate), some) for some in combinations(range(len(run.devices)), k)), reverse=True
    )
    best, rings = 0.0, list[tuple[float, tuple[int, ...]]]()
    for bound, some in bounded:
        if bound < best * (1 - ranking.delta):
            break
        rings.append((bottleneck_ring(some, rate), some))
        best = max(best, rings[-1][0])
    equal = [(ring, some) for ring, some in rings if ring >= best * (1 - ranking.delta)]
    # Equal rings: a second ring may run over the links that the first leaves, so more bandwidth inside is better.
    inside = {some: sum(rate(a, b) for a, b in combinations(some, 2)) for _, some in equal}
    most = max(inside.values())
    richest = [(ring, some) for ring, some in equal if inside[some] >= most * (1 - ranking.delta)]
    ring, members = min(richest, key=lambda item: preference(run, item[1]))
    worst = min(rates.values())
    what = "it carries" if k == 2 else "its slowest ring edge carries"
    better = f"{what} {ring:.3g} GB/s, the machine's worst pair {worst:.3g}"
    return Choice(members, ranking.verdict if ranking.one_tier else better, ring)


def preference(run: Run, members: Iterable[int]) -> tuple[int, int, int, tuple[int, ...]]:
    """Return METHOD.md §6's tie-break, smaller is better: busy devices, throttled or faulty ones, NUMA nodes, order."""
    some = tuple(members)
    health = [run.health_before[m] for m in some] if len(run.health_before) == len(run.devices) else []
    busy = sum(bool(h.processes) or (h.utilization or 0) > _BUSY_UTILIZATION for h in health)
    faulty = sum(any(map(holds_back, h.throttle)) or bool(h.ecc_errors) for h in health)
    nodes = len({run.devices[m].numa_node for m in some})
    return busy, faulty, nodes, some
