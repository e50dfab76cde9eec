"""Copies that share GPUs, copies from and to host memory, and copies without peer access, on simulated GPUs."""

from __future__ import annotations

import pytest

from tests.native.fakes import Fakes

_PRECISION = 1e-6  # the driver gives single-precision milliseconds
_WAKING = 1e-4  # a slow stream wakes a little later
_BOTH_WAYS = "[[(0, 1), (1, 0)]]"
_ONE_TO_ALL = "[[(0, 1), (0, 2), (0, 3)]]"
_ALL_TO_ONE = "[[(1, 0), (2, 0), (3, 0)]]"


@pytest.mark.parametrize(
    ("title", "call", "settings", "microseconds"),
    [
        # 1 µs of latency, and 10 µs for each megabyte at 100 GB/s.
        ("both ways", _BOTH_WAYS, {}, [11]),
        ("both ways, one of them slow", _BOTH_WAYS, {"rate": "100,1>0=50"}, [21]),
        ("both ways, and GPUs see the events of others late", _BOTH_WAYS, {"event_latency": 5e-6}, [11]),
        ("both ways, pulled", f"{_BOTH_WAYS}, pull=True", {"rate": "100,0>1=25"}, [41]),
        ("two pairs both ways", "[[(0, 1), (1, 0)], [(2, 3), (3, 2)]]", {"rate": "100,3>2=50"}, [11, 21]),
        ("one to all: the sender's engine takes them in turn", _ONE_TO_ALL, {}, [33]),
        ("one to all, a slow one among them", _ONE_TO_ALL, {"rate": "100,0>2=50"}, [43]),
        ("one to all, pulled: each by an engine of its own", f"{_ONE_TO_ALL}, pull=True", {"rate": "100,0>2=50"}, [21]),
        ("all to one, the slowest counts", _ALL_TO_ONE, {"rate": "100,3>0=25"}, [41]),
        ("all to one, pulled: the receiver's engine", f"{_ALL_TO_ONE}, pull=True", {"rate": "100,3>0=25"}, [63]),
        ("one to all by kernels", f"{_ONE_TO_ALL}, multiprocessors=True", {"sm_share": 0.5}, [21]),
        (
            "a pattern and a link concurrently",
            "[[(0, 1), (0, 2)], [(3, 4)]]",
            {"gpus": 5, "rate": "100,3>4=50"},
            [22, 21],
        ),
        ("from host memory", "[[(-1, 0)]]", {"host_rate": 40}, [26]),
        ("to host memory", "[[(0, -1)]]", {"host_rate": 40}, [26]),
        ("host memory issues nothing, whoever should", "[[(-1, 0)]], pull=False", {"host_rate": 40}, [26]),
        ("to and from host memory", "[[(-1, 1), (1, -1)]]", {"host_rate": "50,1=25"}, [41]),
        ("two GPUs at once, each with memory of its own", "[[(-1, 0)], [(1, -1)]]", {"host_rate": "50,1=25"}, [21, 41]),
        ("within a GPU's memory", "[[(0, 0)]]", {"local_rate": 250}, [5]),
        ("within two GPUs' memories", "[[(0, 0)], [(2, 2)]]", {"local_rate": "250,2=100"}, [5, 11]),
        ("by kernel within a GPU's memory", "[[(1, 1)]], multiprocessors=True", {"sm_share": 0.5}, [2]),
        ("by kernel from host memory", "[[(-1, 0)]], multiprocessors=True", {"sm_share": 0.5}, [41]),
    ],
)
def test_a_group_is_timed_from_a_common_start_to_a_common_end(
    fakes: Fakes, title: str, call: str, settings: dict[str, object], microseconds: list[float]
) -> None:
    plan = "bytes=1000000, iterations=1, batches=2, warmup=1"
    script = f"report(seconds=transfers(open_gpus({settings.get('gpus', 4)}, buffer=3 << 20), {call}, {plan}))"
    seconds = fakes.script(script, **settings).reported["seconds"]

    assert len(seconds) == len(microseconds), title
    for group, expected in zip(seconds, microseconds, strict=True):
        assert group == pytest.approx([expected * 1e-6] * 2, rel=_WAKING), title


