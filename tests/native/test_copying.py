"""Copy rounds on simulated GPUs: what is queued, what is timed, what is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.fakes import Fakes

_MICROSECOND = 1e-6
# The driver gives single-precision milliseconds.
_PRECISION = 1e-6


@pytest.mark.parametrize(
    ("case", "call", "settings", "microseconds"),
    [
        ("a megabyte at 100 GB/s after 1 µs of latency", "[(0, 1)]", {}, [11]),
        ("a slow pair", "[(0, 1)]", {"rate": "100,0-1=50"}, [21]),
        ("a slow pair the other way", "[(1, 0)]", {"rate": "100,0-1=50"}, [21]),
        ("a slow direction leaves the other as it is", "[(1, 0)]", {"rate": "100,0>1=50"}, [11]),
        ("a pull takes the direction of the data", "[(0, 1)], pull=True", {"rate": "100,0>1=50"}, [21]),
        ("two links at once, each its own", "[(3, 2), (0, 1)]", {"rate": "100,0-1=50"}, [11, 21]),
        ("loads and stores", "[(0, 1)], multiprocessors=True", {"sm_share": 0.5}, [21]),
        ("without peer access the driver stages", "[(0, 1)]", {"no_peer": "0,0-1=1"}, [101]),
        ("the time is one message's, not the block's", "[(0, 1)], iterations=8", {}, [11]),
    ],
)
def test_times_are_what_the_gpus_clock_says(
    fakes: Fakes, tmp_path: Path, case: str, call: str, settings: dict[str, object], microseconds: list[float]
) -> None:
    plan = {"iterations": 1} if "iterations" not in call else {}
    script = f"say(seconds=copies(open_gpus(buffer=1 << 20), {call}, bytes=1000000, blocks=2, warmup=1, **{plan}))"
    seconds = fakes.script(script, tmp_path, **settings).said["seconds"]

    assert len(seconds) == len(microseconds), case
    for link, expected in zip(seconds, microseconds, strict=True):
        assert link == pytest.approx([expected * _MICROSECOND] * 2, rel=_PRECISION), case


@pytest.mark.parametrize(
    ("case", "arguments", "line"),
    [
        ("write by copy engine", "", "copy memcpy by 0 from 0 to 1 "),
        ("read by copy engine", "pull=True", "copy memcpy by 1 from 0 to 1 "),
        ("write by kernel", "multiprocessors=True", "copy copy by 0 from 0 to 1 "),
        ("read by kernel", "multiprocessors=True, pull=True", "copy copy by 1 from 0 to 1 "),
    ],
)
def test_the_right_gpu_moves_the_bytes(fakes: Fakes, tmp_path: Path, case: str, arguments: str, line: str) -> None:
    done = fakes.script(f"copies(open_gpus(2), [(0, 1)], {arguments})", tmp_path)

    assert len(done.lines("copy ")) == 5, case  # four messages, and the copy that wakes the engine
    assert done.lines("copy ") == done.lines(line), case


def test_odd_sizes_at_odd_places_are_copied_and_checked_on_every_path(fakes: Fakes, tmp_path: Path) -> None:
    script = """
        gpus = open_gpus(2, buffer=200000)
        for bytes in (1, 3, 7, 255, 4097, 65537):
            for shift in (0, 1, 3, 8, 16, 255):
                for multiprocessors in (False, True):
                    for pull in (False, True):
                        copies(gpus, [(0, 1)], bytes=bytes, shift=shift, multiprocessors=multiprocessors, pull=pull)
    """
    lines = fakes.script(script, tmp_path).lines("copy ")

    assert len(lines) == 6 * 6 * 2 * 2 * (4 + 1)  # a waking copy before each block
    for bytes_ in (1, 3, 7, 255, 4097, 65537):
        aligned = {line.split(" align ")[1].split()[0] for line in lines if f" bytes {bytes_} " in line}
        assert len(aligned) >= 5  # 0 and 16 fall on the same place of sixteen, the other shifts on four others


@pytest.mark.parametrize(
    # The first copy of a block wakes the engine; the second is the first message.
    ("case", "call", "corrupt", "found"),
    [
        ("a byte of the first message", "[(0, 1)]", "2:17", {"group": 0, "offset": 17}),
        ("the last byte of the last message", "[(0, 1)]", "5:1023", {"group": 0, "offset": 1023}),
        ("the second link", "[(0, 1), (3, 2)]", "2:5:3>2", {"group": 1, "offset": 5}),
        ("a copy by kernel", "[(0, 1)], multiprocessors=True", "3:0", {"group": 0, "offset": 0}),
        ("a shifted message", "[(0, 1)], shift=3", "2:1", {"group": 0, "offset": 1}),
        ("a warm-up block", "[(0, 1)], warmup=1", "2:9", {"group": 0, "offset": 9}),
        ("the second block, in other memory", "[(0, 1)], blocks=2", "7:9", {"group": 0, "offset": 9}),
    ],
)
def test_one_wrong_byte_fails_the_link_and_is_named(
    fakes: Fakes, tmp_path: Path, case: str, call: str, corrupt: str, found: dict[str, int]
) -> None:
    done = fakes.script(f"say(**failure(copies, open_gpus(), {call})); gc.collect()", tmp_path, corrupt_copy=corrupt)
    said = done.said

    assert said["kind"] == "DataError", case
    assert {name: said[name] for name in found} == found, case
    assert (said["rank"], said["wrong"]) == (1, 1), case
    assert int(said["expected"]) ^ int(said["found"]) == 0xFF, case
    assert done.leaks() == [], case


def test_a_message_that_never_arrives_is_wrong_from_its_first_byte(fakes: Fakes, tmp_path: Path) -> None:
    # A tiny buffer: both blocks use the same memory, which the first one has filled correctly.
    script = "say(**failure(copies, open_gpus(2, buffer=256), [(0, 1)], bytes=256, iterations=1, blocks=2))"
    said = fakes.script(script, tmp_path, lose_copy=4).said

    assert said["kind"] == "DataError"
    assert (said["offset"], said["wrong"]) == (0, 256)


def test_the_gate_opens_after_all_is_queued_and_the_queue_is_never_deeper_than_32(fakes: Fakes, tmp_path: Path) -> None:
    done = fakes.script("copies(open_gpus(), [(0, 1), (2, 3)], iterations=31)", tmp_path)
    opened = done.lines("open gate")

    # A waking copy, then 31 messages between two events, on each of the two streams.
    assert sorted(line.split(" gpu ")[1] for line in opened) == ["0 behind 34", "2 behind 34"]
    assert done.log.index(opened[0]) > max(i for i, line in enumerate(done.log) if line == "cuMemcpyPeerAsync")
    assert done.log.index(opened[0]) < done.log.index("copy memcpy by 0 from 0 to 1 bytes 1024 align 0 0")


@pytest.mark.parametrize(
    ("case", "call", "text"),
    [
        ("32 messages are too deep a queue", "[(0, 1)], iterations=32", "1 to 31 messages"),
        ("no message", "[(0, 1)], iterations=0", "1 to 31 messages"),
        ("two links to one GPU", "[(0, 1), (2, 1)]", "share a GPU"),
        ("one GPU in two roles", "[(0, 1), (1, 2)]", "share a GPU"),
        ("a message larger than the buffers", "[(0, 1)], bytes=70000", "does not fit the buffers"),
        ("an empty message", "[(0, 1)], bytes=0", "does not fit the buffers"),
        ("too far a shift", "[(0, 1)], shift=256", "does not fit the buffers"),
    ],
)
def test_a_round_that_cannot_be_timed_is_refused(fakes: Fakes, tmp_path: Path, case: str, call: str, text: str) -> None:
    done = fakes.script(f"say(**failure(copies, open_gpus(), {call}))", tmp_path)

    assert text in done.said["text"], case
    assert done.lines("copy ") == [], case


def test_kernels_touch_another_gpus_memory_only_with_peer_access(fakes: Fakes, tmp_path: Path) -> None:
    script = """
        gpus = open_gpus(2)
        say(peers=gpus.peer_access(), **failure(copies, gpus, [(0, 1)], multiprocessors=True))
        del gpus; gc.collect()
    """
    done = fakes.script(script, tmp_path, no_peer=1)

    assert done.said["peers"] == [[False, False], [False, False]]
    assert done.said["kind"] == "CudaError"
    assert done.said["text"].startswith("cuStreamQuery(stream): CUDA_ERROR_ILLEGAL_ADDRESS")
    assert done.leaks() == []


def test_peer_access_that_the_driver_refuses_is_told_but_no_error(fakes: Fakes, tmp_path: Path) -> None:
    # The first call is 0's for 1 [cuda.h: CUDA_ERROR_TOO_MANY_PEERS is 711].
    said = fakes.script("say(peers=open_gpus(2).peer_access())", tmp_path, fail="cuCtxEnablePeerAccess:711:1").said

    assert said["peers"] == [[False, False], [True, False]]


def test_free_memory_is_told_and_too_large_a_buffer_is_refused(fakes: Fakes, tmp_path: Path) -> None:
    script = """
        gpus = native.Gpus([0, 1], [PTX])
        before = gpus.free_bytes()
        say(before=before, **failure(gpus.allocate, 1 << 20))
        del gpus; gc.collect()
    """
    done = fakes.script(script, tmp_path, memory=1 << 24, free=f"{1 << 24},1={1 << 21}")

    assert done.said["before"] == [1 << 24, 1 << 21]
    assert done.said["text"].startswith("cuMemAlloc_v2(&memory, bytes): CUDA_ERROR_OUT_OF_MEMORY (out of memory)")
    assert done.leaks() == []


@pytest.mark.parametrize("hanging", ["memcpy", "verify"])
def test_work_that_never_ends_is_given_up_at_the_deadline(fakes: Fakes, tmp_path: Path, hanging: str) -> None:
    script = "say(**failure(copies, open_gpus(2), [(0, 1)])); gc.collect()"
    # Each look at the clock takes a second, so that the deadline of 30 s comes after some 30 looks.
    clock = {"LD_PRELOAD": str(fakes.folder / "libclock.so")}
    done = fakes.script(script, tmp_path, clock, hang=hanging)

    assert done.said["kind"] == "HangError"
    assert done.said["text"] == f"GPU {1 if hanging == 'verify' else 0} did not finish its work in 30 s"
    assert done.leaks() == []


def test_a_gate_that_lets_go_too_early_spoils_the_block(fakes: Fakes, tmp_path: Path) -> None:
    script = "say(**failure(copies, open_gpus(2), [(0, 1)]))"
    said = fakes.script(script, tmp_path, gate_expires=1).said

    assert said["kind"] == "HangError"
    assert said["text"].startswith("the work behind a gate took more than 4 s to queue")
