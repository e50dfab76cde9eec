"""Programs of others end when this process ends, for whatever reason: SIGKILL, a crash, a lost terminal.

Run as a script (`python -I -S ended_with_us.py PARENT -- PROGRAM ARGUMENT…`, 20 ms), it becomes a program that gets
SIGTERM once the process PARENT, which started it, is gone. As `ended_with_us.py watch TEXT` it ends a process and all
below it once the process that started the script is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# Torchrun gives its workers 30 s to end before it kills them [torch 2.13, elastic agent, shutdown]; we give torchrun a
# bit more.
GRACE_SECONDS = 40.0
# What a process needs to end after SIGKILL, unless it hangs in a driver.
_LAST_SECONDS = 5.0


def with_us(command: Sequence[str]) -> list[str]:
    """Return the command, to be ended by SIGTERM when this process is gone. Raises FileNotFoundError."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *command]


@contextmanager
def ending_with_us(text: str) -> Iterator[Callable[[int], None]]:
    """Give a function that takes a process: if this one is killed in the block, that one and all below it are ended.

    Their own signals and groups stay as they are, as a shell that waits for its job needs. `text` is then printed on
    stderr. Leaving the block ends the watch.
    """
    command = [sys.executable, "-I", "-S", __file__, "watch", text]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True
    ) as watcher:

        def include(process: int) -> None:
            with suppress(OSError):  # somebody has ended the watcher
                os.write(watcher.stdin.fileno(), b"%d\n" % process)  # type: ignore[union-attr]

        try:
            yield include
        finally:
            watcher.kill()


def _processes() -> dict[int, tuple[int, bytes]]:
    """Return the parent and the start time of each process: a number may soon be another process's."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended
            state, parent, *rest = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if state != b"Z":
                found[int(folder.name)] = int(parent), rest[17]
    return found


def _tree(root: int) -> dict[int, bytes]:
    """Stop a process and all below it, so that none forks meanwhile, and return them with their start times."""
    tree: dict[int, bytes] = {}
    while True:
        processes = _processes()
        new = {
            pid: start
            for pid, (parent, start) in processes.items()
            if tree.get(pid) != start and (pid == root or parent in tree)
        }
        if not new:
            return tree
        _signal(new, signal.SIGSTOP)
        tree |= new


def _terminate(root: int) -> dict[int, bytes]:
    """Send SIGTERM to a process and all below it, and return them."""
    tree = _tree(root)
    _signal(tree, signal.SIGTERM)
    _signal(tree, signal.SIGCONT)
    return tree


def _end_tree(root: int) -> None:
    """End a process and those below it by SIGTERM, and after a while, with what they started since, by SIGKILL."""
    tree = _terminate(root)
    begun = time.monotonic()
    while tree and (waited := time.monotonic() - begun) < GRACE_SECONDS + _LAST_SECONDS:
        time.sleep(0.05)
        processes = _processes()
        tree = {pid: start for pid, start in tree.items() if pid in processes and processes[pid][1] == start}
        for pid in [pid for pid, (parent, _) in processes.items() if parent in tree and pid not in tree]:
            tree |= _terminate(pid)
        if waited >= GRACE_SECONDS:
            _signal(tree, signal.SIGKILL)


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(OSError):  # it has ended
            os.kill(process, number)


def _watch(text: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # they mean the job
        signal.signal(number, signal.SIG_IGN)
    root = sys.stdin.buffer.readline()
    sys.stdin.buffer.read()  # nothing comes, until the parent is gone
    if root:
        _end_tree(int(root))
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str]) -> None:
    """Become the program; returns never. What cannot be started raises SystemExit with one line."""
    parent, program = int(arguments[0]), list(arguments[2:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before that call
        raise SystemExit(128 + signal.SIGTERM)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        _watch(sys.argv[2])
    else:
        main(sys.argv[1:])
