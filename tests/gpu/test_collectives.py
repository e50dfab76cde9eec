"""NCCL's collectives on real GPUs, every element checked in every operation, type and reduction."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from collbench import _native
from tests.gpu.machine import need_gpus, need_nccl, open_gpus

ORDINALS = need_gpus(2)
NCCL = need_nccl()
_OPERATIONS = tuple(_native.Collective.__members__)
_DTYPES = tuple(_native.Dtype.__members__)  # in NCCL's order
_FLOAT8 = 10  # the first of the 8-bit floats, which NCCL has since 2.24 and reduces from sm_90 on
_REDUCTIONS = tuple(_native.Reduction.__members__)
_EVERYONE = list(range(len(ORDINALS)))
_COUNTS = (1, 3, 1025, 65537)  # of each rank's block
_MIXED = ("uint8", "bfloat16", "float32", "int64", "float8_e5m2")


@pytest.fixture(scope="module")
def collectives() -> _native.Collectives:
    return _native.Collectives(open_gpus(ORDINALS, 2**23), NCCL)


def _plan(operation: str, dtype: int, **changes: Any) -> dict[str, Any]:
    """Return a round's values, as JSON holds them: the enums as names or numbers."""
    plan: dict[str, Any] = {"operation": operation, "dtype": dtype, "reduction": 0, "root": 0}
    plan |= {"in_place": False, "verify": True, "iterations": 3, "batches": 2}
    plan |= {"warmup": 1, "launch_iterations": 0, "launch_warmup": 0, "deadline": 30.0}
    return plan | changes


def collective_round(*, operation: str, dtype: int, reduction: int, **values: Any) -> _native.CollectiveRound:
    """Return the round of a plan; of an all-to-all-v with even blocks."""
    if operation == "alltoallv":
        ranks = len(values["groups"][0])
        values = {"blocks": [values["count"] // ranks] * ranks**2} | values
    return _native.CollectiveRound(
        operation=_native.Collective.__members__[operation],
        dtype=_native.Dtype(dtype),
        reduction=_native.Reduction(reduction),
        **values,
    )


def _time(
    collectives: _native.Collectives, groups: list[list[int]], operation: str, dtype: int, count: int, **changes: Any
) -> list[list[float]]:
    """Return the batch times of one trial. Skips the test where NCCL has no 8-bit floats."""
    if dtype >= _FLOAT8 and NCCL.version < 22400:
        pytest.skip(f"NCCL {NCCL.version} has no 8-bit floats: needs 2.24")
    try:
        times = collectives.time(collective_round(groups=groups, count=count, **_plan(operation, dtype, **changes)))
    except _native.NcclError as error:
        if dtype >= _FLOAT8 and "sm90" in str(error):
            pytest.skip(str(error))
        raise
    assert min(itertools.chain.from_iterable(times.seconds)) > 0
    assert all(coverage.verified <= coverage.moved for coverage in times.coverage)
    return times.seconds


@pytest.mark.parametrize("reduction", range(len(_REDUCTIONS)), ids=_REDUCTIONS)
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=_DTYPES)
def test_allreduce_of_all_gpus(collectives: _native.Collectives, dtype: int, reduction: int) -> None:
    for count in _COUNTS:
        _time(collectives, [_EVERYONE], "allreduce", dtype, count, reduction=reduction)


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("dtype", _MIXED)
@pytest.mark.parametrize("operation", _OPERATIONS)
def test_every_operation_from_the_first_and_the_last_root(
    collectives: _native.Collectives, operation: str, dtype: str, in_place: bool
) -> None:
    # One GPU, a pair and all GPUs, also in an order other than CUDA's.
    for group in ([0], [1, 0], _EVERYONE, _EVERYONE[::-1]):
        for block in _COUNTS:
            for root in {0, len(group) - 1}:
                dtype_index = _DTYPES.index(dtype)
                _time(collectives, [group], operation, dtype_index, block * len(group), root=root, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("idle", [0, -1], ids=["first", "last"])
def test_a_rank_that_neither_sends_nor_receives_waits_for_nobody(
    collectives: _native.Collectives, idle: int, in_place: bool
) -> None:
    ranks, block = len(_EVERYONE), 1025
    blocks = [[block] * ranks for _ in range(ranks)]
    blocks[idle] = [0] * ranks
    for row in blocks:
        row[idle] = 0
    plan = {"blocks": [sent for row in blocks for sent in row], "in_place": in_place, "launch_iterations": 5}
    _time(collectives, [_EVERYONE], "alltoallv", 7, block * (ranks - 1), **plan)


@pytest.mark.parametrize("operation", ["reduce", "reducescatter"])
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=_DTYPES)
def test_other_reductions(collectives: _native.Collectives, dtype: int, operation: str) -> None:
    for reduction in range(1, len(_REDUCTIONS)):
        _time(collectives, [_EVERYONE], operation, dtype, 1025 * len(_EVERYONE), reduction=reduction)


@pytest.mark.parametrize("operation", ["allreduce", "broadcast"])
def test_every_pair_by_itself(collectives: _native.Collectives, operation: str) -> None:
    for pair in itertools.combinations(_EVERYONE, 2):
        for group in (list(pair), list(reversed(pair))):
            _time(collectives, [group], operation, 7, 65537, root=1)


@pytest.mark.skipif(len(ORDINALS) < 3, reason="needs 3 GPUs: averages over three ranks round")
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=_DTYPES)
def test_averages_over_three_ranks(collectives: _native.Collectives, dtype: int) -> None:
    _time(collectives, [[0, 1, 2]], "allreduce", dtype, 65537, reduction=4)


