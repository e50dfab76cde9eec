"""GPU times of recorded calls: the job has the times that the simulated NCCL reports, or none."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.jobs import job_file
from collbench.jobs.calls import report
from collbench.jobs.job import Job, Unknown
from collbench.jobs.recorded import Merged, merge
from collbench.jobs.streams import Lack
from tests.native.recorded import Made, play, streams

WORLD = "comm 0 77 0 4 world\n"
GPU_TIMES_ON = {"COLLBENCH_RECORD_GPU_TIMES": "1"}
CLOCKED = (4, 5, 6)  # ABIs whose events of kernels have the GPU's time
CALL = Made("allreduce", 100).line()


def gpu(nanoseconds: int = 20_000, channels: int = 2, mode: str = "fine") -> str:
    return f"gpu {nanoseconds} {channels} {mode}\n"


def expected_us(nanoseconds: int, channels: int) -> float:
    """Return what a call takes, µs: each channel begins and ends 160 ns after the one before."""
    return (nanoseconds + (channels - 1) * 160) / 1e3


def recorded(script: str, abi: int = 5) -> Merged:
    with tempfile.TemporaryDirectory() as folder:
        done = play(script, Path(folder), abi, **GPU_TIMES_ON)
        assert done.returncode in {0, -9}, done.stderr
        return merge(streams(Path(folder)))


def times(job: Job, rank: int = 0) -> list[float | None]:
    """Return each call's usual GPU time in µs, in order, repetitions too."""
    return [position.gpu for position in job.ranks[rank].positions()]


def close(times: Sequence[float | None], expected: Sequence[float | None]) -> bool:
    """Compare to 16 ns, the resolution of streams."""
    return len(times) == len(expected) and all(
        time is expected_time or (time is not None and expected_time is not None and abs(time - expected_time) <= 0.017)
        for time, expected_time in zip(times, expected, strict=True)
    )


RUNS = st.tuples(
    st.integers(500, 30_000), st.integers(1, 5), st.sampled_from(["fine", "turn", "twice"]), st.integers(1, 3)
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RUNS, min_size=1, max_size=8), st.sampled_from(CLOCKED))
def test_the_job_has_the_times_that_the_gpu_reported(groups: list[tuple[int, int, str, int]], abi: int) -> None:
    """Single and grouped calls, on any number of channels, whose ends NCCL reports together or in turn."""
    script, expected = WORLD, []
    size = 0
    for nanoseconds, channels, mode, count in groups:
        sizes = range(size, size := size + count)  # calls differ, so that none is folded with another one
        calls = "".join(Made("allreduce", number + 1).line() for number in sizes)
        script += gpu(nanoseconds, channels, mode) + (f"(\n{calls})\n" if count > 1 else calls)
        expected += [expected_us(nanoseconds, channels)] * count
    merged = recorded(f"{script}finalize 0\n", abi)
    assert [call.size_bytes for call in merged.job.calls] == [4 * (number + 1) for number in range(size)]
    assert close(times(merged.job), list(expected))
    assert not merged.lacks
    assert Unknown.GPU_TIMES not in merged.job.unknown


# Wrong times that NCCL may report, and why the call then has none.
WRONG = {
    "stale": Lack.IMPLAUSIBLE,  # the call before, once more
    "old": Lack.IMPLAUSIBLE,  # before the host made the call
    "backwards": Lack.IMPLAUSIBLE,
    "zero": Lack.IMPLAUSIBLE,
    "instant": Lack.IMPLAUSIBLE,
    "long": Lack.IMPLAUSIBLE,  # longer than the host has waited
    "endless": Lack.IMPLAUSIBLE,
    "nostop": Lack.MISSING,
    "nostart": Lack.MISSING,
    "none": Lack.MISSING,
}