@pytest.mark.parametrize(
    ("title", "call", "settings", "microseconds"),
    [
        # As above; the covering messages take longer than the timed ones, and do not count in their time.
        ("in while out", "[[(-1, 0), (0, -1)]]", {"host_rate": 50, "to_host_rate": 20}, [21]),
        ("out while in", "[[(0, -1), (-1, 0)]]", {"host_rate": 50, "to_host_rate": 25}, [41]),
        ("two GPUs at once, each by its own clock", "[[(-1, 0)], [(-1, 1)]]", {"host_rate": "50,1=25"}, [21, 41]),
        (
            "two GPUs at once in both directions",
            "[[(0, -1), (-1, 0)], [(1, -1), (-1, 1)]]",
            {"host_rate": 50, "to_host_rate": "40,1=25"},
            [26, 41],
        ),
        ("by kernel", "[[(-1, 0), (0, -1)]], multiprocessors=True", {"to_host_rate": 20, "sm_share": 0.5}, [41]),
    ],
)
@pytest.mark.parametrize("iterations", [1, 14])
def test_a_covered_round_times_each_groups_first_transfer(
    fakes: Fakes, title: str, call: str, settings: dict[str, object], microseconds: list[float], iterations: int
) -> None:
    plan = f"bytes=1000000, iterations={iterations}, batches=2, warmup=1, covered=True"
    script = f"report(seconds=transfers(open_gpus(2, buffer=3 << 20), {call}, {plan})); gc.collect()"
    done = fakes.script(script, **settings)

    assert len(done.reported["seconds"]) == len(microseconds), title
    for group, expected in zip(done.reported["seconds"], microseconds, strict=True):
        assert group == pytest.approx([expected * 1e-6] * 2, rel=_WAKING), title
    assert done.leaks() == []


@pytest.mark.parametrize(
    ("title", "call", "settings", "uncovered"),
    [
        # Twice 14 × 21 µs of load beside 14 × 51 µs; all others last.
        ("out while in", "[[(0, -1), (-1, 0)]]", {"host_rate": 50, "to_host_rate": 20}, [0]),
        ("a GPU in a slow slot", "[[(-1, 0)], [(-1, 1)]]", {"host_rate": "50,1=20"}, [-1, 0]),
        ("the fastest is named", "[[(-1, 0)], [(-1, 1)], [(-1, 2)]]", {"host_rate": "50,1=20,2=60"}, [-1, 2, -1]),
        ("no slower than half", "[[(-1, 0)], [(-1, 1)]]", {"host_rate": "50,1=25"}, [-1, -1]),
        ("by kernel", "[[(-1, 0)], [(-1, 1)]], multiprocessors=True", {"host_rate": "50,1=20"}, [-1, 0]),
        ("less than 0.1 ms", "[[(-1, 0)], [(-1, 1)]], iterations=1", {"host_rate": "50,1=20"}, [-1, -1]),
    ],
)
def test_a_load_that_does_not_last_is_named_after_three_attempts(
    fakes: Fakes, title: str, call: str, settings: dict[str, object], uncovered: list[int]
) -> None:
    plan = "bytes=1000000, batches=2, warmup=1, covered=True" + ("" if "iterations" in call else ", iterations=14")
    script = f"""
        found = times(open_gpus(3, buffer=3 << 20), {call}, {plan})
        report(uncovered=found.uncovered, batches=[len(group) for group in found.seconds])
    """
    done = fakes.script(script, **settings)

    assert done.reported["uncovered"] == uncovered, title
    assert done.reported["batches"] == [2] * len(uncovered), title
    tickets = {line.split()[1] for line in done.lines("unblock ")}
    assert len(tickets) == 1 + 2 * (1 if max(uncovered) < 0 else 3), title  # a warm-up, and two batches


