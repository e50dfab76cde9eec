"""A recorded step, parent side: one worker process with torch for each GPU, or CPU core, and a world for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collbench.analysis.job_schedule import Schedule
from collbench.backends.replay_protocol import (
    Prepare,
    Prepared,
    ReplayLoad,
    ReplayOpened,
    ReplayTimes,
    Verified,
    Verify,
)
from collbench.backends.torch_world import Choice, Starter, TorchWorld, open_worlds
from collbench.model.capabilities import HOST
from collbench.model.errors import MachineError
from collbench.model.operations import Registration
from collbench.model.run import Pauses

# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_MULTIPLE, _LOAD_S = 20.0, 60.0

# What turns P2P off, in the workers of that arm alone [NCCL's documentation, environment variables].
SETTINGS = {"p2p": {"NCCL_P2P_DISABLE": "1"}}


class ReplayWorld(TorchWorld):
    """All ranks of one arm; `settings` are its variables."""

    def __init__(
        self,
        kind: str,
        places: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        super().__init__("replay", kind, places, visible, settings)

    def prepare(self, schedule: Schedule, pauses: Pauses, registration: Registration) -> None:
        """Make groups and buffers. Raises MachineError where they do not fit, BackendError."""
        requests = [
            Prepare(schedule.groups, units, rest, pauses, registration)
            for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
        ]
        for rank, reply in enumerate(self._each_asked(requests, _PREPARE_S)):
            if isinstance(reply, Prepared) and reply.problem:
                raise MachineError(f"rank {rank} cannot prepare the step: {reply.problem}")

    def verify(self) -> int | None:
        """Run a step, and return how many elements were wrong on all ranks. Raises BackendError."""
        found = [reply.wrong for reply in self._asked(Verify(), _VERIFY_S) if isinstance(reply, Verified)]
        known = [wrong for wrong in found if wrong is not None]
        return sum(known) if known else None

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        timeout = _LOAD_S + _MULTIPLE * expected_s
        return tuple(reply for reply in self._asked(load, timeout) if isinstance(reply, ReplayTimes))


# How long a load runs at least, in seconds, in whole steps.
_GPU_SPAN_S, _CORE_SPAN_S = 0.05, 0.1


def open_replay(name: str, wanted: str | None, arms: Sequence[tuple[str, ...]], chosen: Choice) -> ReplayOpened:
    """Open a world for each arm, which lists what NCCL goes without, on the devices that are `chosen` of those wanted.

    Raises UsageError, MachineError, BackendError.
    """
    found = open_worlds(name, wanted, [_starter(arm) for arm in arms], chosen)
    return ReplayOpened(
        name,
        found.worlds,
        found.devices,
        found.machine,
        found.paths,
        _CORE_SPAN_S if name == HOST.name else _GPU_SPAN_S,
        environment=found.environment,
        health=found.health,
        flags=found.flags,
        close=found.close,
    )


def _starter(arm: tuple[str, ...]) -> Starter[ReplayWorld]:
    settings = {name: value for word in arm for name, value in SETTINGS[word].items()}
    return lambda kind, places, visible: ReplayWorld(kind, places, visible, settings)
