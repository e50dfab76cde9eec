import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.judge.outcome import Absence, AbsenceKind
from collbench.judge.point_noise import note_noise
from collbench.judge.tiers import (
    Estimate,
    Missing,
    RankedLink,
    Ranking,
    Relation,
    estimates,
    kind_of,
    labels_of,
    margin,
    points_of,
    rank_links,
    rank_pairs,
    sets_of,
    tied_with,
    tiers_of,
    verdict_of,
)
from collbench.model.errors import FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Sample, StopReason
from collbench.model.units import DELTA
from tests.builders import GIB, gpus, in_words, measured, noisy, nvml_says, pair_run, paths, run_of

Pair = tuple[int, int]
MIB = 2**20
Rates = Callable[[int, int], float | Iterable[float]]


def ranked(count: int, rate: Rates, trials: int = 5) -> Ranking:
    found = rank_pairs(pair_run(count, rate, trials=trials), Operation.ALLREDUCE, GIB)
    assert found is not None
    return found


def shaken(rate: Callable[[int, int], float], sigma: float, trials: int = 5) -> Rates:
    """Return rates with noise between the trials, from fixed seeds."""
    return lambda a, b: noisy(rate(a, b), sigma, seed=100 * a + b, trials=trials)


def ramp(step: float) -> Callable[[int, int], float]:
    """Return six pairs of four devices that fall from 100 by `step` each."""
    order = list(combinations(range(4), 2))
    return lambda a, b: 100.0 - step * order.index((a, b))


def one_slow(pair: Pair, share: float) -> Callable[[int, int], float]:
    return lambda a, b: 300.0 * (share if (a, b) == pair else 1.0)


def across(share: float) -> Callable[[int, int], float]:
    """Return two pairs at 300, and four at about a share of it: within δ of the best, or just not."""
    order = [pair for pair in combinations(range(4), 2) if pair not in ((0, 1), (2, 3))]
    return lambda a, b: 300.0 * (share + 0.0005 * (order.index((a, b)) - 1.5) if (a, b) in order else 1.0)


