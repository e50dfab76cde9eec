import pathlib
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.choice import How, TieBreak
from collbench.choose.problem import choose_by_labels
from collbench.choose.select import choose, evidence
from collbench.machine.nvidia_smi import facts, read_topology
from collbench.model.errors import FailureKind, UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Health, Path, Run
from tests.builders import GIB, gpus, in_words, measured, pair_run, paths, run_of
from tests.invariants.machines import relabelled
from tests.judge.checked import h200

DATA = pathlib.Path(__file__).parents[1] / "data"
MIB = 2**20
# What V100s achieve by label, GB/s [docs/method/verdicts.md 2].
V100 = {"NV1": 24.2, "NV2": 48.3, "SYS": 9.5}


def dgx_1v() -> Run:
    devices, links = facts(read_topology(DATA / "topologies" / "dgx-1v.txt"))
    points = [measured(Operation.ALLREDUCE, link.devices, V100[link.label]) for link in links]
    return run_of(devices, points, links)


@pytest.mark.parametrize(
    ("k", "rings", "measured"),  # docs/method/choosing.md 6; on another set of three and of five a tree may be faster
    [(3, 2, 3), (4, 4, 2), (5, 2, 3), (6, 4, 4), (7, 4, 4)],
)
def test_on_a_dgx_1v_a_choice_has_the_most_rings(k: int, rings: int, measured: int) -> None:
    chosen = choose(dgx_1v(), k)
    assert chosen.band is not None
    assert (chosen.band.how, chosen.band.rings) == (How.NVLINK_RINGS, rings)
    assert chosen.band.lo < rings * 24.2 < chosen.band.hi
    alike = [some for some in chosen.finalists if (some.band.how, some.band.rings) == (How.NVLINK_RINGS, rings)]
    assert len(alike) == measured


def test_the_reason_names_what_was_gained() -> None:
    run = pair_run(4, lambda a, b: {(0, 1): 48.34, (2, 3): 9.536}.get((a, b), 24.0))
    assert choose(run, 2).why(gpus(20)) == "48.3 GB/s (same as the first 2); the machine's worst pair reaches 9.54 GB/s"
    first = pair_run(4, lambda a, b: {(0, 1): 17.0, (0, 3): 48.34, (2, 3): 9.536}.get((a, b), 24.0))
    assert (
        choose(first, 2).why(gpus(20)) == "48.3 GB/s (the first 2: 17 GB/s); the machine's worst pair reaches 9.54 GB/s"
    )
    run.measurements = run.measurements[:-2] + run.measurements[-1:]
    assert (
        choose(run, 2).why(gpus(20))
        == "48.3 GB/s (same as the first 2); the machine's worst measured pair reaches 9.54 GB/s"
    )
    alike = pair_run(4, lambda _a, _b: 48.34)
    alike.measurements = alike.measurements[:-1]
    assert (
        choose(alike, 2).why(gpus(20))
        == "48.3 GB/s (the first 2: 48.3 GB/s); the machine's worst measured pair reaches the same"
    )


def test_pairs_that_were_not_measured_are_not_taken_for_equal() -> None:
    run = run_of(gpus(4), [measured(Operation.ALLREDUCE, (1, 2), 300.0)])
    assert choose(run, 2).members == (1, 2)


@pytest.mark.parametrize(("k", "n"), [(0, 4), (-1, 4), (5, 4), (3, 2)])
def test_a_number_of_devices_that_cannot_be_is_refused(k: int, n: int) -> None:
    with pytest.raises(UsageError, match=f"cannot choose {k} of {n} devices: choose 1 to {n}"):
        choose(pair_run(n, lambda a, b: 300.0), k)


def test_a_run_without_pairs_cannot_choose_some_but_can_take_all() -> None:
    run = run_of(gpus(3), [measured(Operation.ALLREDUCE, (0, 1, 2), 300.0)])
    with pytest.raises(UsageError, match="has no pair: measure with 'collbench pairs' first"):
        choose(run, 2)
    assert choose(run, 3).members == (0, 1, 2)


