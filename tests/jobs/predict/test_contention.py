"""What overlap costs a step: schedules by hand and by properties, and which measured factors a prediction takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs.predict import contention, networks
from collbench.jobs.predict.contention import curve_for
from collbench.jobs.predict.predict import Cost, Prediction
from collbench.jobs.predict.step import (
    Contention,
    Group,
    Host,
    Phases,
    Transfer,
    compute_of,
    pace,
    schedule,
    step_seconds,
)
from collbench.jobs.predict.timing import gather
from collbench.model.errors import UsageError
from collbench.model.failures import Cause, Failure, FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Compute, ComputeKind, Run
from tests.builders import gpus, run_of
from tests.jobs.predict.made import MIB, SMALL, answer, curve, overlapping, pairs, question

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER
NVLINK_PAIR = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)
SIZES = (MIB, 16 * MIB, 256 * MIB)
EVERYWHERE = dict.fromkeys(SIZES, (3.0, 1.2))


def sent(ready: float, needed: float = 1.0, *, after: bool = False) -> Transfer:
    return Transfer(AR, MIB, Group.ALL, ready, needed, after_optimizer=after)


# Compute of 10 s. While both run, a transfer takes 2 times as long, compute 1.25 times.
@pytest.mark.parametrize(
    ("title", "transfers", "seconds", "step", "overlapped"),
    [
        # 4 s beside compute, in which compute does 3.2 s of its own.
        ("hidden all the way: compute loses 0.8 s", [sent(0.2)], [2.0], 10.8, 4.0),
        # 2 s of compute are left at 0.8: they take 2.5 s, in which 1.25 s are sent; the other 2.75 s have no company.
        ("the rest after compute runs at full speed", [sent(0.8)], [4.0], 8 + 2.5 + 2.75, 2.5),
        ("nothing beside it: as long as alone", [sent(1.0)], [3.0], 13.0, 0.0),
        # From 0.2 to 0.4 compute takes 2.5 s, in which 1.25 are sent; then it waits for the other 0.75 s.
        ("compute waits for it, and it runs at full speed then", [sent(0.2, 0.4)], [2.0], 2 + 2.5 + 0.75 + 6, 2.5),
        ("after the optimizer nothing is beside it", [sent(1.0, after=True)], [3.0], 13.0, 0.0),
        # 8 s beside compute: the second begins when the first ends.
        ("two one after the other", [sent(0.0), sent(0.1)], [2.0, 2.0], 10 + 8 * 0.2, 8.0),
    ],
)
def test_both_ways_by_hand(
    title: str, transfers: list[Transfer], seconds: list[float], step: float, overlapped: float
) -> None:
    found = schedule(transfers, seconds, 10.0, contention=Contention((2.0,) * len(transfers), 1.25))
    assert found.step == pytest.approx(step), title
    assert found.overlapped == pytest.approx(overlapped), title
    assert found.slowed == pytest.approx(overlapped * 0.2), title


def test_where_the_host_holds_the_gpu_a_transfer_is_slowed_in_the_share_that_computes() -> None:
    """A GPU of 5 s that its host spreads over 10 s; what is sent from the begin takes 3 times as long beside compute.

    The GPU works half of the time, so a second of the clock sends 1/2 + 1/2 / 3 s: 2 s take 3 s of the clock.
    """
    host = Host(5.0, ((0.0, 0.0), (1.0, 1.0)))
    held = Transfer(AR, MIB, Group.ALL, 0.0, 0.3)  # where compute is after 3 s
    found = schedule([held], [2.0], 10.0, host, Contention((3.0,), 1.0))
    assert found.step == pytest.approx(10.0)
    assert found.overlapped == pytest.approx(1.5)


def lanes(transfers: list[Transfer], seconds: list[float], compute: float) -> float:
    """Return the step without contention, by another way: clocks at the places where compute stops."""
    position = clock = free = 0.0
    waits: list[tuple[float, float]] = []

    def reach(place: float, *, last: bool = False) -> float:
        nonlocal position, clock
        for stop, until in sorted(waits):
            if stop < place or last:
                waits.remove((stop, until))
                clock, position = max(clock + max(0.0, stop - position) * compute, until), max(position, stop)
        clock, position = clock + max(0.0, place - position) * compute, max(position, place)
        return clock

    for transfer, long in zip(transfers, seconds, strict=True):
        begin = reach(1.0, last=True) if transfer.after_optimizer else reach(transfer.ready)
        free = max(begin, free) + long
        waits.append((transfer.needed, free))
    return reach(1.0, last=True)


shares = st.floats(0, 1)
lengths = st.floats(0, 5)
factors = st.floats(1, 20)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Transfer], list[float], float]:
    """Return transfers, their seconds and a step's compute."""
    begins = sorted(draw(st.lists(shares, max_size=8)))
    transfers = [sent(ready, ready + (1 - ready) * draw(st.sampled_from([0.0, 1.0]) | shares)) for ready in begins]
    if draw(st.booleans()):
        transfers.append(sent(1.0, after=True))
    return transfers, [draw(lengths) for _ in transfers], draw(st.floats(0, 10))


