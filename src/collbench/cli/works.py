"""The operations that a run file holds, found by the words that people type for them."""

from __future__ import annotations

from pathlib import Path

from collbench.errors import UsageError
from collbench.model import Run
from collbench.operations import Work
from collbench.units import format_size


def find_works(run: Run, typed: str, path: Path) -> list[Work]:
    """Return what "allreduce", "all-reduce in-place", "ce_write" or "h2d-ce host node 1" names in a run.

    An operation's name alone means its plain form, or where there is none all that it has. Raises UsageError that
    names what the file holds.
    """
    from collbench.report.curves import works_of  # late: it loads numpy

    held = works_of(run)
    exact = [work for work in held if _plain(str(work)) == _plain(typed)]
    found = exact or [work for work in held if _plain(work.operation) == _plain(typed)]
    if not found:
        there = ", ".join(map(str, held)) or "nothing that was measured"
        raise UsageError(f"{path} has no operation '{typed}': it holds {there}")
    return found


def check_size(run: Run, works: list[Work], size_bytes: int, path: Path) -> list[Work]:
    """Return the works that were measured at a size. Raises UsageError, which names the sizes that the file holds."""
    sizes = {
        work: {found.cell.size_bytes for found in run.measured(work.variant) if found.cell.work == work}
        for work in works
    }
    kept = [work for work in works if size_bytes in sizes[work]]
    if not kept:
        there = ", ".join(map(format_size, sorted(set[int]().union(*sizes.values()))))
        names = ", ".join(map(str, works))
        raise UsageError(f"{path} has no {names} at {format_size(size_bytes)}: it holds {there}")
    return kept


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter not in "-_ ")
