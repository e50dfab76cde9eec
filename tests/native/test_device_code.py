"""The device code run on a CPU: copies, the elements that each rank sends, and what it takes for right of them.

What NCCL makes of the elements is modeled here, in every order in which it may add them, and with its roundings.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from functools import reduce
from itertools import product
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
_CALLS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "avg": np.add,
}
_SEED = 0x72616E6B73756D
_COUNT = 128
# Significant bits and the exponent of the smallest normal number.
_FLOATS = {
    "float16": (11, -14),
    "float32": (24, -126),
    "bfloat16": (8, -126),
    "float8e4m3": (4, -6),
    "float8e5m2": (3, -14),
}
# All worlds up to 16, and larger ones: in a world of 72 averages of e4m3 are below its normal numbers, and 200 are more
# ranks than an int8 counts.
_WORLDS = (*range(1, 10), 15, 16, 24, 72, 200)


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
        self._code.allowed_error.restype = ctypes.c_double

    def fill(self, buffer: np.ndarray, size: int) -> None:
        """Write the pattern of copies into a message of `size` bytes."""
        self._code.fill(_address(buffer), _u64(0), _u64(0), _u64(size), _u64(_SEED), _u32(0))

    def copy(self, target: np.ndarray, source: np.ndarray, size: int) -> None:
        """Copy one message of `size` bytes."""
        self._code.copy(_address(target), _address(source), _u64(size), _u64(0), _u32(1), _u32(1))

    def wrong_bytes(self, buffer: np.ndarray, size: int) -> tuple[int, int]:
        """Return how many bytes of such a message differ from the pattern, and the offset of the first."""
        report = _Report(0, 2**64 - 1, 0, 0)
        self._code.verify(_address(buffer), _u64(0), _u64(0), _u64(size), _u64(_SEED), ctypes.byref(report))
        return report.wrong, report.first >> 16

    def contributions(self, dtype: int, reduction: int, world: int, slot: int = 0) -> list[np.ndarray]:
        """Return what each rank sends, as doubles."""
        width = list(_DTYPES.values())[dtype][0]
        sent = []
        self._code.use_slot(_u32(slot))
        for rank in range(world):
            buffer = (ctypes.c_ubyte * (_COUNT * width))()
            arguments = (_u64(0), _u64(_COUNT), _u32(dtype), _u32(reduction), _u32(world), _u32(rank), _u64(_SEED))
            self._code.fill_elements(buffer, *arguments)
            sent.append(self.decoded(buffer, dtype))
        self._code.use_slot(_u32(0))
        return sent

    def decoded(self, buffer: ctypes.Array[ctypes.c_ubyte], dtype: int) -> np.ndarray:
        """Return the elements as doubles."""
        values = np.empty(len(buffer) // list(_DTYPES.values())[dtype][0])
        self._code.load_numbers(buffer, _u32(dtype), _u32(len(values)), _address(values))
        return values

    def encoded(self, values: np.ndarray, dtype: int) -> ctypes.Array[ctypes.c_ubyte]:
        """Return the elements' bytes."""
        buffer = (ctypes.c_ubyte * (len(values) * list(_DTYPES.values())[dtype][0]))()
        self._code.store_numbers(buffer, _u32(dtype), _u32(len(values)), _address(np.ascontiguousarray(values)))
        return buffer

    def wrong(
        self, buffer: ctypes.Array[ctypes.c_ubyte], dtype: int, reduction: int, world: int, seed: int = _SEED
    ) -> int:
        """Return how many elements the device takes for wrong; rank 0 sends copies."""
        report = _Report(0, 2**64 - 1, 0, 0)
        allowed = ctypes.c_double(self._code.allowed_error(_u32(dtype), _u32(reduction), world))
        rule = (_u32(dtype), _u32(reduction), _u32(0), _u32(world), _u64(seed), allowed)
        element_range = (_u64(0), _u64(0), _u64(_COUNT), _u64(_COUNT), _u64(0))
        self._code.verify_elements(buffer, *element_range, *rule, ctypes.byref(report))
        return int(report.wrong)


