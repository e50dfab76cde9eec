"""The worker of overlap, for real: gloo between processes on cores, what it delivers, and how its processes end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from collbench.measurement.backends import factory
from collbench.model.errors import BackendError, Cause, MachineError
from collbench.model.operations import Operation, Work
from collbench.overlaps.measure import OverlapWorld, SimOverlap, overlapped, unit_seconds
from collbench.overlaps.results import OPERATIONS, Compute, ComputeKind, Load, Overlap

GEMM, COPY = Compute(ComputeKind.GEMM, 64), Compute(ComputeKind.MEMORY, 1)
CONCURRENT = Load(collective_chunks=3, calls=2, compute_chunks=4, units=1, delay_s=0.0)
CORES = sorted(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.usefixtures("loaded_torch"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent"),
]


@pytest.fixture(scope="module")
def world(loaded_torch: None) -> Iterator[OverlapWorld]:
    overlap_world = OverlapWorld("host", [CORES[rank % len(CORES)] for rank in range(2)])
    try:
        assert overlap_world.join().torch == version("torch")
        yield overlap_world
    finally:
        overlap_world.close()


def test_a_workers_first_message_is_read_without_torch() -> None:
    """The parent never loads torch: that would take it as long as all of its workers."""
    from collbench.measurement.backends.torch_rank import joined

    assert type(joined("host").torch) is str
    program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); print('torch' in sys.modules)"
    pickled = pickle.dumps(joined("host"))
    done = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)
    assert done.stdout == b"False\n"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_collective_is_verified_while_compute_runs(world: OverlapWorld, operation: Operation) -> None:
    world.allocate(Overlap(Work(operation), (0, 1), 2**16, GEMM))
    world.warm()
    for times in world.run(CONCURRENT):
        assert len(times.collective) == 3
        assert len(times.compute) == 4
        assert times.begins == ()
        assert list(times.collective) == sorted(times.collective)
        assert times.collective[0] > 0
        assert (times.queued, times.wrong, times.wrong_compute) == (True, 0, 0)


def test_an_isolated_load_has_no_times_of_the_other_kind(world: OverlapWorld) -> None:
    world.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**16, COPY))
    world.warm()
    for times in world.run(Load(2, 1, 0, 1, 0.0)):
        assert (len(times.collective), times.compute, times.wrong, times.wrong_compute) == (2, (), 0, None)
    for times in world.run(Load(0, 1, 2, 1, 0.0)):
        assert (times.collective, len(times.compute), times.wrong, times.wrong_compute) == ((), 2, None, 0)


def test_a_call_begins_after_its_idle_time(world: OverlapWorld) -> None:
    world.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**12, GEMM))
    world.warm()
    idle_times = (0.05, 0.0, 0.02)
    for times in world.run(Load(3, 1, 2, 1, 0.0, idle_times)):
        assert len(times.compute) == 6  # two chunks a round, which begins when the one before has ended
        round_begins = (0.0, *(max(times.collective[n], times.compute[2 * n + 1]) for n in range(2)))
        assert all(
            begin - end >= idle_s for begin, end, idle_s in zip(times.begins, round_begins, idle_times, strict=True)
        )
        assert all(end > begin for begin, end in zip(times.begins, times.collective, strict=True))


def rank_alone(monkeypatch: pytest.MonkeyPatch, call: Any = None) -> Any:
    """Return a rank without others on a core, whose calls are this one."""
    from collbench.overlaps import worker as overlap_worker
    from collbench.overlaps.streams import Core

    monkeypatch.setattr(Core, "group", lambda *_, **__: object())
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(overlap_worker, "call_of", lambda *_: call)
    return overlap_worker.Rank(0, 1, Core())


@pytest.mark.parametrize(
    ("operation", "size_bytes", "stale"),
    [
        *((operation, 2**16, "first") for operation in OPERATIONS),  # messages of their own
        *((Operation.ALLREDUCE, size, "previous") for size in (2**16, 2**23)),
        (Operation.ALLREDUCE, 2**23, "first"),  # which share one message
    ],
)
def test_earlier_results_are_wrong_in_every_load(
    operation: Operation, size_bytes: int, stale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, whose library delivers in each buffer what its first call did, or the one before."""
    kept: dict[int, Any] = {}

    def call(sent, received):  # type: ignore[no-untyped-def]
        fresh = sent.clone()  # what one rank receives
        received.copy_(kept.get(received.data_ptr(), fresh))
        if stale == "previous" or received.data_ptr() not in kept:
            kept[received.data_ptr()] = fresh

    rank = rank_alone(monkeypatch, call)
    rank.allocate(Overlap(Work(operation), (0, 1), size_bytes, GEMM))
    rank.warm()
    once, often = Load(1, 1, 1, 1, 0.0), Load(2, 1, 1, 1, 0.0)
    wrong = [(rank.run(load).wrong or 0) / (size_bytes // 2) for load in (once, often, once)]
    # With messages of their own, the second call's is right: it is the first there. Where they share one, a call after
    # them is compared, too; of the last result before, the second has the right one.
    twice = size_bytes > 2**22 and stale == "first"
    for found, times in zip(wrong, (1, 1 + twice, 1), strict=True):
        assert 0.8 * times < found <= times  # random elements of two results may be equal


def test_a_rank_without_room_for_a_point_still_sends_what_the_others_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from collbench.overlaps.worker import Rank

    def no_room(*_arguments: object) -> None:
        raise MemoryError

    full, roomy = (rank_alone(monkeypatch) for _ in range(2))
    large, small = (Overlap(Work(Operation.ALLREDUCE), (0, 1), size, GEMM) for size in (2**13, 2**12))
    with monkeypatch.context() as patch:
        patch.setattr(Rank, "_messages", no_room)
        with pytest.raises(MachineError, match="out of memory"):
            full.allocate(large)
    roomy.allocate(large)
    sent = []
    for rank in (full, roomy):
        rank.allocate(small)
        sent.append(rank._allocated().messages[0].sent)
    assert torch.equal(*sent)


@pytest.mark.parametrize("compute", [GEMM, COPY])
def test_a_unit_of_compute_has_the_same_result_each_time(compute: Compute) -> None:
    import torch

    from collbench.overlaps.worker import unit_of

    unit = unit_of(compute, torch.device("cpu"))
    unit.run()
    first_result = unit.result.clone()
    unit.result.zero_()
    unit.run()
    assert torch.equal(unit.result, first_result)
    assert first_result.isfinite().all()
    assert first_result.abs().sum() > 0


@pytest.mark.parametrize(("units", "at_once"), [(400, False), (600, True)])
def test_more_launches_than_a_stream_takes_ahead_are_one(
    units: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = list[int]()
    rank = rank_alone(monkeypatch)
    monkeypatch.setattr(type(rank._device), "as_one", lambda _self, _work, times: captured.append(times))
    rank.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**12, GEMM))
    rank._chunk(Load(4, 1, units // 10, 10, 0.0), rank._allocated())
    assert captured == ([10] if at_once else [])


def have_ended(processes: tuple[int, ...]) -> bool:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{number}").exists() for number in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def started_world() -> OverlapWorld:
    world = OverlapWorld("host", [CORES[0], CORES[-1]])
    world.load_s = 15.0
    world.join()
    world.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**16, GEMM))
    world.warm()
    return world


def test_a_worker_that_hangs_is_killed_after_its_time() -> None:
    world = started_world()
    world.load_s = 1.0
    processes = world.process_ids
    os.kill(processes[0], signal.SIGTSTP)  # of a fork: tests/loaded/stand_in.py
    with pytest.raises(BackendError, match="no answer") as caught:
        world.run(CONCURRENT)
    assert caught.value.failure.cause is Cause.NO_ANSWER
    assert have_ended(processes)


def output_of(source: str, tmp_path: Path) -> str:
    """Run a program that uses torch, from a file since `python -c` would load torch itself; return what it prints."""
    script = tmp_path / "script.py"
    script.write_text(source, encoding="utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=100).stdout


def test_compute_on_cores_covers_a_call_of_any_length(tmp_path: Path) -> None:
    """Even one that lasts longer than all requested compute: a core may be busy with other work for a while."""
    program = """
import json, threading, time
from collbench.overlaps.streams import Core
from collbench.overlaps.worker import StreamWork, run_both
units = [0]
def unit(number): units[0] += 1; time.sleep(0.001)
def call(number): time.sleep(0.05)
core = Core()
works = StreamWork(core.stream(), 2, call, (0.0, 0.002)), StreamWork(core.main, 3, unit)
times = run_both(core, lambda: None, *works, 0.0)
print(json.dumps([units[0], times.begins, times.collective, times.compute]))
"""
    units, begins, collective, compute = json.loads(output_of(program, tmp_path))
    assert (len(begins), len(collective), len(compute)) == (2, 2, 6)
    assert units > 6
    for number in range(2):
        first_end, last_end = compute[3 * number], compute[3 * number + 2]
        assert first_end <= begins[number] < collective[number] <= last_end


def test_a_call_that_fails_on_cores_ends_its_round(tmp_path: Path) -> None:
    program = """
from collbench.overlaps.streams import Core
from collbench.overlaps.worker import StreamWork, run_both
def fails(number): raise RuntimeError("no such group")
for first, second in ((fails, print), (print, fails)):
    core = Core()
    works = StreamWork(core.stream(), 1, first, (0.0,)), StreamWork(core.main, 3, second)
    try: run_both(core, lambda: None, *works, 0.0)
    except RuntimeError as error: print(error)
"""
    assert output_of(program, tmp_path).count("no such group") == 2


# The simulated backend.


def test_simulated_work_is_slower_until_the_other_ends() -> None:
    """Two seconds of work at half speed, one at full speed: the latter ends at 1 s, when half a second is done."""
    assert overlapped([(2, 1.0), (1, 1.0)], [2.0, 1.0]) == ((1.5, 2.5), (1.0,))
    assert overlapped([(2, 1.0), (0, 1.0)], [2.0, 1.0]) == ((1.0, 2.0), ())


def test_simulated_times_repeat_by_the_seed() -> None:
    times = []
    for seed in (1, 1, 2):
        fabric = factory.simulated("titan-rtx-nv2")
        simulated = SimOverlap(fabric, factory.simulated_backend(fabric, None, seed), seed)
        simulated.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**24, GEMM))
        times.append(simulated.run(CONCURRENT))
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize(
    ("compute", "seconds"),
    [(Compute(ComputeKind.GEMM, 1000), 2e9 / 7e14), (Compute(ComputeKind.MEMORY, 1), 3 * 2**20 / 4e12)],
)
def test_simulated_compute_takes_its_operations_over_the_rate(compute: Compute, seconds: float) -> None:
    assert unit_seconds(compute) == pytest.approx(seconds)