@pytest.mark.skipif(len(ORDINALS) < 4, reason="needs 4 GPUs: two pairs at once")
@pytest.mark.parametrize("operation", _OPERATIONS)
def test_two_pairs_at_once_and_again_from_the_kept_graph(collectives: _native.Collectives, operation: str) -> None:
    for _ in range(2):
        _time(collectives, [[0, 1], [2, 3]], operation, 9, 65538)


def test_the_launch_loop_is_timed_for_each_group(collectives: _native.Collectives) -> None:
    for operation in _OPERATIONS:
        plan = _plan(operation, 7, launch_iterations=20, launch_warmup=5)
        launches = collectives.time(collective_round(groups=[[0, 1]], count=2, **plan)).launch_seconds
        assert len(launches) == 1
        assert launches[0] > 0


def test_communicators_are_prepared_while_copies_are_timed() -> None:
    gpus = open_gpus(ORDINALS, 2**23)
    collectives = _native.Collectives(gpus, NCCL)
    pairs = [list(pair) for pair in itertools.combinations(_EVERYONE, 2)]
    ahead = threading.Thread(target=collectives.prepare, args=(pairs,))
    ahead.start()
    while ahead.is_alive():
        gpus.time_copies(
            _native.CopyRound(
                groups=[[(0, 1)]],
                engine=_native.Engine.copy_engine,
                pull=False,
                bytes=2**20,
                iterations=5,
                batches=4,
                warmup=1,
                deadline=30.0,
            )
        )
    for pair in pairs:
        _time(collectives, [pair], "allreduce", 7, 1025)


_RANK = """
import json, os, sys, time
from pathlib import Path
from collbench import _native
from tests.gpu.machine import need_nccl, open_gpus
from tests.gpu.test_collectives import collective_round
rank, world, folder, plans = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
nccl, gpus, meeting = need_nccl(), open_gpus([rank], 2**23), folder / "id"
if rank == 0:
    (folder / "written").write_bytes(nccl.unique_id())
    (folder / "written").rename(meeting)
while not meeting.exists():
    time.sleep(0.01)
collectives = _native.Collectives(gpus, nccl, rank, world, meeting.read_bytes())
collectives.prepare([list(range(world)), [0, 1]])
times = [collectives.time(collective_round(**plan)) for plan in plans]
print(json.dumps([[one.seconds, one.launch_seconds] for one in times]))
"""


def test_one_process_for_each_gpu_measures_every_operation(tmp_path: Path) -> None:
    """Each rank runs in a process of its own, as a training job's does, and times its own share."""
    world = len(ORDINALS)
    plans = [
        _plan(operation, 7, in_place=in_place, groups=[group], count=1025 * len(group), launch_iterations=5)
        for operation in _OPERATIONS
        for in_place in (False, True)
        for group in (_EVERYONE, [1, 0])
    ]
    command = [sys.executable, "-c", _RANK]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([".", *sys.path])}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path), json.dumps(plans)],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world
    for rank, output in enumerate(outputs):
        for plan, (seconds, launches) in zip(plans, json.loads(output), strict=True):
            is_member = rank in plan["groups"][0]
            assert len(seconds[0]) == (2 if is_member else 0)
            assert (launches[0] > 0) == is_member  # not a number elsewhere