SYS_ACROSS = {(0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS"}


@pytest.mark.parametrize(
    ("title", "count", "rate", "trials", "sizes"),
    [
        ("two devices are one tier", 2, one_slow((0, 1), 1.0), 5, [1]),
        ("all equal", 8, one_slow((0, 1), 1.0), 5, [28]),
        ("all equal under 1% of noise", 8, shaken(one_slow((0, 1), 1.0), 0.01), 5, [28]),
        ("one pair 8% slow under 1% of noise", 8, shaken(one_slow((2, 5), 0.92), 0.01), 5, [27, 1]),
        ("one pair 8% slow under 2% of noise", 4, shaken(one_slow((1, 2), 0.92), 0.02, 10), 10, [5, 1]),
        ("one pair 8% slow under 5% of noise", 8, shaken(one_slow((2, 5), 0.92), 0.05), 5, [28]),
        ("a difference below 2% never counts", 4, one_slow((0, 1), 0.985), 5, [6]),
        ("a difference above 2% counts where there is no noise", 4, one_slow((0, 1), 0.975), 5, [5, 1]),
        ("a ramp of 1% steps breaks against the top", 4, ramp(1.0), 5, [2, 2, 2]),
        ("a ramp of 0.3% steps does not", 4, ramp(0.3), 5, [6]),
        ("a label near the limit stays together", 4, across(0.98), 5, [2, 4]),
        ("two trials never split", 4, one_slow((0, 1), 0.3), 2, [6]),
        ("three trials do", 4, one_slow((0, 1), 0.3), 3, [5, 1]),
    ],
)
def test_tiers(title: str, count: int, rate: Rates, trials: int, sizes: list[int]) -> None:
    standings = ranked(count, rate, trials).standings
    tiers = [standing.tier for standing in standings]
    assert tiers == sorted(tiers)
    assert [tiers.count(tier) for tier in sorted(set(tiers))] == sizes


def test_of_equals_the_best_is_the_one_with_most_trials_whatever_its_number() -> None:
    run = pair_run(3, lambda a, b: [300.0, 301.0, 299.0, 300.5, 299.5])
    for first in run.measurements:
        few = [replace(m, samples=m.samples[:1]) if m is first else m for m in run.measurements]
        found = rank_pairs(replace(run, measurements=few), Operation.ALLREDUCE, GIB)
        assert found is not None
        relations = {standing.members: standing.relation for standing in found.standings}
        assert relations.pop(first.point.members) is Relation.UNDECIDED
        assert set(relations.values()) == {Relation.TIED}


SWINGING = [285.0, 300.0, 315.0, 290.0, 310.0]


@pytest.mark.parametrize(
    ("title", "trials", "all_tied"),
    [
        ("calm", [300.0] * 5, True),
        ("calm enough to show it", [*[299.0, 300.0, 301.0] * 3], True),
        ("noise that would hide a slow pair proves nothing", SWINGING, False),
        ("two trials prove nothing", [300.0] * 2, False),
    ],
)
def test_equals_are_called_so_only_where_noise_could_not_hide_a_slow_pair(
    title: str, trials: list[float], all_tied: bool
) -> None:
    found = ranked(4, lambda a, b: trials)
    assert found.one_tier
    assert found.all_tied is all_tied
    assert ("tie within" in verdict_of(found)) is all_tied


def test_small_messages_tie_within_6_percent_and_speak_of_latency() -> None:
    points = [measured(Operation.ALLREDUCE, pair, 1.0 - 0.01 * pair[1], size=8) for pair in combinations(range(4), 2)]
    found = rank_pairs(run_of(gpus(4), points), Operation.ALLREDUCE, 8)
    assert found is not None
    assert found.delta == 0.06
    assert verdict_of(found) == "all pairs tie within 2.0%: the choice does not affect latency"


@pytest.mark.parametrize(
    ("title", "trials"),
    [
        ("two wild trials of five", [300.0, 300.0, 300.0, 150.0, 160.0]),
        ("three wild trials of five: its median is one of them", [301.0, 299.0, 150.0, 160.0, 170.0]),
        ("a link ten times as noisy as the others", [240.0, 260.0, 280.0, 300.0, 310.0]),
    ],
)
def test_a_link_that_was_disturbed_is_not_called_slow(title: str, trials: list[float]) -> None:
    found = ranked(8, lambda a, b: trials if (a, b) == (2, 5) else noisy(300.0, 0.002, 100 * a + b))
    assert found.one_tier


def test_trials_that_resemble_those_before_split_no_equals() -> None:
    """AR(1) with ρ = 0.9 and σ = 1%: the medians of seven trials are off by 1% as well, however near these lie."""
    for seed in range(20):
        rng = random.Random(seed)

        def rate(_a: int, _b: int, rng: random.Random = rng) -> list[float]:
            logs = [rng.gauss(0, 0.01)]
            while len(logs) < 7:
                logs.append(0.9 * logs[-1] + rng.gauss(0, 0.01 * math.sqrt(0.19)))
            return [300 * math.exp(log) for log in logs]

        run = pair_run(8, rate)
        note_noise(run)
        found = rank_pairs(run, Operation.ALLREDUCE, GIB)
        assert found is not None
        assert found.one_tier, seed


def in_two_modes(count: int, seed: int, often: float, slow: float) -> Ranking:
    """Return a ranking of pairs, of whose trials so many are 6% slower; all trials of the first pair are `slow`."""
    rng = random.Random(seed)

    def rate(a: int, b: int) -> list[float]:
        share = slow if (a, b) == (0, 1) else 1.0
        return [300 * share * math.exp(rng.gauss(0, 0.003) - 0.06 * (rng.random() < often)) for _ in range(7)]

    run = pair_run(count, rate)
    note_noise(run)
    found = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert found is not None
    return found


def test_two_modes_split_no_equals() -> None:
    """Most differences of two trials are within a mode. By these alone 14 of 50 runs have a pair that is different."""
    assert [seed for seed in range(20) if not in_two_modes(8, seed, 0.4, 1.0).one_tier] == []


def test_a_slow_pair_whose_trials_are_all_in_one_mode_is_not_what_others_are_held_to() -> None:
    """By differences within a mode it is steadier than all others in one run of ten, and so the best steady one."""
    found = [in_two_modes(4, seed, 0.2, 0.92).standings for seed in range(60)]
    tied = [standings for standings in found for one in standings if one.members == (0, 1) and one.relation == "tied"]
    assert len(tied) <= 2


def test_noise_is_pooled_within_a_label_alone() -> None:
    links = paths(4, "NV2", SYS_ACROSS)

    def rate(a: int, b: int) -> list[float]:
        return [100.0] * 5 if (a, b) not in SYS_ACROSS else [8.0, 9.0, 9.5, 10.0, 11.0]

    found = rank_pairs(pair_run(4, rate, links), Operation.ALLREDUCE, GIB)
    assert found is not None
    assert [(standing.label, standing.tier) for standing in found.standings] == [("NV2", 1)] * 2 + [("SYS", 2)] * 4


@pytest.mark.parametrize(
    ("title", "work", "members", "kind"),
    [
        ("a copy by link", Work(Operation.CE_WRITE), [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)], "link"),
        ("staged copies too", Work(Operation.CE_WRITE, Variant.STAGED), [(0, 1), (1, 0)], "link"),
        ("both ways by pair", Work(Operation.SM_READ, Variant.BOTH_WAYS), [(0, 1), (0, 2), (1, 2)], "pair"),
        ("a collective by pair", Work(Operation.BROADCAST), [(0, 1), (0, 2), (1, 2)], "pair"),
        ("host copies by device", Work(Operation.H2D_CE, Variant.HOST), [(0,), (1,), (2,)], "device"),
    ],
)
def test_links_rank_by_what_was_measured(title: str, work: Work, members: list[Pair], kind: str) -> None:
    points = [
        Measurement(DataPoint(work.operation, some, GIB, work.variant), [Sample((0.001 * (n + 1),) * 2, 1, False)] * 5)
        for n, some in enumerate(members)
    ]
    found = rank_links(run_of(gpus(3), points), work, GIB)
    assert found is not None
    assert [standing.members for standing in found.standings] == members  # the first was made the fastest
    assert (found.kind, found.work, found.tiers) == (kind, work, len(members))
    assert {standing.label for standing in found.standings} == ({"host"} if kind == "device" else {"NV18"})


def test_a_pair_with_a_direction_that_was_not_tried_lacks_its_figure() -> None:
    found = [measured(Operation.CE_WRITE, link, [300.0] * 3) for link in permutations(range(3), 2)]
    found[0] = replace(found[0], samples=[], stop=StopReason.FAILED, failure=in_words("not tried", FailureKind.UNTRIED))
    ranking = rank_pairs(run_of(gpus(3), found), Operation.CE_WRITE, GIB)
    assert ranking is not None
    assert [standing.members for standing in ranking.standings] == [(0, 2), (1, 2)]
    assert (ranking.lacking, ranking.all_tied) == (((0, 1),), False)


@pytest.mark.parametrize("slower", [(0, 1), (1, 0)])
def test_a_pair_ties_with_the_best_whichever_direction_is_slower(slower: Pair) -> None:
    points = [
        measured(Operation.CE_WRITE, link, [rate * (1 - 1e-4 * (link == slower)) for rate in (300.0, 300.1, 300.2)])
        for link in permutations(range(3), 2)
    ]
    ranking = rank_pairs(run_of(gpus(3), points), Operation.CE_WRITE, GIB)
    assert ranking is not None
    assert {standing.relation for standing in ranking.standings} == {Relation.TIED}


PAIRS = list(combinations(range(3), 2))


def ranking(tiers: tuple[int, ...] = (1, 1, 1), **more: object) -> Ranking:
    """Return three pairs, or fewer, that tie without noise, except for what is given."""
    standings = tuple(
        RankedLink(pair, "NV18", 300.0, None, 1.0, tier, Relation.TIED)
        for pair, tier in zip(PAIRS, tiers, strict=False)
    )
    plain = Ranking(
        Work(Operation.ALLREDUCE),
        GIB,
        "pair",
        standings,
        delta=0.02,
        noise=0.0,
        significant=0.02,
        spread=0.0,
        equal=True,
        trials=3,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def lack(pair: tuple[int, int], *, by_design: bool = False) -> Missing:
    return Missing(GIB, pair, Absence(AbsenceKind.NOT_MEASURED, by_design))


NEVER = lack((0, 2), by_design=True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ranking((1,)), "there is one pair, so there is nothing to choose"),
        (ranking((1,), failed=((0, 1),)), "1 of 1 pairs failed, so there is nothing to compare"),
        (ranking((1,), missing=(NEVER,)), "only one of 2 pairs was measured, so there is nothing to compare"),
        (ranking(size_bytes=MIB - 1), "all pairs tie within 0.0%: the choice does not affect latency"),
        (ranking(size_bytes=MIB), "all pairs tie within 0.0%: the choice does not affect bandwidth"),
        (ranking(spread=0.02, noise=0.03), "all pairs tie within 2.0%: the choice"),
        (ranking((1, 1), missing=(NEVER,)), "all 2 measured pairs of 3 tie within 0.0%: "),
        (ranking(spread=0.05, equal=False), "no pair differs significantly: the worst looks 5.0% slower than the best"),
        (ranking((1, 2, 2), spread=0.25), "2 tiers: the worst pair is 25% slower than the best"),
        (ranking((1, 2), spread=0.75, size_bytes=8), "2 tiers: the worst pair takes 4.00 times as long as the best"),
        (ranking((1, 2), spread=0.04, size_bytes=8), "2 tiers: the worst pair takes 1.04 times as long as the best"),
        (ranking((1, 2), spread=0.95, size_bytes=8), "2 tiers: the worst pair takes 20.0 times as long as the best"),
        (ranking((1, 2), spread=0.25, missing=(lack((1, 2)),)), "2 of 3 pairs were measured; 2 tiers: "),
        (
            ranking((1, 1), missing=(lack((0, 1)), NEVER, NEVER)),
            "2 of 5 pairs were measured; no pair differs significantly",
        ),
        (ranking((1, 2, 2), spread=0.25, failed=((0, 1),)), "1 of 3 pairs failed; 2 tiers: the worst pair is 25% "),
        (
            ranking((1, 2, 2), spread=0.25, failed=((0, 1),), impossible=((0, 1),)),
            "1 of 3 pairs with a rate above the limit; 2 tiers: the worst pair is 25% ",
        ),
        (
            ranking((1, 2, 2), spread=0.25, failed=((0, 1), (0, 2)), impossible=((0, 1),)),
            "1 of 3 pairs failed; 1 of 3 pairs with a rate above the limit; 2 tiers: ",
        ),
    ],
)
def test_the_verdict_begins_with_what_it_lacks(found: Ranking, words: str) -> None:
    assert verdict_of(found).startswith(words)


