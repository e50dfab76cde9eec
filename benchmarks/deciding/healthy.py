"""Machines without a fault: how often a run splits equal links into tiers, or contradicts labels that are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from collbench.judge import diagnose

from .bench import (
    NOISY,
    Options,
    Part,
    Row,
    drawn_seed,
    healthy,
    map_in_order,
    noisy,
    pairs_request,
    share,
    simulated_run,
    trial_rng,
)
from .truth import contradictions, false_splits, is_true, true_times

RUNS, BAR = 10_000, 0.01
_RUNS_A_MACHINE = 10
_ALL_SIZES = 40  # every fortieth machine is measured at all of the sizes that `pairs` has by default
_PART = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One run on a machine: collectives and copies split wrongly (with their size), and kinds of false verdicts."""

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


def run(options: Options) -> Part:
    """Return the shares of runs with a false split or a false contradiction."""
    runs = options.runs or RUNS
    machines = -(-runs // _RUNS_A_MACHINE)
    trials_by_machine = map_in_order(partial(trials, options.seed), range(machines), options.jobs, chunk=4)
    all_trials = [trial for machine_trials in trials_by_machine for trial in machine_trials][:runs]
    count, false = len(all_trials), sum(t.false for t in all_trials)
    kinds = Counter(kind for t in all_trials for kind in set(t.false_kinds.split()))
    noisiest = [t for t in all_trials if t.noise > NOISY]
    what = f"healthy machines, {count:,} runs: any false split or contradiction"
    rows = [
        Row(what, share(false, count), "≤ 1%", false <= BAR * count),
        Row("  a false split", share(sum(bool(t.false_splits) for t in all_trials), count)),
        Row("  a false contradiction", share(sum(bool(t.false_kinds) for t in all_trials), count)),
        Row("  either, runs of noise above 1.5%", share(sum(t.false for t in noisiest), len(noisiest))),
    ]
    names = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or "none"
    notes = [f"kinds of false contradictions: {names}; machines: {machines}, {_RUNS_A_MACHINE} runs each"]
    return Part(rows, all_trials, notes)


def trials(seed: int, machine: int) -> list[Trial]:
    """Return the trials of one machine."""
    machine_fabric = healthy(machine, trial_rng(seed, _PART, machine))
    request = pairs_request(None) if machine % _ALL_SIZES == 1 else pairs_request()
    truth = true_times(machine_fabric, request)
    machine_trials = []
    for number in range(_RUNS_A_MACHINE):
        rng = trial_rng(seed, _PART, machine, number)
        fabric = noisy(machine_fabric, rng)
        run = simulated_run(fabric, request, drawn_seed(rng), confirmed=True)
        wrong = [v for v in contradictions(diagnose.judge(run)) if not is_true(v, run, truth)]
        machine_trials.append(
            Trial(
                machine=machine,
                run=number,
                fabric=fabric.name,
                gpus=len(fabric.gpus),
                noise=round(fabric.noise.trial, 5),
                sizes=len(run.settings.sizes),
                false_splits="; ".join(false_splits(run, truth)),
                false_kinds=" ".join(sorted({str(v.kind) for v in wrong})),
            )
        )
    return machine_trials
