"""What to measure, as steps for a backend: every cell once a pass, disjoint pairs together where that is trusted."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collbench.backends.protocol import Step
from collbench.dtypes import whole_elements
from collbench.measure.rounds import pair_rounds, relabelled
from collbench.model import Cell, Operation

Members = tuple[int, ...]

# From this size on a block is long enough to warm itself: no untimed block before it. Smaller ones get one at first.
_SELF_WARMING = 16 * 2**20
# METHOD.md §2.2: the gated queue stays shallow. 20 is also what nccl-tests takes by default (-n).
_MOST_ITERATIONS = 20
# METHOD.md §2.6: replicate by visits; two blocks in each of three visits give the six that an interval needs.
BLOCKS_A_VISIT = 2
# A chain of collectives ends when its last rank does, later than the root of a broadcast: in a chain of 2 × 64 MiB on
# 4 × H200 that drain was 15 % of the time, so chains are longer than blocks of copies, and never single collectives.
_CHAIN_BLOCKS = 4
_FEWEST_IN_CHAIN = 2
_FEWEST_OF_MANY_RANKS = 4  # their pipeline drains longer than a pair's


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a sweep. `groups` are what each operation runs on: directed links, pairs, or one whole set.

    `block_bytes` is how much a timed block moves: enough for the clock, little enough for many blocks. `launch_loop`
    also times the ungraphed launches. `isolated` lists (operation, members) that must never run beside others.
    """

    devices: int
    groups: dict[Operation, tuple[Members, ...]]
    sizes: dict[Operation, tuple[int, ...]]
    dtype: str
    redop: str
    block_bytes: int
    launch_loop: bool = False
    root: int = 0
    isolated: frozenset[tuple[Operation, Members]] = frozenset()

    def cells(self) -> Iterable[Cell]:
        """Return every cell, in a stable order."""
        for operation, groups in self.groups.items():
            for members in groups:
                for size in self.sizes[operation]:
                    yield Cell(operation, members, size)

    def step(self, operation: Operation, groups: Sequence[Members], size: int) -> Step:
        """Return the step that visits these cells together."""
        iterations = self._iterations(operation, len(groups[0]), size)
        return Step(
            operation,
            tuple(groups),
            size,
            iterations,
            BLOCKS_A_VISIT,
            warmup=int(size < _SELF_WARMING),
            dtype=self.dtype,
            redop=self.redop,
            root=self.root,
        )

    def _iterations(self, operation: Operation, world_size: int, size: int) -> int:
        if operation.is_copy:
            return max(1, min(_MOST_ITERATIONS, -(-self.block_bytes // size)))
        volume = self.block_bytes * _CHAIN_BLOCKS
        fewest = _FEWEST_IN_CHAIN if world_size == 2 else _FEWEST_OF_MANY_RANKS
        return max(fewest, min(_MOST_ITERATIONS, -(-volume // size)))

    def decides(self, cell: Cell) -> bool:
        """Return whether the choice of devices rests on it: the largest all-reduce, or without any the largest copy."""
        deciding = Operation.ALLREDUCE if Operation.ALLREDUCE in self.groups else next(iter(self.groups))
        return cell.operation is deciding and cell.size_bytes == self.sizes[deciding][-1]

    def passes(self, rng: random.Random, wanted: set[Cell], *, first: bool = True) -> list[Step]:
        """Return one pass: each wanted cell in exactly one step, steps in random order over the whole plan.

        The first pass alone has untimed blocks, which warm a cell up, and launch loops.
        """
        steps = []
        for operation in self.groups:
            loop = self.launch_loop and not operation.is_copy
            for together in self.rounds(operation, rng):
                for size in self.sizes[operation]:
                    groups = [m for m in together if Cell(operation, m, size) in wanted]
                    if groups:
                        step = self.step(operation, groups, size)
                        steps.append(replace(step, launch_loop=loop) if first else replace(step, warmup=0))
        rng.shuffle(steps)
        return steps

    def rounds(self, operation: Operation, rng: random.Random) -> list[list[Members]]:
        """Return the operation's groups, disjoint ones together; isolated ones alone."""
        planned = set(self.groups[operation])
        rounds: list[list[Members]] = []
        for pairs in relabelled(pair_rounds(self.devices), self.devices, rng):
            rounds.append([pair for pair in pairs if pair in planned])
            rounds.append([(b, a) for a, b in pairs if (b, a) in planned])
        rounds.extend([members] for members in planned if len(members) > 2)
        return [part for together in rounds for part in self._split(operation, together)]

    def _split(self, operation: Operation, together: list[Members]) -> list[list[Members]]:
        alone = [members for members in together if (operation, members) in self.isolated]
        rest = [members for members in together if (operation, members) not in self.isolated]
        return [[members] for members in alone] + ([rest] if rest else [])


def collective_sizes(sizes: Iterable[int], dtype: str) -> tuple[int, ...]:
    """Return the sizes that hold at least one element, rounded down to whole ones, distinct and ascending."""
    rounded = {whole_elements(size, dtype) for size in sizes}
    return tuple(sorted(rounded - {0}))


def directed_links(devices: int) -> tuple[Members, ...]:
    """Return every (src, dst) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(devices) if a != b)


def unordered_pairs(devices: int) -> tuple[Members, ...]:
    """Return every (low, high) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(a + 1, devices))
