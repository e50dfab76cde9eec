"""Deliberate faults in the device code are caught on real GPUs, at the byte where they begin."""

from __future__ import annotations

import shutil
import subprocess
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


def _compiled(folder: Path, right: str = "", wrong: str = "") -> bytes:
    """Return the device code for this machine's GPUs with one text in place of another."""
    source = _KERNELS.read_text()
    assert source.count(right) == 1 or not right, f"kernels.cu has changed: {right!r} is not there once"
    (folder / "faulty.cu").write_text(source.replace(right, wrong) if right else source)
    command = ["nvcc", "-fatbin", "-std=c++17", "-O3", "-arch=native", "faulty.cu", "-o", "faulty.fatbin"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "faulty.fatbin").read_bytes()


def _copy(gpus: _native.Gpus, size: int, shift: int, *, pull: bool = False) -> None:
    gpus.time_copies(
        links=[(0, 1)],
        multiprocessors=True,
        pull=pull,
        bytes=size,
        shift=shift,
        iterations=3,
        blocks=1,
        warmup=0,
    )


def _reduce(collectives: _native.Collectives, **changes: Any) -> None:
    plan: dict[str, Any] = {"broadcast": False, "dtype": 7, "reduction": 0, "root": 0, "count": 1025, "width": 4}
    collectives.time(groups=[[0, 1]], iterations=3, blocks=1, warmup=0, launch_iterations=0, **(plan | changes))


@pytest.mark.parametrize(
    ("case", "right", "wrong", "size", "shift", "offset"),
    [
        # 64 vectors of 16 bytes, then the tail.
        ("the tail starts late", "vectors * 16 + me; k", "vectors * 16 + me + 1; k", 1029, 0, 1024),
        # Shifted by 3, the first 13 bytes stand before the first whole vector.
        ("the head starts late", "for (u64 k = me; k < head;", "for (u64 k = me + 1; k < head;", 1029, 3, 0),
        ("single vectors are left out", "to[i] = from[i]", "(void)to", 1024, 0, 0),
        # Large enough for eight vectors in flight on up to 512 multiprocessors of 512 threads.
        ("vectors in flight change places", "= held[k]", "= held[k ^ 1]", _BUFFER, 0, 0),
    ],
)
def test_a_fault_in_the_copy_is_found_where_it_begins(
    tmp_path: Path, case: str, right: str, wrong: str, size: int, shift: int, offset: int
) -> None:
    gpus = open_gpus([0, 1], _BUFFER, _compiled(tmp_path, right, wrong))
    with pytest.raises(_native.DataError) as failure:
        _copy(gpus, size, shift)
    # To the vector: of a wrong vector's bytes the first may be right by chance.
    assert failure.value.offset // 16 == offset // 16, case
    assert failure.value.expected != failure.value.found, case


def test_a_fault_in_one_message_of_several_counts_from_its_own_start(tmp_path: Path) -> None:
    # Only the second message, whose slot lies one stride of 1280 bytes further, loses a byte.
    late = "vectors * 16 + me + ((u64)target / 1280 % 2 == 0); k"
    gpus = open_gpus([0, 1], _BUFFER, _compiled(tmp_path, "vectors * 16 + me; k", late))
    with pytest.raises(_native.DataError) as failure:
        _copy(gpus, 1029, 0)
    assert failure.value.offset == 1024


def test_a_fault_in_a_reduction_is_found_and_the_broadcast_stays_right(tmp_path: Path) -> None:
    nccl = need_nccl()
    image = _compiled(tmp_path, "value += next;", "value -= next;")
    collectives = _native.Collectives(open_gpus([0, 1], _BUFFER, image), nccl)
    _reduce(collectives, broadcast=True)
    _reduce(collectives, reduction=2)
    with pytest.raises(_native.DataError) as failure:
        _reduce(collectives)
    assert failure.value.offset % 4 == 0
    assert failure.value.offset < 1025 * 4
    assert failure.value.expected != failure.value.found


def test_the_same_code_without_a_fault_passes(tmp_path: Path) -> None:
    gpus = open_gpus([0, 1], _BUFFER, _compiled(tmp_path))
    for size, shift in ((1029, 0), (1029, 3), (1024, 0), (_BUFFER, 0)):
        _copy(gpus, size, shift)
        _copy(gpus, size, shift, pull=True)
    _reduce(_native.Collectives(gpus, need_nccl()))