@st.composite
def hosts(draw: st.DrawFn, compute: float) -> Host | None:
    if draw(st.booleans()):
        return None
    phases = Phases(draw(st.floats(0.1, 1)), draw(st.floats(0.1, 1)), draw(lengths))
    return Host(compute * draw(shares), pace(networks.find("gpt2"), draw(st.integers(1, 2)), phases))


@given(steps())
def test_factors_of_one_change_nothing(step: tuple[list[Transfer], list[float], float]) -> None:
    transfers, seconds, compute = step
    found = schedule(transfers, seconds, compute, contention=Contention((1.0,) * len(transfers), 1.0))
    assert found.step == pytest.approx(lanes(*step), rel=1e-9, abs=1e-9)
    assert found.slowed == 0
    assert step_seconds(*step) == found.step


@settings(deadline=None)
@given(steps(), st.data())
def test_a_larger_factor_never_makes_a_step_shorter(
    step: tuple[list[Transfer], list[float], float], data: st.DataObject
) -> None:
    transfers, seconds, compute = step
    host = data.draw(hosts(compute))
    before = [data.draw(factors) for _ in transfers]
    after = [one * data.draw(st.sampled_from([1.0]) | st.floats(1, 3)) for one in before]
    its = data.draw(factors)
    larger = its * data.draw(st.sampled_from([1.0]) | st.floats(1, 3))
    none, some, more = (
        schedule(transfers, seconds, compute, host, one)
        for one in (None, Contention(tuple(before), its), Contention(tuple(after), larger))
    )
    slack = 1e-9 * (1 + more.step)
    assert none.step <= some.step + slack
    assert some.step <= more.step + slack


@settings(deadline=None)
@given(steps(), st.data())
def test_a_step_is_compute_what_it_loses_and_waits_no_longer_than_all_transfers(
    step: tuple[list[Transfer], list[float], float], data: st.DataObject
) -> None:
    """Compute waits only while a transfer runs at full speed, so no longer than they take alone."""
    transfers, seconds, compute = step
    given_factors = Contention(tuple(data.draw(factors) for _ in transfers), data.draw(factors))
    found = schedule(transfers, seconds, compute, contention=given_factors)
    slack = 1e-9 * (1 + found.step)
    waited = found.step - compute - found.slowed
    assert -slack <= waited <= sum(seconds) + slack
    assert found.step >= max([compute, *seconds]) - slack
    assert found.overlapped <= found.step + slack
    alone = Contention((1.0,) * len(transfers), given_factors.compute)
    assert schedule(transfers, seconds, compute, contention=alone).step <= found.step + slack


@settings(deadline=None)
@given(steps(), st.data())
def test_compute_is_found_again_in_a_measured_step(
    step: tuple[list[Transfer], list[float], float], data: st.DataObject
) -> None:
    transfers, seconds, compute = step
    given_factors = Contention(tuple(data.draw(factors) for _ in transfers), data.draw(factors))
    took = step_seconds(transfers, seconds, compute, contention=given_factors)
    found = compute_of(took, transfers, seconds, contention=given_factors)
    if found is not None:
        again = step_seconds(transfers, seconds, found, contention=given_factors)
        assert again == pytest.approx(took, abs=1e-6 * (1 + took))


# What a prediction takes from runs of overlap.


def best(prediction: Prediction) -> Cost:
    return prediction.cases[0].best


