"""The host backend's copies: real memory, real pinned threads, real verification."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from collbench import _native
from collbench.machine import kernel
from collbench.measurement.backends.host import HostBackend
from collbench.measurement.backends.protocol import Step
from collbench.model.errors import BackendError, DataCorruption, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def backend() -> Iterator[HostBackend]:
    host = HostBackend()
    yield host
    host.close()


def step(
    size: int, operation: Operation = Operation.CPU_WRITE, iterations: int = 5, batches: int = 3, warmup: int = 1
) -> Step:
    return Step(Work(operation), ((0, 1),), size, iterations, batches, warmup)


@pytest.mark.parametrize("operation", [Operation.CPU_WRITE, Operation.CPU_READ])
@pytest.mark.parametrize("size", [1, 3, 7, 8, 64, 4097, 2**20 + 1])
def test_every_size_is_copied_verified_and_timed(backend: HostBackend, operation: Operation, size: int) -> None:
    timing = backend.time(step(size, operation))
    assert len(timing.seconds) == 1
    assert len(timing.seconds[0]) == 3
    assert all(seconds > 0 for seconds in timing.seconds[0])
    assert timing.launch_seconds == ()


def test_buffers_grow_with_the_sizes_and_stay_usable_for_smaller_ones(backend: HostBackend) -> None:
    for size in (1, 9 * 2**20, 5):
        assert len(backend.time(step(size, iterations=1, batches=2)).seconds[0]) == 2


def test_more_messages_than_fit_the_buffer_wrap_around(backend: HostBackend) -> None:
    backend.time(step(3 * 2**20 + 5, iterations=7, batches=2))  # two slots in 8 MiB


def test_both_directions_at_once_give_a_row_each(backend: HostBackend) -> None:
    both_directions = Step(
        Work(Operation.CPU_READ), groups=((0, 1), (1, 0)), size_bytes=4097, iterations=5, batches=4, warmup=0
    )
    assert [len(row) for row in backend.time(both_directions).seconds] == [4, 4]


def wrong_byte() -> Exception:
    error = _native.DataError("wrong data at byte 12")
    error.group, error.rank, error.offset, error.wrong, error.expected, error.found = 0, 1, 12, 1, 90.0, 0.0
    return error


@pytest.mark.parametrize(
    ("failure", "error_type", "fragments"),
    [
        (wrong_byte(), DataCorruption, ["cpu-write", "4097 B"]),
        (RuntimeError("cannot pin a thread to CPU3: Invalid argument"), BackendError, ["cpu-write", "CPU3"]),
        (MemoryError("bad_alloc"), BackendError, ["cpu-write", "bad_alloc"]),
    ],
)
def test_a_native_failure_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, error_type: type[Exception], fragments: list[str]
) -> None:
    class Failing:
        def __init__(self, cores: list[int], buffer_bytes: int) -> None:
            pass

        def time_copies(self, *arguments: object) -> list[list[float]]:
            raise failure

    monkeypatch.setattr(_native, "HostSession", Failing)
    devices = tuple(Device(index=core, uuid=f"CPU-{core}", name="test") for core in (3, 5))
    with pytest.raises(error_type) as caught:
        HostBackend(devices).time(step(4097))
    assert all(fragment in str(caught.value) for fragment in fragments)
    assert "\n" not in str(caught.value)


def test_a_core_that_does_not_exist_is_named() -> None:
    devices = (*kernel.core_devices()[:1], Device(index=1023, uuid="CPU-x", name="absent"))
    with pytest.raises(BackendError, match="CPU1023"):
        HostBackend(devices).time(step(8))


@pytest.mark.parametrize(
    ("title", "links", "size", "iterations"),
    [
        ("two links write into one core", [(0, 1), (0, 1)], 8, 1),
        ("a core without buffers", [(0, 2)], 8, 1),
        ("larger than the buffers", [(0, 1)], 2**13, 1),
        ("nothing to copy", [(0, 1)], 0, 1),
        ("no iteration", [(0, 1)], 8, 0),
    ],
)
def test_the_native_session_refuses(title: str, links: list[tuple[int, int]], size: int, iterations: int) -> None:
    first_core, second_core = (device.index for device in kernel.core_devices()[:2])
    core_of = {0: first_core, 1: second_core, 2: 1022}
    session = _native.HostSession([first_core, second_core], 4096)
    with pytest.raises(ValueError, match=r"\w"):
        session.time_copies([(core_of[a], core_of[b]) for a, b in links], True, size, iterations, 1, 0)


def test_only_cpu_copies_are_offered_and_others_refused(backend: HostBackend) -> None:
    assert backend.operations(Variant.PLAIN) == (Operation.CPU_WRITE, Operation.CPU_READ)
    assert {backend.operations(variant) for variant in Variant if variant is not Variant.PLAIN} == {()}
    with pytest.raises(UsageError, match="cpu-write or cpu-read"):
        backend.time(step(8, Operation.CE_WRITE))


def test_every_link_can_copy_and_some_memory_is_offered(backend: HostBackend) -> None:
    assert backend.name == "host"
    assert backend.capacity_bytes() > 0
    for src, dst in itertools.permutations(range(len(backend.devices())), 2):
        assert backend.can_run(Work(Operation.CPU_READ), (src, dst)) is None


def test_closing_twice_is_harmless(backend: HostBackend) -> None:
    backend.time(step(8))
    backend.close()
    backend.close()
