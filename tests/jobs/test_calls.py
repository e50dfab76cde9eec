"""What a recorded job says: transfer against waiting, and who is late; made-up jobs with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from collbench.jobs.calls import pauses_of, report, step_seconds
from collbench.jobs.job import Ending, Group, Job, JobRank, Phase, Position, Sample
from collbench.jobs.job_file import dumps, loads
from collbench.jobs.page import comparison, headline, remarks
from collbench.judge.tails import after_others
from tests.jobs.made import jobs, made_job, stepped, without_gpu_times

DDP = [("allreduce", 25 * 2**20)] * 3 + [("allreduce", 2**20)]


def test_the_least_over_ranks_is_the_transfer_and_the_rest_is_waiting() -> None:
    found = report(made_job(DDP, ranks=4, gpu=[500, 500, 500, 50], late={2: 300.0}))
    assert found is not None
    large, small = found.rows
    assert (large.count, small.count) == (3, 1)
    assert large.transfer == pytest.approx(500e-6)
    assert large.kernel == pytest.approx(800e-6)
    assert large.busbw == pytest.approx(25 * 2**20 * 1.5 / 500e-6 / 1e9)
    assert not large.bounded
    waits = {row.rank: row.waiting for row in found.ranks}
    assert waits == {rank: pytest.approx(0 if rank == 2 else 4 * 300e-6) for rank in range(4)}
    assert found.mine.step == pytest.approx(4e-3)
    assert found.mine.kernels == pytest.approx(1550e-6 + 4 * 300e-6)


def test_the_late_rank_is_named_with_how_much_and_how_often() -> None:
    found = report(made_job(DDP, ranks=4, late={2: 300.0}))
    assert found is not None
    (late,) = found.late
    assert (late.rank, late.last, late.seen, late.calls) == (2, 1.0, 36, 4)  # of ten steps the first is warm-up
    assert late.lateness.median == late.mean == pytest.approx(300e-6)
    assert late.waits == pytest.approx(4 * 300e-6)


def with_waits(job: Job, waits: Callable[[int, int], Sequence[float]]) -> Job:
    """Return a job whose ranks wait so many µs in each call, by rank and repetition, beside the transfer of 100."""

    def waiting(rank: JobRank) -> JobRank:
        (phase,) = rank.phases
        samples = (
            replace(one, gpu=tuple(100.0 + wait for wait in waits(rank.rank, one.repetition))) for one in phase.samples
        )
        return replace(rank, phases=(replace(phase, samples=tuple(samples)),))

    return stepped(replace(job, ranks=tuple(map(waiting, job.ranks))))


def test_how_late_a_rank_is_at_each_call_adds_up_to_what_the_others_wait() -> None:
    """Most calls wait 10 µs, one of them 310: the median call says a tenth of it."""
    job = with_waits(made_job(DDP), lambda rank, _: (0, 0, 0, 0) if rank else (10, 310, 10, 10))
    found = report(job)
    assert found is not None
    (late,) = found.late
    assert late.lateness.median == pytest.approx(10e-6)
    assert [late.mean, late.waits] == pytest.approx([85e-6, 340e-6])
    assert "rank 1 arrives 85.0 µs later than the others (mean) at 4 calls of all ranks" in "".join(remarks(found))
    assert "the others wait 0.34 ms a step for it" in "".join(remarks(found))


def test_a_rank_waits_as_long_in_the_comparison_with_a_run_as_in_its_own_line() -> None:
    """Each call waits in every third step, so that its median wait is none, and every step has one that waits."""
    sent = [("allreduce", 2**20), ("reducescatter", 2**20), ("allgather", 2**20)]
    job = with_waits(made_job(sent), lambda rank, step: [0 if rank or step % 3 != place else 900 for place in range(3)])
    found = report(job, alone=dict.fromkeys(range(3), 100e-6))
    assert found is not None
    assert "1.2 ms of 3 ms, 0.9 ms of it waiting" in headline(found)
    compared = comparison(replace(found, compared_with=("run",)))
    assert compared.startswith("rank 0's calls take 1.2 ms a step, alone 0.3 ms: 0.9 ms is waiting for other ranks, ")
    assert compared.endswith("transfer takes as long as alone")


def test_ranks_that_take_turns_to_wait_are_named_with_their_steps() -> None:
    """Of the nine steps that count, rank 0 waits in four and rank 1 in five; three µs at the last call say nothing.

    So rank 0's median wait is next to nothing, which must not pass for the whole truth.
    """
    job = with_waits(made_job(DDP), lambda rank, step: (900, 900, 900, 0) if step % 2 == rank else (0, 0, 0, 3))
    found = report(job)
    assert found is not None
    assert found.late == ()
    assert [row.last for row in found.ranks] == [pytest.approx(5 * 3 / 36), pytest.approx(4 * 3 / 36)]
    assert [row.waiting for row in found.ranks] == pytest.approx([3e-6, 2.7e-3])
    answer = "the ranks wait for each other in turn: of 9 steps for rank 0 in 5 (2.7 ms), for rank 1 in 4 (2.7 ms)"
    assert answer in headline(found)
    assert "late      the ranks take turns: " in "\n".join(remarks(found))


def test_ranks_that_take_turns_in_few_steps_are_named_with_their_shares() -> None:
    job = made_job(DDP, repetitions=5, kept=5)
    found = report(with_waits(job, lambda rank, step: (900, 900, 900, 0) if step % 2 == rank else (0, 0, 0, 3)))
    assert found is not None
    assert "in turn" not in headline(found)
    assert "no rank is late throughout: each of 2 is last at 38% (2 ranks) of its calls" in "".join(remarks(found))


@pytest.mark.parametrize(
    ("why", "job"),
    [
        ("without kernel times", without_gpu_times(made_job(DDP, late={1: 300.0}))),
        ("rooted calls", made_job([("broadcast", 8)], late={1: 300.0})),
        ("no samples", made_job(DDP, late={1: 300.0}, kept=0)),
    ],
)
def test_nobody_is_late_where_that_cannot_be_known(why: str, job: Job) -> None:
    found = report(job)
    assert found is not None, why
    assert (found.late, found.late_known) == ((), False)


def test_less_than_kernels_tell_is_not_late() -> None:
    found = report(made_job(DDP, late={1: 4.9}))
    assert found is not None
    assert (found.late, found.late_known) == ((), True)


def test_kernels_say_who_is_late_and_not_the_hosts_that_run_ahead() -> None:
    """Rank 0's host calls 20 ms after rank 1's, whose GPU is 300 µs late; they have no common clock."""
    job = made_job(DDP, late={1: 300.0})
    first, second = job.ranks
    behind = [replace(sample, starts=tuple(at + 20_000 for at in sample.starts)) for sample in first.phases[0].samples]
    first = replace(first, phases=(replace(first.phases[0], samples=tuple(behind)),), host="other")
    found = report(stepped(replace(job, ranks=(first, second))))
    assert found is not None
    (late,) = found.late
    assert late.rank == 1
    assert late.lateness.median == pytest.approx(300e-6)
    assert late.waits == found.mine.waiting == pytest.approx(4 * 300e-6)


def test_a_row_of_equal_calls_has_their_mean() -> None:
    """So that the rows of a step add up to its kernels."""
    found = report(made_job([("allreduce", 2**20)] * 4, gpu=[10, 10, 10, 410], late={1: 100.0}))
    assert found is not None
    (row,) = found.rows
    assert row.kernel == pytest.approx(210e-6)
    assert row.transfer == pytest.approx(110e-6)
    assert found.mine.kernels == pytest.approx(4 * 210e-6)


def test_a_missing_rank_leaves_a_bound() -> None:
    job = made_job(DDP, ranks=3, late={2: 300.0})
    found = report(replace(job, ranks=job.ranks[:2]))
    assert found is not None
    assert all(row.bounded for row in found.rows)
    assert all(row.waiting is None for row in found.ranks)


def test_ranks_that_sent_other_calls_before_are_not_matched() -> None:
    job = made_job(DDP, late={1: 300.0})
    first, second = job.ranks
    before = Phase(second.phases[0].positions[:1])
    later = replace(second, phases=(before, *second.phases), before_step=1)
    without_step = replace(later, step=None, before_step=0)
    for ranks in ((first, later), (replace(first, step=None), without_step)):
        found = report(replace(job, ranks=ranks))
        assert found is not None
        assert not found.late_known
        assert all(row.bounded for row in found.rows)


def test_ranks_of_a_killed_job_are_matched_however_many_calls_each_still_sent() -> None:
    """Read from a file, so that the step is no phase; rank 0 was killed in the middle of one."""
    job = made_job(DDP, ranks=4, late={2: 300.0})
    first, *others = job.ranks
    began = Phase(first.phases[0].positions[:2])
    warm_up = Phase(first.phases[0].positions[-1:], 5)
    ranks = [replace(rank, phases=(warm_up, *rank.phases), before_step=5) for rank in (first, *others)]
    killed = replace(ranks[0], phases=(*ranks[0].phases, began), ending=Ending.CUT_OFF)
    found = report(loads(dumps(replace(job, ranks=(killed, *ranks[1:]))), "job.json"))
    assert found is not None
    assert not any(row.bounded for row in found.rows)
    assert [late.rank for late in found.late] == [2]


def test_unknown_times_are_none_and_no_zero() -> None:
    found = report(without_gpu_times(made_job(DDP)))
    assert found is not None
    for row in found.rows:
        assert (row.kernel, row.transfer, row.busbw) == (None, None, None)
    assert found.mine.kernels is None
    assert found.mine.step is not None


def test_one_call_without_a_time_takes_none_from_the_others() -> None:
    """Rank 1's last call is never timed, and its first one not in repetition 3, where all waited long."""
    job = made_job([("allreduce", 2**20), ("allgather", 2**20)], gpu=[500, 50], late={1: 300.0})

    def partly(rank: JobRank) -> JobRank:
        (phase,) = rank.phases
        first, last = phase.positions
        samples = tuple(
            replace(sample, gpu=(0.0 if rank.rank else 90_000.0, 0.0 if rank.rank else sample.gpu[1]))
            if sample.repetition == 3
            else replace(sample, gpu=(sample.gpu[0], 0.0 if rank.rank else sample.gpu[1]))
            for sample in phase.samples
        )
        last = replace(last, gpu=None if rank.rank else last.gpu)
        return replace(rank, phases=(replace(phase, positions=(first, last), samples=samples),))

    found = report(stepped(replace(job, ranks=tuple(map(partly, job.ranks)))))
    assert found is not None
    whole, alone = found.rows
    assert [row.transfer for row in found.rows] == pytest.approx([500e-6, 350e-6])  # the last is rank 0's own
    assert [row.bounded for row in (whole, alone)] == [False, True]


