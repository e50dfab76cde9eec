"""`collbench allreduce` and `collbench broadcast`: one collective over all chosen GPUs, or over each pair."""

from __future__ import annotations

from typing import Any

import click

from collbench.cli import options
from collbench.cli.measuring import measure_and_show
from collbench.model import Operation

_EACH_PAIR = click.option("--pairs", is_flag=True, help="Time each pair instead of all devices together.")


@click.command(short_help="Time all-reduce over all GPUs, or over each pair.")
@options.measuring(_EACH_PAIR, options.redop)
def allreduce(**given: Any) -> None:
    """Time all-reduce over all chosen GPUs as one communicator, or over each pair.

    Prints nccl-tests' columns (size, count, type, redop, time, algbw, busbw, wrong) and the 95 % interval of busbw.
    "time" is device time (graph replay, slowest rank), "launch" one call of an ungraphed loop.

    \b
    Examples:
      collbench allreduce --sizes 1M:1G
      collbench allreduce --pairs --dtype bfloat16 --op max
    """
    _measure(Operation.ALLREDUCE, given)


@click.command(short_help="Time broadcast over all GPUs, or over each pair.")
@options.measuring(_EACH_PAIR)
def broadcast(**given: Any) -> None:
    """Time broadcast from the first chosen GPU to the others, or within each pair.

    Prints nccl-tests' columns (size, count, type, redop, time, algbw, busbw, wrong) and the 95 % interval of busbw.
    "time" is device time (graph replay, slowest rank), "launch" one call of an ungraphed loop.

    \b
    Examples:
      collbench broadcast --sizes 1M:1G
      collbench broadcast --devices 0,1 --sizes 64M
    """
    _measure(Operation.BROADCAST, given)


def _measure(operation: Operation, given: dict[str, Any]) -> None:
    request, path = options.make_request(
        operation.value, given, copies=False, collectives=(operation,), pairs=given["pairs"]
    )
    measure_and_show(request, path)
