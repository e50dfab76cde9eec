"""Whole runs: which devices and data points belong together, groups, what only one has, what was recorded."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations

import pytest

from collbench.judge.between_runs import points_by_key
from collbench.judge.compare import ChangeVerdict, Difference, compare, match_devices
from collbench.judge.stats import median_deviation, trial_noise
from collbench.model.errors import ExitStatus, FailureKind
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Flag, Layout, Measurement, Run
from collbench.report.comparison import conclusion, matched, page
from tests.builders import gpus, hot, in_words, measured, noisy, run_of, shared, throttled
from tests.judge.runs import FAIL, copies, recorded, reported, scaled
from tests.report.pages import text


def test_a_replaced_gpu_takes_the_place_that_is_left() -> None:
    devices = [replace(gpu, index=3 - gpu.index) for gpu in reversed(gpus(4))]
    devices[1] = replace(devices[1], uuid="GPU-new")
    found = compare(copies(), replace(copies(), devices=tuple(devices)), FAIL)
    assert found.match.positions == {0: 3, 1: 2, 2: 1, 3: 0}
    assert matched(found) == "3 matched by UUID, the others by their order: GPU2 = GPU1"


@pytest.mark.parametrize(
    ("replaced", "name", "line"),
    [
        ((), "NVIDIA H200", ""),
        ((0, 1, 2, 3), "NVIDIA H200", "4 × NVIDIA H200."),
        ((0, 1, 2, 3), "NVIDIA H100", "4 × NVIDIA H100 in place of 4 × NVIDIA H200."),
        ((2,), "NVIDIA H200", "1 × NVIDIA H200; 3 others are the same."),
        ((0, 1, 2), "NVIDIA H200", "3 × NVIDIA H200; 1 other is the same."),
    ],
)
def test_other_devices_are_said_right_after_the_conclusion(replaced: tuple[int, ...], name: str, line: str) -> None:
    """Their rates may differ for another reason than a change."""
    devices = [replace(gpu, uuid=f"GPU-new-{gpu.index}", name=name) for gpu in gpus(4)]
    mixed = tuple(new if new.index in replaced else old for old, new in zip(gpus(4), devices, strict=True))
    found = compare(copies(), replace(copies(), devices=mixed), FAIL)
    said = text(page(found, ("a.json", "b.json")), verbose=False)
    others = f"The new run is of other devices: {line}\n" if line else ""
    assert said.startswith(f"Nothing is significantly slower.\n{others}backend ")


def pair_of(there: float = 1.0, back: float = 1.0, seed: int = 0) -> Run:
    """Return a run of two GPUs, with these factors of the copies from GPU0, of those to it, and all-reduce as slow."""
    factors = {(0, 1): there, (1, 0): back}
    found = [
        measured(operation, link, noisy(400 * factor, 0.003, 100 * seed + 10 * at + link[0]))
        for at, operation in enumerate((Operation.CE_WRITE, Operation.CE_READ))
        for link, factor in factors.items()
    ]
    slowest = 300 * min(factors.values())
    return run_of(gpus(2), [*found, measured(Operation.ALLREDUCE, (0, 1), noisy(slowest, 0.003, 100 * seed + 5))])


@pytest.mark.parametrize(
    ("title", "there", "back", "head"),
    [
        ("one direction halved", 0.5, 1.0, r"Regression: copies at 1G GPU0→GPU1: (49|50)\.\d% slower, "),
        ("the other", 1.0, 0.7, r"Regression: copies at 1G GPU1→GPU0: (29|30)\.\d% slower, "),
        ("one more than the other", 0.5, 0.6, r"Regression: all 5 data points are (39|40)% to (50|51)% slower, "),
        ("both", 0.5, 0.5, r"Regression: all 5 data points are (50%|49% to 50%|50% to 51%) slower, "),
    ],
)
def test_a_direction_that_lost_is_named_with_its_own_loss(title: str, there: float, back: float, head: str) -> None:
    """The mean of a halved direction and a healthy one is the rate of neither."""
    shown = text(page(compare(pair_of(), pair_of(there, back, 1), FAIL), ("a.json", "b.json")))
    assert re.match(head, shown), shown
    assert ("all of GPU0-GPU1" in shown) == ("on average" in shown) == (there < 1 and back < 1)


@pytest.mark.parametrize(("factor", "counts"), [(1.0, "5 same; no regression"), (0.5, "5 worse; a regression")])
def test_a_comparison_in_one_line_counts_data_points_alone(factor: float, counts: str) -> None:
    """With the averages as further regressions it said "12 worse; 14 regressions"."""
    assert (
        repr(compare(pair_of(), pair_of(factor, factor, 1), FAIL)) == f"<Comparison of 5 data points in both: {counts}>"
    )


def host_copies(factor_of: Callable[[int], float] = lambda _gpu: 1.0, links: float = 1.0, seed: int = 0) -> Run:
    """Return copies between three GPUs, and of host memory, slower on some."""
    found = []
    for gpu in range(3):
        for at, operation in enumerate((Operation.H2D_CE, Operation.D2H_CE)):
            rates = noisy(50 * factor_of(gpu), 0.003, 100 * seed + 10 * at + gpu)
            copied = measured(operation, (gpu,), rates)
            copied.point = replace(copied.point, variant=Variant.HOST, numa_node=0)
            found.append(copied)
    for number, link in enumerate(permutations(range(3), 2)):
        found.append(measured(Operation.CE_WRITE, link, noisy(400 * links, 0.003, 100 * seed + 50 + number)))
    return run_of(gpus(3), found)


def test_of_a_gpu_whose_slot_is_slower_only_copies_of_host_memory_are_said_to_be() -> None:
    new = host_copies(lambda gpu: 0.5 if gpu == 2 else 1.0, seed=1)
    shown = conclusion(compare(host_copies(), new, FAIL))
    assert re.match(r"Regression: copies of host memory of GPU2: (49|50)\.\d% slower, .*; 2 of 12 data points", shown)


@pytest.mark.parametrize(
    ("title", "undecided", "slow", "head"),
    [
        ("all", 36, 1.0, "Undecided: 36 of 36 data points; nothing is significantly slower."),
        ("most", 19, 1.0, "Undecided: 19 of 36 data points; nothing is significantly slower."),
        ("half", 18, 1.0, "Nothing is significantly slower."),
        ("most, a regression beside them", 20, 0.5, "Regression: all of GPU0-GPU1: "),
    ],
)
def test_that_most_is_undecided_is_the_answer_where_nothing_is_slower(
    title: str, undecided: int, slow: float, head: str
) -> None:
    found = compare(copies(), copies(lambda a, b: slow if {a, b} == {0, 1} else 1.0, seed=1), FAIL)
    verdicts = [ChangeVerdict.UNDECIDED] * undecided + [ChangeVerdict.SAME] * (len(found.changes) - undecided)
    fastest_first = zip(reversed(found.changes), verdicts, strict=True)
    changes = tuple(
        change if change.verdict is ChangeVerdict.WORSE else replace(change, verdict=verdict)
        for change, verdict in fastest_first
    )
    shown = conclusion(replace(found, changes=changes))
    assert shown.startswith(head), (title, shown)
    assert shown.count("ndecided") == (undecided > 18), (title, shown)


def test_where_everything_is_slower_no_part_is_named() -> None:
    shown = conclusion(compare(host_copies(), host_copies(lambda _gpu: 0.8, 0.85, seed=1), FAIL))
    assert re.match(r"Regression: all 12 data points are 1[45]% to (20|21)% slower, .* \(--fail-below\)\.", shown), (
        shown
    )


def test_what_is_faster_is_said_although_data_points_are_missing() -> None:
    new = host_copies(lambda _gpu: 1.3, seed=1)
    new.measurements = new.measurements[:-1]
    shown = conclusion(compare(host_copies(), new, FAIL))
    assert "significantly slower; 6 of 11 data points are faster; 1 data point is only in the base" in shown


@pytest.mark.parametrize(
    ("title", "slow", "named"),
    [
        ("a GPU", lambda a, b: 2 in (a, b), "all 3 pairs of GPU2"),
        ("two of its three pairs", lambda a, b: {a, b} in ({0, 2}, {1, 2}), "all of GPU"),
        ("a GPU and another pair", lambda a, b: 2 in (a, b) or {a, b} == {0, 1}, "all "),
        ("a pair", lambda a, b: {a, b} == {0, 2}, "all of GPU0-GPU2"),
    ],
)
def test_a_gpu_whose_pairs_are_all_slower_is_named_and_none_of_them(
    title: str, slow: Callable[[int, int], bool], named: str
) -> None:
    new = copies(lambda a, b: 0.7 if slow(a, b) else 1.0, seed=1)
    shown = text(page(compare(copies(), new, FAIL), ("a.json", "b.json")))
    said = re.match(r"Regression: (.*?): (?:\d+\.\d% to )?(\d+\.\d)% slower[,;] ", shown)
    assert said is not None, shown
    assert said[1].startswith(named), title
    assert float(said[2]) == pytest.approx(30, abs=1)


ON_PAIRS = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.ALLREDUCE, Operation.BROADCAST)


def pairs_of_five(factor: Callable[[Operation, int, int], float] = lambda _op, _a, _b: 1.0, seed: int = 0) -> Run:
    """Return copies and collectives on the pairs of five GPUs, whose small messages no link makes slower."""
    found = []
    for at, operation in enumerate(ON_PAIRS):
        for a, b in (permutations if operation.is_copy else combinations)(range(5), 2):
            slow = factor(operation, a, b)
            if operation.is_collective:
                slow = min(slow, factor(operation, b, a))
            for size, kept in ((2**20, 1.0), (2**30, slow)):
                number = 10_000 * seed + 1_000 * at + 100 * a + 10 * b + (size == 2**30)
                found.append(measured(operation, (a, b), noisy(300 * kept, 0.002, number), size))
    return run_of(gpus(5), found)


UP, DOWN = {(0, 1), (2, 3)}, {(1, 0), (3, 2)}


@pytest.mark.parametrize(
    ("title", "kept", "named", "losses"),
    [
        ("everything", lambda _op, _a, _b: 0.7, r"all 10 pairs", (30, 30)),
        (
            "everything, one GPU more",
            lambda _op, a, b: 0.5 if 3 in (a, b) else 0.7,
            r"all 10 pairs",
            (30, 50),
        ),
        (
            "two GPUs",
            lambda _op, a, b: 0.7 if {1, 4} & {a, b} else 1.0,
            r"all 7 pairs of GPU1, GPU4",
            (30, 30),
        ),
        (
            "two GPUs that lost unlike much",
            lambda _op, a, b: 0.6 if 1 in (a, b) else 0.7 if 4 in (a, b) else 1.0,
            r"all 7 pairs of GPU1, GPU4",
            (30, 40),
        ),
        (
            "all but one pair",
            lambda _op, a, b: 1.0 if {a, b} == {0, 1} else 0.7,
            r"all 9 pairs of GPU2, GPU3, GPU4",
            (30, 30),
        ),
        (
            "what a GPU receives",
            lambda _op, _a, b: 0.7 if b == 4 else 1.0,
            r"all 4 pairs of GPU4 in one direction",
            (30, 30),
        ),
        (
            "one pair of a slow GPU one way",
            lambda _op, a, b: 0.7 if a == 4 or (b == 4 and a) else 1.0,
            r"all 4 pairs of GPU4",
            (30, 30),
        ),
        (
            "two pairs without a GPU in common",
            lambda _op, a, b: 0.7 if {(a, b), (b, a)} & UP else 1.0,
            r"all of GPU(?:0-GPU1|2-GPU3): 30\.\d% slower; also all of GPU(?:0-GPU1|2-GPU3)",
            (30, 30),
        ),
        (
            "a GPU and a pair without it",
            lambda _op, a, b: 0.6 if 4 in (a, b) else 0.7 if {(a, b), (b, a)} & UP and a + b == 1 else 1.0,
            r"all 4 pairs of GPU4: .*40\.\d% slower; also all of GPU0-GPU1",
            (30, 30),
        ),
        (
            "the pairs between two halves, of no GPU all",
            lambda _op, a, b: 0.7 if (a < 2) != (b < 2) else 1.0,
            r"all of GPU\d-GPU\d: 30\.\d% slower; also all of GPU\d-GPU\d",
            (30, 30),
        ),
        (
            "the collectives",
            lambda op, _a, _b: 0.2 if op.is_collective else 1.0,
            r"all collectives at 1G on average",
            (80, 80),
        ),
        (
            "the copies",
            lambda op, _a, _b: 0.7 if op.is_copy else 1.0,
            r"(?:ce-write|ce-read|sm-write) at 1G on average: \d+\.\d% slower; also \S+ at 1G on average",
            (30, 30),
        ),
    ],
)
def test_what_all_slower_pairs_share_is_named(
    title: str, kept: Callable[[Operation, int, int], float], named: str, losses: tuple[float, float]
) -> None:
    """All pairs, if all of their works lost; some GPUs, if nothing without them did; else what lost most."""
    shown = conclusion(compare(pairs_of_five(), pairs_of_five(kept, 1), FAIL))
    said = re.match(rf"Regression: {named}: (?:(\d+\.\d)% to )?(\d+\.\d)% slower(?: and \d more)?, ", shown)
    assert said is not None, (title, shown)
    assert (float(said[1] or said[2]), float(said[2])) == pytest.approx(losses, abs=0.5), title


def test_a_gpu_that_lost_hides_no_link_that_lost_more() -> None:
    """One that lost in one direction and not in all works is no pair that is slower; neither takes all rows."""

    def kept(operation: Operation, a: int, b: int) -> float:
        return 0.5 if (a, b) == (0, 1) and operation is not Operation.CE_READ else 0.7 if 3 in (a, b) else 1.0

    shown = text(page(compare(pairs_of_five(), pairs_of_five(kept, 1), FAIL), ("a.json", "b.json")), verbose=False)
    first = r"Regression: \S+ at 1G on GPU0[→-]GPU1: [45]\d\.\d% slower; also all 4 pairs of GPU3: .*% slower, "
    assert re.match(first, shown), shown
    rows = shown.partition("\nwhat ")[2].splitlines()[1:3]
    assert re.match(r"\S+ GPU0[→-]GPU1 ", rows[0]), shown
    assert re.match(r"all of .*GPU3", rows[1]), shown
    slow = text(page(compare(pairs_of_five(), pairs_of_five(lambda *_: 0.7, 1), FAIL), ("a", "b")), verbose=False)
    heads = slow.partition("\nwhat ")[2].splitlines()[0]
    assert heads.split() == ["points", "size", "bandwidth", "interval"], "those that a row shown has"
    pair = pairs_of_five(lambda _op, a, b: 0.7 if {a, b} == {0, 1} else 1.0, 1)
    assert "; also" not in conclusion(compare(pairs_of_five(), pair, FAIL))


def test_a_pair_is_not_said_to_be_all_pairs_of_its_gpus() -> None:
    """Where these were measured with each other only."""
    slow = pairs_of_five(lambda _op, a, b: 0.7 if {a, b} == {0, 1} else 1.0, 1)
    base, new = (
        replace(run, measurements=[timed for timed in run.measurements if timed.point.members in UP | DOWN])
        for run in (pairs_of_five(), slow)
    )
    shown = conclusion(compare(base, new, FAIL))
    assert re.match(r"Regression: all of GPU0-GPU1: (29|30)\.\d% slower, ", shown), shown


@pytest.mark.parametrize(
    ("title", "before", "now", "said"),
    [
        ("another process", (), (shared(0),), "disturbed trials: none → 15 shared on GPU0"),
        ("throttled", (), (throttled(0),), "disturbed trials: none → 15 throttled (SW power cap) on GPU0"),
        ("one in place of the other", (shared(1),), (throttled(0),), "disturbed trials: 15 shared on GPU1 → 15 "),
        ("in both runs", (shared(1),), (shared(0),), ""),
        ("in the base only", (shared(0),), (), ""),
        ("hot, which makes nothing slower", (), (hot(0, 90),), ""),
        ("nothing", (), (), ""),
    ],
)
def test_a_regression_names_what_disturbed_the_new_run_alone(
    title: str, before: tuple[Flag, ...], now: tuple[Flag, ...], said: str
) -> None:
    """No machine's name passes for a disturbance."""
    runs = copies(), copies(lambda a, b: 0.5 if 0 in (a, b) else 1.0, seed=1)
    for run, flags in zip(runs, (before, now), strict=True):
        run.machine = replace(run.machine, fabric="throttled and shared")
        for found in run.measurements[:3]:
            found.samples[:] = [replace(sample, flags=flags) for sample in found.samples]
    runs[0].machine = replace(runs[0].machine, fabric="healthy")
    shown = conclusion(compare(*runs, FAIL))
    assert shown.startswith("Regression: all 3 pairs of GPU0: "), title
    assert (f"; {said}" in shown) if said else ("disturbed" not in shown), (title, shown)
    assert "healthy" not in shown


