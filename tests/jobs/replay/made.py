"""Recorded jobs for tests of replay: made by hand, and drawn at random so that their ranks fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from collbench.jobs.job import Call, Group, Job, JobRank, Phase, Position, Source
from tests.jobs.made import stepped


def job_of(
    groups: Sequence[Sequence[int]],
    steps: Sequence[Sequence[tuple[Call, bool]]],
    *,
    pause: float | None = 100.0,
    gpu: float | None = 40.0,
) -> Job:
    """Return a job whose rank r repeats `steps[r]`: calls, each with True if it is grouped with the call before."""
    table = tuple(dict.fromkeys(call for step in steps for call, _ in step))
    ranks = []
    for rank, step in enumerate(steps):
        positions = tuple(
            Position(
                table.index(call),
                together,
                None if pause is None else 0.0 if together else pause,
                None if gpu is None else gpu * (rank + 1),
            )
            for call, together in step
        )
        ranks.append(JobRank(rank, (Phase(positions, 20),) if positions else (), host="node"))
    rank_groups = tuple(Group(tuple(group), len(group)) for group in groups)
    return stepped(Job(Source.PLUGIN, "2026-01-01T00:00:00Z", len(steps), rank_groups, table, tuple(ranks)))


def data_parallel(ranks: int = 2, sizes: Sequence[int] = (2**20, 2**18)) -> Job:
    """Return a job that all-reduces buckets of float32 over all ranks."""
    step = [(Call("allreduce", size, 0, "float32", "sum"), False) for size in sizes]
    return job_of([range(ranks)], [step] * ranks)


def pipeline(size: int = 2**16) -> Job:
    """Return a job of two pipeline stages that exchange activations."""
    first = [(Call("send", size, 0, peer=1), False), (Call("recv", size, 0, peer=1), True)]
    second = [(Call("recv", size, 0, peer=0), False), (Call("send", size, 0, peer=0), True)]
    return job_of([(0, 1)], [first, second])


def without_rank(job: Job, rank: int) -> Job:
    """Return the job without the record of a rank."""
    return replace(job, ranks=tuple(kept for kept in job.ranks if kept.rank != rank))


_SHARED = ("allgather", "reducescatter", "alltoall")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@st.composite
def jobs(draw: st.DrawFn, most_ranks: int = 4, largest: int = 4096) -> Job:
    """Draw a job that could have run: each event adds matching calls to all of its ranks."""
    ranks = draw(st.integers(2, most_ranks))
    members = st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks, unique=True)
    groups = [list(range(ranks)), *draw(st.lists(members, max_size=3))]
    first = Call("allreduce", 64, 0, "float32", "sum")  # of all: each rank has a step
    steps = [[(first, False)] for _ in range(ranks)]
    for _ in range(draw(st.integers(1, 8))):
        group_index = draw(st.integers(0, len(groups) - 1))
        group = groups[group_index]
        size = draw(st.integers(1, largest // 64)) * 64
        if draw(st.booleans()) and len(group) > 1:  # a ring of messages, in one NCCL group on each rank
            for at, rank in enumerate(group):
                before, after = (at - 1) % len(group), (at + 1) % len(group)
                posts = [Call("send", size, group_index, peer=after), Call("recv", size, group_index, peer=before)]
                if draw(st.booleans()):
                    posts.reverse()
                steps[rank] += [(posts[0], False), (posts[1], True)]
            continue
        name = draw(st.sampled_from(("allreduce", *_SHARED, *_ROOTED)))
        root = draw(st.integers(0, len(group) - 1)) if name in _ROOTED else None
        reduction = draw(st.sampled_from(("sum", "max", "min", ""))) if "reduce" in name else ""
        dtype = draw(st.sampled_from(("float32", "bfloat16", "int32", "")))
        together = draw(st.integers(1, 2))  # collectives of one group at once
        for number in range(together):
            for rank in group:
                steps[rank].append((Call(name, size, group_index, dtype, reduction, root=root), number > 0))
    return job_of(groups, steps)
