"""From a way of measuring pairs of nodes to judged nodes: rounds, what they show, and where to look next."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.affinity.nodes.fit import Observation
from collbench.affinity.nodes.judge import Judgement, Switches, judge
from collbench.errors import BackendError
from collbench.fabric.cluster import Cluster, Pair, measured
from collbench.measure.node_rounds import AMONG, Round, survey
from collbench.measure.node_time import round_seconds, start_seconds

# Busbw in GB/s of each pair, all measured at once; None where a pair failed. One way: from first to second only.
MeasurePairs = Callable[[tuple[Pair, ...], bool], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What a survey has measured and what it means. `seconds` is estimated where nothing was really measured."""

    rounds: tuple[Round, ...]
    seen: tuple[Observation, ...]
    judgement: Judgement
    seconds: float


def survey_nodes(
    nodes: int,
    told: Sequence[Switches],
    measure: MeasurePairs,
    more: Callable[[int], bool],
    seed: int,
    *,
    one_way: bool,
) -> Surveyed:
    """Measure `nodes` nodes in rounds until all is decided or `more(rounds made)` says no. Raises BackendError.

    `told` are the levels of switches that are known, leaves first. `one_way` measures each pair in each direction by
    itself, so that a cable that is bad one way is told from a node that is slow.
    """
    begin, seen = time.monotonic(), list[Observation]()

    def take(planned: Round) -> None:
        turns = (planned.pairs, tuple((b, a) for a, b in planned.pairs)) if one_way else (planned.pairs,)
        for pairs in turns:
            rates = measure(pairs, one_way)
            seen.extend(
                Observation(a, b, gbs, one_way, among=planned.kind == AMONG)
                for (a, b), gbs in zip(pairs, rates, strict=True)
                if gbs
            )

    def looked_at() -> Judgement:
        if not seen:
            raise BackendError("no pair of nodes could be measured: time one with 'collbench allreduce' to see why")
        return judge(seen, nodes, told)

    leaves = told[0].members if told else ()
    rng = random.Random(seed)  # noqa: S311  # an order of rounds, no secret
    rounds = survey(nodes, leaves, take, lambda: looked_at().suspects, more, rng)
    return Surveyed(rounds, tuple(seen), looked_at(), time.monotonic() - begin)


def survey_cluster(cluster: Cluster, budget_seconds: float, size_bytes: int, seed: int, *, one_way: bool) -> Surveyed:
    """Survey a simulated cluster; rounds end when by the estimate a real one would have taken the budget."""
    noise = np.random.default_rng(seed)
    start = start_seconds(cluster.nodes, cluster.gpus)
    each = round_seconds(cluster.nodes, cluster.gpus, size_bytes, cluster.nic_gbs)

    def measure(pairs: tuple[Pair, ...], only_one_way: bool) -> Sequence[float]:
        return measured(cluster, pairs, noise, one_way=only_one_way)

    done = survey_nodes(
        cluster.nodes,
        switches(cluster),
        measure,
        lambda made: start + (made + 1) * each <= budget_seconds,
        seed,
        one_way=one_way,
    )
    return Surveyed(done.rounds, done.seen, done.judgement, start + len(done.rounds) * each)


def switches(cluster: Cluster) -> tuple[Switches, ...]:
    """Return the levels of switches that a simulated cluster tells, leaves first."""
    told = (("leaf", cluster.leaf_of), ("pod", cluster.pod_of)) if cluster.told else ()
    levels = []
    for kind, places in told:
        found = sorted(set(places))
        if len(found) > 1:  # one switch for all tells nothing
            members = tuple(tuple(node for node in range(cluster.nodes) if places[node] == place) for place in found)
            levels.append(Switches(tuple(f"{kind}{place}" for place in found), members))
    return tuple(levels)
