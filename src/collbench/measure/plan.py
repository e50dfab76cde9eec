"""What to measure, as steps for a backend: every cell once a pass, disjoint groups together where that is trusted."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collbench.backends.protocol import Step
from collbench.measure.iterations import asked_iterations, iterations
from collbench.measure.rounds import pair_rounds, relabelled
from collbench.model import Cell
from collbench.operations import Operation, Variant, Work

Members = tuple[int, ...]

# From this size on no untimed block comes before the timed ones: the backend wakes links and kernels for less time.
_SELF_WARMING = 16 * 2**20
# METHOD.md §2.6: replicate by visits; two blocks in each of three visits give the six that an interval needs.
BLOCKS_A_VISIT = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a sweep. `groups` are what each work runs on: directed links, pairs, single devices, or sets.

    `block_bytes` is how much a timed block moves: enough for the clock, little enough for many blocks. `launches` is
    how many ungraphed launches are timed beside a collective. `together` runs all groups of a collective at once, as
    the user asked. `iterations` and `warmup`, where given, replace what a step would choose. `isolated` lists
    (work, members) that must never run beside others.
    """

    devices: int
    groups: dict[Work, tuple[Members, ...]]
    sizes: dict[Work, tuple[int, ...]]
    dtype: str
    redop: str
    block_bytes: int
    launches: int = 0
    root: int = 0
    together: bool = False
    iterations: int | None = None
    warmup: int | None = None
    verify: bool = True
    isolated: frozenset[tuple[Work, Members]] = frozenset()

    def cells(self) -> Iterable[Cell]:
        """Return every cell, in a stable order."""
        for work, groups in self.groups.items():
            for members in groups:
                for size in self.sizes[work]:
                    yield cell_of(work, members, size)

    def largest_bytes(self) -> int:
        """Return the room in bytes that a buffer needs: all to one puts a message of each sender side by side."""
        return max(side_by_side(work, self.devices) * sizes[-1] for work, sizes in self.sizes.items())

    def step(self, work: Work, groups: Sequence[Members], size: int) -> Step:
        """Return the step that visits these cells together."""
        warmup = int(size < _SELF_WARMING) if self.warmup is None else self.warmup
        return Step(
            work.operation,
            tuple(groups),
            size,
            asked_iterations(self.iterations)
            if self.iterations
            else iterations(work, len(groups[0]), size, self.block_bytes),
            BLOCKS_A_VISIT,
            warmup=warmup,
            dtype=self.dtype,
            redop=self.redop,
            root=self.root,
            variant=work.variant,
            verify=self.verify,
            numa_node=work.numa_node,
        )

    def decides(self, cell: Cell) -> bool:
        """Return whether the choice of devices rests on it: the largest all-reduce, or without any the largest copy."""
        allreduce = Work(Operation.ALLREDUCE)
        deciding = allreduce if allreduce in self.groups else next(iter(self.groups))
        return cell.work == deciding and cell.size_bytes == self.sizes[deciding][-1]

    def passes(self, rng: random.Random, wanted: set[Cell]) -> list[Step]:
        """Return one pass: each wanted cell in exactly one step, steps in random order over the whole plan.

        What the user wants together stays so, though one group alone may need another visit.
        """
        steps = []
        for work in self.groups:
            launches = self.launches if work.operation.is_collective else 0
            inseparable = self.together and work.operation.is_collective
            for together in self.rounds(work, rng):
                for size in self.sizes[work]:
                    groups = [m for m in together if cell_of(work, m, size) in wanted]
                    if groups:
                        groups = together if inseparable else groups
                        steps.append(replace(self.step(work, groups, size), launches=launches))
        rng.shuffle(steps)
        return steps

    def rounds(self, work: Work, rng: random.Random) -> list[list[Members]]:
        """Return the work's groups, disjoint ones together; isolated ones alone."""
        groups = self.groups[work]
        if self.together and work.operation.is_collective:
            return [list(groups)]
        if runs_alone(work):
            return [[members] for members in groups]
        planned = set(groups)
        rounds: list[list[Members]] = []
        for pairs in relabelled(pair_rounds(self.devices), self.devices, rng):
            rounds.append([pair for pair in pairs if pair in planned])
            rounds.append([(b, a) for a, b in pairs if (b, a) in planned])
        rounds.extend([members] for members in groups if len(members) != 2)
        return [part for together in rounds for part in self._split(work, together)]

    def _split(self, work: Work, together: list[Members]) -> list[list[Members]]:
        alone = [members for members in together if (work, members) in self.isolated]
        rest = [members for members in together if (work, members) not in self.isolated]
        return [[members] for members in alone] + ([rest] if rest else [])


def cell_of(work: Work, members: Members, size_bytes: int) -> Cell:
    """Return the cell of a work on these members."""
    return Cell(work.operation, members, size_bytes, work.variant, work.numa_node)


def runs_alone(work: Work) -> bool:
    """Return whether a work's groups share what they use, so that no two of them may run at once."""
    return work.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE, Variant.HOST, Variant.STAGED)


def side_by_side(work: Work, devices: int) -> int:
    """Return how many messages one buffer holds at a time, where a work runs on all of the devices."""
    return devices - 1 if work.variant is Variant.ALL_TO_ONE else 1


def directed_links(devices: int) -> tuple[Members, ...]:
    """Return every (src, dst) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(devices) if a != b)


def unordered_pairs(devices: int) -> tuple[Members, ...]:
    """Return every (low, high) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(a + 1, devices))
