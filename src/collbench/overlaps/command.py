"""`collbench overlap`: what a collective and compute cost each other when they run at the same time on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from collbench.cli import options
from collbench.cli.measuring import measure_with_workers, new_file
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES
from collbench.overlaps import api as overlapping
from collbench.overlaps.api import PRIORITIES, Overlapping, parse_computes, parse_ctas


@click.command()
@click.argument(
    "operation", metavar="[OPERATION]", default="allreduce", callback=options.parsed(overlapping.parse_operation)
)
@options.apply(
    options.devices,
    options.sizes_option("16M,64M,256M,1G; host: 1M,4M,16M"),
    option(
        "--compute LIST",
        "What to compute at the same time: gemm:N (N x N matrix product), memory:N (sum of two vectors of N MiB), "
        "or a list.  [default: gemm:8192; host: gemm:512]",
        parse_computes,
        name="computes",
    ),
    option("--priority", "Priority of the collective's stream.", click.Choice(tuple(PRIORITIES)), default="normal"),
    option(
        "--ctas LIST",
        "Numbers of thread blocks (channels) for NCCL, each in its own row: 1,2,4.  [default: NCCL's choice]",
        parse_ctas,
    ),
    option("--trials N", "Trials of each data point.  [default: 6; host: 5]", options.COUNT),
    *options.of_workers,
)
def overlap(*, as_json: bool, **values: Any) -> None:
    """Time a collective and compute on the same GPUs, each alone and both together.

    One process for each GPU runs torch's NCCL on one stream and the compute on another. The page has the time of each
    alone and while the other runs, and the time of both together over the longer of the two (1.0: perfect overlap) and
    over their sum. OPERATION is allreduce, allgather, reducescatter, broadcast or alltoall. All data and all results
    are verified.

    \b
    Examples:
      collbench overlap
      collbench overlap --sizes 64M --priority both
      collbench overlap allgather --compute gemm:4096,memory
      collbench overlap --sizes 256M --ctas 4,8,16
    """
    request = overlapping.request_of(values, options.command_line("overlap"), NOTICES)
    path = values["output"] or new_file("overlap", request.backend)
    measure_with_workers(partial(Overlapping, request, path, NOTICES), "collbench.overlaps.section", as_json=as_json)
