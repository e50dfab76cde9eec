"""The runs that Python calls return: runs with their figures as a table."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from collbench.model.run import Run

if TYPE_CHECKING:
    from collbench.report.rows import Table


class MeasuredRun(Run):
    """A run as `collbench.load` and the measuring calls return it."""

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> MeasuredRun:
        """Return the run as one of these."""
        return cls(**{one.name: getattr(run, one.name) for one in fields(run)})

    def table(self) -> Table:
        """Return the figures: a row for each data point, with the columns of `collbench export` (docs/columns.md)."""
        from collbench.report.rows import Table  # late: numpy

        return Table.of(self)
