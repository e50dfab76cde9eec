"""Copy rounds on simulated GPUs: what is queued, what is timed, what is checked."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.native.fakes import Fakes

_MICROSECOND = 1e-6
# The driver gives single-precision milliseconds.
_PRECISION = 1e-6


@pytest.mark.parametrize(
    ("title", "call", "settings", "microseconds"),
    [
        ("a megabyte at 100 GB/s after 1 µs of latency", "[(0, 1)]", {}, [11]),
        ("a slow pair", "[(0, 1)]", {"rate": "100,0-1=50"}, [21]),
        ("a slow pair the other way", "[(1, 0)]", {"rate": "100,0-1=50"}, [21]),
        ("a slow direction leaves the other as it is", "[(1, 0)]", {"rate": "100,0>1=50"}, [11]),
        ("a pull takes the direction of the data", "[(0, 1)], pull=True", {"rate": "100,0>1=50"}, [21]),
        ("two links at once, each its own", "[(3, 2), (0, 1)]", {"rate": "100,0-1=50"}, [11, 21]),
        ("loads and stores", "[(0, 1)], multiprocessors=True", {"sm_share": 0.5}, [21]),
        ("without peer access the driver stages", "[(0, 1)]", {"no_peer": "0,0-1=1"}, [101]),
        ("the time is one message's, not the batch's", "[(0, 1)], iterations=8", {}, [11]),
    ],
)
def test_times_are_what_the_gpus_clock_says(
    fakes: Fakes, title: str, call: str, settings: dict[str, object], microseconds: list[float]
) -> None:
    plan = {"iterations": 1} if "iterations" not in call else {}
    script = f"report(seconds=copies(open_gpus(buffer=1 << 20), {call}, bytes=1000000, batches=2, warmup=1, **{plan}))"
    seconds = fakes.script(script, **settings).reported["seconds"]

    assert len(seconds) == len(microseconds), title
    for link, expected in zip(seconds, microseconds, strict=True):
        assert link == pytest.approx([expected * _MICROSECOND] * 2, rel=_PRECISION), title


@pytest.mark.parametrize(
    ("title", "arguments", "line"),
    [
        ("write by copy engine", "", "copy memcpy by 0 from 0 to 1 "),
        ("read by copy engine", "pull=True", "copy memcpy by 1 from 0 to 1 "),
        ("write by kernel", "multiprocessors=True", "copy copy by 0 from 0 to 1 "),
        ("read by kernel", "multiprocessors=True, pull=True", "copy copy by 1 from 0 to 1 "),
    ],
)
def test_the_right_gpu_moves_the_bytes(fakes: Fakes, title: str, arguments: str, line: str) -> None:
    done = fakes.script(f"copies(open_gpus(2), [(0, 1)], {arguments})")

    assert len(done.lines("copy ")) == 1 + 2 + 4, title  # one wakes the link, two the engine, then four messages
    assert done.lines("copy ") == done.lines(line), title


def test_odd_sizes_are_copied_aligned_and_checked_on_every_path(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus(2, buffer=200000)
        for bytes in (1, 3, 7, 255, 4097, 65537):
            for multiprocessors in (False, True):
                for pull in (False, True):
                    copies(gpus, [(0, 1)], bytes=bytes, multiprocessors=multiprocessors, pull=pull)
    """
    lines = fakes.script(script).lines("copy ")

    assert len(lines) == 6 * 2 * 2 * (1 + 2 + 4)  # the first three wake link and engine
    # The kernel that copies moves vectors of 16 bytes.
    assert {line.split(" align ")[1].split()[0] for line in lines} == {"0"}


