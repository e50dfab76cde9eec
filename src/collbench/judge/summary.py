"""Summaries of a run: rankings of links and pairs (docs/method/statistics.md), the shares of host links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.judge.fits import Fit, Unfitted, fit_links
from collbench.judge.outcome import Outcome, outcome
from collbench.judge.stats import FEWEST_TRIALS, summarize
from collbench.judge.tiers import Missing, Ranking, points_of, rank_links, work_order
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Run
from collbench.model.units import SMALL_BYTES


@dataclass(frozen=True, slots=True)
class RankedWork:
    """One work's rankings: `bandwidth` at a large size, `latency` at a small one; and α–β fits over all sizes.

    `incomplete` are larger or smaller sizes not ranked because fewer sets of devices have them: (size in bytes, sets).
    """

    work: Work
    bandwidth: Ranking | None
    latency: Ranking | None
    fits: tuple[Fit | Unfitted, ...]
    incomplete: tuple[tuple[int, int], ...] = ()

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """The rankings there are."""
        return tuple(ranking for ranking in (self.bandwidth, self.latency) if ranking is not None)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What its rankings lack."""
        return tuple(lack for ranking in self.rankings for lack in ranking.missing)


def rank_summary(
    run: Run, operation: Operation | None = None, size_bytes: int | None = None, ended: Outcome | None = None
) -> tuple[RankedWork, ...]:
    """Return the tiers and fits of every work on links, pairs or devices, or of one operation, in the model's order.

    They are ranked at one size, or at the largest and the smallest. A work that lacks the size asked for has no ranking
    there. `ended` is the run's outcome if it is known already.
    """
    ended = ended or outcome(run)
    return tuple(
        _ranked(run, ended, work, counts, size_bytes)
        for work, counts in _measured(run).items()
        if operation in (None, work.operation)
    )


def is_judged(works: Iterable[RankedWork]) -> bool:
    """Return whether any ranking has enough trials to estimate noise."""
    return any(ranking.trials >= FEWEST_TRIALS for ranked in works for ranking in ranked.rankings)


def _measured(run: Run) -> dict[Work, Counter[int]]:
    """Return each work that ran on links, pairs or devices, with how many of them each size has."""
    works = sorted({measurement.point.work for measurement in run.measurements if measurement.samples}, key=work_order)
    sizes = {
        work: sorted({measurement.point.size_bytes for measurement in run.measured(work.variant)}) for work in works
    }
    counts = {work: Counter({size: len(points_of(run, work, size)) for size in sizes[work]}) for work in works}
    return {work: +counted for work, counted in counts.items() if +counted}


def _ranked(run: Run, ended: Outcome, work: Work, counts: Counter[int], requested: int | None) -> RankedWork:
    most = max(counts.values())
    full = [size for size, count in counts.items() if count == most]
    large, small = max(full), min(full)
    if requested is not None:
        sizes = [requested]
    else:
        sizes = [large, small] if small < large and small <= SMALL_BYTES else [large]
    rankings = [rank_links(run, work, size, ended) for size in sizes]
    passed = [size for size in counts if requested is None and (size > large or (size < small and len(sizes) == 2))]
    return RankedWork(
        work=work,
        bandwidth=rankings[0],
        latency=rankings[1] if len(rankings) == 2 else None,
        fits=fit_links(run, work),
        incomplete=tuple((size, counts[size]) for size in sorted(passed)),
    )


@dataclass(frozen=True, slots=True)
class HostShare:
    """One device's rate in GB/s by host copies in one direction, concurrent with what the variant names.

    `device` is a position. `isolated_gbs` is the isolated rate of the same copy, None if that was not measured.
    """

    device: int
    work: Work
    size_bytes: int
    gbs: float
    isolated_gbs: float | None

    @property
    def share(self) -> float | None:
        """The share of the isolated rate that is left, None if that is unknown."""
        return None if self.isolated_gbs is None else self.gbs / self.isolated_gbs


def host_shares(run: Run) -> tuple[HostShare, ...]:
    """Return each device's shares at the largest size of each work, in the model's order.

    Where all devices copy at once, each with its own NUMA node's memory, each is compared with that node's.
    """
    rates = {measurement.point: summarize(measurement).busbw for measurement in run.measurements if measurement.samples}
    nodes = {point.numa_node for point in rates if point.variant is Variant.HOST}
    largest: dict[Work, int] = {}
    for point in rates:
        largest[point.work] = max(point.size_bytes, largest.get(point.work, 0))
    made = []
    for point, gbs in rates.items():
        if not point.variant.covered or point.size_bytes != largest[point.work]:
            continue
        device = point.members[0]
        node = point.numa_node
        if node not in nodes:
            node = run.devices[device].numa_node
        isolated = DataPoint(point.operation, (device,), point.size_bytes, Variant.HOST, node)
        made.append(HostShare(device, point.work, point.size_bytes, gbs, rates.get(isolated)))
    operations, variants = list(Operation), list(Variant)

    def order(one: HostShare) -> tuple[int, int, int, int]:
        node = -1 if one.work.numa_node is None else one.work.numa_node
        return node, operations.index(one.work.operation), one.device, variants.index(one.work.variant)

    return tuple(sorted(made, key=order))


def share_of_all(shares: Sequence[HostShare], work: Work) -> float | None:
    """Return all devices' share of the sum of their isolated rates; None if one of these is unknown."""
    ours = [one for one in shares if one.work == work]
    isolated = [one.isolated_gbs for one in ours if one.isolated_gbs is not None]
    if not ours or len(isolated) < len(ours):
        return None
    return sum(one.gbs for one in ours) / sum(isolated)
