import pathlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.affinity.choose import choose, evidence, preference
from collbench.errors import UsageError
from collbench.machine.nvidia_smi import facts, read_topology
from collbench.model import Health, Run
from collbench.operations import Operation
from tests.builders import GIB, gpus, measured, pair_run, paths, run_of

DATA = pathlib.Path(__file__).parents[1] / "data"
MIB = 2**20
# What V100s achieve by label, GB/s [METHOD.md §5].
V100 = {"NV1": 24.2, "NV2": 48.3, "SYS": 9.5}


def dgx_1v() -> Run:
    devices, links = facts(read_topology(DATA / "topologies" / "dgx-1v.txt"))
    cells = [measured(Operation.ALLREDUCE, link.devices, V100[link.label]) for link in links]
    return run_of(devices, cells, links)


def label(run: Run, a: int, b: int) -> str:
    return next(path.label for path in run.paths if set(path.devices) == {a, b})


def has_nvlink_ring(run: Run, members: Sequence[int]) -> bool:
    first, *rest = members
    rings = ([first, *order, first] for order in permutations(rest))
    return any(all(label(run, a, b).startswith("NV") for a, b in pairwise(ring)) for ring in rings)


def test_on_a_dgx_1v_two_get_a_double_link() -> None:
    run = dgx_1v()
    chosen = choose(run, 2)
    assert label(run, *chosen.members) == "NV2"
    assert chosen.gbs == pytest.approx(48.3)


def test_on_a_dgx_1v_four_get_one_of_the_two_full_meshes() -> None:
    assert choose(dgx_1v(), 4).members in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_on_a_dgx_1v_five_never_get_the_set_that_has_no_ring() -> None:
    """The sum of pairs picks {0,1,2,3,4}, which was measured at 5.6 GB/s; 24 of the 56 sets have a ring."""
    run = dgx_1v()
    assert sum(has_nvlink_ring(run, some) for some in combinations(range(8), 5)) == 24
    chosen = choose(run, 5)
    assert chosen.members != (0, 1, 2, 3, 4)
    assert has_nvlink_ring(run, chosen.members)
    assert chosen.gbs == pytest.approx(24.2)


@pytest.mark.parametrize("k", [3, 5, 6, 7])
def test_on_a_dgx_1v_every_choice_has_an_nvlink_ring(k: int) -> None:
    run = dgx_1v()
    assert has_nvlink_ring(run, choose(run, k).members)


def test_the_reason_names_what_was_gained() -> None:
    assert choose(dgx_1v(), 2).reason == "it carries 48.3 GB/s, the machine's worst pair 9.5"


def test_equal_pairs_go_to_the_tie_break_and_say_so() -> None:
    chosen = choose(pair_run(4, lambda a, b: 300.0 - a * 0.5), 2)
    assert chosen.members == (0, 1)
    assert chosen.reason == "all pairs tie within 0.3%: the choice does not affect bandwidth"


@pytest.mark.parametrize("visits", [1, 2])
def test_a_difference_that_too_few_visits_show_is_no_tie(visits: int) -> None:
    """An interrupted run: nothing is certain, so take what looks best and claim nothing."""
    chosen = choose(pair_run(4, lambda a, b: 300.0 if (a, b) == (2, 3) else 100.0, visits=visits), 2)
    assert chosen.members == (2, 3)
    assert "tie" not in chosen.reason


def test_pairs_that_were_not_measured_are_not_taken_for_equal() -> None:
    run = run_of(gpus(4), [measured(Operation.ALLREDUCE, (1, 2), 300.0)])
    assert choose(run, 2).members == (1, 2)


@pytest.mark.parametrize(("k", "n"), [(0, 4), (-1, 4), (5, 4), (3, 2)])
def test_a_number_of_devices_that_cannot_be_is_refused(k: int, n: int) -> None:
    with pytest.raises(UsageError, match=f"cannot choose {k} of {n} devices: choose 1 to {n}"):
        choose(pair_run(n, lambda a, b: 300.0), k)


def test_a_run_without_pairs_cannot_choose_some_but_can_take_all() -> None:
    run = run_of(gpus(3), [measured(Operation.ALLREDUCE, (0, 1, 2), 300.0)])
    with pytest.raises(UsageError, match="holds no pair: measure with 'collbench pairs' first"):
        choose(run, 2)
    assert choose(run, 3).members == (0, 1, 2)


def test_all_devices_are_no_choice() -> None:
    assert (choose(dgx_1v(), 8).members, choose(dgx_1v(), 8).reason) == (tuple(range(8)), "all 8 devices")


def test_one_device_is_chosen_by_the_tie_break_alone() -> None:
    run = dgx_1v()
    run.health_before = (Health(processes=1), *[Health()] * 7)
    assert choose(run, 1).members == (1,)


def test_seventeen_devices_are_too_many_to_search_but_not_to_tie() -> None:
    assert choose(pair_run(17, lambda a, b: 300.0), 2).members == (0, 1)
    with pytest.raises(UsageError, match="cannot search 17 devices exactly: choose among 16 with --devices"):
        choose(pair_run(17, lambda a, b: 300.0 if a else 100.0), 2)


IDLE = Health(processes=0, utilization=0)