@pytest.mark.parametrize(
    # The first copy wakes the link, the first two of each batch the engine.
    ("title", "call", "corrupt", "expected"),
    [
        ("a byte of the first message", "[(0, 1)]", "4:17", {"group": 0, "offset": 17}),
        ("the last byte of the last message", "[(0, 1)]", "7:1023", {"group": 0, "offset": 1023}),
        ("the second link", "[(0, 1), (3, 2)]", "4:5:3>2", {"group": 1, "offset": 5}),
        ("a copy by kernel", "[(0, 1)], multiprocessors=True", "5:0", {"group": 0, "offset": 0}),
        ("a warm-up batch", "[(0, 1)], warmup=1", "4:9", {"group": 0, "offset": 9}),
        ("the second batch, in other memory", "[(0, 1)], batches=2", "10:9", {"group": 0, "offset": 9}),
    ],
)
def test_one_wrong_byte_fails_the_link_and_is_named(
    fakes: Fakes, title: str, call: str, corrupt: str, expected: dict[str, int]
) -> None:
    done = fakes.script(f"report(**failure(copies, open_gpus(), {call})); gc.collect()", corrupt_copy=corrupt)
    reported = done.reported

    assert reported["kind"] == "DataError", title
    assert {name: reported[name] for name in expected} == expected, title
    assert (reported["rank"], reported["wrong"]) == (0, 1), title  # the only transfer of its group, one byte
    assert int(reported["expected"]) ^ int(reported["found"]) == 0xFF, title
    assert done.leaks() == [], title


def test_a_message_that_never_arrives_is_wrong_from_its_first_byte(fakes: Fakes) -> None:
    # A tiny buffer: both batches use the same memory, which the first one has filled correctly.
    script = "report(**failure(copies, open_gpus(2, buffer=256), [(0, 1)], bytes=256, iterations=1, batches=2))"
    reported = fakes.script(script, lose_copy=7).reported

    assert reported["kind"] == "DataError"
    assert (reported["offset"], reported["wrong"]) == (0, 256)


def test_streams_are_unblocked_after_all_is_queued_and_the_queue_is_never_deeper_than_32(fakes: Fakes) -> None:
    done = fakes.script("copies(open_gpus(), [(0, 1), (2, 3)], iterations=29)")
    opened = done.lines("unblock")

    # Two waking copies, then 29 messages between two events, on each of the two streams.
    assert sorted(line.split(" gpu ")[1] for line in opened) == ["0 behind 33", "2 behind 33"]
    assert done.log.index(opened[0]) > max(i for i, line in enumerate(done.log) if line == "cuMemcpyPeerAsync")
    assert done.log.index(opened[0]) < done.log.index("copy memcpy by 0 from 0 to 1 bytes 1024 align 0 0")


def test_messages_are_verified_behind_the_same_blocking_kernel_by_the_destination(fakes: Fakes) -> None:
    done = fakes.script("copies(open_gpus(2), [(0, 1)], pull=True, iterations=29)")

    # The waking copies, 29 messages between two events and the verification, on one stream.
    assert done.lines("unblock") == ["unblock 1 gpu 1 behind 34"]
    assert "cuStreamWaitEvent" not in done.log


@pytest.mark.parametrize("call", ["[(0, 1)]", "[(0, 1)], pull=True", "[(2, 3)], warmup=1"])
def test_nothing_is_queued_while_a_batch_is_timed(fakes: Fakes, call: str) -> None:
    log = fakes.script(f"copies(open_gpus(), {call}, batches=3)").log
    opened = [i for i, line in enumerate(log) if line.startswith("unblock")]
    queued = [i for i, line in enumerate(log) if line == "cuMemcpyPeerAsync"]
    timed = [i for i, line in enumerate(log) if line.startswith("copy ") and " bytes 1024 " in line]

    # The fakes run what they can at each query: a second batch would be queued before the first blocking kernel ends.
    assert sum(i < opened[0] for i in queued) == 1 + 6
    for begin, beyond in pairwise((*opened, len(log))):
        last = max(i for i in timed if begin < i < beyond)
        assert not [i for i in queued if begin < i < last]


