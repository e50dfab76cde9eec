"""`collbench nodes`: which nodes of a cluster to take, from pairs of nodes measured in rounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.cli import node_world, options
from collbench.cli.amounts import parse_budget
from collbench.cli.terminal import prose_width, show_page
from collbench.errors import ExitStatus, RunFileError, UsageError
from collbench.units import parse_size

if TYPE_CHECKING:
    from collbench.fabric.cluster import Cluster

_SIM = "sim"
_SHAPE = re.compile(r"(\d{1,6})[x×](\d{1,3})", re.ASCII)
# What a healthy pair of nodes carries by the wires: 8 cards of 400 Gb/s. Only the plan needs to assume it.
_ASSUMED_GBS = 400.0

_own_options = options.apply(
    click.option("--select", "count", metavar="M", type=click.IntRange(min=1), help="Choose the best M nodes."),
    click.option("--gpus", metavar="K", type=click.IntRange(min=1), help="And the best K GPUs of each."),
    click.option("--plan", metavar="NODESxGPUS", help="Print only how long such a cluster takes: 128x8."),
    click.option("--fabric-cluster", metavar="NAME", help="With --backend sim: a cluster's name, or its file."),
    click.option("--one-way", is_flag=True, help="Measure each direction by itself: tells a cable bad in one."),
    click.option(
        "--size", metavar="SIZE", default="512M", show_default=True, help="Message of the all-reduce between two nodes."
    ),
    click.option(
        "--budget",
        metavar="TIME",
        default="60s",
        show_default=True,
        help="Start no more rounds after this. The first eight are made in any case.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the page."),
    options.backend,
    options.nccl,
    options.output,
    options.force,
    options.seed,
)


@click.command(short_help="Find slow nodes and uplinks of a cluster, and choose nodes.")
@_own_options
def nodes(**given: Any) -> None:
    """Find slow nodes and uplinks of a cluster, and choose the best M nodes.

    All nodes are measured at once in pairs, in rounds: eight at random, then more where it looks suspicious. So 128
    nodes need 600 to 1,000 measurements, not 8,128. Start it with one process for each GPU, or simulate a cluster.

    \b
    Examples:
      collbench nodes --plan 128x8
      collbench nodes --backend sim --fabric-cluster tree-128-faulty --select 64
      srun --ntasks-per-node 8 python -m collbench nodes --select 64
    """
    size_bytes, budget_seconds = parse_size(given["size"]), parse_budget(given["budget"])
    if given["plan"] is not None:
        _show_plan(given["plan"], size_bytes)
    elif given["backend"] == _SIM:
        _simulate(given, size_bytes, budget_seconds)
    elif given["fabric_cluster"] is not None:
        raise UsageError("--fabric-cluster names a simulated cluster: add --backend sim")
    else:
        node_world.survey(given, size_bytes, budget_seconds)


def _show_plan(text: str, size_bytes: int) -> None:
    from collbench.measure.node_time import estimate
    from collbench.report.node_plan import plan_page

    match = _SHAPE.fullmatch(text.strip())
    if match is None or int(match[1]) < 2 or int(match[2]) < 1:
        raise UsageError(f"--plan '{text}' is no cluster: write its nodes, two or more, and each one's GPUs: 128x8")
    count, gpus = int(match[1]), int(match[2])
    phases = [(phase.what, phase.times, phase.seconds) for phase in estimate(count, gpus, size_bytes, _ASSUMED_GBS)]
    show_page(plan_page(count, gpus, size_bytes, _ASSUMED_GBS, phases, prose_width()))


def _simulate(given: dict[str, Any], size_bytes: int, budget_seconds: float) -> None:
    # Late: numpy and scipy need not be there for --help.
    from collbench.affinity.nodes.choice import choose_nodes
    from collbench.fabric.cluster import allreduce_busbw, best_bound
    from collbench.report.nodes import Origin, Truth
    from collbench.surveying import survey_cluster, switches

    if given["output"] is not None:
        raise UsageError("--output saves what was measured, and a simulation measures nothing: use --json")
    cluster = _cluster(given["fabric_cluster"])
    _check_counts(given, cluster.nodes, cluster.gpus)
    done = survey_cluster(cluster, budget_seconds, size_bytes, given["seed"], one_way=given["one_way"])
    chosen = choose_nodes(done.judgement, given["count"], switches(cluster)) if given["count"] else None
    truth = None
    if chosen is not None:
        bound = best_bound(cluster, len(chosen.members))
        truth = Truth(allreduce_busbw(cluster, chosen.members), bound)
    origin = Origin(
        backend=_SIM,
        where=f"{cluster.name}: {cluster.nodes} nodes × {cluster.gpus} GPUs; {cluster.source}",
        names=tuple(f"node{node}" for node in range(cluster.nodes)),
        rounds=tuple(made.kind for made in done.rounds),
        measurements=len(done.seen),
        seconds=done.seconds,
        seed=given["seed"],
        # A simulated node's GPUs are alike, so the first ones are as good as any.
        gpus=(tuple(range(given["gpus"])),) * given["count"] if given["gpus"] else (),
    )
    node_world.show(origin, done.judgement, chosen, truth, as_json=given["as_json"])
    node_world.leave(done.judgement, ExitStatus.DONE)


def _check_counts(given: dict[str, Any], count: int, gpus: int) -> None:
    """Raise UsageError for more nodes or GPUs than there are, or one node."""
    if count < 2:
        raise UsageError("a cluster of one node has no pair to measure")
    if given["count"] is not None and given["count"] > count:
        raise UsageError(f"--select {given['count']} of {count} nodes: choose 1 to {count}")
    if given["gpus"] is not None and given["count"] is None:
        raise UsageError("--gpus chooses GPUs of the chosen nodes: add --select M")
    if given["gpus"] is not None and given["gpus"] > gpus:
        raise UsageError(f"--gpus {given['gpus']} of {gpus} on each node: choose 1 to {gpus}")


def _cluster(name: str | None) -> Cluster:
    from collbench.fabric import cluster

    if name is None:
        raise UsageError(f"--backend sim needs --fabric-cluster: {', '.join(cluster.names())}, or a file")
    path = Path(name)
    if name in cluster.names() or not (path.suffix or path.exists()):
        return cluster.named(name)
    try:
        return cluster.load(path.read_text(encoding="utf-8"), name)
    except OSError as error:
        raise RunFileError(f"cannot read cluster file {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{name} is not a cluster file: it is not text") from error
