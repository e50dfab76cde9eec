"""Programs of others end when this process ends, for whatever reason: SIGKILL, a crash, a lost terminal.

Run as a script (`python -I -S ended_with_us.py PARENT -- PROGRAM ARGUMENT…`, 20 ms), it becomes a program that gets
SIGTERM once the process PARENT, which started it, is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# Torchrun gives its workers 30 s to end before it kills them [torch 2.13, elastic agent, shutdown]; we give torchrun a
# bit more.
GRACE_SECONDS = 40.0


def with_us(command: Sequence[str]) -> list[str]:
    """Return the command, to be ended by SIGTERM when this process is gone. Raises FileNotFoundError."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *command]


def main(arguments: Sequence[str]) -> None:
    """Become the program; returns never. What cannot be started raises SystemExit with one line."""
    parent, program = int(arguments[0]), list(arguments[2:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before that call
        raise SystemExit(128 + signal.SIGTERM)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    main(sys.argv[1:])
