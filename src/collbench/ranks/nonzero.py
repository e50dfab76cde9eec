"""One process per GPU: rank 0 runs the program, and the other ranks run it silently."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from collbench import annexes
from collbench.cli.terminal import say
from collbench.machine.launchers import LaunchEnvironment
from collbench.model.errors import CollbenchError, UsageError
from collbench.ranks.store import join_seconds

if TYPE_CHECKING:
    from collbench.api import Notices
    from collbench.measurement.plan import Request
    from collbench.ranks.factory import World

# Commands that one process of a node can run, which is no rank then; and those that only a single process can run. With
# what to do instead.
_EACH_NODE = {
    **annexes.EACH_NODE,
    "train": "train starts torchrun itself: start it once on each node (srun --ntasks-per-node 1)",
}
_INSTEAD = {
    **_EACH_NODE,
    **annexes.ALONE,
    "check": "one process judges: run 'collbench check' without a launcher, on the run file that the processes saved",
    "select": "each process would choose separately: run 'collbench select' once, before they start",
    "topo": "one process reports labels: run 'collbench topo' without a launcher",
}
# How long a refused rank waits before it fails, so that rank 0 has printed why: all ranks start together.
_AFTER_RANK_0_S = 3.0
_WATCH_S = 0.5


def _end_with_launcher() -> None:
    """Start a thread that sends this process SIGTERM once its parent is gone: a rank must not outlive its launcher."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def run_together(launch: LaunchEnvironment, arguments: list[str], invoke: Callable[[], object]) -> int:
    """Run a command line by `invoke` in a launch; return the exit status.

    Raises what it raises on rank 0, and UsageError there for a command that several processes cannot run together.
    """
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    if launch.local_size == 1 and name in _EACH_NODE:
        invoke()
        return 0
    _end_with_launcher()

    def checked() -> None:
        if name in _INSTEAD and not {"-h", "--help"} & set(arguments):
            raise UsageError(f"{name} was started in several processes, but {_INSTEAD[name]}")
        invoke()

    if launch.rank > 0:
        return _run_silently(checked)
    checked()
    return 0


class RankEnded(Exception):
    """The end of a rank other than 0: its exit status, and a message that only this rank can print, if any."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status, self.text = status, text


def _run_silently(invoke: Callable[[], object]) -> int:
    """Run the command as a rank other than 0; return the rank's exit status.

    Nothing is printed: rank 0 has the same command line and reports what is wrong with it. Launchers end all ranks when
    one has failed, so this one fails a moment later.
    """
    try:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            invoke()
    except RankEnded as end:
        if end.text:
            say(end.text)
        return end.status
    except (CollbenchError, click.ClickException, click.exceptions.Exit) as end:
        if end.exit_code:
            with contextlib.suppress(KeyboardInterrupt):  # the launcher ends this rank when rank 0 has ended
                time.sleep(_AFTER_RANK_0_S)
        return end.exit_code
    return 0


def open_ranks(launch: LaunchEnvironment, request: Request, notices: Notices) -> World:
    """Return the ranks of a launch for rank 0. Raises what a World does, and UsageError for how long to wait."""
    from collbench.ranks.factory import World  # late: a tenth of a second

    return World(launch, request, join_seconds(os.environ), notices.say)


def serve_rank_0(launch: LaunchEnvironment, request: Request) -> NoReturn:
    """Measure this rank's part for rank 0, and end with RankEnded. Raises UsageError for what rank 0 refuses too."""
    # Late: a tenth of a second.
    from collbench.ranks.factory import join, refuse
    from collbench.ranks.rank_worker import Rank0Failed

    refuse(request)
    timeout_s = join_seconds(os.environ)  # rank 0 says what is wrong with it
    try:
        join(launch, request, timeout_s, lambda text: say(text, sys.__stderr__))  # stderr is silenced
    except Rank0Failed as error:
        raise RankEnded(0) from error  # rank 0 says what failed, and its status counts
    except CollbenchError as error:
        raise RankEnded(error.exit_code, str(error)) from error
    raise RankEnded(0)