def test_a_kernel_and_its_transfer_are_of_the_same_repetitions() -> None:
    """Only in the repetitions of which rank 1 lacks the kernel both ranks were fast."""
    job = made_job([("allreduce", 2**20)], gpu=[50.0])

    def partly(rank: JobRank) -> JobRank:
        (phase,) = rank.phases
        lasted = [(20.0 if rank.rank == 0 else 0.0) if sample.repetition % 3 else 80.0 for sample in phase.samples]
        samples = tuple(replace(sample, gpu=(took,)) for sample, took in zip(phase.samples, lasted, strict=True))
        return replace(rank, phases=(replace(phase, samples=samples),))

    found = report(stepped(replace(job, ranks=tuple(map(partly, job.ranks)))))
    assert found is not None
    assert [(row.kernel, row.transfer) for row in found.rows] == [pytest.approx((80e-6, 80e-6))]


def test_calls_in_one_group_share_their_kernel() -> None:
    job = made_job([("allgather", 1024)] * 4, gpu=[100.0] * 4)

    def together(phase: Phase) -> Phase:
        return replace(phase, positions=tuple(replace(one, together=at > 0) for at, one in enumerate(phase.positions)))

    ranks = tuple(replace(rank, phases=tuple(map(together, rank.phases))) for rank in job.ranks)
    found = report(stepped(replace(job, ranks=ranks)))
    assert found is not None
    assert found.mine.kernels == pytest.approx(100e-6)


