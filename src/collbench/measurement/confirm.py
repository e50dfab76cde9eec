"""Measure again what the judge would accuse: isolated, later and in another order (docs/method/verdicts.md 4)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from collbench.judge.diagnose import Kind, Severity, Verdict, judge
from collbench.judge.diagnose.readings import Reading, read
from collbench.judge.point_noise import note_noise
from collbench.measurement.backends.protocol import Backend
from collbench.measurement.interference import check_interference
from collbench.measurement.plan import Plan, StoppingRule
from collbench.measurement.sweep import Trials, Watcher
from collbench.model.errors import BackendError
from collbench.model.operations import Work
from collbench.model.run import Pair, Run
from collbench.model.units import abridged

# An accusation is one of many that chance could have made. Chance makes it once more as rarely as any other, if none of
# the trials that led to it count: they were selected by it.
_TRIALS = 7
# What is accused because of fresh trials of others is measured again, too.
_ROUNDS = 2
# Four pairs show whether a GPU, an uplink or a label is slow; seven trials of each take a second.
_MAX_PAIRS = 4
_BUDGET_S = 0.5


def confirm(
    backend: Backend, plan: Plan, run: Run, rule: StoppingRule, watcher: Watcher, say: Callable[[str], None]
) -> None:
    """Measure the pairs again that the run's verdicts rest on, into the run: of their data points only this counts.

    The trials are isolated. A pair that can no longer be measured keeps the trials it has, and its failure.
    """
    rng = random.Random(run.settings.seed + 1)  # noqa: S311  # no secret
    checked = False
    for _ in range(_ROUNDS):
        verdicts = judge(run)
        if not checked and any(v.kind is Kind.CONTENTION and not v.by_other_processes for v in verdicts):
            paths = {frozenset(path.devices): path for path in run.paths}
            run.interference_checks[:], _seconds = check_interference(backend, plan, paths, rng, trials=_TRIALS)
            checked, verdicts = True, judge(run)
        pairs = list(dict.fromkeys(_accused(run, verdicts)))[:_MAX_PAIRS]
        if not pairs:
            return
        tags = ["-".join(run.devices[member].tag for member in pair) for pair in pairs]
        say(f"measuring {abridged(tags, _MAX_PAIRS)} once more, isolated")
        try:
            _measure_again(backend, plan, run, rule, watcher, rng, pairs)
        except BackendError as error:
            say(f"not confirmed: {error}")
            return


def _accused(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Pair]:
    """Yield the pairs that verdicts on rates rest on, strongest first, but for those that were measured again."""
    again = {frozenset(one.point.members) for one in run.measurements if any(s.confirms for s in one.samples)}
    for verdict in verdicts:
        if verdict.severity is Severity.CONTRADICTION and verdict.kind is not Kind.IMPOSSIBLE and verdict.measured:
            yield from (pair for pair in verdict.pairs if frozenset(pair) not in again)


def _measure_again(
    backend: Backend,
    plan: Plan,
    run: Run,
    rule: StoppingRule,
    watcher: Watcher,
    rng: random.Random,
    pairs: list[Pair],
) -> None:
    wanted = {frozenset(pair) for pair in pairs}
    works: dict[Work, list[Reading]] = defaultdict(list)
    for reading in read(run).points:
        if frozenset(reading.members) in wanted:
            works[reading.work].append(reading)
    again = replace(
        plan,
        groups={work: tuple(reading.members for reading in readings) for work, readings in works.items()},
        sizes={work: (readings[0].size_bytes,) for work, readings in works.items()},
        launches=0,
        isolated=frozenset((work, reading.members) for work, readings in works.items() for reading in readings),
    )
    fresh = replace(run, measurements=[], skipped=[], latencies=[], interference_checks=[])
    owed = replace(rule, screening=_TRIALS, deciding=_TRIALS)
    trials = Trials(again, fresh, owed, replace(watcher, keep=lambda: None))  # the run is complete but for this
    trials.make(backend, rng, watcher.clock() + _BUDGET_S)
    run.skipped += fresh.skipped  # wrong data
    of_run = {measurement.point: measurement for measurement in run.measurements}
    for measurement in fresh.measurements:
        first = of_run[measurement.point]
        first.samples += [replace(sample, confirms=True) for sample in measurement.samples]
        if measurement.failure:
            first.stop, first.failure = measurement.stop, measurement.failure
    note_noise(run)