def test_a_step_by_hand() -> None:
    """Buckets of 2 and 16 MiB at 100 GB/s. The first, 26 µs, hides behind 1.75 ms of backward: 78 µs beside compute,
    which loses a sixth of them. The second comes after it.
    """
    first, second = 5e-6 + 2 * MIB / 100e9, 5e-6 + 16 * MIB / 100e9
    cost = best(answer(question(step_seconds=3e-3), NVLINK_PAIR, overlaps=[overlapping(EVERYWHERE)]))
    lost = 3 * first * (1 - 1 / 1.2)
    assert cost.slowed == pytest.approx(lost, rel=1e-3)
    assert cost.step is not None
    assert cost.step[1] == pytest.approx(3e-3 + second + lost, rel=1e-4)
    assert cost.raw == best(answer(question(step_seconds=3e-3), NVLINK_PAIR)).raw


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_factors_of_one_give_the_figures_of_no_overlap_run(strategy: str) -> None:
    asked = question(networks.find("gpt2"), strategy, step_seconds=22e-3, micro_batches=2)
    ones = overlapping(dict.fromkeys(SIZES, (1.0, 1.0)))
    without, with_run = (answer(asked, NVLINK_PAIR, overlaps=runs) for runs in ((), [ones]))
    for before, after in zip(without.cases, with_run.cases, strict=True):
        for one, other in ((before.best, after.best), (before.worst, after.worst)):
            assert one is not None
            assert other is not None
            assert (one.raw, one.members) == (other.raw, other.members)
            assert one.exposed == pytest.approx(other.exposed, abs=1e-12)
            assert one.step == pytest.approx(other.step, rel=1e-12)
            assert (one.slowed, other.slowed) == (None, 0)


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from(["ddp", "zero3", "fsdp"]),
    st.floats(1e-3, 0.1),
    st.dictionaries(st.sampled_from(SIZES), st.tuples(st.floats(0.8, 12), st.floats(0.8, 2)), min_size=1),
    st.floats(0, 0.3),
)
def test_a_measured_overlap_never_shortens_a_step_nor_narrows_its_band(
    strategy: str, compute: float, found: dict[int, tuple[float, float]], spread: float
) -> None:
    asked = question(networks.find("gpt2"), strategy, step_seconds=compute)
    without, with_run = (
        best(answer(asked, NVLINK_PAIR, overlaps=runs)) for runs in ((), [overlapping(found, spread=spread)])
    )
    assert without.step is not None
    assert with_run.step is not None
    assert with_run.exposed is not None
    assert with_run.slowed is not None
    low, middle, high = with_run.step
    slack = 1e-9 * high
    assert low <= middle + slack
    assert middle <= high + slack
    assert middle >= without.step[1] - slack
    assert low == without.step[0]
    assert high >= without.step[2] - slack
    assert middle >= compute - slack
    assert with_run.exposed[1] <= with_run.raw[1] + with_run.slowed + slack


def test_measured_on_the_best_set_compute_is_what_the_slower_overlap_leaves() -> None:
    asked = question(networks.find("gpt2"), step_seconds=30e-3, measured_on_best=True)
    without, with_run = (answer(asked, NVLINK_PAIR, overlaps=runs).cases[0] for runs in ((), [overlapping(EVERYWHERE)]))
    assert with_run.best.step is not None
    assert with_run.best.step[1] == pytest.approx(30e-3)
    assert with_run.compute is not None
    assert without.compute is not None
    assert with_run.compute < without.compute


def test_an_operation_that_was_not_measured_borrows_by_its_bus_bytes_and_says_so() -> None:
    found = {8 * MIB: (4.0, 1.0), 64 * MIB: (2.0, 1.0)}
    prediction = answer(question(strategy="fsdp", step_seconds=3e-3), NVLINK_PAIR, overlaps=[overlapping(found)])
    uses = {use.operation: use for use in prediction.overlap}
    assert set(uses) == {AG, RS}
    assert all(use.borrowed and use.beyond for use in uses.values())
    # Blocks of 4 MiB and a root of 2 are gathers like all-reduces of half of that.
    assert uses[AG].sizes == (MIB, 2 * MIB)
    assert uses[AG].transfers == (4.0, 4.0)


def test_its_own_operation_goes_before_another_and_its_own_devices_before_others() -> None:
    evidence = gather([("a.json", NVLINK_PAIR)])
    runs = [
        overlapping(EVERYWHERE, AR, (0, 1)),
        overlapping(EVERYWHERE, AG, (0, 1, 2, 3)),
        overlapping(EVERYWHERE, AG, (2, 3)),
    ]
    curves = contention.gather(evidence, [(f"{number}.json", run) for number, run in enumerate(runs)])
    for operation, members, source in (
        (AG, (2, 3), "2.json"),
        (AG, (0, 1), "2.json"),  # as many
        (AG, (0, 1, 2, 3), "1.json"),
        (AR, (1, 2), "0.json"),
        (RS, (0, 1, 2, 3), "1.json"),  # a gather moves as many bytes
    ):
        found = curve_for(curves, operation, members)
        assert found is not None
        assert found.source == source
    assert curve_for((), AR, (0, 1)) is None


def test_other_devices_of_the_machine_are_noted() -> None:
    prediction = answer(question(step_seconds=3e-3), NVLINK_PAIR, overlaps=[overlapping(EVERYWHERE, members=(0, 1))])
    assert prediction.cases[0].best.members == (0, 1)
    elsewhere = {use.members: use.elsewhere for use in prediction.overlap}
    assert elsewhere.pop((0, 1)) is False
    assert set(elsewhere.values()) == {True}


