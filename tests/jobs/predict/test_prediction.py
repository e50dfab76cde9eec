"""What a step costs: by hand, by properties, and beside what was measured on GPUs."""

import io
import tarfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collbench.jobs.predict import networks
from collbench.jobs.predict.assumptions import LikePair
from collbench.jobs.predict.networks import Network, Unit
from collbench.jobs.predict.page import assumptions
from collbench.jobs.predict.predict import Predictor, groups
from collbench.jobs.predict.step import STRATEGIES, Group, Phases
from collbench.jobs.predict.timing import gather
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.runfile import run_file
from tests.builders import gpus, run_of
from tests.jobs.predict.made import MIB, SMALL, answer, curve, pairs, question, simulated

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LATENCY = 5e-6
NVLINK_PAIR = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)


def test_ddp_on_two_by_hand() -> None:
    """SMALL in fp32 makes buckets of 2 and 16 MiB; each takes 5 µs and its bytes over 100 or 10 GB/s.

    Of 3 ms of compute 2 are backward. The first bucket is ready after an eighth of it, the other at its end.
    """
    (case,) = answer(question(step_seconds=3e-3), NVLINK_PAIR).cases
    assert (case.sent, case.messages) == ({AR: 18 * MIB}, {AR: 2})
    assert case.bus_bytes == 18 * MIB
    assert case.worst is not None
    for cost, gbs in ((case.best, 100e9), (case.worst, 10e9)):
        first, second = LATENCY + 2 * MIB / gbs, LATENCY + 16 * MIB / gbs
        assert cost.raw == pytest.approx((first + second,) * 3, rel=1e-3)
        # Wire rates of 2 MiB over 10 GB/s, 0.21 ms, end long before backward does: 1.75 ms later.
        assert cost.exposed == pytest.approx((0.0, second, first + second), abs=1e-7)
        assert cost.step == pytest.approx((3e-3, 3e-3 + second, 3e-3 + first + second))
        assert cost.share(cost.raw) == pytest.approx((first + second) / (3e-3 + second), rel=1e-3)
    slower = 16 * MIB / 10e9 - 16 * MIB / 100e9
    assert case.lost is not None
    assert case.lost[1] == pytest.approx(slower, rel=1e-3)
    assert case.lost_share == pytest.approx(slower / (3e-3 + LATENCY + 16 * MIB / 100e9), rel=1e-3)


def test_perfect_overlap_leaves_what_compute_cannot_cover() -> None:
    (case,) = answer(question(step_seconds=1e-3), NVLINK_PAIR).cases
    assert case.worst is not None
    assert case.worst.exposed is not None
    assert case.worst.exposed[0] == pytest.approx(2 * LATENCY + 18 * MIB / 10e9 - 1e-3, rel=1e-3)


def test_without_a_step_time_there_is_the_raw_time_alone() -> None:
    (case,) = answer(question(), NVLINK_PAIR).cases
    assert (case.best.exposed, case.best.step, case.best.share(case.best.raw), case.lost_share) == (None,) * 4
    assert case.worst is not None
    assert case.lost == pytest.approx((case.worst.raw[1] - case.best.raw[1],) * 3)


def test_the_step_of_the_best_set_is_taken_apart() -> None:
    """A step that was measured with its communication inside leaves the compute that gives it again."""
    asked = question(step_seconds=5e-3, measured_on_best=True)
    (case,) = answer(asked, NVLINK_PAIR).cases
    assert case.compute == pytest.approx(5e-3 - LATENCY - 16 * MIB / 100e9, rel=1e-3)
    assert case.best.step is not None
    assert case.best.step[1] == pytest.approx(5e-3)


def test_ddp_behind_a_slow_host_by_hand() -> None:
    """A step of 3 ms of which the GPU needs 1: its second bucket is ready with the host's backward, at 3 ms or before.

    Of four equal parts forward takes two, backward one, the optimizer one: 16 MiB are ready at 2.25 ms, and the host's
    optimizer hides 0.75 of what they take.
    """
    asked = question(step_seconds=3e-3, gpu_seconds=1e-3, host_phases=Phases(2, 1, 1))
    (case,) = answer(asked, NVLINK_PAIR).cases
    assert case.worst is not None
    assert case.best.exposed is not None
    assert case.worst.exposed is not None
    last = LATENCY + 16 * MIB / 10e9
    assert case.best.exposed[1] == 0  # 0.17 ms
    # The first bucket, 2 MiB, is ready with the last block's half: 1.5 ms and an eighth of 0.75. It ends before 2.25.
    assert case.worst.exposed[1] == pytest.approx(2.25e-3 + last - 3e-3, rel=1e-3)