@pytest.mark.parametrize(
    ("title", "operation", "variant", "there", "here", "one"),
    [
        ("ranks in another order", Operation.ALLREDUCE, Variant.PLAIN, (0, 1, 2), (2, 0, 1), True),
        ("a link the other way", Operation.CE_WRITE, Variant.PLAIN, (0, 1), (1, 0), False),
        ("both ways at once", Operation.CE_WRITE, Variant.BOTH_WAYS, (0, 1), (1, 0), True),
        ("one to all, the others in another order", Operation.CE_WRITE, Variant.ONE_TO_ALL, (0, 1, 2), (0, 2, 1), True),
        ("one to all from another", Operation.CE_WRITE, Variant.ONE_TO_ALL, (0, 1, 2), (1, 0, 2), False),
        ("another root", Operation.BROADCAST, Variant.PLAIN, (0, 1, 2), (1, 0, 2), False),
        ("the same root", Operation.BROADCAST, Variant.PLAIN, (0, 1, 2), (0, 2, 1), True),
    ],
)
def test_when_two_points_are_one(
    title: str, operation: Operation, variant: Variant, there: tuple[int, ...], here: tuple[int, ...], one: bool
) -> None:
    samples = measured(operation, there, 300.0).samples
    base, new = (
        run_of(gpus(3), [Measurement(DataPoint(operation, members, 2**30, variant), samples)])
        for members in (there, here)
    )
    found = compare(base, new, FAIL)
    assert (len(found.changes), len(found.only_base)) == ((1, 0) if one else (0, 1))


