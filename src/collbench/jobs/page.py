"""The page of a recorded job: its step as a table, waiting against transfer, late ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text

from collbench.jobs.calls import LateRank, RankRow, Report, Row, busbw_gbs
from collbench.jobs.exposed import Exposure
from collbench.jobs.job import Call, Ending, Job, Library, Source, StepSource, Unknown
from collbench.model.run import tags
from collbench.model.units import amount, capped, figure, fixed, format_message_size
from collbench.model.values import one_line
from collbench.report.layout import Block, Lines, Table, both, more, prose, short, table, whole
from collbench.runfile.codec import picked, plain

if TYPE_CHECKING:
    from collbench.jobs.predict.recorded import PredictedJob

_Ranked = TypeVar("_Ranked")
_FEW_ROWS, _MAX_ROWS = 12, 2000  # on the short page, on the whole one
_FEW_RANKS = 6
_FEW_LATE = 3  # late ranks
_FEW_STEPS = 5  # fewer show no usual step
_MIN_RATE, _MANY = 0.001, 1e4  # GB/s: a lower rate prints as "<0.001"; a higher figure has no decimals
_LONGEST = 8  # letters of a type
_MICRO, _MILLI = 1e6, 1e3
_SHORT = 6  # letters of a group's name
_LACKS = {
    Unknown.REDUCTION: "the reduction of each call",
    Unknown.ROOT: "the root of each call",
    Unknown.PEER: "the peer of each send and receive",
    Unknown.GROUP_RANKS: "the ranks of each group",
    Unknown.PAUSES: "when the host made each call: no step time",
    Unknown.GPU_TIMES: "kernel times: no transfer, busbw, waiting or late ranks",
    Unknown.GRAPH_REPLAYS: "how often each captured graph ran: its calls count once",
    Unknown.OVERLAP: "the concurrent compute: how much of the communication is exposed, at most all of it",
    Unknown.SIZES: "the bytes of the calls that show ?",
    Unknown.SPLITS: "whether each all-to-all sends blocks of one size",
}
# Before NCCL 2.28 and in torch's own records a captured call looks like any other.
_UNSEEN_GRAPHS = "which calls are of CUDA graphs, and how often these ran"

_FOUND = {
    StepSource.MARKS: "the job marks it",
    StepSource.GIVEN: "its length was given",
    StepSource.FOLDED: "found in the order of calls and the pauses between them",
}
_MARK = {
    Source.PLUGIN: "call collbench.step() once a step on every rank, name its NVTX range to record --step-range, or ",
    Source.KINETO: "give torch.profiler a schedule, call its step() once a step and trace several, or ",
}
_HOW = "name its length: collbench import JOB --calls-per-step N -o NEW"


def page(report: Report) -> Iterator[Block]:
    """Yield the page's blocks."""
    yield from both("header", prose("\n".join(answers(report)) + "\n"), Lines("\n".join(origin(report))))
    yield from _gpu(report)
    yield from both("tables", prose(f"\n{_caption(report)}"))
    few, calls = _weightiest(report.rows), _call_table(report, report.rows[:_MAX_ROWS])
    if len(few) < len(report.rows):
        yield from short(
            _call_table(report, few), *more(len(report.rows) - len(few), " kinds of calls: --verbose shows all")
        )
        yield from whole("tables", calls)
    else:
        yield from both("tables", calls)
    yield from whole("tables", *more(len(report.rows) - _MAX_ROWS, " rows: --json has all"))
    yield from _ranks(report)
    yield from both("tails", Lines("\n" + "\n".join(remarks(report))))


def _caption(report: Report) -> str:
    """Return what the table of calls shows: of which rank, and medians over how many repetitions."""
    calls = amount(len(report.phase.positions), "call")
    what = "the step" if report.repeats else "no step: the longest sequence of calls"
    many = f", {report.phase.repetitions} times" if report.phase.repetitions > 1 else ""
    medians = f", medians over {report.counted} of them" if many and report.counted else ""
    return f"{what} of rank {report.rank}, {calls}{many}{medians}; µs of one call, GB/s of busbw"


def _gpu(report: Report) -> Iterator[Block]:
    """Yield a table of how a step passes on the GPU of each rank."""
    if len(report.gpu) > 1:
        yield from both("tables", prose(f"\n{'a step' if report.repeats else 'the trace'} on each GPU, ms"))
        yield from _each_rank(report.gpu, lambda gpu: gpu.exposed, _gpu_table, "the least and the most exposed")


