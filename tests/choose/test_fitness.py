from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.choose.choice import LeftOut, Unfit, Why
from collbench.choose.fitness import broken_pairs, left_out, marks
from collbench.model.operations import Operation
from collbench.model.run import Flag, Health, Measurement, Run
from tests.builders import gpus, hot, in_words, measured, pair_run, run_of, shared, throttled

GIB = 2**30
MIB = 2**20
IDLE = Health(processes=0, utilization=0, memory_used=4 * 2**20, nvlink_errors=7, ecc_errors=0)


def four(first: Health, after: Health = IDLE) -> Run:
    """Return four GPUs of which the first has this health before and after the run; the others are idle."""
    run = pair_run(4, lambda a, b: 300.0)
    run.devices = tuple(replace(device, memory_bytes=80 * GIB) for device in run.devices)
    run.health_before, run.health_after = (first, IDLE, IDLE, IDLE), (after, IDLE, IDLE, IDLE)
    return run


@pytest.mark.parametrize(
    ("title", "before", "after", "reason"),
    [
        ("another process", replace(IDLE, processes=1), IDLE, "busy: 1 other process"),
        ("two of them, later", IDLE, replace(IDLE, processes=2), "busy: 2 other processes"),
        ("data of 256 MiB", Health(processes=1, others_memory=782 * MIB), Health(), "busy: 1 other process"),
        (
            "work, with no more than a context",
            Health(processes=1, others_memory=526 * MIB, utilization=99),
            Health(),
            "busy: 1 other process; busy: 99% utilization",
        ),
        ("work without a process that can be seen", Health(utilization=11), Health(), "busy: 11% utilization"),
        (
            "work, and memory that somebody holds",
            replace(IDLE, utilization=90, memory_used=GIB),
            IDLE,
            "busy: 90% utilization",
        ),
        ("little free memory", replace(IDLE, memory_used=60 * GIB), IDLE, "busy: only 20 GiB of 80 GiB free"),
        ("hot when idle", replace(IDLE, throttle=("HW slowdown",)), IDLE, "throttled: HW slowdown"),
        ("uncorrected errors", replace(IDLE, ecc_errors=1), IDLE, "faulty: 1 uncorrected ECC error"),
        ("errors that grow", IDLE, replace(IDLE, nvlink_errors=10), "faulty: 3 new NVLink errors"),
        (
            "two things at once",
            replace(IDLE, processes=1, ecc_errors=2),
            IDLE,
            "faulty: 2 uncorrected ECC errors; busy: 1 other process",
        ),
    ],
)
def test_what_leaves_a_gpu_out(title: str, before: Health, after: Health, reason: str) -> None:
    assert [(left.member, left.reason) for left in left_out(four(before, after))] == [(0, reason)]


@pytest.mark.parametrize(
    ("title", "before", "after"),
    [
        ("nothing", IDLE, IDLE),
        ("nothing known", Health(), Health()),
        ("a little use", Health(utilization=10), Health()),
        ("a process that has only opened it", Health(processes=1, others_memory=526 * MIB, utilization=2), Health()),
        ("two such processes", Health(processes=2, others_memory=1052 * MIB), Health(processes=2)),
        ("the tail of our own last run: nobody is there", replace(IDLE, utilization=100), IDLE),
        ("our own use, when the run ends", IDLE, replace(IDLE, utilization=100)),
        ("clocks that somebody set", replace(IDLE, throttle=("applications clocks setting",)), IDLE),
        ("a desktop's memory", replace(IDLE, memory_used=3 * GIB), IDLE),
        ("old NVLink errors", replace(IDLE, nvlink_errors=9), replace(IDLE, nvlink_errors=9)),
    ],
)
def test_what_does_not(title: str, before: Health, after: Health) -> None:
    assert left_out(four(before, after)) == ()


def flagged(flag: Flag, trials: int) -> Run:
    """Return four GPUs whose pairs with GPU0 have five trials each; a flag marks some of those of GPU0 and GPU1."""
    run = four(IDLE)
    pair = run.measurements[0]
    pair.samples = [replace(s, flags=(flag,) if i < trials else ()) for i, s in enumerate(pair.samples)]
    return run


