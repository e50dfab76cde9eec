import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import collbench.measurement.sweep
from collbench.judge.stats import summarize
from collbench.measurement.backends.protocol import Step, Timing, time_step
from collbench.measurement.plan import Plan, StoppingRule, default_stopping_rule, directed_links, unordered_pairs
from collbench.measurement.sweep import Watcher, check_interference, distrusted, sweep, warm_up
from collbench.model.errors import BackendError, StepFailed
from collbench.model.operations import Operation, Work
from collbench.model.run import InterferenceCheck, Path, Run, StopReason
from tests.builders import paths
from tests.measurement.fakes import ASKED, MIB, PATIENT, FakeBackend, empty, plan_for
from tests.measurement.interrupted import saved_after_ctrl_c


def swept(
    backend: FakeBackend,
    plan: Plan,
    rule: StoppingRule = PATIENT,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    links: Sequence[Path] | None = None,
) -> Run:
    run = empty(len(backend.devices()), links)
    sweep(backend, plan, run, rule, random.Random(11), Watcher(progress, lambda: None))
    return run


def test_a_steady_machine_is_settled_after_the_planned_trials() -> None:
    run = swept(FakeBackend(4), plan_for(4))
    assert run.complete
    assert [measurement.point for measurement in run.measurements] == list(plan_for(4).points())  # in the plan's order
    trials = {
        (measurement.point.operation, measurement.point.size_bytes, len(measurement.samples))
        for measurement in run.measurements
    }
    copies = {(Operation.CE_WRITE, size, 3) for size in (MIB, 64 * MIB)}
    sums = {(Operation.ALLREDUCE, MIB, 3), (Operation.ALLREDUCE, 64 * MIB, 5)}
    assert trials == copies | sums  # what decides is measured more
    assert {measurement.stop for measurement in run.measurements} == {StopReason.PRECISION}
    assert {round(summarize(measurement).algbw, 4) for measurement in run.measurements} == {100.0}


def test_progress_never_passes_its_total() -> None:
    reports: list[tuple[int, int]] = []
    swept(
        FakeBackend(3, jitter=(0.8, 1.0, 1.3, 0.9, 1.1, 1.2)),
        plan_for(3),
        progress=lambda *report: reports.append(report),
    )
    assert reports[0][0] == 1
    assert all(done <= total for done, total in reports)
    assert reports == sorted(reports)


@pytest.mark.parametrize("failure", [BackendError("GPU1 fell off the bus"), KeyboardInterrupt()])
@pytest.mark.parametrize("failing_step", [0, 1, 17, 50])
def test_whatever_ends_it_the_finished_trials_are_in_the_run(failure: BaseException, failing_step: int) -> None:
    finished: list[int] = []

    def on_step(number: int, step: Step) -> None:
        if number == started + failing_step:
            raise failure

    started = 0
    probe = FakeBackend(3)
    warm_up(probe, plan_for(3), random.Random(11))
    started = len(probe.steps)  # with three devices there is nothing to check, so the trials begin here
    run = empty(3)
    watcher = Watcher(lambda done, _total: finished.append(done), lambda: None)
    with pytest.raises(type(failure)):
        sweep(FakeBackend(3, on_step=on_step), plan_for(3), run, PATIENT, random.Random(11), watcher)
    assert run.complete is False
    assert sum(len(measurement.samples) for measurement in run.measurements) == len(finished) == failing_step
    for measurement in run.measurements:  # steady trials of a kind that is known are settled, whatever came later
        assert measurement.stop is (StopReason.PRECISION if measurement.noise else StopReason.INTERRUPTED)
        assert measurement.noise is None or len(measurement.samples) >= 3
    assert run.seconds >= 0


MIXED = paths(4, "SYS", {(0, 1): "NV2", (2, 3): "NV2"})


def sharing(pair: frozenset[int]) -> float:
    """Concurrency halves rates across the CPUs, and does not affect NVLink pairs."""
    return 1.0 if pair in ({0, 1}, {2, 3}) else 0.5


def test_the_interference_check_finds_the_label_that_suffers_and_the_sweep_isolates_it() -> None:
    run = swept(FakeBackend(4, concurrency=sharing), plan_for(4), links=MIXED)
    verdicts = {
        (check.operation, check.label): (check.trusted, round(check.ratio, 6)) for check in run.interference_checks
    }
    for work in plan_for(4).groups:
        assert verdicts[work.operation, "NV2"] == (True, 1.0)
        assert verdicts[work.operation, "SYS"] == (False, 0.5)
    assert {Work(check.operation, check.variant) for check in run.interference_checks} == set(plan_for(4).groups)
    for measurement in run.measurements:
        nvlink = set(measurement.point.members) in ({0, 1}, {2, 3})
        assert {sample.concurrent for sample in measurement.samples} == {nvlink}
        assert summarize(measurement).algbw == pytest.approx(100.0)  # never the halved rate