def test_copies_from_each_gpu_to_all_others_are_of_one_set_of_devices() -> None:
    """They are no links that could show how differently links change: a comparison of two such runs had an error."""
    runs = []
    for seed in (1, 2):
        found = [
            measured(Operation.CE_WRITE, (root, *(other for other in range(8) if other != root)), noisy(300, 0.002, at))
            for root, at in zip(range(8), range(8 * seed, 8 * seed + 8), strict=True)
        ]
        for one in found:
            one.point = replace(one.point, variant=Variant.ONE_TO_ALL)
        runs.append(run_of(gpus(8), found))
    compared = compare(runs[0], runs[1], FAIL)
    assert (len(compared.changes), compared.regressions) == (8, ())


def test_a_key_has_each_device_once() -> None:
    lanes = measured(Operation.CE_WRITE, (1, 2, 0), 300.0)
    lanes.point = replace(lanes.point, variant=Variant.ONE_TO_ALL)
    run = run_of(gpus(3), [lanes, measured(Operation.BROADCAST, (2, 1, 0), 300.0)])
    run.settings = replace(run.settings, root=3)
    assert [key.root for key in points_by_key(run)] == [None, None]  # a root that is not among them
    run.settings = replace(run.settings, root=1)
    assert [(key.members, key.root) for key in points_by_key(run)] == [((1, 0, 2), None), ((0, 1, 2), 1)]
    assert [(key.members, key.root) for key in points_by_key(run, {0: 2, 1: 0, 2: 1})] == [
        ((0, 1, 2), None),
        ((0, 1, 2), 0),
    ]


