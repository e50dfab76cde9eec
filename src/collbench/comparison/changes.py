"""Whether a cell became faster or slower from one run to another: the same statistics as between links.

Everything is in log bandwidth, so that differences are ratios. docs/exchange.md has the rule and what it was tried on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from collbench.affinity.estimates import FEWEST_VISITS, Estimate, tolerance
from collbench.comparison.cells import Key, Named
from collbench.comparison.estimating import Part, estimates, reach
from collbench.model import Path
from collbench.operations import Operation
from collbench.stats import summarize

_TIE_ALPHA = 0.10  # METHOD.md §4: tied is a 90 % interval within ±δ
# A run keeps its own latency: of two runs on one machine, a minute apart, cells of 8 B to 4 MiB differed by up to
# 0.12 µs for all their visits, beyond what their noise explains (2 machines with 4 × H200, 1680 and 840 cells).
_RUNS_OWN_S = 0.15e-6


class Verdict(StrEnum):
    """What became of a cell or a group."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Found:
    """One cell of both runs before it is judged."""

    base: Named
    new: Named
    old: Estimate
    now: Estimate

    @property
    def key(self) -> Key:
        """The cell's name, the same in both runs."""
        return self.base.key

    @property
    def decided(self) -> bool:
        """True where both runs have the visits that show noise."""
        return min(len(self.old.visits), len(self.now.visits)) >= FEWEST_VISITS

    def parts(self, weight: float = 1.0) -> Iterator[Part]:
        """Yield what the difference's variance is made of, of which a group takes a share."""
        for run, one in (("base", self.old), ("new", self.now)):
            yield Part((weight * one.wary) ** 2, one.freedom, f"{run} {one.label}")


@dataclass(frozen=True, slots=True)
class Change:
    """One cell in both runs. Bandwidths in GB/s (busbw), times in seconds.

    `ratio` is new over base bandwidth; `interval` holds it for all cells and groups at once with 99 %, None below three
    visits in either run. `delta` is the ratio up to which a difference changes nobody's decision; `regressed` says that
    the cell is slower for certain by more than the comparison allows.
    """

    key: Key
    operation: Operation
    base_gbs: float
    new_gbs: float
    base_seconds: float
    new_seconds: float
    ratio: float
    interval: tuple[float, float] | None
    delta: float
    verdict: Verdict
    regressed: bool
    visits: tuple[int, int]


def in_both(base: Mapping[Key, Named], new: Mapping[Key, Named], paths: Sequence[Path]) -> list[Found]:
    """Return the cells that both runs have, with their estimates. `paths` are the base's."""
    old, now = estimates(base, paths), estimates(new, paths)
    return [Found(base[key], new[key], old[key], now[key]) for key in base if key in new]


def judge(found: Found, alpha: float, fail_below: float, *, on_cores: bool) -> Change:
    """Return what became of a cell; `alpha` is what this one answer may err, `fail_below` a ratio such as 0.05."""
    old, now = found.old, found.now
    before, after = summarize(found.base.found), summarize(found.new.found)
    delta = _delta(found.base, before.seconds, on_cores=on_cores)
    difference = now.middle - old.middle
    far = reach([*found.parts()], alpha) if found.decided else math.inf
    return Change(
        key=found.key,
        operation=found.base.work.operation,
        base_gbs=before.busbw,
        new_gbs=after.busbw,
        base_seconds=before.seconds,
        new_seconds=after.seconds,
        ratio=math.exp(difference),
        interval=(math.exp(difference - far), math.exp(difference + far)) if found.decided else None,
        delta=delta,
        verdict=_verdict(found, far, delta) if found.decided else Verdict.UNDECIDED,
        regressed=found.decided and _below(old, now, far, max(delta, -math.log1p(-fail_below))),
        visits=(len(old.visits), len(now.visits)),
    )


def _verdict(found: Found, far: float, delta: float) -> Verdict:
    old, now = found.old, found.now
    if _below(old, now, far, delta):
        return Verdict.WORSE
    if _below(now, old, far, delta):
        return Verdict.BETTER
    tie = abs(now.middle - old.middle) + reach([*found.parts()], _TIE_ALPHA)
    return Verdict.SAME if tie <= delta else Verdict.UNDECIDED


def _below(top: Estimate, other: Estimate, far: float, delta: float) -> bool:
    """Return whether one is slower than the other by more than δ: its interval, and nearly every visit, say so.

    Visits guard against a cell that is noisier than its pool, or was disturbed for a moment.
    """
    apart = top.middle - other.middle > delta + far
    return apart and other.bounds[1] < top.middle - delta and top.bounds[0] > other.middle + delta


def _delta(base: Named, seconds: float, *, on_cores: bool) -> float:
    """Return δ: 2 %, below 1 MiB 6 %, and on GPUs never less than what a run keeps to itself."""
    delta = tolerance(base.key.size_bytes)
    if on_cores or base.work.operation is Operation.CHASE:
        return delta  # memcpy on a core, and a load, have no launch that could vary
    return max(delta, _RUNS_OWN_S / seconds)