def _address(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


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
    flags = ["-std=c++17", "-O1", *checked, "-w", "-fPIC", "-shared", f"-I{folder}", f"-I{_SOURCE}"]
    sources = [_HERE / "device_code.cpp", _SOURCE / "collective_layout.cpp", numbers]
    library = folder / "device.so"
    subprocess.run([os.environ.get("CXX", "c++"), *flags, *sources, "-o", library], check=True)
    return Device(library)


def _rounded(values: np.ndarray, name: str) -> np.ndarray:
    """Return what a type holds of numbers: the nearest, or of halfway ones the even; whole numbers wrap around."""
    if name in _FLOATS:
        digits, least = _FLOATS[name]
        step = np.exp2(np.maximum(np.frexp(values)[1] - 1, least) - digits + 1)
        return np.asarray(np.rint(values / step) * step)
    if name == "float64":
        return values
    return values.astype(np.int64).astype(name).astype(float)


def _exact(sent: list[np.ndarray], reduction: str, world: int, *, whole: bool) -> np.ndarray:
    """Return the reduction without any rounding, in a world of which some ranks may be missing."""
    if reduction == "avg":
        mean = reduce(np.add, sent) / world
        return np.asarray(np.floor(mean) if whole else mean)
    return np.asarray(reduce(_CALLS[reduction], sent))


def _delivered(sent: list[np.ndarray], reduction: str, world: int, name: str) -> dict[str, np.ndarray]:
    """Return what NCCL may deliver, by the order in which it reduces and by what it rounds."""
    call = _CALLS[reduction]

    def reduced(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return _rounded(call(one, other), name)

    def twice_rounded(one: np.ndarray, other: np.ndarray) -> np.ndarray:  # 8-bit floats are added as halves
        return _rounded(_rounded(call(one, other), "float16"), name)

    def tree(parts: list[np.ndarray]) -> np.ndarray:
        half = len(parts) // 2
        return parts[0] if half == 0 else reduced(tree(parts[:half]), tree(parts[half:]))

    scaled, finely = sent, sent
    whole = name not in _FLOATS and name != "float64"
    if reduction == "avg" and not whole:
        scaled = [_rounded(one * _rounded(np.array(1 / world), name), name) for one in sent]
        finely = [_rounded(one / world, name) for one in sent]
    orders = {
        f"a ring from rank {rank}": reduce(reduced, scaled[rank:] + scaled[:rank]) for rank in (0, 1, len(sent) // 2)
    }
    orders |= {"a ring the other way": reduce(reduced, scaled[::-1]), "a tree": tree(scaled)}
    orders |= {"a ring, scaled by an exact 1/n": reduce(reduced, finely)}
    orders |= {"in the switch, rounded once": _rounded(reduce(call, scaled), name)}
    if "8" in name and not whole:
        orders |= {"a ring through halves": reduce(twice_rounded, scaled)}
    if reduction == "avg":  # whole numbers are added first, and divided at the end
        ends = {order: result / world for order, result in orders.items()} if whole else {}
        orders = {order: np.trunc(end) for order, end in ends.items()} if whole else orders
        orders |= {} if whole else {"divided at the end": _rounded(reduce(reduced, sent) / world, name)}
    return orders


@pytest.mark.parametrize("size", [1, 7, 8, 15, 16, 17, 255, 1029])
def test_a_message_of_any_size_arrives_whole_and_each_of_its_bytes_counts(device: Device, size: int) -> None:
    source, target = np.zeros(2048, np.uint8), np.zeros(2048, np.uint8)
    device.fill(source, size)
    device.copy(target, source, size)

    assert (target[:size] == source[:size]).all()
    assert not target[size:].any()
    assert not source[size:].any()
    assert device.wrong_bytes(target, size) == (0, (2**64 - 1) >> 16)
    for at in range(size):
        target[at] ^= 1
        assert device.wrong_bytes(target, size) == (1, at)
        target[at] ^= 1


@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_what_a_healthy_nccl_delivers_is_right_in_every_order(device: Device, dtype: int) -> None:
    name, floating = tuple(_DTYPES)[dtype], list(_DTYPES.values())[dtype][1]
    for (index, reduction), world in product(enumerate(_REDUCTIONS), _WORLDS):
        sent = device.contributions(dtype, index, world)
        exact = _exact(sent, reduction, world, whole=not floating)
        if reduction != "avg" or not floating:
            assert (_rounded(exact, name) == exact).all(), (reduction, world, "the type holds it")
        for order, result in _delivered(sent, reduction, world, name).items():
            received = device.encoded(result, dtype)
            assert (device.decoded(received, dtype) == result).all(), (reduction, world, order)
            assert device.wrong(received, dtype, index, world) == 0, (reduction, world, order)


@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_a_result_without_any_one_rank_is_wrong_wherever_that_rank_counts(device: Device, dtype: int) -> None:
    name, (width, floating) = tuple(_DTYPES)[dtype], list(_DTYPES.values())[dtype]
    for (index, reduction), world in product(enumerate(_REDUCTIONS), _WORLDS[1:]):
        if reduction == "avg" and width == 1 and not floating and world > 127:
            continue  # every average of so many bytes is zero
        sent = device.contributions(dtype, index, world)
        exact = _exact(sent, reduction, world, whole=not floating)
        for rank in range(world) if world <= 16 else (0, 1, world - 1):
            others = sent[:rank] + sent[rank + 1 :]
            without = _exact(others, reduction, world, whole=not floating)
            counts = int((without != exact).sum())
            delivered = device.encoded(_rounded(without, name), dtype)
            assert device.wrong(delivered, dtype, index, world) == counts, (reduction, world, rank)
            assert counts > 0 or world > 16, (reduction, world, rank)


@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_a_rank_that_counts_twice_is_wrong(device: Device, dtype: int) -> None:
    name = tuple(_DTYPES)[dtype]
    for reduction, world in product(("sum", "avg"), range(2, 17)):
        index = _REDUCTIONS.index(reduction)
        sent = device.contributions(dtype, index, world)
        for rank in range(world):
            twice = _exact([*sent, sent[rank]], reduction, world, whole=not list(_DTYPES.values())[dtype][1])
            received = device.encoded(_rounded(twice, name), dtype)
            assert device.wrong(received, dtype, index, world) > 0, (reduction, world, rank)


@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_every_slot_has_its_own_data_by_the_seed_that_the_host_knows(device: Device, dtype: int) -> None:
    step = 0xD1342543DE82EF95  # also in collective_rank.cpp
    assert f"{step:#x}ull" in (_SOURCE / "collective_rank.cpp").read_text()
    for reduction in (0, 4, _COPIED):
        for slot in (0, 1, 19):
            sent = device.contributions(dtype, reduction, 2, slot)
            whole = not list(_DTYPES.values())[dtype][1]
            result = sent[0] if reduction == _COPIED else _exact(sent, _REDUCTIONS[reduction], 2, whole=whole)
            received = device.encoded(result, dtype)
            wrong = [
                device.wrong(received, dtype, reduction, 2, (_SEED + other * step) % 2**64) for other in (0, 1, 19)
            ]
            assert [one == 0 for one in wrong] == [slot == other for other in (0, 1, 19)], reduction
            assert sum(wrong) > _COUNT / 2, reduction


@pytest.mark.parametrize("world", [2, 8, 32])
@pytest.mark.parametrize("dtype", [i for i, (_, floating) in enumerate(_DTYPES.values()) if floating])
def test_minus_zero_is_not_zero(device: Device, dtype: int, world: int) -> None:
    width = list(_DTYPES.values())[dtype][0]
    for reduction in (*range(len(_REDUCTIONS)), _COPIED):
        sent = device.contributions(dtype, reduction, world)
        result = sent[0] if reduction == _COPIED else _exact(sent, _REDUCTIONS[reduction], world, whole=False)
        zeros = np.flatnonzero(result == 0)
        received = device.encoded(result, dtype)
        assert device.wrong(received, dtype, reduction, world) == 0
        for zero in zeros[:1]:  # products have none
            received[(zero + 1) * width - 1] |= 0x80
            assert device.wrong(received, dtype, reduction, world) == 1, reduction
