"""One root cause, one verdict: what a stronger one explains is named inside it and not told again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.affinity.verdicts.verdict import Finding, Kind, both_ways

_SLOW_LINK = (Kind.ASYMMETRY, Kind.INTRA_LABEL_OUTLIER, Kind.ORDER_INVERSION)
_RATES = (*_SLOW_LINK, Kind.COLLECTIVE_CONTRADICTION, Kind.P2P_SLOWER_THAN_STAGED)
# What a kind explains on the links that it is about. Strongest first: an explained verdict explains nothing itself.
_EXPLAINS = {
    Kind.DATA_CORRUPT: (Kind.HANG, Kind.FAILED, Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.HANG: (Kind.FAILED, Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.P2P_CAP_MISMATCH: (Kind.NV_NOT_USED, Kind.NV_DEGRADED, *_RATES),
    Kind.CONTENTION: (Kind.NV_DEGRADED, Kind.NV_NOT_USED, *_RATES),
    Kind.LINKCOUNT_MISMATCH: (Kind.NV_DEGRADED, Kind.HIDDEN_NVLINK, Kind.IMPOSSIBLE, *_SLOW_LINK),
    Kind.HIDDEN_NVLINK: _SLOW_LINK,
    Kind.IMPOSSIBLE: (*_SLOW_LINK, Kind.COLLECTIVE_CONTRADICTION),
    Kind.NV_NOT_USED: (Kind.NV_DEGRADED, Kind.P2P_SLOWER_THAN_STAGED, *_SLOW_LINK),
    Kind.NV_DEGRADED: (Kind.P2P_SLOWER_THAN_STAGED, *_SLOW_LINK),
    Kind.PCIE_DEGRADED: _RATES,
    Kind.P2P_SLOWER_THAN_STAGED: (Kind.ASYMMETRY, Kind.INTRA_LABEL_OUTLIER),
    Kind.VIRTUAL_FLAT: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.COLLECTIVE_CONTRADICTION: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.ORDER_INVERSION: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.ASYMMETRY: (Kind.INTRA_LABEL_OUTLIER,),
    Kind.INTRA_LABEL_OUTLIER: (Kind.INTRA_LABEL_OUTLIER,),  # copies that are slow explain NCCL's
}


def explained(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that stand, strongest first, each with the kinds that it explains."""
    order = [*_EXPLAINS, *(kind for kind in Kind if kind not in _EXPLAINS)]
    left = sorted(findings, key=lambda finding: order.index(finding.verdict.kind))
    standing: list[Finding] = []
    while left:
        strong = left.pop(0)
        covered = [weak for weak in left if _covers(strong, weak)]
        left = [weak for weak in left if weak not in covered]
        kinds = tuple(dict.fromkeys(w.verdict.kind for w in covered if w.verdict.kind is not strong.verdict.kind))
        standing.append(replace(strong, verdict=replace(strong.verdict, explains=kinds)))
    return standing


def _covers(strong: Finding, weak: Finding) -> bool:
    """Return whether one finding explains another: by kind, on all of its links, and no cause was seen for it."""
    kind = weak.verdict.kind
    if kind not in _EXPLAINS.get(strong.verdict.kind, ()) or not weak.links:
        return False
    if strong.verdict.kind is Kind.CONTENTION and _named(weak):
        return False
    return weak.links <= both_ways(strong.links)


def _named(weak: Finding) -> bool:
    """Return whether a collective's own cause was seen: a variable that is set slows it whoever else is there."""
    return weak.sure and weak.verdict.kind in (Kind.COLLECTIVE_CONTRADICTION, Kind.NV_NOT_USED)