def test_every_transfer_of_a_covered_round_copies_twice_what_is_timed(fakes: Fakes) -> None:
    groups = "[[(-1, 0), (0, -1)], [(-1, 1), (1, -1)]]"
    script = f"""
        found = times(open_gpus(2), {groups}, iterations=14, batches=3, covered=True)
        report(coverage=coverage(found))
    """
    done = fakes.script(script)

    for transfer in ("0 from -1 to 0", "0 from 0 to -1", "1 from -1 to 1", "1 from 1 to -1"):
        assert len(done.lines(f"copy memcpy by {transfer} bytes 1024")) == 3 * 2 * 14
    assert done.reported["coverage"] == [[2 * 3 * 14 * 1024, 2 * 3 * 28 * 1024]] * 2


def test_a_covered_batch_ends_before_the_next_one_is_poisoned(fakes: Fakes) -> None:
    script = "transfers(open_gpus(2), [[(-1, 0), (0, -1)], [(1, -1), (-1, 1)]], batches=3, warmup=1, covered=True)"
    log = fakes.script(script, to_host_rate=1).log
    poisoned = [i for i, line in enumerate(log) if line.startswith("launch fill")]
    unblocked = [i for i, line in enumerate(log) if line.startswith("unblock")]
    copied = [i for i, line in enumerate(log) if line.startswith("copy ") and " bytes 1024 " in line]

    assert len(copied) == 4 * 4 * 8
    for at in poisoned:
        behind = [i for i in copied if i > at]
        assert not behind or min(i for i in unblocked if i > at) < behind[0]


@pytest.mark.parametrize("pull", [False, True])
@pytest.mark.parametrize("iterations", [1, 8])
def test_no_pattern_beats_the_engines_that_it_shares(fakes: Fakes, iterations: int, pull: bool) -> None:
    plan = f"bytes=1000000, iterations={iterations}, batches=3, pull={pull}"
    script = f"""
        gpus, found = open_gpus(8, buffer=32 << 20), []
        for size in (2, 3, 5, 8):
            others = range(1, size)
            for group in ([(0, i) for i in others], [(i, 0) for i in others]):
                found.append([group, transfers(gpus, [group], {plan})[0]])
        report(found=found)
    """
    for group, seconds in fakes.script(script, gpus=8, latency=0).reported["found"]:
        busiest = max(sum(link[int(pull)] == gpu for link in group) for gpu in range(8))  # messages of one engine
        assert min(seconds) >= busiest * 1e6 / 100e9 * (1 - _WAKING), (group, seconds)


def test_odd_sizes_are_copied_and_checked_in_every_pattern(fakes: Fakes) -> None:
    script = f"""
        gpus = open_gpus(4, buffer=60000)
        for groups in ({_BOTH_WAYS}, {_ONE_TO_ALL}, {_ALL_TO_ONE}, [[(-1, 0)], [(1, -1)]], [[(-1, 0), (0, -1)]],
                       [[(2, 2)]]):
            for bytes in (1, 255, 4097, 19001):
                for multiprocessors in (False, True):
                    for pull in (False, True):
                        transfers(gpus, groups, bytes=bytes, multiprocessors=multiprocessors, pull=pull, iterations=3,
                                  batches=2)
        del gpus; gc.collect()
    """
    done = fakes.script(script)

    # Three messages and two waking copies a batch, two batches, and one that wakes the link; 2 + 3 + 3 + 2 + 2 + 1
    # transfers of the six patterns.
    assert len(done.lines("copy ")) == (1 + 5 * 2) * (2 + 3 + 3 + 2 + 2 + 1) * 4 * 2 * 2
    assert done.leaks() == []


@pytest.mark.parametrize("link", [(-1, 0), (0, -1)])
def test_large_messages_by_kernel_share_a_launch_with_host_memory_too(fakes: Fakes, link: tuple[int, int]) -> None:
    plan = "multiprocessors=True, bytes=1 << 24, iterations=3"
    done = fakes.script(f"report(seconds=transfers(open_gpus(2, 2 << 24), [[{link}]], {plan}))", host_rate=40)

    # 16 MiB at 0.9 × 40 GB/s, and a third of 1 µs.
    assert done.reported["seconds"][0] == pytest.approx([466.367111e-6], rel=_PRECISION)
    assert len(done.lines("launch copy ")) == 1 + 2 + 1  # the copies that wake link and engine


