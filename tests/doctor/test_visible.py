"""Which GPUs CUDA_VISIBLE_DEVICES leaves [CUDA C++ programming guide, environment variables]."""

from __future__ import annotations

import pytest

from collbench.doctor.visible import visible
from collbench.model import Device

FOUR = tuple(Device(index=i, uuid=f"GPU-{i}{'ab' if i < 2 else 'cd'}", name="H200") for i in range(4))


@pytest.mark.parametrize(
    ("given", "left", "problem"),
    [
        (None, (0, 1, 2, 3), ""),
        ("2,0", (2, 0), ""),
        (" 1 , 3 ", (1, 3), ""),
        ("", (), ""),
        ("-1", (), ""),
        ("GPU-2,GPU-0ab", (2, 0), ""),
        ("gpu-3CD", (3,), ""),
        ("0,9,1", (0,), "'9' names no GPU here"),
        ("0,-1,1", (0,), "'-1' names no GPU here"),
        ("1,,2", (1,), "'' names no GPU here"),
        ("GPU-", (), "'GPU-' fits several GPUs"),
        ("0,1,0", (), "'0' names GPU0 again"),
        ("0,MIG-GPU-1/1/0", (0,), "part of a GPU"),
        ("²", (), "'²' names no GPU here"),
        ("all", (), "'all' names no GPU here"),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(given: str | None, left: tuple[int, ...], problem: str) -> None:
    seen = visible(FOUR, given)
    assert tuple(device.index for device in seen.devices) == left
    assert problem in seen.problem
    assert bool(seen.problem) == bool(problem)