def test_one_device_is_chosen_by_the_tie_break_alone() -> None:
    run = dgx_1v()
    run.health_before = (Health(processes=1), *[Health()] * 7)
    one = choose(run, 1)
    assert (one.members, one.why(gpus(20)), one.tied, one.heuristic) == (
        (1,),
        "one device: there is no pair to compare",
        True,
        False,
    )
    assert (one.band, one.finalists) == (None, ())


@pytest.mark.parametrize(("slow", "members"), [(None, (0, 1)), (0, (1, 2))])
def test_seventeen_devices_are_searched_by_a_heuristic_and_say_so(slow: int | None, members: tuple[int, ...]) -> None:
    chosen = choose(pair_run(17, lambda a, b: 100.0 if a == slow else 300.0), 2)
    assert (chosen.members, chosen.heuristic) == (members, True)
    assert ("heuristic" in chosen.why(gpus(20))) == (slow is not None)
    assert chosen.tied == (slow is None)


def test_two_of_two_are_their_pair_and_one_of_one_is_none() -> None:
    two = choose(pair_run(2, lambda a, b: 300.0), 2)
    assert two.band is not None
    assert (round(two.band.lo), round(two.band.hi), two.why(gpus(20))) == (300, 300, "both devices")
    one = choose(run_of(gpus(1), [measured(Operation.H2D_CE, (0,), 50.0)]), 1)
    assert (one.members, one.band, one.finalists) == ((0,), None, ())


@pytest.mark.parametrize(("n", "k", "heuristic"), [(16, 2, False), (17, 1, False), (17, 2, True)])
def test_ties_among_many_devices_are_broken_among_neighbours(n: int, k: int, heuristic: bool) -> None:
    """The first on node 0 are the outermost two: the last one's neighbour is the first."""
    run = pair_run(n, lambda a, b: 300.0)
    nodes = [0 if index in (0, n - 1) else 2 + index for index in range(n)]
    run.devices = tuple(replace(device, numa_node=node) for device, node in zip(run.devices, nodes, strict=True))
    chosen = choose(run, k)
    assert (chosen.members, chosen.heuristic, chosen.tied) == ((0, n - 1)[:k], heuristic, True)
    assert len(chosen.finalists) == (2 if k == 2 else 0)


IDLE = Health(processes=0, utilization=0)
FLAT = (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("title", "health", "nodes", "members", "used"),
    [
        ("nothing known: by bus id", (), FLAT, (0, 1), (TieBreak.BUS_ID,)),
        ("another process", (Health(processes=1), IDLE, IDLE, IDLE), FLAT, (1, 2), (TieBreak.BUS_ID,)),
        ("one NUMA node rather than two", (IDLE,) * 4, (0, 1, 1, 0), (0, 3), (TieBreak.NUMA_NODES, TieBreak.BUS_ID)),
        (
            "idle goes before near",
            (Health(processes=1), IDLE, IDLE, IDLE),
            (0, 1, 0, 1),
            (1, 3),
            (TieBreak.NUMA_NODES,),
        ),
    ],
)
def test_the_tie_break(
    title: str, health: tuple[Health, ...], nodes: tuple[int, ...], members: tuple[int, ...], used: tuple[TieBreak, ...]
) -> None:
    run = pair_run(4, lambda a, b: 300.0)
    run.devices = tuple(replace(device, numa_node=node) for device, node in zip(run.devices, nodes, strict=True))
    run.health_before = health
    chosen = choose(run, 2)
    assert (chosen.members, chosen.decided_by, chosen.tied) == (members, used, True)


def test_what_all_gpus_have_against_them_is_counted_where_busy_ones_are_allowed() -> None:
    run = pair_run(4, lambda a, b: 300.0)
    run.health_before = (Health(processes=1), IDLE, Health(throttle=("HW slowdown",)), IDLE)
    chosen = choose(run, 3, allow_busy=True)
    assert (chosen.members, chosen.decided_by) == ((1, 2, 3), (TieBreak.IN_USE,))
    assert choose(run, 2, allow_busy=True).members == (1, 3)


