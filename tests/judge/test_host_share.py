"""What host links keep while others are busy, over what they reach isolated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.choose.fitness import broken_pairs
from collbench.judge.outcome import outcome
from collbench.judge.physics import Check
from collbench.judge.summary import host_shares
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement
from collbench.report.rows import rows
from tests.builders import gpus, measured, run_of

MIB, GIB = 2**20, 2**30
IN, OUT = Operation.H2D_CE, Operation.D2H_CE


def host(
    operation: Operation,
    variant: Variant,
    members: tuple[int, ...],
    gbs: float,
    size: int = GIB,
    node: int | None = None,
) -> Measurement:
    found = measured(operation, members, gbs, size)
    found.point = replace(found.point, variant=variant, numa_node=node)
    return found


def test_all_devices_are_compared_with_their_isolated_copies_in_the_same_direction() -> None:
    points = [host(IN, Variant.HOST, (0,), 50), host(IN, Variant.HOST, (1,), 40), host(OUT, Variant.HOST, (0,), 25)]
    points += [host(IN, Variant.HOST_ALL, (0, 1), 25), host(IN, Variant.HOST_ALL, (1, 0), 30)]
    points += [host(OUT, Variant.HOST_ALL, (0, 1), 20), host(OUT, Variant.HOST_ALL, (1, 0), 20)]  # 1 never isolated
    points += [host(IN, Variant.HOST_BOTH_WAYS, (0,), 20)]  # of one device
    assert host_shares(run_of(gpus(2), points)) == {Work(IN, Variant.HOST_ALL): pytest.approx(55 / 90)}


def test_the_largest_size_is_compared_with_its_own() -> None:
    points = [host(IN, Variant.HOST, (0,), 50, size) for size in (MIB, GIB)]
    points += [host(IN, Variant.HOST_ALL, (0, 1), gbs, size) for size, gbs in ((MIB, 10), (GIB, 45))]
    assert host_shares(run_of(gpus(2), points)) == {Work(IN, Variant.HOST_ALL): pytest.approx(0.9)}


def test_each_node_has_its_own_and_none_is_each_devices_own() -> None:
    devices = tuple(replace(gpu, numa_node=node) for gpu, node in zip(gpus(2), (0, 1), strict=True))
    points = [host(IN, Variant.HOST, (gpu,), gbs, node=node)
              for gpu, node, gbs in ((0, 0, 50), (0, 1, 40), (1, 0, 20), (1, 1, 60))]  # fmt: skip
    points += [host(IN, Variant.HOST_ALL, members, 15, node=node) for members in ((0, 1), (1, 0)) for node in (None, 0)]
    assert host_shares(run_of(devices, points)) == {
        Work(IN, Variant.HOST_ALL): pytest.approx(30 / 110),
        Work(IN, Variant.HOST_ALL, 0): pytest.approx(30 / 70),
    }


@pytest.mark.parametrize(
    ("title", "operation", "variant", "members", "size", "limit"),
    [
        # PCIe of generation 5 carries 63 GB/s each way, whoever else copies; an H200's memory has 4,800.
        ("both ways", IN, Variant.HOST_BOTH_WAYS, (0,), GIB, 63.0),
        ("all at once", OUT, Variant.HOST_ALL, (1, 0), GIB, 63.0),
        ("all in both directions", OUT, Variant.HOST_ALL_BOTH_WAYS, (0, 1), GIB, 63.0),
        ("a local copy reads and writes", Operation.CE_WRITE, Variant.LOCAL, (0,), GIB, 2400.0),
        ("what a cache may hold has no limit", Operation.CE_WRITE, Variant.LOCAL, (0,), 64 * MIB, None),
    ],
)
def test_what_hardware_carries(
    title: str, operation: Operation, variant: Variant, members: tuple[int, ...], size: int, limit: float | None
) -> None:
    devices = tuple(
        replace(gpu, name="NVIDIA H200", pcie_generation=5, pcie_width=16, memory_bytes=141 * GIB) for gpu in gpus(2)
    )
    found = host(operation, variant, members, 10, size)
    capacity = Check(run_of(devices, [found])).limit(found.point, 10.0)
    assert (capacity.gbs if capacity else None) == limit, title


def test_a_failure_of_all_at_once_is_that_of_the_device_that_was_timed() -> None:
    failed = Failure(FailureKind.ERROR, Cause.REFUSED)
    points = [host(IN, Variant.HOST_ALL, members, 25) for members in ((0, 1), (1, 0))]
    points[1].samples, points[1].failure = [], failed
    run = run_of(gpus(2), points)
    assert outcome(run).device_sets == ((1,),)
    assert broken_pairs(run) == set()
    assert rows(run)[0]["label"] is None  # two devices, and no link