@pytest.mark.parametrize(("mode", "abi"), [*zip(WRONG, cycle(CLOCKED), strict=False)])
def test_an_impossible_time_is_unknown_and_its_neighbours_are_not(mode: str, abi: int) -> None:
    calls = "".join(Made("allreduce", size).line() for size in (1, 2))
    ends = "".join(Made("allreduce", size).line() for size in (4, 5))
    script = f"{WORLD}{gpu()}{calls}{gpu(mode=mode)}{Made('allreduce', 3).line()}{gpu(30_000)}{ends}finalize 0\n"
    merged = recorded(script, abi)
    earlier_us, later_us = expected_us(20_000, 2), expected_us(30_000, 2)
    assert close(times(merged.job), [earlier_us, earlier_us, None, later_us, later_us])
    assert merged.lacks == {WRONG[mode]: 1}
    assert Unknown.GPU_TIMES not in merged.job.unknown


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(["fine", "turn", "late", *WRONG]), st.integers(1, 4)), min_size=1, max_size=30),
    st.sampled_from(CLOCKED),
)
def test_no_sequence_of_wrong_reports_yields_a_wrong_time(calls: list[tuple[str, int]], abi: int) -> None:
    """Each call takes a different time, so that a value of another call would show."""
    script = f"{WORLD}{gpu(700, 4)}{Made('reduce', 1).line()}"
    for number, (mode, channels) in enumerate(calls):
        script += gpu(1_000 + 300 * number, channels, mode) + Made("allreduce", number + 1).line()
    merged = recorded(f"{script}drain\nfinalize 0\n", abi)
    assert merged.job.ranks[0].calls == len(calls) + 1
    call_times = times(merged.job)[1:]
    for number, ((mode, channels), time) in enumerate(zip(calls, call_times, strict=True)):
        assert time is None or mode not in WRONG
        assert time is None or abs(time - expected_us(1_000 + 300 * number, channels)) <= 0.017
    assert sum(merged.lacks.values()) == sum(time is None for time in call_times)


def test_a_time_before_the_call_is_detected_without_an_earlier_one_on_its_channel() -> None:
    """Detected by the recent offset of the clocks. Not always: the host may pause for longer than it stays valid."""
    script = "".join(f"comm {number} {70 + number} 0 2\n" for number in range(21))
    for number in range(1, 21):
        script += (
            gpu() + Made("allreduce", 100).line() + gpu(mode="old") + Made("reduce", number, communicator=number).line()
        )
    merged = recorded(script)
    rejected = [call is None for call in times(merged.job)][1::2]
    assert sum(rejected) >= 10
    assert merged.lacks == {Lack.IMPLAUSIBLE: sum(rejected)}


@pytest.mark.parametrize("abi", [1, 2, 3])
def test_an_abi_without_the_gpus_clock_is_too_old_and_gets_no_request(abi: int, tmp_path: Path) -> None:
    done = play(WORLD + CALL * 3, tmp_path, abi, **GPU_TIMES_ON)
    assert done.stdout == ""
    merged = merge(streams(tmp_path))
    assert merged.too_old
    assert merged.job.ranks[0].calls == 3
    assert Unknown.GPU_TIMES in merged.job.unknown
    assert not merged.lacks


@pytest.mark.parametrize("setting", ["", "0", "yes"])
def test_kernel_events_are_requested_only_if_the_user_asks(setting: str, tmp_path: Path) -> None:
    done = play(WORLD + CALL, tmp_path, 5, COLLBENCH_RECORD_GPU_TIMES=setting)
    assert done.stdout == ""
    (path,) = tmp_path.glob("*.stream")
    assert path.stat().st_size == 16 << 20
    merged = merge(streams(tmp_path))
    assert not merged.too_old
    assert Unknown.GPU_TIMES in merged.job.unknown


def test_all_communicators_of_a_process_get_the_same_request(tmp_path: Path) -> None:
    script = WORLD + CALL + "comm 1 78 0 2\nfinalize 0\ncomm 2 79 0 2\n" + Made("allreduce", 1, communicator=2).line()
    assert play(script, tmp_path, 5, **GPU_TIMES_ON).stdout == "asks for kernel events\n" * 3


@pytest.mark.parametrize("abi", CLOCKED)
def test_after_a_send_to_oneself_times_of_that_communicator_are_unknown(abi: int) -> None:
    """NCCL then reports the times of earlier calls, which nothing else would show."""
    messages = "".join(Made(kind, 100, root=peer).line() for peer in range(4) for kind in ("send", "recv"))
    other_call = Made("allreduce", 7, communicator=1).line()
    script = f"{WORLD}comm 1 78 0 4\n{gpu()}{CALL}(\n{messages})\n{other_call}{CALL}finalize 0\nfinalize 1\n"
    merged = recorded(script, abi)
    operations = [merged.job.calls[call].operation for call in merged.job.ranks[0].unfolded()]
    assert operations == ["allreduce", "alltoall", "allreduce", "allreduce"]
    known_us = expected_us(20_000, 2)
    # The first and the last call may share a phase's position: each has its own time or none.
    assert close(times(merged.job)[1:3], [None, known_us])
    assert merged.lacks == {Lack.SELF: 9}


