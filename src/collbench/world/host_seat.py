"""A rank's seat on a CPU core: one gloo worker, which meets the others' through the store that all ranks share."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from contextlib import suppress
from importlib.metadata import version

from collbench.backends.gloo import corruption
from collbench.backends.gloo_messages import Reply
from collbench.backends.gloo_process import PATIENCE_S, GlooProcess, expected_seconds, lost, silence, spawn, task_of
from collbench.backends.opening import here
from collbench.backends.protocol import Step, Timing
from collbench.errors import BackendError
from collbench.machine import cores, memory
from collbench.model import Device, Flag, Health, Path
from collbench.world.environment import Place
from collbench.world.here import host_key, interface_of
from collbench.world.messages import Introduction, OpenRank, RankFacts
from collbench.world.store import prefix

# Buffers a rank may hold of the largest message: sent, received, random data, and gloo's own.
_BUFFERS = 6


class HostSeat:
    """One core: the LOCAL_RANK-th that this process may use, counted round where there are more ranks."""

    def __init__(self, place: Place, patience_s: float = PATIENCE_S) -> None:
        """Start nothing yet; `patience_s` is how long silence may last beyond the expected work, in seconds."""
        self._place, self._patience_s = place, patience_s
        reach = sorted(os.sched_getaffinity(0))
        self._core = reach[place.local_rank % len(reach)]
        self._worker: GlooProcess | None = None
        self._folder: pathlib.Path | None = None
        self._devices: tuple[Device, ...] = ()

    def introduce(self) -> Introduction:
        """Return this host and the rank's core."""
        machine = here()
        device = cores.device(self._core)
        return Introduction(machine.hostname, host_key(), "host", version("collbench"), device, machine)

    def make_id(self) -> str:
        """Return nothing: gloo ranks meet under the opening's key."""
        return ""

    def open(self, opening: OpenRank) -> RankFacts:
        """Start the worker and wait until it has met all others."""
        self._end()
        self._devices = opening.devices
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="collbench-gloo-"))
        self._worker = spawn(
            self._place.rank,
            [self._core] * self._place.world_size,
            self._folder,
            (self._place.master_addr, str(self._place.master_port), f"{prefix(self._place)}/{opening.key}"),
            (interface_of(opening.address) if opening.address else "") or "lo",
        )
        self._receive(self._worker, self._patience_s)
        here_too = max(1, self._place.local_size)
        return RankFacts(capacity_bytes=memory.available_bytes() // 2 // (_BUFFERS * here_too))

    def reserve(self, largest_bytes: int) -> None:
        """Do nothing: buffers come with the sizes."""

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Do nothing: gloo's groups come with the first collective."""

    def time(self, step: Step) -> Timing:
        """Time the step in the worker. Raises UsageError, DataCorruption, BackendError."""
        if self._worker is None:
            raise BackendError(f"{step.work} before the gloo worker was started")
        task = task_of(step)
        with suppress(OSError):  # a worker that is gone shows when it should answer
            self._worker.pipe.send(task)
        reply = self._receive(self._worker, self._patience_s + expected_seconds(step))
        if reply["wrong"] is not None:
            raise corruption(step, self._place.rank, reply["wrong"], [device.tag for device in self._devices])
        seconds = tuple(reply["seconds"])
        return Timing(tuple(seconds if self._place.rank in group else () for group in step.groups))

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return the paths between cores."""
        return cores.paths(devices)

    def health(self) -> tuple[Health, ...]:
        """Return nothing: nobody tells of cores what NVML tells of GPUs."""
        return ()

    def flags(self) -> tuple[Flag, ...]:
        """Return nothing, for the same reason."""
        return ()

    def interrupt(self) -> None:
        """Kill the worker: whoever waits for its answer hears of it at once."""
        worker = self._worker
        if worker is not None:
            worker.process.kill()

    def close(self) -> None:
        """End the worker."""
        self._end()

    def _receive(self, worker: GlooProcess, patience_s: float) -> Reply:
        try:
            if worker.pipe.poll(patience_s):
                return worker.pipe.recv()
            failure = silence([worker], patience_s)
        except (EOFError, OSError):
            failure = lost(worker, [worker])
        self._end()
        raise failure

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
