"""Work in processes with torch, one for each device, or simulated ones: a request, open workers, and their session.

The parent never loads torch. Workers end with `close()`, with any failure, or when this process is gone. For overlap
and replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from collbench.api import SILENT, Notices
from collbench.api.measuring import OpenSession
from collbench.machine import device_names, kernel, variables
from collbench.machine.nvml import Nvml
from collbench.measurement.backends import factory
from collbench.measurement.backends.child_process import TorchWorkers, worker_environment
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.protocol import OpenDevices
from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.plan import device_words, new_run
from collbench.model.run import SIM, Device, Run, Settings, capabilities
from collbench.sim.fabrics import Fabric

Workers_co = TypeVar("Workers_co", covariant=True)


@dataclass(frozen=True)
class OpenWorkers(OpenDevices, Generic[Workers_co]):
    """Open workers with torch, or simulated ones, on the devices of the backend `name`.

    `worlds` are all ranks of a run with overlap, or those of each arm of a replay. `span_seconds` is how long a load
    runs: in a trial with overlap collective and compute each, in a replay at least. `traces`: loads can be traced.
    """

    name: str
    worlds: tuple[Workers_co, ...]
    devices: tuple[Device, ...]
    span_seconds: float
    traces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersRequest(ABC):
    """What is asked of any measurement by torch's workers; `fabric` is the machine to simulate.

    `devices` are the words of --devices, `command` is the command line, `force` replaces a file.
    """

    backend: str
    trials: int
    seed: int
    command: tuple[str, ...]
    devices: str | None = None
    fabric: str | None = None
    force: bool = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What the progress bar says."""

    @abstractmethod
    def open(self) -> OpenWorkers[Any]:
        """Start the workers. Raises UsageError, MachineError, BackendError."""

    @abstractmethod
    def measure(self, opened: Any, run: Run, saved: Callable[[], None], progress: Callable[[int, int], None]) -> None:
        """Measure all of it into `run`, and call `saved` after each step, which may save it.

        Raises MachineError, BackendError, DataCorruption.
        """

    @abstractmethod
    def begun_run(self, opened: OpenWorkers[Any]) -> Run:
        """Return the run that it begins, with nothing measured. Raises UsageError if the devices do not suit it."""

    def begun(self, opened: OpenWorkers[Any], kind: str, **settings: Any) -> Run:
        """Return the run that the request begins, with nothing measured; `settings` are its further settings."""
        own = Settings(
            redop="sum",
            trials=self.trials,
            seed=self.seed,
            command=self.command,
            environment=dict(opened.environment),
            kind=kind,
            devices=device_words(self.devices),
            fabric=self.fabric or "",
            **settings,
        )
        return new_run(opened.name, opened.devices, opened, own)


class WorkerSession(OpenSession):
    """A request on workers with torch, one for each device."""

    def __init__(self, request: WorkersRequest, path: Path | None, notices: Notices = SILENT) -> None:
        self._request = request
        super().__init__(path, notices, request.title, force=request.force)

    def _begin(self, stack: ExitStack) -> Run:
        self._opened = opened = self._request.open()
        stack.callback(opened.close)
        return self._request.begun_run(opened)

    def _measure(self, progress: Callable[[int, int], None]) -> None:
        self._request.measure(self._opened, self.run, self._writer.keep, progress)


class TorchWorld(TorchWorkers):
    """All ranks of one kind of worker, which `module` is: rank r has the device at position r."""

    module: str

    def __init__(
        self,
        backend: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start a worker for each device and return at once.

        `backend` is cuda or host; `devices` are GPUs' numbers among the `visible` UUIDs, or cores. `settings` are the
        workers' variables in addition to ours.
        """
        environment = {**worker_environment(), **(settings or {})}
        if visible:
            environment[device_names.NAME] = ",".join(visible)
        if capabilities(backend).cores:
            environment["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a worker's one core
        super().__init__(self.module, backend, dict(enumerate(devices)), len(devices), environment)


# From a backend's name to open workers, with the facts about their machine.

World = TypeVar("World", bound=TorchWorld)
# Starts one world: on a backend, on these numbers of GPUs or cores, of these visible GPUs.
Starter = Callable[[str, Sequence[int], Sequence[str]], World]


def open_worlds(
    request: WorkersRequest,
    command: str,
    starters: Sequence[Starter[TorchWorld]],
    simulate: Callable[[Fabric, SimBackend, int], Any],
    spans: tuple[float, float],
    chosen: Choice = tuple,
) -> OpenWorkers[Any]:
    """Start a world by each starter on the request's devices, or simulate one; `chosen` may drop some of these.

    `spans` are the seconds of a load on GPUs and on cores. A world whose ranks do not meet ends all worlds. Raises
    UsageError, of variables that spoil figures of this `command`, too, MachineError, BackendError.
    """
    name, wanted = request.backend, request.devices
    if capabilities(name).simulated:
        return _simulated(request, simulate, spans[0], chosen)
    if not capabilities(name).cores:
        variables.refuse(command)
    with ExitStack() as stack:
        worlds: list[TorchWorld] = []
        if capabilities(name).cores:
            devices = chosen(factory.choose_devices(kernel.core_devices(), wanted))
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
            paths=nvml.paths(devices) if nvml else kernel.core_paths(devices),
            health=gpus.health if gpus else tuple,
            flags=gpus.flags if gpus else lambda _positions: (),
            environment=variables.recorded(torch=True),
            close=stack.pop_all().close,
        )


# Simulated workers: a fabric says how long torch's workers would take for a load.


def _simulated(
    request: WorkersRequest,
    simulate: Callable[[Fabric, SimBackend, int], Any],
    span_seconds: float,
    chosen: Choice,
) -> OpenWorkers[Any]:
    fabric = factory.simulated(request.fabric)
    backend = factory.simulated_backend(fabric, request.devices, request.seed, chosen)
    world = simulate(fabric, backend, request.seed)
    return OpenWorkers(
        SIM.name,
        (world,),
        backend.devices(),
        span_seconds,
        machine=backend.machine(),
        paths=backend.paths(),
        health=backend.health,
        flags=backend.flags,
        environment=backend.environment(),
        clock=world.clock,
    )
