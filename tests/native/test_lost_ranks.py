"""A rank that fails is reported by its name and NCCL's words, never as a hang of the ranks that wait for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.native.fakes import Fakes

# No test waits this long: every failure here ends by itself.
_FOR_EVER = "deadline=1e9"
_SYSTEM, _REMOTE = 2, 6
_SYSTEM_WORDS = "unhandled system error"


@pytest.mark.parametrize(
    ("case", "nth", "changes"),
    [
        ("where the ranks connect", 1, ""),
        ("where links wake", 3, ""),
        ("first of a graph", 4, ""),
        ("in the middle of a later batch", 10, "batches=3"),
        ("in the collective before the batches", 2, "in_place=True"),
        ("where the launch loop's ranks connect", 8, "launch_iterations=3"),
        ("in the launch loop", 10, "launch_iterations=3"),
        ("in a broadcast", 5, "operation='broadcast'"),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("others", [0, _REMOTE], ids=["others wait", "others lose it"])
def test_a_rank_that_fails_mid_collective_is_named(
    fakes: Fakes, tmp_path: Path, case: str, nth: int, changes: str, rank: int, others: int
) -> None:
    script = f"""
        held = session(open_gpus(3))
        say(**failure(collective, held, [[1, 2, 0]], {_FOR_EVER}, **dict({changes})))
        held.close()
        del held; gc.collect()
    """
    done = fakes.script(script, tmp_path, **{"break": f"{nth}:{rank}:{_SYSTEM}:{others}"})

    assert done.said["kind"] == "NcclError", case
    assert done.said["text"].startswith(f"rank {rank} of 3: failed in the background: {_SYSTEM_WORDS}"), case
    assert done.said["position"] == [1, 2, 0][rank], case
    assert done.leaks() == [], case  # the other threads returned, and streams ended
    assert len(done.lines("+comm")) == len(done.lines("-comm")), case


@pytest.mark.parametrize(
    ("case", "nth", "launches", "splits"),
    [
        ("in a graph", 7, 0, 1),
        ("in a graph before the launch loop", 7, 3, 2),
        # Of each pair one that connects, two that wake and four in the graph; then one that connects and the loop.
        ("in the launch loop", 2 * (1 + 2 + 4 + 1) + 1, 3, 2),
    ],
)
def test_communicators_that_lost_a_rank_are_aborted_and_new_ones_measure(
    fakes: Fakes, tmp_path: Path, case: str, nth: int, launches: int, splits: int
) -> None:
    script = f"""
        held, plan = session(open_gpus()), dict(launch_iterations={launches})
        failed = failure(collective, held, [[0, 1], [2, 3]], {_FOR_EVER}, **plan)
        then, loops = collective(held, [[0, 1], [2, 3]], **plan)
        say(kind=failed["kind"], then=then, loops=loops)
        held.close()
    """
    done = fakes.script(script, tmp_path, **{"break": f"{nth}:1:{_SYSTEM}"})

    assert done.said["kind"] == "NcclError", case
    assert [len(batches) for batches in done.said["then"]] == [1, 1], case
    assert len(done.said["loops"]) == (2 if launches else 0), case
    assert Counter(done.log)["split of 4 ranks"] == 2 * splits, case
    assert len(done.lines("+comm")) == len(done.lines("-comm")), case


def test_a_rank_of_another_process_that_is_lost_is_reported_at_once(fakes: Fakes, tmp_path: Path) -> None:
    # This process's rank is 0; what the others' communicators say stays there.
    script = f"""
        import threading
        nccl = native.Nccl(os.environ["NCCL"])
        unique_id, said = nccl.unique_id(), [None, None]
        gpus = [native.Gpus([rank], PTX) for rank in range(2)]
        def run(rank):
            gpus[rank].allocate(65536)
            held = native.Collectives(gpus[rank], nccl, rank, 2, unique_id)
            said[rank] = failure(collective, held, [[0, 1]], {_FOR_EVER})
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        say(said=said)
    """
    said = fakes.script(script, tmp_path, **{"break": f"4:1:{_SYSTEM}:{_REMOTE}"}).said["said"]

    assert [one["kind"] for one in said] == ["NcclError", "NcclError"]
    assert [one["code"] for one in said] == [_REMOTE, _SYSTEM]
    assert said[1]["text"].startswith(f"rank 1 of 2: failed in the background: {_SYSTEM_WORDS}")


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    ("function", "groups", "doing"),
    [
        ("ncclCommInitRank", "[[0, 1, 2]]", "NCCL's start"),
        ("ncclCommSplit", "[[0, 1]]", "a split of NCCL's world"),
    ],
)
def test_a_rank_that_fails_at_the_start_is_named_while_others_wait_for_it(
    fakes: Fakes, tmp_path: Path, function: str, groups: str, doing: str, nth: int
) -> None:
    script = f"""
        held = session(open_gpus(3))
        failed = failure(held.prepare, {groups})
        say(**failed, again=failure(held.prepare, {groups})["text"])
        del held; gc.collect()
    """
    done = fakes.script(script, tmp_path, fail=f"{function}:{_SYSTEM}:{nth}")

    assert done.said["kind"] == "NcclError"
    rank = done.said["position"]
    assert done.said["text"].startswith(f"rank {rank} of 3: {doing} failed: {function}(")
    assert f": {_SYSTEM_WORDS} (the test wants this call to fail) at " in done.said["text"]
    assert done.leaks() == []
    assert "end the process" in done.said["again"]


def test_a_call_that_waits_for_a_failed_rank_does_not_hold_up_the_failure(fakes: Fakes, tmp_path: Path) -> None:
    # Ranks connect in their first collective: the others' calls wait for the rank whose call has failed.
    script = f"""
        held = session(open_gpus(3))
        failed = failure(collective, held, [[0, 1, 2]], {_FOR_EVER})
        say(**failed, again=failure(collective, held, [[0, 1, 2]])["text"])
        held.close()
        del held; gc.collect()
    """
    done = fakes.script(script, tmp_path, fail=f"ncclAllReduce:{_SYSTEM}:1")

    assert done.said["kind"] == "NcclError"
    assert done.said["text"].startswith("ncclAllReduce(")
    assert done.said["position"] in (0, 1, 2)
    assert "end the process" in done.said["again"]


@pytest.mark.parametrize("operation", ["allreduce", "sendrecv", "alltoall"])
def test_communicators_that_do_not_block_measure_the_same(fakes: Fakes, tmp_path: Path, operation: str) -> None:
    script = f"""
        held = session(open_gpus())
        plan = dict(operation={operation!r}, batches=2, warmup=1, launch_iterations=3, launch_warmup=2)
        say(seconds=[collective(held, groups, **plan)[0] for groups in ([[0, 1], [3, 2]], [[0, 1, 2, 3]])])
        held.close()
    """
    plain = fakes.script(script, tmp_path)
    background = fakes.script(script, tmp_path, {"FAKE_NCCL_COMM_BLOCKING": "0", "NCCL_COMM_BLOCKING": "0"})

    assert background.said == plain.said
    assert Counter(background.log)["ncclCommGetAsyncError"] > Counter(plain.log)["ncclCommGetAsyncError"]


def test_a_start_in_the_background_that_fails_is_named(fakes: Fakes, tmp_path: Path) -> None:
    script = "say(**failure(session(open_gpus(3)).prepare, [[0, 1, 2]]))"
    said = fakes.script(script, tmp_path, {"NCCL_COMM_BLOCKING": "0"}, nccl_state=f"0,1={_SYSTEM}").said

    assert said["text"].startswith("rank 1 of 3: NCCL's start failed: ncclCommGetAsyncError(communicator): ")
    assert said["position"] == 1
