"""Our processes end when their parent ends, for whatever reason: SIGKILL, a crash, a lost terminal."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# What reaches a whole process group: a terminal's Ctrl-C, Ctrl-\ and hangup, and a scheduler's SIGTERM.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def leave_signals_to_parent() -> None:
    """Ignore what reaches the whole group: the parent decides what it means, and ends us."""
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(pipe: int) -> None:
    """Let the kernel kill this process, even one that hangs in a driver, when its parent ends.

    The kernel counts the *thread* that started us as the parent. `pipe` is a socket to the parent: it reports an end
    that came before this call.
    """
    _signal_at_parents_end(signal.SIGKILL)
    if _hung_up(pipe, wait=False):
        os._exit(0)


def leave_with_parent(pipe: int) -> None:
    """Start a thread that ends this process when the parent closes its end of `pipe`, or ends.

    For work that lets other threads run. A process that is stopped is woken for it.
    """
    _signal_at_parents_end(signal.SIGCONT)

    def wait() -> None:
        _hung_up(pipe, wait=True)
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _hung_up(pipe: int, *, wait: bool) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)  # no event but those that are always reported: the other side has hung up
    return bool(poll.poll(None if wait else 0))


def _signal_at_parents_end(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
