"""A data point in two runs, and those judged together: worse, better, the same, or undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from collbench.judge.between_runs import Key, PointPair
from collbench.judge.compare import (
    Change,
    ChangeGroup,
    ChangeVerdict,
    GroupKind,
    Level,
    find_groups,
    judge_change,
    judge_group,
)
from collbench.judge.tiers import Estimate
from collbench.model.operations import Operation
from tests.builders import measured
from tests.judge.runs import change_of

STEADY = [400.0, 400.4, 399.6, 400.1, 399.9, 400.2, 399.8]


def shifted(factor: float) -> list[float]:
    return [rate * factor for rate in STEADY]


# title, trials in the base, trials in the new run, size, verdict, beyond 5%
Row = tuple[str, Sequence[float], Sequence[float], int, ChangeVerdict, bool]
TABLE: list[Row] = [
    ("the same again", STEADY, STEADY[::-1], 2**30, ChangeVerdict.SAME, False),
    ("0.4% slower: nobody decides otherwise", STEADY, shifted(0.996), 2**30, ChangeVerdict.SAME, False),
    ("3% slower: one link shows not how runs vary", STEADY, shifted(0.97), 2**30, ChangeVerdict.UNDECIDED, False),
    ("6% slower", STEADY, shifted(0.94), 2**30, ChangeVerdict.WORSE, False),
    ("8% slower, by no less than 5%: not shown of one link", STEADY, shifted(0.92), 2**30, ChangeVerdict.WORSE, False),
    ("10% slower", STEADY, shifted(0.90), 2**30, ChangeVerdict.WORSE, True),
    ("8% faster", STEADY, shifted(1.08), 2**30, ChangeVerdict.BETTER, False),
    ("2.2% slower: at the border of δ", STEADY, shifted(0.978), 2**30, ChangeVerdict.UNDECIDED, False),
    ("two trials show no noise", STEADY[:2], shifted(0.5)[:2], 2**30, ChangeVerdict.UNDECIDED, False),
    ("a new run with two trials", STEADY, shifted(0.5)[:2], 2**30, ChangeVerdict.UNDECIDED, False),
    ("three trials, half as fast", STEADY[:3], shifted(0.5)[:3], 2**30, ChangeVerdict.WORSE, True),
    ("one wild trial of seven", STEADY, [*STEADY[:6], 200.0], 2**30, ChangeVerdict.SAME, False),
    ("wild trials drag the median", STEADY, [400, 401, 399, 250, 260, 255, 245], 2**30, ChangeVerdict.UNDECIDED, False),
    ("2% slower below 1 MiB: a launch varies by that", STEADY, shifted(0.98), 2**19, ChangeVerdict.SAME, False),
    ("8 B, 1.7 µs instead of 1.6: a run's own", [r / 8e4 for r in STEADY], [r / 8.5e4 for r in STEADY], 8,
     ChangeVerdict.UNDECIDED, False),
    ("8 B, half as fast", [r / 8e4 for r in STEADY], [r / 16e4 for r in STEADY], 8, ChangeVerdict.WORSE, True),
]  # fmt: skip


@pytest.mark.parametrize(("title", "base", "new", "size", "verdict", "regressed"), TABLE)
def test_what_became_of_a_point(
    title: str, base: Sequence[float], new: Sequence[float], size: int, verdict: ChangeVerdict, regressed: bool
) -> None:
    change = change_of(base, new, size)
    assert (change.verdict, change.regressed) == (verdict, regressed), (change.ratio, change.interval)


def test_cores_have_no_launch_that_could_vary() -> None:
    """8 B from core to core takes some ns: a launch's variation from run to run would allow anything."""
    base, new = [r / 400 for r in STEADY], [r / 800 for r in STEADY]
    assert change_of(base, new, 8).verdict is not ChangeVerdict.WORSE
    assert change_of(base, new, 8, Operation.CPU_WRITE, backend="host").verdict is ChangeVerdict.WORSE


