"""Single launches on real GPUs: times beside the launch loop's, and a rank that is held back on purpose."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.analysis.tails import Tails, tails_of
from collbench.bench.sweep import latency_of
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Device, RankLaunches
from tests.gpu.machine import need_gpus, need_nccl, open_gpus

ORDINALS = need_gpus(2)
NCCL = need_nccl()
_RANKS = tuple(range(len(ORDINALS)))
_LAUNCHES = 500


@pytest.fixture(scope="module")
def collectives() -> _native.Collectives:
    return _native.Collectives(open_gpus(ORDINALS, 2**25), NCCL)


def _time(collectives: _native.Collectives, count: int, held: int = -1) -> tuple[_native.CollectiveTimes, Tails]:
    times = collectives.time(
        _native.CollectiveRound(
            groups=[list(_RANKS)],
            operation=_native.Collective.__members__["allreduce"],
            dtype=_native.Dtype.__members__["float32"],
            reduction=_native.Reduction.__members__["sum"],
            root=0,
            count=count,
            in_place=False,
            verify=True,
            iterations=4,
            batches=1,
            warmup=1,
            launch_iterations=100,
            launch_warmup=5,
            deadline=30.0,
            single_launches=_LAUNCHES,
            hold_rank=held,
            hold_nanoseconds=50_000 if held >= 0 else 0,
        )
    )
    ranks = [
        RankLaunches(tuple(one.arrived), tuple(one.left), one.cost, one.uncertainty, one.step) for one in times.singles
    ]
    devices = [Device(rank, f"GPU-{rank}", "") for rank in _RANKS]
    return times, tails_of(latency_of(DataPoint(Operation.ALLREDUCE, _RANKS, 4 * count), ranks, devices))


def test_the_clocks_are_read_closely(collectives: _native.Collectives) -> None:
    times, found = _time(collectives, 2)

    assert [one.rank for one in times.singles] == list(_RANKS)
    for one in times.singles:
        assert 0 < one.step <= 2_000  # ns; 32 or 1,000 have been reported
        assert one.uncertainty < 10_000
        assert 0 < one.cost < 20_000
    assert found.count == _LAUNCHES


@pytest.mark.parametrize("count", [2**18, 2**22])
def test_the_median_is_near_the_launch_loop(collectives: _native.Collectives, count: int) -> None:
    times, found = _time(collectives, count)

    assert found.transfer is not None
    assert found.transfer.at(50) == pytest.approx(times.launch_seconds[0], rel=0.1)


@pytest.mark.parametrize("rank", _RANKS)
@pytest.mark.parametrize("count", [2, 2**20])
def test_a_rank_that_is_held_back_is_named(collectives: _native.Collectives, count: int, rank: int) -> None:
    _, found = _time(collectives, count, held=rank)

    assert [late.member for late in found.late] == [rank]
    arrives = found.ranks[rank].arrives
    assert arrives is not None
    assert arrives.median == pytest.approx(50e-6, abs=5e-6)
