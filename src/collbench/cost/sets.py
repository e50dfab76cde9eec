"""Which sets of k devices a prediction compares: the one that `select` would take, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb, inf

import numpy as np

from collbench.affinity import fitness
from collbench.affinity.bands import ceiling, on_one_plane, predict
from collbench.affinity.case import Case, from_run
from collbench.affinity.case import evidence as ranking_of
from collbench.affinity.choice import Band, Members
from collbench.affinity.choose import choose
from collbench.affinity.growing import grown
from collbench.affinity.rings import MOST_MEMBERS
from collbench.affinity.search import search
from collbench.affinity.wiring import wiring
from collbench.cost.evidence import Evidence
from collbench.errors import UsageError
from collbench.machine.labels import is_nvlink

# Bounds rarely leave more sets open than this; a band of eight devices takes a millisecond.
_MOST_JUDGED = 300
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Sets:
    """The best set of k devices and the worst; None where no set is worse, and `note` says why. Positions ascend."""

    best: Members
    worst: Members | None
    note: str = ""


class Machine:
    """What the pairs of a machine's run say of any set of its devices."""

    def __init__(self, evidence: Evidence) -> None:
        """Take all that was measured; devices that are faulty are left out."""
        run = evidence.run
        self._evidence = evidence
        self.left_out = fitness.left_out(run, allow_busy=True)
        gone = {left.member for left in self.left_out}
        self._fit = [place for place in range(len(run.devices)) if place not in gone]
        ranking = ranking_of(run, self._fit)
        self._case: Case | None = None if ranking is None else from_run(run, self._fit, ranking)

    @property
    def delta(self) -> float:
        """The ratio up to which two sets are equal."""
        return self._case.delta if self._case else 0.0

    def band(self, members: Members) -> Band | None:
        """Return the all-reduce busbw that a set is predicted to reach, GB/s; None where pairs do not tell."""
        case = self._case
        if case is None or not set(members) <= set(case.order):
            return None
        band = predict(case.wired.of(sorted(case.order.index(member) for member in members)))
        return band if band.lo > 0 else None

    def port(self, members: Members) -> tuple[float, bool]:
        """Return what a set's narrowest port sends at most, GB/s, ∞ where not known; and whether a switch joins it.

        Where no pairs were measured, labels of PCIe say nothing: a virtual machine may hide NVLinks behind those.
        """
        case = self._case
        if case is not None and set(members) <= set(case.order):
            wired = case.wired.of(sorted(case.order.index(member) for member in members))
            return ceiling(wired), on_one_plane(wired)
        run, place = self._evidence.run, {member: at for at, member in enumerate(sorted(members))}
        paths = {
            (place[min(path.devices)], place[max(path.devices)]): path
            for path in run.paths
            if set(path.devices) <= place.keys() and is_nvlink(path.label)
        }
        if len(paths) < comb(len(place), 2):
            return inf, False
        wired = wiring([run.devices[member] for member in place], paths, np.zeros((len(place), len(place))))
        return ceiling(wired), on_one_plane(wired)

    def sets(self, k: int, rank: Callable[[Members], float]) -> Sets:
        """Return the sets to compare. Where there are no pairs `rank`, least first, orders those that were measured.

        Raises UsageError for a k that cannot be.
        """
        if not 2 <= k <= len(self._fit):
            names = "; ".join(
                f"without {self._evidence.run.devices[left.member].tag} ({left.reason})" for left in self.left_out
            )
            raise UsageError(
                f"cannot predict for {k} of {len(self._fit)} devices{' ' + names if names else ''}: "
                f"choose 2 to {len(self._fit)}"
            )
        case = self._case
        if case is None or len(case.order) < k:
            return self._measured(k, rank)
        best = choose(self._evidence.run, k, allow_busy=True).members
        if k == len(case.order):
            return Sets(best, None, f"there is one set of {k}, so nothing to choose")
        if case.tied:
            return Sets(best, None, case.verdict)
        worst = _worst(case, k)
        heuristic = "" if len(case.order) <= MOST_MEMBERS else "best and worst by a heuristic search"
        return Sets(best, worst if worst != best else None, heuristic)

    def _measured(self, k: int, rank: Callable[[Members], float]) -> Sets:
        found = sorted((some for some in self._evidence.sets if len(some) == k), key=rank)
        if not found:
            raise UsageError(
                f"cannot predict for {k} devices: neither pairs nor a collective on {k} of them was measured; "
                "add the run file of 'collbench pairs'"
            )
        if len(found) == 1:
            return Sets(found[0], None, f"one set of {k} was measured, and no pairs, so nothing is compared")
        return Sets(found[0], found[-1], "of the sets that were measured")


def _worst(case: Case, k: int) -> Members:
    """Return the set whose band begins lowest; above 16 devices of a few that hold slow pairs."""
    if len(case.order) > MOST_MEMBERS:
        slow = replace(case.wired, rates=_turned(case.wired.rates), links=np.zeros_like(case.wired.links))
        sets: Sequence[Members] = sorted(grown(slow, k))
        bounds = [0.0] * len(sets)
    else:
        field = search(case.wired, k, case.delta)
        order = np.argsort(field.lo, kind="stable")
        # Of meshes that cannot be best `lo` is what their PCIe or a single ring carries: never more than the band's.
        sets = [tuple(some) for some in field.sets[order].tolist()]
        bounds = field.lo[order].tolist()
    lowest, found = np.inf, sets[0]
    for members, bound in list(zip(sets, bounds, strict=True))[:_MOST_JUDGED]:
        if bound >= lowest * (1 - _ROUNDING):
            break
        carried = predict(case.wired.of(members)).lo
        if 0 < carried < lowest * (1 - _ROUNDING):
            lowest, found = carried, members
    return tuple(sorted(case.order[place] for place in found))


def _turned(rates: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """Return rates whose order is turned round, so that growing the best set grows the worst."""
    slower = np.minimum(rates, rates.T)
    turned = np.where(slower > 0, 1 / np.maximum(slower, _ROUNDING), 0.0)
    np.fill_diagonal(turned, 0.0)
    return turned