@pytest.mark.parametrize(
    ("title", "health", "nodes", "members"),
    [
        ("nothing known: by position", (), (0, 0, 0, 0), (0, 1)),
        ("another process", (Health(processes=1), IDLE, IDLE, IDLE), (0, 0, 0, 0), (1, 2)),
        ("a busy GPU", (IDLE, Health(utilization=11), IDLE, IDLE), (0, 0, 0, 0), (0, 2)),
        ("a little use is not busy", (IDLE, Health(utilization=10), IDLE, IDLE), (0, 0, 0, 0), (0, 1)),
        ("a throttled GPU", (IDLE, Health(throttle=("HW slowdown",)), IDLE, IDLE), (0, 0, 0, 0), (0, 2)),
        (
            "set clocks are no fault",
            (IDLE, Health(throttle=("display clock setting",)), IDLE, IDLE),
            (0, 0, 0, 0),
            (0, 1),
        ),
        ("an ECC error", (Health(ecc_errors=1), IDLE, IDLE, IDLE), (0, 0, 0, 0), (1, 2)),
        ("one NUMA node rather than two", (IDLE,) * 4, (0, 1, 1, 0), (0, 3)),
        ("idle goes before near", (Health(processes=1), IDLE, IDLE, IDLE), (0, 1, 0, 1), (1, 3)),
        ("idle goes before sound", (Health(processes=1), Health(ecc_errors=1), IDLE, IDLE), (0, 0, 1, 1), (2, 3)),
    ],
)
def test_the_tie_break(
    title: str, health: tuple[Health, ...], nodes: tuple[int, ...], members: tuple[int, ...]
) -> None:
    run = pair_run(4, lambda a, b: 300.0)
    run.devices = tuple(replace(one, numa_node=node) for one, node in zip(run.devices, nodes, strict=True))
    run.health_before = health
    assert choose(run, 2).members == members


def test_evidence_is_what_training_runs_at_the_largest_size() -> None:
    pairs = list(combinations(range(3), 2))
    cells = [measured(Operation.CE_WRITE, pair, 390.0) for pair in pairs]
    copies = run_of(gpus(3), [*cells, *(measured(Operation.CE_WRITE, (b, a), 390.0) for a, b in pairs)])
    assert (found := evidence(copies)) is not None
    assert found.operation is Operation.CE_WRITE
    both = run_of(gpus(3), [*cells, *(measured(Operation.ALLREDUCE, p, 300.0, s) for p in pairs for s in (8, MIB))])
    assert (found := evidence(both)) is not None
    assert (found.operation, found.size_bytes) == (Operation.ALLREDUCE, MIB)


def test_the_evidence_of_an_interrupted_run_is_the_largest_size_that_has_most_pairs() -> None:
    cells = [measured(Operation.ALLREDUCE, pair, 300.0, MIB) for pair in combinations(range(3), 2)]
    run = run_of(gpus(3), [*cells, measured(Operation.ALLREDUCE, (0, 1), 300.0, GIB)])
    assert (found := evidence(run)) is not None
    assert (found.size_bytes, len(found.standings)) == (MIB, 3)


Rates = dict[frozenset[int], float]


def best_sets(rates: Rates, n: int, k: int, delta: float) -> set[tuple[int, ...]]:
    """Return the sets that the rule cannot tell apart, by brute force: best ring, then most bandwidth inside."""

    def ring(some: Sequence[int]) -> float:
        first, *rest = some
        orders = ([first, *order, first] for order in permutations(rest))
        return max(min(rates[frozenset(edge)] for edge in pairwise(order)) for order in orders)

    def inside(some: Sequence[int]) -> float:
        return sum(rates[frozenset(pair)] for pair in combinations(some, 2))

    sets = list(combinations(range(n), k))
    best = max(map(ring, sets))
    equal = [some for some in sets if ring(some) >= best * (1 - delta)]
    most = max(map(inside, equal))
    return {some for some in equal if inside(some) >= most * (1 - delta)}


@settings(max_examples=60)
@given(
    st.permutations(range(6)), st.lists(st.integers(20, 400), min_size=15, max_size=15, unique=True), st.integers(2, 5)
)
def test_renaming_the_devices_renames_the_choice_up_to_ties(names: list[int], values: list[int], k: int) -> None:
    rates = {frozenset(pair): float(value) for pair, value in zip(combinations(range(6), 2), values, strict=True)}

    def run_with(name: Callable[[int], int]) -> Run:
        return pair_run(6, lambda a, b: rates[frozenset((name(a), name(b)))])

    ranking = evidence(run_with(lambda a: a))
    assert ranking is not None
    good = best_sets(rates, 6, k, ranking.delta)
    here = choose(run_with(lambda a: a), k).members
    there = choose(run_with(names.index), k).members
    assert here == min(good)  # the preference among equals is by position
    assert there == min(tuple(sorted(names[m] for m in some)) for some in good)


@given(st.permutations(range(8)))
def test_renaming_a_dgx_1v_keeps_the_quality_of_the_choice(names: list[int]) -> None:
    devices, links = facts(read_topology(DATA / "topologies" / "dgx-1v.txt"))
    renamed = [replace(link, devices=(names[link.devices[0]], names[link.devices[1]])) for link in links]
    run = run_of(devices, [measured(Operation.ALLREDUCE, r.devices, V100[r.label]) for r in renamed], renamed)
    four = {names.index(member) for member in choose(run, 4).members}
    assert four in ({0, 1, 2, 3}, {4, 5, 6, 7})
    assert {names.index(member) for member in choose(run, 5).members} != {0, 1, 2, 3, 4}


def test_preference_counts_before_it_looks_at_positions() -> None:
    run = pair_run(3, lambda a, b: 300.0, paths(3))
    run.health_before = (Health(processes=2), Health(throttle=("SW power cap",)), IDLE)
    assert preference(run, (0, 1)) == (1, 1, 1, (0, 1))
    assert preference(run, (2,)) == (0, 0, 1, (2,))
