"""Workers with torch for overlap and replay, one process for each GPU or CPU core, and what is known of their machine.

The parent never loads torch. Workers end with `close()`, with any failure, or when this process is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

from collbench.analysis.job_schedule import Schedule
from collbench.backends import factory
from collbench.backends.factory import Choice
from collbench.backends.overlap_protocol import Done, Load, OverlapOpened, OverlapPoint, RankTimes, Warm
from collbench.backends.protocol import OpenWorkers
from collbench.backends.replay_protocol import (
    Prepare,
    Prepared,
    ReplayArm,
    ReplayLoad,
    ReplayOpened,
    ReplayTimes,
    Verified,
    Verify,
)
from collbench.backends.torch_process import Joined, TorchWorkers, need_torch, worker_environment
from collbench.machine import cuda_variables, numa, visible_devices
from collbench.machine.nvml import Nvml
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, MachineError
from collbench.model.operations import Registration
from collbench.model.run import Pauses


class TorchWorld(TorchWorkers):
    """All ranks of one kind of worker: rank r has the device at position r."""

    def __init__(
        self,
        command: str,
        backend: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start `collbench.backends.COMMAND_worker` for each device and return at once.

        `backend` is cuda or host; `devices` are GPUs' numbers among the `visible` UUIDs, or cores. `settings` are the
        workers' variables in addition to ours.
        """
        need_torch(f"{command} computes with")
        environment = {**worker_environment(), **(settings or {})}
        if visible:
            environment[visible_devices.NAME] = ",".join(visible)
        if capabilities(backend).cores:
            environment["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a worker's one core
        super().__init__(command, backend, dict(enumerate(devices)), len(devices), environment)


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
    *,
    independent: bool = False,
) -> OpenWorkers[World]:
    """Start a world by each starter on the wanted devices; `chosen` may drop some of these.

    `spans` are the seconds of a load on GPUs and on cores. A world whose ranks do not meet ends all worlds, unless they
    are `independent`: then it fails when it is asked, and only if none meets are they all given up. Raises UsageError,
    MachineError, BackendError.
    """
    with ExitStack() as stack:
        worlds: list[World] = []
        if capabilities(name).cores:
            devices = chosen(factory.choose_devices(numa.devices(), wanted))
            numbers, visible = [device.index for device in devices], list[str]()
            nvml = gpus = None
        else:
            nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
            devices = chosen(factory.choose_devices(factory.may_use(nvml), wanted))
            numbers, visible = [*range(len(devices))], [device.uuid for device in devices]
            gpus = factory.ObservedGpus(nvml, devices, lambda: [pid for world in worlds for pid in world.process_ids])
        for start in starters:
            world = start(name, numbers, visible)
            stack.callback(world.close)
            worlds.append(world)
        loaded = _joined(worlds, independent)
        return OpenWorkers(
            name,
            tuple(worlds),
            devices,
            spans[gpus is None],
            machine=replace(factory.here(nvml), nccl=loaded.nccl, nccl_path=loaded.nccl_path),
            paths=nvml.paths(devices) if nvml else numa.paths(devices),
            health=gpus.health if gpus else tuple,
            flags=gpus.flags if gpus else lambda _positions: (),
            environment=cuda_variables.recorded(torch=True),
            close=stack.pop_all().close,
        )


def _joined(worlds: Sequence[TorchWorld], independent: bool) -> Joined:
    """Wait until the ranks of each world have met; return what the first that did has loaded. Raises BackendError."""
    loaded: list[Joined] = []
    lost: BackendError | None = None
    for world in worlds:
        try:
            loaded.append(world.join())
        except BackendError as error:
            if not independent:
                raise
            lost = error
            world.give_up(error)
    if lost is not None and not loaded:
        raise lost
    return loaded[0]


# Overlap: a collective while compute runs.

# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# A load lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld(TorchWorld):
    """All ranks of overlap. `load_s` is how long a load may take, in seconds."""

    def __init__(self, kind: str, devices: Sequence[int], visible: Sequence[str] = (), load_s: float = _LOAD_S) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        super().__init__("overlap", kind, devices, visible)
        self._load_s = load_s

    def allocate(self, point: OverlapPoint) -> None:
        """Make room for a data point. Raises MachineError if it does not fit, BackendError."""
        for rank, reply in enumerate(self.ask(point, _WARM_S)):
            if isinstance(reply, Done) and reply.problem:
                raise MachineError(f"rank {rank} has no room for {point.operation}: {reply.problem}")

    def warm(self) -> None:
        """Run both once, untimed. Raises BackendError."""
        self.ask(Warm(), _WARM_S)

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(reply for reply in self.ask(load, self._load_s) if isinstance(reply, RankTimes))


# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_OVERLAP_SPANS_S = 0.025, 0.05


def open_overlap(name: str, wanted: str | None) -> OverlapOpened:
    """Open the cuda or host backend on the devices that are wanted. Raises UsageError, MachineError, BackendError."""
    if not capabilities(name).cores:
        cuda_variables.refuse(cuda_variables.Use.OVERLAP)
    return open_worlds(name, wanted, [OverlapWorld], _OVERLAP_SPANS_S)


# Replay: a recorded step, a world for each arm.

# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_REPLAY_MULTIPLE, _REPLAY_LOAD_S = 20.0, 60.0


class ReplayWorld(TorchWorld):
    """All ranks of one arm; `settings` are its variables, `members` the positions that failures name, () for ranks."""

    def __init__(
        self,
        kind: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        members: tuple[int, ...] = (),
    ) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        super().__init__("replay", kind, devices, visible, settings)
        self._members = members

    def prepare(self, schedule: Schedule, pauses: Pauses, registration: Registration) -> None:
        """Make groups and buffers. Raises MachineError if they do not fit, BackendError."""
        requests = [
            Prepare(schedule.groups, units, rest, pauses, registration)
            for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
        ]
        for rank, reply in enumerate(self.ask_each(requests, _PREPARE_S)):
            if isinstance(reply, Prepared) and reply.problem:
                raise MachineError(f"rank {rank} cannot prepare the step: {reply.problem}")

    def verify(self) -> int | None:
        """Run a step, and return how many elements were wrong on all ranks. Raises BackendError."""
        counts = [reply.wrong for reply in self.ask(Verify(), _VERIFY_S) if isinstance(reply, Verified)]
        known = [wrong for wrong in counts if wrong is not None]
        return sum(known) if known else None

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        timeout = _REPLAY_LOAD_S + _REPLAY_MULTIPLE * expected_s
        return tuple(reply for reply in self.ask(load, timeout) if isinstance(reply, ReplayTimes))

    def ask_each(self, requests: Sequence[object], timeout_s: float) -> list[Any]:
        """Ask as TorchWorld does; failures name devices by their positions in the run, not by ranks."""
        try:
            return super().ask_each(requests, timeout_s)
        except BackendError as error:
            if not self._members:
                raise
            where = tuple(self._members[rank] for rank in error.failure.devices)
            raise BackendError(str(error), failure=replace(error.failure, devices=where)) from error


# How long a load runs at least, in seconds, in whole steps.
_REPLAY_SPANS_S = 0.05, 0.1


def open_replay(
    name: str, wanted: str | None, arms: Sequence[ReplayArm], chosen: Choice, *, independent: bool = False
) -> ReplayOpened:
    """Open a world for each arm on its places among the devices that are `chosen` of those wanted.

    If arms are `independent`, one whose workers do not start fails when it is asked, and the others can be used.
    Raises UsageError, MachineError, BackendError.
    """
    if not capabilities(name).cores:
        cuda_variables.refuse(cuda_variables.Use.REPLAY)
    starters = [_starter(arm) for arm in arms]
    opened = open_worlds(name, wanted, starters, _REPLAY_SPANS_S, chosen, independent=independent)
    return replace(opened, traces=not capabilities(name).cores)


def _starter(arm: ReplayArm) -> Starter[ReplayWorld]:
    def started(kind: str, devices: Sequence[int], visible: Sequence[str]) -> ReplayWorld:
        own = [devices[position] for position in arm.members(len(devices))]
        return ReplayWorld(kind, own, visible, arm.settings, arm.places)

    return started