@pytest.mark.parametrize(
    ("title", "call", "corrupt", "expected"),
    [
        # Of a transfer's copies the first three wake link and engine.
        ("the way back", _BOTH_WAYS, "5:17:1>0", {"group": 0, "rank": 1, "offset": 17}),
        ("the last of one to all", _ONE_TO_ALL, "4:5:0>3", {"group": 0, "rank": 2, "offset": 5}),
        ("the second of all to one", _ALL_TO_ONE, "7:1023:2>0", {"group": 0, "rank": 1, "offset": 1023}),
        ("all to one, pulled", f"{_ALL_TO_ONE}, pull=True", "4:0:3>0", {"group": 0, "rank": 2, "offset": 0}),
        ("one to all by kernel", f"{_ONE_TO_ALL}, multiprocessors=True", "6:9:0>2", {"rank": 1, "offset": 9}),
        ("the second group", "[[(0, 1), (1, 0)], [(3, 2), (2, 3)]]", "4:8:2>3", {"group": 1, "rank": 1, "offset": 8}),
        ("from host memory", "[[(-1, 0)]]", "4:7:-1>0", {"group": 0, "rank": 0, "offset": 7}),
        ("to host memory", "[[(0, -1)]]", "7:1023:0>-1", {"group": 0, "rank": 0, "offset": 1023}),
        ("within a GPU's memory", "[[(1, 1)]]", "4:3:1>1", {"group": 0, "rank": 0, "offset": 3}),
        ("what covers a group's first", "[[(-1, 0), (0, -1)]], covered=True", "11:2:0>-1", {"rank": 1, "offset": 2}),
        ("to host memory by kernel", "[[(1, -1)]], multiprocessors=True", "4:0:1>-1", {"rank": 0, "offset": 0}),
    ],
)
def test_one_wrong_byte_fails_the_transfer_that_brought_it(
    fakes: Fakes, title: str, call: str, corrupt: str, expected: dict[str, int]
) -> None:
    script = f"report(**failure(transfers, open_gpus(), {call})); gc.collect()"
    done = fakes.script(script, corrupt_copy=corrupt)
    reported = done.reported

    assert reported["kind"] == "DataError", title
    assert {name: reported[name] for name in expected} == expected, title
    assert reported["wrong"] == 1, title
    assert int(reported["expected"]) ^ int(reported["found"]) == 0xFF, title
    assert done.leaks() == [], title


@pytest.mark.parametrize("multiprocessors", [False, True])
def test_a_message_to_host_memory_that_never_arrives_is_wrong(fakes: Fakes, multiprocessors: bool) -> None:
    plan = f"bytes=256, iterations=1, batches=2, multiprocessors={multiprocessors}"
    script = f"report(**failure(transfers, open_gpus(2, buffer=256), [[(0, -1)]], {plan}))"
    reported = fakes.script(script, lose_copy=7).reported

    assert reported["kind"] == "DataError"
    assert (reported["offset"], reported["wrong"]) == (0, 256)


def test_messages_to_one_gpu_need_room_together(fakes: Fakes) -> None:
    script = f"""
        fits, too_small = open_gpus(buffer=3 * 1024), open_gpus(buffer=3 * 1024 - 256)
        report(fits=transfers(fits, {_ALL_TO_ONE}), **failure(transfers, too_small, {_ALL_TO_ONE}))
    """
    reported = fakes.script(script).reported

    assert len(reported["fits"][0]) == 1
    assert reported["text"] == "3 messages at a time do not fit the buffers: allocate() more first"


