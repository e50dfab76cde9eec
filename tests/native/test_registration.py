"""Collectives on registered memory: what is registered, where, in which order, and when it is released."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.native.fakes import Fakes, Outcome, build_without
from tests.native.test_worlds import _RANKS

_MADE = {"buffer": "+registered", "window": "+window"}
_KINDS = pytest.mark.parametrize("kind", ["buffer", "window"])


def _registered(done: Outcome, kind: str) -> dict[str, list[str]]:
    """Return the memory that was registered, by communicator, in order."""
    memory_by_communicator: dict[str, list[str]] = {}
    for line in done.lines(_MADE[kind] + " "):
        _, memory, _, communicator = line.split()
        memory_by_communicator.setdefault(communicator, []).append(memory)
    return memory_by_communicator


@_KINDS
@pytest.mark.parametrize("launches", ["launch_iterations=3", "single_launches=3"])
def test_send_and_target_are_registered_once_with_each_communicator_that_is_used(
    fakes: Fakes, kind: str, launches: str
) -> None:
    script = f"""
        held = session(open_gpus())
        for operation in ("allreduce", "allgather", "allreduce"):
            collective(held, [[0, 1], [2, 3]], operation, registration="{kind}", {launches}, launch_warmup=1)
        held.close()
    """
    done = fakes.script(script)
    memory_by_communicator = _registered(done, kind)

    # A rank has a communicator for graphs and one for launches: each has the same two buffers, in the same order.
    assert Counter(map(tuple, memory_by_communicator.values())) == dict.fromkeys(
        {tuple(memory) for memory in memory_by_communicator.values()}, 2
    )
    assert len({memory for pair in memory_by_communicator.values() for memory in pair}) == 2 * 4
    assert len(done.lines("+ncclmemory")) == len(done.lines("-ncclmemory")) == 2 * 4
    assert len(done.lines(_MADE[kind].replace("+", "-"))) == 2 * 2 * 4
    last_dropped = max(i for i, line in enumerate(done.log) if line.startswith(_MADE[kind].replace("+", "-")))
    assert last_dropped < min(i for i, line in enumerate(done.log) if line.startswith(("-comm", "-ncclmemory")))
    assert done.leaks() == []


def test_ordinary_collectives_register_nothing(fakes: Fakes) -> None:
    done = fakes.script("collective(session(open_gpus()), [[0, 1]], launch_iterations=1)")

    assert not [line for line in done.log if "egister" in line or "ncclMem" in line]


@pytest.mark.parametrize("blocking", ["1", "0"])
def test_the_three_registrations_share_one_communicator(fakes: Fakes, blocking: str) -> None:
    script = """
        held = session(open_gpus(2))
        for kind in ("none", "buffer", "window", "none", "window", "buffer"):
            for operation in OPERATIONS:
                for in_place in (False, True):
                    covered = collect(held, [[0, 1]], operation, registration=kind, in_place=in_place, root=1).coverage
                    assert covered[0].moved > 0
        held.close()
    """
    done = fakes.script(script, {"NCCL_COMM_BLOCKING": blocking})

    assert len(done.lines("+ncclmemory")) == 2 * 2 * 2
    assert len(_registered(done, "buffer")) == len(_registered(done, "window")) == 2
    collectives = Counter(line for line in done.log if line.endswith(" collective"))
    assert collectives["registered collective"] == collectives["window collective"] > 0


@_KINDS
def test_registered_data_is_checked_in_registered_memory(fakes: Fakes, kind: str) -> None:
    script = f'report(**failure(collective, session(open_gpus(2)), [[0, 1]], registration="{kind}"))'
    reported = fakes.script(script, corrupt_collective="5:9:1").reported

    assert (reported["kind"], reported["rank"], reported["offset"]) == ("DataError", 1, 36)


def test_ranks_in_separate_processes_register_in_the_same_order_whatever_ran_before(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    for groups in ([[0, 1]], [[0, 1], [2, 3]], [[1, 2]], [[0, 3], [1, 2]], [[0, 1, 2, 3]]):
        for kind in ("none", "window", "buffer"):
            collective(held, groups, registration=kind, launch_iterations=2)
    held.close()
    return "done"
ranks(4, body)
"""
    done = fakes.script(_RANKS + script, apart=1)

    assert done.reported["results"] == ["done"] * 4
    assert "window collective" in done.log
    assert "offsets differ" not in done.log


