"""One data point in two runs: when it is worse, better, the same, and when nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from collbench.judge.between_runs import Key, PointPair
from collbench.judge.compare import Change, ChangeVerdict, judge_change
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
    return judge_change(PointPair(key, found, found, ends[0], ends[1]), 0.01, 0.05)


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
