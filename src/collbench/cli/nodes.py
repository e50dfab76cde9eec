"""`collbench nodes`: which nodes of a cluster to take, from pairs of nodes measured in rounds."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.analysis.outcome import outcome
from collbench.backends.factory import Opened
from collbench.bench.plan import Request, settings_of
from collbench.bench.run_writer import RunWriter
from collbench.cli import options
from collbench.cli.nonzero_ranks import serve_rank_0
from collbench.cli.options import parse_budget
from collbench.cli.terminal import echo, is_verbose, progress_bar, prose_width, say, show_page, verbose_option
from collbench.distributed.factory import World
from collbench.distributed.launchers import LaunchEnvironment, find_place, join_seconds
from collbench.model.capabilities import SIM
from collbench.model.errors import ExitStatus, Interrupted, RunFileError, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Run, Settings
from collbench.model.units import parse_size
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.analysis.nodes import Judgement, NodeChoice
    from collbench.bench.nodes import NodePairs, Surveyed
    from collbench.output.text.nodes import Origin, Truth
if TYPE_CHECKING:
    from collbench.sim.cluster import Cluster


# `collbench nodes` on real machines: one process for each GPU, of which rank 0 measures, judges and prints.


def survey(given: Mapping[str, Any], size_bytes: int, budget_seconds: float) -> None:
    """Measure the nodes of this launch, print the page, save the run. Raises UsageError outside a launch."""
    place = find_place(os.environ)
    if place is None:
        raise UsageError(
            "nodes are measured by one process for each GPU: start this with srun, torchrun or mpirun, simulate a "
            "cluster with --backend sim, or see --plan"
        )
    request, path = _request(given, size_bytes, budget_seconds)
    if place.rank > 0:
        serve_rank_0(place, request)
    path = path or saved_runs.new_run("nodes", request.backend, say, advice=", or name a file with --output FILE")
    if path is not None:
        run_file.check_writable(path, replace=request.force)
    with ExitStack() as stack:
        try:
            world = stack.enter_context(World(place, request, join_seconds(os.environ), say))
            opened = world.open()
            stack.callback(opened.close)
            from collbench.bench.session import begun_run  # late: numpy

            run = begun_run(opened, _settings(request, opened, place))
            _survey(given, request, opened, run, path)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: the nodes were not judged") from error


def show(
    origin: Origin, found: Judgement, chosen: NodeChoice | None, truth: Truth | None = None, *, as_json: bool
) -> None:
    """Print the page, or as JSON."""
    from collbench.output.text.nodes import as_plain, page

    if as_json:
        echo(json.dumps(as_plain(origin, found, chosen, truth)))
    else:
        echo(page(origin, found, chosen, truth, prose_width(), verbose=is_verbose()))


def leave(found: Judgement, failed: ExitStatus) -> None:
    """End the command: with what failed, or with a failure where no node was judged."""
    status = max(failed, ExitStatus.DONE if found.judged else ExitStatus.FAILED)
    if status:
        sys.stdout.flush()  # a full disk is told before the status
        raise click.exceptions.Exit(status)


def _request(given: Mapping[str, Any], size_bytes: int, budget_seconds: float) -> tuple[Request, Path | None]:
    request, path = options.make_request(
        "nodes", {"devices": None, "quick": False, "precision": None, "resume": None, **given}
    )
    works = (Work(Operation.BROADCAST if given["one_way"] else Operation.ALLREDUCE),)
    return replace(request, sizes=(size_bytes,), collectives=works, budget_seconds=budget_seconds), path


def _survey(given: Mapping[str, Any], request: Request, opened: Opened, run: Run, path: Path | None) -> None:
    """Measure, judge and show; what was measured is saved however it ends."""
    # Late: numpy and scipy need not be there for --help.
    from collbench.analysis.nodes import choose_nodes
    from collbench.output.text.frame import headline
    from collbench.output.text.nodes import Origin, lost

    keeper = RunWriter(run, path, say, replace=request.force)
    try:
        pairs, done = _measured(given, request, opened, run)
    finally:
        if run.measurements:
            keeper.end()
    chosen = choose_nodes(done.judgement, given["count"]) if given["count"] else None
    kinds = ", ".join(dict.fromkeys(device.name for device in run.devices))
    origin = Origin(
        backend=run.backend,
        where=f"{len(pairs.names)} hosts, {len(run.devices)} ranks by {run.settings.launcher}: {kinds}",
        names=pairs.names,
        rounds=tuple(made.kind for made in done.rounds),
        measurements=len(done.seen),
        seconds=run.seconds,
        seed=request.seed,
        gpus=_gpus(run, pairs, chosen, given["gpus"]) if chosen is not None and given["gpus"] else (),
        lost=lost(run),
        failed=headline(run),
    )
    show(origin, done.judgement, chosen, as_json=given["as_json"])
    if keeper.failure is not None:
        raise keeper.failure
    if keeper.path is not None:
        say(f"saved {keeper.path}")
    leave(done.judgement, outcome(run).status)


def _measured(given: Mapping[str, Any], request: Request, opened: Opened, run: Run) -> tuple[NodePairs, Surveyed]:
    """Measure into the run. Raises UsageError, BackendError, DataCorruption."""
    from collbench.bench.nodes import NodePairs, survey_nodes

    begin, (size_bytes,) = time.monotonic(), request.sizes or ()
    pairs = NodePairs(opened.backend, run, size_bytes)
    _check_real_counts(given, pairs)
    try:
        with progress_bar("measuring nodes") as progress:

            def more(made: int) -> bool:
                progress(made, made + 1)
                return time.monotonic() - begin < (request.budget_seconds or 0.0)

            done = survey_nodes(len(pairs.names), (), pairs.measure, more, request.seed, one_way=given["one_way"])
        if given["gpus"]:
            pairs.measure_inside()
        run.complete = True
    finally:
        run.seconds = round(time.monotonic() - begin, 3)
    return pairs, done


def _gpus(run: Run, pairs: NodePairs, chosen: NodeChoice, wanted: int) -> tuple[tuple[int, ...], ...]:
    """Return each chosen node's best devices, by nvidia-smi's index, from that node's own pairs."""
    from collbench.analysis.restrict import restricted
    from collbench.analysis.select import choose

    sets = []
    for node in chosen.members:
        own = restricted(run, pairs.ranks[node])
        sets.append(tuple(own.devices[member].index for member in choose(own, wanted).members))
    return tuple(sets)


