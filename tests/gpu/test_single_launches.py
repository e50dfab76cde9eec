"""Single launches on real GPUs: times compared with the launch loop's, and a rank that is held back on purpose."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.judge.tails import Tails, tails_of
from collbench.measurement.sweep import latency_of
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


def _time(collectives: _native.Collectives, count: int, held_rank: int = -1) -> tuple[_native.CollectiveTimes, Tails]:
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
            hold_rank=held_rank,
            hold_nanoseconds=50_000 if held_rank >= 0 else 0,
        )
    )
    ranks = [
        RankLaunches(tuple(launches.arrived), tuple(launches.left), launches.cost, launches.uncertainty, launches.step)
        for launches in times.singles
    ]
    devices = [Device(rank, f"GPU-{rank}", "") for rank in _RANKS]
    return times, tails_of(latency_of(DataPoint(Operation.ALLREDUCE, _RANKS, 4 * count), ranks, devices))


def test_the_clocks_are_read_closely(collectives: _native.Collectives) -> None:
    times, summary = _time(collectives, 2)

    assert [launches.rank for launches in times.singles] == list(_RANKS)
    for launches in times.singles:
        assert 0 < launches.step <= 2_000  # ns; 32 or 1,000 have been reported
        assert launches.uncertainty < 10_000
        assert 0 < launches.cost < 20_000
    assert summary.count == _LAUNCHES


@pytest.mark.parametrize("count", [2**20, 2**22])  # at 1 MiB the loop may wait for a slow host
def test_the_median_is_near_the_launch_loop(collectives: _native.Collectives, count: int) -> None:
    times, summary = _time(collectives, count)

    assert summary.transfer is not None
    assert summary.transfer.at(50) == pytest.approx(times.launch_seconds[0], rel=0.1)


@pytest.mark.parametrize("rank", _RANKS)
@pytest.mark.parametrize("count", [2, 2**20])
def test_a_rank_that_is_held_back_is_named(collectives: _native.Collectives, count: int, rank: int) -> None:
    _, summary = _time(collectives, count, held_rank=rank)

    assert [late_rank.member for late_rank in summary.late] == [rank]
    arrives = summary.ranks[rank].arrives
    assert arrives is not None
    assert arrives.median == pytest.approx(50e-6, abs=5e-6)
