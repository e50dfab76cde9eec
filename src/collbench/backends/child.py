"""One worker process: started, asked through its pipe, watched, and killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

import collbench
from collbench.backends.worker_messages import Answer, Prepared, Reply, Request
from collbench.errors import BackendError, FailureKind
from collbench.units import fixed

# Silence is counted in slices, so that time in which this process itself was stopped (Ctrl-Z) does not count.
_SLICE_S = 0.25
# A process that died closes its pipe first; one that is killed needs a moment to give its memory back.
_EXIT_S = 5.0
_STDERR = 2


class ChildLost(BackendError):
    """The worker hangs or is gone. The text says which."""


class Child:
    """A running worker; `module` is what it runs. Whoever loses it with ChildLost must kill it."""

    def __init__(self, module: str, extra: Mapping[str, str]) -> None:
        """Start the process with `extra` variables beside ours, and return at once."""
        self._stderr = tempfile.TemporaryFile(prefix="collbench-worker-")  # noqa: SIM115  # closed when it is reaped
        self._pipe: Connection[Request, Reply]
        self._pipe, theirs = Pipe()
        with theirs:
            # -P: a file in the user's folder must not become one of our modules. What NCCL prints on stdout under
            # NCCL_DEBUG goes to our stderr: our stdout holds the page.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(),),
                env={**_environment(), **extra},
            )

    @property
    def process_id(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a request. A worker that is gone shows at the next `receive`."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(request)

    def receive(self, patience_s: float) -> Answer | Prepared:
        """Return the next reply. Raises the failure that it reports, or ChildLost after so much silence or a death."""
        left = patience_s
        try:
            while not self._pipe.poll(min(left, _SLICE_S)):
                left -= _SLICE_S
                if left <= 0:
                    text = f"hang: no answer within {fixed(patience_s, 3)} s, so the worker process was killed"
                    raise ChildLost(text, FailureKind.HANG)
            reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ChildLost(self._obituary(), FailureKind.CRASH) from error
        if isinstance(reply, Answer | Prepared):
            return reply
        raise reply

    def kill(self) -> None:
        """End the process, even a stopped one, without waiting for it."""
        self._process.kill()
        self._pipe.close()

    def reap(self, seconds: float = _EXIT_S) -> None:
        """Wait a while for a killed process to be gone, with the memory that it held on the GPUs."""
        with suppress(subprocess.TimeoutExpired):  # stuck in the driver: it goes when the driver lets go
            self._process.wait(seconds)
        self._stderr.close()

    def _obituary(self) -> str:
        try:
            status = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            return "crash: the worker process closed its pipe, and is ending"
        how = f"exit status {status}" if status >= 0 else f"signal {-status}, {_signal_name(-status)}"
        return f"crash: the worker process died ({how}): {self._last_line()}"

    def _last_line(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing to stderr")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _environment() -> dict[str, str]:
    """Return ours, so that CUDA and NCCL obey the same variables; the worker runs this very collbench."""
    ours = str(pathlib.Path(collbench.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}