def made(old: Sequence[float], now: Sequence[float], error: float = 0.0) -> Change:
    """Return what became of a copy of 1 GiB by the logs of its trials, ascending, whose medians have this error."""
    key, found = Key("ce-write", (0, 1), None, 2**30), measured(Operation.CE_WRITE, (0, 1), 400)
    ends = [Estimate("", tuple(some), some[len(some) // 2], error, error, 100.0) for some in (old, now)]
    return judge_change(PointPair(key, found, found, ends[0], ends[1]), Level(0.01, {}), 0.05)


CALM = [0.0] * 5


@pytest.mark.parametrize(
    ("title", "slow", "fast", "slower"),
    [
        ("by 3%", [-0.03] * 5, CALM, True),
        ("by 1%", [-0.01] * 5, CALM, False),
        ("one trial as fast", [-0.1, -0.1, -0.1, -0.1, -0.01], CALM, False),
        ("one trial at δ", [-0.1, -0.1, -0.1, -0.1, -0.02], CALM, False),
        ("one trial slower than that", [-0.1, -0.1, -0.1, -0.1, -0.03], CALM, True),
        ("one trial of the other as slow", [-0.04] * 5, [-0.03, 0.0, 0.0, 0.0, 0.0], False),
        ("one of the other at δ", [-0.04] * 5, [-0.02, 0.0, 0.0, 0.0, 0.0], False),
        ("all of the other faster", [-0.04] * 5, [-0.01, 0.0, 0.0, 0.0, 0.0], True),
        ("one wild trial of seven", [*[-0.1] * 6, 0.0], [-0.2, *[0.0] * 6], True),
    ],
)
def test_nearly_all_trials_have_to_agree(title: str, slow: list[float], fast: list[float], slower: bool) -> None:
    assert (made(fast, slow).verdict is ChangeVerdict.WORSE) is slower
    assert (made(slow, fast).verdict is ChangeVerdict.BETTER) is slower


@pytest.mark.parametrize(
    ("title", "now", "error", "verdict"),
    [
        ("exactly δ apart is the same", -0.02, 0.0, ChangeVerdict.SAME),
        # The 90% interval of a difference is 1.65 · √2 errors wide, that of all data points at once 2.6 · √2.
        ("near, as far as noise tells", -0.01, 0.004, ChangeVerdict.SAME),
        ("near or not", -0.01, 0.0045, ChangeVerdict.UNDECIDED),
        ("far or not", -0.05, 0.0084, ChangeVerdict.UNDECIDED),
        ("far, as far as noise tells", -0.05, 0.0078, ChangeVerdict.WORSE),
    ],
)
def test_noise_decides_what_is_certain(title: str, now: float, error: float, verdict: ChangeVerdict) -> None:
    assert made(CALM, [now] * 5, error).verdict is verdict
    back = {ChangeVerdict.WORSE: ChangeVerdict.BETTER}.get(verdict, verdict)
    assert made([now] * 5, CALM, error).verdict is back


@pytest.mark.parametrize(("loss", "regressed"), [(0.049, False), (0.051, True), (-0.2, False)])
def test_only_what_loses_more_than_allowed_fails(loss: float, regressed: bool) -> None:
    assert made(CALM, [math.log(1 - loss)] * 5).regressed is regressed


GIB, MIB = 2**30, 2**20


def point(
    difference: float = 0.0,
    error: float = 0.0,
    work: Operation = Operation.CE_WRITE,
    members: tuple[int, ...] = (0, 1),
    size: int = GIB,
    trials: int = 5,
) -> PointPair:
    """Return a point whose log bandwidth changed by so much, with this error in either run and 8 degrees of freedom."""
    found = measured(work, members, 400, size)
    old, now = (Estimate("", (end,) * trials, end, error, error, 8.0) for end in (0.0, difference))
    return PointPair(Key(str(work), members, None, size), found, found, old, now)


def judged(*found: PointPair, alpha: float = 0.01) -> ChangeGroup:
    return judge_group((GroupKind.WORK, "ce-write", (), [*found]), Level(alpha, {}), 0.05)


READ = Operation.SM_READ


@pytest.mark.parametrize(
    ("title", "found", "groups"),
    [
        ("a data point alone", [point()], []),
        ("a link and its way back", [point(), point(members=(1, 0))], [("", (0, 1), 2), ("ce-write", (), 2)]),
        ("two works of a link", [point(), point(work=READ)], [("", (0, 1), 2)]),
        ("a work on two links", [point(), point(members=(2, 1))], [("ce-write", (), 2)]),
        ("of 1 MiB", [point(size=MIB), point(size=MIB, members=(0, 2))], [("ce-write", (), 2)]),
        ("of less", [point(size=MIB // 2), point(size=MIB // 2, members=(0, 2))], []),
        ("of a work's smaller size", [point(), point(size=GIB // 2, members=(0, 2))], []),
        ("each work at its own largest size", [point(size=GIB // 2), point(work=READ)], [("", (0, 1), 2)]),
        ("of two trials", [point(), point(members=(0, 2), trials=2)], []),
        ("of three trials", [point(trials=3), point(members=(0, 2), trials=3)], [("ce-write", (), 2)]),
        (
            "of as many members",
            [point(work=Operation.ALLREDUCE, members=some) for some in ((0, 1), (0, 1, 2), (0, 2))],
            [("allreduce", (), 2)],
        ),
    ],
)
def test_what_belongs_together(
    title: str, found: list[PointPair], groups: list[tuple[str, tuple[int, ...], int]]
) -> None:
    made = find_groups(found)
    assert [(work, members, len(pairs)) for _, work, members, pairs in made] == groups
    assert [kind for kind, *_ in made] == [GroupKind.WORK if work else GroupKind.DEVICES for work, _, _ in groups]


@pytest.mark.parametrize(
    ("title", "differences", "verdict", "regressed"),
    [
        ("nothing changed", (0.0, 0.0, 0.0), ChangeVerdict.SAME, False),
        ("all are δ slower", (-0.02, -0.02), ChangeVerdict.SAME, False),
        ("all are δ faster", (0.02, 0.02), ChangeVerdict.SAME, False),
        ("slower", (-0.03, -0.04), ChangeVerdict.WORSE, False),
        ("faster", (0.03, 0.04), ChangeVerdict.BETTER, False),
        ("much slower", (-0.06, -0.07), ChangeVerdict.WORSE, True),
        ("much faster", (0.06, 0.07), ChangeVerdict.BETTER, False),
        ("one of three", (0.0, 0.0, -0.3), ChangeVerdict.UNDECIDED, False),
        ("one of three faster", (0.0, 0.0, 0.3), ChangeVerdict.UNDECIDED, False),
        ("one of two", (-0.7, 0.0), ChangeVerdict.UNDECIDED, False),
        ("one of two faster", (0.7, 0.0), ChangeVerdict.UNDECIDED, False),
        ("two of four", (-0.7, -0.7, 0.0, 0.0), ChangeVerdict.UNDECIDED, False),
        ("one of three, the others by δ", (-0.02, -0.02, -0.5), ChangeVerdict.UNDECIDED, False),
        ("one of three faster, the others by δ", (0.02, 0.02, 0.5), ChangeVerdict.UNDECIDED, False),
        ("one of three much slower, the others slower", (-0.04, -0.04, -0.5), ChangeVerdict.WORSE, False),
        ("most, yet together not", (-0.04, -0.04, 0.05), ChangeVerdict.SAME, False),
        ("two of three, together slower", (-0.06, -0.06, 0.0), ChangeVerdict.WORSE, False),
        ("4.9% slower", (math.log(0.951),) * 2, ChangeVerdict.WORSE, False),
        (
            "one of three much slower, the others by what is allowed",
            (*[math.log1p(-0.05)] * 2, -0.5),
            ChangeVerdict.WORSE,
            False,
        ),
        ("most, together by δ", (-0.03, -0.03, -0.03, 0.01), ChangeVerdict.SAME, False),
        ("5.1% slower", (math.log(0.949),) * 2, ChangeVerdict.WORSE, True),
    ],
)
def test_most_points_have_to_agree_with_the_mean(
    title: str, differences: Sequence[float], verdict: ChangeVerdict, regressed: bool
) -> None:
    found = judged(*map(point, differences))
    assert (found.verdict, found.regressed, found.points) == (verdict, regressed, len(differences))
    assert math.log(found.ratio) == pytest.approx(sum(differences) / len(differences))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_group_has_to_change_by_more_than_its_error_beyond_delta(sign: int) -> None:
    """All points agree on 5%; how far the truth may lie from it decides, to the last hundredth."""
    noisy = judged(point(sign * 0.05, 0.02), point(sign * 0.05, 0.02))
    far = math.log(noisy.interval[1] / noisy.ratio)
    assert far > 0.05 - 0.02
    assert (noisy.verdict, noisy.regressed) == (ChangeVerdict.UNDECIDED, False)
    for beyond, verdict in (
        (0.99, ChangeVerdict.UNDECIDED),
        (1.01, ChangeVerdict.WORSE if sign < 0 else ChangeVerdict.BETTER),
    ):
        change = sign * (noisy.delta + far * beyond)
        assert judged(point(change, 0.02), point(change, 0.02)).verdict == verdict


def test_a_point_counts_by_what_is_known_of_it() -> None:
    """Twice the error is a quarter of the weight; without any error all count alike."""
    found = judged(point(-0.1, 0.01), point(0.0, 0.02))
    assert math.log(found.ratio) == pytest.approx(-0.08)
    variance = 2 * ((0.8 * 0.01) ** 2 + (0.2 * 0.02) ** 2)
    from scipy.stats import t  # late: it takes a second

    far = float(t.ppf(0.995, 16)) * math.sqrt(variance)  # 8 degrees of freedom in each run
    assert [math.log(end) for end in found.interval] == pytest.approx([-0.08 - far, -0.08 + far])
    assert math.log(judged(point(-0.1, 0.01), point(0.0, 0.0)).ratio) == pytest.approx(-0.05)


# Two data points alike: one error wide in either run; Student's t for 16 degrees of freedom is 1.746 (90%), 2.921 (99
# %).
@pytest.mark.parametrize(
    ("title", "difference", "error", "verdict", "regressed"),
    [
        ("the same, as far as noise tells", 0.0, 0.0114, ChangeVerdict.SAME, False),
        ("the same or not", 0.0, 0.0115, ChangeVerdict.UNDECIDED, False),
        ("slower or not", -0.05, 0.0103, ChangeVerdict.UNDECIDED, False),
        ("slower, as far as noise tells", -0.05, 0.0102, ChangeVerdict.WORSE, False),
        ("faster or not", 0.05, 0.0103, ChangeVerdict.UNDECIDED, False),
        ("faster, as far as noise tells", 0.05, 0.0102, ChangeVerdict.BETTER, False),
        ("slower than allowed or not", -0.081, 0.0103, ChangeVerdict.WORSE, False),
        ("slower than allowed, as far as noise tells", -0.081, 0.0101, ChangeVerdict.WORSE, True),
    ],
)
def test_noise_decides_what_is_certain_of_a_group(
    title: str, difference: float, error: float, verdict: ChangeVerdict, regressed: bool
) -> None:
    found = judged(point(difference, error), point(difference, error))
    assert (found.verdict, found.regressed) == (verdict, regressed)


def test_the_widest_tolerance_of_its_points_is_a_groups() -> None:
    small, large = point(-0.05, size=MIB // 2), point(-0.05)
    found = judged(small, large)
    assert found.delta == pytest.approx(0.06)  # of a message below 1 MiB
    assert (found.verdict, found.size_bytes) == (ChangeVerdict.SAME, GIB)
    assert judged(large, large).verdict is ChangeVerdict.WORSE
