"""The NCCL profiler plugin: the recorded job has the calls that the simulated NCCL made."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.jobs.job import Call, Ending, Job, JobRank, Unknown
from collbench.jobs.recorded import merge
from collbench.jobs.streams import HEADER, StreamError, parse
from collbench.model.units import DTYPE_BYTES
from tests.native.recorded import ABIS, PLUGIN, Made, host, play, streams

WORLD = "comm 0 77 0 4 world\n"
ROOTED = {"broadcast", "reduce"}
PEERED = {"send", "recv"}


def recorded(script: str, abi: int, **environment: str) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        done = play(script, Path(folder), abi, **environment)
        assert done.returncode in {0, -9}, done.stderr
        return merge(streams(Path(folder))).job


def sequence(job: Job, rank: int = 0) -> list[Call]:
    """Return all calls of one rank, unfolded."""
    return [job.calls[call] for call in job.ranks[rank].unfolded()]


def together(rank: JobRank) -> list[bool]:
    return [position.together for position in rank.positions()]


def expected_call(call: Made, abi: int) -> tuple[object, ...]:
    """Return the fields that a job must have for a call: sizes as nccl-tests counts them."""
    blocks = 4 if call.operation in {"allgather", "reducescatter"} else 1
    typeless = abi < 5 and call.operation in {"allgather", "broadcast"}
    return (
        call.operation,
        call.count * DTYPE_BYTES[call.dtype] * blocks,
        "" if typeless else call.dtype,
        call.root if call.operation in ROOTED else None,
        call.root if call.operation in PEERED else None,
        call.captured and abi >= 5,
    )


def recorded_call(call: Call) -> tuple[object, ...]:
    return call.operation, call.size_bytes, call.dtype, call.root, call.peer, call.captured


CALLS = st.builds(
    Made,
    st.sampled_from(["allreduce", "broadcast", "reduce", "allgather", "reducescatter", "send", "recv"]),
    st.sampled_from([1, 7, 1 << 20, 3 << 32]),
    st.sampled_from(["int8", "uint8", "int32", "float16", "float32", "bfloat16"]),
    st.integers(0, 3),
    captured=st.booleans(),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(CALLS, min_size=1, max_size=4), min_size=1, max_size=12), st.sampled_from(ABIS))
def test_the_job_has_the_calls_that_were_made(groups: list[list[Made]], abi: int) -> None:
    # Four ranks: events of ABI 1 to 3 do not include their number, which rank 3 shows.
    script = "".join(
        "".join(call.line() for call in group) if len(group) == 1 else f"(\n{''.join(c.line() for c in group)})\n"
        for group in groups
    )
    # From ABI 5 on launches may come in another order than calls: the host reverses them.
    expected = [expected_call(call, abi) for group in groups for call in group]
    with tempfile.TemporaryDirectory() as folder:
        for rank in (0, 3):
            done = play(f"comm 0 77 {rank} 4 world\n{script}finalize 0\n", Path(folder), abi)
            assert done.stdout == ""  # it would say that kernel events were requested
        job = merge(streams(Path(folder))).job
    assert [rank.rank for rank in job.ranks] == [0, 3]
    for index, rank_record in enumerate(job.ranks):
        assert [recorded_call(call) for call in sequence(job, index)] == expected
        assert together(rank_record) == [number > 0 for group in groups for number in range(len(group))]
        assert rank_record.ending is Ending.COMPLETE
    assert Unknown.GROUP_RANKS in job.unknown
    assert job.groups[0].size == 4


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 900), st.lists(st.integers(0, 5), max_size=9)), min_size=1, max_size=12),
)
def test_folding_loses_nothing(step: list[int], sections: list[tuple[int, list[int]]]) -> None:
    """Steps of any period, repeated long enough that the plugin folds them, with noise in between."""

    def line(kind: int) -> str:
        return Made("allreduce", kind + 1).line()

    script, expected = WORLD, []
    for times, noise in sections:
        script += f"repeat {times}\n{''.join(map(line, step))}end\n{''.join(map(line, noise))}"
        expected += step * times + noise
    job = recorded(script, 5)
    assert [call.size_bytes // 4 - 1 for call in sequence(job)] == expected
    assert job.ranks[0].calls == len(expected)
    assert job.ranks[0].dropped == 0


def test_a_phase_that_repeats_is_recognized() -> None:
    step = "".join(Made("allreduce", count).line() for count in range(1, 21))
    evaluation = Made("allgather", 55).line() + Made("broadcast", 3).line()
    job = recorded(f"{WORLD}repeat 50\nrepeat 300\n{step}end\n{evaluation}end\n", 5)
    (rank,) = job.ranks
    assert [(len(phase.positions), phase.repetitions) for phase in rank.phases] == [(20, 15000), (2, 50)]
    assert rank.order == ((0, 300), (1, 1)) * 50
    assert (job.steps.source, rank.step) == (None, None)  # calls without a pause could be anything
    samples = [sample.repetition for sample in rank.phases[0].samples]
    pauses = [position.pause for position in rank.phases[0].positions]
    assert None not in pauses
    blocks = sorted({sample // 32 for sample in samples})
    stride = blocks[1] - blocks[0]
    assert blocks == list(range(0, blocks[-1] + 1, stride))  # only the number decides
    assert stride & (stride - 1) == 0
    assert samples == [block * 32 + one for block in blocks for one in range(32)]  # a step may be several in a row


def test_ranks_with_the_same_calls_keep_the_same_samples(tmp_path: Path) -> None:
    step = "".join(Made("allreduce", count).line() for count in range(1, 8))
    for rank in range(2):
        play(f"comm 0 5 {rank} 2\nrepeat 2000\n{step}end\n", tmp_path, 6)
    first_rank, second_rank = merge(streams(tmp_path)).job.ranks
    repetitions = [[sample.repetition for sample in rank.phases[0].samples] for rank in (first_rank, second_rank)]
    assert repetitions[0] == repetitions[1]
    assert len(repetitions[0]) >= 16


@pytest.mark.parametrize("abi", ABIS)
def test_a_killed_process_leaves_the_calls_it_made(abi: int) -> None:
    job = recorded(f"{WORLD}repeat 5000\n{Made('allreduce', 9).line()}end\n{Made('reduce', 3).line()}kill\n", abi)
    assert [call.operation for call in sequence(job)] == ["allreduce"] * 5000 + ["reduce"]
    assert job.ranks[0].ending is Ending.CUT_OFF


def test_a_kill_at_any_moment_leaves_a_consistent_stream(tmp_path: Path) -> None:
    """Phases are folded and unfolded continually; at any kill, the stream holds the calls so far."""
    rng = random.Random(3)
    step = [1, 1, 2, 3]
    lines = "".join(Made("allreduce", size).line() for size in step)
    evaluation = "".join(Made("allreduce", size).line() for size in (7, 8))
    script = f"{WORLD}clock\nrepeat 100000000\nrepeat 1500\n{lines}end\n{evaluation}end\n"
    period = [*(step * 1500), 7, 8]
    for _ in range(8):
        process = subprocess.Popen(
            [str(host()), str(PLUGIN), "5"],
            env={"COLLBENCH_RECORD_FOLDER": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(script)
        process.stdin.close()
        assert process.stdout.readline().startswith("0 calls")  # it sends from here on
        time.sleep(rng.uniform(0.001, 0.05))
        process.kill()
        process.wait()
        process.stdout.close()
        stream_list = streams(tmp_path)
        if any(len(stream.tail) or stream.runs for stream in stream_list):
            calls = [call.size_bytes // 4 for call in sequence(merge(stream_list).job)]
            expected = period * (len(calls) // len(period) + 1)
            assert calls == expected[: len(calls)]


def test_a_kill_while_a_call_leaves_those_that_wait_loses_nothing(tmp_path: Path) -> None:
    """The oldest of the calls that wait for their GPU times is no longer pending, and not yet anywhere else."""
    calls = "".join(Made("allreduce", size).line() for size in range(1, 6))
    play(f"{WORLD}gpu 0 1 none\n{calls}kill\n", tmp_path, 5, COLLBENCH_RECORD_GPU_TIMES="1")
    (path,) = tmp_path.glob("*.stream")
    data = bytearray(path.read_bytes())
    assert HEADER.fields is not None
    place = int(HEADER.fields["pending_first"][1])
    assert data[place] == 0
    data[place] = 1
    job = merge([parse(data)]).job
    assert [call.size_bytes // 4 for call in sequence(job)] == [1, 2, 3, 4, 5]
    data[place] = 2
    with pytest.raises(StreamError, match="2 calls wait no longer, but has 0"):
        parse(data)


def test_a_process_that_ends_without_finalizing_is_complete() -> None:
    assert recorded(WORLD + Made("allreduce", 1).line(), 5).ranks[0].ending is Ending.COMPLETE


def test_a_send_that_was_never_launched_blocks_no_other_call(tmp_path: Path) -> None:
    """No script is killed between call and launch: such calls are simulated by sends that wait in the stream."""
    many = "(\n" + "".join(Made("send", size, root=1).line() for size in range(1, 5001)) + ")\n"
    play(WORLD + many + Made("allreduce", 1).line(), tmp_path, 5)
    (stream,) = streams(tmp_path)
    job = merge([stream]).job
    calls = sequence(job)
    assert [call.operation for call in calls] == ["send"] * 5000 + ["allreduce"]
    assert [call.size_bytes for call in calls[:5000]] == [4 * size for size in range(1, 5001)]
    # A group of more than 4,096 calls: the first ones had to go before NCCL had named their peers.
    assert {call.peer for call in calls[-1000:-1]} == {1}
    assert calls[0].peer is None
    assert Unknown.PEER in job.unknown


EXCHANGES: dict[str, tuple[Callable[[str, int], Made], list[str] | None]] = {
    "one size": (lambda kind, peer: Made(kind, 100, root=peer), ["alltoall", "allreduce"]),
    "other sizes": (lambda kind, peer: Made(kind, 100 + peer, root=peer), None),
    "a peer twice": (lambda kind, peer: Made(kind, 100, root=max(1, peer)), None),
}


@pytest.mark.parametrize("title", EXCHANGES)
def test_a_group_of_equal_sends_and_receives_is_an_all_to_all(title: str) -> None:
    make_call, expected = EXCHANGES[title]
    calls_of_group = [make_call(kind, peer) for peer in range(4) for kind in ("send", "recv")]
    group = f"(\n{''.join(call.line() for call in calls_of_group)})\n"
    job = recorded(f"{WORLD}repeat 700\n{group}{Made('allreduce', 1).line()}end\n", 5)
    step = expected or [*(call.operation for call in calls_of_group), "allreduce"]
    calls = sequence(job)
    assert [call.operation for call in calls] == step * 700
    if expected:
        assert (calls[0].size_bytes, calls[0].peer) == (1600, None)
    for phase in job.ranks[0].phases:
        assert all(len(sample.starts) == len(phase.positions) for sample in phase.samples)


def test_threads_and_communicators_do_not_disturb_each_other(tmp_path: Path) -> None:
    comms = "".join(f"comm {number} {90 + number} 0 2\n" for number in range(4))
    play(f"{comms}threads 4\nrepeat 3000\n{Made('allreduce', 5).line()}end\nend\n", tmp_path, 5)
    job = merge(streams(tmp_path)).job
    counts: dict[int, int] = {}
    for call in sequence(job):
        counts[call.group] = counts.get(call.group, 0) + 1
    assert counts == dict.fromkeys(range(4), 3000)


def test_a_process_with_several_ranks_has_a_stream_for_each(tmp_path: Path) -> None:
    comms = "".join(f"comm {rank} 77 {rank} 3\n" for rank in range(3))
    calls = "".join(Made("allreduce", 10 + rank, communicator=rank).line() for rank in range(3))
    play(comms + calls, tmp_path, 5)
    job = merge(streams(tmp_path)).job
    assert [rank.rank for rank in job.ranks] == [0, 1, 2]
    assert [[call.size_bytes for call in sequence(job, rank)] for rank in range(3)] == [[40], [44], [48]]
    assert job.groups[0].ranks == (0, 1, 2)


@pytest.mark.parametrize("abi", ABIS)
def test_ranks_that_start_as_threads_have_a_stream_each(abi: int, tmp_path: Path) -> None:
    """NCCL before 2.27 reports a communicator with its first call, and no GPU distinguishes the ranks here."""
    call = Made("allreduce", 5).line()
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        play(f"threads 4\ncomm 0 77 0 4\nend\nthreads 4\n{call}end\n", folder, abi)
        job = merge(streams(folder)).job
        assert [rank.rank for rank in job.ranks] == [0, 1, 2, 3]
        assert [rank.calls for rank in job.ranks] == [1, 1, 1, 1]


@pytest.mark.parametrize("abi", ABIS)
def test_a_forked_child_leaves_its_parents_stream_alone(abi: int, tmp_path: Path) -> None:
    """The child inherits the parent's communicator, which it finalizes; only one that it made itself is recorded."""
    inherited = "repeat 3000\n" + Made("allgather", 2).line() + "end\nfinalize 0\n"
    own = "comm 5 99 0 2\n" + Made("reduce", 3, communicator=5).line()
    call = Made("allreduce", 1).line()
    play(f"{WORLD}{call}fork\n{inherited}{own}end\n{call}kill\n", tmp_path, abi)
    child, parent = sorted((merge([stream]).job for stream in streams(tmp_path)), key=lambda job: job.ranks[0].calls)
    assert [call.operation for call in sequence(parent)] == ["allreduce", "allreduce"]
    assert parent.ranks[0].ending is Ending.CUT_OFF
    assert [call.operation for call in sequence(child)] == ["reduce"]
    assert child.ranks[0].ending is Ending.COMPLETE


