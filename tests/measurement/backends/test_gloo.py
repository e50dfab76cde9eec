"""Gloo collectives between real processes. Two or three ranks and bystanders share whatever cores there are.

Tests share one world of four ranks; those that break their world make their own.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from collbench.measurement.backends import child_process
from collbench.measurement.backends.host import DTYPES, GlooWorld
from collbench.measurement.backends.protocol import Step
from collbench.model.errors import BackendError, DataCorruption, MachineError, UsageError
from collbench.model.operations import COLLECTIVES, InPlace, Operation, Skew, SkewKind, Variant, Work
from collbench.model.units import DTYPE_BYTES

ALLREDUCE, BROADCAST = Operation.ALLREDUCE, Operation.BROADCAST
ALLOWED_CORES = sorted(os.sched_getaffinity(0))
# More ranks than cores is slow but correct.
CORES = tuple(ALLOWED_CORES[rank % len(ALLOWED_CORES)] for rank in range(4))
pytestmark = pytest.mark.usefixtures("loaded_torch")


def step(operation: Operation | Work, groups: tuple[tuple[int, ...], ...], size: int, **changes: Any) -> Step:
    work = operation if isinstance(operation, Work) else Work(operation)
    return Step(work, groups, size, **({"iterations": 3, "batches": 2, "warmup": 1} | changes))


@pytest.fixture(scope="module")
def world(loaded_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooWorld]:
    """Four ranks that have all begun, until the module ends; they leave no file behind."""
    folder = tmp_path_factory.mktemp("world")
    gloo_world = GlooWorld(CORES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        gloo_world.time(step(ALLREDUCE, ((0, 1, 2, 3),), 8))
    yield gloo_world
    gloo_world.close()
    gloo_world.close()
    assert list(folder.iterdir()) == []


@pytest.fixture
def scratch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder that holds every temporary file of the test, so that leftovers show."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_by_every_reduction_and_broadcast_from_each_root_are_exact(world: GlooWorld, dtype: str) -> None:
    for redop in ("sum", "prod", "min", "max"):
        timing = world.time(step(ALLREDUCE, ((0, 1, 2),), 4097 * DTYPE_BYTES[dtype], dtype=dtype, redop=redop))
        assert len(timing.seconds[0]) == 2
        assert all(seconds > 0 for seconds in timing.seconds[0])
    for root in (0, 1):
        timing = world.time(step(BROADCAST, ((2, 0),), 7 * DTYPE_BYTES[dtype], dtype=dtype, root=root))
        assert len(timing.seconds[0]) == 2


OTHER_COLLECTIVES = [operation for operation in COLLECTIVES if operation not in (ALLREDUCE, BROADCAST)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("operation", OTHER_COLLECTIVES)
def test_the_other_collectives_are_exact_in_place_and_out_of_place(
    world: GlooWorld, operation: Operation, dtype: str
) -> None:
    size = 3 * 1024 * DTYPE_BYTES[dtype]
    undefined = operation.collective.in_place is InPlace.UNDEFINED
    for variant in (Variant.PLAIN,) if undefined else (Variant.PLAIN, Variant.IN_PLACE):
        for redop in ("sum", "prod", "max") if operation.reduces else ("sum",):
            collective = step(Work(operation, variant), ((0, 1, 2),), size, dtype=dtype, redop=redop, root=2)
            assert len(world.time(collective).seconds[0]) == 2


@pytest.mark.parametrize("group", [(0, 1, 2), (2, 0, 1)])
def test_blocks_of_their_own_sizes_are_exact_and_may_be_empty(world: GlooWorld, group: tuple[int, ...]) -> None:
    skew = Skew(SkewKind.MATRIX, matrix=((0, 1600, 48), (16, 0, 0), (0, 32, 160)))
    alltoallv = step(Work(Operation.ALLTOALLV, skew=skew), (group,), skew.own_bytes or 0, dtype="float64")
    assert alltoallv.blocks == skew.matrix
    assert len(world.time(alltoallv).seconds[0]) == 2


@pytest.mark.parametrize("operation", OTHER_COLLECTIVES)
def test_ranks_in_any_order_have_their_own_blocks_and_root(world: GlooWorld, operation: Operation) -> None:
    for group in ((2, 0), (1, 2, 0)):
        assert world.time(step(operation, (group,), len(group) * 512, root=1)).seconds


@pytest.mark.parametrize("size", [1, 3, 7, 4097, 2**20 + 1])
def test_odd_sizes_are_exact(world: GlooWorld, size: int) -> None:
    for operation in (ALLREDUCE, BROADCAST):
        assert world.time(step(operation, ((0, 1),), size, dtype="uint8")).launch_seconds == ()


def test_several_groups_give_a_row_each_and_bystanders_none(world: GlooWorld) -> None:
    two_groups = world.time(step(ALLREDUCE, ((0, 3), (2, 1)), 4096, batches=4))
    one_group = world.time(step(ALLREDUCE, ((3, 1),), 4096, batches=1))
    assert [len(row) for row in two_groups.seconds] == [4, 4]
    assert [len(row) for row in one_group.seconds] == [1]


@pytest.mark.parametrize(
    ("title", "unsupported", "message"),
    [
        (
            "all-to-all in place",
            step(Work(Operation.ALLTOALL, Variant.IN_PLACE), ((0, 1),), 8),
            "alltoall out of place only",
        ),
        (
            "a block and a half",
            step(Operation.GATHER, ((0, 1, 2),), 16),
            "16 B is not a whole block of float32 for each of 3",
        ),
        ("a copy", step(Operation.CPU_WRITE, ((0, 1),), 8), "not cpu-write"),
        ("an average", step(ALLREDUCE, ((0, 1),), 8, redop="avg"), "by avg: choose one of sum, prod, min, max"),
        ("less than an element", step(BROADCAST, ((0, 1),), 1, dtype="float64"), "multiple of 8 B"),
    ],
)
def test_what_gloo_cannot_do_is_refused_before_a_process_starts(title: str, unsupported: Step, message: str) -> None:
    idle = GlooWorld(CORES)
    with pytest.raises(UsageError, match=message):
        idle.time(unsupported)
    assert idle._workers is None, title


def test_without_torch_the_user_reads_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="pip install torch"):
        GlooWorld(CORES).time(step(ALLREDUCE, ((0, 1),), 8))


def processes(world: GlooWorld) -> tuple[int, ...]:
    assert world._workers is not None
    return world._workers.process_ids


def test_a_killed_worker_is_named_and_the_next_call_starts_afresh(scratch: pathlib.Path) -> None:
    fragile = GlooWorld(CORES[:2], timeout_s=30)
    fragile.time(step(ALLREDUCE, ((0, 1),), 8))
    victims = processes(fragile)
    os.kill(victims[1], signal.SIGKILL)
    with pytest.raises(BackendError, match=rf"^gloo worker on CPU{CORES[1]}: crash: .* \(signal 9\)"):
        fragile.time(step(ALLREDUCE, ((0, 1),), 8))
    for pid in victims:
        with pytest.raises(ProcessLookupError):  # reaped too: a zombie could still be signalled
            os.kill(pid, 0)
    assert list(scratch.iterdir()) == []
    assert fragile.time(step(BROADCAST, ((0, 1),), 8)).seconds
    fragile.close()


def test_a_hung_worker_is_an_error_and_the_next_call_starts_others(scratch: pathlib.Path) -> None:
    fragile = GlooWorld(CORES[:2])
    fragile.time(step(ALLREDUCE, ((0, 1),), 8))
    fragile._timeout_s = 0.5
    os.kill(processes(fragile)[0], signal.SIGTSTP)  # of a fork: tests/loaded/stand_in.py
    with pytest.raises(BackendError, match=rf"^gloo worker on CPU{CORES[0]}.*: hang: no answer"):
        fragile.time(step(ALLREDUCE, ((0, 1),), 8))
    assert list(scratch.iterdir()) == []
    assert not processes(fragile), "the next call starts others"
    fragile.close()


def test_a_worker_that_cannot_start_says_why(scratch: pathlib.Path) -> None:
    with pytest.raises(BackendError, match=r"CPU1023: crash: .* \(exit status 1\): OSError"):
        GlooWorld((CORES[0], 1023)).time(step(ALLREDUCE, ((0, 1),), 8))
    assert list(scratch.iterdir()) == []


def test_workers_leave_when_their_parent_closes_the_pipe(world: GlooWorld) -> None:
    world.time(step(ALLREDUCE, ((0, 1),), 8))
    assert world._workers is not None
    workers = list(world._workers._children.values())
    for worker in workers:
        worker.process.send_signal(signal.SIGINT)  # ignored: it is the parent's to handle
        worker.pipe.close()  # as the kernel does for a parent that was killed
    assert [worker.process.wait(timeout=30) for worker in workers] == [0, 0, 0, 0]
    world.close()  # the next test starts other workers


@pytest.mark.parametrize("right", [1, 3, 5])
@pytest.mark.parametrize("operation", [BROADCAST, Operation.ALLGATHER, Operation.ALLTOALL])
def test_earlier_results_are_seen_in_the_last_batch(
    operation: Operation, right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank and one slot; so many results are right, then each is the one before."""
    from collbench.measurement.backends import gloo_worker

    kept: list[Any] = []

    def call(sent: Any, received: Any) -> None:
        kept.append(sent.clone())  # what one rank receives
        received.copy_(kept[-1 if len(kept) <= right else -2])

    monkeypatch.setattr(gloo_worker, "call_of", lambda *_, **__: call)
    for name in ("new_group", "barrier"):
        monkeypatch.setattr(f"torch.distributed.{name}", lambda *_, **__: None)
    rank = gloo_worker.GlooRank(0)
    plan = step(operation, ((3,),), 4096, iterations=1)
    # Each trial compares its first and its last call of four.
    for seen in (right < 4, True):
        with pytest.raises(DataCorruption) if seen else contextlib.nullcontext() as caught:
            rank.time(plan, (3,))
        if caught is not None:
            wrong = caught.value.wrong
            assert wrong is not None
            assert (wrong.work.operation, wrong.size_bytes, wrong.members) == (operation, 4096, (3,))
            assert wrong.offset is not None
            assert wrong.expected != wrong.found


def test_the_users_gloo_interface_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert child_process.worker_environment()["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert child_process.worker_environment()["GLOO_SOCKET_IFNAME"] == "eth7"
