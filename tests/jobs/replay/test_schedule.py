"""From a recorded job to what each rank posts: nothing waits for ever, and what cannot fit together is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.jobs.calls import report
from collbench.jobs.job import Call, Group, Job, JobRank, Phase, PointToPoint, Position, Sample
from collbench.jobs.replay.schedule import Post, Schedule, schedule_of
from collbench.model.errors import UsageError
from collbench.model.units import DTYPE_BYTES
from tests.jobs.made import stepped
from tests.jobs.replay.made import data_parallel, job_of, jobs, without_rank

SUM = Call("allreduce", 4096, 0, "float32", "sum")


class Streams:
    """Blocking streams, one for each rank of each group: what a rank sends waits in the network for who receives it."""

    def __init__(self, schedule: Schedule) -> None:
        self.groups = schedule.groups
        self.left = {
            (rank, group): [unit for unit in units if unit.group == group]
            for rank, units in enumerate(schedule.ranks)
            for group in range(len(schedule.groups))
        }
        self.sent: dict[tuple[int, int, int], list[int]] = {}
        self.awaited: dict[tuple[int, int], list[Post]] = {}

    def collective(self, group: int) -> bool:
        heads = [self.left[rank, group][:1] for rank in self.groups[group]]
        if not all(head and not head[0].messages for head in heads):
            return False
        assert len({head[0].posts for head in heads}) == 1
        for rank in self.groups[group]:
            self.left[rank, group].pop(0)
        return True

    def messages(self, rank: int, group: int) -> bool:
        if not (self.left[rank, group] and self.left[rank, group][0].messages):
            return False
        begun = (rank, group) in self.awaited
        if not begun:
            posts = self.left[rank, group][0].posts
            for post in posts:
                if post.operation == PointToPoint.SEND:
                    self.sent.setdefault((group, rank, post.peer or 0), []).append(post.size_bytes)
            self.awaited[rank, group] = [post for post in posts if post.operation == PointToPoint.RECV]
        moved = not begun
        for post in list(self.awaited[rank, group]):
            arrived = self.sent.get((group, post.peer or 0, rank))
            if arrived:
                assert arrived.pop(0) == post.size_bytes
                self.awaited[rank, group].remove(post)
                moved = True
        if not self.awaited[rank, group]:
            del self.awaited[rank, group]
            self.left[rank, group].pop(0)
        return moved


def finishes(schedule: Schedule) -> bool:
    """Run the step; return whether all of it came to its end and nothing was left in the network."""
    streams = Streams(schedule)
    places = [(rank, group) for group, members in enumerate(schedule.groups) for rank in members]
    while any(
        [
            *(streams.collective(group) for group in range(len(schedule.groups))),
            *(streams.messages(rank, group) for rank, group in places),
        ]
    ):
        pass
    return not any(streams.left.values()) and not any(streams.sent.values())


@given(jobs())
def test_every_consistent_job_comes_to_its_end(job: Job) -> None:
    schedule = schedule_of(job)
    assert finishes(schedule)
    used = [unit.meeting for units in schedule.ranks for unit in units]
    assert set(used) == set(range(len(schedule.meetings)))
    assert sum(kind.count for kind in schedule.kinds) == len(schedule.meetings)
    for units in schedule.ranks:
        own = [(unit.group, unit.meeting) for unit in units if not unit.messages]
        assert all(one < two for (g, one), (h, two) in pairwise(own) if g == h)
        for post in (post for unit in units for post in unit.posts):
            assert post.size_bytes % DTYPE_BYTES[post.dtype] == 0


@given(jobs())
def test_all_pauses_are_kept(job: Job) -> None:
    schedule = schedule_of(job)
    for rank, units, rest in zip(job.ranks, schedule.ranks, schedule.rests, strict=True):
        recorded = sum(at.pause or 0.0 for at in rank.phases[0].positions)
        assert sum(unit.pause for unit in units) + rest == pytest.approx(recorded * 1e-6)


@given(jobs(), st.randoms(use_true_random=False))
def test_a_job_that_lost_a_call_is_refused_or_still_fits(job: Job, random: object) -> None:
    """Whatever goes missing, nothing that would wait forever gets a schedule."""
    choice = random.randrange  # type: ignore[attr-defined]
    victim = job.ranks[choice(len(job.ranks))]
    positions = victim.phases[0].positions
    at = choice(len(positions))
    left = (*positions[:at], *positions[at + 1 :])
    if not left:
        return
    hurt = replace(victim, phases=(Phase(left, 20),))
    broken = replace(job, ranks=tuple(hurt if rank is victim else rank for rank in job.ranks))
    with suppress(UsageError):
        assert finishes(schedule_of(broken))


def two(first: list[Call], second: list[Call], **more: float | None) -> Job:
    return job_of([(0, 1)], [[(call, False) for call in calls] for calls in (first, second)], **more)


SEND, RECV = Call("send", 64, 0, peer=1), Call("recv", 64, 0, peer=0)


@pytest.mark.parametrize(
    ("title", "job", "words"),
    [
        ("a rank is missing", without_rank(data_parallel(4), 2), "no record of rank 2 of 4"),
        (
            "calls were dropped",
            replace(data_parallel(), ranks=(replace(data_parallel().ranks[0], dropped=3), data_parallel().ranks[1])),
            "calls of rank 0 were dropped",
        ),
        ("one rank reduces more", two([SUM, SUM], [SUM]), "would wait forever"),
        ("sizes differ", two([SUM], [replace(SUM, size_bytes=64)]), "do not match"),
        ("operations differ", two([SUM], [Call("broadcast", 4096, 0, root=0)]), "calls allreduce of 4K where rank 1"),
        ("roots differ", two(*[[Call("broadcast", 64, 0, root=root)] for root in (0, 1)]), "do not match"),
        ("nobody receives", two([SEND, SUM], [SUM, SUM]), "do not match"),
        ("two messages of other sizes", two([SEND], [replace(RECV, size_bytes=128)]), "expects 128 B"),
        (
            "both receive before they send, not in one group",
            two([Call("recv", 64, 0, peer=1), SEND], [RECV, Call("send", 64, 0, peer=0)]),
            "would wait forever",
        ),
        ("the peer is unknown", two([Call("send", 64, 0)], [Call("recv", 64, 0)]), "does not have the peers of sends"),
        ("the root is unknown", two(*[[Call("broadcast", 64, 0)]] * 2), "which rank is the root of a broadcast"),
        ("blocks are unknown", two(*[[Call("alltoallv", 64, 0)]] * 2), "without its block sizes"),
        ("only with itself", job_of([(0,), (1,)], [[(Call("allreduce", 64, n), False)] for n in (0, 1)]), "nothing"),
        (
            "nothing repeats",
            replace(data_parallel(), ranks=tuple(replace(rank, step=None) for rank in data_parallel().ranks)),
            "no known step",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(title: str, job: Job, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        schedule_of(job)
    assert words in str(refused.value), title
    assert "\n" not in str(refused.value)


def test_members_of_an_unknown_group_are_known_where_it_holds_all_ranks() -> None:
    job = data_parallel(2)
    assert schedule_of(replace(job, groups=(Group((), 2),))) == schedule_of(job)
    part = job_of([(0, 1), (0, 1, 2)], [[(SUM, False)]] * 2 + [[]])
    part = replace(part, groups=(Group((), 2), part.groups[1]))
    part = replace(part, ranks=(*part.ranks[:2], replace(part.ranks[0], rank=2)))
    with pytest.raises(UsageError, match="which 2 ranks are in a group"):
        schedule_of(part)


def test_roots_and_peers_are_ranks_of_the_recorded_order() -> None:
    """NCCL's rank 0 of this group is the job's rank 1."""
    calls = Call("broadcast", 64, 0, root=0)
    schedule = schedule_of(job_of([(1, 0)], [[(calls, False)]] * 2))
    assert {unit.posts[0].root for units in schedule.ranks for unit in units} == {1}
    assert schedule.groups == ((0, 1),)


def test_a_message_is_whole_elements_and_equal_blocks() -> None:
    gather = Call("reducescatter", 1000, 0, "float32", "sum")
    schedule = schedule_of(job_of([range(3)], [[(gather, False)]] * 3))
    assert schedule.ranks[0][0].posts[0].size_bytes == 1008


def test_what_is_not_said_is_chosen_aloud() -> None:
    call = Call("allreduce", 64, 0, "", "", captured=True)
    schedule = schedule_of(job_of([(0, 1)], [[(call, False)]] * 2, pause=None, gpu=None))
    sums, types, pauses, launches = schedule.assumed
    assert sums.startswith("sums: ")
    assert types.startswith("float32 ")
    assert pauses.startswith("no pauses: ")
    assert launches.startswith("plain launches ")
    assert schedule.recorded_seconds is None
    assert schedule.ranks[0][0].posts == (Post("allreduce", 64, "float32", "sum"),)
    assert schedule_of(data_parallel()).assumed == ()


def test_the_job_took_as_long_as_on_the_rank_that_waited_least() -> None:
    """Rank 1's calls took twice as long as rank 0's: it waited."""
    schedule = schedule_of(data_parallel(2, (64, 128)))
    assert schedule.recorded_seconds == pytest.approx(80e-6)
    assert [kind.recorded_seconds for kind in schedule.kinds] == pytest.approx([40e-6, 40e-6])


def test_the_pauses_add_up_to_the_step_that_the_page_shows() -> None:
    """The host makes its two calls 200 µs apart, but a step takes 450 and 500 µs on the GPU in the steps of both.

    Rank 0 knows a third step, which was longer and is in no figure.
    """
    job = data_parallel(2)
    steps = [{3: 400.0, 7: 500.0, 9: 5000.0}, {3: 500.0, 7: 500.0}]
    ranks = tuple(
        replace(
            rank,
            step=replace(rank.step, samples=tuple(Sample(at, (0.0, 9.0), step=lasted) for at, lasted in own.items())),
        )
        for rank, own in zip(job.ranks, steps, strict=True)
        if rank.step is not None
    )
    job = replace(job, ranks=ranks)
    schedule, shown = schedule_of(job), report(job)
    assert shown is not None
    played = [
        sum(unit.pause for unit in units) + rest for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
    ]
    assert played == pytest.approx([450e-6, 500e-6])
    assert [row.step for row in shown.ranks] == pytest.approx(played)
    assert [[unit.pause for unit in units] for units in schedule.ranks] == [
        pytest.approx([seconds / 2] * 2) for seconds in played
    ]
    assert schedule.recorded_step_seconds == pytest.approx(500e-6)


def test_repetitions_kept_whole_on_all_ranks_say_more_than_medians() -> None:
    """Each rank waited in one of two repetitions: the medians know nothing of that."""
    position = (Position(0, gpu=55.0),)
    ranks = tuple(
        JobRank(rank, (Phase(position, 20, (Sample(3, (0.0,), (times[0],)), Sample(7, (0.0,), (times[1],)))),))
        for rank, times in enumerate([(10.0, 100.0), (100.0, 14.0)])
    )
    schedule = schedule_of(stepped(replace(data_parallel(), ranks=ranks, calls=(SUM,))))
    assert schedule.recorded_seconds == pytest.approx(12e-6)


def test_a_repetition_in_which_a_time_is_unknown_says_nothing() -> None:
    position = (Position(0, gpu=55.0),)

    def ranks(*times: Sequence[float]) -> tuple[JobRank, ...]:
        samples = [tuple(Sample(number, (0.0,), (time,)) for number, time in enumerate(own)) for own in times]
        return tuple(JobRank(rank, (Phase(position, 20, own),)) for rank, own in enumerate(samples))

    seconds = [
        schedule_of(stepped(replace(data_parallel(), ranks=ranks(first, second), calls=(SUM,)))).recorded_seconds
        for first, second in (((10.0, 0.0, 30.0), (40.0, 60.0, 20.0)), ((0.0, 0.0), (5.0, 5.0)))
    ]
    assert seconds == pytest.approx([20e-6, 5e-6])  # as on the page: without the first; a rank without any, its median


def test_sends_of_one_group_are_one_unit_for_each_communicator() -> None:
    step = [
        [(Call("send", 64, 0, peer=1), False), (Call("recv", 64, 0, peer=1), True), (replace(SUM, group=1), True)],
        [(Call("send", 64, 0, peer=0), False), (Call("recv", 64, 0, peer=0), True), (replace(SUM, group=1), True)],
    ]
    schedule = schedule_of(job_of([(0, 1), (0, 1)], step))
    assert [[len(unit.posts) for unit in units] for units in schedule.ranks] == [[2, 1], [2, 1]]
    assert [unit.pause for unit in schedule.ranks[0]] == pytest.approx([1e-4, 0.0])


def test_ranks_that_call_two_groups_in_other_orders_do_not_wait_for_ever() -> None:
    """Each group has a stream of its own, so this ran when it was recorded."""
    a, b = replace(SUM, group=0), replace(SUM, group=1)
    schedule = schedule_of(job_of([(0, 1), (0, 1)], [[(a, False), (b, False)], [(b, False), (a, False)]]))
    assert finishes(schedule)
    assert len(schedule.meetings) == 2
