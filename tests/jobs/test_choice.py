"""Which set suits a recorded job best: rounds of replays, an interval for all sets at once, ties, and what failed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.choice import Band, Candidate, Choice, How, TieBreak
from collbench.jobs.choice import ForJob, JobSet, Standing, contenders, contest, settle
from collbench.jobs.replay.results import Replay, ReplayedCall, ReplayTrial, replays_of
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Run
from tests.builders import gpus, pair_run

A, B, C = (0, 1), (2, 3), (0, 3)
HANG = Failure(FailureKind.HANG, Cause.NO_ANSWER, (1,), seconds=60.0)


def trial(seconds: float) -> ReplayTrial:
    """Return a trial whose slower rank communicates for so long."""
    return ReplayTrial((1.0, 1.0), (0.0, 0.0), (seconds / 2, seconds), (seconds,), 1)


def run_of(
    times: Mapping[tuple[int, ...], Sequence[float]], failed: Mapping[tuple[int, ...], int] | None = None
) -> Run:
    """Return a run with the seconds of each set's trials; `failed` have so many trials before they hang."""
    calls = (ReplayedCall(Operation.ALLREDUCE.value, 64, 2, 1),)
    found = [Replay("job.json", some, 2, calls, trials=list(map(trial, own)), wrong=0) for some, own in times.items()]
    for some, count in (failed or {}).items():
        one = Replay("job.json", some, 2, calls, trials=[trial(1e-9)] * count)
        found.append(replace(one, failure=HANG))
    return replace(pair_run(4, lambda *_: 300.0), measurements=[], sections={"replays": found})


LINKS = pair_run(8, lambda *_: 300.0)


def found(run: Run, by_bandwidth: tuple[int, ...] = A, positions: Sequence[int] = range(8)) -> ForJob:
    made = contest("job.json", run, choice(by_bandwidth), LINKS, positions)
    assert made is not None
    return made


def members(one: JobSet) -> tuple[int, ...]:
    return tuple(int(tag.removeprefix("GPU")) for tag in one.devices)


def standings(made: ForJob) -> dict[tuple[int, ...], Standing]:
    return {members(one): one.standing for one in made.sets}


def test_the_fastest_wins_where_it_is_significantly_faster() -> None:
    made = found(run_of({A: [2.00, 2.01, 1.99, 2.00], B: [1.00, 1.01, 1.00, 0.99]}))
    assert standings(made) == {B: Standing.BEST, A: Standing.SLOWER}
    assert (members(made.chosen), made.significant, made.tied) == (B, True, False)
    assert "bandwidth alone chooses GPU0, GPU1" in [*made.lines("", tied=False)]


def test_where_they_tie_bandwidth_decides() -> None:
    made = found(run_of({B: [1.0, 1.001, 0.999, 1.0], A: [1.001, 1.002, 1.0, 1.001]}))
    assert standings(made) == {B: Standing.BEST, A: Standing.TIED}
    assert (members(made.chosen), made.tied) == (A, True)


def test_noise_leaves_it_undecided_and_the_fastest_is_taken() -> None:
    made = found(run_of({B: [1.0, 1.3, 0.8, 1.0], A: [1.2, 0.9, 1.3, 0.9]}))
    assert standings(made) == {B: Standing.BEST, A: Standing.UNDECIDED}
    assert (members(made.chosen), made.tied, made.significant) == (B, False, False)


@pytest.mark.parametrize("trials", [1, 2])
def test_two_rounds_decide_nothing(trials: int) -> None:
    made = found(run_of({A: [2.0] * trials, B: [1.0] * trials}))
    assert standings(made) == {B: Standing.BEST, A: Standing.UNDECIDED}
    assert made.sets[0].communication == (1.0, 1.0, 1.0)


def test_a_drift_reaches_all_alike() -> None:
    """Clocks that fall by half while it is measured do not hide a difference of 5%."""
    drift = [1.0 * 1.1**number for number in range(8)]
    made = found(run_of({A: [1.05 * one for one in drift], B: drift}))
    assert standings(made) == {B: Standing.BEST, A: Standing.SLOWER}


def test_what_failed_is_named_last_and_the_others_decide() -> None:
    made = found(run_of({B: [1.0, 1.01, 1.0], C: [2.0, 2.01, 2.0]}, {A: 2}))
    assert standings(made) == {B: Standing.BEST, C: Standing.SLOWER, A: Standing.FAILED}
    assert members(made.sets[-1]) == A
    assert "no answer on GPU1 within 60 s" in made.sets[-1].failure
    assert (members(made.chosen), made.trials) == (B, 3)
    alone = found(run_of({B: [1.0, 1.01, 1.0]}, {A: 0, C: 1}))
    assert (members(alone.chosen), alone.tied, alone.significant) == (B, False, False)
    assert contest("job.json", run_of({}, {A: 1, B: 1}), choice(A), LINKS, range(4)) is None


def test_wrong_data_cannot_win() -> None:
    run = run_of({A: [1.0] * 4, B: [2.0] * 4})
    replays_of(run)[0].wrong = 3
    assert standings(found(run)) == {B: Standing.BEST, A: Standing.FAILED}


