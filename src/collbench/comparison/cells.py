"""The cells of two runs, each under a name that means the same in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collbench.model import Measurement, Run
from collbench.operations import Variant, Work
from collbench.stats import summarize

# Members whose order says nothing: what they do they do together.
_UNORDERED = (Variant.BOTH_WAYS,)
# One device faces all the others: it stays first, they have no order.
_ONE_AND_OTHERS = (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One cell: the work, the members as positions of the base run, the root's position or None, and the size."""

    work: str
    members: tuple[int, ...]
    root: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Named:
    """A cell that a run measured, and its key."""

    key: Key
    work: Work
    found: Measurement

    @property
    def gbs(self) -> float:
        """The cell's busbw in GB/s."""
        return summarize(self.found).busbw


def cells(run: Run, positions: Mapping[int, int] | None = None) -> dict[Key, Named]:
    """Return the run's cells that have a sample; `positions` renames its devices to those of the base.

    A cell with a device that the base lacks keeps a key of its own, whose members are negative.
    """
    found = (_named(run, measurement, positions) for measurement in run.measurements if measurement.samples)
    return {named.key: named for named in found}


def unordered(work: Work, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return members so that those of one cell are equal in any order that says nothing."""
    if work.operation.is_collective or work.variant in _UNORDERED:
        return tuple(sorted(members))
    return (members[0], *sorted(members[1:])) if work.variant in _ONE_AND_OTHERS else members


def _named(run: Run, found: Measurement, positions: Mapping[int, int] | None) -> Named:
    cell = found.cell
    members = cell.members
    if positions is not None:
        members = tuple(positions.get(member, -1 - member) for member in members)
    root = members[run.settings.root] if cell.operation.rooted and run.settings.root < len(members) else None
    key = Key(str(cell.work), unordered(cell.work, members), root, cell.size_bytes)
    return Named(key, cell.work, found)
