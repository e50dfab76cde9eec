import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from collbench.choose.choice import Band, Candidate, Choice, How, TieBreak
from collbench.choose.select import by_finalists, choose, settle
from collbench.judge.tiers import estimates
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run
from tests.builders import gpus, in_words, measured, pair_run, paths, run_of

BUS = 2 * 3 / 4  # busbw over algbw of an all-reduce among four [nccl-tests doc/PERFORMANCE.md]
FIRST, OTHER, THIRD = (0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7)


def predicted(*sets: tuple[int, ...]) -> Choice:
    """Return a choice of the first of these sets among all of them, for lack of anything but their bus ids."""
    band = Band(250.0, 400.0, How.NVSWITCH)
    found = tuple(Candidate(some, band, default=some == FIRST) for some in sets)
    return Choice(sets[0], "all 8 devices", band, found, decided_by=(TieBreak.BUS_ID,))


def verification(rates: Mapping[tuple[int, ...], Iterable[float]]) -> Run:
    """Return a run with one trial for each busbw in GB/s."""
    points = [measured(Operation.ALLREDUCE, some, [gbs / BUS for gbs in trials]) for some, trials in rates.items()]
    return run_of(gpus(8), points)


def near(gbs: float) -> list[float]:
    """Return six trials within 0.4% of a rate."""
    return [gbs * (1 + share / 1000) for share in (-4, -2, -1, 1, 2, 4)]


def test_the_fastest_wins_and_its_gain_has_an_interval() -> None:
    choice = settle(
        predicted(OTHER, THIRD, FIRST), verification({FIRST: near(314), OTHER: near(390), THIRD: near(412)})
    )
    assert (choice.members, choice.decided_by, choice.tied) == (THIRD, (), False)
    assert choice.gain is not None
    low, middle, high = choice.gain
    assert low < 412 / 314 < high
    assert middle == pytest.approx(412 / 314)
    assert high - low < 0.03
    assert choice.why(gpus(8)) == f"412 GB/s measured, 1.31× ({low:.2f}–{high:.2f}) that of the first 4"
    assert [(finalist.members, round(finalist.measured[1])) for finalist in choice.finalists if finalist.measured] == [
        (OTHER, 390),
        (THIRD, 412),
        (FIRST, 314),
    ]


@pytest.mark.parametrize(("slower", "chosen"), [(0.94, False), (1.6, True)])
def test_noise_wins_no_choice_that_the_rate_does_not(slower: float, chosen: bool) -> None:
    """One set's trials vary by 10%: at 0.94 of the others' rate its median is the highest in 7 of 100 runs."""
    rng = random.Random(3)

    def trials(gbs: float, sigma: float) -> list[float]:
        return [gbs * math.exp(rng.gauss(0, sigma)) for _ in range(8)]

    steady = {THIRD: (400, 0.003), FIRST: (398, 0.003)}
    won = 0
    for _ in range(100):
        run = verification({OTHER: trials(400 * slower, 0.1), **{some: trials(*rate) for some, rate in steady.items()}})
        won += settle(predicted(THIRD, OTHER, FIRST), run).members == OTHER
    assert won == (100 if chosen else 0)


def test_those_that_tie_with_the_fastest_go_back_to_the_prediction() -> None:
    choice = settle(
        predicted(OTHER, THIRD, FIRST), verification({FIRST: near(300), OTHER: near(400), THIRD: near(402)})
    )
    assert (choice.members, choice.decided_by, choice.tied) == (OTHER, (TieBreak.BUS_ID,), False)


def test_a_winner_that_was_not_chosen_is_distinguished_from_its_equals_by_the_prediction() -> None:
    choice = settle(
        predicted(OTHER, THIRD, FIRST), verification({OTHER: near(300), THIRD: near(400), FIRST: near(401)})
    )
    assert (choice.members, choice.decided_by) == (THIRD, (TieBreak.PREDICTED,))


def test_a_tie_that_only_measuring_shows_is_decided_by_the_prediction() -> None:
    sure = replace(predicted(OTHER, FIRST), decided_by=())  # its band was the better
    choice = settle(sure, verification({FIRST: near(300), OTHER: near(301)}))
    assert (choice.members, choice.decided_by) == (OTHER, (TieBreak.PREDICTED,))