def steady(*middles: float) -> list[Estimate]:
    """Return links of these log rates without noise, the best first."""
    return [Estimate("", (middle,) * 5, middle, 0.0, 0.0, 100.0) for middle in middles]


@pytest.mark.parametrize(
    ("title", "middles", "tiers"),
    [
        ("one", (0.0,), [1]),
        ("two within δ", (0.0, -0.02), [1, 1]),
        ("two beyond it", (0.0, -0.021), [1, 2]),
        ("below the widest gap", (0.0, -0.005, -0.019, -0.021, -0.022), [1, 1, 2, 2, 2]),
        ("of equal gaps below the last", (0.0, -0.011, -0.022), [1, 1, 2]),
        ("a second tier's top counts", (0.0, -0.03, -0.04, -0.05, -0.051), [1, 2, 2, 3, 3]),
        ("one step opens two tiers", (0.0, -0.03, -0.06), [1, 2, 3]),
        ("gaps above a tier's top are not its own", (0.0, -0.1, -0.101, -0.122), [1, 2, 2, 3]),
    ],
)
def test_where_a_tier_begins(title: str, middles: tuple[float, ...], tiers: list[int]) -> None:
    assert tiers_of(steady(*middles), 0.02) == tiers


def test_the_relation_is_to_the_best_though_it_is_noisy_where_all_others_are_far_below() -> None:
    noisy_best = [330.0, 310.0, 322.0, 335.0, 315.0]
    found = ranked(4, lambda a, b: noisy_best if (a, b) == (2, 3) else noisy(250.0, 0.001, seed=10 * a + b, trials=5))
    first, *others = found.standings
    assert (first.members, first.relation, first.tier) == ((2, 3), Relation.TIED, 1)
    assert {(other.relation, other.tier) for other in others} == {(Relation.DIFFERENT, 2)}


