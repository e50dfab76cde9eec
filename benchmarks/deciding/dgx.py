"""The DGX-1V of docs/method.md 11.6: rings of the best sets, how many sets reach that, and which one is chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from collbench.analysis.bands import packing
from collbench.analysis.problem import evidence, from_run
from collbench.analysis.search import search
from collbench.analysis.select import choose
from collbench.analysis.wiring import Wiring
from collbench.sim import fabrics
from collbench.sim.collectives import best_packing

from .bench import Asked, Part, Row, drawn_seed, measured, noisy, pair_rates, rng_of, share, spread

RUNS = 100
_PART = 4
# k: (best number of directed rings, sets that reach it), docs/method.md 11.6.
EXPECTED = {2: (2, 8), 3: (2, 8), 4: (4, 2), 5: (2, 24), 6: (4, 4), 7: (4, 8), 8: (6, 1)}
NEVER = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run and k: the rings that the best sets have by the run, how many sets those are, and the set chosen."""

    run: int
    noise: float
    k: int
    rings: int
    sets: int
    chosen: str
    chosen_rings: int


def run(asked: Asked) -> Part:
    """Return a row for each k: rings and sets as a noisy run has them, and whether the choice is one of the sets."""
    every = [t for some in spread(partial(trials, asked.seed), range(asked.runs or RUNS), asked.jobs) for t in some]
    rows = []
    for k, (rings, sets) in EXPECTED.items():
        ours = [t for t in every if t.k == k]
        seen = sum((t.rings, t.sets) == (rings, sets) for t in ours)
        chosen = sum(t.chosen_rings == rings for t in ours)
        words = f"so in {share(seen, len(ours))}; one of them chosen in {share(chosen, len(ours))}"
        rows.append(Row(f"DGX-1V k={k}: {rings} rings, {sets} sets", words, "always", seen == chosen == len(ours)))
    five = [t.chosen for t in every if t.k == 5]
    bad = five.count(_words(NEVER))
    rows.append(Row("DGX-1V k=5: {0,1,2,3,4} chosen", share(bad, len(five)), "never", bad == 0))
    return Part(rows, every)


def true_rings() -> dict[tuple[int, ...], int]:
    """Return how many rings each set of the machine holds, by the fabric's own exact packing."""
    arcs = {}
    for bundle in fabrics.load("dgx-1v").bundles:
        a, b = bundle.gpus
        arcs[a, b] = arcs[b, a] = (bundle.links, 1.0)
    return {some: round(best_packing(some, arcs)) for k in EXPECTED for some in combinations(range(8), k)}


def trials(seed: int, number: int) -> list[Trial]:
    """Return what one noisy run makes of every k."""
    rng = rng_of(seed, _PART, number)
    fabric = noisy(fabrics.load("dgx-1v"), rng)
    one = measured(fabric, pair_rates(), drawn_seed(rng))
    ranking = evidence(one)
    assert ranking is not None  # noqa: S101  # all pairs were measured
    case = from_run(one, range(8), ranking)
    rings = true_rings()
    found = []
    for k in EXPECTED:
        field = search(case.wired, k, case.delta)
        equal = field.sets[field.lo >= field.lo.max() * (1 - case.delta)].tolist()
        held = Counter(_rings(case.wired.of(members)) for members in equal)
        chosen = choose(one, k).members
        most, noise = max(held), round(fabric.noise.trial, 5)
        found.append(Trial(number, noise, k, most, held[most], _words(chosen), rings[chosen]))
    return found


def _words(members: tuple[int, ...]) -> str:
    return "-".join(map(str, members))


def _rings(wired: Wiring) -> int:
    return packing(wired.nvlink, wired.links).rings
