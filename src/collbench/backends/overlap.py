"""A collective beside compute, parent side: one worker process with torch for each GPU, or CPU core."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.backends.overlap_protocol import Done, Load, OverlapOpened, OverlapPoint, RankTimes, Warm
from collbench.backends.torch_world import TorchWorld, open_worlds
from collbench.model.capabilities import HOST
from collbench.model.errors import MachineError

# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# A load lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld(TorchWorld):
    """All ranks of overlap. `load_s` is how long a load may take, in seconds."""

    def __init__(self, kind: str, places: Sequence[int], visible: Sequence[str] = (), load_s: float = _LOAD_S) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        super().__init__("overlap", kind, places, visible)
        self._load_s = load_s

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


# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_GPU_SPAN_S, _CORE_SPAN_S = 0.025, 0.05


def open_overlap(name: str, wanted: str | None) -> OverlapOpened:
    """Open the cuda or host backend on the devices that are wanted. Raises UsageError, MachineError, BackendError."""
    found = open_worlds(name, wanted, [OverlapWorld])
    return OverlapOpened(
        name,
        found.worlds[0],
        found.devices,
        found.machine,
        found.paths,
        _CORE_SPAN_S if name == HOST.name else _GPU_SPAN_S,
        environment=found.environment,
        health=found.health,
        flags=found.flags,
        close=found.close,
    )