@pytest.mark.parametrize(
    ("title", "failed", "isolated"),
    [
        ("none fails", [], set()),
        ("a PCIe label: all PCIe paths, whatever the work", ["PHB"], {"PHB", "SYS"}),
        ("NVLinks share nothing, so only that label", ["NV2"], {"NV2"}),
        ("a label of cores is no PCIe path", ["L3"], {"L3"}),
    ],
)
def test_paths_that_share_links_are_distrusted_together(title: str, failed: list[str], isolated: set[str]) -> None:
    """Which PCIe paths meet in a check is chance, so one work's luck must not let its copies run together."""
    all_paths = paths(4, "SYS", {(0, 1): "NV2", (2, 3): "PHB", (0, 2): "L3"})
    write, allreduce = plan_for(4).groups
    checks = [
        InterferenceCheck(write.operation, (0, 1), label, 10.0, 5.0, 0.5, 0.02, trusted=False) for label in failed
    ]
    plan = distrusted(plan_for(4), checks, {frozenset(path.devices): path for path in all_paths})
    label_of_pair = {path.devices: path.label for path in all_paths}
    assert {label_of_pair[a, b] for work, (a, b) in plan.isolated if work == write and a < b} == isolated
    assert {label_of_pair[a, b] for work, (a, b) in plan.isolated if work == allreduce} == isolated & {"PHB", "SYS"}


