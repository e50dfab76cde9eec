"""Workers with torch, one process for each GPU or CPU core, and what is known of their machine.

The parent never loads torch. Workers end with `close()`, with any failure, or when this process is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from collbench.machine import numa, variables, visible_devices
from collbench.machine.nvml import Nvml
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.protocol import OpenWorkers
from collbench.measurement.backends.torch_process import TorchWorkers, worker_environment
from collbench.model.capabilities import capabilities


class TorchWorld(TorchWorkers):
    """All ranks of one kind of worker: rank r has the device at position r."""

    def __init__(
        self,
        module: str,
        backend: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the worker in `module`, of collbench, for each device and return at once.

        `backend` is cuda or host; `devices` are GPUs' numbers among the `visible` UUIDs, or cores. `settings` are the
        workers' variables in addition to ours.
        """
        environment = {**worker_environment(), **(settings or {})}
        if visible:
            environment[visible_devices.NAME] = ",".join(visible)
        if capabilities(backend).cores:
            environment["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a worker's one core
        super().__init__(module, backend, dict(enumerate(devices)), len(devices), environment)


# From a backend's name to open workers, with the facts about their machine.

World = TypeVar("World", bound=TorchWorld)
# Starts one world: on a backend, on these numbers of GPUs or cores, of these visible GPUs.
Starter = Callable[[str, Sequence[int], Sequence[str]], World]


def open_worlds(
    name: str,
    wanted: str | None,
    starters: Sequence[Starter[World]],
    spans: tuple[float, float],
    chosen: Choice = tuple,
) -> OpenWorkers[World]:
    """Start a world by each starter on the wanted devices; `chosen` may drop some of these.

    `spans` are the seconds of a load on GPUs and on cores. A world whose ranks do not meet ends all worlds. Raises
    UsageError, MachineError, BackendError.
    """
    with ExitStack() as stack:
        worlds: list[World] = []
        if capabilities(name).cores:
            devices = chosen(factory.choose_devices(numa.devices(), wanted))
            numbers, visible = [device.index for device in devices], list[str]()
            nvml = gpus = None
        else:
            nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
            devices = chosen(factory.choose_devices(factory.may_use(nvml.devices()), wanted))
            numbers, visible = [*range(len(devices))], [device.uuid for device in devices]
            gpus = factory.ObservedGpus(nvml, devices, lambda: [pid for world in worlds for pid in world.process_ids])
        for start in starters:
            world = start(name, numbers, visible)
            stack.callback(world.close)
            worlds.append(world)
        loaded, *_ = [world.join() for world in worlds]
        return OpenWorkers(
            name,
            tuple(worlds),
            devices,
            spans[gpus is None],
            machine=replace(factory.here(nvml), nccl=loaded.nccl, nccl_path=loaded.nccl_path),
            paths=nvml.paths(devices) if nvml else numa.paths(devices),
            health=gpus.health if gpus else tuple,
            flags=gpus.flags if gpus else lambda _positions: (),
            environment=variables.recorded(torch=True),
            close=stack.pop_all().close,
        )
