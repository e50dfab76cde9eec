"""Test whether disjoint pairs can be measured concurrently: compare some pairs isolated and concurrently."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median

from collbench.judge.stats import tie_threshold, trial_noise
from collbench.machine.labels import chained, is_pcie, rank_key
from collbench.measurement.backends.protocol import Backend, time_step
from collbench.measurement.plan import Plan, runs_alone
from collbench.model.errors import StepFailed
from collbench.model.operations import Work
from collbench.model.run import InterferenceCheck, Members, Path
from collbench.model.units import algbw


def shared_uplinks(
    groups: Sequence[Members], paths: Mapping[frozenset[int], Path], rng: random.Random
) -> Iterator[list[Members]]:
    """Yield for each PCIe label disjoint pairs from one side of a shared link to the other, while any are left.

    Sides are the devices that better labels join: for SYS the sockets, for PHB the devices below one PCIe switch. A
    round has as many pairs as can cross the link between two sides, which the label does not guarantee to be exclusive.
    """
    for label in sorted({path.label for path in paths.values() if is_pcie(path.label)}):
        side = _sides(paths, label)
        alike = [pair for pair in groups if len(pair) == 2 and _label(paths, pair) == label]
        rng.shuffle(alike)
        alike.sort(key=lambda pair: (side[pair[0]], side[pair[1]]))
        together = _disjoint(alike)
        if len(together) > 1:
            yield together


def _sides(paths: Mapping[frozenset[int], Path], label: str) -> dict[int, int]:
    """Return for each device the lowest device that better PCIe labels join it to; NVLinks are separate links."""
    words = {pair: path.in_tree for pair, path in paths.items()}
    joined = (pair for pair, word in words.items() if is_pcie(word) and rank_key(word) < rank_key(label))
    alone = ({device} for pair in paths for device in pair)
    return {device: min(side) for side in chained([*joined, *alone]) for device in side}


def _disjoint(pairs: Sequence[Members]) -> list[Members]:
    """Return the pairs in order, without those that share a device with an earlier one."""
    taken: set[int] = set()
    disjoint = []
    for pair in pairs:
        if not taken & set(pair):
            taken |= set(pair)
            disjoint.append(pair)
    return disjoint


_TRIALS = 3
_PAIRS_A_LABEL = 2
# A size at which a shared link shows; larger ones only take longer.
_LARGEST = 64 * 2**20


def check_interference(
    backend: Backend, plan: Plan, paths: Mapping[frozenset[int], Path], rng: random.Random, trials: int = _TRIALS
) -> tuple[list[InterferenceCheck], float]:
    """Return one comparison for up to two pairs of each label and operation, at a large size; and the seconds timed.

    Where labels show shared links, pairs that share one are chosen on purpose: in a random round they might not.
    """
    findings, timed = [], 0.0
    for work in plan.groups:
        seen: dict[str, int] = {}
        free = [] if runs_alone(work) else [m for m in plan.groups[work] if (work, m) not in plan.isolated]
        for together in (*shared_uplinks(free, paths, rng), *plan.rounds(work, rng)):
            if len(together) < 2 or plan.together or runs_alone(work):
                continue
            for members in together:
                label = _label(paths, members)
                if seen.get(label, 0) < _PAIRS_A_LABEL:
                    seen[label] = seen.get(label, 0) + 1
                    with suppress(StepFailed):  # the data point's own trial will record why
                        finding, seconds = _compare(backend, plan, work, together, members, label, trials)
                        findings.append(finding)
                        timed += seconds
    return findings, timed


def distrusted(plan: Plan, findings: list[InterferenceCheck], paths: Mapping[frozenset[int], Path]) -> Plan:
    """Return the plan with every label that failed an interference check measured isolated.

    A check is a sample, and chance decides which pairs meet in it: a label whose links are shared for one collective is
    so for all, as NCCL takes the same paths, and for one copy for all. PCIe paths share links across labels: if one of
    them fails for one work, all are measured isolated, for all works.
    """
    failed = {(finding.operation.is_collective, finding.label) for finding in findings if not finding.trusted}
    sharing = any(is_pcie(label) for _, label in failed)

    def suspect(work: Work, label: str) -> bool:
        return (work.operation.is_collective, label) in failed or (sharing and is_pcie(label))

    isolated = {
        (work, members)
        for work, groups in plan.groups.items()
        for members in groups
        if suspect(work, _label(paths, members))
    }
    return replace(plan, isolated=plan.isolated | isolated)


def _label(paths: Mapping[frozenset[int], Path], members: Members) -> str:
    path = paths.get(frozenset(members))
    return path.label if path else "?"


def _compare(
    backend: Backend, plan: Plan, work: Work, together: list[Members], members: Members, label: str, trials: int
) -> tuple[InterferenceCheck, float]:
    size = max((s for s in plan.sizes[work] if s <= _LARGEST), default=plan.sizes[work][0])
    index = together.index(members)
    steps = plan.step(work, together, size), plan.step(work, [members], size)
    timings = [(time_step(backend, steps[0]), time_step(backend, steps[1])) for _ in range(trials)]  # in turn
    concurrent = [median(both.seconds[index]) for both, _ in timings]
    isolated = [median(alone.seconds[0]) for _, alone in timings]
    delta = tie_threshold(max(trial_noise([[*map(math.log, seconds)]]) for seconds in (isolated, concurrent)))
    ratio = median(isolated) / median(concurrent)
    timed = sum(timing.region_seconds(step) for both in timings for step, timing in zip(steps, both, strict=True))
    finding = InterferenceCheck(
        operation=work.operation,
        variant=work.variant,
        members=members,
        label=label,
        isolated_gbs=algbw(size, median(isolated)),
        concurrent_gbs=algbw(size, median(concurrent)),
        ratio=ratio,
        delta=delta,
        trusted=abs(1 - ratio) <= delta,
        size_bytes=size,
    )
    return finding, timed