@pytest.mark.parametrize("abi", CLOCKED)
def test_messages_of_one_group_share_a_channel(abi: int) -> None:
    """Sends to other ranks only: their events are distinguished by call, not by channel."""
    messages = "".join(Made(kind, 100 + peer, root=peer).line() for peer in (1, 2, 3) for kind in ("send", "recv"))
    merged = recorded(f"{WORLD}{gpu(5_000, 1)}(\n{messages})\n{CALL}finalize 0\n", abi)
    assert close(times(merged.job), [expected_us(5_000, 1)] * 7)


def test_ends_that_come_late_keep_the_order_of_the_calls() -> None:
    sizes = range(1, 301)
    calls = "".join(gpu(500, 1, "late" if size % 3 else "fine") + Made("allreduce", size).line() for size in sizes)
    merged = recorded(f"{WORLD}{calls}drain\nfinalize 0\n")
    assert [merged.job.calls[call].size_bytes // 4 for call in merged.job.ranks[0].unfolded()] == [*sizes]
    assert merged.job.ranks[0].dropped == 0
    # What the GPU ran first is reported last here, and may contradict what its channel has run since.
    known_times = [time for time in times(merged.job) if time is not None]
    assert len(known_times) + sum(merged.lacks.values()) == 300
    assert close(known_times, [0.5] * len(known_times))


def test_missing_ends_block_no_later_call() -> None:
    """More calls than the plugin can hold back: the first ones are recorded without a time."""
    calls = f"repeat 3000\n{CALL}{Made('reduce', 9).line()}end\n"
    merged = recorded(f"{WORLD}{gpu(100, 1, 'late')}{calls}{gpu(100, 1)}{Made('allgather', 8).line()}kill\n")
    assert merged.job.ranks[0].calls == 6001
    assert merged.lacks == {Lack.MISSING: 6000}
    assert close(times(merged.job)[-1:], [0.1])


def test_a_communicator_that_ends_releases_its_calls() -> None:
    script = f"{WORLD}comm 1 78 0 2\n{gpu(mode='none')}{CALL}{gpu()}{Made('reduce', 5, communicator=1).line()}"
    with tempfile.TemporaryDirectory() as folder:
        play(f"{script}finalize 0\nkill\n", Path(folder), 5, **GPU_TIMES_ON)
        (stream,) = streams(Path(folder))
    assert len(stream.tail) == 2
    assert stream.lacks == {**dict.fromkeys(Lack, 0), Lack.MISSING: 1}


def test_a_captured_call_has_no_time_however_often_its_graph_runs() -> None:
    captured = Made("allreduce", 5, captured=True).line()
    merged = recorded(f"{WORLD}{gpu()}{CALL}{captured}repeat 9\nreplay\n{CALL}end\nfinalize 0\n")
    assert merged.lacks == {Lack.CAPTURED: 1}
    by_call = {
        merged.job.calls[position.call].captured: position.gpu is not None
        for position in merged.job.ranks[0].positions()
    }
    assert by_call == {True: False, False: True}


def test_threads_and_their_communicators_have_times_of_their_own(tmp_path: Path) -> None:
    comms = "".join(f"comm {number} {90 + number} 0 2\n" for number in range(4))
    script = f"{comms}{gpu(2_000, 2)}threads 4\nrepeat 300\n{CALL}end\nend\nfinalize 0\n"
    assert play(script, tmp_path, 5, **GPU_TIMES_ON).returncode == 0
    merged = merge(streams(tmp_path))
    assert merged.job.ranks[0].calls == 1200
    assert not merged.lacks
    for phase in merged.job.ranks[0].phases:
        for position in phase.positions:
            assert position.gpu is not None
            assert abs(position.gpu - expected_us(2_000, 2)) <= 0.017


def test_steps_are_folded_with_their_times() -> None:
    """Sums over all repetitions, samples of some; unknown times are counted separately."""
    step = "".join(gpu(1000 * number, 1) + Made("allreduce", number).line() for number in (1, 2, 3))
    untimed_call = gpu(mode="none") + Made("allreduce", 1).line()
    rest_of_step = "".join(gpu(1000 * number, 1) + Made("allreduce", number).line() for number in (2, 3))
    merged = recorded(
        f"{WORLD}repeat 1500\n{step}end\n{untimed_call}{rest_of_step}repeat 1500\n{step}end\nfinalize 0\n"
    )
    (phase,) = merged.job.ranks[0].phases
    assert phase.repetitions == 3001
    assert [position.gpu for position in phase.positions] == pytest.approx([1, 2, 3], abs=0.009)
    assert merged.lacks == {Lack.MISSING: 1}
    assert len(phase.samples) >= 16
    for sample in phase.samples:
        assert all(abs(time - number) <= 0.009 for number, time in enumerate(sample.gpu, 1) if time)
        assert sum(not time for time in sample.gpu) <= 1


@pytest.mark.parametrize("repetitions", [40, 3000])  # folded by the reader, and by the recorder
def test_samples_say_when_kernels_began_on_the_hosts_clock(repetitions: int) -> None:
    """A kernel begins after the host's call, and after the one before it has ended."""
    step = "".join(gpu(1000 * number, 2) + Made("allreduce", number).line() for number in (1, 2, 3))
    (phase,) = recorded(f"{WORLD}repeat {repetitions}\n{step}end\nfinalize 0\n").job.ranks[0].phases
    assert len(phase.samples) >= 16
    for sample in phase.samples:
        assert len(sample.gpu_starts) == 3
        # NCCL reports a beginning some time later; the report with the least delay compares the clocks.
        assert all(begun >= called - 0.05 for begun, called in zip(sample.gpu_starts, sample.starts, strict=True))
        ends = [begun + expected_us for begun, expected_us in zip(sample.gpu_starts, sample.gpu, strict=True)]
        assert all(later >= ended - 0.05 for ended, later in zip(ends, sample.gpu_starts[1:], strict=False))


def test_one_kernel_of_unknown_time_leaves_its_own_beginning_unknown() -> None:
    step = gpu(1000, 1) + Made("allreduce", 1).line() + gpu(1000, 1, "none") + Made("allreduce", 2).line()
    (phase,) = recorded(f"{WORLD}repeat 20\n{step}end\nfinalize 0\n").job.ranks[0].phases
    for sample in phase.samples:
        known, unknown = sample.gpu_starts
        assert (known > 0, unknown) == (True, 0.0)


def test_the_longest_step_is_folded_with_its_times(tmp_path: Path) -> None:
    step = "".join(Made("allreduce", count + 1).line() for count in range(16_000))
    play(f"{WORLD}{gpu(64, 1)}repeat 5\n{step}end\nfinalize 0\n", tmp_path, 5, **GPU_TIMES_ON)
    (path,) = tmp_path.glob("*.stream")
    assert path.stat().st_size == 24 << 20
    (rank,) = merge(streams(tmp_path)).job.ranks
    assert rank.dropped == 0
    assert rank.calls == 80_000
    assert all(position.gpu is not None for phase in rank.phases for position in phase.positions)


def test_a_kill_at_any_moment_loses_no_call_to_its_time() -> None:
    """Calls that have not ended are in the stream, without a time."""
    chance = random.Random(5)
    for _ in range(6):
        done, open_ = chance.randrange(1, 3000), chance.randrange(1, 500)
        calls = f"repeat {done}\n{CALL}end\n{gpu(100, 1, 'late')}repeat {open_}\n{CALL}end\n"
        merged = recorded(f"{WORLD}{gpu(100, 1)}{calls}kill\n")
        assert merged.job.ranks[0].calls == done + open_
        assert merged.lacks == {Lack.MISSING: open_}


def test_waiting_is_separated_from_transfer_and_the_late_rank_is_named(tmp_path: Path) -> None:
    """Rank 1 is late: rank 0's kernel waits for it, and the shorter kernel of each pair is the transfer."""
    for rank, nanoseconds in ((0, 90_000), (1, 40_000)):
        late = "sleep 20000\n" if rank else ""
        script = f"comm 0 77 {rank} 2 world\n{gpu(nanoseconds)}repeat 12\n{late}{CALL}end\nfinalize 0\n"
        play(script, tmp_path, 5, **GPU_TIMES_ON)
    job = merge(streams(tmp_path)).job
    assert job_file.loads(job_file.dumps(job), "job") == job
    job_report = report(job, rank=0)
    assert job_report is not None
    (row,) = job_report.rows
    assert row.kernel == pytest.approx(expected_us(90_000, 2) * 1e-6, abs=2e-8)
    assert row.transfer == pytest.approx(expected_us(40_000, 2) * 1e-6, abs=2e-8)
    assert not row.bounded
    waiting = {rank_times.rank: rank_times.waiting for rank_times in job_report.ranks}
    assert waiting[0] == pytest.approx(50e-6, abs=4e-8)
    assert waiting[1] == pytest.approx(0.0, abs=4e-8)
