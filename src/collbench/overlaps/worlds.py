"""The workers of an overlap, one process for each GPU or CPU core."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.machine import variables
from collbench.measurement.backends.torch_process import need_torch
from collbench.measurement.backends.torch_world import TorchWorld, open_worlds
from collbench.model.capabilities import capabilities
from collbench.overlaps.protocol import Load, OverlapOpened, RankTimes
from collbench.overlaps.results import Overlap

# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# A load lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld(TorchWorld):
    """All ranks of overlap. `load_s` is how long a load may take, in seconds."""

    def __init__(self, kind: str, devices: Sequence[int], visible: Sequence[str] = (), load_s: float = _LOAD_S) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        need_torch("overlap computes with")
        super().__init__("overlaps.worker", kind, devices, visible)
        self._load_s = load_s

    def allocate(self, point: Overlap) -> None:
        """Make room for a data point. Raises MachineError if it does not fit, BackendError."""
        self.ask(_WARM_S, "allocate", point)

    def warm(self) -> None:
        """Run both once, untimed. Raises BackendError."""
        self.ask(_WARM_S, "warm")

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(self.ask(self._load_s, "run", load))


# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_SPANS_S = 0.025, 0.05


def open_overlap(name: str, wanted: str | None) -> OverlapOpened:
    """Open the cuda or host backend on the devices that are wanted. Raises UsageError, MachineError, BackendError."""
    if not capabilities(name).cores:
        variables.refuse(variables.Use.OVERLAP)
    return open_worlds(name, wanted, [OverlapWorld], _SPANS_S)
