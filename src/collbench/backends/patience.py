"""How long silence may last before it is a hang: from the bytes that a step moves, or from its own earlier times."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.backends.protocol import Step
from collbench.model import Cell

# A message costs at least this many seconds on the slowest path that we know: small collectives over sockets.
_SECONDS_A_MESSAGE = 1e-4
# Ungraphed launches that warm up the timed ones, generously (nccl-tests: 5).
_LAUNCH_WARMUP = 10
# A step that took this much longer than the slowest of its kind before would be no measurement anyway.
_MULTIPLE = 20


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait, and the slowest rates in B/s that a message may have.

    Staged PCIe gen 3 gives 3 GB/s, shared by several pairs a part of it; between hosts 1 Gbit Ethernet 0.12 GB/s.
    Opening may start the driver on every GPU, a second each without nvidia-persistenced. Starting NCCL takes 0.7 s on
    4 × H200 [METHOD.md §3], and much longer where it first looks for networks. A worker's first step loads code.
    """

    opening_s: float = 120.0
    communicators_s: float = 60.0
    first_s: float = 20.0
    floor_s: float = 5.0
    slowest_rate: float = 1e9
    slowest_network: float = 0.1e9

    def for_step(self, step: Step, known_s: float | None, *, network: bool) -> float:
        """Return the seconds for a step; `known_s` is the longest that its like took before, None at first."""
        rate = self.slowest_network if network else self.slowest_rate
        return self.floor_s + (_expected_s(step, rate) if known_s is None else _MULTIPLE * known_s)


def _expected_s(step: Step, rate: float) -> float:
    messages = step.iterations * (step.warmup + step.blocks)
    messages += step.launches + _LAUNCH_WARMUP if step.launches else 0
    cells = (Cell(step.operation, members, step.size_bytes, step.variant) for members in step.groups)
    ranks = len(step.groups[0]) if step.operation.is_collective else 1  # each of them sends the message about once
    return messages * (_SECONDS_A_MESSAGE + sum(cell.moved_bytes for cell in cells) * ranks / rate)