def test_beyond_the_measured_sizes_less_is_known() -> None:
    """The nearest factor stands, and at most any of them: fewer sizes never give a narrower range."""
    wide = {MIB: (8.0, 1.1), 16 * MIB: (4.0, 1.2), 256 * MIB: (2.0, 1.3)}
    evidence = gather([("a.json", NVLINK_PAIR)])
    (every,), (few,) = (
        contention.gather(evidence, [("o.json", overlapping(found, spread=0.01))])
        for found in (wide, {size: wide[size] for size in (MIB, 16 * MIB)})
    )
    inside, outside = every.at(256 * MIB), few.at(256 * MIB)
    assert inside.collective == pytest.approx(2.0)
    assert outside.collective == pytest.approx(4.0)
    assert outside.collective_most / outside.collective > inside.collective_most / inside.collective
    assert outside.collective_most == pytest.approx(8.0, rel=0.1)
    assert few.at(1).collective == pytest.approx(8.0)


def test_a_factor_below_one_is_noise_and_counts_as_one() -> None:
    (found,) = contention.gather(gather([("a.json", NVLINK_PAIR)]), [("o.json", overlapping({MIB: (0.9, 0.95)}))])
    slow = found.at(MIB)
    assert (slow.collective, slow.compute, slow.collective_most, slow.compute_most) == (1, 1, 1, 1)


def test_what_is_not_sound_is_left_out_and_counted() -> None:
    run = overlapping({MIB: (9.0, 1.0), 4 * MIB: (8.0, 1.0), 16 * MIB: (7.0, 1.0), 64 * MIB: (2.0, 1.0)})
    run.overlaps[0].failure = Failure(FailureKind.ERROR, Cause.REFUSED)
    run.overlaps[1].wrong = 3
    del run.overlaps[2].trials[1:]
    (found,) = contention.gather(gather([("a.json", NVLINK_PAIR)]), [("o.json", run)])
    assert (found.sizes, found.unused) == ((64 * MIB, 64 * MIB), 3)
    assert found.at(MIB).collective == pytest.approx(2.0)


def test_the_compute_that_was_measured_first_counts() -> None:
    run = overlapping(EVERYWHERE)
    other = overlapping(dict.fromkeys(SIZES, (9.0, 2.0)), compute=Compute(ComputeKind.MEMORY, 1024))
    run.overlaps += other.overlaps
    (found,) = contention.gather(gather([("a.json", NVLINK_PAIR)]), [("o.json", run)])
    assert str(found.compute) == "gemm:8192"
    assert found.at(MIB).collective == pytest.approx(3.0)


def strange() -> Run:
    run = overlapping(EVERYWHERE)
    return replace(run, devices=tuple(replace(gpu, uuid=f"x{gpu.index}") for gpu in gpus(4)))


def other_settings() -> Run:
    run = overlapping(EVERYWHERE)
    return replace(run, settings=replace(run.settings, environment={"NCCL_P2P_DISABLE": "1"}))


@pytest.mark.parametrize(
    ("title", "run", "line"),
    [
        ("another machine's GPUs", strange(), "o.json has GPU0 (x0), which a.json lacks"),
        ("another fabric", replace(overlapping(EVERYWHERE), backend="sim"), "are of different machines"),
        ("other settings", other_settings(), "measured with different settings (NCCL_P2P_DISABLE= and"),
        ("two trials", overlapping(EVERYWHERE, trials=2), "o.json cannot be used to predict: this needs 3 trials"),
        ("what training does not send", overlapping(EVERYWHERE, Operation.ALLTOALL), "cannot be used to predict"),
        ("a run of pairs", NVLINK_PAIR, "cannot be used to predict"),
    ],
)
def test_a_run_that_says_nothing_of_this_machine_is_refused(title: str, run: Run, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        contention.gather(gather([("a.json", NVLINK_PAIR)]), [("o.json", run)])
    assert line in str(refused.value), title


def test_a_run_of_overlap_has_no_curves() -> None:
    with pytest.raises(
        UsageError, match=r"o.json timed a collective overlapping compute, not alone: name it with --overlap"
    ):
        gather([("a.json", NVLINK_PAIR), ("o.json", overlapping(EVERYWHERE))])


def test_hsdp_takes_the_factors_of_its_groups() -> None:
    asked = question(SMALL, "hsdp", 4, shards=2, step_seconds=3e-3)
    points = [point for members in ((0, 1), (2, 3), (0, 2), (1, 3)) for point in curve(AR, members, 100.0)]
    run = run_of(gpus(4), [*points, *curve(AR, (0, 1, 2, 3), 100.0)])
    prediction = answer(asked, run, overlaps=[overlapping(EVERYWHERE)])
    assert {(use.operation, use.members, use.elsewhere) for use in prediction.overlap} == {
        (AG, (0, 1), False),
        (RS, (0, 1), False),
        (AR, (0, 2), True),
    }
