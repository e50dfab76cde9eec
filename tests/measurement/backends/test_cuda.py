"""How much memory the buffers on GPUs take; tests/native tests what they do."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.measurement.backends.cuda import CudaBackend
from collbench.measurement.backends.protocol import NcclWorld, Open
from tests.builders import gpus

_MIB, _GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("title", "free", "largest", "buffer"),
    [
        ("room for many large messages", 140 * _GIB, 64 * _MIB, _GIB),
        ("a message larger than that", 140 * _GIB, 4 * _GIB, 4 * _GIB),
        ("a quarter of what fits", 8 * _GIB, 64 * _MIB, (8 * _GIB - 256 * _MIB) // 3 // 4 - 17 * 64),
        ("the least that no cache holds", 2 * _GIB, 1024, 256 * _MIB),
        ("all that is there", 512 * _MIB, 1024, 256 * _MIB // 3 - 17 * 256),
    ],
)
def test_buffers_hold_more_messages_where_memory_is_plenty(
    monkeypatch: pytest.MonkeyPatch, title: str, free: int, largest: int, buffer: int
) -> None:
    allocated: list[tuple[int, int]] = []

    class Gpus:
        cache_bytes = (0, 0)

        def __init__(self, *_arguments: object) -> None: ...

        def peer_access(self) -> list[list[bool]]:
            return [[True, True], [True, True]]

        def peer_refusals(self) -> dict[tuple[int, int], str]:
            return {}

        def free_bytes(self) -> list[int]:
            return [free, 2 * free]

        def allocate(self, bytes_: int, host_bytes: int) -> None:
            allocated.append((bytes_, host_bytes))

    devices = gpus(2)
    monkeypatch.setattr(_native, "Gpus", Gpus)
    monkeypatch.setattr(_native, "list_gpus", lambda: [device.uuid for device in devices])
    CudaBackend(Open(devices), None).reserve(largest)
    world = NcclWorld((0, 1), 0, b"")
    CudaBackend(Open(devices, world=world), None).reserve(largest)

    # With one process per GPU, ranks with more and with less memory have the same slots.
    # Host memory has no room for more messages, because pinning takes seconds.
    least = max(largest, 256 * _MIB)
    assert allocated == [(buffer, least), (least, least)], title
