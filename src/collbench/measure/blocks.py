"""How much a timed block moves: the longer, the less of it is its start and end; as long as the time allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collbench.measure.effort import Effort
from collbench.measure.iterations import iterations
from collbench.operations import Operation, Work

# Verification, launches and extra visits need their share of the time too.
_SHARE = 0.45
_BLOCKS_A_VISIT = 2


def block_bytes(
    groups: Mapping[Work, Sequence[tuple[int, ...]]], sizes: Mapping[Work, Sequence[int]], devices: int, effort: Effort
) -> int:
    """Return the longest block, from the effort's shortest by doubling, with which the plan's visits fit its time."""
    length = effort.block_bytes
    while length * 2 <= effort.longest_block_bytes:
        seconds = sum(
            _seconds(work, found, sizes[work], devices, length * 2, effort.rate) for work, found in groups.items()
        )
        if seconds * effort.screening * _BLOCKS_A_VISIT > _SHARE * effort.budget_seconds:
            break
        length *= 2
    return length


def _seconds(
    work: Work, groups: Sequence[tuple[int, ...]], sizes: Sequence[int], devices: int, length: int, rate: float
) -> float:
    """Return about how long one block of every cell takes, disjoint pairs at once."""
    if work.operation is Operation.CHASE:
        return 0.0
    members = len(groups[0])
    at_once = max(1, devices // members) if members == 2 else 1
    moved = sum(size * iterations(work, members, size, length) for size in sizes)
    return moved / rate * len(groups) / at_once
