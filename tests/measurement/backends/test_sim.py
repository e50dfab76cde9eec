"""The sim backend: the times that it draws, what it refuses, and that its runs cannot be mistaken for measured ones."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.judge.physics import impossible
from collbench.judge.stats import summarize
from collbench.machine import kernel, theory
from collbench.measurement.backends import factory
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.plan import Request
from collbench.model.errors import DataCorruption, MachineError
from collbench.model.operations import Operation, Skew, SkewKind, Variant, Work
from collbench.model.run import Run, StopReason
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Fault, FaultKind, Noise
from tests.sim.made import QUIET, complete, faulty, request, simulate, tree

QUIET_DGX = replace(fabrics.load("dgx-1v"), noise=QUIET)
QUIET_H200 = replace(fabrics.load("hgx-h200"), noise=QUIET)
GIB = 2**30


def step(operation: Operation, *groups: tuple[int, ...], size: int = GIB, variant: Variant = Variant.PLAIN) -> Step:
    return Step(Work(operation, variant), groups, size, iterations=4, batches=2)


def gbs(backend: SimBackend, timed: Step) -> list[float]:
    """Return each group's algorithm bandwidth, GB/s of one message."""
    return [timed.size_bytes / np.median(batches) / 1e9 for batches in backend.time(timed).seconds]


@pytest.mark.parametrize(
    ("title", "timed", "expected"),
    [
        ("one NVLink", step(Operation.CE_WRITE, (0, 1)), [24.2]),
        ("two of them", step(Operation.CE_WRITE, (0, 3)), [48.3]),
        ("no NVLink: through the host", step(Operation.CE_WRITE, (0, 5)), [9.5]),
        ("both ways at once, each at its rate", step(Operation.CE_WRITE, (0, 1), variant=Variant.BOTH_WAYS), [24.2]),
        ("staged", step(Operation.CE_WRITE, (0, 1), variant=Variant.STAGED), [9.5]),
        ("to the host", step(Operation.D2H_CE, (0,), variant=Variant.HOST), [12.4]),
        ("a pair's all-reduce", step(Operation.ALLREDUCE, (0, 3)), [2 * 24.17 * 0.92]),
        ("two pairs at once", step(Operation.ALLREDUCE, (0, 3), (4, 7)), [2 * 24.17 * 0.92] * 2),
        ("six rings of eight", step(Operation.ALLREDUCE, tuple(range(8))), [6 * 24.17 * 0.92 / (2 * 7 / 8)]),
        ("a broadcast over them", step(Operation.BROADCAST, tuple(range(8))), [6 * 24.17 * 0.92]),
    ],
)
def test_without_noise_a_large_message_takes_its_size_over_its_rate(
    title: str, timed: Step, expected: list[float]
) -> None:
    assert gbs(SimBackend(QUIET_DGX, seed=1), timed) == pytest.approx(expected, rel=0.005), title


@pytest.mark.parametrize(
    ("title", "timed", "microseconds"),
    [
        ("a small copy", step(Operation.CE_WRITE, (0, 1), size=8), 2.2),
        ("a small staged copy", step(Operation.CE_WRITE, (0, 1), size=8, variant=Variant.STAGED), 17),
        ("a small all-reduce of two", step(Operation.ALLREDUCE, (0, 1), size=8), 5.5),
        ("a small all-reduce of four", step(Operation.ALLREDUCE, (0, 1, 2, 3), size=8), 7.7),
        ("a pointer chase", step(Operation.CHASE, (0, 1), size=8), 0.8),
    ],
)
def test_small_messages_of_h200_take_what_was_measured(title: str, timed: Step, microseconds: float) -> None:
    """docs/method/collectives.md 2; small copies by p2pBandwidthLatencyTest of that machine; the chase 0.7 to 1 µs."""
    backend = SimBackend(QUIET_H200, seed=1)
    timing = backend.time(timed)
    assert timing.seconds[0][0] * 1e6 == pytest.approx(microseconds, rel=0.15), title


