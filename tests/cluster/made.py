"""Pairs of nodes as rounds would show them, without a simulator: a rate for each pair, and noise from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from collbench.cluster.fit import Observation
from collbench.cluster.nodes import Judgement, judge
from collbench.cluster.page import NodeSurvey
from collbench.cluster.switches import Switches

Rate = Callable[[int, int], float]


def seen(nodes: int, rate: Rate, times: int = 1, sigma: float = 0.0, seed: int = 0) -> list[Observation]:
    """Return every pair of nodes `times` times."""
    rng = random.Random(1000 * seed + nodes)
    pairs = [pair for pair in combinations(range(nodes), 2) for _ in range(times)]
    return [Observation(a, b, rate(a, b) * rng.lognormvariate(0, sigma)) for a, b in pairs]


def slow(*nodes: int, ratio: float = 0.9) -> Rate:
    """Return a rate of 100 GB/s, and less where one of the nodes takes part: once, however many do."""
    return lambda a, b: 100.0 * (ratio if {a, b} & set(nodes) else 1.0)


def leaves(nodes: int, size: int) -> tuple[Switches, ...]:
    """Return leaves of so many neighbours."""
    members = tuple(tuple(range(first, first + size)) for first in range(0, nodes, size))
    return (Switches(tuple(f"leaf{index}" for index in range(len(members))), members),)


def judged(nodes: int, rate: Rate, known: Sequence[Switches] = ()) -> Judgement:
    """Return what every pair, four times with 1% noise, says."""
    return judge(seen(nodes, rate, 4, 0.01), nodes, known)


def survey(judgement: Judgement, **others: Any) -> NodeSurvey:
    """Return a survey that came to this, of simulated nodes unless the others say something else."""
    made: dict[str, Any] = {
        "backend": "sim", "where": "made: 16 nodes", "names": tuple(f"node{node}" for node in range(16)),
        "rounds": ("at random",) * 8 + ("x",), "measurements": 72, "seconds": 20.4, "seed": 7,
    }  # fmt: skip
    return NodeSurvey(judgement=judgement, **made | others)