def test_all_that_tie_are_said_to() -> None:
    choice = settle(predicted(FIRST, OTHER), verification({FIRST: near(300), OTHER: near(301)}))
    assert (choice.members, choice.tied, choice.gain) == (FIRST, True, None)
    assert choice.why(gpus(8)) == "300 GB/s measured (same as the first 4)"


def test_sets_that_tie_in_this_run_but_may_differ_in_the_next_are_no_tie() -> None:
    """1.8% apart without noise: communicators of a job differ by 0.2% more, for which 2% leave no room."""
    choice = settle(predicted(FIRST, OTHER), verification({FIRST: [300.0] * 6, OTHER: [305.4] * 6}))
    assert (choice.members, choice.tied) == (OTHER, False)


def test_sets_that_keep_a_chance_are_measured_for_more_than_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of sixteen sets may come in the third round: with 15 of 16 GPUs and three slow paths it did."""
    ask, fast = predicted(FIRST, OTHER), (2, 3, 6, 7)
    more = iter([THIRD, (1, 3, 5, 7), fast, ()])

    def further(*_: object) -> tuple[Candidate, ...]:
        return tuple(replace(ask.finalists[0], members=some, default=False) for some in [next(more)] if some)

    def measure(sets: Iterable[tuple[int, ...]]) -> tuple[Run, None]:
        return verification({some: near(400 if some == fast else 300) for some in sets}), None

    monkeypatch.setattr("collbench.choose.select.further_finalists", further)
    assert by_finalists(ask, run_of(gpus(8), []), measure)[0].members == fast


def seven_of_eight(across: Mapping[tuple[int, int], float], lucky: tuple[int, ...]) -> tuple[Choice, int]:
    """Return the choice of seven GPUs on two NUMA nodes, and how many rounds of all-reduces it took.

    Pairs on one node have 40 GB/s, others 30 or what `across` says. Seven reach 14, without one of `lucky` 28.
    """
    rounds = 0

    def measure(sets: Iterable[tuple[int, ...]]) -> tuple[Run, None]:
        nonlocal rounds
        rounds += 1
        rates = {some: near(28.0 if set(lucky) - set(some) else 14.0) for some in sets}
        points = [measured(Operation.ALLREDUCE, some, [gbs * 7 / 12 for gbs in of]) for some, of in rates.items()]
        return run_of(gpus(8), points), None

    labels = {(a, b): "NODE" for a, b in combinations(range(8), 2) if (a < 4) == (b < 4)}
    run = pair_run(8, lambda a, b: 40.0 if (a, b) in labels else across.get((a, b), 30.0), paths(8, "SYS", labels))
    return by_finalists(choose(run, 7), run, measure)[0], rounds


@pytest.mark.parametrize("lucky", [(0, 1), (2, 3), (4, 5), (6, 7)])
def test_only_sets_whose_ring_avoids_a_slow_path_between_sockets_are_found(lucky: tuple[int, ...]) -> None:
    """Each of the eight sets has pairs that use the path, so none of them shows which ring does.

    Two are alike: without either of the lucky GPUs the slow pairs have the same places in NCCL's order.
    """
    choice, _ = seven_of_eight({(0, 6): 14.0, (0, 7): 14.0, (1, 6): 14.0, (1, 7): 14.0}, lucky)
    assert set(lucky) - set(choice.members)


def test_a_healthy_machine_is_measured_once_though_its_rings_reach_half_of_what_pairs_do() -> None:
    _, rounds = seven_of_eight({}, lucky=())
    assert rounds == 1


def broken(point: Measurement, how: str) -> Measurement:
    return replace(point, failure=in_words("no answer")) if how == "failed" else replace(point, wrong=1)


@pytest.mark.parametrize("how", ["failed", "wrong"])
def test_what_failed_or_moved_wrong_data_cannot_win(how: str) -> None:
    run = verification({FIRST: near(300), OTHER: near(400)})
    run.measurements[1] = broken(run.measurements[1], how)
    assert settle(predicted(OTHER, FIRST), run).members == FIRST


def test_without_the_default_no_gain_is_claimed() -> None:
    choice = settle(predicted(OTHER, THIRD, FIRST), verification({OTHER: near(400), THIRD: near(300)}))
    assert (choice.members, choice.gain, choice.why(gpus(8))) == (OTHER, None, "400 GB/s measured")


def test_a_run_without_the_finalists_settles_nothing() -> None:
    choice = predicted(OTHER, FIRST)
    assert settle(choice, verification({THIRD: near(300)})) is choice
    assert settle(choice, run_of(gpus(8), [measured(Operation.BROADCAST, OTHER, 300.0)])) is choice


def test_the_gain_of_one_of_two_has_the_interval_of_a_single_comparison() -> None:
    """Two medians are compared, so the 95% interval is Student's. Each communicator varies by 0.14% from run to run."""
    run = verification({OTHER: near(400), FIRST: near(300)})
    choice = settle(predicted(OTHER, FIRST), run)
    found = estimates({m.point.members: m for m in run.measurements}, {OTHER: "", FIRST: ""})
    from scipy.stats import t  # late: it takes a second

    between = 0.0015 * math.sqrt(1 - 0.4**2)  # docs/compare.md, known to ten degrees of freedom
    trials = found[OTHER].error
    freedom = (trials**2 + between**2) ** 2 / (trials**4 / found[OTHER].freedom + between**4 / 10)
    wide = t.ppf(0.975, freedom) * math.sqrt(2) * math.hypot(trials, between)
    assert choice.gain is not None
    assert choice.gain == pytest.approx([400 / 300 * math.exp(side * wide) for side in (-1, 0, 1)], rel=1e-3)
    assert choice.gain[2] / choice.gain[1] - 1 == pytest.approx(math.expm1(wide), rel=1e-2)