def test_noise_is_as_the_fabric_defines_it() -> None:
    noisy = replace(QUIET_DGX, noise=Noise(trial=0.02, batch=0.005))
    backend = SimBackend(noisy, seed=5)
    copy = step(Operation.CE_WRITE, (0, 1))
    batches = np.log([backend.time(copy).seconds[0] for _ in range(4000)])
    within = float(np.std(batches[:, 0] - batches[:, 1])) / np.sqrt(2)
    assert within == pytest.approx(0.005, rel=0.1)
    assert float(np.std(batches.mean(axis=1))) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("title", "work", "members", "expected"),
    [
        ("a kernel over NVLink", Work(Operation.SM_WRITE), (0, 1), True),
        ("a kernel without peer access", Work(Operation.SM_WRITE), (0, 5), False),
        ("the copy engine without peer access", Work(Operation.CE_READ), (0, 5), True),
        ("a chase without peer access", Work(Operation.CHASE), (0, 5), False),
        ("a chase of host memory", Work(Operation.CHASE, Variant.HOST), (0,), True),
        ("staged", Work(Operation.CE_WRITE, Variant.STAGED), (0, 5), True),
        (
            "a kernel to all others, one of them out of reach",
            Work(Operation.SM_READ, Variant.ONE_TO_ALL),
            (0, 1, 5),
            False,
        ),
    ],
)
def test_what_it_can_run(title: str, work: Work, members: tuple[int, ...], expected: bool) -> None:
    assert (SimBackend(QUIET_DGX, seed=1).can_run(work, members) is None) is expected, title


def test_a_corrupt_link_raises_with_its_offset_and_its_neighbours_do_not() -> None:
    fault = Fault(FaultKind.CORRUPT_LINK, (0, 1), one_way=True, offset=4711)
    backend = SimBackend(faulty(complete(3), fault), seed=1)
    for operation, size, offset in (
        (Operation.CE_WRITE, GIB, 4711),
        (Operation.ALLREDUCE, GIB, 4711),
        (Operation.CE_WRITE, 4096, 615),  # within the message
    ):
        with pytest.raises(DataCorruption) as caught:
            backend.time(step(operation, (0, 1), size=size))
        wrong = caught.value.wrong
        assert wrong is not None
        assert (wrong.work.operation, wrong.members, wrong.offset) == (operation, (0, 1), offset)
    for healthy in ((1, 0), (0, 2)):
        backend.time(step(Operation.CE_WRITE, healthy))
    backend.time(step(Operation.CE_WRITE, (0, 1), variant=Variant.STAGED))


@pytest.mark.parametrize(("gpu", "node", "expected"), [(0, None, 20), (0, 0, 20), (0, 1, 5), (2, 1, 20), (2, 0, 5)])
def test_host_memory_of_the_other_socket_is_behind_the_sockets_link(
    gpu: int, node: int | None, expected: float
) -> None:
    fabric = tree(("root0", "root0", "root2"))
    backend = SimBackend(replace(fabric, sockets=replace(fabric.sockets, gbs=5)), seed=1)
    assert backend.numa_nodes() == (0, 1)
    for operation in (Operation.H2D_CE, Operation.D2H_CE):
        host_copy = replace(step(operation, (gpu,)), work=Work(operation, Variant.HOST, node))
        assert gbs(backend, host_copy) == pytest.approx([expected], rel=0.01)


EVERYONE = tuple((a, *(b for b in range(8) if b != a)) for a in range(8))


@pytest.mark.parametrize(
    ("title", "timed", "expected"),
    [
        # Two GPUs of a DGX-1V share a switch's uplink of 12.4 GB/s each way.
        ("all at once", step(Operation.D2H_CE, *EVERYONE, variant=Variant.HOST_ALL), [6.2] * 8),
        ("one of them is timed", step(Operation.D2H_CE, EVERYONE[3], variant=Variant.HOST_ALL), [6.2]),
        ("two that share nothing", step(Operation.D2H_CE, (0, 2), (2, 0), variant=Variant.HOST_ALL), [12.4] * 2),
        ("both ways", step(Operation.D2H_CE, (0,), variant=Variant.HOST_BOTH_WAYS), [12.4]),
        ("all in both", step(Operation.D2H_CE, *EVERYONE, variant=Variant.HOST_ALL_BOTH_WAYS), [6.2] * 8),
        # A V100-SXM2's memory has 900 GB/s; 0.87 of the half, as an H200's.
        ("local", step(Operation.CE_WRITE, (0,), (5,), variant=Variant.LOCAL), [391.5] * 2),
    ],
)
def test_host_copies_share_the_switch_above_their_gpus(title: str, timed: Step, expected: list[float]) -> None:
    assert gbs(SimBackend(QUIET_DGX, seed=1), timed) == pytest.approx(expected, rel=0.01), title


