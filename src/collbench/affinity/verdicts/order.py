"""Labels against each other: does a better one carry more?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from collbench.affinity.verdicts.likeness import by_label, link_state, rates_of, ways, works_of
from collbench.affinity.verdicts.limits import Odd, has_peers, path_limit
from collbench.affinity.verdicts.readings import Facts, Reading
from collbench.affinity.verdicts.verdict import Finding, Kind, Link, Told, both_ways, found
from collbench.machine.labels import UNKNOWN, is_nvlink, rank_key

# METHOD.md §5: "beats a better one by > 10 %", as a difference of log bandwidth.
_INVERTED = math.log(1.1)
# Words without a place in the order of labels.
_NO_ORDER = (UNKNOWN, "?", "NET", "mixed")
# METHOD.md §5: what carries more than this share of its limit is not degraded.
_WELL = 0.7
_MEDIAN_ERROR = 1.2533  # of the median of many normal values, over σ/√n
_MAD_TO_SIGMA = 1.4826

Members = tuple[int, ...]


class _Beaten(NamedTuple):
    """Readings that a worse label's beat by `gap`, a difference of logs."""

    worse: str
    gap: float
    readings: Sequence[Reading]


def inversions(facts: Facts, odd: Odd) -> Iterator[Finding]:
    """Yield the groups of links that worse labels beat: GPUs that one label joins, by the middle of their links."""
    beaten: dict[Members, list[_Beaten]] = defaultdict(list)
    for work in (*facts.readings.works(collective=False), *facts.readings.works(collective=True)):
        groups = by_label(facts, work, odd)
        ordered = sorted((label for label in groups if label not in _NO_ORDER), key=rank_key)
        for better, worse in combinations(ordered, 2):
            for members, part in _joined(groups[better]).items():
                gap = _inversion(facts, part, groups[worse])
                if gap is not None:
                    beaten[members].append(_Beaten(worse, gap, part))
    for members, cases in beaten.items():
        yield _inverted(facts, members, cases)


def _inverted(facts: Facts, members: Members, cases: Sequence[_Beaten]) -> Finding:
    worst = max(cases, key=lambda case: case.gap)
    links = both_ways(link for case in cases for reading in case.readings for link in ways(reading))
    better = facts.label(min(links))
    told = Told(
        f"{better} pairs of {facts.tags(members)} carry {1 - math.exp(-worst.gap):.0%} less than {worst.worse} pairs, "
        f"though the label is better ({works_of(reading for case in cases for reading in case.readings)}).",
        _inverted_cause(facts, better, links),
        f"nvidia-smi topo -p2p r; {link_state(facts, min(links))}",
    )
    return found(Kind.ORDER_INVERSION, members, links, told, rates_of(facts, min(links), worst.readings))


def _joined(group: Sequence[Reading]) -> dict[Members, list[Reading]]:
    """Return a label's readings by the GPUs that it joins: those below one PCIe switch, say, share its faults."""
    islands: list[set[int]] = []
    for reading in group:
        touched = [island for island in islands if island & set(reading.members)]
        islands = [island for island in islands if island not in touched]
        islands.append(set(reading.members).union(*touched))
    return {tuple(sorted(i)): [reading for reading in group if set(reading.members) <= i] for i in islands}


def _inverted_cause(facts: Facts, better: str, links: Collection[Link]) -> str:
    if not all(has_peers(facts, link) for link in links):
        return (
            f"no peer access on {better} pairs: copies go up to host memory and down again, and near GPUs share that "
            "one uplink [nccl#1309]"
        )
    if is_nvlink(better):
        return "the NVLinks of these pairs are not used, or most of them are down"
    return f"{better} pairs share an uplink, or ACS sends their traffic up to the root and back: labels name no rates"


def _inversion(facts: Facts, better: Sequence[Reading], worse: Sequence[Reading]) -> float | None:
    """Return by how much (a difference of logs) the worse label wins for certain, None where it does not.

    A better label on slower slots is no contradiction while it makes use of them.
    """
    upper, upper_error = _typical(worse)
    lower, lower_error = _typical(better)
    gap = upper - lower
    if gap - facts.readings.z * math.hypot(upper_error, lower_error) <= _INVERTED:
        return None
    limits = [[path_limit(facts, (r.members[0], r.members[1])) for r in group] for group in (better, worse)]
    known = [[limit for limit in group if limit is not None] for group in limits]
    if all(known) and median(known[0]) < median(known[1]) and lower > math.log(_WELL * median(known[0])):
        return None
    return gap


def _typical(group: Sequence[Reading]) -> tuple[float, float]:
    """Return the middle of a label's links (log) and its error: of noise, and of links that differ truly."""
    middles = [reading.middle for reading in group]
    middle = median(middles)
    spread = _MAD_TO_SIGMA * median(abs(value - middle) for value in middles)
    error = math.hypot(max(reading.error for reading in group), spread)
    return middle, error if len(group) == 1 else _MEDIAN_ERROR * error / math.sqrt(len(group))
