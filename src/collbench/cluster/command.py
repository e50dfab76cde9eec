"""`collbench nodes`: which nodes of a cluster to take, from pairs of nodes measured in rounds."""

from __future__ import annotations

import json
from typing import Any

import click

from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, json_option, leaving, say, show_answer, verbose_option
from collbench.cluster.api import DEFAULT_BUDGET, DEFAULT_SIZE, survey
from collbench.model.units import parse_budget, parse_size
from collbench.ranks.nonzero import serve_rank_0


@click.command()
@options.apply(
    option("--select M", "Choose the best M nodes.", options.COUNT, name="count"),
    option("--fabric-cluster NAME", "With --backend sim: name or file of a simulated cluster.", options.FILE_NAME),
    option("--one-way", "Measure each direction separately, to find cables with one bad direction."),
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
def nodes(**values: Any) -> None:
    """Find slow nodes and uplinks of a cluster, and choose the best M nodes.

    All nodes are measured concurrently, in rounds of random pairs: eight rounds, then more for suspect nodes. So 128
    nodes need 600 to 1,200 measurements, not 8,128. Start it with one process for each GPU, or simulate a cluster.

    \b
    Examples:
      collbench nodes --backend sim --fabric-cluster tree-128-faulty --select 64
      srun --ntasks-per-node 8 python -m collbench nodes --switches slurm
    """
    found = survey(values, options.command_line("nodes"), serve_rank_0, NOTICES)
    if found is None:  # on another rank than 0
        return
    from collbench.cluster.page import as_plain, page  # late: numpy

    shown = (found.origin, found.judgement, found.choice, found.truth)
    with leaving(found.status):
        show_answer(page(*shown), lambda: json.dumps(as_plain(*shown), allow_nan=False) + "\n")
        if found.failure is not None:
            raise found.failure
        if found.path is not None:
            say(f"saved {found.path}")
