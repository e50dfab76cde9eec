"""Which nodes of a cluster to take, from pairs of nodes measured in rounds: in a launch, or of a simulated cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench import untrusted
from collbench.api import SILENT, Notices, keywords
from collbench.api.measuring import explained, request_of
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, json_option, leaving, say, show_answer, verbose_option
from collbench.cluster.switches import levels, read_switches
from collbench.judge.outcome import outcome
from collbench.machine.launchers import LaunchEnvironment, find_launch
from collbench.measurement.backends.protocol import Opened
from collbench.measurement.plan import Request, begun_run, read_ports_after, settings_of
from collbench.model.errors import (
    CollbenchError,
    DataCorruption,
    ExitStatus,
    FailureKind,
    Interrupted,
    RunFileError,
    UsageError,
)
from collbench.model.operations import Operation, Work
from collbench.model.run import SIM, Run, is_simulated
from collbench.model.units import format_size, parse_budget, parse_size
from collbench.ranks.nonzero import serve_rank_0
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter

if TYPE_CHECKING:
    from collbench.cluster.measure import NodePairs, Surveyed
    from collbench.cluster.page import NodeSurvey
    from collbench.cluster.simulated import Cluster
    from collbench.cluster.switches import Switches
    from collbench.ranks.factory import World

DEFAULT_SIZE, DEFAULT_BUDGET = "512M", 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRequest:
    """What is asked of a cluster: its best `count` nodes, None for no choice.

    Pairs of nodes exchange `size_bytes`. No round starts after `budget_seconds`. `switches` is a file that says which
    switch each node is under, or "slurm"; None if that is not known.
    """

    count: int | None = None
    size_bytes: int = parse_size(DEFAULT_SIZE)
    budget_seconds: float = DEFAULT_BUDGET
    switches: str | None = None

    def check(self, nodes: int, there: str) -> None:
        """Raise UsageError for more nodes than there are; `there` ends a sentence on the nodes."""
        if self.count is not None and self.count > nodes:
            raise UsageError(f"--select {self.count} of {nodes} nodes{there}: choose 1 to {nodes}")


# A simulated cluster, by name or file.

_MIN_SIMULATED = 64 * 2**20  # less takes a time that is not simulated


def survey_simulated(nodes_request: NodesRequest, cluster_name: str | None, seed: int) -> NodeSurvey:
    """Survey a simulated cluster. Raises UsageError, and RunFileError for a file that describes no cluster."""
    # Late: numpy and scipy need not be there for --help.
    from collbench.cluster.measure import survey_cluster, switches
    from collbench.cluster.nodes import choose_nodes
    from collbench.cluster.page import NodeSurvey
    from collbench.cluster.simulated import allreduce_busbw, best_bound

    if nodes_request.switches is not None:
        raise UsageError("--switches is for real nodes: the file of a simulated cluster has its switches")
    cluster = _cluster(cluster_name)
    if cluster.nodes < 2:
        raise UsageError("a cluster of one node has no pair to measure")
    nodes_request.check(cluster.nodes, "")
    if nodes_request.size_bytes < _MIN_SIMULATED:
        raise UsageError(
            f"a simulated cluster has bandwidth and no latency: write --size {format_size(_MIN_SIMULATED)} or more"
        )
    done = survey_cluster(cluster, nodes_request.budget_seconds, nodes_request.size_bytes, seed)
    choice, truth = None, None
    if nodes_request.count:
        choice = choose_nodes(done.judgement, nodes_request.count, switches(cluster))
        truth = allreduce_busbw(cluster, choice.members), best_bound(cluster, len(choice.members))
    return NodeSurvey(
        backend=SIM.name,
        where=f"{cluster.name}: {cluster.nodes} nodes × {cluster.gpus} GPUs; {cluster.source}",
        names=tuple(f"node{node}" for node in range(cluster.nodes)),
        rounds=tuple(node_round.kind for node_round in done.rounds),
        measurements=len(done.seen),
        seconds=done.seconds,
        seed=seed,
        judgement=done.judgement,
        choice=choice,
        truth=truth,
    )


def _cluster(name: str | None) -> Cluster:
    from collbench.cluster import simulated as sim_cluster

    if name is None:
        raise UsageError(f"--backend sim needs --fabric-cluster: {', '.join(sim_cluster.names())}, or a file")
    path = Path(name)
    if name in sim_cluster.names() or not (path.suffix or path.exists()):
        return sim_cluster.named(name)
    try:
        return sim_cluster.load(untrusted.read_text(path, sim_cluster.MAX_BYTES), name)
    except OSError as error:
        raise RunFileError(f"cannot read cluster file {name}: {untrusted.unread(path, error)}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{name} is not a cluster file: it is not text") from error


# Real machines: one process for each GPU; rank 0 judges.


def request_for(nodes_request: NodesRequest, shared: Request) -> Request:
    """Return the request for what is measured, from that of the options that all measuring commands share."""
    return replace(
        shared,
        kind="nodes",
        sizes=(nodes_request.size_bytes,),
        collectives=(Work(Operation.ALLREDUCE),),
        budget_seconds=nodes_request.budget_seconds,
    )


def survey_launch(
    nodes_request: NodesRequest,
    request: Request,
    path: Path | None,
    launch: LaunchEnvironment,
    notices: Notices = SILENT,
) -> NodeSurvey:
    """Measure the nodes of the launch in which this process is rank 0, and save the run, however this ends.

    Raises UsageError, BackendError, DataCorruption, RunFileError, and Interrupted.
    """
    if path is not None:
        run_file.check_writable(path, replace=request.force)
    try:
        from collbench.ranks.factory import World  # late: a tenth of a second
        from collbench.ranks.store import JOIN_VARIABLE, join_seconds

        waits = bool(os.environ.get(JOIN_VARIABLE, "").strip())
        with World(launch, request, join_seconds(os.environ), notices.say, survives_losses=True, waits=waits) as world:
            opened = world.open()
            run = _new_run(request, opened)
            writer = RunWriter(run, path, notices.say, replace=request.force)
            return _survey(nodes_request, opened, world, run, writer, notices)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: the nodes were not judged") from error


def _new_run(request: Request, opened: Opened) -> Run:
    works = tuple(work.operation for work in request.collectives)
    return begun_run(opened, settings_of(request, works, request.sizes or (), 1, opened))


def _survey(
    nodes_request: NodesRequest, opened: Opened, world: World, run: Run, writer: RunWriter, notices: Notices
) -> NodeSurvey:
    """Measure and judge; what was measured is saved however it ends."""
    # Late: numpy and scipy need not be there for --help.
    from collbench.cluster.nodes import choose_nodes, late_nodes
    from collbench.cluster.page import NodeSurvey, lost
    from collbench.report.frame import headline, network_lines

    try:
        pairs, done, switch_levels = _measured(nodes_request, opened, world, run, writer, notices)
        with suppress(CollbenchError):  # what was measured counts, even if the hosts no longer answer
            read_ports_after(run, opened)
    finally:
        if run.measurements:
            writer.end()
    nodes_left = len(pairs.names) - len(pairs.lost())
    choice = (
        choose_nodes(done.judgement, nodes_request.count, switch_levels)
        if nodes_request.count and nodes_request.count <= nodes_left
        else None
    )
    if nodes_request.count and choice is None:
        notices.say(
            f"--select {nodes_request.count}: no choice: only {nodes_left} of {len(pairs.names)} nodes are left"
        )
    gone = [*world.unknown, *world.lost().values()]
    kinds = ", ".join(dict.fromkeys(device.name for device in run.devices))
    hung = any(error.kind is FailureKind.HANG for error in gone)
    lost_some = ExitStatus.UNTRUSTED if hung else ExitStatus.FAILED if gone else ExitStatus.DONE
    return NodeSurvey(
        backend=run.backend,
        where=f"{len(pairs.names)} hosts, {len(run.devices)} ranks by {run.settings.launcher}: {kinds}",
        names=pairs.names,
        rounds=tuple(node_round.kind for node_round in done.rounds),
        measurements=len(done.seen),
        seconds=run.seconds,
        seed=run.settings.seed,
        judgement=done.judgement,
        choice=choice,
        gone=tuple(map(str, gone)),
        lost=lost(run),
        failed=headline(run),
        network=tuple(network_lines(run)),
        late=late_nodes(run, pairs.ranks),
        plain=any(sample.plain for measurement in run.measurements for sample in measurement.samples),
        switches=tuple(len(level.names) for level in switch_levels),
        switches_from=nodes_request.switches or "",
        failure_status=max(outcome(run).status, lost_some),
        path=writer.path,
        unsaved=writer.failure,
    )


def _measured(
    nodes_request: NodesRequest, opened: Opened, world: World, run: Run, writer: RunWriter, notices: Notices
) -> tuple[NodePairs, Surveyed, tuple[Switches, ...]]:
    """Measure into the run. Raises UsageError, BackendError, DataCorruption."""
    from collbench.cluster.measure import NodePairs, survey_nodes

    begin = time.monotonic()
    pairs = NodePairs(opened.backend, run, nodes_request.size_bytes, world.lost, writer.keep)
    nodes_request.check(len(pairs.names), f" ({', '.join(pairs.names)})")
    source = nodes_request.switches
    switch_levels = () if source is None else levels(read_switches(source), pairs.names)
    try:
        with notices.progress("measuring nodes") as progress:

            def more(count: int) -> bool:
                progress(count, count + 1)
                return time.monotonic() - begin < nodes_request.budget_seconds

            done = survey_nodes(
                len(pairs.names),
                switch_levels,
                pairs.measure,
                more,
                run.settings.seed,
                pairs.lost,
            )
        run.complete = not (world.unknown or world.lost())
    except DataCorruption as error:
        raise explained(error, run) from error
    finally:
        run.seconds = round(time.monotonic() - begin, 3)
    return pairs, done, switch_levels


# The command and the Python call.


def survey(
    values: Mapping[str, Any],
    command: Sequence[str],
    serve: Callable[[LaunchEnvironment, Request], object],
    notices: Notices = SILENT,
) -> NodeSurvey | None:
    """Survey a simulated cluster, or measure the nodes of this launch as its rank 0; on other ranks `serve`.

    `values` are the options of `collbench nodes` by name. Raises what survey_simulated and survey_launch raise, and
    UsageError outside a launch.
    """
    nodes_request = NodesRequest(budget_seconds=values["budget"], **keywords.fields_of(NodesRequest, values))
    cluster_name = values["fabric_cluster"]
    if is_simulated(values["backend"]):
        if values["output"] is not None:
            raise UsageError(
                "a simulated cluster is computed, not measured: there is no run for --output: write --json > "
                "survey.json, which 'collbench show' prints"
            )
        return survey_simulated(nodes_request, cluster_name, values["seed"])
    if cluster_name is not None:
        raise UsageError(f"--fabric-cluster {cluster_name} is a simulated cluster: add --backend sim")
    launch = find_launch(os.environ)
    if launch is None:
        raise UsageError(
            "nodes are measured by one process for each GPU: start this with srun, torchrun or mpirun, or simulate a "
            "cluster with --backend sim --fabric-cluster tree-128"
        )
    request = request_for(nodes_request, request_of("nodes", values, command, notices))
    if launch.rank > 0:
        serve(launch, request)
        return None
    path = values["output"] or run_file.new_run(
        "nodes", request.backend, notices.say, advice=", or name a file with --output FILE"
    )
    return survey_launch(nodes_request, request, path, launch, notices)


@click.command("nodes")
@options.apply(
    option("--select M", "Choose the best M nodes.", options.COUNT, name="count"),
    option("--fabric-cluster NAME", "With --backend sim: name or file of a simulated cluster.", options.FILE_NAME),
    option(
        "--switches FILE",
        "Each node's switches: Slurm's topology.conf, or lines 'node leaf pod'; slurm: ask scontrol.",
        options.FILE_NAME,
    ),
    option(
        "--size SIZE",
        "Message size of the all-reduce between two nodes.",
        parse_size,
        name="size_bytes",
        default=DEFAULT_SIZE,
    ),
    option(
        "--budget TIME",
        "Start no round after this time. Eight rounds are always run.",
        parse_budget,
        default=f"{DEFAULT_BUDGET:.0f}s",
    ),
    json_option("Print JSON instead of the page."),
    options.backend,
    options.nccl,
    options.output,
    options.force,
    options.seed,
    verbose_option,
)
def command(**values: Any) -> None:
    """Find slow nodes and uplinks of a cluster, and choose the best M nodes.

    All nodes are measured concurrently, in rounds of random pairs: eight rounds, then more for suspect nodes. So 128
    nodes need 600 to 1,200 measurements, not 8,128. Start it with one process for each GPU, or simulate a cluster.

    \b
    Examples:
      collbench nodes --backend sim --fabric-cluster tree-128-faulty --select 64
      srun --kill-on-bad-exit=0 --ntasks-per-node 8 python -m collbench nodes
    """
    found = survey(values, options.command_line("nodes"), serve_rank_0, NOTICES)
    if found is None:  # on another rank than 0
        return
    from collbench.cluster.page import as_plain, page  # late: numpy

    with leaving(found.status):
        show_answer(page(found), lambda: json.dumps(as_plain(found), allow_nan=False) + "\n")
        if found.unsaved is not None:
            raise found.unsaved
        if found.path is not None:
            say(f"saved {found.path}")


COMMANDS = {"nodes": command}  # the Python call has its name


@keywords.in_keywords
def nodes(  # noqa: PLR0913 - keywords, each an option of the command line
    select: int | None = None,
    *,
    backend: str = "auto",
    fabric_cluster: str | os.PathLike[str] | None = None,
    size: int | str = DEFAULT_SIZE,
    budget: float = DEFAULT_BUDGET,
    switches: str | os.PathLike[str] | None = None,
    nccl: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> NodeSurvey | None:
    """Find slow nodes and uplinks of a cluster, and the best `select` nodes.

    Call it in every process of a launch, one per GPU: rank 0 gets the result, the other ranks None. Or simulate a
    cluster: backend="sim", fabric_cluster="tree-128". `budget` is in seconds. `switches` is a file that lists the
    switches of each node, or "slurm". The run is saved as `output`, or as a new file. Raises Error.
    """
    given = dict(locals())
    from collbench.cli.calls import called  # late: the command needs no other command

    def serve(launch: LaunchEnvironment, request: Request) -> None:
        from collbench.ranks.factory import join  # late: a tenth of a second
        from collbench.ranks.store import join_seconds

        join(launch, request, join_seconds(os.environ))

    context, words = called("nodes", given)
    found = survey(context.params, words, serve)
    if found is not None and found.unsaved is not None:
        raise found.unsaved
    return found
