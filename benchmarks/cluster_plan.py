"""Node selection on simulated clusters: what is found, what is wrongly accused, and how good the chosen nodes are.

    python benchmarks/cluster_plan.py --runs 1000

All figures are simulated. 128 nodes × 8 GPUs, 16 leaves of 8 nodes; each run draws 0 to 3 slow nodes (10 %), in half of
the runs a leaf with slow uplinks (20 %), and 2 % noise a measurement; then 64 and 112 nodes are chosen. Where the
switches are not reported, nodes are cabled to them at random, so that rings in the nodes' order cross them all the
time.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from collbench.analysis.nodes import Judgement, choose_nodes
from collbench.bench.nodes import estimate, survey_cluster, switches
from collbench.output.text.nodes import plan_page
from collbench.sim.cluster import Cluster, NodeFault, UplinkFault, allreduce_busbw, best_bound, named

FIRST_SEED = 20_261_121
SELECTED = (64, 112)
SIZE_BYTES = 512 * 2**20
BUDGET_S = 75.0
_SLOW_NODE, _SLOW_UPLINK = 0.9, 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated cluster: faults that were there and were found, whether anybody was wrongly accused."""

    seed: int
    slow_nodes: int
    found_nodes: int
    slow_uplinks: int
    found_uplinks: int
    accused: bool
    rounds: int
    measurements: int
    # Of the chosen nodes' busbw against what no nodes can pass, by how many were chosen; and of the first nodes'.
    regrets: tuple[float, ...]
    first_regrets: tuple[float, ...]


def trial(seed: int, *, known: bool) -> Trial:
    """Survey the cluster that a seed draws; `known` says whether the switches are known."""
    cluster = drawn(seed, known=known)
    done = survey_cluster(cluster, BUDGET_S, SIZE_BYTES, seed, one_way=False)
    chosen = [choose_nodes(done.judgement, count, switches(cluster)).members for count in SELECTED]
    slow = {fault.node for fault in cluster.slow_nodes}
    flagged = {one.node for one in done.judgement.slow_nodes}
    uplinks = found_uplinks(cluster, done.judgement)
    return Trial(
        seed=seed,
        slow_nodes=len(slow),
        found_nodes=len(slow & flagged),
        slow_uplinks=len(cluster.slow_uplinks),
        found_uplinks=sum(uplinks),
        accused=bool(flagged - slow) or not all(uplinks),
        rounds=len(done.rounds),
        measurements=len(done.seen),
        regrets=tuple(regret(cluster, members) for members in chosen),
        first_regrets=tuple(regret(cluster, range(count)) for count in SELECTED),
    )


def regret(cluster: Cluster, members: Sequence[int]) -> float:
    """Return how far the nodes' true busbw lies below what no such number of nodes can pass, as a ratio."""
    return 1 - allreduce_busbw(cluster, members) / best_bound(cluster, len(members))


def drawn(seed: int, *, known: bool) -> Cluster:
    """Return the cluster of a seed."""
    rng = random.Random(seed)
    cluster = named("tree-128")
    slow = rng.sample(range(cluster.nodes), rng.randrange(4))
    leaf, up = f"leaf{rng.randrange(16)}", rng.random() < 0.5
    cabled = tuple(rng.sample(cluster.leaf_of, cluster.nodes))
    return replace(
        cluster,
        reported=known,
        placement=() if known else cabled,
        slow_nodes=tuple(NodeFault(node, _SLOW_NODE, _SLOW_NODE) for node in slow),
        slow_uplinks=(UplinkFault(leaf, _SLOW_UPLINK, _SLOW_UPLINK),) if up else (),
    )


def found_uplinks(cluster: Cluster, judgement: Judgement) -> list[bool]:
    """Return for each uplink called slow whether it is: its nodes are one slow leaf's, of which slow ones may lack."""
    slow = {fault.node for fault in cluster.slow_nodes}
    leaves = [
        {node for node, leaf in enumerate(cluster.leaf_of) if f"leaf{leaf}" == fault.switch}
        for fault in cluster.slow_uplinks
    ]
    return [
        any(set(one.members) <= leaf <= set(one.members) | slow for leaf in leaves) for one in judgement.slow_uplinks
    ]


def lines(trials: Sequence[Trial]) -> list[str]:
    """Return the table of one series."""
    nodes, uplinks = sum(one.slow_nodes for one in trials), sum(one.slow_uplinks for one in trials)
    count = len(trials)
    rounds = sorted(one.rounds for one in trials)
    return [
        f"  slow nodes found       {sum(one.found_nodes for one in trials)} of {nodes}",
        f"  slow uplinks found     {sum(one.found_uplinks for one in trials)} of {uplinks}",
        f"  runs with a false flag {sum(one.accused for one in trials)} of {count}",
        *(
            f"  regret, {f'{who} {size}':<15}{statistics.fmean(found):.3%} on average, {max(found):.2%} worst"
            for index, size in enumerate(SELECTED)
            for who, found in (
                ("chosen", [one.regrets[index] for one in trials]),
                ("first", [one.first_regrets[index] for one in trials]),
            )
        ),
        f"  rounds                 {rounds[count // 2]} median, {rounds[-1]} most",
        f"  measurements           {sum(one.measurements for one in trials) / count:.0f} on average of 8,128 pairs",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="simulated clusters in each series")
    runs = parser.parse_args().runs
    phases = [(one.what, one.times, one.seconds) for one in estimate(128, 8, SIZE_BYTES, 400.0)]
    for block in plan_page(128, 8, SIZE_BYTES, 400.0, phases):
        Console(width=140, highlight=False).print(block)
    for known in (True, False):
        trials = [trial(FIRST_SEED + number, known=known) for number in range(runs)]
        print(f"\nsim: {runs} clusters, switches {'known' if known else 'not reported'}, seeds {FIRST_SEED} and up")
        print("\n".join(lines(trials)), flush=True)
        bad = [one for one in trials if one.accused or one.found_nodes < one.slow_nodes]
        bad += [one for one in trials if one.found_uplinks < one.slow_uplinks and one not in bad]
        print(f"  seeds that went wrong  {', '.join(str(one.seed) for one in bad) or 'none'}")


if __name__ == "__main__":
    main()
