"""`collbench pairs`: every link and pair, measured, on one page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from collbench.cli import options
from collbench.cli.measuring import measure_and_show
from collbench.errors import UsageError
from collbench.operations import Operation, Variant, Work

_COPY = "copy"
_COLLECTIVES = {operation.value: operation for operation in (Operation.ALLREDUCE, Operation.BROADCAST)}
_EVERYTHING = ",".join((_COPY, *_COLLECTIVES))


_operations = click.option(
    "--operations",
    default=_EVERYTHING,
    show_default=True,
    metavar="LIST",
    help="What to time.",
)


@click.command(short_help="Measure every link and pair of GPUs, and rank the pairs.")
@options.measuring(_operations, options.dtype, options.redop, sized=options.survey_sizes)
def pairs(**given: Any) -> None:
    """Measure every link and pair of GPUs, rank the pairs, and recommend devices.

    Times raw copies on every directed link (by copy engine and by SM kernel, written and read), and NCCL all-reduce
    and broadcast on every pair, at every size. Prints the labels, the measured matrix, the pairs in order and whether
    they tie, the best 2, 4, … devices, and where the run was saved. All data is verified.

    \b
    Examples:
      collbench pairs
      collbench pairs --devices 0,2,3 --sizes 1M:1G -o run.json
      collbench pairs --operations allreduce --backend host
    """
    asked = _parse_operations(given["operations"])
    request, path = options.make_request("pairs", given)
    request = replace(
        request,
        copies=(Variant.PLAIN,) if _COPY in asked else (),
        collectives=tuple(Work(_COLLECTIVES[word]) for word in asked if word != _COPY),
        pairs=True,
    )
    measure_and_show(request, path)


def _parse_operations(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word != _COPY and word not in _COLLECTIVES:
            raise UsageError(f"operation '{word}' is unknown: choose from {_EVERYTHING}")
    return words
