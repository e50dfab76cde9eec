"""A rank's seat on a GPU: NVML in this process, CUDA and NCCL in a worker that can be lost."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import version

from collbench.backends.isolated import IsolatedBackend
from collbench.backends.opening import here
from collbench.backends.protocol import Step, Timing
from collbench.backends.worker_messages import World
from collbench.errors import MachineError, UsageError
from collbench.machine.nvml import Nvml
from collbench.machine.watch import HealthWatch, Occupants
from collbench.model import Device, Flag, Health, Machine, Path
from collbench.world.environment import Place
from collbench.world.here import host_key
from collbench.world.messages import Introduction, OpenRank, RankFacts
from collbench.world.store import Store


class CudaSeat:
    """One GPU: the LOCAL_RANK-th that CUDA shows to this process, or the only one."""

    def __init__(self, place: Place, store: Store, nccl_path: str | None) -> None:
        """Start the worker, which takes a moment, and wait for nothing. Raises MachineError without a driver."""
        self._place, self._store, self._nccl_path = place, store, nccl_path
        self._stack = ExitStack()
        self._backend = IsolatedBackend()
        self._backend.start()
        try:
            self._nvml = self._stack.enter_context(Nvml())
        except BaseException:
            self._backend.reap()
            raise
        self._device: Device | None = None
        self._occupants = Occupants((), tuple)
        self._watch: HealthWatch | None = None
        self._used = False  # the worker has opened a world; it cannot leave it

    def introduce(self) -> Introduction:
        """Return this host and the rank's GPU. Raises UsageError where there are more ranks than GPUs."""
        self._device = self._own(self._backend.list_gpus())
        self._occupants = Occupants([self._nvml.processes(self._device)], lambda: self._backend.process_ids)
        machine = here()
        return Introduction(machine.hostname, host_key(), "cuda", version("collbench"), self._device, self._of(machine))

    def make_id(self) -> str:
        """Return NCCL's id as hexadecimal digits; the worker that makes it listens for the other ranks."""
        self._need_unused_worker()
        return self._backend.unique_id(self._nccl_path).hex()

    def open(self, opening: OpenRank) -> RankFacts:
        """Open the GPU and join NCCL's world, whose id is in the store under the opening's key."""
        if self._watch is None:
            self._start_watch(opening.devices[self._place.rank])
        self._need_unused_worker()
        self._used = True
        unique_id = bytes.fromhex(self._store.read(opening.key))
        world = World(self._place.rank, self._place.world_size, unique_id)
        self._backend.open(opening.devices, self._nccl_path, collectives=True, world=world)
        facts = self._backend.facts
        return RankFacts(
            capacity_bytes=facts.capacity_bytes,
            free_bytes=min(facts.free_bytes),
            kernel_image=facts.kernel_image,
            nccl=facts.nccl,
            nccl_path=facts.nccl_path,
            multicast=facts.multicast,
        )

    def reserve(self, largest_bytes: int) -> None:
        """Allocate the buffers."""
        self._backend.reserve(largest_bytes)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making communicators; all ranks make the same ones in the same order."""
        self._backend.prepare(groups)

    def time(self, step: Step) -> Timing:
        """Time the step in the worker, which is ended by any failure."""
        return self._backend.time_collective(step)

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return what NVML says of the paths; nothing where this rank's container shows it fewer GPUs."""
        with suppress(MachineError):
            return self._nvml.paths(devices)
        return ()

    def health(self) -> tuple[Health, ...]:
        """Return the GPU's state; of the processes on it, our worker is not counted."""
        if self._device is None:
            return ()
        others = self._occupants.others(0, self._nvml.processes(self._device))
        return (replace(self._nvml.health(self._device), processes=others),)

    def flags(self) -> tuple[Flag, ...]:
        """Return what is wrong with the GPU, as NVML told a moment ago."""
        return self._watch.flags((0,)) if self._watch else ()

    def interrupt(self) -> None:
        """Kill the worker: whoever waits for its answer hears of it at once."""
        for process_id in self._backend.process_ids:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def close(self) -> None:
        """End the worker and NVML."""
        self._backend.reap()
        self._stack.close()

    def _need_unused_worker(self) -> None:
        if self._used or not self._backend.process_ids:
            self._backend.reap()  # else the new worker would find the GPU's memory still taken
            self._backend, self._used = IsolatedBackend(), False
            self._backend.start()

    def _start_watch(self, named: Device) -> None:
        device = self._device or named
        self._watch = HealthWatch((named,), lambda: [self._nvml.glance(device)], self._occupants)

    def _of(self, machine: Machine) -> Machine:
        return replace(
            machine,
            driver=self._nvml.driver_version(),
            cuda=self._nvml.cuda_version(),
            virtualization=self._nvml.virtualization(),
        )

    def _own(self, visible: tuple[str, ...]) -> Device:
        """Return the GPU of this rank among the UUIDs that CUDA shows, in its order. Raises UsageError."""
        if len(visible) > 1 and self._place.local_rank >= len(visible):
            raise UsageError(
                f"{self._place.launcher} started {self._place.local_size} processes for {len(visible)} GPUs: start one "
                "process for each GPU, or see what CUDA_VISIBLE_DEVICES hides"
            )
        uuid = visible[self._place.local_rank] if len(visible) > 1 else "".join(visible)
        for device in self._nvml.devices():
            if device.uuid == uuid:
                return device
        raise MachineError("CUDA shows no GPU that NVML knows to this process: check CUDA_VISIBLE_DEVICES and MIG mode")
