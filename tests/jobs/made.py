"""Made-up recorded jobs: one with known results, and random ones for properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf

from hypothesis import strategies as st

from collbench.jobs.job import (
    Call,
    Ending,
    Group,
    Job,
    JobRank,
    Phase,
    PointToPoint,
    Position,
    Sample,
    Source,
    Steps,
    StepSource,
    Unknown,
)
from collbench.model.operations import COLLECTIVES

STARTED = "2026-01-02T03:04:05Z"


def covered(spans: Iterable[tuple[float, float]], low: float = -inf, high: float = inf) -> float:
    """Return how much of the time between two moments the spans cover: each moment once, however many there are."""
    total, until = 0.0, low
    for start, end in sorted(spans):
        total += max(0.0, min(end, high) - max(start, until))
        until = max(until, min(end, high))
    return total


def stepped(job: Job) -> Job:
    """Return the job with a step that is known: on each rank the phase with most calls among those that repeat."""
    ranks = tuple(
        replace(
            rank,
            step=max(
                (phase for phase in rank.phases if phase.repetitions > 1),
                key=lambda phase: phase.repetitions * len(phase.positions),
                default=None,
            ),
        )
        for rank in job.ranks
    )
    known = any(rank.step for rank in ranks)
    return replace(
        job, ranks=ranks, steps=Steps(StepSource.MARKS, "", 1.0, 1.0) if known else Steps(why="none repeats")
    )


def made_job(
    sent: Sequence[tuple[str, int]],
    *,
    ranks: int = 2,
    pauses: Sequence[float] | None = None,
    gpu: Sequence[float] | None = None,
    late: Mapping[int, float] | None = None,
    repetitions: int = 10,
    kept: int = 10,
    host: str = "node",
    unknown: tuple[Unknown, ...] = (),
) -> Job:
    """Return a job whose ranks all send the same (operation, bytes) to a group of all, in every step.

    `pauses` (default 1000 each) and `gpu` (default 100) are µs by call, `gpu` the transfer's: a rank that is not `late`
    by rank, µs, has that much waiting on top.
    """
    pauses = [1000.0] * len(sent) if pauses is None else pauses
    gpu = [100.0] * len(sent) if gpu is None else gpu
    table = tuple(dict.fromkeys(Call(operation, size, 0, "bfloat16") for operation, size in sent))
    call_indices = [table.index(Call(operation, size, 0, "bfloat16")) for operation, size in sent]
    most_late = max((late or {}).values(), default=0.0)
    period, issued = sum(pauses), list(accumulate(pauses))
    job_ranks = []
    for rank in range(ranks):
        own_lateness = (late or {}).get(rank, 0.0)
        gpu_times = [transfer + most_late - own_lateness for transfer in gpu]
        samples = tuple(
            Sample(number, tuple(number * period + at + own_lateness for at in issued), tuple(gpu_times), step=period)
            for number in range(kept)
        )
        positions = tuple(
            Position(call_index, pause=pause, gpu=gpu_time)
            for call_index, pause, gpu_time in zip(call_indices, pauses, gpu_times, strict=True)
        )
        job_ranks.append(JobRank(rank, (Phase(positions, repetitions, samples),), host, rank))
    groups = (Group(tuple(range(ranks)), ranks),)
    return stepped(Job(Source.PLUGIN, STARTED, ranks, groups, table, tuple(job_ranks), unknown=unknown))


def without_gpu_times(job: Job) -> Job:
    """Return the job as a source without kernel times records it."""

    def phase(original: Phase) -> Phase:
        positions = tuple(replace(position, gpu=None) for position in original.positions)
        return replace(
            original, positions=positions, samples=tuple(replace(sample, gpu=()) for sample in original.samples)
        )

    ranks = tuple(replace(rank, phases=tuple(map(phase, rank.phases))) for rank in job.ranks)
    return stepped(replace(job, ranks=ranks, unknown=(*job.unknown, Unknown.GPU_TIMES)))


_TIMES = st.floats(0.01, 1e7)


@st.composite
def phases(draw: st.DrawFn, calls: int) -> Phase:
    """Draw a sequence of up to six calls; whatever a source may lack is missing somewhere."""
    positions = draw(
        st.lists(
            st.builds(
                Position,
                call=st.integers(0, calls - 1),
                together=st.booleans(),
                pause=st.none() | _TIMES,
                gpu=st.none() | _TIMES,
            ),
            min_size=1,
            max_size=6,
        )
    )
    repetitions = draw(st.integers(1, 5))
    kept = draw(st.sets(st.integers(0, repetitions - 1)))
    timed = draw(st.booleans())
    times = st.lists(_TIMES, min_size=len(positions), max_size=len(positions)).map(tuple)
    times_or_unknown = st.lists(_TIMES | st.just(0.0), min_size=len(positions), max_size=len(positions)).map(
        tuple
    )  # 0: unknown
    has_gpu_starts = draw(st.booleans())
    samples = tuple(
        Sample(
            number,
            tuple(sorted(draw(times))),
            draw(times_or_unknown) if timed else (),
            tuple(sorted(draw(times))) if has_gpu_starts else (),
        )
        for number in sorted(kept)
    )
    return Phase(tuple(positions), repetitions, samples)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a job as any source might leave it: ranks missing, each with calls and phases of its own or the same."""
    world = draw(st.integers(1, 5))
    members = st.lists(st.integers(0, world - 1), min_size=1, max_size=world, unique=True).map(tuple)
    groups = draw(
        st.lists(
            st.builds(lambda ranks, named: Group(ranks, len(ranks), "dp" if named else ""), members, st.booleans())
            | st.builds(lambda size: Group((), size), st.integers(1, world)),
            min_size=1,
            max_size=3,
        )
    )
    kinds = [*map(str, COLLECTIVES), *map(str, PointToPoint)]
    calls = draw(
        st.lists(
            st.builds(
                Call,
                operation=st.sampled_from(kinds),
                size_bytes=st.sampled_from([0, 1, 4096, 10**9 + 7]),
                group=st.integers(0, len(groups) - 1),
                dtype=st.sampled_from(["", "bfloat16", "odd\x1b[31m"]),
                captured=st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    alike = draw(st.lists(phases(len(calls)), max_size=3).map(tuple))
    ranks = tuple(
        JobRank(
            rank,
            alike if draw(st.booleans()) else draw(st.lists(phases(len(calls)), max_size=3).map(tuple)),
            draw(st.sampled_from(["", "a", "b"])),
            draw(st.none() | st.integers(0, 7)),
            draw(st.sampled_from(list(Ending))),
            draw(st.integers(0, 3)),
        )
        for rank in draw(st.sets(st.integers(0, world - 1)))
    )
    unknown = draw(st.sets(st.sampled_from(list(Unknown))).map(sorted).map(tuple))
    return stepped(Job(Source.KINETO, STARTED, world, tuple(groups), tuple(calls), ranks, unknown=unknown))


def documented_job() -> Job:
    """Return the job that docs/job-page.md shows."""
    large, small = ("reducescatter", 96 * 2**20), ("allgather", 48 * 2**20)
    job = made_job(
        [*[small] * 6, *[large, small] * 3, ("allreduce", 4)],
        ranks=4,
        pauses=[9000.0, *[700.0] * 5, *[1500.0] * 6, 800.0],
        gpu=[*[240.0] * 6, *[450.0, 240.0] * 3, 12.0],
        late={3: 310.0},
        repetitions=200,
        kept=12,
    )
    unknown = (Unknown.REDUCTION, Unknown.OVERLAP)
    return replace(job, command=("torchrun", "train.py"), nccl="2.28.9", unknown=unknown)
