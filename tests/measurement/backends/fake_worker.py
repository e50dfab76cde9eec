"""A worker without GPUs: `python -m tests.measurement.backends.fake_worker FD`; the steps say what it does wrong.

A step's `root` names its fate: most are timed at 1 GB/s, some hang, crash, or fail as a GPU would. A fate
marked "once" strikes once in all workers of a test: the file in FAKE_WORKER_ONCE remembers it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from collbench.measurement.backends.protocol import BackendFacts, Open, Step, Timing
from collbench.measurement.backends.worker import CudaSource, run
from collbench.model.errors import DataCorruption, MachineError, StepFailed, UsageError
from tests.measurement.fakes import FakeBackend

# Fates, by root.
GOOD, HANG, HANG_ONCE, KILLED, SEGFAULT, STICKY, CORRUPT, BUG, USAGE, STOPPED = range(10)
DEVICES = 4


def once() -> bool:
    """True for the first worker that asks."""
    try:
        os.close(os.open(os.environ["FAKE_WORKER_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def log(text: str) -> None:
    """Add a line that names this worker to the test's log."""
    with Path(os.environ["FAKE_WORKER_LOG"]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {text}\n")


class Backend(FakeBackend):
    """Times like FakeBackend, and goes wrong as the step's root says."""

    def reserve(self, largest_bytes: int) -> None:
        log(f"reserve {largest_bytes}")

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        if groups:  # the communicator of all begins when the GPUs are open, beside whatever comes next
            log(f"prepare {len(groups)}")
        fault = os.environ.get("FAKE_WORKER_PREPARE", "")
        if fault == "fails":
            raise StepFailed("creating NCCL communicators failed: unhandled system error")
        if fault == "slow":
            while not Path(os.environ["FAKE_WORKER_ONCE"]).exists():
                time.sleep(0.01)

    def time(self, step: Step) -> Timing:
        log(f"{step.work.variant} {step.size_bytes}")
        fate = step.root
        if fate == HANG or (fate == HANG_ONCE and once()):
            signal.pause()
        for number, name in ((KILLED, signal.SIGKILL), (SEGFAULT, signal.SIGSEGV), (STOPPED, signal.SIGSTOP)):
            if fate == number:
                os.kill(os.getpid(), name)
        if fate == STICKY:
            raise StepFailed("ce-write of 1K on GPU0-GPU1 failed: CUDA_ERROR_ILLEGAL_ADDRESS")
        if fate == CORRUPT:
            raise DataCorruption("wrong data: byte 17")
        if fate == USAGE:
            raise UsageError("NCCL has no dtype 'float12'")
        if fate == BUG:
            raise ValueError("links of a round share a GPU")
        return super().time(step)


class Source(CudaSource):
    """Four GPUs."""

    def uuids(self) -> tuple[str, ...]:
        """Return their UUIDs; none without a driver."""
        if os.environ.get("FAKE_WORKER_DRIVER") == "none":
            raise MachineError("no NVIDIA driver: libcuda.so.1 cannot be opened")
        return tuple(f"GPU-{i}" for i in range(DEVICES))

    def unique_id(self, nccl_path: str | None) -> bytes:
        """Return a world's id."""
        return (nccl_path or "").encode().ljust(128, b"\0")

    def open(self, opening: Open) -> tuple[Backend, BackendFacts]:
        """Open them; a mended machine does not open twice."""
        log(f"open peers={opening.peers}")
        if os.environ.get("FAKE_WORKER_OPEN") == "once" and not once():
            raise MachineError("CUDA does not show GPU1 to this process")
        backend = Backend(len(opening.devices), gbs=1.0)
        return backend, BackendFacts(backend.free_bytes(), backend.capacity_bytes(), "ptx", "2.28.9", "x.so", False)


if __name__ == "__main__":
    print("NCCL INFO what it says on stdout")
    sys.stdout.flush()
    print("what it says on stderr", file=sys.stderr)
    run(int(sys.argv[1]), Source(), timeout_s=0.5)
