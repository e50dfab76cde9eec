"""Suspicious links once more, alone: a verdict needs an isolated re-measurement that confirms (METHOD.md §5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from collbench.errors import BackendError
from collbench.model import Run
from collbench.operations import Variant
from collbench.planning import Request

if TYPE_CHECKING:
    from collbench.affinity.verdicts import Verdict

# Each pair is a sweep of its own, of about 3 s with the driver's start: more would take longer than the first one.
_MOST_PAIRS = 3
_BUDGET_S = 0.5
Pair = tuple[int, int]


def confirm(request: Request, run: Run, say: Callable[[str], None]) -> bool:
    """Measure the suspicious pairs of a run once more, each alone, and add the samples; return whether any came.

    A pair that cannot be measured any more keeps what it has.
    """
    from collbench.affinity.verdicts import judge  # late: numpy

    pairs = list(dict.fromkeys(pair for verdict in judge(run) for pair in _suspicious(run, verdict)))[:_MOST_PAIRS]
    added = False
    for pair in pairs:
        tags = "-".join(run.devices[member].tag for member in pair)
        say(f"measuring {tags} once more, alone")
        try:
            _add(run, _alone(request, run, pair), pair)
            added = True
        except BackendError as error:
            say(f"{tags} was not confirmed: {error}")
    return added


def _suspicious(run: Run, verdict: Verdict) -> Iterator[Pair]:
    """Yield the pair that a verdict's figures rest on, if it was measured beside others only."""
    if verdict.measured is None:
        return
    first = verdict.members[0]
    other = verdict.members[1] if len(verdict.members) > 1 else _neighbour(run, first, verdict.label)
    if other is None:
        return
    pair = (min(first, other), max(first, other))
    samples = [s for found in run.measured() if set(found.cell.members) == set(pair) for s in found.samples]
    if any(sample.concurrent for sample in samples):
        yield pair


def _neighbour(run: Run, device: int, label: str) -> int | None:
    """Return a device on a path of this label."""
    for path in run.paths:
        if device in path.devices and path.label == label:
            return next(member for member in path.devices if member != device)
    return None


def _alone(request: Request, run: Run, pair: Pair) -> Run:
    from collbench.session import Session  # late: numpy

    asked = replace(
        request,
        devices=",".join(str(run.devices[member].index) for member in pair),
        copies=(Variant.PLAIN,),
        budget_seconds=_BUDGET_S,
        seed=request.seed + 1,  # a simulated machine would draw the same noise again
        resume=False,
        force=False,
    )
    with Session(asked, None, lambda _text: None) as session:
        session.measure(lambda _done, _total: None)
    return session.run


def _add(run: Run, alone: Run, pair: Pair) -> None:
    """Add the samples of a run of this pair alone to the cells of the whole run."""
    cells = {found.cell: found for found in run.measurements}
    for found in alone.measurements:
        members = tuple(pair[member] for member in found.cell.members)
        for cell in (replace(found.cell, members=members), replace(found.cell, members=members[::-1])):
            if cell in cells and (cell.members == members or cell.operation.is_collective):
                cells[cell].samples += found.samples
                if found.failure:
                    cells[cell].stop = found.stop
                    cells[cell].failure, cells[cell].failure_kind = found.failure, found.failure_kind
                break
