"""NCCL's all-reduce and broadcast on real GPUs, every element checked in every type and reduction."""

from __future__ import annotations

import itertools

import pytest

from collbench import _native
from tests.gpu.machine import need_gpus, need_nccl, open_gpus

ORDINALS = need_gpus(2)
NCCL = need_nccl()
# In the order of ncclDataType_t and ncclRedOp_t [nccl.h 2.18], with each type's bytes.
_DTYPES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
}
_REDUCTIONS = ("sum", "prod", "max", "min", "avg")
_EVERYONE = list(range(len(ORDINALS)))
_COUNTS = (1, 3, 1025, 65537)


@pytest.fixture(scope="module")
def collectives() -> _native.Collectives:
    return _native.Collectives(open_gpus(ORDINALS, 2**23), NCCL)


def _time(collectives: _native.Collectives, groups: list[list[int]], count: int, **plan: int) -> list[list[float]]:
    """Return the block times; `plan` needs dtype and width."""
    all_plan = {"broadcast": 0, "reduction": 0, "root": 0, "launch_iterations": 0} | plan
    seconds, _ = collectives.time(
        groups=groups,
        broadcast=bool(all_plan.pop("broadcast")),
        count=count,
        iterations=3,
        blocks=2,
        warmup=1,
        **all_plan,
    )
    return seconds


@pytest.mark.parametrize("reduction", range(len(_REDUCTIONS)), ids=_REDUCTIONS)
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_allreduce_of_all_gpus(collectives: _native.Collectives, dtype: int, reduction: int) -> None:
    width = list(_DTYPES.values())[dtype]
    for count in _COUNTS:
        (seconds,) = _time(collectives, [_EVERYONE], count, dtype=dtype, width=width, reduction=reduction)
        assert min(seconds) > 0


@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_broadcast_from_every_root(collectives: _native.Collectives, dtype: int) -> None:
    width = list(_DTYPES.values())[dtype]
    for root in _EVERYONE:
        (seconds,) = _time(collectives, [_EVERYONE], 1025, dtype=dtype, width=width, broadcast=1, root=root)
        assert min(seconds) > 0


@pytest.mark.parametrize("broadcast", [0, 1], ids=["allreduce", "broadcast"])
def test_every_pair_alone(collectives: _native.Collectives, broadcast: int) -> None:
    for pair in itertools.combinations(_EVERYONE, 2):
        for group in (list(pair), list(reversed(pair))):
            (seconds,) = _time(collectives, [group], 65537, dtype=7, width=4, broadcast=broadcast, root=1)
            assert min(seconds) > 0


@pytest.mark.skipif(len(ORDINALS) < 3, reason="needs 3 GPUs: averages over three ranks round")
@pytest.mark.parametrize("dtype", range(len(_DTYPES)), ids=tuple(_DTYPES))
def test_averages_over_three_ranks(collectives: _native.Collectives, dtype: int) -> None:
    width = list(_DTYPES.values())[dtype]
    (seconds,) = _time(collectives, [[0, 1, 2]], 65537, dtype=dtype, width=width, reduction=4)
    assert min(seconds) > 0


@pytest.mark.skipif(len(ORDINALS) < 4, reason="needs 4 GPUs: two pairs at once")
def test_two_pairs_at_once_and_again_from_the_kept_chain(collectives: _native.Collectives) -> None:
    for _ in range(2):
        seconds = _time(collectives, [[0, 1], [2, 3]], 65537, dtype=9, width=2)
        assert min(itertools.chain.from_iterable(seconds)) > 0


def test_the_launch_loop_is_timed_for_each_group(collectives: _native.Collectives) -> None:
    _, launches = collectives.time(
        groups=[[0, 1]],
        broadcast=False,
        dtype=7,
        reduction=0,
        root=0,
        count=2,
        width=4,
        iterations=20,
        blocks=1,
        warmup=1,
        launch_iterations=20,
    )
    assert len(launches) == 1
    assert launches[0] > 0