def test_of_tied_pairs_one_is_chosen_whose_gpus_have_no_failed_link() -> None:
    run = pair_run(4, lambda a, b: 300.0)
    hung = next(measurement for measurement in run.measurements if measurement.point.members == (0, 2))
    hung.samples, hung.failure = [], in_words("it hung", FailureKind.HANG)
    chosen = choose(run, 2)
    assert (chosen.members, chosen.decided_by) == ((1, 3), (TieBreak.FAILED_PAIRS,))


def test_small_messages_break_a_tie_of_large_ones() -> None:
    points = [measured(Operation.ALLREDUCE, pair, 300.0) for pair in combinations(range(4), 2)]
    points += [
        measured(Operation.ALLREDUCE, pair, 0.002 if pair == (1, 3) else 0.001, 8) for pair in combinations(range(4), 2)
    ]
    chosen = choose(run_of(gpus(4), points), 2)
    assert (chosen.members, chosen.decided_by) == ((1, 3), (TieBreak.LATENCY,))


def test_the_next_job_gets_the_best_remainder() -> None:
    """Fast links 2-0-1-3 in a row: whoever takes the middle one leaves the next job a slow pair."""
    chosen = choose(pair_run(4, lambda a, b: 48.0 if (a, b) in [(0, 1), (0, 2), (1, 3)] else 10.0), 2)
    assert (chosen.members, chosen.decided_by) == ((0, 2), (TieBreak.REMAINDER, TieBreak.BUS_ID))