@pytest.mark.parametrize(
    ("before", "after", "common"), [((0, 0), (0, 0), 1), ((0, 1), (0, 1, 0, 1), 1), ((0,), (0, 0), 0)]
)
def test_ranks_that_share_a_gpu_are_devices_of_their_own(
    before: tuple[int, ...], after: tuple[int, ...], common: int
) -> None:
    base, new = (
        run_of(
            [gpus(2)[index] for index in indices],
            [measured(Operation.ALLREDUCE, pair, 300.0) for pair in combinations(range(len(indices)), 2)],
        )
        for indices in (before, after)
    )
    if not common:
        assert match_devices(base, new).positions == {0: 0}
        return
    found = compare(base, new, FAIL)
    assert [change.key.members for change in found.changes] == [(0, 1)]
    assert len(found.only_new) == len(new.measurements) - 1


def test_a_device_of_the_new_run_alone_is_taken_for_none_of_the_base() -> None:
    """It is listed first, so its position is another device's in the base."""
    base = run_of(gpus(2), [measured(Operation.H2D_CE, (index,), 50.0) for index in range(2)])
    devices = (replace(gpus(1)[0], uuid="GPU-new"), *gpus(2))
    rates = (30.0, 50.0, 50.0)
    found = compare(
        base, run_of(devices, [measured(Operation.H2D_CE, (i,), rate) for i, rate in enumerate(rates)]), FAIL
    )
    assert [(change.key.members, round(change.ratio, 6)) for change in found.changes] == [((0,), 1.0), ((1,), 1.0)]
    assert ([key.members for key in found.only_new], found.only_base) == ([(0,)], ())


