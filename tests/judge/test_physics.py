"""Limits of hardware from products' pages, for each operation and pattern, and rates above them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path as File

import pytest

from collbench.judge.physics import Bottleneck, Check, hardware, impossible, marked
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Device, Machine, MarkKind, Path, Run
from collbench.runfile import run_file
from tests.builders import GIB, gpus, measured, run_of

RESULTS = File(__file__).parents[2] / "benchmarks" / "results"
Members = tuple[int, ...]


def machine(
    devices: tuple[Device, ...], links: Mapping[Members, int], each: float, *, slot: tuple[int, int] = (4, 16)
) -> Run:
    """Return an empty run of GPUs with NVLinks of `each` GB/s between some, and PCIe between all others."""
    pcie = {3: 15.75, 4: 31.5, 5: 63.0}[slot[0]] * slot[1] / 16
    paths = [
        Path(pair, f"NV{links[pair]}", "SYS", links[pair], links[pair] * each)
        if pair in links
        else Path(pair, "SYS", "SYS", 0, pcie)
        for pair in combinations(range(len(devices)), 2)
    ]
    slots = [replace(device, pcie_generation=slot[0], pcie_width=slot[1]) for device in devices]
    return run_of(slots, [], paths)


def switched(count: int, name: str = "NVIDIA H200", links: int = 18, each: float = 25.0) -> Run:
    return machine(gpus(count, name), dict.fromkeys(combinations(range(count), 2), links), each, slot=(5, 16))


def without_multicast(run: Run) -> Run:
    return replace(run, settings=replace(run.settings, environment={"NCCL_NVLS_ENABLE": "0"}))


HGX = switched(8)
NO_NVLS = without_multicast(HGX)
# The links of GPUs 0 to 3 in a DGX-1V: 0-1 and 1-2 single, 0-3, 1-3, 2-3, as `nvidia-smi topo -m` prints them.
MESH = machine(gpus(4, "Tesla V100"), {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}, 25.0)
CARDS = machine(gpus(4, "NVIDIA A40"), {}, 14.0)
BRIDGED = machine(gpus(4, "NVIDIA RTX A6000"), {(0, 1): 4, (2, 3): 4}, 14.0625)
GRACE = machine(gpus(2, "NVIDIA GH200 480GB"), {}, 25.0, slot=(5, 16))
NOT_CHOSEN = replace(HGX, machine=replace(HGX.machine, multicast=False))  # NCCL was asked
DGX_2 = switched(16, "Tesla V100", 6)
ALL = tuple(range(8))
Op, V, P = Operation, Variant, Bottleneck
FOUR = tuple(range(4))


@pytest.mark.parametrize(
    ("case", "run", "operation", "variant", "members", "gbs", "part"),
    [
        ("one way over all links of a port", HGX, Op.CE_WRITE, V.PLAIN, (0, 1), 450, P.LINK),
        ("a kernel's reads take the same link", HGX, Op.SM_READ, V.PLAIN, (5, 1), 450, P.LINK),
        ("both ways", HGX, Op.CE_WRITE, V.BOTH_WAYS, (0, 1), 900, P.LINK),
        ("one to all leaves by one port", HGX, Op.CE_WRITE, V.ONE_TO_ALL, ALL, 450, P.PORT),
        ("all to one comes in by one", HGX, Op.CE_READ, V.ALL_TO_ONE, ALL, 450, P.PORT),
        ("through host memory", HGX, Op.CE_WRITE, V.STAGED, (0, 1), 63, P.SLOT),
        ("to the host", HGX, Op.D2H_CE, V.HOST, (3,), 63, P.SLOT),
        ("memory of a Grace is behind NVLink", GRACE, Op.H2D_CE, V.HOST, (0,), 450, P.SLOT),
        ("two links of a mesh", MESH, Op.CE_WRITE, V.PLAIN, (0, 3), 50, P.LINK),
        # Messages of one size: the single links take as long for theirs as 25 GB/s makes it, 3 at once.
        ("one to all on a mesh waits for its narrowest link", MESH, Op.CE_WRITE, V.ONE_TO_ALL, FOUR, 75, "link"),
        ("cards over PCIe", CARDS, Op.SM_WRITE, V.PLAIN, (0, 1), 31.5, P.LINK),
        ("cards over PCIe, both ways", CARDS, Op.CE_WRITE, V.BOTH_WAYS, (0, 1), 63, P.LINK),
        ("one card to three", CARDS, Op.CE_WRITE, V.ONE_TO_ALL, FOUR, 31.5, P.SLOT),
        # Two of three messages share the slot: 3 messages in the time of 2 over 31.5 GB/s.
        ("one to all past a bridge", BRIDGED, Op.CE_WRITE, V.ONE_TO_ALL, FOUR, 1.5 * 31.5, P.SLOT),
        ("a pair's all-reduce, by its links", BRIDGED, Op.ALLREDUCE, V.PLAIN, (0, 1), 56.25, "port"),
        ("an all-reduce past bridges, by a bridge and a slot", BRIDGED, Op.ALLREDUCE, V.PLAIN, FOUR, 87.75, "port"),
        ("an all-reduce over ports", NO_NVLS, Op.ALLREDUCE, V.PLAIN, ALL, 450, P.PORT),
        ("an all-reduce that the switch adds: 2·7/8 of the port", HGX, Op.ALLREDUCE, V.PLAIN, ALL, 787.5, "port"),
        ("a switch that NCCL chose for no message", NOT_CHOSEN, Op.ALLREDUCE, V.PLAIN, ALL, 450, P.PORT),
        ("the switch saves two ranks nothing", HGX, Op.ALLREDUCE, V.PLAIN, (0, 1), 450, P.PORT),
        ("an all-gather's receivers, multicast or not", HGX, Op.ALLGATHER, V.PLAIN, ALL, 450, P.PORT),
        ("a reduce-scatter's senders", HGX, Op.REDUCESCATTER, V.IN_PLACE, ALL, 450, P.PORT),
        ("a broadcast", HGX, Op.BROADCAST, V.PLAIN, ALL, 450, P.PORT),
        ("a reduction", HGX, Op.REDUCE, V.PLAIN, ALL, 450, P.PORT),
        ("all to all", HGX, Op.ALLTOALL, V.PLAIN, ALL, 450, P.PORT),
        ("send and receive", HGX, Op.SENDRECV, V.PLAIN, ALL, 450, P.LINK),
        ("send and receive over a mesh, by its narrowest hop", MESH, Op.SENDRECV, V.PLAIN, FOUR, 25, P.LINK),
        ("gather, by the root's port", HGX, Op.GATHER, V.PLAIN, ALL, 450, P.PORT),
        ("scatter", HGX, Op.SCATTER, V.PLAIN, ALL, 450, P.PORT),
        ("an all-reduce over cards", CARDS, Op.ALLREDUCE, V.PLAIN, FOUR, 31.5, P.SLOT),
        ("a DGX-2, 6 links each", DGX_2, Op.CE_WRITE, V.ONE_TO_ALL, tuple(range(16)), 150, P.PORT),
        # 8 bytes in the time of light, 0.1 m there and back: 8 / 0.33356 ns.
        ("a load of another GPU's memory, by light", HGX, Op.CHASE, V.PLAIN, (0, 1), 23.98, P.LIGHT),
    ],
)  # fmt: skip
def test_the_narrowest_part_sets_the_limit(
    case: str, run: Run, operation: Operation, variant: Variant, members: Members, gbs: float, part: str
) -> None:
    capacity = hardware(run).of(DataPoint(operation, members, 8 if operation is Operation.CHASE else GIB, variant))
    assert capacity is not None, case
    assert capacity.gbs == pytest.approx(gbs, rel=1e-3), case
    assert capacity.part == part, case


@pytest.mark.parametrize(
    ("case", "run", "operation", "variant", "members"),
    [
        ("NVLinks whose rate nobody knows", run_of(gpus(2), []), Operation.CE_WRITE, Variant.PLAIN, (0, 1)),
        ("a collective over them", run_of(gpus(2), []), Operation.ALLREDUCE, Variant.PLAIN, (0, 1)),
        ("a slot that nobody reported", run_of(gpus(2), []), Operation.H2D_CE, Variant.HOST, (0,)),
        ("CPU cores", replace(CARDS, backend="host"), Operation.CPU_WRITE, Variant.PLAIN, (0, 1)),
    ],
)
def test_an_unknown_limit_is_none(
    case: str, run: Run, operation: Operation, variant: Variant, members: Members
) -> None:
    assert hardware(run).of(DataPoint(operation, members, GIB, variant)) is None, case


@pytest.mark.parametrize(
    ("case", "gbs", "count"), [("just below", 458.9, 0), ("just above 1.02 of the limit", 459.1, 1)]
)
def test_one_batch_beyond_the_margin_is_impossible(case: str, gbs: float, count: int) -> None:
    run = replace(HGX, measurements=[measured(Operation.CE_WRITE, (0, 1), [390.0, gbs, 391.0])])
    assert len(impossible(run)) == count, case


def test_a_run_that_grows_or_is_reported_otherwise_is_judged_again() -> None:
    run = replace(HGX, measurements=[measured(Operation.CE_WRITE, (0, 1), [390.0])])
    assert impossible(run) == []
    run.measurements[0].samples += measured(Operation.CE_WRITE, (0, 1), [600.0]).samples
    assert len(impossible(run)) == 1
    run.measurements.append(measured(Operation.CE_WRITE, (1, 0), [600.0]))
    assert len(impossible(run)) == 2
    assert impossible(replace(run, paths=())) == []
    assert len(impossible(run)) == 2


def test_another_root_has_limits_of_its_own() -> None:
    """GPU0 has four links, GPU2 five."""
    rooted = [replace(MESH, settings=replace(MESH.settings, root=root)) for root in (0, 2)]
    first, other = (hardware(run).of(DataPoint(Operation.GATHER, FOUR, GIB)) for run in rooted)
    assert first is not None
    assert other is not None
    assert other.gbs == pytest.approx(first.gbs * 5 / 4)


def test_what_is_found_names_place_rate_and_limit_and_the_samples_are_marked() -> None:
    run = replace(HGX, measurements=[measured(Operation.CE_WRITE, (2, 1), [390.0, 600.0, 391.0])])
    (rate,) = impossible(run)
    assert (rate.point.members, rate.capacity.devices, rate.batches, rate.of) == ((2, 1), (2, 1), 2, 6)
    assert rate.rate_gbs == pytest.approx(600)
    assert rate.capacity.gbs == 450.0
    assert marked(run)
    marks = [sample.marks for sample in run.measurements[0].samples]
    assert [len(each) for each in marks] == [0, 1, 0]
    flag = marks[1][0]
    assert (flag.kind, flag.devices, flag.limit_gbs) == (MarkKind.IMPOSSIBLE, (2, 1), 450.0)
    assert flag.rate_gbs == pytest.approx(600)
    assert run_file.loads(run_file.dumps(run), "again").measurements == run.measurements


def test_a_copy_that_shows_nvlinks_behind_a_pcie_label_is_not_impossible() -> None:
    hidden = [measured(Operation.CE_WRITE, pair, 52.0) for pair in ((0, 1), (1, 0))]
    slow = [measured(Operation.CE_WRITE, pair, 22.0) for pair in ((0, 2), (2, 0), (1, 2), (2, 1))]
    collective = measured(Operation.ALLREDUCE, (0, 1), 50.0)
    assert impossible(replace(CARDS, measurements=[*hidden, *slow, collective])) == []
    assert Check(replace(CARDS, measurements=[*hidden, *slow])).hidden == {frozenset((0, 1))}


@pytest.mark.parametrize(
    ("case", "operation", "members", "gbs"),
    [
        ("an all-reduce, where copies show PCIe", Operation.ALLREDUCE, (0, 2), 150.0),
        ("a kernel's reads out of a cache", Operation.SM_READ, (0, 2), 900.0),
        ("a single wild batch", Operation.CE_WRITE, (2, 0), 100.0),
    ],
)
def test_what_copies_refute_is_no_hidden_nvlink(case: str, operation: Operation, members: Members, gbs: float) -> None:
    copies = [measured(Operation.CE_WRITE, (0, 2), 22.0), measured(operation, members, [22.0, gbs, 22.0])]
    (rate,) = impossible(replace(CARDS, measurements=copies))
    assert rate.point.operation is operation, case


def test_without_copies_a_collective_may_show_hidden_nvlinks_up_to_all_that_a_gpu_has() -> None:
    """A virtual machine that hides the NVSwitch: nothing but the all-reduce was timed."""
    run = machine(gpus(4), {}, 25.0)
    run = replace(run, machine=Machine("vm", "Linux", "", multicast=False))
    assert impossible(replace(run, measurements=[measured(Operation.ALLREDUCE, FOUR, 200.0)])) == []
    assert impossible(replace(run, measurements=[measured(Operation.ALLREDUCE, FOUR, 400.0)]))
