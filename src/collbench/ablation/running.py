"""One child of an ablation: started, its output read and logged as it comes, timed, and ended with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from collbench import lifeline
from collbench.ablation.steps import Reader
from collbench.errors import BackendError

# Torchrun gives its workers 30 s to end before it kills them [torch 2.13, elastic agent, shutdown]; we, it a bit more.
_GRACE_SECONDS = 40.0
# A grandchild that outlives the job may hold its output open; what comes after this is nobody's step.
_AFTERMATH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status (negative: the signal), and the seconds from its start to its end."""

    status: int
    wall_seconds: float


class _Output:
    """Reads a child's output on a thread of its own, because the main one waits for the child and for signals."""

    def __init__(self, pipe: IO[bytes], log: IO[bytes], reader: Reader, watch: Callable[[bytes], None]) -> None:
        self._pipe, self._log, self._reader, self._watch = pipe, log, reader, watch
        self._thread = Thread(target=self._follow, name="output", daemon=True)
        self._over = False
        self.failure: OSError | None = None
        self._thread.start()

    def _follow(self) -> None:
        while data := os.read(self._pipe.fileno(), 65536):
            if self._over:
                return
            self._reader.feed(data)
            try:
                self._log.write(data)
                self._watch(data)
            except OSError as error:  # a full disk; reading goes on, else the job would stand still
                self.failure = self.failure or error

    def end(self) -> None:
        """Take what is left, from a child that has ended."""
        self._thread.join(_AFTERMATH_SECONDS)
        self._over = True
        self._reader.close()
        if not self._thread.is_alive():
            self._pipe.close()


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    reader: Reader,
    watch: Callable[[bytes], None] = lambda _data: None,
) -> Ended:
    """Run a command to its end, its stdout and stderr going to the log, the reader, and `watch`.

    KeyboardInterrupt (Ctrl-C, SIGTERM) ends the child first, which has a process group of its own: torchrun must get
    one signal, for a second one would interrupt it while it ends its workers. It gets SIGTERM, too, when this process
    is killed. Raises BackendError.
    """
    try:
        with log.open("wb", buffering=0) as file:
            return _run(command, environment, file, reader, watch)
    except OSError as error:
        raise BackendError(f"cannot run '{command[0]}' with its output in {log}: {error.strerror}") from error


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes],
    reader: Reader,
    watch: Callable[[bytes], None],
) -> Ended:
    begun = time.monotonic()
    child = subprocess.Popen(
        lifeline.with_us(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert child.stdout is not None  # noqa: S101 - asked for above
    output = _Output(child.stdout, log, reader, watch)
    try:
        status = child.wait()
        seconds = time.monotonic() - begun
    except BaseException:
        _end(child)
        raise
    finally:
        output.end()
    if output.failure is not None:
        raise output.failure
    return Ended(status, seconds)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, and after a while, or at a second Ctrl-C, make it."""
    try:
        child.send_signal(signal.SIGTERM)
        child.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def collbench(*words: str) -> list[str]:
    """Return the command that starts this very collbench as a child. -P: a script's folder may hold a collbench.py."""
    return [sys.executable, "-P", "-m", "collbench", *words]