def _each_rank(
    rows: Sequence[_Ranked],
    value: Callable[[_Ranked], float | None],
    table_of: Callable[[Sequence[_Ranked]], Table],
    which: str,
) -> Iterator[Block]:
    """Yield a table of ranks; of many the short page has only those with the lowest and the highest known values."""
    every = table_of(rows[:_MAX_ROWS])
    if len(rows) <= _FEW_RANKS:
        yield from both("tables", every)
        return
    half = _FEW_RANKS // 2
    ordered = sorted(rows, key=lambda row: (value(row) is None, value(row) or 0.0))
    yield from short(table_of([*ordered[:half], *ordered[-half:]]))
    yield from short(Text(f"{len(rows)} ranks; shown: {which}; --verbose shows all"))
    yield from whole("tables", every)


def exposed_text(report: Report) -> str:
    """Return how a step passes on the GPU of the rank that is shown; "" if unknown."""
    gpu = next((gpu for gpu in report.gpu if gpu.rank == report.rank), None)
    if gpu is None:
        return ""
    copies = f", copies {milli(gpu.copies)}" if gpu.copies else ""
    what = f"{'the traced' if gpu.whole else 'a step of'} {milli(gpu.step)}"
    split = ""
    if gpu.exposed_waiting is not None:
        moving = gpu.exposed - gpu.exposed_waiting
        split = f" ({milli(gpu.exposed_waiting)} waiting, {milli(moving)} transfer)"
    return (
        f"{what}: compute {milli(gpu.compute)}, exposed communication {milli(gpu.exposed)}{split}{copies}, idle "
        f"{milli(gpu.idle)} (GPU of rank {gpu.rank}; {milli(gpu.overlapped)} of the compute hides communication)"
    )


def _gpu_table(exposures: Sequence[Exposure]) -> Table:
    """Return a row for each rank: how its GPU passes a step, in ms."""
    rows = (
        (
            str(gpu.rank),
            *map(_milli, (gpu.step, gpu.compute, gpu.overlapped, gpu.exposed)),
            *map(_milli, (gpu.exposed_waiting, gpu.copies, gpu.idle)),
        )
        for gpu in exposures
    )
    heads = ("rank", "on GPU", "compute", "overlap", "exposed", "exp.wait", "copies", "idle")
    return table(*heads, rows=rows, optional=("exp.wait",))


def _milli(seconds: float | None) -> str:
    """Return seconds in ms for a table, "-" where unknown."""
    return "-" if seconds is None else figure(seconds * _MILLI, 2)


def answers(report: Report) -> list[str]:
    """Return the answer in sentences: how its calls compare with a run's, how a step passes on the GPU, where that is
    known, and how it communicates.

    Where the step is not most of the job, the first one begins with that.
    """
    first, *others = filter(None, (comparison(report), exposed_text(report), headline(report)))
    return ["; ".join(filter(None, (report.job.steps.reservation, first))), *others]


# A share of the isolated time by which a transfer may differ and still be called as long: the interval of a run's rates
# for large messages, and the resolution of kernel times.
_AS_LONG = 0.05


def comparison(report: Report) -> str:
    """Return why calls take longer than alone in the runs: waiting, or a slower transfer; "" without a run."""
    if not report.compared_with:
        return ""
    known = [row for row in report.rows if row.alone]
    timed = [row for row in known if row.kernel is not None and row.transfer and not row.bounded]
    if not timed:
        names = dict.fromkeys(report.job.calls[row.call].operation for row in report.rows)
        why = f"the runs have none of them: measure {', '.join(names)} on the job's GPUs"
        if known:
            some = any(row.kernel is not None for row in known)
            why = "ranks are missing, so waiting is unknown" if some else "record the job with --gpu-times"
        return f"it is unknown how much longer the calls take than alone: {why}"
    kernel, transfer, alone = (
        sum(row.count * (getattr(row, name) or 0.0) for row in timed) for name in ("kernel", "transfer", "alone")
    )
    of = f"{len(timed)} of {len(report.rows)} kinds of"
    if len(timed) == len(report.rows):
        of, mine = f"rank {report.rank}'s", report.mine
        apart = not any(position.together for position in report.phase.positions)
        if apart and mine.kernels is not None and mine.waiting is not None:  # the figures of the other lines
            kernel, transfer = mine.kernels, mine.kernels - mine.waiting
    each = " a step" if report.repeats else ""
    notes = ["sim"] * report.compared_simulated + ["with other NCCL variables"] * bool(report.other_variables)
    noted = f" ({', '.join(notes)})" if notes else ""
    longer = transfer - alone
    moves = "transfer takes as long as alone"
    if abs(longer) > _AS_LONG * alone:
        moves = f"transfer takes {milli(abs(longer))} {'longer' if longer > 0 else 'less'} than alone"
    waited = milli(kernel - transfer) if (kernel - transfer) * _MICRO >= 1 else "none of it"
    took = f"{of} calls take {milli(kernel)}{each}, alone {milli(alone)}{noted}"
    return f"{took}: {waited} is waiting for other ranks, {moves}"


