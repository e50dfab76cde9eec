"""Collective rounds on simulated GPUs: communicators, captured graphs, times, failures."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.native.fakes import Fakes

_PRECISION = 1e-6  # the driver gives single-precision milliseconds
_PAIRS = "[[0, 1], [2, 3]]"
_ALL = "[[0, 1, 2, 3]]"
_MEGABYTE = "count=250000, iterations=1"  # of float32, decimal


@pytest.mark.parametrize(
    ("title", "groups", "arguments", "settings", "microseconds"),
    [
        # 5 µs of latency, and 10 µs for each megabyte that crosses a link of 100 GB/s; four ranks send 2·3/4 of it.
        ("all-reduce on a pair", "[[0, 1]]", "", {}, [15]),
        ("all-reduce on four", _ALL, "", {}, [20]),
        ("two pairs at once, one slow", _PAIRS, "", {"rate": "100,2-3=50"}, [15, 25]),
        ("a slow link of the ring", _ALL, "", {"rate": "100,1-2=50"}, [35]),
        ("broadcast", _ALL, "operation='broadcast', root=2", {}, [15]),
        ("reduce", _ALL, "operation='reduce', root=1", {}, [15]),
        # Of the total, a quarter stays where it is.
        ("all-gather", _ALL, "operation='allgather'", {}, [12.5]),
        ("reduce-scatter", _ALL, "operation='reducescatter'", {}, [12.5]),
        ("all-to-all", _ALL, "operation='alltoall'", {}, [12.5]),
        ("gather", _ALL, "operation='gather', root=3", {}, [12.5]),
        ("scatter", _ALL, "operation='scatter', root=3", {}, [12.5]),
        ("send/recv round a ring", _ALL, "operation='sendrecv'", {}, [15]),
        ("all-gather in place", _ALL, "operation='allgather', in_place=True", {}, [12.5]),
        ("unverified", _ALL, "verify=False", {}, [20]),
        ("the slowest rank is the time", _ALL, "", {"lag": "0,2=3e-6"}, [23]),
        ("the time is one collective's, not the graph's", "[[0, 1]]", "iterations=8", {}, [15]),
    ],
)
def test_times_are_what_the_gpus_clock_says(
    fakes: Fakes, title: str, groups: str, arguments: str, settings: dict[str, object], microseconds: list[float]
) -> None:
    plan = f"dict({_MEGABYTE}) | dict({arguments})"
    script = (
        f"report(seconds=collective(session(open_gpus(buffer=1 << 20)), {groups}, batches=2, warmup=1, **({plan}))[0])"
    )
    seconds = fakes.script(script, **settings).reported["seconds"]

    assert len(seconds) == len(microseconds), title
    for group, expected in zip(seconds, microseconds, strict=True):
        assert group == pytest.approx([expected * 1e-6] * 2, rel=_PRECISION), title


def test_one_world_and_one_split_serve_all_groups_of_a_round(fakes: Fakes) -> None:
    script = f"""
        held = session(open_gpus())
        for groups in ({_PAIRS}, {_PAIRS}, [[0, 2], [1, 3]], [[0, 1]], {_ALL}):
            collective(held, groups)
        held.close()
    """
    done = fakes.script(script)

    assert len(done.lines("ncclCommInitRank")) == 4
    assert len(done.lines("split of 4 ranks")) == 2
    assert len(done.lines("+comm")) == len(done.lines("-comm")) == 4 + 4 + 4


def test_copies_are_timed_while_nccl_hangs_in_its_start(fakes: Fakes) -> None:
    """So NCCL has threads of its own: a machine whose NCCL does not start still shows what its links do."""
    script = """
        import threading, time
        gpus = open_gpus()
        threading.Thread(target=session(gpus).prepare, args=([[0, 1]],), daemon=True).start()
        time.sleep(0.2)
        report(links=len(copies(gpus, [(0, 1), (2, 3)])))
        sys.stdout.flush()
        os._exit(0)
    """
    assert fakes.script(script, slow="ncclCommInitRank=1000").reported == {"links": 2}


def test_groups_of_many_rounds_are_prepared_at_once_and_ahead(fakes: Fakes) -> None:
    script = f"""
        import threading
        held, rounds = session(open_gpus()), [{_PAIRS}, [[0, 2], [1, 3]], [[0, 3], [1, 2]], {_ALL}]
        ahead = threading.Thread(target=held.prepare, args=([group for round in rounds for group in round],))
        ahead.start(), ahead.join()
        print("prepared", file=open(os.environ["FAKE_LOG"], "a"))
        for groups in rounds:
            collective(held, groups)
    """
    log = fakes.script(script).log
    prepared = log.index("prepared")

    assert [line for line in log if line.startswith("split of")] == ["split of 4 ranks"] * 3
    assert not [line for line in log[prepared:] if line.startswith(("split", "+comm", "ncclCommInit"))]


def test_graphs_are_captured_once_and_launched_at_later_trials(fakes: Fakes) -> None:
    script = f"""
        held = session(open_gpus())
        for trial in range(3):
            collective(held, {_PAIRS}, batches=2, warmup=1)
        collective(held, {_PAIRS}, count=128)
    """
    calls = Counter(fakes.script(script).log)

    assert calls["cuStreamBeginCapture_v2"] == calls["cuGraphInstantiateWithFlags"] == 2 * 4
    assert calls["cuGraphLaunch"] == (3 * 3 + 1) * 4
    # Once to connect and four times in the graph, for each rank of each shape; two wake a trial without warming up.
    assert calls["ncclAllReduce"] == 2 * 4 * (1 + 4) + 4 * 2


def test_ranks_are_captured_by_their_own_threads_and_wait_for_no_rank_between_poison_and_check(fakes: Fakes) -> None:
    script = f"""
        held = session(open_gpus())
        collective(held, {_ALL})
        print("measured", file=open(os.environ["FAKE_LOG"], "a"))
        collective(held, {_ALL}, batches=2)
    """
    log = fakes.script(script).log
    trial = log[log.index("measured") + 1 :]

    # For each of two batches of each rank one poison, fresh data, blocking kernel, graph and check.
    assert Counter(line.split()[1] for line in trial if line.startswith("launch ")) == {
        "fill_elements": 2 * 4,
        "block_stream": 2 * 4,
        "verify_elements": 2 * 4,
    }
    assert Counter(trial)["cuMemsetD8Async"] == Counter(trial)["cuGraphLaunch"] == 2 * 4


def test_all_streams_wait_behind_one_blocking_kernel_for_one_graph_and_its_check(fakes: Fakes) -> None:
    done = fakes.script(f"collective(session(open_gpus()), {_PAIRS}, iterations=32)")
    opened = done.lines("unblock")

    # The graph's 32 collectives between two events, then the check.
    assert sorted(line.split(" gpu ")[1] for line in opened) == [f"{gpu} behind 35" for gpu in range(4)]
    assert done.log.index(opened[0]) > max(i for i, line in enumerate(done.log) if line == "cuGraphLaunch")


# The untimed launches: where none are asked for, one still connects the communicator's ranks.
@pytest.mark.parametrize(("warmup", "untimed"), [(3, 3), (0, 1)])
def test_the_launch_loop_calls_every_collective_from_every_rank(fakes: Fakes, warmup: int, untimed: int) -> None:
    plan = f"warmup=1, launch_iterations=10, launch_warmup={warmup}"
    done = fakes.script(f"report(seconds=collective(session(open_gpus()), {_PAIRS}, {plan})[1])")

    assert len(done.reported["seconds"]) == 2
    assert min(done.reported["seconds"]) > 0
    assert Counter(done.log)["ncclAllReduce"] == 4 * (1 + 4 + untimed + 10)


@pytest.mark.parametrize(
    ("groups", "ranks"), [(_PAIRS, 4), (_ALL, 4), ("[[3, 0, 2]]", 3)], ids=["pairs", "the world", "three of four"]
)
def test_the_launch_loop_runs_on_communicators_that_no_graph_holds(fakes: Fakes, groups: str, ranks: int) -> None:
    script = f"""
        held, plan = session(open_gpus()), dict(warmup=1, launch_iterations=10, launch_warmup=3)
        report(loops=[len(collective(held, {groups}, **plan)[1]) for trial in range(2)])
        held.close()
        del held; gc.collect()
    """
    done = fakes.script(script)

    assert done.lines("plain ") == []  # calls outside a graph on a communicator that one holds
    assert Counter(done.log)["ncclAllReduce"] == ranks * (1 + 4 + 2 * (3 + 10))
    assert len(done.lines("+comm")) == len(done.lines("-comm"))
    assert done.leaks() == []


def test_a_second_communicator_is_made_once_and_only_where_launches_are_requested(fakes: Fakes) -> None:
    script = f"""
        held = session(open_gpus())
        def trial(launches):
            print("trial", file=open(os.environ["FAKE_LOG"], "a"))
            rounds = ({_PAIRS}, {_ALL}, [[1, 0]])
            return [collective(held, groups, launch_iterations=launches)[0] for groups in rounds]
        seconds = [trial(launches) for launches in (0, 5, 0, 5)]
        report(same=all(one == seconds[0] for one in seconds))
        held.close()
    """
    done = fakes.script(script)
    trials = [trial.splitlines() for trial in "\n".join(done.log).split("trial\n")[1:]]

    assert done.reported["same"]
    # The pairs and the turned one are split from the world, and for launches a second one of the world's ranks.
    assert [trial.count("split of 4 ranks") for trial in trials] == [2, 3, 0, 0]
    assert [sum(line.startswith("+comm") for line in trial) for trial in trials] == [4 + 4 + 2, 4 + 4 + 2, 0, 0]
    assert len(done.lines("+comm")) == len(done.lines("-comm"))


@pytest.mark.parametrize(
    ("title", "groups", "changes", "waking_bytes", "full_bytes"),
    [
        ("a small message is called whole", "[[0, 1]]", "count=256", [1024], 1024),
        ("of a larger one 16 MiB", "[[0, 1]]", "count=4194306", [16777216], 16777224),
        ("fewer elements than ranks", _ALL, "count=1", [4], 4),
    ],
)
def test_a_trial_without_untimed_batches_begins_with_two_small_calls(
    fakes: Fakes, title: str, groups: str, changes: str, waking_bytes: list[int], full_bytes: int
) -> None:
    script = f"""
        held, plan = session(open_gpus(5, buffer=17 << 20)), dict({changes})
        def trial(warmup):
            print("trial", file=open(os.environ["FAKE_LOG"], "a"))
            return collect(held, {groups}, iterations=1, warmup=warmup, **plan)
        report(coverage=[coverage(trial(warmup)) for warmup in (0, 0, 1)])
    """
    done = fakes.script(script, gpus=5)
    trials = [
        [int(line.split()[-1]) for line in trial.splitlines() if line.startswith("collective ")]
        for trial in "\n".join(done.log).split("trial\n")[1:]
    ]
    full_call = [full_bytes] * len(waking_bytes)  # call, by each group

    assert trials[0][: len(full_call)] == full_call, title  # connects
    for trial_calls in (trials[0][len(full_call) :], trials[1]):
        assert sorted(trial_calls[: 2 * len(full_call)]) == sorted(waking_bytes * 2), title
        assert trial_calls[2 * len(full_call) :] == full_call, title
    assert trials[2] == full_call * 2, title
    # One message of a batch, or of two, and no other, all of it compared.
    received = done.reported["coverage"][0]
    assert all(verified == moved > 0 for verified, moved in received), title
    assert done.reported["coverage"] == [
        received,
        received,
        [[2 * bytes_ for bytes_ in group] for group in received],
    ], title


# The first call connects; where messages share a slot, the second is compared; two wake, and the next two are the
# graph's.
@pytest.mark.parametrize(("slots", "in_place", "compared"), [(2, False, [4, 5]), (1, True, [2])])
def test_calls_that_wake_links_are_not_compared_and_corrupt_nothing(
    fakes: Fakes, slots: int, in_place: bool, compared: list[int]
) -> None:
    script = f"""
        found = []
        for nth in range(1, 7):
            child = os.fork()
            if child == 0:
                os.environ["FAKE_CORRUPT_COLLECTIVE"] = f"{{nth}}:9:0"
                held = session(open_gpus(2, buffer={slots} * 1024))
                run = dict(iterations=2, in_place={in_place})
                os._exit(3 if failure(collect, held, [[0, 1]], **run)["kind"] == "DataError" else 0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3:
                found.append(nth)
        report(found=found)
    """
    assert fakes.script(script).reported["found"] == compared


def test_a_collective_that_never_ends_is_given_up_at_its_deadline(fakes: Fakes) -> None:
    script = "report(**failure(collective, session(open_gpus(2)), [[0, 1]], deadline=12.5)); gc.collect()"
    # Each reading of the clock takes a second, so that the deadline passes after some readings.
    clock = {"LD_PRELOAD": str(fakes.folder / "libclock.so")}
    done = fakes.script(script, clock, hang="allreduce")

    assert done.reported["kind"] == "HangError"
    assert done.reported["text"] == f"GPU {done.reported['position']} did not finish its work in 12.5 s"
    assert done.reported["position"] in {0, 1}
    assert done.leaks() == []


@pytest.mark.parametrize(
    ("title", "fail"),
    [
        ("its graph is not launched", "cuGraphLaunch:719:1"),
        ("the end is not recorded", "cuEventRecord:719:4"),
        ("it is refused before the ranks connect", "ncclAllReduce:2:1"),
        ("its check is not launched", "cuLaunchKernel:719:%d"),
    ],
)
def test_the_others_do_not_wait_for_a_rank_that_failed(fakes: Fakes, title: str, fail: str) -> None:
    # A rank that waits for a collective which another rank never calls waits for ever, until the deadline.
    script = """
        held = session(open_gpus(3))
        report(**failure(collective, held, [[2, 1]], deadline=1e9))
        del held; gc.collect()
    """
    # Three fills of the copies' pattern, then a fill, a blocking kernel and a check for each of two ranks.
    done = fakes.script(script, fail=fail.replace("%d", str(3 + 6)))

    assert done.reported["kind"] in {"CudaError", "NcclError"}, title
    assert done.reported["position"] in {1, 2}, title
    assert done.leaks() == [], title


def test_a_rank_that_failed_in_the_background_is_reported(fakes: Fakes) -> None:
    script = "report(**failure(collective, session(open_gpus()), [[0, 1]]))"
    reported = fakes.script(script, nccl_state="0,1=6").reported

    assert reported["kind"] == "NcclError"
    assert reported["text"].startswith("rank 1 of 2: failed in the background: remote process exited or network error")
    assert reported["position"] == 1


@pytest.mark.parametrize(
    ("title", "fail"),
    [
        ("the collective refuses to be captured", "ncclSend:2:3"),
        ("a group does not end in a capture", "ncclGroupEnd:2:4"),
        ("a capture does not begin", "cuStreamBeginCapture_v2:1:2"),
        ("a graph is not made", "cuGraphInstantiateWithFlags:719:2"),
    ],
)
def test_a_failure_inside_a_capture_leaves_streams_and_thread_usable(fakes: Fakes, title: str, fail: str) -> None:
    script = """
    held = session(open_gpus(2))
    first = failure(collective, held, [[0, 1]], "sendrecv")["kind"]
    report(first=first, then=failure(collective, held, [[0, 1]], "sendrecv"))
    """
    reported = fakes.script(script, fail=fail).reported

    assert reported["first"] in {"NcclError", "CudaError"}, title
    assert reported["then"] == {"kind": "none"}, title