@pytest.mark.parametrize("name", fabrics.names())
def test_no_shipped_gpu_has_the_memory_of_another_product(name: str) -> None:
    """A simulated A40 once copied 2,076 GB/s within a memory of 696."""
    assert all(theory.product(gpu.name).memory_gbs for gpu in fabrics.load(name).gpus)


def test_wrong_times_make_links_look_faster() -> None:
    backend = SimBackend(faulty(complete(3), Fault(FaultKind.MISTIMED, (0, 1), factor=3)), seed=1)
    rates = gbs(backend, step(Operation.CE_WRITE, (0, 1))) + gbs(backend, step(Operation.CE_WRITE, (0, 2)))
    assert rates == pytest.approx([30, 10], rel=0.01)


def test_budgets_count_the_simulated_machines_time() -> None:
    """A slow machine gets what it is owed and no more; a fast one gets trials until its data points are settled."""
    noisy = replace(complete(3), noise=Noise(trial=0.05, batch=0.01))
    short, long = (simulate(noisy, request(budget_seconds=budget), seed=1) for budget in (1e-6, 1e6))
    assert {measurement.stop for measurement in short.measurements} >= {StopReason.BUDGET}
    assert StopReason.BUDGET not in {measurement.stop for measurement in long.measurements}
    assert long.seconds > short.seconds > 0


def _uneven(fabric: Fabric, skew: Skew | None, size: int) -> Run:
    work = Work(Operation.ALLTOALLV, skew=skew)
    return simulate(fabric, request(copies=(), collectives=(work,), pairs=False, sizes=(size,)), seed=1)


@pytest.mark.parametrize("exponent", [0.5, 1.2, 4.0])
def test_the_busiest_ranks_port_bounds_uneven_blocks(exponent: float) -> None:
    """At one size the busiest rank moves about as much as of even blocks, and no true figure is impossible."""
    even = summarize(_uneven(QUIET_H200, None, 2**28).measurements[0])
    run = _uneven(QUIET_H200, Skew(SkewKind.ZIPF, exponent, 5), 2**28)
    uneven = summarize(run.measurements[0])
    assert even.busbw == pytest.approx(uneven.busbw, rel=0.05)
    assert impossible(run) == []


def test_half_the_time_of_a_port_is_impossible() -> None:
    run = _uneven(QUIET_H200, Skew(SkewKind.ZIPF, 1.2, 5), 2**28)
    measurement = run.measurements[0]
    measurement.samples[:] = [
        replace(sample, seconds=tuple(s / 2 for s in sample.seconds)) for sample in measurement.samples
    ]
    assert [violation.point for violation in impossible(run)] == [measurement.point]


def test_a_ranks_block_for_itself_uses_no_link() -> None:
    """Its busbw counts it, as nccl-tests' does, and may exceed any port's: that is not impossible."""
    ranks = 8
    blocks = tuple(tuple(2**27 if a == b else 2**17 for b in range(ranks)) for a in range(ranks))
    run = _uneven(QUIET_H200, Skew(SkewKind.MATRIX, matrix=blocks), 2**27 + 7 * 2**17)
    assert summarize(run.measurements[0]).busbw > 450
    assert impossible(run) == []


def test_auto_never_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert factory.resolve("auto")[0] == "host"
    assert factory.resolve("sim") == ("sim", None)


def test_auto_takes_no_cores_where_the_kernel_shows_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their driver's libraries: opening them says what is wrong, and cores would not be asked for."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(kernel, "has_gpu_files", lambda: True)
    assert factory.resolve("auto") == ("cuda", None)
    with pytest.raises(MachineError, match="driver"):
        factory.open_backend(Request(backend="cuda"))
