"""`collbench nodes`: which nodes of a cluster to take, from pairs of nodes measured in rounds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click

from collbench.api.measuring import MeasureOptions
from collbench.cli import options
from collbench.cli.measuring import new_file
from collbench.cli.terminal import NOTICES, echo, is_verbose, leave, prose_width, say, show_page, verbose_option
from collbench.cluster.api import (
    ASSUMED_GBS,
    DEFAULT_BUDGET,
    DEFAULT_SIZE,
    NodesRequest,
    NodeSurvey,
    plan,
    requests_for_launch,
    survey_launch,
    survey_simulated,
)
from collbench.machine.launchers import find_launch
from collbench.model.capabilities import is_simulated
from collbench.model.errors import UsageError
from collbench.model.units import parse_budget, parse_size
from collbench.ranks.nonzero import serve_rank_0

_SHAPE = re.compile(r"(\d{1,6})[x×](\d{1,3})", re.ASCII)

# Options that may be given with --resume: they change no measurement. --backend is for hosts that lack the file.
_SAID_AGAIN = ("resume", "count", "gpus", "rails", "switches", "as_json", "verbose", "nccl", "backend")

_own_options = options.apply(
    click.option("--select", "count", metavar="M", type=options.COUNT, help="Choose the best M nodes."),
    click.option("--gpus", metavar="K", type=options.COUNT, help="Also choose the best K GPUs of each node."),
    click.option(
        "--plan", "shape", metavar="NODESxGPUS", help="Only print how long a cluster of this size would take: 128x8."
    ),
    click.option("--fabric-cluster", metavar="NAME", help="With --backend sim: name or file of a simulated cluster."),
    click.option(
        "--one-way", is_flag=True, help="Measure each direction separately, to find cables with one bad direction."
    ),
    click.option(
        "--rails", is_flag=True, help="Also measure each GPU with the same one of another node, to find slow cards."
    ),
    click.option(
        "--switches",
        metavar="FILE",
        type=options.FILE_NAME,
        help="Each node's switches: Slurm's topology.conf, or lines 'node leaf pod'; slurm: ask scontrol.",
    ),
    click.option(
        "--size",
        "size_bytes",
        metavar="SIZE",
        default=DEFAULT_SIZE,
        show_default=True,
        callback=options.parsed(parse_size),
        help="Message size of the all-reduce between two nodes.",
    ),
    click.option(
        "--budget",
        metavar="TIME",
        default=f"{DEFAULT_BUDGET:.0f}s",
        show_default=True,
        callback=options.parsed(parse_budget),
        help="Start no round after this time. Eight rounds are always run.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the page."),
    options.backend,
    options.nccl,
    options.output,
    options.force,
    options.resume,
    options.seed,
    verbose_option,
)


@click.command()
@_own_options
def nodes(  # noqa: PLR0913 - options
    *,
    count: int | None,
    gpus: int | None,
    shape: str | None,
    fabric_cluster: str | None,
    one_way: bool,
    rails: bool,
    switches: str | None,
    size_bytes: int,
    budget: float,
    as_json: bool,
    backend: str,
    nccl: str | None,
    output: Path | None,
    force: bool,
    resume: Path | None,
    seed: int | None,
) -> None:
    """Find slow nodes and uplinks of a cluster, and choose the best M nodes.

    All nodes are measured concurrently, in rounds of random pairs: eight rounds, then more for suspect nodes. So 128
    nodes need 600 to 1,200 measurements, not 8,128. Start it with one process for each GPU, or simulate a cluster.

    \b
    Examples:
      collbench nodes --plan 128x8
      collbench nodes --backend sim --fabric-cluster tree-128-faulty --select 64
      srun --ntasks-per-node 8 python -m collbench nodes --switches slurm
    """
    nodes_request = NodesRequest(
        count=count,
        gpus=gpus,
        size_bytes=size_bytes,
        budget_seconds=budget,
        one_way=one_way,
        rails=rails,
        switches=switches,
    )
    if resume is not None and (others := options.typed_besides(_SAID_AGAIN)):
        raise UsageError(f"--resume takes all options from {resume}: leave out {', '.join(others)}")
    if shape is not None:
        _show_plan(shape, size_bytes, as_json=as_json)
        return
    if is_simulated(backend):
        if output is not None:
            raise UsageError("a simulation measures nothing, so --output has nothing to save: use --json")
        if resume is not None:
            raise UsageError("a simulation measures nothing, so --resume has nothing to resume")
        survey = survey_simulated(nodes_request, fabric_cluster, seed)
    else:
        if fabric_cluster is not None:
            raise UsageError("--fabric-cluster names a simulated cluster: add --backend sim")
        shared = MeasureOptions(backend=backend, nccl=nccl, output=output, force=force, resume=resume, seed=seed)
        survey = _measured(nodes_request, shared)
    from collbench.cluster.page import as_plain, page  # late: numpy

    shown = (survey.origin, survey.judgement, survey.choice, survey.truth)
    echo(
        json.dumps(as_plain(*shown), allow_nan=False) if as_json else page(*shown, prose_width(), verbose=is_verbose())
    )
    if survey.failure is not None:
        raise survey.failure
    if survey.path is not None:
        say(f"saved {survey.path}")
    leave(survey.status)


def _measured(nodes_request: NodesRequest, shared: MeasureOptions) -> NodeSurvey:
    """Measure the nodes of this launch as its rank 0. Raises UsageError outside one, and RankEnded on another rank."""
    launch = find_launch(os.environ)
    if launch is None:
        raise UsageError(
            "nodes are measured by one process for each GPU: start this with srun, torchrun or mpirun, simulate a "
            "cluster with --backend sim, or estimate its duration with --plan"
        )
    nodes_request, request = requests_for_launch(nodes_request, shared, options.command_line("nodes"), launch, NOTICES)
    if launch.rank > 0:
        serve_rank_0(launch, request)
    path = shared.file or new_file("nodes", request.backend)
    return survey_launch(nodes_request, request, path, launch, NOTICES)


def _show_plan(shape: str, size_bytes: int, *, as_json: bool) -> None:
    match = _SHAPE.fullmatch(shape.strip())
    if match is None or int(match[1]) < 2 or int(match[2]) < 1:
        raise UsageError(f"--plan '{shape}' is not a cluster: write NODESxGPUS, with two or more nodes: 128x8")
    count, gpus = int(match[1]), int(match[2])
    phases = [(phase.what, phase.times, phase.seconds) for phase in plan(count, gpus, size_bytes)]
    from collbench.cluster.page import plan_as_plain, plan_page  # late: numpy

    shown = (count, gpus, size_bytes, ASSUMED_GBS, phases)
    if as_json:
        echo(json.dumps(plan_as_plain(*shown), ensure_ascii=False, allow_nan=False))
    else:
        show_page(plan_page(*shown, prose_width()))