def headline(report: Report) -> str:
    """Return the share of communication, the dominant operation, and the late rank.

    It says of which ranks it is: of all, and of the one that is shown.
    """
    mine = report.mine
    what = "a step" if report.repeats else "this sequence of calls"
    clauses = []
    if mine.kernels is not None and mine.step is not None:
        share = _over_ranks(shares(report), "{:.0%}".format)
        clauses.append(f"communication runs for {share} of {what}, exposed or hidden")
        clauses.append(f"rank {mine.rank}: {milli(mine.kernels)} of {milli(mine.step)}")
        if mine.waiting is not None:
            clauses[-1] += f", {milli(mine.waiting)} of it waiting"
    elif mine.kernels is not None:
        kernels = {row.rank: row.kernels for row in report.ranks if row.kernels is not None}
        clauses.append(f"the kernels of {what} take {_over_ranks(kernels, milli)}; the step time is unknown")
    else:
        sent = sum(_bytes(report, row) for row in report.rows)
        took = f" and takes {milli(mine.step)}" if mine.step is not None else ""
        some = any(row.kernel for row in report.rows)
        lack = "not all kernel times are known" if some else "kernel times are unknown"
        of = "" if Unknown.SIZES in report.job.unknown else f" of {format_message_size(sent)}"
        clauses.append(f"{what} of rank {mine.rank} has {amount(mine.calls, 'call')}{of}{took}; {lack}")
    top = dominant(report)
    if top is not None:
        clauses.append(top)
    if report.late and report.late[0].waits * _MICRO >= 1:
        worst = report.late[0]
        each = " a step" if report.repeats else ""
        clauses.append(f"the other ranks wait {milli(worst.waits)}{each} for rank {worst.rank}")
    if turns := _turns(report):
        clauses.append(f"the ranks wait for each other in turn: {turns}")
    return "; ".join(clauses)


def shares(report: Report) -> dict[int, float]:
    """Return by rank the share of communication in its step, where that is known."""
    return {row.rank: row.kernels / row.step for row in report.ranks if row.kernels is not None and row.step}


def _over_ranks(values: Mapping[int, float], text: Callable[[float], str]) -> str:
    """Return a figure of several ranks: "2% (rank 0) to 10% (rank 1)", "34% (4 ranks)", "6% (rank 0)"."""
    least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    low, high = text(values[least]), text(values[most])
    if low != high:
        return f"{low} (rank {least}) to {high} (rank {most})"
    return f"{low} (rank {least})" if len(values) == 1 else f"{low} ({len(values)} ranks)"


