"""A rank that fails is reported by its number and NCCL's error, never as a hang of the ranks that wait for it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.native.fakes import Fakes

# No test waits this long: every failure here ends by itself.
_FOR_EVER = "deadline=1e9"
_SYSTEM, _REMOTE = 2, 6
_SYSTEM_WORDS = "unhandled system error"


@pytest.mark.parametrize(
    ("title", "nth", "changes"),
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
@pytest.mark.parametrize(("rank", "error_of_others"), [(0, 0), (2, _REMOTE)], ids=["others wait", "others lose it"])
def test_a_rank_that_fails_mid_collective_is_named(
    fakes: Fakes, title: str, nth: int, changes: str, rank: int, error_of_others: int
) -> None:
    script = f"""
        held = session(open_gpus(3))
        report(**failure(collective, held, [[1, 2, 0]], {_FOR_EVER}, **dict({changes})))
        held.close()
        del held; gc.collect()
    """
    done = fakes.script(script, **{"break": f"{nth}:{rank}:{_SYSTEM}:{error_of_others}"})

    assert done.reported["kind"] == "NcclError", title
    assert done.reported["text"].startswith(f"rank {rank} of 3: failed in the background: {_SYSTEM_WORDS}"), title
    assert done.reported["position"] == [1, 2, 0][rank], title
    assert done.leaks() == [], title  # the other threads returned, and streams ended
    assert len(done.lines("+comm")) == len(done.lines("-comm")), title


@pytest.mark.parametrize(
    ("title", "nth", "launches", "splits"),
    [
        ("in a graph", 7, 0, 1),
        ("in a graph before the launch loop", 7, 3, 2),
        # Of each pair one that connects, two that wake and four in the graph; then one that connects and the loop.
        ("in the launch loop", 2 * (1 + 2 + 4 + 1) + 1, 3, 2),
    ],
)
def test_communicators_that_lost_a_rank_are_aborted_and_new_ones_measure(
    fakes: Fakes, title: str, nth: int, launches: int, splits: int
) -> None:
    script = f"""
        held, plan = session(open_gpus()), dict(launch_iterations={launches})
        failed = failure(collective, held, [[0, 1], [2, 3]], {_FOR_EVER}, **plan)
        then, loops = collective(held, [[0, 1], [2, 3]], **plan)
        report(kind=failed["kind"], then=then, loops=loops)
        held.close()
    """
    done = fakes.script(script, **{"break": f"{nth}:1:{_SYSTEM}"})

    assert done.reported["kind"] == "NcclError", title
    assert [len(batches) for batches in done.reported["then"]] == [1, 1], title
    assert len(done.reported["loops"]) == (2 if launches else 0), title
    assert Counter(done.log)["split of 4 ranks"] == 2 * splits, title
    assert len(done.lines("+comm")) == len(done.lines("-comm")), title


def test_a_rank_of_another_process_that_is_lost_is_reported_at_once(fakes: Fakes) -> None:
    # This process's rank is 0; it does not see the errors of other processes' communicators.
    script = f"""
        import threading
        nccl = native.Nccl(os.environ["NCCL"])
        unique_id, results = nccl.unique_id(), [None, None]
        gpus = [native.Gpus([rank], PTX) for rank in range(2)]
        def run(rank):
            gpus[rank].allocate(65536)
            held = native.Collectives(gpus[rank], nccl, rank, 2, unique_id)
            results[rank] = failure(collective, held, [[0, 1]], {_FOR_EVER})
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        report(results=results)
    """
    reported = fakes.script(script, **{"break": f"4:1:{_SYSTEM}:{_REMOTE}"}).reported["results"]

    assert [result["kind"] for result in reported] == ["NcclError", "NcclError"]
    assert [result["code"] for result in reported] == [_REMOTE, _SYSTEM]
    assert reported[1]["text"].startswith(f"rank 1 of 2: failed in the background: {_SYSTEM_WORDS}")


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    ("function", "groups", "doing"),
    [
        ("ncclCommInitRank", "[[0, 1, 2]]", "NCCL's start"),
        ("ncclCommSplit", "[[0, 1]]", "a split of NCCL's world"),
    ],
)
def test_a_rank_that_fails_at_the_start_is_named_while_others_wait_for_it(
    fakes: Fakes, function: str, groups: str, doing: str, nth: int
) -> None:
    script = f"""
        held = session(open_gpus(3))
        failed = failure(held.prepare, {groups})
        report(**failed, again=failure(held.prepare, {groups})["text"])
        del held; gc.collect()
    """
    done = fakes.script(script, fail=f"{function}:{_SYSTEM}:{nth}")

    assert done.reported["kind"] == "NcclError"
    rank = done.reported["position"]
    assert done.reported["text"].startswith(f"rank {rank} of 3: {doing} failed: {function}(")
    assert f": {_SYSTEM_WORDS} (the test wants this call to fail) at " in done.reported["text"]
    assert done.leaks() == []
    assert "end the process" in done.reported["again"]


def test_a_call_that_waits_for_a_failed_rank_does_not_hold_up_the_failure(fakes: Fakes) -> None:
    # Ranks connect in their first collective: the others' calls wait for the rank whose call has failed.
    script = f"""
        held = session(open_gpus(3))
        failed = failure(collective, held, [[0, 1, 2]], {_FOR_EVER})
        report(**failed, again=failure(collective, held, [[0, 1, 2]])["text"])
        held.close()
        del held; gc.collect()
    """
    done = fakes.script(script, fail=f"ncclAllReduce:{_SYSTEM}:1")

    assert done.reported["kind"] == "NcclError"
    assert done.reported["text"].startswith("ncclAllReduce(")
    assert done.reported["position"] in (0, 1, 2)
    assert "end the process" in done.reported["again"]


@pytest.mark.parametrize("operation", ["allreduce", "sendrecv", "alltoall"])
def test_communicators_that_do_not_block_measure_the_same(fakes: Fakes, operation: str) -> None:
    script = f"""
        held = session(open_gpus())
        plan = dict(operation={operation!r}, batches=2, warmup=1, launch_iterations=3, launch_warmup=2)
        report(seconds=[collective(held, groups, **plan)[0] for groups in ([[0, 1], [3, 2]], [[0, 1, 2, 3]])])
        held.close()
    """
    plain = fakes.script(script)
    background = fakes.script(script, {"FAKE_NCCL_COMM_BLOCKING": "0", "NCCL_COMM_BLOCKING": "0"})

    assert background.reported == plain.reported
    assert Counter(background.log)["ncclCommGetAsyncError"] > Counter(plain.log)["ncclCommGetAsyncError"]


def test_a_start_in_the_background_that_fails_is_named(fakes: Fakes) -> None:
    script = "report(**failure(session(open_gpus(3)).prepare, [[0, 1, 2]]))"
    reported = fakes.script(script, {"NCCL_COMM_BLOCKING": "0"}, nccl_state=f"0,1={_SYSTEM}").reported

    assert reported["text"].startswith("rank 1 of 3: NCCL's start failed: ncclCommGetAsyncError(communicator): ")
    assert reported["position"] == 1
