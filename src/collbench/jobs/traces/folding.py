"""The traces of a job's ranks as one job: its groups, its calls, and what repeats, with all that is known of times."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from collbench.jobs import steps
from collbench.jobs.calls import transfers
from collbench.jobs.job import Call, Ending, Group, Job, JobRank, Library, Phase, Sample, Source, not_said
from collbench.jobs.repeats import Folded, Times
from collbench.jobs.traces.content import Trace, TracedCall
from collbench.model.errors import UsageError
from collbench.model.values import one_line


def job_of(traces: Sequence[Trace], calls_per_step: int | None = None) -> Job:
    """Return the traces of a job's ranks as a job with steps. Raises UsageError if none called or ranks are unclear."""
    traces = matched(traces)
    sources = {trace.source for trace in traces}
    if len(sources) > 1:
        raise UsageError(f"traces are of several kinds: {', '.join(sorted(sources))}; import one kind at a time")
    numbers = _numbered(traces)
    order = sorted(range(len(traces)), key=lambda index: numbers[index])
    ranked = [(numbers[index], traces[index]) for index in order]
    named = [group for trace in traces for group in trace.groups.values()]
    sizes = [*(trace.world_size for trace in traces), *(group.size for group in named)]
    world = max(*sizes, *(rank + 1 for group in named for rank in group.ranks), ranked[-1][0] + 1)
    groups: dict[tuple[str, tuple[int, ...], int], tuple[int, Group]] = {}
    calls: dict[Call, int] = {}

    def number_of(trace: Trace, call: TracedCall) -> int:
        own = trace.groups[call.group]
        group, _ = groups.setdefault((call.group, own.ranks, own.size), (len(groups), own))
        known = call.size_bytes or 0
        job_call = Call(call.operation, known, group, call.dtype, "", call.root, call.peer, call.captured)
        return calls.setdefault(job_call, len(calls))

    # 1 µs before the first kernel, because a kernel that begins at 0 is one of unknown beginning.
    moments = (
        trace.origin + moment for trace in traces for call in trace.calls for moment in (call.start, call.gpu_start - 1)
    )
    began = min((moment for moment in moments if not math.isnan(moment)), default=0.0)
    ranks = tuple(
        _rank(number, trace, [number_of(trace, call) for call in trace.calls], began) for number, trace in ranked
    )
    job_groups = tuple(group for _, group in groups.values())
    traced = [call for trace in traces for call in trace.calls]
    job = Job(
        source=sources.pop(),
        started=datetime.fromtimestamp(began / 1e6, UTC).isoformat(timespec="seconds") if 0 < began < 2**52 else "",
        world_size=world,
        groups=job_groups,
        calls=tuple(calls),
        ranks=ranks,
        nccl=next((trace.nccl for trace in traces if trace.nccl), ""),
        unknown=not_said(
            job_groups,
            calls,
            ranks,
            PAUSES=any(math.isnan(call.start) for call in traced),
            # Only the profiler sees replays; the others do not even say that a call was captured.
            GRAPH_REPLAYS=traced[0].library is Library.NCCL and traces[0].source is not Source.KINETO,
            OVERLAP=any(trace.gpu is None for trace in traces),
            SIZES=any(call.size_bytes is None for call in traced),
            SPLITS=any(call.even is None for call in traced),
        ),
        library=traced[0].library,
    )
    marks = {number: [mark - (began - trace.origin) for mark in trace.marks] for number, trace in ranked if trace.marks}
    job = steps.find(job, calls_per_step, marks)
    moving = transfers(job)
    timed = (_on_gpu(rank, trace, began, moving) for rank, (_, trace) in zip(job.ranks, ranked, strict=True))
    return replace(job, ranks=tuple(timed))


def _numbered(traces: Sequence[Trace]) -> list[int]:
    """Return each trace's rank of the job. Raises UsageError if it is unclear."""
    numbers = [trace.rank for trace in traces]
    files: dict[int, str] = {}
    for trace in traces:
        if trace.rank in files:
            same = " and ".join(one_line(file) for file in (files[trace.rank], trace.file))
            raise UsageError(f"{same} are both of rank {trace.rank}: name the files of different ranks")
        if trace.rank is not None:
            files[trace.rank] = trace.file
    if None in numbers:
        if any(number is not None for number in numbers) and len(traces) > 1:
            raise UsageError("unknown ranks of the files: name the files by rank: trace-0.json, trace-1.json, …")
        return list(range(len(traces)))
    return [number or 0 for number in numbers]


def _rank(number: int, trace: Trace, call_numbers: Sequence[int], began: float) -> JobRank:
    """Return one rank's calls folded, with all that is known of their times."""
    starts, gpu, begins = (
        np.array([getattr(call, name) for call in trace.calls]) for name in ("start", "gpu", "gpu_start")
    )
    offset = began - trace.origin
    times = Times(
        starts - offset, np.diff(starts, prepend=np.nan).clip(min=0.0), gpu, begins - offset, np.zeros(len(gpu))
    )
    folded = Folded()
    folded.fold(2 * np.array(call_numbers))
    return JobRank(number, folded.phases(times), trace.host, None, Ending.COMPLETE, trace.lost, folded.order)