def dominant(report: Report) -> str | None:
    """Return which operation has most of a step's kernel time, or most of its bytes; None with a single operation."""
    times: dict[str, float] = defaultdict(float)
    sent: dict[str, float] = defaultdict(float)
    known = all(row.kernel is not None for row in report.rows)
    for row in report.rows:
        operation = report.job.calls[row.call].operation
        times[operation] += (row.kernel or 0.0) * row.count
        sent[operation] += _bytes(report, row)
    weights, of = (times, "kernel time") if known else (sent, "bytes")
    total = sum(weights.values())
    if len(weights) < 2 or not total or (not known and Unknown.SIZES in report.job.unknown):
        return None
    most = max(weights.values())
    names = sorted(operation for operation, weight in weights.items() if weight == most)
    share = f"{most / total:.0%} of rank {report.rank}'s {of}"
    if names[1:]:
        return f"{' and '.join(names)} have {share} each"
    return f"{names[0]} {'dominates with' if 2 * most > total else 'has the most,'} {share}"


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON: seconds, bytes and GB/s, null where unknown (docs/job-page.md)."""
    job, steps = report.job, report.job.steps
    return {
        "job": picked(job, "source", "started", "world_size", "unknown")
        | {"recorded_ranks": [rank.rank for rank in job.ranks]},
        "compared_with": compared_with(report) or None,
        "other_variables": list(report.other_variables),
        "step": {
            "source": steps.source,
            "why": steps.why or None,
            "calls_share": steps.calls,
            "bytes_share": steps.size_bytes,
        },
        "rank": report.rank,
        "repetitions": report.phase.repetitions,
        "counted_repetitions": report.counted,
        "calls": [_row_json(report, row) for row in report.rows],
        "ranks": [
            picked(row, "rank", "calls", "repetitions", "ending", "dropped")
            | {"last_share": row.last}
            | _seconds(row, "step", "kernels", "waiting")
            for row in report.ranks
        ],
        "gpu": [
            picked(gpu, "rank", "whole")
            | _seconds(gpu, "step", "compute", "overlapped", "exposed", "exposed_waiting", "copies", "idle")
            for gpu in report.gpu
        ],
        "slower": None
        if report.slower is None
        else {
            "gpus": [device.tag for device in report.slower.here.devices],
            "longer_seconds": plain(report.slower.change),
        },
        "turns": [picked(turn, "rank", "steps") | {"waits_seconds": turn.waits} for turn in report.turns],
        "late": [
            picked(rank, "rank", "group")
            | {"mean_seconds": rank.mean, "median_seconds": rank.lateness.median}
            | {"interval_seconds": plain(rank.lateness.interval), "last_share": rank.last, "calls_seen": rank.seen}
            | {"calls_per_step": rank.calls, "waits_seconds_per_step": rank.waits}
            for rank in report.late
        ]
        if report.late_known
        else None,
    }


def _seconds(thing: object, *names: str) -> dict[str, float | None]:
    return {f"{name}_seconds": getattr(thing, name) for name in names}


def _row_json(report: Report, row: Row) -> dict[str, Any]:
    call = report.job.calls[row.call]
    group = report.job.groups[call.group]
    return {
        "operation": call.operation,
        "size_bytes": call.size_bytes if size_text(report.job, call) != "?" else None,
        "dtype": call.dtype or None,
        "reduction": call.reduction or None,
        "group": {"size": group.size or None, "ranks": list(group.ranks) or None, "name": group.name or None},
        "captured": call.captured,
        "count": row.count,
        **_seconds(row, "kernel", "exposed", "exposed_waiting", "transfer", "alone"),
        "transfer_may_hold_waiting": row.bounded if row.transfer is not None else None,
        "busbw_gbs": row.busbw,
    }


def size_text(job: Job, call: Call) -> str:
    """Return a call's bytes, "?" if unknown."""
    return format_message_size(call.size_bytes) if call.size_bytes or Unknown.SIZES not in job.unknown else "?"


def group_text(job: Job, call: Call) -> str:
    """Return the ranks of a group as text: "all 8", "ranks 0-3", else the group's name and size."""
    group = job.groups[call.group]
    if not group.size:
        return one_line(group.name)[:_SHORT] or "?"
    if group.size == job.world_size:
        return f"all {group.size}"
    if group.name and len(group.name) <= _SHORT:
        return f"{one_line(group.name)} ({group.size})"
    ranks = group.ranks
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    listed = ",".join(map(str, ranks))
    return listed if ranks and len(listed) <= _SHORT + 1 else amount(group.size, "rank")


def milli(seconds: float) -> str:
    """Return "12.3 ms"."""
    return f"{fixed(seconds * _MILLI, 3)} ms"


def _bytes(report: Report, row: Row) -> int:
    return report.job.calls[row.call].size_bytes * row.count


def _weightiest(rows: Sequence[Row]) -> list[Row]:
    """Return the calls that take the longest in a step, in its order; calls with known kernel times go first."""
    weighed = sorted(rows, key=lambda row: (-(row.kernel or 0.0) * row.count, -(row.alone or 0.0) * row.count))
    kept = {id(row) for row in weighed[:_FEW_ROWS]}
    return [row for row in rows if id(row) in kept]


def _call_table(report: Report, rows: Sequence[Row]) -> Table:
    bare = ("exposed", "exp.wait")
    alone = f"{'sim ' if report.compared_simulated else ''}alone"
    heads = ("call", "bytes", "dtype", "group", "count", "kernel", *bare, "transfer", "busbw", alone)
    cells = (_cells(report.job, row) for row in rows)
    return table(*heads, rows=cells, left=("call", "dtype", "group"), keys=2, optional=(*bare, alone))