def _check_real_counts(given: Mapping[str, Any], pairs: NodePairs) -> None:
    """Raise UsageError for more nodes or GPUs than there are, before anything is measured."""
    nodes, fewest = len(pairs.names), min(map(len, pairs.ranks))
    if given["count"] is not None and given["count"] > nodes:
        raise UsageError(f"--select {given['count']} of {nodes} nodes ({', '.join(pairs.names)}): choose 1 to {nodes}")
    if given["gpus"] is not None and given["count"] is None:
        raise UsageError("--gpus chooses GPUs of the chosen nodes: add --select M")
    if given["gpus"] is not None and given["gpus"] > fewest:
        raise UsageError(f"--gpus {given['gpus']} where a node has {fewest} ranks: choose 1 to {fewest}")


def _settings(request: Request, opened: Opened, place: LaunchEnvironment) -> Settings:
    operations = tuple(work.operation for work in request.collectives)
    asked = settings_of(request, operations, request.sizes or (), visits=1, environment=dict(opened.environment))
    return replace(asked, processes=place.world_size, launcher=place.launcher)


# `collbench nodes`: which nodes of a cluster to take, from pairs of nodes measured in rounds.


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
    verbose_option,
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
    elif given["backend"] == SIM.name:
        _simulate(given, size_bytes, budget_seconds)
    elif given["fabric_cluster"] is not None:
        raise UsageError("--fabric-cluster names a simulated cluster: add --backend sim")
    else:
        survey(given, size_bytes, budget_seconds)


def _show_plan(text: str, size_bytes: int) -> None:
    from collbench.bench.nodes import estimate
    from collbench.output.text.nodes import plan_page

    match = _SHAPE.fullmatch(text.strip())
    if match is None or int(match[1]) < 2 or int(match[2]) < 1:
        raise UsageError(f"--plan '{text}' is no cluster: write its nodes, two or more, and each one's GPUs: 128x8")
    count, gpus = int(match[1]), int(match[2])
    phases = [(phase.what, phase.times, phase.seconds) for phase in estimate(count, gpus, size_bytes, _ASSUMED_GBS)]
    show_page(plan_page(count, gpus, size_bytes, _ASSUMED_GBS, phases, prose_width()))


def _simulate(given: dict[str, Any], size_bytes: int, budget_seconds: float) -> None:
    # Late: numpy and scipy need not be there for --help.
    from collbench.analysis.nodes import choose_nodes
    from collbench.bench.nodes import survey_cluster, switches
    from collbench.output.text.nodes import Origin, Truth
    from collbench.sim.cluster import allreduce_busbw, best_bound

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
        backend=SIM.name,
        where=f"{cluster.name}: {cluster.nodes} nodes × {cluster.gpus} GPUs; {cluster.source}",
        names=tuple(f"node{node}" for node in range(cluster.nodes)),
        rounds=tuple(made.kind for made in done.rounds),
        measurements=len(done.seen),
        seconds=done.seconds,
        seed=given["seed"],
        # A simulated node's GPUs are alike, so the first ones are as good as any.
        gpus=(tuple(range(given["gpus"])),) * given["count"] if given["gpus"] else (),
    )
    show(origin, done.judgement, chosen, truth, as_json=given["as_json"])
    leave(done.judgement, ExitStatus.DONE)


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
    from collbench.sim import cluster as sim_cluster

    if name is None:
        raise UsageError(f"--backend sim needs --fabric-cluster: {', '.join(sim_cluster.names())}, or a file")
    path = Path(name)
    if name in sim_cluster.names() or not (path.suffix or path.exists()):
        return sim_cluster.named(name)
    try:
        return sim_cluster.load(path.read_text(encoding="utf-8"), name)
    except OSError as error:
        raise RunFileError(f"cannot read cluster file {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{name} is not a cluster file: it is not text") from error
