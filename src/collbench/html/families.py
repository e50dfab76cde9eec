"""The cells of a run, sorted for the page: a family for each work and kind of place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from collbench.affinity.estimates import Members
from collbench.affinity.tiers import kind_of
from collbench.model import Measurement, Run
from collbench.operations import Variant, Work
from collbench.report.curves import work_order

Table = list[list[float | None]]
Bounds = tuple[float | None, float | None, float | None]  # the low end of the 95 % interval, the median, the high end

NOTHING: Bounds = (None, None, None)
_MANY = (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE)


@dataclass(frozen=True, slots=True)
class Family:
    """The cells of one work on places of one kind: `kind` is link, pair, device, or group (a larger communicator).

    `ranked` says whether `affinity` puts its places in tiers.
    """

    run: Run
    work: Work
    kind: str
    cells: dict[tuple[int, Members], Measurement]
    ranked: bool

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes, ascending."""
        return sorted({size for size, _ in self.cells})

    @property
    def places(self) -> list[Members]:
        """The members of each place, ascending."""
        return sorted({members for _, members in self.cells})

    @property
    def name(self) -> str:
        """What the choosers call it: "ce-write", "allreduce over 4 ranks"."""
        ranks = len(self.places[0])
        return f"{self.work} over {ranks} ranks" if self.kind == "group" else str(self.work)

    def tables(self, bounds: Callable[[Measurement], Bounds]) -> tuple[Table, Table, Table]:
        """Return three values of each cell, by size and place; None where nothing was measured."""
        places = self.places
        rows = [[self._bounds(size, members, bounds) for members in places] for size in self.sizes]
        low, value, high = ([[short(cell[end]) for cell in row] for row in rows] for end in range(3))
        return low, value, high

    def _bounds(self, size: int, members: Members, bounds: Callable[[Measurement], Bounds]) -> Bounds:
        found = self.cells.get((size, members))
        return bounds(found) if found is not None and found.samples else NOTHING


def families(run: Run) -> list[Family]:
    """Return the run's cells by work and kind of place, in the order of the model; larger sets after pairs."""
    groups: dict[tuple[Work, int], dict[tuple[int, Members], Measurement]] = defaultdict(dict)
    for found in run.measurements:
        many = len(found.cell.members) if found.cell.work.operation.is_collective else 0
        groups[found.cell.work, many][found.cell.size_bytes, found.cell.members] = found
    ordered = sorted(groups.items(), key=lambda item: (work_order(item[0][0]), item[0][1]))
    return [_family(run, work, cells) for (work, _), cells in ordered]


def _family(run: Run, work: Work, cells: dict[tuple[int, Members], Measurement]) -> Family:
    members = next(iter(cells))[1]
    if work.operation.is_collective and len(members) > 2:
        kind = "group"
    else:
        kind = "device" if work.variant in (*_MANY, Variant.HOST) else kind_of(work)
    wanted = 1 if work.variant is Variant.HOST else 2
    return Family(run, work, kind, cells, kind != "group" and len(members) == wanted and work.variant not in _MANY)


def short(value: float | None) -> float | None:
    """Return a figure with five digits: no measurement has more, and the page stays small enough for a mail."""
    if value is None:
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short
