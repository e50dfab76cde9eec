"""Node selection on simulated clusters: what is found, what is accused wrongly, and how good the chosen nodes are.

    python benchmarks/cluster_plan.py [--runs N] [--jobs J]

All figures are simulated. 128 nodes × 8 GPUs, 16 leaves of 8 nodes; each run draws 0 to 3 slow nodes (10%), in half of
the runs a leaf with slow uplinks (20%), and 2% noise in each measurement; then 64 and 112 nodes are chosen. Where the
switches are not reported, nodes are cabled to random switches, so that rings in the nodes' order cross switches all the
time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from collbench.cluster.measure import round_seconds, start_seconds, survey_cluster, switches
from collbench.cluster.nodes import Judgement, choose_nodes
from collbench.cluster.simulated import Cluster, NodeFault, UplinkFault, allreduce_busbw, best_bound, named

FIRST_SEED = 20_261_121
COUNTS = (64, 112)
SIZE_BYTES = 512 * 2**20
BUDGET_S = 75.0
_SLOW_NODE, _SLOW_UPLINK = 0.9, 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated cluster: its faults, how many were found, and whether a healthy node or uplink was accused."""

    seed: int
    slow_nodes: int
    found_nodes: int
    slow_uplinks: int
    found_uplinks: int
    accused: bool
    rounds: int
    measurements: int
    # 1 − busbw / upper bound, for each of COUNTS: of the chosen nodes, and of the first nodes.
    regrets: tuple[float, ...]
    first_regrets: tuple[float, ...]


def simulate(seed: int, *, known: bool) -> Trial:
    """Survey the random cluster of a seed; `known`: whether its switches are reported."""
    cluster = random_cluster(seed, known=known)
    survey = survey_cluster(cluster, BUDGET_S, SIZE_BYTES, seed)
    chosen = [choose_nodes(survey.judgement, count, switches(cluster)).members for count in COUNTS]
    slow = {fault.node for fault in cluster.slow_nodes}
    called_slow = {*survey.judgement.slow_nodes}
    uplink_matches = match_uplinks(cluster, survey.judgement)
    return Trial(
        seed=seed,
        slow_nodes=len(slow),
        found_nodes=len(slow & called_slow),
        slow_uplinks=len(cluster.slow_uplinks),
        found_uplinks=sum(uplink_matches),
        accused=bool(called_slow - slow) or not all(uplink_matches),
        rounds=len(survey.rounds),
        measurements=len(survey.seen),
        regrets=tuple(regret(cluster, members) for members in chosen),
        first_regrets=tuple(regret(cluster, range(count)) for count in COUNTS),
    )


def regret(cluster: Cluster, members: Sequence[int]) -> float:
    """Return 1 − the nodes' true busbw / the upper bound for that many nodes."""
    return 1 - allreduce_busbw(cluster, members) / best_bound(cluster, len(members))


def random_cluster(seed: int, *, known: bool) -> Cluster:
    """Return the random cluster of a seed."""
    rng = random.Random(seed)
    cluster = named("tree-128")
    slow = rng.sample(range(cluster.nodes), rng.randrange(4))
    leaf, has_slow_uplink = f"leaf{rng.randrange(16)}", rng.random() < 0.5
    cabling = tuple(rng.sample(cluster.leaf_of, cluster.nodes))
    return replace(
        cluster,
        reported=known,
        placement=() if known else cabling,
        slow_nodes=tuple(NodeFault(node, _SLOW_NODE, _SLOW_NODE) for node in slow),
        slow_uplinks=(UplinkFault(leaf, _SLOW_UPLINK, _SLOW_UPLINK),) if has_slow_uplink else (),
    )


def match_uplinks(cluster: Cluster, judgement: Judgement) -> list[bool]:
    """Return for each uplink called slow whether it is: its nodes are a slow leaf's, with or without slow nodes."""
    slow = {fault.node for fault in cluster.slow_nodes}
    leaves = [
        {node for node, leaf in enumerate(cluster.leaf_of) if f"leaf{leaf}" == fault.switch}
        for fault in cluster.slow_uplinks
    ]
    return [
        any(set(uplink.members) <= leaf <= set(uplink.members) | slow for leaf in leaves)
        for uplink in judgement.slow_uplinks
    ]


def summary_lines(trials: Sequence[Trial]) -> list[str]:
    """Return the lines that summarize one series."""
    nodes, uplinks = sum(trial.slow_nodes for trial in trials), sum(trial.slow_uplinks for trial in trials)
    count = len(trials)
    rounds = sorted(trial.rounds for trial in trials)
    return [
        f"  slow nodes found       {sum(trial.found_nodes for trial in trials)} of {nodes}",
        f"  slow uplinks found     {sum(trial.found_uplinks for trial in trials)} of {uplinks}",
        f"  runs with a false flag {sum(trial.accused for trial in trials)} of {count}",
        *(
            f"  regret, {f'{rule} {selected}':<15}{statistics.fmean(regrets):.3%} on average, {max(regrets):.2%} worst"
            for index, selected in enumerate(COUNTS)
            for rule, regrets in (
                ("chosen", [trial.regrets[index] for trial in trials]),
                ("first", [trial.first_regrets[index] for trial in trials]),
            )
        ),
        f"  rounds                 {rounds[count // 2]} median, {rounds[-1]} most",
        f"  measurements           {sum(trial.measurements for trial in trials) / count:.0f} on average of 8,128 pairs",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="simulated clusters in each series")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    runs = options.runs
    start, each = start_seconds(128, 8), round_seconds(128, 8, SIZE_BYTES, 400.0)
    print(f"estimated: {start:.1f} s until 1,024 ranks have met, {each:.2f} s for each round")
    for known in (True, False):
        with multiprocessing.Pool(options.jobs) as pool:
            trials = pool.map(partial(simulate, known=known), range(FIRST_SEED, FIRST_SEED + runs), chunksize=4)
        print(f"\nsim: {runs} clusters, switches {'known' if known else 'not reported'}, seeds {FIRST_SEED} and up")
        print("\n".join(summary_lines(trials)), flush=True)
        wrong = [trial for trial in trials if trial.accused or trial.found_nodes < trial.slow_nodes]
        wrong += [trial for trial in trials if trial.found_uplinks < trial.slow_uplinks and trial not in wrong]
        print(f"  seeds that went wrong  {', '.join(str(trial.seed) for trial in wrong) or 'none'}")


if __name__ == "__main__":
    main()
