"""Measure again what the judge would accuse: isolated, later and in another order (docs/method/verdicts.md 4)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
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
    again: set[Pair] = set()
    checked = False
    while True:  # what is accused because of fresh trials of others is measured again, too
        verdicts = judge(run)
        if not checked and any(v.kind is Kind.CONTENTION and not v.by_other_processes for v in verdicts):
            paths = {frozenset(path.devices): path for path in run.paths}
            run.interference_checks[:], _seconds = check_interference(backend, plan, paths, rng, trials=_TRIALS)
            checked, verdicts = True, judge(run)
        pairs = list(dict.fromkeys(pair for verdict in verdicts for pair in _unconfirmed(run, verdict, again)))
        if not pairs:
            return
        again.update(pairs)
        tags = ["-".join(run.devices[member].tag for member in pair) for pair in pairs]
        say(f"measuring {abridged(tags, _MAX_PAIRS)} once more, isolated")
        try:
            _measure_again(backend, plan, run, rule, watcher, rng, pairs)
        except BackendError as error:
            say(f"not confirmed: {error}")
            return


def _unconfirmed(run: Run, verdict: Verdict, again: AbstractSet[Pair]) -> Sequence[Pair]:
    """Return the pairs to measure again for a verdict on rates: so many that with those of `again` there are enough.

    If it is about one GPU, one element or all pairs of its labels, four are, else all: each was accused by itself.
    """
    if verdict.severity is not Severity.CONTRADICTION or verdict.kind is Kind.IMPOSSIBLE or not verdict.measured:
        return ()
    left = [pair for pair in verdict.pairs if pair not in again]
    labels = {path.label for path in run.paths if path.devices in verdict.pairs}
    every = {path.devices for path in run.paths if path.label in labels} == {*verdict.pairs}
    if verdict.reach or len(verdict.members) == 1 or every:
        return left[: max(0, _MAX_PAIRS - len(verdict.pairs) + len(left))]
    return left


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
