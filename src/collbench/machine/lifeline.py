"""Our processes end when their parent ends, for whatever reason: SIGKILL, a crash, a lost terminal.

Run as a script (`python -I -S lifeline.py PARENT -- PROGRAM ARGUMENT…`, 20 ms), it becomes a program that gets SIGTERM
once the process PARENT, which started it, is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# What reaches a whole process group: a terminal's Ctrl-C, Ctrl-\ and hangup, and a scheduler's SIGTERM.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def leave_signals_to_parent() -> None:
    """Ignore what reaches the whole group: the parent decides what it means, and ends us."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(pipe: int) -> None:
    """Let the kernel kill this process, even one that hangs in a driver, when its parent ends.

    The kernel counts the *thread* that started us as the parent. `pipe` is a socket to the parent: it reports an end
    that came before this call.
    """
    _signal_at_parents_end(signal.SIGKILL)
    if _hung_up(pipe, wait=False):
        os._exit(0)


def leave_with_parent(pipe: int, clean_up: Callable[[], object]) -> None:
    """Start a thread that cleans up and ends this process when the parent closes its end of `pipe`, or ends.

    For work that lets other threads run. A process that is stopped is woken for it.
    """
    _signal_at_parents_end(signal.SIGCONT)

    def wait() -> None:
        _hung_up(pipe, wait=True)
        clean_up()
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def parent_is_gone(pipe: int) -> bool:
    """Return whether the parent has closed its end of `pipe`, or ended."""
    return _hung_up(pipe, wait=False)


def with_us(command: Sequence[str]) -> list[str]:
    """Return the command, to be ended by SIGTERM when this process is gone. Raises FileNotFoundError."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *command]


def _hung_up(pipe: int, *, wait: bool) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)  # no event but those that are always reported: the other side has hung up
    return bool(poll.poll(None if wait else 0))


def _signal_at_parents_end(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def main(arguments: Sequence[str]) -> None:
    """Become the program; returns never. What cannot be started raises SystemExit with one line."""
    parent, program = int(arguments[0]), list(arguments[2:])
    _signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != parent:  # it ended before that call
        raise SystemExit(128 + signal.SIGTERM)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    main(sys.argv[1:])