def _cells(job: Job, row: Row) -> tuple[str, ...]:
    call = job.calls[row.call]
    return (
        call.operation + ("*" if call.captured else ""),
        size_text(job, call),
        one_line(call.dtype)[:_LONGEST] or "?",
        group_text(job, call),
        f"×{row.count}",
        *map(micro, (row.kernel, row.exposed, row.exposed_waiting)),
        ("≤" if row.bounded and row.transfer is not None else "") + micro(row.transfer),
        ("≥" if row.bounded and row.busbw is not None else "") + _rate(row.busbw),
        _rate(busbw_gbs(job, call, row.alone)),
    )


def micro(seconds: float | None) -> str:
    """Return seconds in µs for a table, "-" where unknown."""
    return "-" if seconds is None else _narrow(seconds * _MICRO)


def _rate(gbs: float | None) -> str:
    return "-" if gbs is None else f"<{_MIN_RATE}" if gbs < _MIN_RATE else _narrow(gbs)


def _narrow(value: float) -> str:
    return figure(value) if value < _MANY else f"{value:.0f}"


def _ranks(report: Report) -> Iterator[Block]:
    """Yield a table of the ranks' steps."""
    if len(report.ranks) < 2 or all(row.kernels is None and row.step is None for row in report.ranks):
        return
    yield from both(
        "tables",
        prose(f"\n{'per step, ms' if report.repeats else 'ms'}; waiting: a rank's kernel time beyond the transfer"),
    )
    waits = any(row.waiting is not None for row in report.ranks)
    which = "those that wait least and most" if waits else "the shortest and the longest kernels"
    yield from _each_rank(
        report.ranks,
        lambda row: row.waiting if waits else row.kernels,
        lambda rows: _rank_table(rows, report),
        which,
    )


def _rank_table(rows: Sequence[RankRow], report: Report) -> Table:
    """Return a row for each rank: its calls, and in ms its step, its kernels, their waiting and their transfer."""
    cells = []
    for row in rows:
        moving = None if row.kernels is None or row.waiting is None else max(0.0, row.kernels - row.waiting)
        spent = map(_milli, (row.step, row.kernels, row.waiting, moving))
        cells.append((str(row.rank), str(row.calls), str(row.repetitions), *spent))
    heads = ("rank", "calls", "steps" if report.repeats else "times", "step", "kernels", "waiting", "transfer")
    return table(*heads, rows=cells)


def compared_with(report: Report) -> str:
    """Return the names of the runs that the job is compared with, marked if they are simulated; "" for none."""
    return f"{'sim ' if report.compared_simulated else ''}{', '.join(report.compared_with)}"


def origin(report: Report) -> Iterator[str]:
    """Yield where the job comes from, and the run it is compared with: lines of a name and a sentence."""
    job = report.job
    ranks = amount(job.world_size, "rank")
    if len(job.ranks) < job.world_size:
        ranks = f"{len(job.ranks)} of {ranks}"
    nccl = f", NCCL {one_line(job.nccl)}" if job.nccl else ""
    started = f", started {one_line(job.started)}" if job.started else ""
    library = ", calls of gloo" if job.library is Library.GLOO else ""
    yield f"job       {ranks}, by {job.source}{library}{nccl}{started}"
    if job.command:
        yield f"command   {one_line(' '.join(job.command))}"
    if report.compared_with:
        yield f"against   {one_line(compared_with(report))}"
    if report.other_variables:
        yield f"variables {one_line('; '.join(report.other_variables))}"
    if report.elsewhere:
        yield f"links     {one_line(report.elsewhere)}"


def remarks(report: Report) -> Iterator[str]:
    """Yield how the step was found, which ranks are late, and the limits of the figures: a name and a sentence each."""
    yield from _about_step(report)
    if report.slower is not None:
        yield f"slower    {slower_text(report, report.slower)}"
    yield from _limits(report)
    yield from _incomplete(report)


def slower_text(report: Report, slower: PredictedJob) -> str:
    """Return how much longer a step takes on the slowest links that the runs have."""
    least, expected, most = map(milli, slower.change)
    simulated = " (sim)" if report.compared_simulated else ""
    where = tags(range(len(slower.here.devices)), slower.here.devices)
    return f"on {where}, the slowest links in the runs, a step takes {expected} longer ({least} to {most}){simulated}"


def _about_step(report: Report) -> Iterator[str]:
    job = report.job
    if job.steps.source is not None:
        unless = ", unless you name its length" if job.steps.source is StepSource.FOLDED else ""
        doubt = f"; {job.steps.why}{unless}" if job.steps.why else ""
        yield f"step      {_FOUND[job.steps.source]}; it covers {job.steps.shares}{doubt}"
    else:
        yield f"step      {_MARK.get(job.source, '')}{_HOW}"
    if any(position.sizes for position in report.phase.positions):
        yield "sizes     change from step to step: those of the step with the median number of bytes are shown"


