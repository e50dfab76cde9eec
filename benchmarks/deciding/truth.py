"""What is true of a simulated machine, from the fabric alone and without noise: what a tier or a verdict must not deny.

Each data point's time is that of its only step on a silent copy of the machine; nothing of it comes from the rules
judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from collbench.analysis.diagnose import Kind, Severity, Verdict
from collbench.analysis.tiers import Ranking, rank_links
from collbench.backends.protocol import time_step
from collbench.backends.sim import SimBackend
from collbench.bench.plan import Request, make_plan
from collbench.machine.labels import rank_key
from collbench.model.errors import CollbenchError
from collbench.model.operations import Variant, Work
from collbench.model.run import DataPoint, Run
from collbench.sim.fabrics import Fabric, Noise

Members = tuple[int, ...]
Times = Mapping[DataPoint, float]

EQUAL = 1e-3  # links whose times differ by less are one: far below δ, far above rounding
# docs/method.md 10.2: 10 %. An outlier is claimed from 2.5 % on; what is 2 % below the best may be called so.
_INVERTED, _ONE_WAY, _OUTLYING = math.log(1.1), math.log(1 / 0.9), 0.02


def times(fabric: Fabric, request: Request) -> dict[DataPoint, float]:
    """Return each data point's true seconds, measured alone and without noise; data points that fail are left out."""
    backend = SimBackend(replace(fabric, noise=Noise(0.0, 0.0)), 0)
    plan, _ = make_plan(request, backend)
    found = {}
    for point in plan.points():
        try:
            timing = time_step(backend, plan.step(point.work, [point.members], point.size_bytes))
        except CollbenchError:
            continue
        found[point] = timing.seconds[0][0]
    return found


def false_splits(run: Run, true: Times) -> list[str]:
    """Return the works and sizes at which a link is in a lower tier than one that is truly no faster."""
    works = {Work(operation) for operation in run.settings.operations}
    sizes = (min(run.settings.sizes), max(run.settings.sizes))  # what `rank` shows
    rankings = (rank_links(run, work, size) for work in sorted(works, key=str) for size in sizes)
    return [f"{r.work} {r.size_bytes}" for r in rankings if r is not None and _splits_equals(r, true)]


def _splits_equals(ranking: Ranking, true: Times) -> bool:
    slowest_above, slowest_so_far, tier = 0.0, 0.0, 1
    for standing in ranking.standings:
        if standing.tier > tier:
            tier, slowest_above = standing.tier, slowest_so_far
        seconds = true[DataPoint(ranking.operation, standing.members, ranking.size_bytes, ranking.work.variant)]
        if seconds <= slowest_above * (1 + EQUAL):
            return True
        slowest_so_far = max(slowest_so_far, seconds)
    return False


def contradictions(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.severity is not Severity.INFO]


def holds(verdict: Verdict, run: Run, true: Times) -> bool:
    """Return whether what a verdict says of rates is so; False for kinds that a machine without that fault cannot show.

    Three kinds compare links, and a healthy machine may truly have such links (labels name ways, not rates).
    """
    rates = _rates(true)
    labels = {frozenset(path.devices): (path.label, path.theory_gbs) for path in run.paths}
    if verdict.kind is Kind.ORDER_INVERSION:
        return any(_inverted(verdict, found, labels) for found in rates.values())
    if verdict.kind is Kind.INTRA_LABEL_OUTLIER:
        return any(_outlying(verdict, found, labels) for found in rates.values())
    if verdict.kind is Kind.ASYMMETRY:
        return any(_one_way(verdict, found) for found in rates.values())
    return False


def _rates(true: Times) -> dict[Work, dict[Members, float]]:
    """Return the logs of GB/s of pairs at the largest size of each work."""
    largest: dict[Work, int] = defaultdict(int)
    for point in true:
        largest[point.work] = max(largest[point.work], point.size_bytes)
    found: dict[Work, dict[Members, float]] = defaultdict(dict)
    for point, seconds in true.items():
        if len(point.members) == 2 and point.variant is Variant.PLAIN and point.size_bytes == largest[point.work]:
            found[point.work][point.members] = -math.log(seconds)
    return found


def _concerned(verdict: Verdict, rates: Mapping[Members, float]) -> Iterator[Members]:
    named = set(verdict.members)
    for members in rates:
        if (len(named) == 1 and named & set(members)) or set(members) <= named:
            yield members


def _inverted(
    verdict: Verdict, rates: Mapping[Members, float], labels: Mapping[frozenset[int], tuple[str, float | None]]
) -> bool:
    own = [rates[m] for m in _concerned(verdict, rates) if labels[frozenset(m)][0] == verdict.label]
    others: dict[str, list[float]] = defaultdict(list)
    for members, rate in rates.items():
        others[labels[frozenset(members)][0]].append(rate)
    worse = [found for label, found in others.items() if rank_key(label) > rank_key(verdict.label)]
    return bool(own) and any(median(found) - median(own) > _INVERTED - EQUAL for found in worse)


def _outlying(
    verdict: Verdict, rates: Mapping[Members, float], labels: Mapping[frozenset[int], tuple[str, float | None]]
) -> bool:
    for members in _concerned(verdict, rates):
        alike = [rates[other] for other in rates if labels[frozenset(other)] == labels[frozenset(members)]]
        if labels[frozenset(members)][0] == verdict.label and max(alike) - rates[members] > _OUTLYING:
            return True
    return False


def _one_way(verdict: Verdict, rates: Mapping[Members, float]) -> bool:
    return any(rates.get(m[::-1], -math.inf) - rates[m] > _ONE_WAY - EQUAL for m in _concerned(verdict, rates))
