"""The DGX-1V of method/choosing.md 6: the rings of the best sets, how many such sets there are, and the chosen set."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from collbench.choose.bands import packing
from collbench.choose.search import search
from collbench.choose.select import choose, evidence, from_run
from collbench.choose.wiring import Wiring
from collbench.sim import fabrics
from collbench.sim.collectives import best_packing

from .bench import (
    Options,
    Part,
    Row,
    drawn_seed,
    map_in_order,
    noisy,
    selection_request,
    share,
    simulated_run,
    trial_rng,
)

RUNS = 100
_PART = 4
# k: (best number of directed rings, sets that reach it), docs/method/choosing.md 6.
EXPECTED = {2: (2, 8), 3: (2, 8), 4: (4, 2), 5: (2, 24), 6: (4, 4), 7: (4, 8), 8: (6, 1)}
FORBIDDEN_SET = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run and k: how many rings the best sets have by that run, how many sets have them, and the chosen set."""

    run: int
    noise: float
    k: int
    rings: int
    sets: int
    chosen: str
    chosen_rings: int


def run(options: Options) -> Part:
    """Return a row for each k: how often noisy runs give the expected rings and sets, and choose one of the sets."""
    all_trials = [
        t
        for run_trials in map_in_order(partial(trials, options.seed), range(options.runs or RUNS), options.jobs)
        for t in run_trials
    ]
    rows = []
    for k, (rings, sets) in EXPECTED.items():
        of_k = [t for t in all_trials if t.k == k]
        rings_match = sum((t.rings, t.sets) == (rings, sets) for t in of_k)
        chosen_match = sum(t.chosen_rings == rings for t in of_k)
        measured = f"so in {share(rings_match, len(of_k))}; one of them chosen in {share(chosen_match, len(of_k))}"
        met = rings_match == chosen_match == len(of_k)
        rows.append(Row(f"DGX-1V k={k}: {rings} rings, {sets} sets", measured, "always", met))
    five = [t.chosen for t in all_trials if t.k == 5]
    bad = five.count(_set_text(FORBIDDEN_SET))
    rows.append(Row("DGX-1V k=5: {0,1,2,3,4} chosen", share(bad, len(five)), "never", bad == 0))
    return Part(rows, all_trials)


def true_rings() -> dict[tuple[int, ...], int]:
    """Return how many rings each set of GPUs holds, by an exact packing of the simulated machine's links."""
    arcs = {}
    for bundle in fabrics.load("dgx-1v").bundles:
        a, b = bundle.gpus
        arcs[a, b] = arcs[b, a] = (bundle.links, 1.0)
    return {members: round(best_packing(members, arcs)) for k in EXPECTED for members in combinations(range(8), k)}


def trials(seed: int, number: int) -> list[Trial]:
    """Return one noisy run's trial for every k."""
    rng = trial_rng(seed, _PART, number)
    fabric = noisy(fabrics.load("dgx-1v"), rng)
    run = simulated_run(fabric, selection_request(), drawn_seed(rng))
    ranking = evidence(run)
    assert ranking is not None  # noqa: S101  # all pairs were measured
    problem = from_run(run, range(8), ranking)
    rings = true_rings()
    trials_of_run = []
    for k in EXPECTED:
        candidates = search(problem.wired, k, problem.delta)
        best_sets = candidates.sets[candidates.lo >= candidates.lo.max() * (1 - problem.delta)].tolist()
        sets_by_rings = Counter(_rings(problem.wired.of(members)) for members in best_sets)
        chosen = choose(run, k).members
        most_rings, noise = max(sets_by_rings), round(fabric.noise.trial, 5)
        trials_of_run.append(
            Trial(number, noise, k, most_rings, sets_by_rings[most_rings], _set_text(chosen), rings[chosen])
        )
    return trials_of_run


def _set_text(members: tuple[int, ...]) -> str:
    return "-".join(map(str, members))


def _rings(wired: Wiring) -> int:
    return packing(wired.nvlink, wired.links)[0]
