"""A run narrowed to those that a job may use."""

from __future__ import annotations

from dataclasses import replace

from collbench.choose.freshness import part, restricted, spread
from collbench.choose.select import choose
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Flag, FlagKind, Health, InterferenceCheck, Mark, MarkKind, Path, SkipKind, Skipped
from collbench.report import sentences
from tests.builders import gpus, measured, pair_run, paths, run_of

# 1-3 is the fastest pair that does not touch device 0.
RATES = {(0, 1): 400.0, (1, 3): 300.0}


def rate(a: int, b: int) -> float:
    return RATES.get((min(a, b), max(a, b)), 100.0)


def test_only_what_concerns_them_is_left_and_positions_are_new() -> None:
    whole = pair_run(4, rate)
    whole.paths = tuple(Path((a, b), f"{a}-{b}") for a in range(4) for b in range(a + 1, 4))
    whole.health_before = whole.health_after = tuple(Health(temperature=30 + index) for index in range(4))
    whole.interference_checks = [
        InterferenceCheck(Operation.ALLREDUCE, pair, "NV18", 1.0, 1.0, 1.0, 0.02, trusted=True)
        for pair in ((0, 1), (1, 3))
    ]
    narrow = part(whole, [whole.devices[3], whole.devices[1]])
    assert [device.index for device in narrow.devices] == [1, 3]
    assert [(path.devices, path.label) for path in narrow.paths] == [((0, 1), "1-3")]
    assert [check.members for check in narrow.interference_checks] == [(0, 1)]
    assert [state.temperature for state in narrow.health_before] == [31, 33]
    assert {found.point.members for found in narrow.measurements} <= {(0, 1), (1, 0)}
    assert narrow.measurements
    assert whole.measurements[0].point.members == pair_run(4, rate).measurements[0].point.members  # left as it was


def test_a_choice_among_some_of_them_is_that_of_a_run_which_had_no_others() -> None:
    whole = pair_run(4, rate)
    rest = part(whole, whole.devices[1:])
    assert choose(rest, 2).members == (0, 2)
    alone = pair_run(3, lambda a, b: rate(a + 1, b + 1))
    assert choose(alone, 2).members == (0, 2)


def test_all_of_them_are_the_run_itself() -> None:
    whole = pair_run(3, rate)
    assert part(whole, whole.devices) is whole
    assert replace(whole, health_before=()).health_before == part(whole, whole.devices[:2]).health_before == ()


def test_a_run_of_some_of_them_names_the_same_devices_among_all() -> None:
    every, some = pair_run(4, rate), pair_run(2, rate)
    failure = Failure(FailureKind.HANG, Cause.NO_ANSWER, (1,), groups=((0, 1),))
    some.measurements = [replace(some.measurements[0], samples=[], failure=failure)]
    (found,) = spread(some, every.devices, (1, 3)).measurements
    assert found.point.members == (1, 3)
    assert found.failure is not None
    assert (found.failure.devices, found.failure.groups) == ((3,), ((1, 3),))


def test_what_names_a_device_names_it_by_its_new_position() -> None:
    found = measured(Operation.ALLREDUCE, (3, 2), 100.0)
    flag, mark = Flag(FlagKind.HOT, (3,), 90), Mark(MarkKind.IMPOSSIBLE, (2,), 500.0, 450.0)
    found.samples = [replace(sample, flags=(flag,), marks=(mark,)) for sample in found.samples]
    run = run_of(gpus(4), [found], paths(4))
    run.skipped = [Skipped(SkipKind.NO_PEERS, None, one) for one in ((2, 3), (0, 3), ())]
    own = restricted(run, (3, 2))
    assert {(sample.flags[0].devices, sample.marks[0].devices) for sample in own.measurements[0].samples} == {
        ((0,), (1,))
    }
    assert sentences.flag(own.measurements[0].samples[0].flags[0], own.devices) == sentences.flag(flag, run.devices)
    assert [left.members for left in own.skipped] == [(1, 0), ()]
    assert run.measurements[0].samples[0].flags == (flag,)