def pairs_run(rates: dict[tuple[int, int], float], n: int = 3, trials: int = 5, size: int = 2**30) -> Run:
    """Return copies over some links at these rates, without noise."""
    found = [measured(Operation.CE_WRITE, link, rate, size, trials) for link, rate in rates.items()]
    return run_of(gpus(n), found)


LINKS = {(0, 1): 400.0, (1, 2): 400.0, (2, 0): 400.0}
FEWER = {(0, 1): 400.0, (1, 2): 400.0}
BROKEN = replace(measured(Operation.SM_READ, (0, 1), 400.0), failure=in_words("no answer", FailureKind.HANG))


@pytest.mark.parametrize(
    ("title", "new", "judged", "lost", "status"),
    [
        ("the same", pairs_run(LINKS), 3, [], ExitStatus.DONE),
        ("4% slower", pairs_run(LINKS | {(0, 1): 384.0}), 3, [], ExitStatus.DONE),
        ("10% slower", pairs_run(LINKS | {(0, 1): 360.0}), 3, [], ExitStatus.CONTRADICTION),
        ("10% faster", pairs_run(LINKS | {(0, 1): 440.0}), 3, [], ExitStatus.DONE),
        ("two trials judge nothing", pairs_run(LINKS, trials=2), 0, [], ExitStatus.FAILED),
        ("a link is lost", pairs_run(FEWER), 2, [(2, 0)], ExitStatus.FAILED),
        (
            "a link is lost and another slower",
            pairs_run(FEWER | {(0, 1): 300.0}),
            2,
            [(2, 0)],
            ExitStatus.CONTRADICTION,
        ),
        ("its device is gone", pairs_run({(0, 1): 400.0}, n=2), 1, [(1, 2), (2, 0)], ExitStatus.FAILED),
        ("it is incomplete", replace(pairs_run(LINKS), complete=False), 3, [], ExitStatus.FAILED),
        ("another size", pairs_run(LINKS, size=2**20), 0, [], ExitStatus.FAILED),
        (
            "something else failed",
            replace(pairs_run(LINKS), measurements=[*pairs_run(LINKS).measurements, BROKEN]),
            3,
            [],
            ExitStatus.UNTRUSTED,
        ),
    ],
)
def test_how_a_comparison_ends(
    title: str, new: Run, judged: int, lost: list[tuple[int, ...]], status: ExitStatus
) -> None:
    found = compare(pairs_run(LINKS), new, FAIL)
    assert (found.judged, [key.members for key in found.lost], found.status) == (judged, lost, status)


