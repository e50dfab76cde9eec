"""Collectives on memory registered with NCCL, on real GPUs: every element checked, by graphs and in the launch loop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from collbench import _native
from collbench.model.operations import Registration
from tests.gpu.machine import need_gpus, need_nccl, open_gpus

ORDINALS = need_gpus(2)[:2]
NCCL = need_nccl()
_OPERATIONS = tuple(_native.Collective.__members__)
_KINDS = tuple(Registration)
_BYTES = (8, 2**16, 2**21, 2**24)  # of float32, of the whole message


def _supported(kind: Registration) -> None:
    if NCCL.version < kind.oldest_nccl:
        pytest.skip(f"NCCL {NCCL.version} has no {kind} registration")


def _uneven(count: int) -> list[int]:
    """Return the elements from each of two ranks to each: one sends all that fits, and to itself nothing."""
    return [0, count, count // 2, 0]


def _time(
    collectives: _native.Collectives, kind: Registration, operation: str, size_bytes: int, *, in_place: bool
) -> _native.CollectiveTimes:
    """Return the times of one trial, graph and launch loop; every element that has a defined value is checked."""
    times = collectives.time(
        _native.CollectiveRound(
            groups=[[0, 1]],
            operation=_native.Collective.__members__[operation],
            dtype=_native.Dtype.__members__["float32"],
            reduction=_native.Reduction.__members__["sum"],
            root=1,
            count=size_bytes // 4,
            in_place=in_place,
            verify=True,
            iterations=4,
            batches=2,
            warmup=1,
            launch_iterations=10,
            launch_warmup=5,
            deadline=30.0,
            registration=_native.Registration.__members__[kind],
            blocks=_uneven(size_bytes // 4) if operation == "alltoallv" else [],
        )
    )
    assert min(itertools.chain.from_iterable(times.seconds)) > 0
    assert times.launch_seconds[0] > 0
    return times


@pytest.fixture(scope="module")
def collectives() -> Iterator[_native.Collectives]:
    opened_collectives = _native.Collectives(open_gpus(ORDINALS, 2**28), NCCL)
    yield opened_collectives
    opened_collectives.close()  # deregisters, and frees the memory


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("operation", _OPERATIONS)
@pytest.mark.parametrize("kind", _KINDS)
def test_every_operation_is_exact(
    collectives: _native.Collectives, kind: Registration, operation: str, in_place: bool
) -> None:
    _supported(kind)
    for size_bytes in _BYTES:
        times = _time(collectives, kind, operation, size_bytes, in_place=in_place)
        undefined = in_place and operation in ("alltoall", "alltoallv", "sendrecv")
        assert undefined or times.coverage[0].verified > 0


def test_the_three_registrations_take_turns_on_one_communicator(collectives: _native.Collectives) -> None:
    _supported(Registration.WINDOW)
    for _, kind, operation in itertools.product(range(3), _KINDS, ("allreduce", "allgather")):
        _time(collectives, kind, operation, 2**22, in_place=False)
