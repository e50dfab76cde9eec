"""`collbench nodes` on real machines: one process for each GPU, of which rank 0 measures, judges and prints."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench import runfile
from collbench.backends.opening import Opened
from collbench.cli import options, places
from collbench.cli.following import serve_rank_0
from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import echo, progress_bar, prose_width, say
from collbench.errors import ExitStatus, UsageError
from collbench.keeper import Keeper
from collbench.model import Run, Settings
from collbench.operations import Operation, Work
from collbench.outcome import outcome
from collbench.planning import Request
from collbench.world.environment import Place, find_place, join_seconds
from collbench.world.opening import World

if TYPE_CHECKING:
    from collbench.affinity.nodes.choice import NodeChoice
    from collbench.affinity.nodes.judge import Judgement
    from collbench.measure.node_pairs import NodePairs
    from collbench.report.nodes import Origin, Truth
    from collbench.surveying import Surveyed


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
    path = path or places.new_run("nodes", request.backend, advice=", or name a file with --output FILE")
    if path is not None:
        runfile.check_writable(path, replace=request.force)
    with ExitStack() as stack:
        try:
            world = stack.enter_context(World(place, request, join_seconds(os.environ), say))
            opened = world.open()
            stack.callback(opened.close)
            from collbench.session import begun_run  # late: numpy

            run = begun_run(opened, _settings(request, opened, place))
            _survey(given, request, opened, run, path)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: the nodes were not judged") from error


def show(
    origin: Origin, found: Judgement, chosen: NodeChoice | None, truth: Truth | None = None, *, as_json: bool
) -> None:
    """Print the page, or as JSON."""
    from collbench.report.nodes import as_plain, page

    if as_json:
        echo(json.dumps(as_plain(origin, found, chosen, truth)))
    else:
        echo(page(origin, found, chosen, truth, prose_width()))


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
    from collbench.affinity.nodes.choice import choose_nodes
    from collbench.report.nodes import Origin
    from collbench.report.outcome import headline

    keeper = Keeper(run, path, say, replace=request.force)
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
        lost=tuple(pairs.lost),
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
    from collbench.measure.node_pairs import NodePairs
    from collbench.surveying import survey_nodes

    begin, (size_bytes,) = time.monotonic(), request.sizes or ()
    pairs = NodePairs(opened.backend, run, size_bytes)
    _check_counts(given, pairs)
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
    from collbench.affinity.choose import choose
    from collbench.affinity.nodes.own import own_run

    sets = []
    for node in chosen.members:
        own = own_run(run, pairs.ranks[node])
        sets.append(tuple(own.devices[member].index for member in choose(own, wanted).members))
    return tuple(sets)


def _check_counts(given: Mapping[str, Any], pairs: NodePairs) -> None:
    """Raise UsageError for more nodes or GPUs than there are, before anything is measured."""
    nodes, fewest = len(pairs.names), min(map(len, pairs.ranks))
    if given["count"] is not None and given["count"] > nodes:
        raise UsageError(f"--select {given['count']} of {nodes} nodes ({', '.join(pairs.names)}): choose 1 to {nodes}")
    if given["gpus"] is not None and given["count"] is None:
        raise UsageError("--gpus chooses GPUs of the chosen nodes: add --select M")
    if given["gpus"] is not None and given["gpus"] > fewest:
        raise UsageError(f"--gpus {given['gpus']} where a node has {fewest} ranks: choose 1 to {fewest}")


def _settings(request: Request, opened: Opened, place: Place) -> Settings:
    return Settings(
        operations=tuple(work.operation for work in request.collectives),
        sizes=request.sizes or (),
        dtype=request.dtype,
        redop=request.redop,
        visits=1,
        seed=request.seed,
        command=request.command,
        environment=dict(opened.environment),
        budget_seconds=request.budget_seconds,
        processes=place.world_size,
        launcher=place.launcher,
    )
