"""Workers with torch, one process for each GPU or CPU core, asked all at once; and what is known of their machine.

The parent never loads torch. Workers end with `close()`, with any failure, or when this process is gone.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from collbench.backends import factory
from collbench.backends.torch_process import EXIT_S, Joined, TorchProcess, collected, start, worker_environment
from collbench.machine import numa, visible_devices
from collbench.machine.nvml import Nvml
from collbench.machine.watch import HealthWatch, Occupants
from collbench.model.capabilities import CUDA, HOST
from collbench.model.errors import BackendError, MachineError
from collbench.model.run import Device, Flag, Health, Machine, Path

# `import torch` takes 3 s, and tens of seconds from a cold network disk.
_JOIN_S = 120.0


class TorchWorld:
    """All ranks of one kind of worker: rank r has the device at position r. After an error the workers are gone."""

    def __init__(
        self,
        command: str,
        kind: str,
        places: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start `collbench.backends.COMMAND_worker` for each place and return at once.

        `kind` is cuda or host; `places` are GPUs' numbers among the `visible` UUIDs, or cores. `settings` are the
        workers' variables beside ours.
        """
        if find_spec("torch") is None:
            raise MachineError(f"{command} computes with torch, which is not installed: pip install torch")
        self._command = command
        self._workers: list[TorchProcess] = []
        self._lost: BackendError | None = None
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"collbench-{command}-"))
        environment = {**worker_environment(), **(settings or {})}
        if visible:
            environment[visible_devices.NAME] = ",".join(visible)
        if kind == HOST.name:
            environment["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a worker's one core
        try:
            for rank, place in enumerate(places):
                words = (rank, len(places), kind, place, self._folder)
                name = ("worker", "of rank", rank)
                module = f"collbench.backends.{command}_worker"
                self._workers.append(start(module, words, rank, self._folder, environment, name))
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

    def give_up(self, error: BackendError) -> None:
        """End the workers; whatever is asked of them from now on fails for this reason."""
        self._lost = error
        self._end()

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

    def _asked(self, request: object, timeout_s: float) -> list[Any]:
        """Give every worker the same request, and return their answers by rank."""
        return self._each_asked([request] * len(self._workers), timeout_s)

    def _each_asked(self, requests: Sequence[object], timeout_s: float) -> list[Any]:
        """Give rank r request r, and return their answers by rank."""
        if self._lost is not None:
            raise self._lost
        if not self._workers:
            raise BackendError(f"the workers of {self._command} are gone: an earlier request failed")
        try:
            for worker, request in zip(self._workers, requests, strict=True):
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

World = TypeVar("World", bound=TorchWorld)


@dataclass(frozen=True, slots=True)
class OpenWorlds(Generic[World]):
    """Open workers, a world for each arm, and what is known of their machine, as in `factory.Opened`."""

    worlds: tuple[World, ...]
    devices: tuple[Device, ...]
    machine: Machine
    paths: tuple[Path, ...]
    close: Callable[[], None]
    environment: dict[str, str] = field(default_factory=dict)
    health: Callable[[], tuple[Health, ...]] = tuple
    flags: Callable[[tuple[int, ...]], tuple[Flag, ...]] = lambda _members: ()


# Starts one world: on a kind of backend, at these places, of these visible GPUs.
Starter = Callable[[str, Sequence[int], Sequence[str]], World]
Choice = Callable[[tuple[Device, ...]], tuple[Device, ...]]


def open_worlds(
    name: str,
    wanted: str | None,
    starters: Sequence[Starter[World]],
    chosen: Choice = tuple,
    *,
    independent: bool = False,
) -> OpenWorlds[World]:
    """Start a world by each starter on the devices that are wanted, of which `chosen` may drop some.

    A world that does not meet ends them all, unless they are `independent`: then it fails when it is asked, and only
    where none meets are they all given up. Raises UsageError, MachineError, BackendError.
    """
    return (_open_cores if name == HOST.name else _open_gpus)(wanted, starters, chosen, independent)


def _met(worlds: Sequence[TorchWorld], independent: bool) -> Joined:
    """Wait until the ranks of each world have met; return what the first that did has loaded. Raises BackendError."""
    facts: list[Joined] = []
    lost: BackendError | None = None
    for world in worlds:
        try:
            facts.append(world.join())
        except BackendError as error:
            if not independent:
                raise
            lost = error
            world.give_up(error)
    if lost is not None and not facts:
        raise lost
    return facts[0]


def _open_cores(
    wanted: str | None, starters: Sequence[Starter[World]], chosen: Choice, independent: bool
) -> OpenWorlds[World]:
    with ExitStack() as stack:
        devices = chosen(factory.choose_devices(numa.devices(), wanted))
        worlds = tuple(_started(stack, one, HOST.name, [device.index for device in devices], ()) for one in starters)
        _met(worlds, independent)
        return OpenWorlds(
            worlds,
            devices,
            factory.here(),
            numa.paths(devices),
            environment=factory.nccl_settings(os.environ),
            close=stack.pop_all().close,
        )


def _open_gpus(
    wanted: str | None, starters: Sequence[Starter[World]], chosen: Choice, independent: bool
) -> OpenWorlds[World]:
    with ExitStack() as stack:
        nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
        devices = chosen(factory.choose_devices(factory.may_use(nvml), wanted))
        before = [nvml.processes(device) for device in devices]
        held = [nvml.memory_used(device) for device in devices]
        visible = [device.uuid for device in devices]
        worlds = tuple(_started(stack, one, CUDA.name, range(len(devices)), visible) for one in starters)
        occupants = Occupants(before, lambda: [pid for world in worlds for pid in world.process_ids])
        facts = _met(worlds, independent)
        machine = replace(
            factory.here(),
            driver=nvml.driver_version(),
            cuda=nvml.cuda_version(),
            virtualization=nvml.virtualization(),
            nccl=facts.nccl,
            nccl_path=facts.nccl_path,
        )
        watch = HealthWatch(devices, lambda: [nvml.glance(device) for device in devices], occupants)
        return OpenWorlds(
            worlds,
            devices,
            machine,
            nvml.paths(devices),
            environment=factory.nccl_settings(os.environ),
            health=lambda: factory.health_of(nvml, devices, occupants, held),
            flags=watch.flags,
            close=stack.pop_all().close,
        )


def _started(
    stack: ExitStack, starter: Starter[World], kind: str, places: Sequence[int], visible: Sequence[str]
) -> World:
    world = starter(kind, places, visible)
    stack.callback(world.close)
    return world