@cache
def pairs_at(sizes: tuple[int, ...]) -> Run:
    """Return copies and two collectives on the pairs of eight GPUs at some sizes, all of them asked for."""
    works = (Operation.CE_WRITE, Operation.ALLREDUCE, Operation.BROADCAST)
    points = [(work, pair, size) for work in works for pair in combinations(range(8), 2) for size in sizes]
    run = run_of(gpus(8), [measured(work, pair, 300.0, size) for work, pair, size in points])
    run.settings = replace(run.settings, copies=(Variant.PLAIN,), layout=Layout.PAIRS)
    return run


SIZES = (2**20, 2**26, 2**30)


@pytest.mark.parametrize(
    ("title", "gone"),
    [
        ("a pair", lambda m: m.point.members == (2, 5)),
        ("an operation", lambda m: m.point.operation is Operation.BROADCAST),
        ("all copies", lambda m: m.point.operation is Operation.CE_WRITE),
        ("a size", lambda m: m.point.size_bytes == 2**30),
        ("a GPU", lambda m: 7 in m.point.members),
        ("all but one point", lambda m: (m.point.members, m.point.size_bytes) != ((0, 1), 2**20)),
        ("a random half", lambda m: random.Random(str(m.point)).random() < 0.5),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_more_that_is_lost_never_ends_better(title: str, gone: Callable[[Measurement], bool], complete: bool) -> None:
    base = pairs_at(SIZES)
    kept = [found for found in base.measurements if not gone(found)]
    found = compare(base, replace(base, measurements=kept, complete=complete), FAIL)
    assert (len(found.lost), found.status) == (len(base.measurements) - len(kept), ExitStatus.FAILED), title
    said = conclusion(found)
    assert "othing that was measured in both runs is significantly slower; " in said
    assert f"{len(found.lost)} data points are only in the base" in said


def test_only_what_is_missing_is_called_not_judged() -> None:
    """The page once began "not judged", and went on with the verdict on all other data points."""
    base = pairs_at(SIZES)
    kept = [found for found in base.measurements if found.point.members != (2, 5)]
    said = text(page(compare(base, replace(base, measurements=kept), FAIL), ("a.json", "b.json")))
    lost, total = len(base.measurements) - len(kept), len(base.measurements)
    assert said.startswith(
        f"not judged: {lost} of {total} data points of the base, missing in the new run: measure it again\n"
    )


def test_a_run_of_fewer_gpus_lacks_those() -> None:
    """The page once began "measure it again", which would have shown the same."""
    base = pairs_at(SIZES)
    kept = [found for found in base.measurements if max(found.point.members) < 6]
    fewer = replace(run_of(gpus(6), kept), settings=base.settings)
    said = text(page(compare(base, fewer, FAIL), ("a.json", "b.json")))
    assert " data points of the base, missing in the new run: it lacks GPU6, GPU7\n" in said


def test_a_run_that_was_asked_for_less_has_lost_nothing_and_says_what_both_have() -> None:
    found = compare(pairs_at(SIZES), pairs_at(SIZES[:2]), FAIL)
    assert (found.lost, found.status) == ((), ExitStatus.DONE)
    assert conclusion(found).endswith("in both runs is significantly slower; 84 data points are only in the base.")
    found = compare(pairs_at(SIZES[:2]), pairs_at(SIZES), FAIL)
    assert conclusion(found).endswith("in both runs is significantly slower; 84 data points are only in the new run.")


TRIALS = [0.99, 0.995, 1.0, 1.002, 1.003, 1.006, 1.012]


@pytest.mark.parametrize(
    ("title", "points_", "answers", "pooled"),
    [
        ("one data point", [(Operation.CPU_WRITE, (0, 1))], 1, 1),
        ("two without anything in common", [(Operation.CPU_WRITE, (0, 1)), (Operation.CPU_READ, (1, 2))], 2, 1),
        ("two of a work are a group, too", [(Operation.CPU_WRITE, (0, 1)), (Operation.CPU_WRITE, (1, 2))], 3, 2),
        ("two of a place as well", [(Operation.CPU_WRITE, (0, 1)), (Operation.CPU_READ, (1, 0))], 3, 1),
    ],
)
def test_the_more_is_asked_the_wider_is_each_interval(
    title: str, points_: list[tuple[Operation, tuple[int, int]]], answers: int, pooled: int
) -> None:
    """All answers together err in one of a hundred; the quantile is Student's, of both runs' degrees of freedom.

    Copies by cores have no variation from run to run by default.
    """
    run = run_of(gpus(3), [measured(work, link, [400 * trial for trial in TRIALS]) for work, link in points_])
    found = compare(run, scaled(run, 1 / 0.9), FAIL)
    error = trial_noise([[math.log(trial) for trial in TRIALS]]) * median_deviation(len(TRIALS))
    from scipy.stats import t  # late: it takes a second

    far = float(t.ppf(1 - 0.01 / answers / 2, 2 * 0.5 * 6 * pooled)) * math.sqrt(2) * error
    for change in found.changes:
        assert change.interval == pytest.approx((0.9 * math.exp(-far), 0.9 * math.exp(far)))


def noisy_copies(factor: float, seed: int) -> Run:
    """Return three trials of each link by four kinds of copies, with 2% noise; a factor on the pair 1-3."""
    works = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
    found = []
    for number, work in enumerate(works):
        for a, b in permutations(range(4), 2):
            gbs = 400 * (factor if {a, b} == {1, 3} else 1)
            found.append(measured(work, (a, b), noisy(gbs, 0.02, 97 * number + 8 * a + b + seed, 3)))
    return run_of(gpus(4), found)


def test_noise_hides_each_point_of_a_slow_link_but_not_all_of_them() -> None:
    found = compare(noisy_copies(1, 0), noisy_copies(0.92, 5000), FAIL)
    assert found.count(ChangeVerdict.WORSE) < 8
    assert [group.members for group in found.groups if group.verdict is ChangeVerdict.WORSE] == [(1, 3)]


def world(factor: float, seed: int) -> Run:
    """Return an all-reduce over eight GPUs at eleven sizes, three trials each, as `collbench allreduce` makes them."""
    found = []
    for size in (2**exponent for exponent in range(20, 31)):
        rates = noisy(300 * factor, 0.004, size // 2**20 + seed, 3)
        found.append(measured(Operation.ALLREDUCE, range(8), rates, size=size))
    return run_of(gpus(8), found)


def test_one_communicator_at_many_sizes_is_judged_by_like_sizes() -> None:
    """Three trials of a size alone tell hardly anything of their noise."""
    assert compare(world(1, 0), world(1, 1), FAIL).count(ChangeVerdict.WORSE) == 0
    assert compare(world(1, 0), world(0.9, 1), FAIL).count(ChangeVerdict.WORSE) >= 10  # 1 MiB takes 6 µs, which vary


def test_wild_points_with_hardly_a_trial_are_undecided_and_break_nothing() -> None:
    works = [operation for operation in Operation if operation.is_copy]
    runs = [
        run_of(gpus(2), [measured(work, (0, 1), noisy(300, 1.5, 9 * i + seed, 3)) for i, work in enumerate(works)])
        for seed in (0, 1)
    ]
    found = compare(runs[0], runs[1], FAIL)
    assert found.count(ChangeVerdict.UNDECIDED) == len(works)
    assert all(change.interval is not None and change.interval[1] > 100 for change in found.changes)


UNEVEN = "2026-11-21-notes/note4-uneven-pairs-r{}.json.gz"


def test_two_recorded_runs_on_one_machine_have_nothing_better_or_worse() -> None:
    found = compare(recorded(UNEVEN.format(1)), recorded(UNEVEN.format(3)), FAIL)
    assert (found.match.by_uuid, len(found.changes)) == (4, 1680)
    assert reported(found) == set()
    assert {group.verdict for group in found.groups} <= {ChangeVerdict.SAME, ChangeVerdict.UNDECIDED}
    assert found.count(ChangeVerdict.SAME) > 900  # small messages vary too much from run to run for that
    assert [difference.what for difference in found.differences] == ["started"]


def test_p2p_disabled_slows_nccl_and_no_copy_and_is_named_as_what_differs() -> None:
    base = recorded("2026-11-21-4xh200-judging/pairs.json")
    found = compare(base, recorded("2026-11-21-4xh200-judging/runs.tar.gz:no-p2p.json"), FAIL)
    assert reported(found) == {("allreduce", "worse"), ("broadcast", "worse")}
    assert Difference("NCCL_P2P_DISABLE", "not set", "1") in found.differences
    # tests/data/h200x4: 27.9 GB/s with P2P disabled against 327.
    largest = [c for c in found.changes if c.key.work == "allreduce" and c.key.size_bytes == 2**30]
    assert all(change.new_gbs == pytest.approx(27.9, abs=1) and change.regressed for change in largest)


def by_name(found: Sequence[Difference]) -> dict[str, tuple[str, str]]:
    return {one.what: (one.base, one.new) for one in found}


def test_every_subject_has_words_for_what_a_run_holds() -> None:
    """Also for what is not known: an imported or an old run has no value there."""
    base, new = copies(), copies()
    new.settings = replace(new.settings, precision=0.01, budget_seconds=2.0, iterations=7, warmup=3)
    new.machine = replace(new.machine, multicast=None if base.machine.multicast else True)
    found = by_name(compare(base, new, FAIL).differences)
    assert found["precision"] == ("default", "1.00%")
    assert found["budget"] == ("default", "2.0 s")
    assert (found["iterations"], found["warm-up"]) == (("default", "7"), ("default", "3"))
    assert set(found["multicast (NVLS)"]) <= {"yes", "no", "unknown"}


def test_what_was_asked_for_is_a_difference() -> None:
    base, new = copies(), copies()
    new.settings = replace(new.settings, quick=True, requested_sizes=(2**20, 2**30), layout=Layout.SPLIT, split=2)
    assert by_name(compare(base, new, FAIL).differences) == {
        "quick": ("no", "yes"),
        "sizes": ("default", "1M, 1G"),
        "layout": ("all", "split 2"),
    }