def _why_not_late(report: Report) -> str:
    """Return what judging late ranks lacks, where it lacks something."""
    if len(report.ranks) == report.job.world_size > 1 and all(row.kernels is not None for row in report.ranks):
        return "no call is known to be the same one on all ranks of a group"
    return "this needs kernel times of all ranks of a group, as of record --gpu-times"


def _limits(report: Report) -> Iterator[str]:
    job = report.job
    if report.repeats and 0 < report.counted < _FEW_STEPS:
        yield (
            f"few       figures are medians over {report.counted} of {amount(report.phase.repetitions, 'step')}, "
            "without the first one and those of unknown length: trace more for what is usual"
        )
    each = " a step" if report.repeats else ""
    late = [
        f"late      {late_text(job, rank)}: the others wait {milli(rank.waits)}{each} for it" for rank in report.late
    ]
    yield from capped(late, _FEW_LATE, "late      and {} more: --json has all")
    if not report.late:
        if report.late_known:
            yield f"late      {_not_late_text(report)}"
        else:
            yield f"late      not judged: {_why_not_late(report)}"
    if any(row.bounded and row.transfer is not None for row in report.rows):
        yield "≤ ≥       the time may include waiting: not all ranks of the call are known, or it is a message"
    if any(job.calls[row.call].captured for row in report.rows):
        yield "*         inside a CUDA graph"
    timed = any(row.kernel is not None for row in report.rows)
    for lacking in job.unknown:
        if lacking is Unknown.GPU_TIMES and timed:
            continue  # of calls that are not in the step
        graphs = lacking is Unknown.GRAPH_REPLAYS and not any(call.captured for call in job.calls)
        yield f"unknown   {_UNSEEN_GRAPHS if graphs else _LACKS[lacking]}"


def _incomplete(report: Report) -> Iterator[str]:
    differ = report.others_differ
    if differ:
        yield f"others    {amount(differ, 'rank')} made different calls in a step: --rank N shows them"
    cut = [str(row.rank) for row in report.ranks if row.ending == Ending.CUT_OFF]
    if cut:
        many = f"of {len(cut)} ranks" if len(cut) > _FEW_RANKS else f"of rank {', '.join(cut)}"
        yield f"cut off   the record {many} ends before the job ended"
    dropped = sum(row.dropped for row in report.ranks)
    if dropped:
        yield f"dropped   {amount(dropped, 'call')} not kept: the recorder's memory was full, or of an unknown kind"


def late_text(job: Job, late: LateRank) -> str:
    """Return which rank is late, among which ranks, by how much at each call of a step, and how often."""
    group = job.groups[late.group]
    among = "all ranks" if group.size == job.world_size else f"the {group.size} ranks of its group"
    calls = amount(late.calls, "call")
    return (
        f"rank {late.rank} arrives {figure(late.mean * _MICRO)} µs later than the others (mean) at {calls} of {among}, "
        f"and last at {late.last:.0%} of {late.seen:,}"
    )


# Ranks that take turns are each the last at far fewer calls.
_OFTEN_LAST = 0.75


def _turns(report: Report) -> str:
    """Return for which ranks the others wait, in how many of the steps and how long; "" if no steps show it."""
    if not report.repeats or report.counted < _FEW_STEPS:
        return ""
    shown = [f"for rank {turn.rank} in {turn.steps} ({milli(turn.waits)})" for turn in report.turns[:_FEW_LATE]]
    return f"of {report.counted} steps {', '.join(shown)}" if shown else ""


def _not_late_text(report: Report) -> str:
    """Return that nobody is late throughout, and how often each rank is the last: ranks may wait for each in turn."""
    lasts = {row.rank: row.last for row in report.ranks if row.last is not None}
    rank, share = max(lasts.items(), key=lambda item: item[1], default=(0, 0.0))
    if share >= _OFTEN_LAST:
        often = f"rank {rank} is last at {share:.0%} of its calls, in too few steps or by too little to tell"
        return f"no rank is shown to be late: {often}"
    if _turns(report):
        return "the ranks take turns: a median over all steps shows only the more frequent kind of step"
    shares = _over_ranks(lasts, "{:.0%}".format)
    return f"no rank is late throughout: each of {len(lasts)} is last at {shares} of its calls"