def test_whom_only_a_noisier_one_leaves_behind_by_more_than_delta_ties_with_nothing() -> None:
    """The truth: the first of two pairs with NVLinks is 4% faster, and noisy."""
    links, nvlinks = paths(4, "NV4", SYS_ACROSS), {(0, 1): [335.0, 352.0, 347.0, 341.0, 358.0]}

    def rate(a: int, b: int) -> list[float]:
        return nvlinks.get((a, b), noisy(150.0 if (a, b) in SYS_ACROSS else 333.0, 0.002, seed=10 * a + b, trials=5))

    found = rank_pairs(pair_run(4, rate, links), Operation.ALLREDUCE, GIB)
    assert found is not None
    first, second, *_ = found.standings
    assert [(one.members, one.relation) for one in (first, second)] == [
        ((0, 1), Relation.UNDECIDED),
        ((2, 3), Relation.UNDECIDED),
    ]


@pytest.mark.parametrize(("steady", "relations"), [(1, "undecided undecided"), (2, "undecided tied tied")])
def test_a_steady_pair_below_a_noisy_best_ties_with_other_steady_ones_alone(steady: int, relations: str) -> None:
    """Beside the best, which nobody can place, "tied" said of one pair would be read as tied with that best."""
    wild = [330.0, 310.0, 320.0, 345.0, 316.0, 326.0, 319.0]
    pairs = [*combinations(range(3), 2)][: 1 + steady]
    links = [
        measured(Operation.ALLREDUCE, pair, wild if pair == (0, 1) else noisy(318.0, 0.002, sum(pair), 7), GIB)
        for pair in pairs
    ]
    found = rank_pairs(run_of(gpus(3), links), Operation.ALLREDUCE, GIB)
    assert found is not None
    assert " ".join(one.relation for one in found.standings) == relations


