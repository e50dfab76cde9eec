"""Collective rounds on simulated GPUs: communicators, captured chains, times and checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.native.fakes import Fakes

_PRECISION = 1e-6  # the driver gives single-precision milliseconds
_PAIRS = "[[0, 1], [2, 3]]"
_ALL = "[[0, 1, 2, 3]]"
_MEGABYTE = "count=250000, iterations=1"  # of float32, decimal


@pytest.mark.parametrize(
    ("case", "groups", "arguments", "settings", "microseconds"),
    [
        # 5 µs of latency, and 10 µs for each megabyte that crosses a wire of 100 GB/s; four ranks send 2·3/4 of it.
        ("all-reduce on a pair", "[[0, 1]]", "", {}, [15]),
        ("all-reduce on four", _ALL, "", {}, [20]),
        ("two pairs at once, one slow", _PAIRS, "", {"rate": "100,2-3=50"}, [15, 25]),
        ("a slow wire of the ring", _ALL, "", {"rate": "100,1-2=50"}, [35]),
        ("broadcast", _ALL, "broadcast=True, root=2", {}, [15]),
        ("the slowest rank is the time", _ALL, "", {"lag": "0,2=3e-6"}, [23]),
        ("the time is one collective's, not the chain's", "[[0, 1]]", "iterations=8", {}, [15]),
    ],
)
def test_times_are_what_the_gpus_clock_says(
    fakes: Fakes,
    tmp_path: Path,
    case: str,
    groups: str,
    arguments: str,
    settings: dict[str, object],
    microseconds: list[float],
) -> None:
    plan = f"dict({_MEGABYTE}) | dict({arguments})"
    script = f"say(seconds=collective(session(open_gpus(buffer=1 << 20)), {groups}, blocks=2, warmup=1, **({plan}))[0])"
    seconds = fakes.script(script, tmp_path, **settings).said["seconds"]

    assert len(seconds) == len(microseconds), case
    for group, expected in zip(seconds, microseconds, strict=True):
        assert group == pytest.approx([expected * 1e-6] * 2, rel=_PRECISION), case


def test_every_type_and_reduction_is_checked_on_two_three_and_four_ranks(fakes: Fakes, tmp_path: Path) -> None:
    script = """
        held = session(open_gpus())
        widths = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2]
        for group in ([0, 1], [2, 0, 1], [0, 1, 2, 3]):
            for dtype, width in enumerate(widths):
                for reduction in range(5):
                    plan = dict(dtype=dtype, width=width, count=77, iterations=2)
                    collective(held, [group], reduction=reduction, **plan)
                collective(held, [group], broadcast=True, root=len(group) - 1, **plan)
    """
    done = fakes.script(script, tmp_path)

    # One to connect and two in the chain, of five reductions and a broadcast, for ten types and three groups.
    assert len(done.lines("collective ")) == 3 * (5 + 1) * 10 * 3


@pytest.mark.parametrize(
    ("case", "call", "corrupt", "found"),
    [
        # The first collective connects the ranks and is not checked: the chain's begin with the second.
        ("an element on the last rank", "[[0, 1]]", "2:7:1", {"group": 0, "rank": 1, "offset": 28}),
        ("the first element on rank 0", "[[0, 1]]", "2:0:0", {"group": 0, "rank": 0, "offset": 0}),
        ("the last of the chain, its last element", "[[0, 1]]", "5:255:0", {"group": 0, "rank": 0, "offset": 1020}),
        ("bytes", "[[0, 1]], dtype=1, width=1", "3:9:0", {"group": 0, "rank": 0, "offset": 9}),
        ("half floats", "[[0, 1]], dtype=6, width=2", "3:9:0", {"group": 0, "rank": 0, "offset": 18}),
        ("an average over three, which rounds", "[[0, 1, 2]], reduction=4", "3:9:2", {"rank": 2, "offset": 36}),
        ("a broadcast", "[[0, 1]], broadcast=True", "3:9:1", {"group": 0, "rank": 1, "offset": 36}),
        ("a warm-up block", "[[0, 1]], warmup=1", "2:7:1", {"group": 0, "rank": 1, "offset": 28}),
        ("a group in another order", "[[3, 1]]", "2:7:1", {"group": 0, "rank": 1, "offset": 28}),
    ],
)
def test_one_wrong_element_fails_the_group_and_is_named(
    fakes: Fakes, tmp_path: Path, case: str, call: str, corrupt: str, found: dict[str, int]
) -> None:
    script = f"say(**failure(collective, session(open_gpus()), {call})); gc.collect()"
    done = fakes.script(script, tmp_path, corrupt_collective=corrupt)
    said = done.said

    assert said["kind"] == "DataError", case
    assert {name: said[name] for name in found} == found, case
    assert said["wrong"] == 1, case
    assert 0 <= said["expected"] <= 14, case  # two ranks' sum of at most 7 each
    assert said["found"] != said["expected"], case
    assert done.leaks() == [], case


def test_the_wrong_group_of_a_round_is_named(fakes: Fakes, tmp_path: Path) -> None:
    # Each pair connects alone, so the chains hold the 3rd collective and on; which is first is the fakes' choice.
    script = f"say(**failure(collective, session(open_gpus()), {_PAIRS}, iterations=1))"
    groups = {fakes.script(script, tmp_path, corrupt_collective=f"{nth}:7:1").said["group"] for nth in (3, 4)}

    assert groups == {0, 1}


def test_one_world_and_one_split_serve_all_groups_of_a_round(fakes: Fakes, tmp_path: Path) -> None:
    script = f"""
        held = session(open_gpus())
        for groups in ({_PAIRS}, {_PAIRS}, [[0, 2], [1, 3]], [[0, 1]], {_ALL}):
            collective(held, groups)
        held.close()
    """
    done = fakes.script(script, tmp_path)

    assert len(done.lines("ncclCommInitAll")) == 1
    assert len(done.lines("split of 4 ranks")) == 2
    assert len(done.lines("+comm")) == len(done.lines("-comm")) == 4 + 4 + 4


def test_chains_are_captured_once_and_replayed_at_later_visits(fakes: Fakes, tmp_path: Path) -> None:
    script = f"""
        held = session(open_gpus())
        for visit in range(3):
            collective(held, {_PAIRS}, blocks=2, warmup=1)
        collective(held, {_PAIRS}, count=128)
    """
    calls = Counter(fakes.script(script, tmp_path).log)

    assert calls["cuStreamBeginCapture_v2"] == calls["cuGraphInstantiateWithFlags"] == 2 * 4
    assert calls["cuGraphLaunch"] == (3 * 3 + 1) * 4
    # Once to connect and four times in the chain, for each rank of each shape.
    assert calls["ncclAllReduce"] == 2 * 4 * (1 + 4)


def test_all_streams_wait_behind_one_gate_for_one_graph_each(fakes: Fakes, tmp_path: Path) -> None:
    done = fakes.script(f"collective(session(open_gpus()), {_PAIRS}, iterations=32)", tmp_path)
    opened = done.lines("open gate")

    # The graph's 32 collectives between two events.
    assert sorted(line.split(" gpu ")[1] for line in opened) == [f"{gpu} behind 34" for gpu in range(4)]
    assert done.log.index(opened[0]) > max(i for i, line in enumerate(done.log) if line == "cuGraphLaunch")


def test_the_launch_loop_calls_every_collective_from_every_rank(fakes: Fakes, tmp_path: Path) -> None:
    script = f"say(seconds=collective(session(open_gpus()), {_PAIRS}, launch_iterations=10)[1])"
    done = fakes.script(script, tmp_path)

    assert len(done.said["seconds"]) == 2
    assert min(done.said["seconds"]) > 0
    assert Counter(done.log)["ncclAllReduce"] == 4 * (1 + 4 + 10)


@pytest.mark.parametrize(
    ("case", "call", "text"),
    [
        ("33 collectives are too long a chain", "[[0, 1]], iterations=33", "a chain holds 1 to 32 collectives"),
        ("no collective", "[[0, 1]], iterations=0", "a chain holds 1 to 32 collectives"),
        ("no element", "[[0, 1]], count=0", "a collective of no elements"),
        ("a message larger than the buffers", "[[0, 1]], count=20000", "does not fit the buffers"),
    ],
)
def test_a_round_that_cannot_be_timed_is_refused(fakes: Fakes, tmp_path: Path, case: str, call: str, text: str) -> None:
    done = fakes.script(f"say(**failure(collective, session(open_gpus()), {call}))", tmp_path)

    assert text in done.said["text"], case
    assert done.lines("collective ") == [], case


def test_a_collective_that_never_ends_is_given_up_at_the_deadline(fakes: Fakes, tmp_path: Path) -> None:
    script = "say(**failure(collective, session(open_gpus(2)), [[0, 1]])); gc.collect()"
    # Each look at the clock takes a second, so that the deadline of 30 s comes after some 30 looks.
    clock = {"LD_PRELOAD": str(fakes.folder / "libclock.so")}
    done = fakes.script(script, tmp_path, clock, hang="allreduce")

    assert done.said["kind"] == "HangError"
    assert done.said["text"] == "GPU 0 did not finish its work in 30 s"
    assert done.leaks() == []


def test_a_rank_that_failed_in_the_background_is_told(fakes: Fakes, tmp_path: Path) -> None:
    script = "say(**failure(collective, session(open_gpus()), [[0, 1]]))"
    said = fakes.script(script, tmp_path, nccl_state="0,1=6").said

    assert said["kind"] == "NcclError"
    assert said["text"].startswith("ncclCommGetAsyncError(communicator): remote process exited or network error")


@pytest.mark.parametrize(
    ("case", "fail"),
    [
        ("the collective refuses to be captured", "ncclAllReduce:2:3"),
        ("a group does not end", "ncclGroupEnd:2:2"),
        ("a capture does not begin", "cuStreamBeginCapture_v2:1:2"),
    ],
)
def test_a_failure_inside_a_capture_leaves_streams_and_thread_usable(
    fakes: Fakes, tmp_path: Path, case: str, fail: str
) -> None:
    script = """
    held = session(open_gpus(2))
    first = failure(collective, held, [[0, 1]])["kind"]
    say(first=first, then=failure(collective, held, [[0, 1]]))
    """
    said = fakes.script(script, tmp_path, fail=fail).said

    assert said["first"] in {"NcclError", "CudaError"}, case
    assert said["then"] == {"kind": "none"}, case