@pytest.mark.parametrize("failed", [Operation.ALLREDUCE, Operation.BROADCAST])
def test_what_collectives_share_is_shared_by_all_of_them(failed: Operation) -> None:
    """Which pairs meet in a check is chance, and NCCL takes the same path for each collective."""
    pairs = unordered_pairs(4)
    works = (Work(Operation.CE_WRITE), Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
    plan = replace(plan_for(4), groups=dict.fromkeys(works, pairs))
    checks = [InterferenceCheck(failed, (0, 1), "NV18", 10.0, 5.0, 0.5, 0.02, trusted=False)]
    plan = distrusted(plan, checks, {frozenset(path.devices): path for path in paths(4, "NV18")})
    assert plan.isolated == {(work, pair) for work in works[1:] for pair in pairs}


def test_an_honest_machine_is_trusted_with_numbers_in_the_right_unit() -> None:
    checks, _ = check_interference(
        FakeBackend(4), plan_for(4), {frozenset(path.devices): path for path in MIXED}, random.Random(1)
    )
    assert all(check.trusted for check in checks)
    assert [rate for check in checks for rate in (check.isolated_gbs, check.concurrent_gbs)] == pytest.approx(
        [100] * 16
    )
    assert {check.delta for check in checks} == {0.02}
    labels = [(check.operation, check.label) for check in checks]
    assert all(labels.count(label) == 2 for label in labels)  # two pairs of each label and operation


@pytest.mark.parametrize(("loss", "trusted"), [(0.985, True), (0.975, False)])
def test_the_interference_check_forgives_two_percent(loss: float, trusted: bool) -> None:
    backend = FakeBackend(4, concurrency=lambda _pair: loss)
    assert {check.trusted for check in check_interference(backend, plan_for(4), {}, random.Random(1))[0]} == {trusted}


class NoisyBackend(FakeBackend):
    """Each batch is faster or slower by a normal logarithm; among others `ratio` times as much."""

    def __init__(self, sigma: float, ratio: float = 1.0, share: float = 1.0) -> None:
        super().__init__(4, concurrency=lambda _pair: share)
        self._sigma, self._ratio, self._drawn = sigma, ratio, random.Random(5)

    def _batch(self, step: Step, group: tuple[int, ...], batch: int) -> float:
        sigma = self._sigma * (self._ratio if len(step.groups) > 1 else 1.0)
        return super()._batch(step, group, batch) * math.exp(self._drawn.gauss(0.0, sigma))


def distrusted_share(backend: FakeBackend, checks: int) -> float:
    rng, found = random.Random(3), list[InterferenceCheck]()
    while len(found) < checks:
        found += check_interference(backend, plan_for(4), {}, rng)[0]
    return sum(not check.trusted for check in found) / len(found)


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_noise_alone_seldom_fails_an_interference_check_of_three_trials(ratio: float) -> None:
    """The noise is far above δ. Expected are 0.4 and 0.8%; a σ̂ by MAD, which is too small for three, has 7 and 10%."""
    assert 0.001 <= distrusted_share(NoisyBackend(0.03, ratio), 1000) <= 0.015


def test_noise_does_not_hide_that_concurrency_halves_the_rate() -> None:
    assert distrusted_share(NoisyBackend(0.03, share=0.5), 1000) >= 0.99


def test_an_interference_check_returns_how_long_it_timed() -> None:
    backend, again = FakeBackend(4), FakeBackend(4)
    _, seconds = check_interference(backend, plan_for(4), {}, random.Random(1))
    batches = [(step.iterations, time_step(again, step).seconds[0]) for step in backend.steps]  # all links are alike
    assert seconds == pytest.approx(sum(count * sum(times) for count, times in batches))


@pytest.mark.parametrize(
    ("title", "sizes", "size"),
    [
        ("the largest of 16 MiB at most", (8, MIB, 16 * MIB, 32 * MIB), 16 * MIB),
        ("the largest there is", (8, MIB), MIB),
        ("where all are larger, the smallest", (32 * MIB, 64 * MIB), 32 * MIB),
    ],
)
def test_the_message_that_warms(title: str, sizes: tuple[int, ...], size: int) -> None:
    backend, work = FakeBackend(2), Work(Operation.CE_WRITE)
    plan = Plan(2, {work: directed_links(2)}, {work: sizes}, PATIENT.batch_bytes, ASKED)
    warm_up(backend, plan, random.Random(1))
    assert {step.size_bytes for step in backend.steps} == {size}


@pytest.mark.parametrize(
    ("title", "factors", "steps"),
    [
        ("steady from the first", (1.0,), 3),
        ("from the third on", (3.0, 2.0, 1.0), 5),
        ("from the sixth on, the last that counts", (9.0, 8.0, 7.0, 6.0, 5.0, 1.0), 8),
        ("never, so eight", tuple(float(2**n) for n in range(8)), 8),
    ],
)
def test_how_often_it_is_warmed(title: str, factors: tuple[float, ...], steps: int) -> None:
    work, step_numbers = Work(Operation.CE_WRITE), itertools.count()

    class Settling(FakeBackend):
        def time(self, step: Step) -> Timing:
            timing, factor = super().time(step), factors[min(next(step_numbers), len(factors) - 1)]
            return Timing(tuple(tuple(batch * factor for batch in batches) for batches in timing.seconds))

    backend = Settling(2)
    warm_up(backend, Plan(2, {work: ((0, 1),)}, {work: (MIB,)}, MIB, ASKED), random.Random(1))
    assert len(backend.steps) == steps


def test_on_cores_which_never_settle_the_first_result_comes_within_seconds() -> None:
    """Each step takes 0.3 s, as of gloo, and no two trials agree. Ctrl-C before the first result leaves nothing."""
    now, kept = [0.0], list[float]()

    def takes(_number: int, _step: Step) -> None:
        now[0] += 0.3

    backend = FakeBackend(8, jitter=(1.0, 1.5), on_step=takes)
    watcher = Watcher(lambda *_: None, lambda: kept.append(now[0]), clock=lambda: now[0])
    rule = default_stopping_rule("host")
    sweep(backend, plan_for(8), run := empty(8), rule, random.Random(1), watcher)
    assert run.phases["warm-up"] == pytest.approx(2 * 0.6), "two operations, each in two steps"
    assert kept[0] < 10


def test_seconds_are_kept_to_the_millisecond_and_timed_ones_to_the_microsecond() -> None:
    readings = itertools.count()
    watcher = Watcher(lambda *_: None, lambda: None, clock=lambda: next(readings) * 0.0123456)
    run = replace(empty(2), seconds=0.0)
    sweep(FakeBackend(2, gbs=96.7), plan_for(2), run, PATIENT, random.Random(11), watcher)
    last_reading = next(readings) - 1
    for recorded, exact in ((run.seconds, (last_reading - 2) * 0.0123456), (run.phases["NCCL start"], 0.0123456)):
        assert recorded == pytest.approx(exact, abs=0.0005)
        assert recorded * 1000 == pytest.approx(round(recorded * 1000), abs=1e-6)
    timed = run.phases["timed"]
    assert 0 < timed < 0.5
    assert timed * 1e6 == pytest.approx(round(timed * 1e6), abs=1e-4)
    assert timed != round(timed, 5)


def test_ctrl_c_at_any_line_leaves_a_run_that_can_be_read() -> None:
    """A link fails, so that failures are recorded, too."""

    def fail_link(_number: int, step: Step) -> None:
        if (0, 1) in step.groups:
            raise StepFailed("gone")

    plan, watcher = plan_for(2), Watcher(lambda _done, _total: None, lambda: None)

    def begin() -> tuple[Run, Callable[[], object]]:
        run = empty(2)
        return run, lambda: sweep(FakeBackend(2, on_step=fail_link), plan, run, PATIENT, random.Random(1), watcher)

    runs = list(saved_after_ctrl_c(collbench.measurement.sweep, begin))
    assert len(runs) > 100
    assert all(measurement.samples or measurement.failure for run in runs for measurement in run.measurements)
    assert len(runs[-1].measurements) == len(list(plan.points())), "late interrupts leave everything"
