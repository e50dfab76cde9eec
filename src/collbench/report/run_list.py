"""The page of saved runs, one line each, with the number that other commands take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.model.errors import ExitStatus
from collbench.model.units import amount
from collbench.model.values import one_line
from collbench.report.layout import Lines, Page, table

if TYPE_CHECKING:
    from collbench.runfile.run_file import SavedRun


_OUTCOMES = {
    ExitStatus.DONE: "done",
    ExitStatus.FAILED: "failures",
    ExitStatus.CONTRADICTION: "contradiction",
    ExitStatus.UNTRUSTED: "wrong data or hang",
}
_HEAD = ("run", "started (UTC)", "backend", "machine", "devices", "command", "outcome")


def page(runs: Sequence[SavedRun], older: int = 0) -> Page:
    """Yield the table, in the order given, where the files are, and how many `older` runs are not in it.

    Whole names of files would break every line.
    """
    yield table(*_HEAD, rows=map(_row, runs), left=_HEAD, keys=1)
    files = [f"files     {folder}" for folder in sorted({one_line(str(run.path.parent)) for run in runs})]
    first = runs[0].number  # newer files may be unreadable
    rest = [f"older     {amount(older, 'more run')}: --limit N lists them"] if older else []
    yield Lines("\n".join(["", *files, *rest, f"more      'collbench show {first}' shows run {first}"]))


def _row(run: SavedRun) -> tuple[str, ...]:
    outcome = _OUTCOMES.get(run.status, "done")
    if run.status is ExitStatus.UNTRUSTED and not run.complete:
        outcome = f"incomplete, {outcome}"  # nobody need have interrupted it: wrong data ends a run
    elif not run.complete:
        outcome = "interrupted" if run.status is ExitStatus.DONE else f"interrupted, {outcome}"
    return (
        str(run.number),
        one_line(run.started.replace("T", " ").removesuffix("Z")),
        run.backend,
        one_line(run.fabric or run.machine),
        str(len(run.devices)),
        one_line(run.command[0] if run.command else ""),
        outcome,
    )
