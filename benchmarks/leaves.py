#!/usr/bin/env python3
"""How often `nodes` accuses healthy nodes under oversubscribed leaves that it does not know, and finds slow nodes.

    python benchmarks/leaves.py [--runs N] [--seed S] [--jobs J] [--cell TEXT] [--rounds N] [--out FILE]

Simulated. The clusters, their rates and their noise come from judging/clusters.py, a model of its own; rounds and judge
are collbench's. 8 to 64 nodes of 8 GPUs, leaves of equal or random size (or one switch). `accused`: runs in which some
healthy node is called slow. `uplinks`: runs in which nodes of several leaves are said to share a slow uplink.
`doubted`: healthy nodes called neither healthy nor slow. Of the slow nodes, how many are `named`, and how many are
`in doubt` (undecided, or either slow or behind an oversubscribed uplink). FILE gets a line for each run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from judging.clusters import NOISES, Leaves, Pair, cluster
from rows import save_rows

from collbench.cluster.measure import round_seconds, start_seconds, survey_nodes
from collbench.cluster.nodes import State
from collbench.cluster.switches import Switches

NODES = (8, 16, 24, 32, 48, 64)
KINDS = (("normal", 0.003), ("normal", 0.01), ("normal", 0.03), ("uneven", 0.015), ("ceiling", 0.02), ("levels", 0.01))
_SIZE_BYTES, _GBS, _BUDGET_S, _GPUS = 512 * 2**20, 400.0, 75.0, 8


@dataclass(frozen=True, slots=True)
class Cell:
    """What clusters have in common; `known`: the switches are given."""

    truth: str
    sizes: str
    ratio: float
    known: bool = False

    def __str__(self) -> str:
        """Return the row's name."""
        leaves = "one switch" if self.sizes == "none" else f"{self.sizes} leaves, {self.ratio:g} : 1"
        return f"{self.truth}, {leaves}{', given' if self.known else ''}"


CELLS = [
    *(Cell(truth, "none", 1.0) for truth in ("healthy", "one slow", "two slow", "slow one way")),
    *(Cell(truth, "random", 1.0) for truth in ("healthy", "one slow", "slow uplink")),
    *(
        Cell(truth, sizes, ratio)
        for truth, sizes, ratio in product(
            ("healthy", "one slow", "two slow", "slow one way", "slow uplink"),
            ("equal", "random"),
            (1.5, 2.0, 3.0, 4.0),
        )
    ),
    *(Cell(truth, "random", ratio, known=True) for truth, ratio in product(("healthy", "one slow"), (1.5, 4.0))),
]


@dataclass(frozen=True, slots=True)
class Said:
    """What `nodes` would say of one cluster."""

    cell: str
    number: int
    nodes: int
    noise: str
    accused: int
    uplinks: int
    doubted: int
    slow: int
    named: int
    in_doubt: int
    rounds: int


def look(cell: Cell, rounds: int | None, seed: int, number: int) -> Said:
    """Make one cluster, survey it, and compare what is said with the truth."""
    rng = np.random.default_rng((seed, sum(map(ord, str(cell))), number))
    nodes = NODES[number % len(NODES)]
    noise, sigma = KINDS[number // len(NODES) % len(KINDS)]
    made = cluster(nodes, cell.sizes, cell.ratio, cell.truth, rng)
    drawn = NOISES[noise](sigma, nodes, rng)

    def measure(pairs: tuple[Pair, ...]) -> list[float]:
        rates = made.rates(pairs)
        return [_GBS * rate * float(np.exp(drawn(pair))) for rate, pair in zip(rates, pairs, strict=True)]

    start, each = start_seconds(nodes, _GPUS), round_seconds(nodes, _GPUS, _SIZE_BYTES, _GBS)

    def more(count: int) -> bool:
        return count < rounds if rounds is not None else start + (count + 1) * each <= _BUDGET_S

    survey = survey_nodes(nodes, _switches(made) if cell.known else (), measure, more, number)
    states = [node.state for node in survey.judgement.nodes]
    uplinks = survey.judgement.slow_uplinks
    return Said(
        cell=str(cell),
        number=number,
        nodes=nodes,
        noise=f"{noise} {sigma:.1%}",
        accused=sum(state is State.SLOW and node not in made.slow for node, state in enumerate(states)),
        uplinks=sum(len({made.leaf_of[node] for node in uplink.members}) > 1 for uplink in uplinks),
        doubted=sum(
            state not in (State.SLOW, State.HEALTHY) and node not in made.slow for node, state in enumerate(states)
        ),
        slow=len(made.slow),
        named=sum(states[node] is State.SLOW for node in made.slow),
        in_doubt=sum(states[node] not in (State.SLOW, State.HEALTHY) for node in made.slow),
        rounds=len(survey.rounds),
    )


def _switches(made: Leaves) -> tuple[Switches, ...]:
    leaves = sorted(set(made.leaf_of))
    members = tuple(tuple(node for node, leaf in enumerate(made.leaf_of) if leaf == one) for one in leaves)
    return (Switches(tuple(f"leaf{leaf}" for leaf in leaves), members),)


def line(cell: Cell, said: Sequence[Said]) -> str:
    slow = sum(one.slow for one in said)
    healthy = sum(one.nodes for one in said) - slow
    named, in_doubt = (
        100 * sum(many) / max(1, slow) for many in zip(*((s.named, s.in_doubt) for s in said), strict=True)
    )
    found = f"  named {named:5.1f}%  in doubt {in_doubt:5.1f}%" if slow else ""
    rounds = [one.rounds for one in said]
    return (
        f"{cell!s:42} accused {sum(one.accused > 0 for one in said) / len(said):6.1%}  uplinks "
        f"{sum(one.uplinks > 0 for one in said) / len(said):6.1%}  doubted "
        f"{sum(one.doubted for one in said) / healthy:6.1%}{found}  rounds {median(rounds):g}, {max(rounds)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=108, metavar="N", help="clusters of each cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cell", default="", help="only cells with this text in their names")
    parser.add_argument("--rounds", type=int, help="most rounds (default: as many as the budget of 75 s allows)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of CSV for each cluster")
    options = parser.parse_args()
    print(f"leaves (sim), {options.runs} clusters a cell, seed {options.seed}, {options.rounds or 'as planned'} rounds")
    every: list[Said] = []
    for cell in CELLS:
        if options.cell in str(cell):
            with multiprocessing.Pool(options.jobs) as pool:
                said = pool.map(partial(look, cell, options.rounds, options.seed), range(options.runs), chunksize=4)
            print(f"  {line(cell, said)}", flush=True)
            every += said
    if options.out is not None:
        save_rows(options.out, [asdict(one) for one in every])


if __name__ == "__main__":
    main()
