"""The truth of a simulated machine, without noise: a tier or a verdict that contradicts it is false.

Each data point's time is that of one step on a copy of the machine without noise; none of the judged rules is used.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from collbench.judge.diagnose import Kind, Severity, Verdict
from collbench.judge.tiers import Ranking, rank_links
from collbench.machine.labels import rank_key
from collbench.measurement.backends.protocol import time_step
from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.plan import Request, make_plan
from collbench.model.errors import CollbenchError
from collbench.model.operations import Variant, Work
from collbench.model.run import DataPoint, Run
from collbench.sim.fabrics import Fabric, Noise

Members = tuple[int, ...]
Seconds = Mapping[DataPoint, float]

EQUAL = 1e-3  # links whose times differ by less are equal: far below δ, far above rounding
# method/verdicts.md 5: 10%. collbench reports outliers from 2.5% on; here a link 2% below the best may be called one.
_INVERTED, _ONE_WAY, _OUTLYING = math.log(1.1), math.log(1 / 0.9), 0.02


def true_times(fabric: Fabric, request: Request) -> dict[DataPoint, float]:
    """Return each data point's true seconds, isolated and without noise; data points that fail are left out."""
    backend = SimBackend(replace(fabric, noise=Noise(0.0, 0.0)), 0)
    plan, _ = make_plan(request, backend)
    seconds_of = {}
    for point in plan.points():
        try:
            timing = time_step(backend, plan.step(point.work, [point.members], point.size_bytes))
        except CollbenchError:
            continue
        seconds_of[point] = timing.seconds[0][0]
    return seconds_of


def false_splits(run: Run, truth: Seconds) -> list[str]:
    """Return the works and sizes at which a link is in a lower tier than another that is truly no faster."""
    works = {Work(operation) for operation in run.settings.operations}
    sizes = (min(run.settings.sizes), max(run.settings.sizes))  # what `rank` shows
    rankings = (rank_links(run, work, size) for work in sorted(works, key=str) for size in sizes)
    return [f"{r.work} {r.size_bytes}" for r in rankings if r is not None and _splits_equals(r, truth)]


def _splits_equals(ranking: Ranking, truth: Seconds) -> bool:
    slowest_above, slowest_so_far, tier = 0.0, 0.0, 1
    for link in ranking.standings:
        if link.tier > tier:
            tier, slowest_above = link.tier, slowest_so_far
        seconds = truth[DataPoint(ranking.operation, link.members, ranking.size_bytes, ranking.work.variant)]
        if seconds <= slowest_above * (1 + EQUAL):
            return True
        slowest_so_far = max(slowest_so_far, seconds)
    return False


def contradictions(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.severity is not Severity.INFO]


def is_true(verdict: Verdict, run: Run, truth: Seconds) -> bool:
    """Return whether a verdict on rates is true; False for kinds that a machine without that fault cannot show.

    Three kinds compare links, and a healthy machine may truly have such links (labels name paths, not rates).
    """
    rates = _rates(truth)
    labels = {frozenset(path.devices): (path.label, path.theory_gbs) for path in run.paths}
    if verdict.kind is Kind.ORDER_INVERSION:
        return any(_inverted(verdict, pair_rates, labels) for pair_rates in rates.values())
    if verdict.kind is Kind.INTRA_LABEL_OUTLIER:
        return any(_outlying(verdict, pair_rates, labels) for pair_rates in rates.values())
    if verdict.kind is Kind.ASYMMETRY:
        return any(_one_way(verdict, pair_rates) for pair_rates in rates.values())
    return False


def _rates(truth: Seconds) -> dict[Work, dict[Members, float]]:
    """Return -log(seconds) of pairs at the largest size of each work: log bandwidth up to a constant."""
    largest: dict[Work, int] = defaultdict(int)
    for point in truth:
        largest[point.work] = max(largest[point.work], point.size_bytes)
    log_rates: dict[Work, dict[Members, float]] = defaultdict(dict)
    for point, seconds in truth.items():
        if len(point.members) == 2 and point.variant is Variant.PLAIN and point.size_bytes == largest[point.work]:
            log_rates[point.work][point.members] = -math.log(seconds)
    return log_rates


def _concerned(verdict: Verdict, rates: Mapping[Members, float]) -> Iterator[Members]:
    named = set(verdict.members)
    for members in rates:
        if (len(named) == 1 and named & set(members)) or set(members) <= named:
            yield members


def _inverted(
    verdict: Verdict, rates: Mapping[Members, float], labels: Mapping[frozenset[int], tuple[str, float | None]]
) -> bool:
    own_rates = [rates[m] for m in _concerned(verdict, rates) if labels[frozenset(m)][0] == verdict.label]
    rates_by_label: dict[str, list[float]] = defaultdict(list)
    for members, rate in rates.items():
        rates_by_label[labels[frozenset(members)][0]].append(rate)
    rates_of_worse = [rates for label, rates in rates_by_label.items() if rank_key(label) > rank_key(verdict.label)]
    return bool(own_rates) and any(median(rates) - median(own_rates) > _INVERTED - EQUAL for rates in rates_of_worse)


def _outlying(
    verdict: Verdict, rates: Mapping[Members, float], labels: Mapping[frozenset[int], tuple[str, float | None]]
) -> bool:
    for members in _concerned(verdict, rates):
        same_label = [rates[peer] for peer in rates if labels[frozenset(peer)] == labels[frozenset(members)]]
        if labels[frozenset(members)][0] == verdict.label and max(same_label) - rates[members] > _OUTLYING:
            return True
    return False


def _one_way(verdict: Verdict, rates: Mapping[Members, float]) -> bool:
    return any(rates.get(pair[::-1], -math.inf) - rates[pair] > _ONE_WAY - EQUAL for pair in _concerned(verdict, rates))