def test_equal_pairs_of_different_labels_are_no_tie_of_sets() -> None:
    """Hops meet in a host bridge, which no pair alone shows: sets of one and of two bridges are worth measuring."""
    labels = {pair: "PHB" for pair in combinations(range(8), 2) if pair[0] // 4 == pair[1] // 4}
    run = pair_run(8, lambda a, b: 10.9, paths(8, "SYS", labels))
    run.devices = tuple(replace(device, numa_node=index // 4) for index, device in enumerate(run.devices))
    chosen = choose(run, 4)
    assert (chosen.members, chosen.tied) == ((0, 1, 2, 3), False)
    assert chosen.decided_by == (TieBreak.NUMA_NODES, TieBreak.BUS_ID)
    assert {sum(member < 4 for member in some.members) for some in chosen.finalists} >= {2, 3, 4}


def test_too_few_devices_left_are_named_with_what_brings_them_back() -> None:
    run = pair_run(4, lambda a, b: 300.0)
    run.health_before = (Health(processes=1), IDLE, Health(ecc_errors=2), IDLE)
    with pytest.raises(UsageError) as refusal:
        choose(run, 3, exclude=(3,))
    assert str(refusal.value) == (
        "cannot choose 3 of 4 devices: 1 is left without GPU0 (busy: 1 other process); "
        "GPU2 (faulty: 2 uncorrected ECC errors); GPU3 (excluded); choose fewer, or add --allow-busy"
    )
    with pytest.raises(UsageError) as refusal:
        choose(run, 3, exclude=(3,), allow_busy=True)
    assert str(refusal.value).endswith("GPU3 (excluded); choose fewer")


@pytest.mark.parametrize("seed", [0, 2, 5])
@pytest.mark.parametrize("factor", [0.3, 0.8])
@pytest.mark.parametrize("why", ["throttled", "shared", "excluded"])
def test_a_tie_is_only_of_the_pairs_without_those_left_out(seed: int, factor: float, why: str) -> None:
    out = set(random.Random(seed).sample(range(8), 1 + seed))
    run = pair_run(8, lambda a, b: (300.0 - a * 0.5) * (factor if {a, b} & out else 1.0))
    ill = {"throttled": Health(throttle=("HW slowdown",)), "shared": Health(processes=1)}.get(why, IDLE)
    run.health_before = tuple(ill if gpu in out else IDLE for gpu in range(8))
    chosen = choose(run, 2, exclude=tuple(out) if why == "excluded" else ())
    few = ", ".join(f"GPU{gpu}" for gpu in sorted(out)) if len(out) <= 3 else f"the {len(out)} left out"
    said = chosen.why(gpus(8))
    assert len(out) == 6 or said.startswith(f"all pairs without {few} tie within ")
    assert len(out) == 6 or said.endswith("%: the choice among them does not affect bandwidth")


def test_a_worst_pair_is_only_that_of_the_others() -> None:
    run = pair_run(5, lambda a, b: {0: 5.0, 1: 48.0}.get(a, 24.0))
    run.health_before = (Health(processes=1), *[IDLE] * 4)
    assert choose(run, 2).why(gpus(5)) == "48 GB/s (same as the first 2); the worst pair without GPU0 reaches 24 GB/s"


def test_those_that_are_left_are_no_choice() -> None:
    run = pair_run(4, lambda a, b: 300.0)
    run.health_before = (Health(processes=1), *[IDLE] * 3)
    chosen = choose(run, 3)
    assert (chosen.members, chosen.why(gpus(20))) == ((1, 2, 3), "the 3 of 4 devices that are left")


def test_a_default_with_a_corrupt_pair_is_said_to_carry_nothing() -> None:
    run = pair_run(4, lambda a, b: 200.0 if (a, b) == (1, 3) else 300.0)
    run.measurements[0].wrong = 5
    chosen = choose(run, 3)
    assert chosen.members == (0, 2, 3)
    assert "the first 3: nothing" in chosen.why(gpus(20))


def test_labels_alone_choose_and_say_that_nothing_was_measured() -> None:
    devices, links = facts(read_topology(DATA / "topologies" / "dgx-1v.txt"))
    six = choose_by_labels(devices, links, 6)
    assert (six.members, six.estimated) == ((0, 1, 2, 4, 5, 6), True)
    assert six.why(gpus(20)) == (
        "by labels, nothing was measured: NV2, NV1, SYS over 4 NVLink rings (the first 6: 2 NVLink rings)"
    )
    assert choose_by_labels(devices, links, 2, exclude=(0, 3)).members == (1, 2)
    with pytest.raises(UsageError, match="cannot choose 9 of 8 devices"):
        choose_by_labels(devices, links, 9)


@pytest.mark.parametrize(
    ("better", "worse"), list(pairwise(["NV4", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A"]))
)
def test_a_better_label_is_preferred(better: str, worse: str) -> None:
    assert choose_by_labels(gpus(3), paths(3, worse, {(1, 2): better}), 2).members == (1, 2)


def test_one_label_everywhere_is_a_tie() -> None:
    chosen = choose_by_labels(gpus(4), paths(4, "NV18"), 2)
    assert (chosen.members, chosen.tied) == ((0, 1), True)
    assert chosen.why(gpus(20)) == "by labels, nothing was measured: all pairs have the label NV18"


def test_the_evidence_of_an_interrupted_run_is_the_largest_size_that_has_most_pairs() -> None:
    points = [measured(Operation.ALLREDUCE, pair, 300.0, MIB) for pair in combinations(range(3), 2)]
    run = run_of(gpus(3), [*points, measured(Operation.ALLREDUCE, (0, 1), 300.0, GIB)])
    assert (found := evidence(run)) is not None
    assert (found.size_bytes, len(found.standings)) == (MIB, 3)


LABELS = ("NV1", "NV2", "PIX", "PHB", "SYS")
RATES = {"NV1": 24.2, "NV2": 48.3, "PIX": 11.0, "PHB": 10.0, "SYS": 9.5}


@st.composite
def machines(draw: st.DrawFn) -> Run:
    """Six GPUs with any labels, rates near those of the labels, health, and NUMA nodes."""
    links = [Path(pair, draw(st.sampled_from(LABELS))) for pair in combinations(range(6), 2)]
    noise = draw(st.sampled_from([0.0, 0.005, 0.2]))
    points = [
        measured(Operation.ALLREDUCE, link.devices, RATES[link.label] * (1 + noise * draw(st.floats(-1, 1))))
        for link in links
    ]
    devices = [replace(gpu, numa_node=draw(st.integers(0, 1))) for gpu in gpus(6)]
    run = run_of(devices, points, links)
    run.health_before = tuple(draw(st.sampled_from([IDLE] * 8 + [Health(processes=1)])) for _ in range(6))
    return run


def uuids(run: Run, members: Sequence[int]) -> set[str]:
    return {run.devices[member].uuid for member in members}


@settings(max_examples=30, deadline=None)
@given(machines(), st.permutations(range(6)), st.integers(1, 5))
def test_renaming_the_devices_renames_the_answer_always(run: Run, order: list[int], k: int) -> None:
    other = relabelled(run, order)
    other.measurements.reverse()
    here, there = choose(run, k, allow_busy=True), choose(other, k, allow_busy=True)
    assert uuids(run, here.members) == uuids(other, there.members)
    assert (here.reason, here.decided_by, here.tied) == (there.reason, there.decided_by, there.tied)
    both = zip(here.finalists, there.finalists, strict=True)
    assert all(uuids(run, a.members) == uuids(other, b.members) and a.band == b.band for a, b in both)


def test_a_throttled_device_is_taken_before_a_pair_that_hung_and_said_to_be() -> None:
    run = pair_run(3, lambda a, b: 300.0)
    hung = next(m for m in run.measurements if m.point.members == (0, 1))
    hung.samples, hung.failure = [], in_words("it hung", FailureKind.HANG)
    run.health_before = (IDLE, IDLE, Health(throttle=("SW power cap",)))
    chosen = choose(run, 2)
    assert (2 in chosen.members, chosen.failed) == (True, ())
    assert "GPU2 (throttled: SW power cap), because every set without them includes a failure" in chosen.why(gpus(3))


@pytest.mark.parametrize(("trials", "said"), [(1, True), (2, True), (3, False)])
def test_a_choice_from_too_few_trials_says_so(trials: int, said: bool) -> None:
    run = pair_run(4, lambda a, b: 300.0 if b == 3 else 320.0)
    for found in run.measurements:
        found.samples = found.samples[:trials]
    assert ("trials needed to estimate noise" in choose(run, 2).why(gpus(4))) is said
    assert "trials" not in choose(run, 4).why(gpus(4))


def test_a_device_whose_copies_to_all_beat_its_port_is_not_called_failed() -> None:
    run = h200()
    lanes = measured(Operation.SM_WRITE, (0, 1, 2, 3), 1185.0)
    lanes = replace(lanes, point=replace(lanes.point, variant=Variant.ONE_TO_ALL))
    chosen = choose(replace(run, measurements=[*run.measurements, lanes]), 4)
    assert (chosen.failed, chosen.impossible) == (((0,),), ((0,),))
    said = chosen.why(run.devices)
    assert "failed" not in said
    assert said.endswith("; includes GPU0 with a rate above the limit")
    many = replace(chosen, failed=tuple(combinations(range(4), 2)), impossible=())
    assert many.why(run.devices).endswith("; includes failed GPU0-GPU1; GPU0-GPU2; GPU0-GPU3; GPU1-GPU2 and 2 more")


@pytest.mark.parametrize(("sigma", "tied"), [(0.002, True), (0.05, False)])
def test_pairs_that_noise_alone_makes_alike_are_not_equal_so_sets_of_them_are_measured(
    sigma: float, tied: bool
) -> None:
    """Nothing is significantly better in either run; only the first shows that it is all the same."""
    rng = random.Random(8)
    run = pair_run(8, lambda _a, _b: [300.0 * (1 + rng.gauss(0, sigma)) for _ in range(5)])
    chosen = choose(run, 2)
    assert chosen.tied is tied
    assert (len(chosen.finalists) > 1) is not tied
