"""The process that touches the GPUs: `python -m collbench.measurement.backends.worker FD`.

It answers calls from the pipe FD, in order, until the pipe closes. What collbench can explain is an answer; anything
else ends the process, and the parent reads the last line of its stderr. It imports little: `collbench pairs` waits for
its start.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

if __name__ == "__main__":  # before the other modules: the driver starts (0.3 s) while they are loaded
    from collbench import _native

    def _start_driver() -> None:
        with suppress(_native.LibraryError, _native.CudaError):  # whoever asks for the GPUs gets the error
            _native.list_gpus()

    threading.Thread(target=_start_driver, daemon=True).start()

import os
import time
from functools import partial
from multiprocessing.connection import Connection

from collbench.measurement.backends import child_process
from collbench.measurement.backends.child_process import Background
from collbench.measurement.backends.protocol import (
    Backend,
    BackendFacts,
    Call,
    Open,
    Prepared,
    Reply,
    Step,
    Timing,
    WorkerAnswer,
    time_step,
)
from collbench.model.errors import CollbenchError, StepFailed
from collbench.model.operations import Work
from collbench.model.run import Skipped

# Seconds; NCCL starts in fewer. After these, copies continue without it.
_NCCL_TIMEOUT_S = 30.0


class CudaSource:
    """Where GPUs come from: the machine's GPUs and its NCCL. Tests have a fake of it."""

    def uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that CUDA shows. Raises MachineError."""
        from collbench.measurement.backends.cuda import list_gpus

        return list_gpus()

    def unique_id(self, nccl_path: str | None) -> bytes:
        """Return NCCL's id for a new world. Raises MachineError."""
        from collbench.machine.nccl import find_nccl

        return find_nccl(nccl_path).unique_id()

    def open(self, opening: Open) -> tuple[Backend, BackendFacts]:
        """Open the GPUs, and NCCL if it is wanted. Raises MachineError, StepFailed."""
        from collbench.machine.nccl import find_nccl
        from collbench.measurement.backends.cuda import CudaBackend

        find = partial(find_nccl, opening.nccl_path) if opening.collectives else None
        backend = CudaBackend(opening, find)
        return backend, backend.facts()


class _Worker:
    """What the parent calls, on the GPUs once they are open. Each method may raise CollbenchError."""

    def __init__(self, pipe: Connection[Reply, Call], source: CudaSource, timeout_s: float) -> None:
        self._pipe, self._source, self._timeout_s = pipe, source, timeout_s
        self.list_gpus, self.unique_id = source.uuids, source.unique_id
        self._backend: Backend | None = None
        # The creation of communicators takes 0.7 s, in which the parent continues, but no step may run: NCCL's start
        # waits for the devices, and a step holds them behind a blocking kernel until it is queued. On 4 × H200 that
        # ended in a timeout of that kernel, after 4 s.
        self._preparation: Background[None] | None = None
        self._left_s = 0.0  # how many more seconds a call waits for it

    @property
    def _opened(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("nothing is open: the first call must be `open`")
        return self._backend

    def open(self, opening: Open) -> BackendFacts:
        self._backend, facts = self._source.open(opening)
        if opening.collectives and opening.world is None:
            self.prepare(())  # the communicator of all GPUs, while the parent plans
        return facts

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        return self._opened.can_run(work, members)

    def reserve(self, largest_bytes: int) -> None:
        self._opened.reserve(largest_bytes)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Begin to create the groups' communicators. The first collective waits for them."""
        backend, before = self._opened, self._preparation

        def make() -> None:
            if before is not None:
                before.result()
            backend.prepare(groups)

        self._preparation = Background(make)
        self._left_s = self._timeout_s

    def ready(self) -> None:
        """Return when the creation of communicators has succeeded, failed, or timed out."""
        if self._preparation is not None:
            self._left_s = self._preparation.stand_by(self._left_s)

    def time(self, step: Step) -> Timing:
        self.ready()
        started = self._preparation
        if started is not None and (step.work.operation.is_collective or started.succeeded):
            started.result()
            self._preparation = None
            self._pipe.send(Prepared())
        return time_step(self._opened, step)


def _serve(pipe: Connection[Reply, Call], worker: _Worker) -> None:
    """Answer calls until the pipe closes. Raises errors that are not CollbenchErrors."""
    while True:
        try:
            call = pipe.recv()
        except (EOFError, ConnectionError):
            return
        begin = time.perf_counter()
        try:
            value = getattr(worker, call.method)(*call.arguments)
            reply: Reply = WorkerAnswer(value, time.perf_counter() - begin)
        except CollbenchError as error:
            reply = error
        pipe.send(reply)
        if call.method == "time" and isinstance(reply, StepFailed):
            _await_the_end(pipe)
            return


def _await_the_end(pipe: Connection[Reply, Call]) -> None:
    """Time no more steps: the context or the communicators are broken, and the parent ends this process.

    The parent may have sent more steps before it learned of the failure. In such a step this rank would meet ranks that
    are still in the failed one.
    """
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.recv()


def run(descriptor: int, source: CudaSource, timeout_s: float = _NCCL_TIMEOUT_S) -> None:
    """Serve the pipe at `descriptor`, and end the process with it. Copies wait `timeout_s` seconds for NCCL."""
    child_process.leave_signals_to_parent()
    child_process.die_with_parent(descriptor)  # one that hangs in the driver never sees its pipe close
    pipe: Connection[Reply, Call] = Connection(descriptor)
    with suppress(BrokenPipeError):  # the parent left without its answer
        _serve(pipe, _Worker(pipe, source, timeout_s))
    os._exit(0)  # at once, with all that is open: the driver takes back what CUDA and NCCL would take long to release


if __name__ == "__main__":
    run(int(sys.argv[1]), CudaSource())
