"""What people see, and how it ends, while children of ours train: notices, one live line, and no child left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import echo, say
from collbench.printable import one_line

if TYPE_CHECKING:
    from collbench.ablation.experiment import Told

# A line that changes more often is not read.
_SECONDS_BETWEEN_LINES = 0.2


@contextmanager
def interrupted(what: str) -> Iterator[None]:
    """Raise Interrupted for Ctrl-C and its like; `what` says what became of what was to be done."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {what}") from error


def told(*, verbose: bool) -> Told:
    """Return how an experiment speaks: on stderr, and with `verbose` the script's own output among it."""
    from collbench.ablation.experiment import Told  # late: numpy

    live = _Live(drawing=sys.stderr.isatty() and not verbose)

    def show(lines: Sequence[str]) -> None:
        for line in () if verbose else lines:  # seen already
            echo(line, err=True)

    def watch(data: bytes) -> None:
        if verbose:
            with suppress(OSError):  # nobody reads it
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()

    return Told(say=live.say, show=show, watch=watch, step=live.step)


class _Live:
    """One line in a terminal that says how far a run is, and gives way to notices."""

    def __init__(self, *, drawing: bool) -> None:
        self._drawing, self._last = drawing, 0.0

    def step(self, text: str) -> None:
        """Draw the line anew, if the last one has stood for a while."""
        now = time.monotonic()
        if self._drawing and now - self._last > _SECONDS_BETWEEN_LINES:
            self._last = now
            click.echo(f"\r\x1b[2K{one_line(text)}", err=True, nl=False)

    def say(self, text: str) -> None:
        """Print a notice where the line was."""
        if self._drawing and self._last:
            click.echo("\r\x1b[2K", err=True, nl=False)
        say(text)