def test_without_a_folder_the_plugin_requests_no_events(tmp_path: Path) -> None:
    done = play(WORLD + Made("allreduce", 1).line() + "finalize 0\n", tmp_path, 5, COLLBENCH_RECORD_FOLDER="")
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_does_not_affect_the_job(tmp_path: Path) -> None:
    done = play(WORLD + Made("allreduce", 1).line() + "finalize 0\n", tmp_path / "none", 5)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_noted_and_the_job_goes_on(tmp_path: Path) -> None:
    limited = f"ulimit -f 1000; exec {host()} {PLUGIN} 5"
    script = WORLD + Made("allreduce", 1).line() + "finalize 0\n"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {limited}"],
        input=script,
        env={"COLLBENCH_RECORD_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    (note,) = tmp_path.iterdir()
    assert note.name.endswith(".failed-27")  # EFBIG


def test_sizes_without_a_pattern_fill_the_stream_and_are_counted(tmp_path: Path) -> None:
    """A job whose calls all differ in size cannot be folded: the file keeps its size, further calls are counted."""
    script = WORLD + "".join(Made("allreduce", size).line() for size in range(1, 70_001))
    play(script, tmp_path, 5)
    (path,) = tmp_path.glob("*.stream")
    assert path.stat().st_size == 16 << 20
    (stream,) = streams(tmp_path)
    sent = [symbol for phase in stream.phases for symbol in phase.symbols] + [*stream.tail]
    assert [stream.calls[symbol >> 1].count for symbol in sent] == list(range(1, (1 << 16) + 1))
    assert stream.dropped == 70_000 - (1 << 16)


@pytest.mark.parametrize("abi", ABIS)
def test_calls_of_more_communicators_than_fit_are_counted(abi: int, tmp_path: Path) -> None:
    comms = "".join(f"comm {number} {100 + number} 0 2\n" for number in range(530))
    calls = "".join(Made("allreduce", 1, communicator=number).line() for number in range(530))
    play(comms + calls, tmp_path, abi)
    (rank,) = merge(streams(tmp_path)).job.ranks
    assert (rank.calls, rank.dropped) == (512, 18)


def test_the_plugin_needs_nothing_but_the_c_and_c_plus_plus_libraries() -> None:
    needed = subprocess.run(["ldd", PLUGIN], check=True, capture_output=True, text=True).stdout
    libraries = {line.split()[0].split("/")[-1].split(".so")[0] for line in needed.splitlines()}
    system = {"linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread", "ld-linux-x86-64"}
    assert libraries - system - {"ld-linux-aarch64"} == set()


def test_a_day_of_many_steps_stays_small(tmp_path: Path) -> None:
    step = "".join(Made("allreduce", count).line() for count in range(1, 6))
    day = f"repeat 200\nrepeat 1000\n{step}end\n{Made('allgather', 5).line()}end\n"
    done = play(f"{WORLD}{Made('broadcast', 7).line()}clock\n{day}clock\n", tmp_path, 5)
    print(done.stdout)  # µs a call: shown, not judged on a loaded machine
    from collbench.jobs.job_file import dumps

    job = merge(streams(tmp_path)).job
    assert job.ranks[0].calls == 1 + 200 * 5001
    assert len(dumps(job)) < 1 << 20
    assert len(job.ranks[0].phases) <= 8
