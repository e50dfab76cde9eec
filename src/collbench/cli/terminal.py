"""What people see while and after measuring: a page on stdout, a progress bar and notices on stderr."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from collbench.report.prose import WIDE

if TYPE_CHECKING:
    from rich.console import RenderableType

# rich shortens cells to fit its width, so it is told one that fits every page; what a terminal lacks is folded.
_PAGE_WIDTH = 240
# Sentences are easier to read in shorter lines; a pipe gets the longest, WIDE.
_NARROWEST_PROSE = 40


def say(text: str) -> None:
    """Print one notice on stderr."""
    click.echo(f"collbench: {text}", err=True)


def prose_width() -> int:
    """Return how many columns sentences take: the terminal's, within reason."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    return max(_NARROWEST_PROSE, min(columns, WIDE))


def show_page(blocks: Iterable[RenderableType]) -> None:
    """Print a page: coloured in a terminal, plain in a pipe or under NO_COLOR. Nothing is cut, whatever the width."""
    from rich.console import Console  # late: notices need none of it, and they are all that `train` prints
    from rich.table import Table

    from collbench.cli.folding import fold

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=_PAGE_WIDTH)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PAGE_WIDTH
    for block in blocks:
        parts = fold(block, width) if isinstance(block, Table) else [block]
        for number, part in enumerate(parts):
            with console.capture() as captured:
                console.print(part)
            # rich pads the last column; whoever saves or compares pages wants no blanks at the end of lines.
            click.echo("\n" * (number > 0) + re.sub(r" +\n", "\n", captured.get()), nl=False, color=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function (done, total) that draws a bar with the time left; it draws nothing outside a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
