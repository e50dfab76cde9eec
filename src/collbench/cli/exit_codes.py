"""How the program ends unsuccessfully: at most one line on stderr, and an exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from collbench.model.errors import CollbenchError, ExitStatus, Interrupted
from collbench.model.printable import one_line

# What writing to a full disk, quota or file-size limit gives.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_LETTERS = 2_000  # of a line: an error may name a value of a file, which may have any length
_NO_NUMBER = re.compile(r"is not a valid integer(?: range)?")  # click's words for 'two'
# What other tools call our options: spelled so differently that click's suggestion is another option, or none.
_OTHER_NAMES = {
    **dict.fromkeys(("--gpus", "--gpu", "--gpu-ids", "--gpu-id", "--device", "--cuda-devices"), "--devices"),
    "--size": "--sizes",
    "--datatype": "--dtype",
    "--out": "--output",
}


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's. It ends a measurement as Ctrl-C does, with another exit status."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


# SIGTERM comes from schedulers and service managers, SIGHUP from a terminal that closes, SIGQUIT from Ctrl-\.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def open_closed_streams() -> None:
    """Take /dev/null for stdin, stdout or stderr that was closed (`>&-`), for which Python has no stream at all."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number: the closed one's own, which no other file may get now.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def heed_signals() -> None:
    """Let SIGTERM, SIGHUP and SIGQUIT save what was measured. The job that `train` becomes does not inherit this.

    A signal that is ignored already stays ignored: SIGHUP under nohup.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        _forget_lost_streams()
        raise Terminated(number)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _forget_lost_streams() -> None:
    """Send to /dev/null what a lost terminal would answer with an error, before anything is saved."""
    for descriptor in lost(1, 2):
        send_nowhere(descriptor)


def lost(*descriptors: int) -> list[int]:
    """Return the descriptors whose reader has exited."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return [descriptor for descriptor, _event in poll.poll(0)]


def send_nowhere(descriptor: int) -> None:
    """Send to /dev/null what is still buffered for a descriptor and all that will be written to it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def failed(error: CollbenchError | KeyboardInterrupt) -> int:
    """Print the error's line, and return its status."""
    ending = error if isinstance(error, CollbenchError | Interrupted) else Interrupted("interrupted before it was done")
    if isinstance(ending, Interrupted) and sys.stderr.isatty():
        click.echo(err=True)  # the terminal has just shown "^C"
    terminated = next((cause for cause in (error, error.__cause__) if isinstance(cause, Terminated)), None)
    return _say(str(ending), (terminated or ending).exit_code)


def misused(error: click.UsageError) -> int:
    """Print click's error, with its suggestion, as one line that names the help; return the status."""
    if isinstance(error, click.exceptions.NoSuchOption) and error.ctx:
        ours = _OTHER_NAMES.get(error.option_name)
        if ours in {name for option in error.ctx.command.params for name in option.opts}:
            error = click.UsageError(f"No such option '{error.option_name}'. Did you mean '{ours}'?", error.ctx)
    message = _NO_NUMBER.sub("is not a whole number", error.format_message())
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)  # it is the whole help: no word was wrong, there was none
        return error.exit_code
    command = error.ctx.command_path if error.ctx else "collbench"
    separator = " See" if "?" in message else "; see"
    return _say(f"{message[:1].lower()}{message[1:].rstrip('.')}{separator} '{command} --help'", error.exit_code)


def unwritten(error: OSError) -> int:
    """Return the status after stdout failed: quiet for a closed pipe, a line for a full disk. Raises any other error.

    But one line says that the working directory was deleted: whatever needs its path fails then.

    What is still buffered goes nowhere, else Python would fail on it again at exit. Only help and
    similar output raise for a closed pipe: `terminal` prints the pages, and a reader that ends does not change their
    exit status.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        return _say("the working directory was deleted: change to another one, with 'cd'", ExitStatus.FAILED)
    closed = isinstance(error, BrokenPipeError) and bool(lost(sys.stdout.fileno()))
    if not closed and error.errno not in _FULL:
        raise error
    send_nowhere(sys.stdout.fileno())
    if closed:
        return ExitStatus.DONE  # `head` has read enough
    advice = next(iter(getattr(error, "__notes__", ())), "send it to another place")
    return _say(f"cannot write the output: {error.strerror}: {advice}", ExitStatus.FAILED)


def _say(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # stderr may be on a full disk, too: the status says it
        click.echo(f"collbench: {one_line(' '.join(message.split())[:_MOST_LETTERS])}", err=True)
    return status
