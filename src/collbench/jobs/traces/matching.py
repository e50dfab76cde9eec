"""What the traces of several ranks have in common: calls of one library, from the first one that all have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collbench.jobs.job import Library
from collbench.jobs.traces.trace import Trace
from collbench.model.errors import UsageError, one_line

_LISTED = 3  # kinds of rows


def matched(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces that have calls, the others' left out. Raises UsageError, which says what was found instead."""
    library = (
        Library.NCCL if any(call.library is Library.NCCL for one in traces for call in one.calls) else Library.GLOO
    )
    for trace in traces:
        _keep(trace, [call.library is library for call in trace.calls], "calls of gloo beside NCCL's")
    _align(traces)
    if not any(trace.calls for trace in traces):
        rows = sum(trace.rows for trace in traces)
        found = f"found {left_out(traces)}" if left_out(traces) else f"none of {rows:,} rows is a call of NCCL or gloo"
        raise UsageError(f"no trace has a collective that can be read, {found}: trace every rank while the job trains")
    return [trace for trace in traces if trace.calls]


def _align(traces: Sequence[Trace]) -> None:
    """Leave out the calls that torch numbered lower than the first one of their group in another rank's ring."""
    firsts: dict[tuple[str, tuple[int, ...]], int] = {}
    for trace in traces:
        own: dict[str, int] = {}
        for call in trace.calls:
            if call.number is not None:
                own.setdefault(call.group, call.number)
        for key, number in own.items():
            group = key, trace.members[key]
            firsts[group] = max(firsts.get(group, 0), number)
    for trace in traces:
        kept = [
            call.number is None or call.number >= firsts.get((call.group, trace.members[call.group]), 0)
            for call in trace.calls
        ]
        _keep(trace, kept, "calls before the first one that the traces of all ranks have")


def _keep(trace: Trace, kept: Sequence[bool], others: str) -> None:
    if not all(kept):
        trace.left_out[others] += len(kept) - sum(kept)
        trace.calls = [call for call, keep in zip(trace.calls, kept, strict=True) if keep]


def left_out(traces: Sequence[Trace]) -> str:
    """Return what was left out of traces, most first, "2,020 × all_smile, an unknown operation"; "" for nothing."""
    counts = sum((trace.left_out for trace in traces), Counter[str]())
    first = ", ".join(f"{count:,} × {one_line(what)}" for what, count in counts.most_common(_LISTED))
    others = len(counts) - _LISTED
    return (
        f"{first} and {counts.total() - sum(n for _, n in counts.most_common(_LISTED)):,} others"
        if others > 0
        else first
    )
