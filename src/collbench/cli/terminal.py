"""What users see during and after a measurement: a page on stdout, a progress bar and notices on stderr."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from collbench.api import Notices
from collbench.cli.program import lost, send_nowhere, unwritten
from collbench.model.units import WIDE, filled
from collbench.model.values import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from collbench.report.layout import Page

# How an answer is shown. It is no part of a request, so what these options say stays in click's context.


def _way(*words: str, text: str) -> Callable[..., Any]:
    """Return a flag whose parameter, the last of the words, `_asked_for` tells of."""

    def keep(context: click.Context, _option: click.Parameter, value: bool) -> None:
        context.meta[f"collbench.{words[-1]}"] = value

    return click.option(*words, is_flag=True, expose_value=False, callback=keep, help=text)


def _asked_for(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(f"collbench.{name}", False)


# The option of every command that shows a page.
verbose_option = _way("-v", "--verbose", "verbose", text="Show the whole page, not the short one.")


def json_option(text: str) -> Callable[..., Any]:
    """Return the option --json with its help."""
    return _way("--json", "as_json", text=text)


def is_verbose() -> bool:
    """Return whether the whole page was requested."""
    return _asked_for("verbose")


def is_json() -> bool:
    """Return whether JSON was requested."""
    return _asked_for("as_json")


# Sentences are easier to read in shorter lines; a pipe gets the longest, WIDE.
_NARROWEST_PROSE = 40
_OF_A_TERMINAL = (80, 24)  # that does not say its size


def echo(text: str, end: str = "\n", *, err: bool = False) -> None:
    """Print text on stdout or stderr, without control characters: no name can move the cursor or change a color."""
    _write(printable(text) + end, sys.stderr if err else sys.stdout)


def echo_sentence(text: str) -> None:
    """Print a sentence on stdout, wrapped in a terminal."""
    echo(filled(text, prose_width()) if columns() else text)


def say(text: str, file: TextIO | None = None) -> None:
    """Print one notice on stderr, or in this file."""
    _write(one_line(f"collbench: {text}") + "\n", file or sys.stderr)


def columns() -> int | None:
    """Return the columns of the terminal, of a pipe those that the variable COLUMNS says; None if nothing says any."""
    unknown = _OF_A_TERMINAL if sys.stdout.isatty() else (0, 0)
    return shutil.get_terminal_size(unknown).columns or None


def prose_width() -> int:
    """Return how many columns sentences take: the terminal's, within reason."""
    return max(_NARROWEST_PROSE, min(columns() or WIDE, WIDE))


@contextmanager
def leaving(status: int) -> Iterator[None]:
    """End the command with a status other than 0 after printing; a full disk is reported, and hides no higher one."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        raise click.exceptions.Exit(max(status, unwritten(error))) from error
    if status:
        raise click.exceptions.Exit(status)


def show_answer(page: Page, as_json: Callable[[], str]) -> None:
    """Print an answer: as JSON if that was requested, else as a page."""
    if is_json():
        echo(as_json(), end="")
    else:
        show_page(page)


def show_page(page: Page) -> None:
    """Print a page: colored in a terminal, plain in a pipe or under NO_COLOR. Nothing is cut, whatever the width."""
    from rich.console import Console  # late: notices need none of it, and they are all that `train` prints

    from collbench.report.layout import drawn

    # A width only so that it is not the 0 of COLUMNS=0: with soft_wrap it cuts and wraps nothing.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=prose_width())
    colored = console.is_terminal and not console.no_color
    for text in drawn(page, verbose=is_verbose(), wide=prose_width(), columns=columns(), colored=colored):
        with console.capture() as captured:
            console.print(_Safe(text))
        # Saved pages should have no blanks at the end of lines.
        _write(re.sub(r" +\n", "\n", captured.get()), sys.stdout, color=True)


def _write(text: str, stream: TextIO, *, color: bool | None = None) -> None:
    """Print text. After its reader has exited (`| head`, a lost terminal), output is discarded; the status stays."""
    try:
        click.echo(text, stream, nl=False, color=color)
    except OSError:
        if not lost(stream.fileno()):
            raise
        send_nowhere(stream.fileno())


class _Safe(NamedTuple):
    """What rich draws of a text, in its own colors, but without what its words would make a terminal do."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.text, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


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


# What a command lets the call beneath it say.
NOTICES = Notices(say=say, progress=progress_bar)