def test_what_failed_is_said_of_its_place_whatever_its_rate() -> None:
    run = pair_run(3, lambda a, b: 300.0)
    run.measurements[1].wrong = 3
    found = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert found is not None
    assert [standing.relation for standing in found.standings] == [Relation.TIED, Relation.FAILED, Relation.TIED]
    assert (found.failed, found.lacking, found.sets) == (((0, 2),), (), 3)


def test_a_pair_exactly_delta_below_the_best_does_not_tie_with_it() -> None:
    """Times in whole ticks of a clock, here of 1%, may differ by 2% to the last digit."""
    ticks = {(0, 1): (0, 0, 0, -1, 1), (0, 2): (0, 0, 0, 1, -1), (1, 2): (-2, -2, -2, -1, -3)}
    found = ranked(3, lambda a, b: [math.exp(math.log(300.0) + 0.01 * tick) for tick in ticks[a, b]])
    relations = {standing.members: standing.relation for standing in found.standings}
    assert relations[1, 2] is Relation.UNDECIDED
    assert not found.all_tied


def test_noise_is_between_the_best_and_another() -> None:
    """The best is noisy and another calm, so two such as the best might be further apart."""
    trials = {(0, 1): [290.0, 295.0, 300.0, 305.0, 310.0], (0, 2): [100.0, 100.1, 100.2, 99.9, 99.8]}
    run = run_of(gpus(3), [measured(Operation.ALLREDUCE, pair, rates) for pair, rates in trials.items()])
    run = replace(run, paths=paths(3, but={(0, 2): "SYS"}))
    points = points_of(run, Work(Operation.ALLREDUCE), GIB)
    best, other = estimates(points, labels_of(run, points)).values()
    found = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert found is not None
    assert found.noise == margin(best, other, 2)
    assert found.significant == max(found.delta + found.noise, found.noise * best.doubt)
    assert ranked(2, lambda a, b: trials[0, 1]).noise == 0.0


