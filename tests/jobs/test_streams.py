"""Reading the plugin's recordings: damage is refused in a line, ranks are distinguished, tails are folded."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs import job_file
from collbench.jobs.job import Job, Unknown
from collbench.jobs.recorded import merge
from collbench.jobs.repeats import fold
from collbench.jobs.streams import (
    FUNCTIONS,
    Communicator,
    NcclCall,
    Repeated,
    Repetition,
    Stream,
    StreamError,
    parse,
)
from tests.native.recorded import Made, play

# 10^5 and more: COLLBENCH_INVARIANTS=100000.
REFUSALS: list[str] = []
TRIES = int(os.environ.get("COLLBENCH_INVARIANTS", "40"))


def times(starts: Sequence[int], number: int = 0) -> Repetition:
    """Return a repetition whose calls were made then; nothing is known of their kernels."""
    nothing = np.zeros(len(starts), np.int64)
    return Repetition(number, 0, np.array(starts, np.int64), nothing, nothing, nothing)


def stream(**changes: object) -> Stream:
    """Return the stream of rank 0 of 2, which sent three all-reduces."""
    built = Stream(
        host="node0",
        pid=1,
        index=0,
        device=0,
        abi=5,
        nccl=22809,
        env_rank=None,
        env_world=None,
        monotonic_ns=1000,
        realtime_ns=10**18,
        complete=True,
        dropped=0,
        environment={"NCCL_ALGO": "Ring"},
        communicators=(Communicator(7, 0, 2, ""),),
        calls=(NcclCall(4, -1, -1, 0, 1, 7, False, 0),),
        phases=(),
        runs=(),
        tail=np.zeros(3, np.int64),
        tail_times=times([2000, 3000, 5000]),
    )
    return replace(built, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["0", "1"], ids=["", "GPU times"])
def recording(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> bytearray:
    """One real stream with all that streams have: phases with times, literal ones, a tail, calls that wait."""
    folder = tmp_path_factory.mktemp("streams")
    step = "".join(Made("allreduce", count).line() for count in range(1, 4))
    group = f"(\n{Made('send', 5, root=1).line()}{Made('recv', 5, root=1).line()})\n"
    repeated = f"repeat 4\nrepeat 2000\n{step}end\n{group}end\n{step}"
    script = f"comm 0 77 0 2 world\ngpu 2000 1 fine\n{repeated}gpu 100 1 late\n{step}kill\n"
    assert play(script, folder, 5, COLLBENCH_RECORD_GPU_TIMES=request.param).returncode == -9
    (path,) = folder.glob("*.stream")
    return bytearray(path.read_bytes())


def judged(data: bytes | bytearray | memoryview) -> Job | None:
    """Return the job of damaged bytes; None where they are refused, in one line. Its figures must fit together."""
    try:
        parsed = parse(data)
    except StreamError as error:
        REFUSALS.append(str(error))
        return None
    if not parsed.runs and not len(parsed.tail):
        return None
    job = merge([parsed]).job
    assert job_file.loads(job_file.dumps(job), "job") == job
    for rank in job.ranks:
        for phase in rank.phases:
            for sample in phase.samples:
                assert all(time >= 0 for time in sample.gpu)
            assert all((position.pause or 0) >= 0 and (position.gpu or 0) >= 0 for position in phase.positions)
    return job


def gpu_times(recording: bytearray) -> bool:
    """Return whether a stream has times of kernels, for which its file is larger."""
    return len(recording) > 16 << 20


def test_damage_is_refused_or_harmless(recording: bytearray) -> None:
    chance = random.Random(1)
    whole = judged(recording)
    assert whole is not None
    # Where something is, and mostly where few bytes say much: the header, and what is not the tail's ring.
    used = [4 * int(word) for word in np.flatnonzero(np.frombuffer(recording, np.uint32))]
    header = [offset for offset in used if offset < 320]
    arena = int.from_bytes(recording[72:80], "little")
    apart = [offset for offset in used if 33_000 < offset < 1 << 20 or offset >= arena]
    for _ in range(TRIES if gpu_times(recording) else TRIES // 3):
        offset = chance.choice(chance.choice([header, apart, used]))
        kept = bytes(recording[offset : offset + 4])
        recording[offset : offset + 4] = chance.choice([bytes(4), b"\xff" * 4, chance.randbytes(4)])
        judged(recording)
        recording[offset : offset + 4] = kept
    assert judged(bytes(4) + recording[4:]) is None
    assert all(text and "\n" not in text for text in REFUSALS)
    assert judged(recording) == whole


def test_a_stream_that_was_cut_off_is_refused(recording: bytearray) -> None:
    chance = random.Random(2)
    view = memoryview(recording)
    for _ in range(max(12, TRIES // 10)):
        judged(view[: chance.randrange(len(recording))])
    for length in (0, 7, 8, 100, 33_000, 40_000):
        assert judged(view[:length]) is None


def test_a_call_that_waits_cannot_be_later_than_any_clock(tmp_path: Path) -> None:
    group = f"(\n{Made('send', 5, root=1).line()})\n"
    play(f"comm 0 77 0 2 world\n{group}", tmp_path, 5)
    (path,) = tmp_path.glob("*.stream")
    data = bytearray(path.read_bytes())
    assert judged(data) is not None
    pending, after = (int.from_bytes(data[offset : offset + 8], "little") for offset in (64, 144))
    assert after == 1
    data[136:144] = bytes(8)  # as if it had not been launched yet
    data[pending + 24 : pending + 32] = b"\xff" * 8
    assert judged(data) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=200))
def test_a_tail_is_folded_without_loss(symbols: list[int]) -> None:
    pieces = list(fold(np.array(symbols, np.int64)))
    unfolded = [symbol for start, period, times in pieces for symbol in symbols[start : start + period] * times]
    assert unfolded == symbols


@pytest.mark.parametrize("prefix", [[], [9], [9, 1, 9]])
def test_the_steps_of_a_short_job_are_found(prefix: list[int]) -> None:
    step = [1, 1, 1, 2, 1, 1, 1, 2, 3]
    pieces = list(fold(np.array([*prefix, *step * 7, 8], np.int64)))
    assert (len(prefix), len(step), 7) in pieces


def test_a_long_tail_is_folded_in_a_moment() -> None:
    noise = np.random.default_rng(1).integers(0, 3, 16_384)
    assert sum(period * times for _, period, times in fold(noise)) == len(noise)


IN_WORDS: dict[str, tuple[Callable[[], list[Stream]], list[int], int]] = {
    "the widest communicator numbers them": (
        lambda: [stream(communicators=(Communicator(7, rank, 3, ""),), env_rank=9 - rank) for rank in (2, 0, 1)],
        [0, 1, 2],
        3,
    ),
    "the launcher numbers them where no communicator has all": (
        lambda: [
            stream(communicators=(Communicator(7 + rank // 2, rank % 2, 2, ""),), env_rank=rank, env_world=4)
            for rank in range(4)
        ],
        [0, 1, 2, 3],
        4,
    ),
    "a rank is missing": (
        lambda: [stream(communicators=(Communicator(7, rank, 3, ""),)) for rank in (0, 2)],
        [0, 2],
        3,
    ),
}


@pytest.mark.parametrize("case", IN_WORDS)
def test_ranks(case: str) -> None:
    streams, ranks, world_size = IN_WORDS[case]
    merged = merge(streams())
    assert [rank.rank for rank in merged.job.ranks] == ranks
    assert merged.job.world_size == world_size
    assert merged.missing == tuple(sorted(set(range(world_size)) - set(ranks)))


def test_of_two_jobs_under_one_command_the_larger_is_kept() -> None:
    first = [stream(communicators=(Communicator(7, rank, 2, ""),)) for rank in range(2)]
    long = {"tail": np.zeros(5, int), "tail_times": times(range(0, 5000, 1000))}
    second = [stream(communicators=(Communicator(8, rank, 2, ""),), **long) for rank in range(2)]
    merged = merge([*first, *second])
    assert merged.others == 2
    assert [rank.calls for rank in merged.job.ranks] == [5, 5]


def test_a_group_with_an_unseen_rank_has_no_ranks() -> None:
    job = merge([stream()]).job
    assert (job.groups[0].ranks, job.groups[0].size) == ((), 2)
    assert {Unknown.GROUP_RANKS, Unknown.REDUCTION, Unknown.GPU_TIMES, Unknown.OVERLAP} == set(job.unknown)


def test_hosts_have_one_clock_each() -> None:
    """Ranks of one host share its clock: the wall-clock times of their starts do not shift them."""
    one = stream(communicators=(Communicator(7, 0, 2, ""),))
    late = stream(communicators=(Communicator(7, 1, 2, ""),), realtime_ns=10**18 + 700, pid=2)
    job = merge([one, late]).job
    assert job.ranks[0].phases[0].samples[0].starts == job.ranks[1].phases[0].samples[0].starts


def test_pauses_of_a_tail_are_exact_and_the_first_is_unknown() -> None:
    (phase,) = merge([stream(tail=np.array([0, 1, 0]))]).job.ranks[0].phases
    assert [position.pause for position in phase.positions] == [None, 1.0, 2.0]
    assert [position.together for position in phase.positions] == [False, True, False]


def test_a_call_that_this_collbench_does_not_know_is_counted_not_guessed() -> None:
    strange = NcclCall(4, -1, -1, 0, 0, 7, False, 0)
    made = stream(calls=(stream().calls[0], strange), tail=np.array([0, 2, 0]))
    (rank,) = merge([made]).job.ranks
    assert (rank.calls, rank.dropped) == (2, 1)


def test_parts_of_an_all_to_all_share_a_kernel() -> None:
    """Which began with the first of them and took as long as the last."""
    parts = tuple(
        NcclCall(4, -1, peer, 0, FUNCTIONS.index(function), 7, False, 0)
        for peer in range(2)
        for function in ("send", "recv")
    )
    ran = replace(times([2000] * 4), gpu=np.array([5, 9, 5, 9]) * 1000, begins=np.array([6, 4, 4, 5]) * 1000)
    made = stream(calls=parts, tail=np.array([0, 3, 5, 7]), tail_times=ran)
    job = merge([made]).job
    ((whole,),) = (phase.samples for phase in job.ranks[0].phases)
    assert ([call.operation for call in job.calls], whole.gpu) == (["alltoall"], (9.0,))
    assert whole.gpu_starts[0] - whole.starts[0] == 2.0


def test_a_phase_with_samples_of_its_own_length(tmp_path: Path) -> None:
    samples = tuple(times([2000, 3000], number) for number in (0, 9))
    made = stream(phases=(Repeated(np.array([0, 0]), samples),), runs=((0, 2),), tail=np.zeros(0, int))
    job = merge([replace(made, tail_times=times([]))]).job
    (phase,) = job.ranks[0].phases
    assert [sample.repetition for sample in phase.samples] == [0]  # the other one was not finished
    job_file.save(job, tmp_path / "job.json")
    assert job_file.load(tmp_path / "job.json") == job