def test_the_fastest_of_equal_sets_gains_nothing_for_certain() -> None:
    """The fastest of several is fast by chance, too: the interval of its gain allows for that."""
    draw = random.Random(1)
    sets = list(combinations(range(8), 4))[:13]  # FIRST is the first
    certain = 0
    for _ in range(120):
        trials: dict[tuple[int, ...], list[float]] = {
            some: [300 * math.exp(draw.gauss(0, 0.03)) for _ in range(6)] for some in sets
        }
        gain = settle(predicted(*sets[1:], FIRST), verification(trials)).gain
        certain += gain is not None and not gain[0] <= 1 <= gain[2]
    assert certain <= 0.05 * 120


def test_the_figure_has_three_digits_and_the_band_is_the_winners() -> None:
    prediction = predicted(OTHER, FIRST)
    bands = Band(30.0, 50.0, How.NVLINK_RINGS, rings=4), Band(20.0, 45.0, How.NVLINK_RINGS, rings=2)
    found = tuple(replace(finalist, band=band) for finalist, band in zip(prediction.finalists, bands, strict=True))
    choice = settle(replace(prediction, finalists=found), verification({OTHER: near(31.26), FIRST: near(41.26)}))
    assert (choice.why(gpus(8)), choice.band) == ("41.3 GB/s measured (same as the first 4)", bands[1])


def test_a_single_finalist_ties_with_nobody() -> None:
    choice = settle(predicted(FIRST), verification({FIRST: near(300)}))
    assert (choice.members, choice.tied) == (FIRST, False)


@pytest.mark.parametrize(
    ("title", "before", "failing", "failed"),
    [
        ("nothing failed", (), None, ()),
        ("a pair within the winner", ((4, 5), (1, 2)), None, ((4, 5),)),
        ("the winner itself", (OTHER,), None, (OTHER,)),
        ("a pair of another set", ((0, 1),), None, ()),
        ("a pair while the finalists were measured", (), (2, 5), ((2, 5),)),
        ("a pair of another set then", (), (1, 2), ()),
        ("what was known before goes first", ((4, 5),), (2, 5), ((4, 5),)),
    ],
)
def test_what_failed_within_the_winner_stays_said(
    title: str,
    before: tuple[tuple[int, ...], ...],
    failing: tuple[int, int] | None,
    failed: tuple[tuple[int, ...], ...],
) -> None:
    run = verification({OTHER: near(400), FIRST: near(300)})
    if failing:
        run.measurements.append(broken(measured(Operation.ALLREDUCE, failing, 100.0), "wrong"))
    choice = settle(replace(predicted(OTHER, FIRST), failed=before), run)
    assert (choice.members, choice.failed) == (OTHER, failed)
    assert ("includes failed" in choice.why(gpus(8))) == bool(failed)
