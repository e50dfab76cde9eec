"""Which memory is fastest, and that nothing else is judged by registered memory where there is ordinary one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.select import choose, evidence
from collbench.judge.diagnose import judge
from collbench.judge.registration import ranges, side_by_side, winner, winners
from collbench.judge.stats import median_interval
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Measurement, Run, ordinary, registrations
from tests.builders import GIB, gpus, measured, pair_run, run_of

NONE, BUFFER, WINDOW = Registration
MIB = 2**20
_STEADY = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0)


def on(kind: Registration, found: Measurement) -> Measurement:
    return replace(found, point=replace(found.point, registration=kind))


def trials(times: dict[Registration, float]) -> dict[Registration, Sequence[float]]:
    """Return six steady trials of each kind of memory around these seconds."""
    return {kind: [seconds * factor for factor in _STEADY] for kind, seconds in times.items()}


@pytest.mark.parametrize(
    ("case", "size", "times", "fastest", "gain"),
    [
        ("one is faster by far", 2 * MIB, {NONE: 1.44, BUFFER: 1.5, WINDOW: 1.0}, (WINDOW,), (NONE, 1.44)),
        ("two tie before the third", GIB, {NONE: 1.3, BUFFER: 1.005, WINDOW: 1.0}, (BUFFER, WINDOW), (NONE, 1.3)),
        ("ordinary memory wins over the next", GIB, {NONE: 1.0, BUFFER: 1.1, WINDOW: 1.3}, (NONE,), (BUFFER, 1.1)),
        ("within 2% is a tie", GIB, {NONE: 1.015, BUFFER: 1.0, WINDOW: 1.01}, (NONE, BUFFER, WINDOW), None),
        ("below 1 MiB within 6%, too", 8, {NONE: 1.05, BUFFER: 1.0, WINDOW: 1.04}, (NONE, BUFFER, WINDOW), None),
        ("of two kinds", GIB, {NONE: 1.0, WINDOW: 1.29}, (NONE,), (WINDOW, 1.29)),
    ],
)
def test_the_fastest_memory(
    case: str,
    size: int,
    times: dict[Registration, float],
    fastest: tuple[Registration, ...],
    gain: tuple[Registration, float] | None,
) -> None:
    found = winner(size, trials(times))
    assert found.fastest == fastest, case
    assert (found.gain and (found.gain.kind, round(found.gain.ratio, 6))) == gain, case


_SECONDS = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=9)


@given(st.dictionaries(st.sampled_from(Registration), _SECONDS, min_size=2), st.sampled_from([8, MIB, GIB]))
def test_who_wins_never_contradicts_the_interval(times: dict[Registration, Sequence[float]], size: int) -> None:
    found = winner(size, times)
    assert found.fastest
    assert {*found.fastest} <= times.keys()
    best = next(kind for kind in times if kind not in {other.kind for other in found.others})
    assert best in found.fastest
    for other in found.others:
        interval = median_interval([a / b for a, b in zip(times[other.kind], times[best], strict=False)])
        assert other.interval == interval
        assert (other.kind in found.fastest) != other.behind
        if other.behind:
            assert interval is not None
            assert 1 < interval[0] <= other.ratio


def three(size: int, gbs: dict[Registration, float]) -> list[Measurement]:
    return [on(kind, measured(Operation.ALLREDUCE, (0, 1), rate, size)) for kind, rate in gbs.items()]


def test_sizes_with_the_same_winner_are_one_range() -> None:
    same, faster = {NONE: 100.0, BUFFER: 100.0, WINDOW: 100.0}, {NONE: 100.0, BUFFER: 100.0, WINDOW: 140.0}
    points = [*three(MIB, same), *three(4 * MIB, faster), *three(2 * MIB, faster), *three(GIB, same)]
    run = run_of(gpus(2), points)
    found = winners(run, Operation.ALLREDUCE, (0, 1), Variant.PLAIN)
    assert [[one.size_bytes for one in same] for same in ranges(found)] == [[MIB], [2 * MIB, 4 * MIB], [GIB]]
    assert [*side_by_side(run, Operation.ALLREDUCE, (0, 1), Variant.PLAIN)] == [MIB, 2 * MIB, 4 * MIB, GIB]


def also_on(run: Run, kind: Registration, factor: float) -> Run:
    """Return the run with each measurement once more, at another rate on this memory."""
    more = [
        on(kind, replace(one, samples=[replace(s, seconds=tuple(t / factor for t in s.seconds)) for s in one.samples]))
        for one in run.measurements
    ]
    return replace(run, measurements=[*more, *run.measurements])


def test_machines_are_judged_and_chosen_by_ordinary_memory() -> None:
    rates = {(0, 1): 100.0, (0, 2): 50.0, (1, 2): 60.0}
    plain = pair_run(3, lambda a, b: rates[a, b])
    both = also_on(plain, WINDOW, 1.7)
    assert registrations(both) == (NONE, WINDOW)
    assert ordinary(both).measurements == plain.measurements
    assert choose(both, 2) == choose(plain, 2)
    assert judge(both) == judge(plain)
    assert evidence(both) == evidence(plain)
    assert ordinary(plain) is plain


def test_where_there_is_no_ordinary_memory_the_one_that_there_is_stands_for_it() -> None:
    plain = pair_run(3, lambda a, b: 100.0 - 10 * a - b)
    alone = replace(plain, measurements=[on(WINDOW, measurement) for measurement in plain.measurements])
    assert ordinary(alone).measurements == plain.measurements
    assert choose(alone, 2) == choose(plain, 2)