def test_a_set_that_was_interrupted_early_is_compared_in_the_rounds_that_all_have() -> None:
    made = found(run_of({A: [2.0, 2.0, 2.0, 99.0], B: [1.0, 1.0, 1.0]}))
    assert made.trials == 3
    assert made.sets[1].communication == pytest.approx((2.0, 2.0, 2.0))


def test_positions_are_those_that_were_chosen_from() -> None:
    made = found(run_of({A: [1.0] * 3, B: [2.0] * 3}), (4, 7), (7, 4, 0, 2))
    assert {members(one) for one in made.sets} == {(4, 7), (0, 2)}
    assert members(made.chosen) == (4, 7)


TIMES = st.lists(st.lists(st.floats(1e-6, 10.0), min_size=4, max_size=4), min_size=2, max_size=4)


@settings(max_examples=30, deadline=None)
@given(TIMES, st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_neither_units_nor_the_order_of_sets_matter(
    times: list[list[float]], scale: float, shuffled: random.Random
) -> None:
    sets = [A, B, C, (1, 2)][: len(times)]
    first = found(run_of(dict(zip(sets, times, strict=True))))
    rows = list(zip(sets, times, strict=True))
    shuffled.shuffle(rows)
    other = found(run_of({some: [scale * one for one in own] for some, own in rows}))
    for one in first.sets:
        (same,) = (each for each in other.sets if each.devices == one.devices)
        assert one.ratio is not None
        assert same.ratio is not None
        assert one.ratio[1] >= 1 - 1e-9
        if len({math.fsum(map(math.log, own)) for own in times}) == len(times):  # equal ones have no order
            assert same.ratio[1] == pytest.approx(one.ratio[1], rel=1e-6)
    assert [one.standing for one in first.sets].count(Standing.BEST) == 1


@pytest.mark.parametrize("sets", [2, 3, 5])
def test_equal_sets_are_seldom_called_slower_however_noisy(sets: int) -> None:
    """Simulated: 400 contests of equal sets with 4% of noise a round, and a drift that all share; seeded."""
    draw = random.Random(sets)
    wrong = 0
    for _ in range(400):
        drift = [draw.gauss(0, 0.1) for _ in range(8)]
        places = [(2 * number, 2 * number + 1) for number in range(sets)]
        times: dict[tuple[int, ...], list[float]] = {
            some: [math.exp(one + draw.gauss(0, 0.04)) for one in drift] for some in places
        }
        run = replace(run_of(times), devices=gpus(2 * sets))
        links = replace(LINKS, devices=run.devices)
        made = contest("job.json", run, choice(places[0]), links, range(2 * sets))
        assert made is not None
        wrong += any(one.standing is Standing.SLOWER for one in made.sets)
    assert wrong <= 0.06 * 400


# What the choice becomes.


def band(gbs: float) -> Band:
    return Band(gbs, gbs, How.PAIR)


def choice(*sets: tuple[int, ...], tied: bool = False) -> Choice:
    some = tuple(Candidate(one, band(100.0 - number), default=one == A) for number, one in enumerate(sets))
    return Choice(sets[0], "no pair differs significantly", some[0].band, some, tied=tied)


def test_the_choice_is_that_of_the_replays() -> None:
    made = found(run_of({A: [2.0, 2.01, 2.0], B: [1.0, 1.01, 1.0]}))
    settled = settle(choice(A, B), made, LINKS)
    assert (settled.members, settled.band, settled.tied, settled.decided_by) == (B, band(99.0), False, ())
    assert settled.reason == ("a step of job.json communicates for 1003.322 ms (measured): the shortest of 2 finalists")
    tie = found(run_of({A: [1.001, 1.0, 1.0], B: [1.0, 1.001, 1.0]}))
    settled = settle(choice(A, B), tie, LINKS)
    assert (settled.members, settled.tied, settled.decided_by) == (A, True, (TieBreak.PREDICTED,))


def test_contenders_are_the_finalists_that_did_not_fail() -> None:
    asked, links = choice(B, A), pair_run(4, lambda *_: 300.0)
    assert contenders(asked, links) == (B, A)
    lame = replace(asked, finalists=(asked.finalists[0], replace(asked.finalists[1], sound=False)))
    assert contenders(lame, links) == (B,)
    assert contenders(choice(A), links) == (A,)  # bandwidth rules all others out


@pytest.mark.parametrize(("devices", "sets"), [(4, (A, B)), (3, (A, (0, 2))), (2, (A,))])
def test_where_bandwidth_ties_one_more_is_tried(devices: int, sets: tuple[tuple[int, ...], ...]) -> None:
    assert contenders(choice(A, tied=True), pair_run(devices, lambda *_: 300.0)) == sets


def test_a_set_on_which_something_failed_is_not_tried_where_bandwidth_ties() -> None:
    links = pair_run(4, lambda *_: 300.0)
    (hung,) = [one for one in links.measurements if one.point.members == B]
    hung.samples, hung.failure = [], HANG
    assert contenders(choice(A, tied=True), links) == (A, (0, 2))
