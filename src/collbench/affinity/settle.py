"""What measuring the finalists shows: the fastest, and what it gains over the first k (METHOD.md §6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from collbench.affinity.choice import Choice, Members, Verified
from collbench.affinity.estimates import Estimate, estimates, margin, ties, tolerance
from collbench.model import Measurement, Run
from collbench.operations import Operation
from collbench.outcome import named, outcome
from collbench.stats import summarize
from collbench.units import fixed


def settle(choice: Choice, verification: Run) -> Choice:
    """Return the choice that all-reduces of the finalists' very members decide, measured in `verification`.

    Its positions are the choice's. The fastest median wins; of those that tie with it, the one predicted best. What
    failed or moved wrong data cannot win. A run without any finalist leaves the choice as it is.
    """
    cells = _cells(choice, verification)
    if not cells:
        return choice
    found = estimates(cells, dict.fromkeys(cells, "set"))
    delta = tolerance(next(iter(cells.values())).cell.size_bytes)
    top = max(found.values(), key=lambda estimate: estimate.middle)
    ranked = [some.members for some in choice.finalists if some.members in found]
    tied = [members for members in ranked if ties(top, found[members], delta)]
    winner = choice.members if choice.members in tied else tied[0]
    default = _default(choice)
    gain = _gain(found[winner], found[default]) if default in found and winner != default else None
    measured = _measured(cells[winner], sim=verification.backend == "sim")
    failed = tuple(place for place in choice.failed if set(place) <= set(winner)) or outcome(verification).within(
        winner
    )
    return replace(
        choice,
        members=winner,
        reason=measured + _gained(gain, len(winner), is_default=winner == default) + including(verification, failed),
        failed=failed,
        band=next(some.band for some in choice.finalists if some.members == winner),
        decided_by=choice.decided_by if winner == choice.members and len(tied) > 1 else _words(tied),
        tied=len(tied) == len(choice.finalists) > 1,
        verified=tuple(_verified(members, cells[members]) for members in ranked),
        gain=gain,
    )


def including(run: Run, failed: Sequence[Members]) -> str:
    """Return the words without which no set with a failed place is told."""
    return f"; includes failed {named(run, failed)}" if failed else ""


def _cells(choice: Choice, run: Run) -> dict[Members, Measurement]:
    """Return the sound all-reduces of the finalists, at the size that most of them have, then the largest."""
    wanted = {some.members for some in choice.finalists}
    found = [
        m
        for m in run.measured()
        if m.cell.operation is Operation.ALLREDUCE
        and tuple(sorted(m.cell.members)) in wanted
        and not m.wrong
        and not m.failure
    ]
    sizes = Counter(m.cell.size_bytes for m in found)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return {tuple(sorted(m.cell.members)): m for m in found if m.cell.size_bytes == size}


def _default(choice: Choice) -> Members:
    return next((some.members for some in choice.finalists if some.default), ())


def _gain(chosen: Estimate, default: Estimate) -> tuple[float, float, float]:
    """Return the ratio of two medians with its 95 % interval, from the noise pooled over all finalists' visits."""
    difference = chosen.middle - default.middle
    width = margin(chosen, default, 2)
    return math.exp(difference - width), math.exp(difference), math.exp(difference + width)


def _measured(cell: Measurement, *, sim: bool) -> str:
    return f"{fixed(summarize(cell).busbw, 3)} GB/s {'in sim' if sim else 'measured'}"


def _gained(gain: tuple[float, float, float] | None, k: int, *, is_default: bool) -> str:
    if gain is None:
        return f", by the first {k} themselves" if is_default else ""
    low, middle, high = gain
    return f", {middle:.2f}× ({low:.2f}–{high:.2f}) the first {k}"


def _words(tied: list[Members]) -> str:
    return "the predicted order" if len(tied) > 1 else ""


def _verified(members: Members, cell: Measurement) -> Verified:
    summary = summarize(cell)
    return Verified(members, summary.busbw, summary.interval)
