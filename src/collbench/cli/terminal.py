"""What people see while and after measuring: a page on stdout, a progress bar and notices on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

# Piped pages are not cut at 80 columns: the reader is a program, or a pager that can scroll.
_PIPED_WIDTH = 240


def say(text: str) -> None:
    """Print one notice on stderr."""
    click.echo(f"collbench: {text}", err=True)


def show_page(blocks: Iterable[RenderableType]) -> None:
    """Print a page: coloured in a terminal, plain in a pipe or under NO_COLOR."""
    console = (
        Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        if sys.stdout.isatty()
        else Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=_PIPED_WIDTH)
    )
    for block in blocks:
        console.print(block)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function (done, total) that draws a bar with the time left; it draws nothing outside a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