def _on_gpu(rank: JobRank, trace: Trace, began: float, transfers: Mapping[tuple[int, int], Any]) -> JobRank:
    """Return a rank with how its GPU's time passed, in all and in each sample, where the trace has all that ran there.

    `transfers` are by rank and repetition of the step the µs of each call's transfer, NaN if unknown: a kernel waits
    first.
    """
    timeline, offset = trace.gpu, began - trace.origin
    if timeline is None:
        return rank
    # How long a kernel was exposed, and from when on no earlier kernel ran, µs, by its beginning and length.
    exposed = {
        (round(call.gpu_start - offset, 3), round(call.gpu, 3)): (call.exposed, call.alone_from)
        for call in trace.calls
        if not math.isnan(call.exposed)
    }

    def waiting(sample: Sample, own: Sequence[tuple[float, float]]) -> tuple[float, ...]:
        moving = transfers.get((rank.rank, sample.repetition))
        if rank.step is None or moving is None or not (sample.gpu_starts and sample.gpu):
            return ()
        ends = np.array(sample.gpu_starts) + sample.gpu - moving + offset
        begins = np.array([begin for _, begin in own])
        ends = np.where(np.isnan(ends), begins, np.maximum(begins, ends))
        least = np.minimum(timeline.exposed(np.stack([begins, ends], axis=1)), [whole for whole, _ in own])
        return tuple(round(float(exposed_us), 3) for exposed_us in least)

    def timed(phase: Phase) -> Phase:
        by_number = {sample.repetition: sample for sample in phase.samples}
        spans = [_on_its_gpu(sample, by_number.get(sample.repetition + 1)) for sample in phase.samples]
        samples = []
        for sample, span in zip(phase.samples, spans, strict=True):
            passed = None if span is None else timeline.between(span[0] + offset, span[1] + offset)
            step = sample.step
            if rank.step is not None and any(spans):  # by the GPU's clock alone: figures of two would not add up
                step = 0.0 if passed is None else round(passed.total, 3)
            kernels = zip(sample.gpu_starts, sample.gpu, strict=False)
            own = [exposed.get(kernel, (0.0, 0.0)) for kernel in kernels]
            bare, waits = tuple(round(bare_us, 3) for bare_us, _ in own), waiting(sample, own)
            samples.append(replace(sample, step=step, exposed=bare, exposed_waiting=waits, gpu_time=passed))
        return replace(phase, samples=tuple(samples))

    whole = timeline.between(*timeline.ends)
    if rank.step is None:
        return replace(rank, phases=tuple(map(timed, rank.phases)), gpu_time=whole)
    return replace(rank, step=timed(rank.step), gpu_time=whole)


def _on_its_gpu(sample: Sample, following: Sample | None) -> tuple[float, float] | None:
    """Return from when to when a repetition was on its GPU: from its first kernel to the same one of the next, µs.

    If that is unknown in one of them, the first kernel that is known in both counts.
    """
    if following is not None:
        pairs = zip(sample.gpu_starts, following.gpu_starts, strict=False)
        return next(((start, end) for start, end in pairs if 0 < start < end), None)
    start = next(filter(None, sample.gpu_starts), None)
    return (start, start + sample.step) if start is not None and sample.step else None


def of_several_jobs(job: Job) -> str:
    """Return which rank never sends to a group what others send to it, "" for none: traces of one job have the same."""
    sent: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    members = [frozenset(group.ranks) for group in job.groups]
    for rank in job.ranks:
        for phase in rank.phases:
            for call in job.called(phase):
                if call.collective is not None and rank.rank in members[call.group]:
                    sent[call.group][rank.rank].add(call.operation.replace("alltoallv", "alltoall"))
    for group, operations in sent.items():
        every = set().union(*operations.values())
        for first, own in operations.items():
            if own != every:
                other, others = next(of_rank for of_rank in operations.items() if of_rank[1] - own)
                of = "all ranks" if job.groups[group].size == job.world_size else f"group {group}"
                lacking = min(others - own)
                return f"rank {first} sends no {lacking} to {of}, and rank {other} does: are the traces of one job?"
    return ""


_LISTED = 3  # kinds of rows


def matched(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces that have calls, the others' left out. Raises UsageError, which says what was found instead."""
    library = (
        Library.NCCL if any(call.library is Library.NCCL for trace in traces for call in trace.calls) else Library.GLOO
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
            group = key, trace.groups[key].ranks
            firsts[group] = max(firsts.get(group, 0), number)
    for trace in traces:
        kept = [
            call.number is None or call.number >= firsts.get((call.group, trace.groups[call.group].ranks), 0)
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
