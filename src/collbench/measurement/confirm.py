"""Measure again what the judge would accuse: isolated, later and in another order (docs/method/verdicts.md 4).

And measure what it would have to leave open: copies through host memory, where P2P is so slow that they may be faster.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from collbench.judge.diagnose import Diagnosis, Kind, Severity, Verdict
from collbench.judge.diagnose.readings import STAGED, Reading, read
from collbench.judge.point_noise import note_noise
from collbench.measurement.backends.protocol import Backend
from collbench.measurement.plan import Plan, StoppingRule
from collbench.measurement.sweep import Trials, Watcher, check_interference
from collbench.model.errors import BackendError, FailureKind
from collbench.model.operations import Work
from collbench.model.run import Measurement, Members, Run, device_sets, tags
from collbench.model.units import abridged

# Chance can make one of many accusations, but rarely makes the same one twice. The trials that led to it do not count
# the second time, because the accusation selected them.
_TRIALS = 7
# Four pairs show whether a GPU, an uplink or a label is slow; seven trials of each take a second.
_MAX_PAIRS = 4
_BUDGET_S = 0.5
# The fewest trials that are judged: what they accuse is measured again, and copies of 1 GiB through host memory take
# 0.1 s.
_STAGED_TRIALS = 3


def confirm(
    backend: Backend, plan: Plan, run: Run, rule: StoppingRule, watcher: Watcher, say: Callable[[str], None]
) -> None:
    """Measure the pairs and GPUs again that the run's verdicts rest on, into the run; only these trials of them count.

    The trials are isolated. What can no longer be measured keeps the trials it has, and its failure.
    """
    rng = random.Random(run.settings.seed + 1)  # noqa: S311  # no secret
    isolated = _Again(backend, plan, run, rule, watcher, rng)
    again: set[Members] = set()
    diagnosis, checked = Diagnosis(run), False
    if diagnosis.unstaged:
        isolated.through_host(diagnosis, say)
        diagnosis = Diagnosis(run)
    while True:  # what is accused because of fresh trials of others is measured again, too
        found = diagnosis.verdicts
        if not checked and any(v.kind is Kind.CONTENTION and not v.by_other_processes for v in found):
            paths = {frozenset(path.devices): path for path in run.paths}
            run.interference_checks[:], _seconds = check_interference(backend, plan, paths, rng, trials=_TRIALS)
            diagnosis, checked = Diagnosis(run), True
        accused = (members for verdict in diagnosis.verdicts for members in _unconfirmed(diagnosis, verdict, again))
        # Few trials of a noisy pair accuse nobody, however slow it is.
        open_ones = [pair for pair in diagnosis.suspects if pair not in again][:_MAX_PAIRS]
        left = list(dict.fromkeys([*accused, *open_ones]))
        if not left:
            return
        again.update(left)
        names = [tags(members, run.devices, "-") for members in left]
        say(f"measuring {abridged(names, _MAX_PAIRS)} once more, isolated")
        try:
            isolated.on(left)
        except BackendError as error:
            say(f"not confirmed: {error}")
            return
        diagnosis = Diagnosis(run)


def _unconfirmed(diagnosis: Diagnosis, verdict: Verdict, again: AbstractSet[Members]) -> Sequence[Members]:
    """Return what to measure again for a verdict on rates: so many pairs that with those of `again` there are enough.

    Four are enough if it is about one GPU, one element or all pairs of its labels; else all, each accused by itself.
    For copies with host memory it is the four GPUs that are slowest at these.
    """
    if verdict.severity is not Severity.CONTRADICTION or verdict.kind is Kind.IMPOSSIBLE or not verdict.measured:
        return ()
    run, readings = diagnosis.run, diagnosis.facts.readings

    def enough(accused: Sequence[Members]) -> Sequence[Members]:
        left = [members for members in accused if members not in again]
        return left[: max(0, _MAX_PAIRS - len(accused) + len(left))]

    with_host = {work.variant.host_memory for work in verdict.works}
    hosts: Sequence[Members] = ()
    if True in with_host:
        copies = {gpu: readings.host(gpu) for gpu in verdict.members}
        slowest = {gpu: min(reading.middle for reading in own) for gpu, own in copies.items() if own}
        hosts = enough([(gpu,) for gpu in sorted(slowest, key=slowest.__getitem__)])
    if with_host == {True}:
        return hosts
    labels = {path.label for path in run.paths if path.devices in verdict.pairs}
    every = {path.devices for path in run.paths if path.label in labels} == {*verdict.pairs}
    if verdict.reach or len(verdict.members) == 1 or every:
        return [*hosts, *enough(verdict.pairs)]
    return [*hosts, *(pair for pair in verdict.pairs if pair not in again)]


class _Again(NamedTuple):
    """Measures isolated trials after a run, into the run."""

    backend: Backend
    plan: Plan
    run: Run
    rule: StoppingRule
    watcher: Watcher
    rng: random.Random

    def on(self, members: Sequence[Members]) -> None:
        """Measure all that was read on these pairs and GPUs, as confirming trials."""
        wanted = {frozenset(one) for one in members}
        groups, sizes = defaultdict[Work, list[Members]](list), dict[Work, int]()
        for reading in (reading for reading in read(self.run).points if frozenset(reading.members) in wanted):
            groups[reading.work].append(reading.members)
            sizes.setdefault(reading.work, reading.size_bytes)
        of_run = {measurement.point: measurement for measurement in self.run.measurements}
        fresh, error = self._measured(groups, sizes)
        if error:
            raise error
        for measurement in fresh:
            first = of_run[measurement.point]
            first.samples += [replace(sample, confirms=True) for sample in measurement.samples]
            if measurement.failure:
                first.stop, first.failure = measurement.stop, measurement.failure
        note_noise(self.run)

    def through_host(self, diagnosis: Diagnosis, say: Callable[[str], None]) -> None:
        """Measure copies through host memory where they may be faster: both ways of the slowest pair of each label.

        Pairs of one label with different limits count as different labels. What fails is left out, because the run is
        complete without it; what hangs is kept, because jobs send through host memory, too.
        """
        slowest: dict[tuple[str, float | None], Reading] = {}
        for reading in sorted(diagnosis.unstaged, key=lambda reading: reading.gbs):
            slowest.setdefault((reading.label, diagnosis.facts.limit(reading.members)), reading)
        pairs = [tuple(sorted(reading.members)) for reading in slowest.values()]
        say(f"measuring copies through host memory on {device_sets(pairs, self.run.devices)}: P2P is slow there")
        size = next(iter(slowest.values())).size_bytes
        both_ways = {STAGED: [way for pair in pairs for way in (pair, pair[::-1])]}
        fresh, error = self._measured(both_ways, {STAGED: size}, _STAGED_TRIALS)
        if error:
            say(f"not measured: {error}")
        for measurement in fresh:
            if failure := measurement.failure:
                say(f"not measured on {tags(measurement.point.members, self.run.devices, ' → ')}: {failure}")
            kept = failure.kind is FailureKind.HANG if failure else not error
            if kept:
                self.run.measurements.append(measurement)

    def _measured(
        self, groups: Mapping[Work, Sequence[Members]], sizes: Mapping[Work, int], trials: int = _TRIALS
    ) -> tuple[list[Measurement], BackendError | None]:
        """Return the measurements of isolated trials, and what ended them early."""
        again = replace(
            self.plan,
            groups={work: tuple(some) for work, some in groups.items()},
            sizes={work: (size,) for work, size in sizes.items()},
            launches=0,
            isolated=frozenset((work, members) for work, some in groups.items() for members in some),
        )
        fresh = replace(self.run, measurements=[], skipped=[], latencies=[], interference_checks=[])
        owed = replace(self.rule, screening=trials, deciding=trials)
        # The run is complete without this.
        made = Trials(again, fresh, owed, replace(self.watcher, keep=lambda: None))
        ended: BackendError | None = None
        try:
            made.make(self.backend, self.rng, self.watcher.clock() + _BUDGET_S)
        except BackendError as error:
            ended = error
        self.run.skipped += fresh.skipped  # wrong data
        return fresh.measurements, ended