@pytest.mark.parametrize(
    ("title", "call", "waits"),
    [
        # Copies wait for the poison that another stream writes; a verification for the copies of all other streams. Of
        # several streams each but the first waits for the common start, and the first for the end of each other, unless
        # each is timed by its own events.
        ("one way", "[[(0, 1)]]", 1 + 1),
        ("one way, pulled", "[[(0, 1)]], pull=True", 0),
        ("both ways: the first does not wait for the end of the other", _BOTH_WAYS, 2 + 1 + 2),
        ("one to all", _ONE_TO_ALL, 3 + 3 * 3 + 4),
        ("one to all, pulled", f"{_ONE_TO_ALL}, pull=True", 0 + 3 * 2 + 4),
        ("all to one", _ALL_TO_ONE, 3 + 3 + 4),
        ("all to one, pulled: the first by the GPU's own stream", f"{_ALL_TO_ONE}, pull=True", 2 + 2 + 4),
        ("two groups do not wait for each other", "[[(0, 1)], [(2, 3)]]", 2 * (1 + 1)),
        ("two groups do where host memory is shared", "[[(-1, 0)], [(1, -1)]]", 0 + 2),
    ],
)
def test_nothing_is_verified_while_a_copy_of_its_group_may_run(fakes: Fakes, title: str, call: str, waits: int) -> None:
    log = fakes.script(f"transfers(open_gpus(), {call}, batches=3)").log

    assert log.count("cuStreamWaitEvent") == 3 * waits, title


def test_streams_and_host_memory_are_made_once_and_only_where_they_are_used(fakes: Fakes) -> None:
    script = f"""
        gpus = open_gpus()
        print("START", file=open(os.environ["FAKE_LOG"], "a"))
        for trial in range(3):
            transfers(gpus, [[(0, 1)], [(2, 3)]])
            transfers(gpus, {_ONE_TO_ALL})
            transfers(gpus, [[(-1, 2)]])
    """
    done = fakes.script(script)
    created = [line.split()[0] for line in done.log[done.log.index("START") :] if line.startswith("+")]

    assert created.count("+stream") == 2  # of three transfers that GPU 0 issues at once, one uses the GPU's own stream
    # A report for each stream, and one buffer in host memory.
    assert created.count("+pinned") == 2 + 1


def test_host_memory_is_as_large_as_asked_and_holds_no_more_messages(fakes: Fakes) -> None:
    script = """
        gpus = native.Gpus([0], PTX)
        gpus.allocate(1 << 20, 1 << 16)
        transfers(gpus, [[(-1, 0)]], bytes=1 << 16)
        report(**failure(transfers, gpus, [[(-1, 0)]], bytes=(1 << 16) + 4096 + 512))
    """
    done = fakes.script(script)
    assert done.reported["text"].startswith("message does not fit the buffers")


def test_without_peers_the_driver_stages_and_kernels_are_refused(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus(2, buffer=1 << 20, peers=False)
        refused = failure(copies, gpus, [(0, 1)], multiprocessors=True)["text"]
        seconds = transfers(gpus, [[(0, 1)]], bytes=1000000, iterations=1)
        report(peers=gpus.peer_access(), refused=refused, seconds=seconds)
    """
    done = fakes.script(script, staged=20)

    assert done.reported["peers"] == [[False, False], [False, False]]
    assert done.reported["refused"] == "a kernel cannot copy between GPUs without peer access"
    assert done.reported["seconds"][0] == pytest.approx([51e-6], rel=_PRECISION)
    assert "cuCtxEnablePeerAccess" not in done.log


def test_host_memory_before_the_buffers_is_refused(fakes: Fakes) -> None:
    script = "report(**failure(transfers, native.Gpus([0], PTX), [[(-1, 0)]]))"

    assert "allocate() first" in fakes.script(script).reported["text"]


@pytest.mark.parametrize(
    ("title", "settings", "supported"),
    [
        ("none offers it", {}, [False, False]),
        ("one does", {"multicast": "0,1=1"}, [False, True]),
        ("the driver does not know the question", {"multicast": "1,0=-1"}, [False, True]),
        # Opening asks each GPU for its multiprocessors first.
        ("the question fails", {"multicast": 1, "fail": "cuDeviceGetAttribute:999:3"}, [False, True]),
    ],
)
def test_multicast_support_is_queried_and_multicast_never_used(
    fakes: Fakes, title: str, settings: dict[str, object], supported: list[bool]
) -> None:
    reported = fakes.script("report(found=open_gpus(2).multicast_supported)", **settings).reported

    assert reported["found"] == supported, title
