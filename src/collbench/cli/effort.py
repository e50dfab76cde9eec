"""How long to measure, as options of every command that measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from collbench.cli.amounts import parse_budget, parse_precision
from collbench.errors import UsageError

# Generous: twenty times what a sweep of four GPUs takes without it, and nobody watches longer without having asked.
_SECONDS_FOR_PRECISION = 60.0

OPTIONS = (
    click.option(
        "--precision",
        metavar="SHARE",
        help="Visit each cell until half its 95 % interval is within this share of its median: 1%, 0.5% or 0.01; "
        "for 60 s at most, or as --budget says.  [default: 1% from 1M on, 3% below]",
    ),
    click.option(
        "--budget",
        metavar="TIME",
        help="Stop visiting unsettled cells after this time: 10s, 500ms or 2min. Each gets three visits in any case.  "
        "[default: 2.3s; host: 8s]",
    ),
    click.option("--quick", is_flag=True, help="A first look in about a second: few sizes, three visits a cell."),
)


def parse(given: Mapping[str, Any]) -> tuple[bool, float | None, float | None]:
    """Return whether a first look is enough, the precision as a ratio, and the budget in seconds. Raises UsageError."""
    for other in ("precision", "budget"):
        if given["quick"] and given[other] is not None:
            raise UsageError(f"--quick and --{other} both say how long to measure: leave one out")
    precision = None if given["precision"] is None else parse_precision(given["precision"])
    budget = None if given["budget"] is None else parse_budget(given["budget"])
    return given["quick"], precision, _SECONDS_FOR_PRECISION if precision and budget is None else budget