def test_the_fake_detects_offsets_that_differ(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    if rank == 0:
        collective(held, [[0]], "broadcast")
    collective(held, [[0, 1]], registration="window")
    return "done"
"""
    # In a session of its own, because both ranks must take part in a split of the world.
    script = script.replace('held, [[0]], "broadcast"', 'other, [[0]], "broadcast"').replace(
        "    if rank", "    other = session(every[rank])\n    if rank"
    )
    ranks = _RANKS.replace("    def run(rank):", "    global every\n    every = gpus\n    def run(rank):")
    done = fakes.script(ranks + script + "ranks(2, body)\n")

    assert "offsets differ" in done.log


@pytest.mark.parametrize(("kind", "missing"), [("buffer", "ncclCommRegister"), ("window", "ncclCommWindowRegister")])
def test_an_nccl_that_is_too_old_is_named_with_what_it_lacks(
    fakes: Fakes, tmp_path: Path, kind: str, missing: str
) -> None:
    build_without(fakes, tmp_path, "libnccl.so.2", [missing])
    script = f"""
        held = session(open_gpus(2))
        ordinary = collective(held, [[0, 1]])
        report(**failure(collective, held, [[0, 1]], registration="{kind}"))
    """
    extra = {"NCCL": str(tmp_path / "libnccl.so.2"), "LD_LIBRARY_PATH": str(tmp_path)}
    reported = fakes.script(script, extra).reported

    assert reported["kind"] == "LibraryError"
    assert f"is too old: it has no function {missing}" in reported["text"]


@pytest.mark.parametrize(
    ("title", "kind", "variables", "settings", "reason"),
    [
        ("a buffer", "buffer", {"NCCL_LOCAL_REGISTER": "0"}, {}, "Register registered nothing: NCCL_LOCAL_REGISTER=0"),
        (
            "a window before 2.29",
            "window",
            {"NCCL_LOCAL_REGISTER": "0"},
            {"symmetric": 0},
            "registered nothing: NCCL_LOCAL_REGISTER=0",
        ),
        (
            "a window since 2.29",
            "window",
            {},
            {"symmetric": 0, "nccl": 22902},
            "made no window: NCCL has no symmetric memory here, because not all of these GPUs have P2P",
        ),
    ],
)
def test_an_nccl_that_registers_nothing_is_an_error(
    fakes: Fakes, title: str, kind: str, variables: dict[str, str], settings: dict[str, int], reason: str
) -> None:
    script = f'report(**failure(collective, session(open_gpus(2)), [[0, 1]], registration="{kind}"))'
    reported = fakes.script(script, variables, **settings).reported

    assert reported["kind"] == "NcclError", title
    assert reason in reported["text"], title
    assert "GIN" not in reported["text"], title  # one process has one host


def test_a_window_that_nccl_cannot_make_across_processes_may_lack_gin(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    return failure(collective, held, [[0, 1]], registration="window")["text"]
ranks(2, body)
"""
    texts = fakes.script(_RANKS + script, apart=1, symmetric=0, nccl=22902).reported["results"]

    assert len(texts) == 2
    assert all("hosts are connected without GIN" in text for text in texts)


def test_before_2_29_a_window_that_nccl_cannot_make_is_a_registered_buffer(fakes: Fakes) -> None:
    script = """
        held = session(open_gpus(2))
        collective(held, [[0, 1]], registration="window")
        held.close()
    """
    done = fakes.script(script, symmetric=0)

    assert "registered collective" in done.log
    assert "window collective" not in done.log


@pytest.mark.parametrize("call", ["ncclMemAlloc:2:3", "ncclCommRegister:2:2", "ncclCommWindowRegister:2:2"])
def test_a_call_that_fails_costs_the_communicators_and_leaks_nothing(fakes: Fakes, call: str) -> None:
    kind = "window" if "Window" in call else "buffer"
    script = f"""
        gpus = open_gpus(2)
        held = session(gpus)
        failed = failure(collective, held, [[0, 1]], registration="{kind}")
        held.close()
        report(**failed)
        del held, gpus; gc.collect()
    """
    done = fakes.script(script, {"NCCL_COMM_BLOCKING": "0"}, fail=call)

    assert done.reported["kind"] == "NcclError"
    assert done.reported["position"] in (0, 1)
    assert call.partition(":")[0] in done.reported["text"]
    assert done.leaks() == []
    assert len(done.lines("+comm")) == len(done.lines("-comm"))