def test_how_late_a_rank_is_counts_from_the_median_of_the_others() -> None:
    rng = np.random.default_rng(3)
    for ranks in range(2, 8):
        times = rng.integers(0, 5, (ranks, 40)).astype(float)
        expected = [times[at] - np.median(np.delete(times, at, axis=0), axis=0) for at in range(ranks)]
        assert np.array_equal(after_others(times), expected)


@given(jobs())
@settings(max_examples=25, deadline=None)
def test_random_jobs_are_judged_without_invention(job: Job) -> None:
    found = report(job)
    assert (found is None) == (not any(rank.phases for rank in job.ranks))
    if found is None:
        return
    assert sum(row.count for row in found.rows) == len(found.phase.positions)
    gpu = {position.call: position.gpu for position in found.phase.positions}
    for row in found.rows:
        if all(position.gpu is None for position in found.phase.positions) and not any(
            sample.gpu for sample in found.phase.samples
        ):
            assert row.kernel is row.transfer is row.busbw is None
        assert row.transfer is None or row.transfer > 0
    assert gpu
    for rank in found.ranks:
        if rank.step is not None:  # what is known of waiting ≤ kernels ≤ step
            known = [one for one in (rank.waiting, rank.kernels, rank.step) if one is not None]
            assert known == sorted(known)
            assert known[0] >= 0
    for late in found.late:
        for rank in found.ranks:
            if rank.rank in job.groups[late.group].ranks and rank.rank != late.rank:
                assert rank.step is None or late.waits <= rank.step
                assert rank.waiting is None or late.waits <= rank.waiting


def test_names_of_ranks_do_not_matter() -> None:
    job = made_job(DDP, ranks=3, late={0: 300.0})
    turned = replace(
        job,
        ranks=tuple(replace(rank, rank=2 - rank.rank) for rank in job.ranks),
        groups=(Group((2, 1, 0), 3),),
    )
    first, second = report(job), report(turned)
    assert first is not None
    assert second is not None
    assert [(one.rank, one.waits) for one in first.late] == [(2 - one.rank, one.waits) for one in second.late]
    assert [row.transfer for row in first.rows] == [row.transfer for row in second.rows]


def test_a_step_is_the_median_of_the_kept_repetitions() -> None:
    """One of them had an evaluation after it; without any, the usual pauses add up to it."""
    positions = tuple(Position(0, pause=pause) for pause in (700.0, 100.0))
    samples = tuple(Sample(at, (0.0, 1.0), step=1e6 if at == 4 else 1000.0) for at in range(10))
    phase = Phase(positions, 60, samples)
    assert step_seconds(phase) == pytest.approx(1e-3)
    assert pauses_of(phase, 1e-3) == pytest.approx([0.875e-3, 0.125e-3])  # together a step
    assert step_seconds(replace(phase, samples=())) == pytest.approx(0.8e-3)


def test_unknown_pauses_make_no_step() -> None:
    phase = Phase((Position(0), Position(0)), 60)
    assert step_seconds(phase) is None
    assert pauses_of(phase, None) == [0.0, 0.0]
