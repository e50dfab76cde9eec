"""A collective beside compute, parent side: one worker process with torch for each GPU, or CPU core.

The parent never loads torch. Workers end with `close()`, with any failure, or when this process is gone.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec

from collbench.backends import factory
from collbench.backends.overlap_protocol import (
    Done,
    Joined,
    Load,
    OverlapOpened,
    OverlapPoint,
    RankTimes,
    Reply,
    Request,
    Warm,
)
from collbench.backends.torch_process import EXIT_S, TorchProcess, collected, start, worker_environment
from collbench.machine import numa, visible_devices
from collbench.machine.nvml import Nvml
from collbench.machine.watch import HealthWatch, Occupants
from collbench.model.capabilities import CUDA, HOST
from collbench.model.errors import BackendError, MachineError

_MODULE = "collbench.backends.overlap_worker"
# `import torch` takes 3 s, and tens of seconds from a cold network disk.
_JOIN_S = 120.0
# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# A load lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld:
    """All ranks: rank r has the device at position r. `kind` is cuda or host; `places` as overlap_worker has them.

    `load_s` is how long a load may take, in seconds. After an error the workers are gone.
    """

    def __init__(self, kind: str, places: Sequence[int], visible: Sequence[str] = (), load_s: float = _LOAD_S) -> None:
        """Start the workers and return at once; `visible` are the UUIDs of the GPUs that CUDA shall show them."""
        if find_spec("torch") is None:
            raise MachineError("overlap computes with torch, which is not installed: pip install torch")
        self._load_s = load_s
        self._workers: list[TorchProcess] = []
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="collbench-overlap-"))
        environment = worker_environment()
        if visible:
            environment[visible_devices.NAME] = ",".join(visible)
        if kind == HOST.name:
            environment["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a worker's one core
        try:
            for rank, place in enumerate(places):
                words = (rank, len(places), kind, place, self._folder)
                name = ("worker", "of rank", rank)
                self._workers.append(start(_MODULE, words, rank, self._folder, environment, name))
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' ids."""
        return tuple(worker.process.pid for worker in self._workers)

    def join(self) -> Joined:
        """Wait until all ranks have met; return what the first one has loaded. Raises BackendError."""
        replies = collected(self._workers, _JOIN_S)
        assert isinstance(replies[0], Joined)  # noqa: S101  # what a worker says first
        return replies[0]

    def allocate(self, point: OverlapPoint) -> None:
        """Make room for a data point. Raises MachineError where it does not fit, BackendError."""
        for rank, reply in enumerate(self._asked(point, _WARM_S)):
            if isinstance(reply, Done) and reply.problem:
                raise MachineError(f"rank {rank} has no room for {point.operation}: {reply.problem}")

    def warm(self) -> None:
        """Run both once, untimed. Raises BackendError."""
        self._asked(Warm(), _WARM_S)

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(reply for reply in self._asked(load, self._load_s) if isinstance(reply, RankTimes))

    def close(self) -> None:
        """Let the workers go, end those that do not, and remove their folder; does nothing the second time."""
        for worker in self._workers:
            worker.pipe.close()  # they exit at once
        deadline = time.monotonic() + EXIT_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _asked(self, request: Request, timeout_s: float) -> list[Reply]:
        """Give every worker the same request, and return their answers by rank."""
        if not self._workers:
            raise BackendError("the workers of overlap are gone: an earlier request failed")
        try:
            for worker in self._workers:
                try:
                    worker.pipe.send(request)
                except OSError:  # it died: its end is explained where it is waited for
                    continue
            return collected(self._workers, timeout_s)
        except BaseException:  # Ctrl-C too: a reply nobody has read would answer the next request
            self._end()
            raise

    def _end(self) -> None:
        """Kill the workers: one that hangs in a collective would not listen."""
        for worker in self._workers:
            worker.process.kill()
        self.close()


# From a backend's name to open workers, with the facts about their machine.

# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_GPU_SPAN_S, _CORE_SPAN_S = 0.025, 0.05


def open_overlap(name: str, wanted: str | None) -> OverlapOpened:
    """Open the cuda or host backend on the devices that are wanted. Raises UsageError, MachineError, BackendError."""
    return _open_host(wanted) if name == HOST.name else _open_cuda(wanted)


def _open_host(wanted: str | None) -> OverlapOpened:
    devices = factory.choose_devices(numa.devices(), wanted)
    world = OverlapWorld(HOST.name, [device.index for device in devices])
    _join(world)
    return OverlapOpened(
        HOST.name,
        world,
        devices,
        factory.here(),
        numa.paths(devices),
        _CORE_SPAN_S,
        environment=factory.nccl_settings(os.environ),
        close=world.close,
    )


def _open_cuda(wanted: str | None) -> OverlapOpened:
    with ExitStack() as stack:
        nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
        devices = factory.choose_devices(factory.may_use(nvml), wanted)
        before = [nvml.processes(device) for device in devices]
        held = [nvml.memory_used(device) for device in devices]
        world = OverlapWorld(CUDA.name, range(len(devices)), [device.uuid for device in devices])
        stack.callback(world.close)
        occupants = Occupants(before, lambda: world.process_ids)
        facts = _join(world)
        machine = replace(
            factory.here(),
            driver=nvml.driver_version(),
            cuda=nvml.cuda_version(),
            virtualization=nvml.virtualization(),
            nccl=facts.nccl,
            nccl_path=facts.nccl_path,
        )
        watch = HealthWatch(devices, lambda: [nvml.glance(device) for device in devices], occupants)
        return OverlapOpened(
            CUDA.name,
            world,
            devices,
            machine,
            nvml.paths(devices),
            _GPU_SPAN_S,
            environment=factory.nccl_settings(os.environ),
            health=lambda: factory.health_of(nvml, devices, occupants, held),
            flags=watch.flags,
            close=stack.pop_all().close,
        )


def _join(world: OverlapWorld) -> Joined:
    try:
        return world.join()
    except BaseException:
        world.close()
        raise