@pytest.mark.parametrize(
    ("title", "flag", "trials", "out", "suspect"),
    [
        ("one trial of fifteen is a spike", throttled(0), 1, "", True),
        ("two are a state", throttled(0), 2, "throttled in 13% of its trials", True),
        ("others came", shared(0), 5, "busy: another process in 33% of its trials", False),
        ("heat alone is no fault", hot(0, 84), 5, "", False),
        ("a flag about a GPU that is not there", throttled(9), 5, "", False),
    ],
)
def test_flags_of_trials(title: str, flag: Flag, trials: int, out: str, suspect: bool) -> None:
    run = flagged(flag, trials)
    assert [(left.member, left.reason) for left in left_out(run)] == ([(0, out)] if out else [])
    assert marks(run, range(4))[1] == [suspect, False, False, False]


def test_throttling_of_all_alike_leaves_none_out_but_is_known() -> None:
    slow = replace(IDLE, throttle=("SW power cap",))
    run = four(slow)
    run.health_before = (slow,) * 4
    assert left_out(run) == ()
    assert marks(run, range(4)) == ([False] * 4, [True] * 4)
    assert len(left_out(four(slow))) == 1


def test_allow_busy_keeps_the_busy_and_the_throttled_but_not_the_faulty() -> None:
    run = four(replace(IDLE, processes=1, throttle=("HW slowdown",)))
    run.health_before = (run.health_before[0], replace(IDLE, ecc_errors=1), IDLE, IDLE)
    assert [left.member for left in left_out(run)] == [0, 1]
    assert left_out(run, allow_busy=True) == (LeftOut(1, (Why(Unfit.FAULTY, "faulty: 1 uncorrected ECC error"),)),)
    assert marks(run, (0, 1, 2)) == ([True, False, False], [True, True, False])


def failed(members: tuple[int, ...]) -> Measurement:
    return replace(measured(Operation.ALLREDUCE, members, 1.0), samples=[], failure=in_words("no answer in 5 s"))


def corrupt(members: tuple[int, int]) -> Measurement:
    return replace(measured(Operation.ALLREDUCE, members, 300.0), wrong=3)


def sound(members: tuple[int, int]) -> Measurement:
    return measured(Operation.ALLREDUCE, members, 300.0)


Make = Callable[[tuple[int, int]], Measurement]


@pytest.mark.parametrize(
    ("title", "make", "pairs", "out"),
    [
        ("two pairs of one GPU", failed, [(0, 1), (1, 2)], [1]),
        ("all pairs of one GPU moved wrong data", corrupt, [(0, 3), (1, 3), (2, 3)], [3]),
        ("one pair may be the link's fault", failed, [(0, 1)], []),
        ("both ways of one pair are one pair", corrupt, [(0, 1), (1, 0)], []),
        ("pairs that share no GPU", failed, [(0, 1), (2, 3)], []),
        ("all of three pairs share none alone", failed, [(0, 1), (1, 2), (0, 2)], []),
    ],
)
def test_who_is_blamed_for_pairs_that_fail(
    title: str, make: Make, pairs: list[tuple[int, int]], out: list[int]
) -> None:
    others = [(a, b) for a in range(4) for b in range(a + 1, 4) if (a, b) not in pairs]
    run = run_of(gpus(4), [*map(make, pairs), *map(sound, others)])
    assert [left.member for left in left_out(run)] == out
    assert broken_pairs(run) == {frozenset(pair) for pair in pairs}


def test_a_failed_set_of_more_than_two_is_no_pair_that_blames_a_gpu() -> None:
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4) if (a, b) != (0, 1)]
    run = run_of(gpus(4), [failed((0, 1)), failed((0, 2, 3)), *map(sound, pairs)])
    assert left_out(run) == ()
    assert broken_pairs(run) == {frozenset((0, 1))}
