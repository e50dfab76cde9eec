"""Machines without a fault: how often a run splits links that are equal, or contradicts labels that are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from collbench.analysis import diagnose

from .bench import NOISY, Asked, Part, Row, drawn_seed, healthy, measured, noisy, rng_of, share, spread, survey
from .truth import contradictions, false_splits, holds, times

RUNS, BAR = 10_000, 0.01
_RUNS_A_MACHINE = 10
_ALL_SIZES = 40  # every fortieth machine is measured at all of the sizes that `pairs` has by default
_PART = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One run on a machine: works that were split (with their size), kinds of verdicts that were wrong."""

    machine: int
    run: int
    fabric: str
    gpus: int
    noise: float
    sizes: int
    false_splits: str
    false_kinds: str

    @property
    def false(self) -> bool:
        return bool(self.false_splits or self.false_kinds)


def run(asked: Asked) -> Part:
    """Return the shares of runs with anything false."""
    runs = asked.runs or RUNS
    machines = -(-runs // _RUNS_A_MACHINE)
    found = spread(partial(trials, asked.seed), range(machines), asked.jobs, chunk=4)
    every = [trial for some in found for trial in some][:runs]
    count, false = len(every), sum(t.false for t in every)
    kinds = Counter(kind for t in every for kind in set(t.false_kinds.split()))
    noisiest = [t for t in every if t.noise > NOISY]
    what = f"healthy machines, {count:,} runs: any false split or contradiction"
    rows = [
        Row(what, share(false, count), "≤ 1 %", false <= BAR * count),
        Row("  a false split", share(sum(bool(t.false_splits) for t in every), count)),
        Row("  a false contradiction", share(sum(bool(t.false_kinds) for t in every), count)),
        Row("  either, runs of noise above 1.5 %", share(sum(t.false for t in noisiest), len(noisiest))),
    ]
    names = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or "none"
    notes = [f"kinds of false contradictions: {names}; machines: {machines}, {_RUNS_A_MACHINE} runs each"]
    return Part(rows, every, notes)


def trials(seed: int, machine: int) -> list[Trial]:
    """Return the trials of one machine: which works were split, which kinds were wrong."""
    quiet = healthy(machine, rng_of(seed, _PART, machine))
    request = survey(None) if machine % _ALL_SIZES == 1 else survey()
    true = times(quiet, request)
    found = []
    for number in range(_RUNS_A_MACHINE):
        rng = rng_of(seed, _PART, machine, number)
        fabric = noisy(quiet, rng)
        one = measured(fabric, request, drawn_seed(rng))
        wrong = [v for v in contradictions(diagnose.judge(one)) if not holds(v, one, true)]
        found.append(
            Trial(
                machine=machine,
                run=number,
                fabric=fabric.name,
                gpus=len(fabric.gpus),
                noise=round(fabric.noise.trial, 5),
                sizes=len(one.settings.sizes),
                false_splits="; ".join(false_splits(one, true)),
                false_kinds=" ".join(sorted({str(v.kind) for v in wrong})),
            )
        )
    return found