def test_a_batch_of_a_link_costs_three_kernels_besides_its_copies(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus()
        print("START", file=open(os.environ["FAKE_LOG"], "a"))
        copies(gpus, [(0, 1), (2, 3)], batches=4, warmup=1)
    """
    log = fakes.script(script).log
    calls = Counter(log[log.index("START") :])

    batches, links = 5, 2
    assert calls["cuLaunchKernel"] == 3 * batches * links  # poison, blocking kernel, verification
    assert calls["cuMemcpyPeerAsync"] == (1 + 6 * batches) * links  # one wakes the link, two of a batch the engine
    assert calls["cuEventRecord"] == 3 * batches * links  # poisoned, start, end
    assert calls["cuStreamWaitEvent"] == 2 * batches * links  # the copies for the poison, the verification for them


def test_groups_queued_at_once_each_get_all_of_their_work(fakes: Fakes) -> None:
    script = """
        groups = [[(0, 1), (1, 0)], [(3, 2)], [(4, 5)], [(7, 6)]]
        report(seconds=transfers(open_gpus(8), groups, bytes=10000, iterations=5, batches=20))
    """
    rate = "100,1-0=50,3>2=25,4>5=20,7>6=10"
    done = fakes.script(script, gpus=8, rate=rate)

    # 1 µs, and 10,000 bytes at 50, 25, 20 and 10 GB/s.
    for group, microseconds in zip(done.reported["seconds"], [1.2, 1.4, 1.5, 2], strict=True):
        assert group == pytest.approx([microseconds * _MICROSECOND] * 20, rel=_PRECISION)
    links = Counter(line.split(" bytes 10000 ")[0] for line in done.lines("copy ") if " bytes 10000 " in line)
    assert links == {f"copy memcpy by {i} from {i} to {j}": 5 * 20 for i, j in ((0, 1), (1, 0), (3, 2), (4, 5), (7, 6))}


@pytest.mark.parametrize(
    ("title", "bytes_", "launches", "microseconds"),
    [
        # At 90 GB/s, and 1 µs for each launch; three launches wake link and engine.
        ("just below 16 MiB each message has its own launch", 16_777_215, 3 + 3, 186.413500 + 1),
        ("from 16 MiB on, one launch copies the three of a batch", 16_777_217, 3 + 1, 186.413522 + 1 / 3),
    ],
)
def test_large_messages_by_kernel_share_a_launch(
    fakes: Fakes, title: str, bytes_: int, launches: int, microseconds: float
) -> None:
    # The buffers hold two messages: the third uses the first one's slot.
    plan = f"multiprocessors=True, bytes={bytes_}, iterations=3"
    script = f"report(seconds=copies(open_gpus(2, (2 << 24) + 512), [(0, 1)], {plan}))"
    done = fakes.script(script)

    assert done.reported["seconds"][0] == pytest.approx([microseconds * _MICROSECOND], rel=_PRECISION), title
    assert len(done.lines("launch copy ")) == launches, title
    assert len(done.lines(f"copy copy by 0 from 0 to 1 bytes {bytes_} ")) == 3, title


@pytest.mark.parametrize(
    ("title", "corrupt", "offset"),
    [
        # The first three copies wake link and engine; the last message covers the first.
        ("in the second slot", "5:16777215", 16_777_215),
        ("in the first slot again", "6:5", 5),
    ],
)
def test_one_wrong_byte_of_a_shared_launch_counts_from_its_own_message(
    fakes: Fakes, title: str, corrupt: str, offset: int
) -> None:
    plan = "multiprocessors=True, bytes=1 << 24, iterations=3"
    reported = fakes.script(
        f"report(**failure(copies, open_gpus(2, 2 << 24), [(0, 1)], {plan}))", corrupt_copy=corrupt
    ).reported

    assert (reported["kind"], reported["offset"], reported["wrong"]) == ("DataError", offset, 1), title


def test_kernels_touch_another_gpus_memory_only_with_peer_access(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus(2)
        refused = failure(copies, gpus, [(0, 1)], multiprocessors=True)
        report(peers=gpus.peer_access(), refused=refused, then=copies(gpus, [(0, 1)]))
    """
    reported = fakes.script(script, no_peer=1).reported

    assert reported["peers"] == [[False, False], [False, False]]
    assert reported["refused"]["text"] == "a kernel cannot copy between GPUs without peer access"
    assert len(reported["then"][0]) == 1  # the attempt has not broken the GPUs


@pytest.mark.parametrize(
    ("title", "code", "expected"),
    [
        ("beyond eight peers", 711, [[False, False], [True, False]]),
        ("enabled by somebody else in this process", 704, [[False, True], [True, False]]),
    ],
)
def test_peer_access_is_reported_where_the_driver_refuses_or_had_it_enabled(
    fakes: Fakes, title: str, code: int, expected: list[list[bool]]
) -> None:
    # The first call is 0's for 1 [cuda.h: CUDA_ERROR_TOO_MANY_PEERS, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED].
    reported = fakes.script("report(peers=open_gpus(2).peer_access())", fail=f"cuCtxEnablePeerAccess:{code}:1").reported

    assert reported["peers"] == expected, title


@pytest.mark.parametrize(("code", "name"), [(719, "CUDA_ERROR_LAUNCH_FAILED"), (2, "CUDA_ERROR_OUT_OF_MEMORY")])
def test_a_refused_peer_access_costs_that_links_copies_by_name_and_nothing_else(
    fakes: Fakes, code: int, name: str
) -> None:
    script = """
        gpus = open_gpus(3)
        refused = [failure(copies, gpus, [link], pull=pull) for link, pull in (((1, 2), False), ((2, 1), True))]
        others = [((1, 2), True), ((2, 1), False), ((0, 1), False), ((1, 0), True), ((0, 2), False), ((2, 0), True)]
        seconds = [copies(gpus, [link], pull=pull)[0] for link, pull in others]
        held = session(gpus)
        refusals = [[*link, text] for link, text in gpus.peer_refusals().items()]
        report(refused=refused, seconds=seconds, refusals=refusals, pair=collective(held, [[1, 2]])[0])
        held.close()
        del held, gpus; gc.collect()
    """
    done = fakes.script(script, refuse_peer=f"0,1>2={code}")

    text = f"cuCtxEnablePeerAccess(GPU 1 for memory of GPU 2): {name} "
    for refused in done.reported["refused"]:
        assert (refused["kind"], refused["position"]) == ("CudaError", 1)
        assert refused["text"].startswith(text)
    assert [len(seconds) for seconds in done.reported["seconds"]] == [1] * 6
    assert [link[:2] for link in done.reported["refusals"]] == [[1, 2]]
    assert done.reported["refusals"][0][2].startswith(text)
    assert len(done.reported["pair"][0]) == 1  # NCCL makes its own choice
    assert done.leaks() == []


def test_free_memory_is_reported_and_too_large_a_buffer_is_refused(fakes: Fakes) -> None:
    script = """
        gpus = native.Gpus([0, 1], PTX)
        before = gpus.free_bytes()
        report(before=before, **failure(gpus.allocate, 1 << 20))
        del gpus; gc.collect()
    """
    done = fakes.script(script, memory=1 << 24, free=f"{1 << 24},1={1 << 21}")

    assert done.reported["before"] == [1 << 24, 1 << 21]
    assert done.reported["text"].startswith("cuMemAlloc_v2(&memory, bytes): CUDA_ERROR_OUT_OF_MEMORY (out of memory)")
    assert done.leaks() == []


@pytest.mark.parametrize("hanging", ["memcpy", "verify"])
def test_work_that_never_ends_is_given_up_at_the_deadline(fakes: Fakes, hanging: str) -> None:
    script = "report(**failure(copies, open_gpus(2), [(0, 1)], deadline=12.5)); gc.collect()"
    # Each reading of the clock takes a second, of which a quarter counts: the deadline passes after some 50 readings.
    clock = {"LD_PRELOAD": str(fakes.folder / "libclock.so")}
    done = fakes.script(script, clock, hang=hanging)

    assert done.reported["kind"] == "HangError"
    gpu = 1 if hanging == "verify" else 0
    assert (done.reported["text"], done.reported["position"]) == (f"GPU {gpu} did not finish its work in 12.5 s", gpu)
    assert done.leaks() == []


def test_time_in_which_the_process_was_stopped_is_no_hang(fakes: Fakes) -> None:
    script = "report(**failure(copies, open_gpus(2), [(0, 1)], deadline=12.5))"
    # Work is seen as finished after 30 readings of a second each, as by a process that ran for a moment in each.
    done = fakes.script(script, {"LD_PRELOAD": str(fakes.folder / "libclock.so")}, late=30)
    assert done.reported["kind"] == "none"


def test_a_blocking_kernel_that_ends_too_early_spoils_the_block(fakes: Fakes) -> None:
    script = "report(**failure(copies, open_gpus(2), [(0, 1)]))"
    reported = fakes.script(script, block_expires=0).reported

    assert reported["kind"] == "LateError"
    assert reported["text"].startswith("the work behind a blocking kernel took more than 4 s to queue")
