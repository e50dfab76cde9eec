"""What every operation delivers on simulated GPUs, in every type, in and out of place; wrong elements are named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from collbench.model.operations import COLLECTIVES, InPlace, Operation
from tests.native.fakes import Fakes, build_without

_PAIRS = "[[0, 1], [2, 3]]"
# Bytes of NCCL's types in their order [nccl.h 2.24], of an operation's message for two to four ranks of 5 elements.


def test_every_type_and_reduction_is_checked_on_two_three_and_four_ranks(fakes: Fakes) -> None:
    script = """
        held = session(open_gpus())
        for group in ([0, 1], [2, 0, 1], [0, 1, 2, 3]):
            for dtype in range(12):
                for reduction in range(5):
                    collective(held, [group], dtype=dtype, count=77, iterations=2, reduction=reduction)
    """
    done = fakes.script(script)

    # One to connect, two to wake links and two in the graph, of five reductions, for twelve types and three groups.
    assert len(done.lines("collective allreduce ")) == 3 * 5 * 12 * 5


@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize("operation", [operation for operation in COLLECTIVES if not operation.irregular])
def test_every_operation_arrives_in_every_type_from_every_root(
    fakes: Fakes, operation: Operation, in_place: bool
) -> None:
    """Types of every width from every root of every group, and the others from one root of three ranks."""
    script = f"""
        held = session(open_gpus())
        widths = (0, 6, 7, 8)  # 1, 2, 4 and 8 bytes
        for group in ([1], [0, 1], [2, 0, 1]):
            for dtype in range(12) if len(group) == 3 else widths:
                plan = dict(dtype=dtype, count=5 * len(group), iterations=2, batches=2)
                for root in range(len(group)) if dtype in widths else (1,):
                    collective(held, [group], {operation.value!r}, root=root, in_place={in_place}, **plan)
    """
    done = fakes.script(script)
    checks = len(done.lines("launch verify_elements"))
    trials, ranks = 4 * (1 + 2 + 3) + 8, 4 * (1 * 1 + 2 * 2 + 3 * 3) + 8 * 3  # of every root; their ranks

    unchecked = in_place and operation.collective.in_place is InPlace.UNDEFINED
    only_the_root = operation in {"reduce", "gather"}
    assert checks == (0 if unchecked else 2 * (trials if only_the_root else ranks))


@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
def test_blocks_of_any_sizes_arrive_in_every_type(fakes: Fakes, in_place: bool) -> None:
    script = f"""
        import random
        held, rng, segments = session(open_gpus()), random.Random(7), 0
        for group in ([0, 1], [2, 0, 1], [0, 1, 2, 3]):
            for dtype in range(12):
                n = len(group)
                blocks = [[rng.choice((0, 1, 7, 300)) for _ in group] for _ in group]
                for rank in range(n):
                    blocks[rank][rank] = blocks[rank][rank] or 2
                count = max(*map(sum, blocks), *map(sum, zip(*blocks)))
                segments += sum(block > 0 for row in blocks for block in row)
                plan = dict(dtype=dtype, count=count, iterations=2, batches=2, in_place={in_place})
                collective(held, [group], "alltoallv", blocks=[block for row in blocks for block in row], **plan)
        report(segments=segments)
    """
    done = fakes.script(script)
    assert len(done.lines("launch verify_elements")) == (0 if in_place else 2 * done.reported["segments"])


@pytest.mark.parametrize(("registration", "in_place"), [("none", False), ("buffer", True)])
@pytest.mark.parametrize(
    ("title", "blocks"),
    [
        ("the first rank is idle", [0, 0, 0, 0, 5, 70, 0, 3, 9]),
        ("a rank in the middle is idle", [3, 0, 70, 0, 0, 0, 5, 0, 9]),
        ("the last rank is idle", [3, 70, 0, 5, 9, 0, 0, 0, 0]),
        ("all but one are idle, and it sends to itself", [0, 0, 0, 0, 79, 0, 0, 0, 0]),
    ],
)
def test_a_rank_that_neither_sends_nor_receives_waits_for_nobody(
    fakes: Fakes, title: str, blocks: list[int], registration: str, in_place: bool
) -> None:
    count = max(sum(blocks[at : at + 3]) for at in (0, 3, 6))
    count = max(count, *(sum(blocks[at::3]) for at in range(3)))
    script = f"""
        plan = dict(count={count}, blocks={blocks}, iterations=3, batches=2, launch_iterations=2, in_place={in_place})
        held = session(open_gpus())
        times = [collective(held, [[0, 1, 2]], "alltoallv", registration={registration!r}, **plan) for _ in range(2)]
        report(seconds=[seconds for seconds, _ in times], launches=[launches for _, launches in times])
    """
    reported = fakes.script(script).reported
    assert all(seconds > 0 for trial in reported["seconds"] for group in trial for seconds in group), title
    assert all(seconds > 0 for trial in reported["launches"] for seconds in trial), title


# Rank 0 gets 3 elements of its own and 5 of rank 1; rank 1 gets 70 of rank 0 and none of its own.
_UNEVEN = "[[0, 1]], 'alltoallv', count=73, blocks=[3, 70, 5, 0]"


@pytest.mark.parametrize(
    ("title", "corrupt", "rank", "offset"),
    [
        ("the first of a rank's own", "5:0:0", 0, 0),
        ("the last of its own", "5:2:0", 0, 8),
        ("the first of another's", "5:3:0", 0, 12),
        ("the last of all", "5:7:0", 0, 28),
        ("the last of a large block", "5:69:1", 1, 276),
    ],
)
def test_a_wrong_element_of_every_segment_is_named(
    fakes: Fakes, title: str, corrupt: str, rank: int, offset: int
) -> None:
    script = f"report(**failure(collective, session(open_gpus()), {_UNEVEN})); gc.collect()"
    reported = fakes.script(script, corrupt_collective=corrupt).reported
    assert (reported["kind"], reported["rank"], reported["offset"], reported["wrong"]) == (
        "DataError",
        rank,
        offset,
        1,
    ), title
    assert reported["expected"] != reported["found"], title


@pytest.mark.parametrize(
    ("title", "blocks"),
    [
        ("too few", "[3, 70, 5]"),
        ("a rank sends more than the message", "[4, 70, 5, 0]"),
        ("a rank receives more than the message", "[3, 70, 5, 4]"),
        ("a sum that overflows", "[2**64 - 1, 70, 5, 0]"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(fakes: Fakes, title: str, blocks: str) -> None:
    script = f"report(**failure(collective, session(open_gpus()), [[0, 1]], 'alltoallv', count=73, blocks={blocks}))"
    assert fakes.script(script).reported["kind"] == "ValueError", title


@pytest.mark.parametrize(
    ("operation", "settings", "calls"),
    [
        ("alltoall", {}, {"ncclAlltoAll": 3}),
        ("gather", {}, {"ncclGather": 3}),
        ("scatter", {}, {"ncclScatter": 3}),
        # An NCCL before 2.28: nccl-tests sends and receives in a group. Three ranks; root 1 and itself too.
        ("alltoall", "old", {"ncclSend": 9, "ncclRecv": 9}),
        ("gather", "old", {"ncclSend": 3, "ncclRecv": 3}),
        ("scatter", "old", {"ncclSend": 3, "ncclRecv": 3}),
        ("sendrecv", {}, {"ncclSend": 3, "ncclRecv": 3}),
    ],
)
def test_the_calls_are_those_of_nccl_tests(
    fakes: Fakes, tmp_path: Path, operation: str, settings: object, calls: dict[str, int]
) -> None:
    environment = {}
    if settings == "old":
        newer = ["ncclAlltoAll", "ncclGather", "ncclScatter"]
        build_without(fakes, tmp_path, "libnccl.so.2", newer)
        environment = {"NCCL": str(tmp_path / "libnccl.so.2"), "LD_LIBRARY_PATH": str(tmp_path)}
    script = f"collective(session(open_gpus()), [[2, 0, 3]], {operation!r}, count=300, root=1, iterations=2)"
    log = Counter(fakes.script(script, environment).log)

    # Once to connect, twice to wake links and twice in the graph.
    names = ("ncclSend", "ncclRecv", "ncclAlltoAll", "ncclGather", "ncclScatter")
    assert {name: log[name] for name in names if log[name]} == {name: 5 * count for name, count in calls.items()}


@pytest.mark.parametrize(
    ("title", "call", "corrupt", "expected"),
    [
        # The first collective connects the ranks and two wake links, unchecked: the graph's begin with the fourth.
        ("an element on the last rank", "[[0, 1]]", "4:7:1", {"group": 0, "rank": 1, "offset": 28}),
        ("the first element on rank 0", "[[0, 1]]", "4:0:0", {"group": 0, "rank": 0, "offset": 0}),
        ("the last of the graph, its last element", "[[0, 1]]", "7:255:0", {"group": 0, "rank": 0, "offset": 1020}),
        ("bytes", "[[0, 1]], dtype=1", "5:9:0", {"group": 0, "rank": 0, "offset": 9}),
        ("half floats", "[[0, 1]], dtype=6", "5:9:0", {"group": 0, "rank": 0, "offset": 18}),
        ("8-bit floats, e4m3", "[[0, 1]], dtype=10", "5:9:0", {"group": 0, "rank": 0, "offset": 9}),
        ("8-bit floats, e5m2", "[[0, 1]], dtype=11", "5:9:0", {"group": 0, "rank": 0, "offset": 9}),
        ("an average over three, which rounds", "[[0, 1, 2]], reduction=4", "5:9:2", {"rank": 2, "offset": 36}),
        (
            "an average of 8-bit floats over three",
            "[[0, 1, 2]], reduction=4, dtype=11",
            "5:9:2",
            {"rank": 2, "offset": 9},
        ),
        ("a broadcast", "[[0, 1]], 'broadcast'", "5:9:1", {"group": 0, "rank": 1, "offset": 36}),
        ("a reduce, at the root", "[[0, 1]], 'reduce', root=1", "5:9:1", {"rank": 1, "offset": 36}),
        ("another rank's block of an all-gather", "[[0, 1]], 'allgather'", "5:130:0", {"rank": 0, "offset": 520}),
        # Counted from where the rank receives, which in place is not where the message begins.
        ("a reduce-scatter", "[[0, 1]], 'reducescatter'", "5:9:1", {"rank": 1, "offset": 36}),
        ("a reduce-scatter in place", "[[0, 1]], 'reducescatter', in_place=True", "5:9:1", {"rank": 1, "offset": 36}),
        ("an all-to-all", "[[0, 1]], 'alltoall'", "5:130:1", {"rank": 1, "offset": 520}),
        ("a send", "[[0, 1]], 'sendrecv'", "5:9:1", {"rank": 1, "offset": 36}),
        ("a gather, at the root", "[[0, 1]], 'gather', root=1", "5:130:1", {"rank": 1, "offset": 520}),
        ("a scatter", "[[0, 1]], 'scatter', root=1", "5:9:0", {"rank": 0, "offset": 36}),
        ("in place", "[[0, 1]], in_place=True", "5:9:1", {"rank": 1, "offset": 36}),
        ("a warm-up batch", "[[0, 1]], warmup=1", "2:7:1", {"group": 0, "rank": 1, "offset": 28}),
        ("a group in another order", "[[3, 1]]", "4:7:1", {"group": 0, "rank": 1, "offset": 28}),
    ],
)
def test_one_wrong_element_fails_the_group_and_is_named(
    fakes: Fakes, title: str, call: str, corrupt: str, expected: dict[str, int]
) -> None:
    script = f"report(**failure(collective, session(open_gpus()), {call})); gc.collect()"
    done = fakes.script(script, corrupt_collective=corrupt)
    reported = done.reported

    assert reported["kind"] == "DataError", title
    assert {name: reported[name] for name in expected} == expected, title
    assert reported["wrong"] == 1, title
    assert 0 <= reported["expected"] <= 14, title  # two ranks' sum of at most 7 each
    assert reported["found"] != reported["expected"], title
    assert done.leaks() == [], title


@pytest.mark.parametrize(
    ("title", "call"),
    [
        # In place, where messages share slots, a graph changes its own input; one collective is checked before it.
        ("a graph in place", "in_place=True, iterations=10, count=8192"),
        ("unverified", "verify=False"),
        ("an all-to-all in place", "operation='alltoall', in_place=True"),
    ],
)
def test_unverified_collectives_raise_nothing(fakes: Fakes, title: str, call: str) -> None:
    # The fifth collective is in the timed graph in all of these: one connects, two wake.
    script = f"report(**failure(collective, session(open_gpus()), [[0, 1]], **dict({call})))"
    done = fakes.script(script, corrupt_collective="5:9:1")

    assert done.reported == {"kind": "none"}, title


def test_the_wrong_group_of_a_round_is_named(fakes: Fakes) -> None:
    # Each pair connects and has two calls to wake it: the graphs hold the 7th and 8th; which is first is chance.
    script = f"report(**failure(collective, session(open_gpus()), {_PAIRS}, iterations=1))"
    groups = {fakes.script(script, corrupt_collective=f"{nth}:7:1").reported["group"] for nth in (7, 8)}

    assert groups == {0, 1}


def test_a_type_that_nccl_refuses_is_reported_in_one_line(fakes: Fakes) -> None:
    script = "report(**failure(collective, session(open_gpus()), [[0, 1]], dtype=10))"
    reported = fakes.script(script, nccl=22304).reported

    assert reported["kind"] == "NcclError"
    assert reported["text"].startswith("ncclAllReduce(")
    assert "invalid argument (no 8-bit floats) at collective_rank.cpp:" in reported["text"]
    assert "\n" not in reported["text"]
