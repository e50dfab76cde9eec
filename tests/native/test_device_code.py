"""The device code run on a CPU: the elements that each rank sends, and which received elements it takes for right."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

_HERE = Path(__file__).parent
_SOURCE = _HERE.parents[1] / "csrc"
# In NCCL's order [nccl.h 2.24]: bytes, and whether it is a floating type.
_DTYPES = {
    "int8": (1, False),
    "uint8": (1, False),
    "int32": (4, False),
    "uint32": (4, False),
    "int64": (8, False),
    "uint64": (8, False),
    "float16": (2, True),
    "float32": (4, True),
    "float64": (8, True),
    "bfloat16": (2, True),
    "float8e4m3": (1, True),
    "float8e5m2": (1, True),
}
_REDUCTIONS = ("sum", "prod", "max", "min", "avg")
_COPIED = 5
_SEED = 0x72616E6B73756D
_COUNT = 64


class _Report(ctypes.Structure):
    _fields_ = (
        ("wrong", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("expected", ctypes.c_double),
        ("found", ctypes.c_double),
    )


class Device:
    """The compiled kernels, and NCCL's types by the fakes' own conversions."""

    def __init__(self, library: Path) -> None:
        self._code = ctypes.CDLL(str(library))
        self._code.load_number.restype = ctypes.c_double

    def contributions(self, dtype: int, reduction: int, world: int) -> list[np.ndarray]:
        """Return what each rank sends, as doubles."""
        width = list(_DTYPES.values())[dtype][0]
        sent = []
        for rank in range(world):
            buffer = (ctypes.c_ubyte * (_COUNT * width))()
            arguments = (_u64(0), _u64(_COUNT), _u32(dtype), _u32(reduction), _u32(world), _u32(rank), _u64(_SEED))
            self._code.fill_elements(buffer, *arguments)
            sent.append(self.decoded(buffer, dtype))
        return sent

    def decoded(self, buffer: ctypes.Array[ctypes.c_ubyte], dtype: int) -> np.ndarray:
        """Return the elements as doubles."""
        width = list(_DTYPES.values())[dtype][0]
        at = ctypes.addressof(buffer)
        count = len(buffer) // width
        return np.array([self._code.load_number(ctypes.c_void_p(at + i * width), _u32(dtype)) for i in range(count)])

    def encoded(self, values: np.ndarray, dtype: int) -> ctypes.Array[ctypes.c_ubyte]:
        """Return the elements' bytes."""
        width = list(_DTYPES.values())[dtype][0]
        buffer = (ctypes.c_ubyte * (len(values) * width))()
        at = ctypes.addressof(buffer)
        for i, value in enumerate(values):
            self._code.store_number(ctypes.c_void_p(at + i * width), _u32(dtype), ctypes.c_double(value))
        return buffer

    def wrong(self, buffer: ctypes.Array[ctypes.c_ubyte], dtype: int, reduction: int, world: int) -> int:
        """Return how many elements the device takes for wrong; rank 0 sends copies."""
        report = _Report(0, 2**64 - 1, 0, 0)
        rule = (_u32(dtype), _u32(reduction), _u32(0), _u32(world), _u64(_SEED), ctypes.c_double(0))
        element_range = (_u64(0), _u64(0), _u64(_COUNT), _u64(_COUNT), _u64(0))
        self._code.verify_elements(buffer, *element_range, *rule, ctypes.byref(report))
        return int(report.wrong)


def _u32(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    folder = tmp_path_factory.mktemp("device")
    code = (_SOURCE / "kernels.cu").read_text()
    code = code.replace('#include "elements.cuh"', (_SOURCE / "elements.cuh").read_text())
    for instruction, replacement in (
        ('asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));', "time = 0;"),
        ('asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));', "to_half(half, value);"),
        ('asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));', "from_half(value, half);"),
    ):
        assert code.count(instruction) == 1, instruction
        code = code.replace(instruction, replacement)
    (folder / "device_code.inc").write_text(code)
    numbers = folder / "numbers.o"
    subprocess.run([os.environ.get("CC", "cc"), "-fPIC", "-c", _HERE / "fake_numbers.c", "-o", numbers], check=True)
    # Undefined behavior here is undefined on a GPU, too: it ends the test with the line.
    checked = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", *checked, "-w", "-fPIC", "-shared", f"-I{folder}"]
    library = folder / "device.so"
    subprocess.run([*command, _HERE / "device_code.cpp", numbers, "-o", library], check=True)
    return Device(library)


def _reduced(sent: list[np.ndarray], reduction: int, *, integer: bool) -> np.ndarray:
    stacked = np.array(sent)
    name = _REDUCTIONS[reduction]
    if name == "avg":
        mean = np.asarray(stacked.sum(axis=0) / len(sent))
        return np.floor(mean) if integer else mean
    results = {"sum": np.sum(stacked, 0), "prod": np.prod(stacked, 0), "max": np.max(stacked, 0)}
    return np.asarray(np.min(stacked, 0) if name == "min" else results[name])


@pytest.mark.parametrize("world", [2, 4, 6, 8, 16, 32, 64])  # averages are exact: powers of two, and six without them
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_every_reduction_is_exact_and_taken_for_right(device: Device, dtype: int, world: int) -> None:
    floating = list(_DTYPES.values())[dtype][1]
    for reduction, name in enumerate(_REDUCTIONS):
        if name == "avg" and world == 6:
            continue
        result = _reduced(device.contributions(dtype, reduction, world), reduction, integer=not floating)
        received = device.encoded(result, dtype)
        assert (device.decoded(received, dtype) == result).all(), name  # the type holds it
        assert device.wrong(received, dtype, reduction, world) == 0, name


@pytest.mark.parametrize("world", [2, 6, 7, 8, 16, 61])
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
@pytest.mark.parametrize("reduction", ["sum", "prod"])
def test_a_result_without_any_one_rank_is_wrong(device: Device, reduction: str, dtype: int, world: int) -> None:
    reduction_index = _REDUCTIONS.index(reduction)
    sent = device.contributions(dtype, reduction_index, world)
    for rank in range(world):
        incomplete = _reduced(sent[:rank] + sent[rank + 1 :], reduction_index, integer=False)
        assert device.wrong(device.encoded(incomplete, dtype), dtype, reduction_index, world) > 0, rank


@pytest.mark.parametrize("world", [2, 8, 32])
@pytest.mark.parametrize("dtype", [i for i, (_, floating) in enumerate(_DTYPES.values()) if floating])
def test_minus_zero_is_not_zero(device: Device, dtype: int, world: int) -> None:
    width = list(_DTYPES.values())[dtype][0]
    for reduction in (*range(len(_REDUCTIONS)), _COPIED):
        sent = device.contributions(dtype, reduction, world)
        result = sent[0] if reduction == _COPIED else _reduced(sent, reduction, integer=False)
        zeros = np.flatnonzero(result == 0)
        received = device.encoded(result, dtype)
        assert device.wrong(received, dtype, reduction, world) == 0
        for zero in zeros[:1]:  # products have none
            received[(zero + 1) * width - 1] |= 0x80
            assert device.wrong(received, dtype, reduction, world) == 1, reduction