def test_a_ranking_among_some_lacks_only_their_pairs() -> None:
    run = run_of(gpus(5), [measured(Operation.ALLREDUCE, pair, 300.0) for pair in ((1, 3), (3, 4))])
    found = rank_pairs(run, Operation.ALLREDUCE, GIB, among=(4, 1, 3))
    assert found is not None
    assert (found.lacking, found.sets) == (((1, 4),), 3)
    every = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert every is not None
    assert (len(every.lacking), every.sets) == (8, 10)


def test_a_link_that_was_not_measured_is_lacking_one_without_peer_access_is_excused() -> None:
    links = [measured(Operation.SM_WRITE, link, 370.0) for link in permutations(range(3), 2) if link != (2, 0)]
    found = rank_links(run_of(gpus(3), links), Work(Operation.SM_WRITE), GIB)
    assert found is not None
    assert (found.lacking, found.excused) == (((2, 0),), 0)
    refused = tuple(replace(path, cuda_peers=path.devices != (0, 2), peer_access=nvml_says("OK")) for path in paths(3))
    some = [found for found in links if set(found.point.members) != {0, 2}]
    found = rank_links(replace(run_of(gpus(3), some), paths=refused), Work(Operation.SM_WRITE), GIB)
    assert found is not None
    assert (found.lacking, found.excused, found.sets) == ((), 2, 6)


def test_the_slower_direction_counts_whichever_came_first_and_of_equal_ones_the_ascending() -> None:
    rates = {(0, 1): 9.0, (1, 0): 48.0, (0, 2): 30.0, (2, 0): 30.0, (2, 1): 20.0}
    for order in (list(rates), list(rates)[::-1]):
        run = run_of(gpus(3), [measured(Operation.CE_WRITE, link, rates[link]) for link in order])
        found = rank_pairs(run, Operation.CE_WRITE, GIB)
        assert found is not None
        assert [(one.members, round(one.gbs)) for one in found.standings] == [((0, 2), 30), ((1, 2), 20), ((0, 1), 9)]
        assert found.standings[-1].interval == pytest.approx((9.0, 9.0))


@pytest.mark.parametrize(
    ("work", "kind", "places"),
    [
        (Work(Operation.H2D_CE, Variant.HOST), "device", [(1,), (4,)]),
        (Work(Operation.ALLREDUCE), "pair", [(1, 4)]),
        (Work(Operation.CE_WRITE, Variant.BOTH_WAYS), "pair", [(1, 4)]),
        (Work(Operation.CE_WRITE), "link", [(1, 4), (4, 1)]),
    ],
)
def test_places_are_devices_pairs_or_links(work: Work, kind: str, places: list[tuple[int, ...]]) -> None:
    assert (kind_of(work), list(sets_of(work, (1, 4)))) == (kind, places)


@pytest.mark.parametrize("trials", [1, 2])
def test_too_few_trials_tie_with_nothing_not_even_the_best_with_itself(trials: int) -> None:
    run = pair_run(3, lambda a, b: 300.0)
    for found in run.measurements:
        found.samples = found.samples[:trials]
    ranking = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert ranking is not None
    assert {standing.relation for standing in ranking.standings} == {Relation.UNDECIDED}


