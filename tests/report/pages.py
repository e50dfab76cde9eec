"""What a page looks like to a reader: in a pipe, in a terminal, or under NO_COLOR."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from itertools import combinations, permutations
from textwrap import dedent

from rich.console import Console

from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.model.units import WIDE
from collbench.report.layout import Page, drawn
from tests.builders import gpus, measured, run_of

_COPIES = {Operation.CE_WRITE: 395.2, Operation.CE_READ: 393.7, Operation.SM_WRITE: 370.1, Operation.SM_READ: 376.4}


def shows(sample: str, printed: str) -> bool:
    """Return whether a document's indented sample is of a printed page; its lines "…" stand for lines left out."""
    parts = [part for part in re.split(r"^…\n", dedent(sample), flags=re.MULTILINE) if part]
    positions = [printed.find(part) for part in parts]
    return -1 not in positions and positions == sorted(positions)


def text(
    page: Page,
    *,
    terminal: bool = False,
    no_color: bool = False,
    verbose: bool = True,
    wide: int = WIDE,
    columns: int | None = None,
) -> str:
    """Return the printed page as a pipe gets it, or a terminal of 256 colours; no blanks at the ends of lines.

    `wide` are the columns of its sentences, `columns` those of all of it: None as long as COLUMNS says none.
    """
    console = Console(
        file=io.StringIO(),
        width=240,
        highlight=False,
        soft_wrap=True,
        force_terminal=terminal,
        color_system="256" if terminal else None,
        _environ={"NO_COLOR": "1"} if no_color else {},
    )
    with console.capture() as captured:
        for part in drawn(page, verbose=verbose, wide=min(wide, columns or wide), columns=columns, colored=terminal):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def pairs_run(
    count: int,
    rate: Callable[[int, int], float | Iterable[float]] = lambda _a, _b: 300.0,
    name: str = "NVIDIA H200",
) -> Run:
    """Return what `collbench pairs` measures with its defaults: four copies on links, two collectives on pairs."""
    copies = [measured(op, link, gbs) for op, gbs in _COPIES.items() for link in permutations(range(count), 2)]
    pairs = list(combinations(range(count), 2))
    sums = [measured(Operation.ALLREDUCE, pair, rate(*pair)) for pair in pairs]
    casts = [measured(Operation.BROADCAST, pair, 310.0) for pair in pairs]
    return run_of(gpus(count, name), copies + sums + casts)