def test_new_parameters_are_gathered_after_the_hosts_optimizer() -> None:
    asked = question(SMALL, "zero1", 2, step_seconds=3e-3, gpu_seconds=1e-3, host_phases=Phases(1, 1, 2))
    (case,) = answer(asked, NVLINK_PAIR).cases
    assert case.best.exposed is not None
    gather = LATENCY + 18 * MIB / 2 / 100e9  # a pair's all-gather is as long as the all-reduce of half
    assert case.best.exposed[1] == pytest.approx(gather, rel=0.01)  # between two measured sizes


def test_a_step_shorter_than_its_communication_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--step-time 0.01ms is less than ddp's communication alone takes on GPU0"):
        answer(question(step_seconds=1e-5, measured_on_best=True), NVLINK_PAIR)


@pytest.mark.parametrize(
    ("group", "sets"),
    [
        (Group.ALL, [(1, 3, 5, 6)]),
        (Group.SHARD, [(1, 3), (5, 6)]),
        (Group.REPLICA, [(1, 5), (3, 6)]),
    ],
)
def test_hsdp_shards_among_neighbours_and_copies_across(group: Group, sets: list[tuple[int, ...]]) -> None:
    assert groups(group, (1, 3, 5, 6), 2) == sets


def test_hsdp_on_two_nvlink_pairs_keeps_the_large_messages_inside_them() -> None:
    """Gathers and scatters over the bridges at 100 GB/s, only half of each gradient across them."""
    asked = question(networks.find("gpt2"), "hsdp", 4, shards=2)
    (case,) = answer(asked, NVLINK_PAIR).cases
    (across,) = answer(replace(asked, strategies=("fsdp",)), NVLINK_PAIR).cases
    gradients = 4 * 124_439_808
    root = 4 * networks.find("gpt2").root_parameters
    inside = ((2 * gradients - root) / 2 + gradients / 2) / 100e9  # n−1 of n bytes: a pair's all-reduce of half of each
    assert case.best.raw[1] == pytest.approx(inside + gradients / 2 / 10e9, rel=0.02)
    assert case.best.raw[1] < across.best.raw[1]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "--strategy hsdp needs --shard N"),
        ({"shards": 3}, "--shard 3 does not divide 4 GPUs"),
        ({"shards": 8}, "--shard 8 does not divide 4 GPUs"),
    ],
)
def test_copies_that_do_not_come_out_even_are_refused(changes: dict[str, int], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        answer(question(SMALL, "hsdp", 4, **changes), NVLINK_PAIR)


def test_what_was_assumed_is_said_once() -> None:
    reported = answer(question(SMALL, "fsdp", 4, step_seconds=1e-3), NVLINK_PAIR).assumed
    assert len(reported) == len(set(reported))
    ring = next(one for one in reported if isinstance(one.what, LikePair))
    assert (ring.operations, ring.sets) == ((AG, RS), ((0, 1, 2, 3),))
    (said,) = assumptions([ring], gpus(4))
    assert said.startswith("all-gather and reduce-scatter on GPU0, GPU1, GPU2, GPU3: a ring at ")


def test_measured_collectives_of_all_gpus_leave_nothing_to_assume_of_them() -> None:
    points = [point for operation in (AG, RS) for point in curve(operation, range(4), 60.0)]
    reported = answer(question(SMALL, "fsdp", 4), NVLINK_PAIR, run_of(gpus(4), points)).assumed
    assert [one for one in reported if one.operations] == []


# --- properties ---

rates = st.lists(st.floats(5, 400), min_size=6, max_size=6, unique=True)
steps = st.sampled_from([None, 1e-3, 2e-2])
strategies = st.sampled_from(sorted(STRATEGIES))


def raws(run: Run, strategy: str, gpus_: int, step: float | None, network: Network = SMALL) -> list[float]:
    asked = question(network, strategy, gpus_, step_seconds=step, shards=2 if gpus_ % 2 == 0 else gpus_)
    (case,) = answer(asked, run).cases
    costs = [cost for cost in (case.best, case.worst) if cost is not None]
    return [value for cost in costs for value in (*cost.raw, *(cost.exposed or ()), *(cost.step or ()))]


@settings(max_examples=15)
@given(rates, strategies, st.integers(2, 4), steps, st.permutations(range(4)))
@example([5.0, 16.0, 17.0, 18.0, 19.0, 20.0], "ddp", 4, None, [0, 2, 1, 3])  # 5 and 16 are as far from their middle
def test_relabelling_the_gpus_changes_no_time(
    gbs: list[float], strategy: str, k: int, step: float | None, order: list[int]
) -> None:
    """Strategies of one group alone: under hsdp ranks are grouped by their order, which relabelling changes."""
    strategy = "fsdp" if strategy == "hsdp" else strategy
    links = dict(zip(combinations(range(4), 2), gbs, strict=True))
    turned = {(min(order[a], order[b]), max(order[a], order[b])): rate for (a, b), rate in links.items()}
    assert raws(pairs(turned, 4), strategy, k, step) == pytest.approx(raws(pairs(links, 4), strategy, k, step))


@settings(max_examples=15)
@given(rates, strategies, st.floats(0.1, 1.0), steps)
def test_a_slower_machine_is_never_cheaper(gbs: list[float], strategy: str, slower: float, step: float | None) -> None:
    """But for 1%: as rates change, another pair may lend a ring its curve, which is interpolated otherwise."""
    links = dict(zip(combinations(range(4), 2), gbs, strict=True))
    before = raws(pairs(links, 4), strategy, 4, step)
    after = raws(pairs({pair: rate * slower for pair, rate in links.items()}, 4), strategy, 4, step)
    assert all(b >= a - 0.01 * max(before) for a, b in zip(before, after, strict=True))


@settings(max_examples=15)
@given(strategies, st.integers(1, 4), steps, st.sampled_from([2, 4]))
def test_more_parameters_are_never_cheaper(strategy: str, times: int, step: float | None, k: int) -> None:
    units = [Unit(tuple(times * size for size in unit.tensors), unit.work) for unit in SMALL.units]
    larger = Network("larger", units[0], tuple(units[1:-1]), units[-1], "made")
    before, after = (raws(NVLINK_PAIR, strategy, k, step, network) for network in (SMALL, larger))
    assert all(b >= a * (1 - 1e-9) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"])
@pytest.mark.parametrize("fabric", ["dgx-1v", "nvlink-pairs-2x2"])
def test_on_simulated_machines_exposed_lies_in_its_band_and_the_worst_set_is_worse(fabric: str, strategy: str) -> None:
    asked = question(networks.find("gpt2"), strategy, 2, step_seconds=0.05, shards=2, micro_batches=2)
    (case,) = answer(asked, simulated(fabric)).cases
    assert case.worst is not None
    for cost in (case.best, case.worst):
        assert cost.exposed is not None
        assert 0 <= cost.exposed[0] <= cost.exposed[1] <= cost.exposed[2] == pytest.approx(cost.raw[2])
        assert cost.exposed[1] <= cost.raw[1] * (1 + 1e-9)
    assert case.lost is not None
    assert case.lost[1] > 0


# --- beside what GPUs did ---


def h200(*, p2p: bool) -> Run:
    """Return recorded pairs of four H200, with P2P and under NCCL_P2P_DISABLE=1."""
    folder = RESULTS / "2026-11-21-4xh200-judging"
    if p2p:
        return run_file.load(folder / "pairs.json")
    with tarfile.open(folder / "runs.tar.gz") as archive:
        member = archive.extractfile("no-p2p.json")
        assert member is not None
        return run_file.loads(io.TextIOWrapper(member, encoding="utf-8").read(), "no-p2p.json")


# docs/method.md 12: GPT-2 124M, DDP on two H200, a step with P2P and what it took longer without.
@pytest.mark.parametrize(
    ("title", "gradient_bytes", "step", "longer"),
    [("fp32", 4, 51.3e-3, 58.6e-3 - 51.3e-3), ("bf16 by autocast, gradients in fp32", 4, 22.4e-3, 32.1e-3 - 22.4e-3)],
)
def test_gpt2_without_p2p_takes_as_much_longer_as_was_measured(
    title: str, gradient_bytes: int, step: float, longer: float
) -> None:
    """Within 25%. Nobody recorded what the bf16 job sent: only four bytes a gradient explain it."""
    fast, slow = (Predictor(gather([("run", h200(p2p=p2p))])) for p2p in (True, False))
    asked = question(networks.find("gpt2"), gradient_bytes=gradient_bytes, step_seconds=step, measured_on_best=True)
    compute = fast.compute(asked, "ddp", (0, 1))
    before, after = (one.cost(asked, "ddp", (0, 1), compute).step for one in (fast, slow))
    assert before is not None
    assert after is not None
    assert before[1] == pytest.approx(step)
    assert after[1] - before[1] == pytest.approx(longer, rel=0.25)


def test_two_bytes_a_gradient_cannot_explain_the_bf16_figure_of_the_method() -> None:
    """Even with nothing hidden, 249 MB without P2P take 8.1 ms longer; 9.7 were measured."""
    fast, slow = (Predictor(gather([("run", h200(p2p=p2p))])) for p2p in (True, False))
    asked = question(networks.find("gpt2"), gradient_bytes=2)
    before, after = (one.cost(asked, "ddp", (0, 1), None).raw for one in (fast, slow))
    assert after[2] - before[2] == pytest.approx(8.1e-3, rel=0.03)
