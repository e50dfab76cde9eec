"""The GPUs that these tests run on, or the reason why they are skipped."""

from __future__ import annotations

import os

import pytest

from collbench import _native
from collbench.machine.nccl import find_nccl
from collbench.measurement.backends.cuda import shipped_ptx
from collbench.model.errors import MachineError


def need_gpus(count: int) -> list[int]:
    """Return the ordinals of all GPUs, or skip the calling module where fewer than `count` answer."""
    required = f"{count} GPU{'s' if count > 1 else ''}"
    try:
        ordinals = list(range(len(_native.list_gpus())))
    except (_native.LibraryError, _native.CudaError) as error:
        pytest.skip(f"needs {required}: {error}", allow_module_level=True)
    if len(ordinals) < count:
        pytest.skip(f"needs {required}: this machine shows {len(ordinals)}", allow_module_level=True)
    return ordinals


def need_nccl() -> _native.Nccl:
    """Return the NCCL of COLLBENCH_NCCL, of the wheel or of the system, or skip the calling module."""
    try:
        return find_nccl(os.environ.get("COLLBENCH_NCCL"))
    except MachineError as error:
        pytest.skip(f"needs NCCL: {error}", allow_module_level=True)


def open_gpus(ordinals: list[int], buffer_bytes: int, image: bytes | None = None) -> _native.Gpus:
    """Return GPUs with the given device code (default: the shipped one) and buffers for such messages."""
    gpus = _native.Gpus(ordinals, shipped_ptx() if image is None else image)
    gpus.allocate(buffer_bytes)
    return gpus
