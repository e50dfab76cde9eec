"""Deliberate faults in the device code are caught on real GPUs, at the byte where they begin."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collbench import _native
from tests.gpu.machine import need_gpus, need_nccl, open_gpus

need_gpus(2)
if shutil.which("nvcc") is None:
    pytest.skip("needs nvcc, to compile the device code with a fault", allow_module_level=True)

_KERNELS = Path(__file__).parents[2] / "csrc" / "kernels.cu"
_BUFFER = 2**25
_REST = "k = vectors * 16 + thread_index()"  # the first byte behind the whole vectors
_TILES = 2**24  # bytes of whole tiles of 64 KiB, as copied by a launch that loops


def _compiled(folder: Path, right: str = "", wrong: str = "") -> bytes:
    """Return the device code for this machine's GPUs with one text in place of another."""
    sources = {file.name: file.read_text() for file in (_KERNELS, *_KERNELS.parent.glob("*.cuh"))}
    occurrences = sum(source.count(right) for source in sources.values()) if right else 1
    assert occurrences == 1, f"the device code has changed: {right!r} is not there once"
    for name, source in sources.items():
        (folder / name).write_text(source.replace(right, wrong) if right else source)
    command = ["nvcc", "-fatbin", "-std=c++17", "-O3", "-arch=native", _KERNELS.name, "-o", "faulty.fatbin"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "faulty.fatbin").read_bytes()


def _copy(gpus: _native.Gpus, size: int, *, pull: bool = False, group: Sequence[tuple[int, int]] = ((0, 1),)) -> None:
    gpus.time_copies(
        _native.CopyRound(
            groups=[list(group)],
            engine=_native.Engine.multiprocessors,
            pull=pull,
            bytes=size,
            iterations=3,
            batches=1,
            warmup=0,
            deadline=30.0,
        )
    )


def _collect(collectives: _native.Collectives, operation: str = "allreduce", **changes: Any) -> None:
    plan: dict[str, Any] = {"dtype": _native.Dtype.__members__["float32"], "root": 0, "count": 1026, "in_place": False}
    plan |= {"reduction": _native.Reduction.__members__["sum"], "verify": True, "iterations": 3, "batches": 1}
    plan |= {"warmup": 0, "launch_iterations": 0, "launch_warmup": 0, "deadline": 30.0}
    plan |= {"blocks": [513] * 4} if operation == "alltoallv" else {}
    operations = _native.Collective.__members__
    collectives.time(_native.CollectiveRound(groups=[[0, 1]], operation=operations[operation], **(plan | changes)))


@pytest.mark.parametrize(
    ("title", "right", "wrong", "size", "offset"),
    [
        # 64 vectors of 16 bytes, then the tail.
        ("the rest starts late", _REST, _REST + " + 1", 1029, 1024),
        (
            "a small message is left out",
            "thread_index() < vectors) to",
            "thread_index() + 64 < vectors) to",
            1024,
            0,
        ),
        ("vectors in flight change places", "blockDim.x] = held[k]", "blockDim.x] = held[k ^ 1]", _BUFFER, 0),
        # 1024 bytes beyond whole tiles of 64 KiB.
        ("the last tile is left out", "i < vectors; i +=", "i + tile <= vectors; i +=", _TILES + 1024, _TILES),
    ],
)
def test_a_fault_in_the_copy_is_found_where_it_begins(
    tmp_path: Path, title: str, right: str, wrong: str, size: int, offset: int
) -> None:
    gpus = open_gpus([0, 1], _BUFFER, _compiled(tmp_path, right, wrong))
    with pytest.raises(_native.DataError) as failure:
        _copy(gpus, size)
    # To the vector: of a wrong vector's bytes the first may be right by chance.
    assert failure.value.offset // 16 == offset // 16, title
    assert failure.value.expected != failure.value.found, title


def test_a_fault_in_the_ring_of_the_pointer_chase_is_found(tmp_path: Path) -> None:
    # One line of 16384 holds the address of another than it should.
    image = _compiled(tmp_path, "+ increment) % count", "+ increment + (i == 5)) % count")
    gpus = open_gpus([0, 1], _BUFFER, image)
    for link in ((0, 1), (0, -1)):
        with pytest.raises(_native.DataError) as failure:
            gpus.time_chase(_native.ChaseRound(links=[link], accesses=16384, batches=1, warmup=0, deadline=30.0))
        assert failure.value.expected != failure.value.found


def test_a_fault_in_a_reduction_is_found_and_the_broadcast_stays_right(tmp_path: Path) -> None:
    nccl = need_nccl()
    image = _compiled(tmp_path, "pairs * 0x0101010101010101ull >> 56", "pairs * 0x0101010101010101ull >> 57")
    collectives = _native.Collectives(open_gpus([0, 1], _BUFFER, image), nccl)
    _collect(collectives, "broadcast")
    _collect(collectives, reduction=_native.Reduction.__members__["max"])
    with pytest.raises(_native.DataError) as failure:
        _collect(collectives)
    assert failure.value.offset % 4 == 0
    assert failure.value.offset < 1026 * 4
    # What was expected is reported by the general rule, which has no fault here: it is what was found.
    assert failure.value.expected == failure.value.found


@pytest.fixture(scope="module")
def faulty_contributions(tmp_path_factory: pytest.TempPathFactory) -> _native.Collectives:
    """GPUs on which every rank sends one too much at its index 77."""
    right = "contribution(noise_of(own, rank, i), rank, turn_of(own, i), reduction, world, dtype)"
    image = _compiled(tmp_path_factory.mktemp("contributions"), right, f"{right} + (i == 77)")
    return _native.Collectives(open_gpus([0, 1], _BUFFER, image), need_nccl())


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize(
    ("operation", "excess"),
    [
        ("allreduce", 2),  # of two ranks
        ("broadcast", 1),
        ("reduce", 2),
        ("allgather", 1),
        ("reducescatter", 2),
        ("alltoall", 1),
        ("alltoallv", 1),
        ("sendrecv", 1),
        ("gather", 1),
        ("scatter", 1),
    ],
)
def test_a_wrong_element_is_found_in_every_operation(
    faulty_contributions: _native.Collectives, operation: str, excess: int, in_place: bool
) -> None:
    if in_place and operation in ("alltoall", "alltoallv", "sendrecv"):
        pytest.skip("not checked in place, as in nccl-tests")
    with pytest.raises(_native.DataError) as failure:
        _collect(faulty_contributions, operation, in_place=in_place)
    # The first that rank 0 receives: index 77 of a block of 513 or of the whole.
    assert (failure.value.group, failure.value.rank, failure.value.offset) == (0, 0, 77 * 4)
    assert failure.value.found - failure.value.expected == excess


def test_the_same_code_without_a_fault_passes(tmp_path: Path) -> None:
    gpus = open_gpus([0, 1], _BUFFER, _compiled(tmp_path))
    for size in (1029, 1024, _BUFFER):
        _copy(gpus, size)
        _copy(gpus, size, pull=True)
    for group in (((0, 1), (1, 0)), ((-1, 0), (0, -1))):
        _copy(gpus, 1029, group=group)
    gpus.time_chase(_native.ChaseRound(links=[(0, 1)], accesses=16384, batches=2, warmup=1, deadline=30.0))
    _collect(_native.Collectives(gpus, need_nccl()))