def lasting(rng: random.Random, count: int, trials: int, sigma: float, slow: float = 0.0) -> Ranking:
    """Return the ranking of pairs whose trials resemble those before: AR(1), ρ = 0.8. The last is slower by a log."""
    found, pairs = [], [*combinations(range(count), 2)]
    for pair in pairs:
        value, rates = rng.gauss(0, sigma), []
        for _ in range(trials):
            rates.append(300 * math.exp(value - slow * (pair == pairs[-1])))
            value = 0.8 * value + 0.6 * rng.gauss(0, sigma)
        found.append(measured(Operation.ALLREDUCE, pair, rates, GIB))
    run = run_of(gpus(count), found)
    note_noise(run)
    ranking = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert ranking
    return ranking


@pytest.mark.parametrize(("count", "trials"), [(4, 3), (8, 3), (8, 7), (4, 12)])
def test_noise_that_lasts_makes_no_equal_pair_different(count: int, trials: int) -> None:
    """By errors of independent trials up to eleven of these 25 machines would have one."""
    machines = [lasting(random.Random(seed), count, trials, 0.1) for seed in range(25)]
    assert sum(not ranking.one_tier for ranking in machines) <= 2


@pytest.mark.parametrize(("count", "trials"), [(4, 3), (8, 3), (5, 5), (4, 7), (8, 7), (4, 12)])
def test_little_noise_hides_no_slow_pair_even_if_it_lasts(count: int, trials: int) -> None:
    for seed in range(10):
        ranking = lasting(random.Random(seed), count, trials, 0.003, slow=0.08)
        assert [ranked.members for ranked in ranking.standings if ranked.relation is Relation.DIFFERENT] == [
            (count - 2, count - 1)
        ]


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("trials", [5, 7])
def test_a_slower_pair_ties_no_more_often_because_it_is_noisier_than_others(sigma: float, trials: int) -> None:
    """It is 3% slower, and the others vary by 0.2%: by their noise alone a third of such pairs would look equal."""
    tied = 0
    for seed in range(40):
        rng = random.Random(1000 * trials + seed)

        def rate(a: int, b: int, rng: random.Random = rng) -> list[float]:
            level, noise = (math.log(0.97), sigma) if (a, b) == (2, 3) else (0.0, 0.002)
            return [300.0 * math.exp(level + rng.gauss(0, noise)) for _ in range(trials)]

        (slow,) = [link for link in ranked(4, rate).standings if link.members == (2, 3)]
        tied += slow.relation is Relation.TIED
    assert tied <= 1


def within(sigmas: float, trials: int = 7, doubt: float = 1.0) -> Estimate:
    """Return an estimate so many of its errors, which are well known, within δ of an estimate of 0."""
    error = 0.005
    middle = sigmas * error - DELTA
    return Estimate("PIX", (middle,) * trials, middle, error, error, 1e6, doubt=doubt)


BEST = replace(within(4.0), middle=0.0, error=0.0, cautious_error=0.0)


def test_each_of_many_ties_must_be_as_clear_as_if_all_were_to_be_shown() -> None:
    """At 2.2 σ one is equal, at 97.5%; that one of four is not has nearly four times the chance."""
    assert tied_with(BEST, {(0, 1): within(2.2)}, DELTA) == {(0, 1)}
    four: dict[tuple[int, ...], Estimate] = {(0, number): within(2.2) for number in range(1, 5)}
    assert tied_with(BEST, four, DELTA) == set()
    assert tied_with(BEST, four | {(0, 9): within(3.0)}, DELTA) == {(0, 9)}


@pytest.mark.parametrize(("trials", "doubt", "tie"), [(3, 1.0, True), (3, 2.0, False), (5, 2.0, True)])
def test_few_trials_that_may_resemble_each_other_tie_only_by_the_wider_error(
    trials: int, doubt: float, tie: bool
) -> None:
    """From five on they show themselves whether they do."""
    assert bool(tied_with(BEST, {(0, 1): within(3.0, trials, doubt)}, DELTA)) is tie
