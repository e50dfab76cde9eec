"""Pairs of nodes on a backend whose devices name their hosts: each pair one communicator of all its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collbench.backends.protocol import Backend, Step, Timing, time_step
from collbench.errors import StepFailed, UsageError
from collbench.measure.node_time import BLOCKS, VISITS, WARMUP, iterations
from collbench.measure.rounds import Pair, pair_rounds
from collbench.model import Cell, Device, Measurement, Run, Sample, StopReason
from collbench.operations import Operation
from collbench.units import algbw, busbw_factor, format_size

Members = tuple[int, ...]


class NodePairs:
    """Measures pairs of the nodes `names`, by place, into `run`; `ranks` are each node's. `lost` says what failed."""

    def __init__(self, backend: Backend, run: Run, size_bytes: int) -> None:
        """Make room for the messages. Raises UsageError where they do not fit, or where there is one host only."""
        self._backend, self._run, self._size_bytes = backend, run, size_bytes
        nodes = by_node(backend.devices())
        self.names, self.ranks = tuple(nodes), tuple(nodes.values())
        self.lost: list[str] = []
        self._found: dict[Cell, Measurement] = {}
        room = backend.capacity_bytes()
        if size_bytes > room:
            raise UsageError(
                f"--size {format_size(size_bytes)} does not fit: the fullest device has room for {format_size(room)}"
            )
        backend.reserve(size_bytes)

    def measure(self, pairs: Sequence[Pair], one_way: bool) -> list[float | None]:
        """Return the busbw in GB/s of each pair of nodes, all at once; None where one failed.

        Both ways is an all-reduce of both nodes' ranks, one way a broadcast from the first node's first rank.
        """
        groups = tuple(self.ranks[a] + self.ranks[b] for a, b in pairs)
        operation = Operation.BROADCAST if one_way else Operation.ALLREDUCE
        return self._visit(Step(operation, groups, self._size_bytes, iterations(self._size_bytes), BLOCKS, WARMUP))

    def measure_inside(self) -> None:
        """Measure every pair of ranks within the nodes, all nodes at once: what the choice of GPUs rests on."""
        for turn in zip(*(_rounds_of(len(ranks), max(map(len, self.ranks))) for ranks in self.ranks), strict=True):
            groups = tuple((own[a], own[b]) for own, pairs in zip(self.ranks, turn, strict=True) for a, b in pairs)
            if groups:
                self._visit(
                    Step(Operation.ALLREDUCE, groups, self._size_bytes, iterations(self._size_bytes), BLOCKS, WARMUP)
                )

    def _visit(self, step: Step) -> list[float | None]:
        """Visit the step's groups together; where that fails each alone, to find out which one it is."""
        try:
            timings = self._timed(step)
        except StepFailed as error:
            if len(step.groups) > 1:
                return [rate for group in step.groups for rate in self._visit(replace(step, groups=(group,)))]
            devices = self._backend.devices()
            hosts = dict.fromkeys(devices[rank].host for rank in step.groups[0])
            self.lost.append(f"{' and '.join(hosts)}: {error}")
            found = self._measurement(Cell(step.operation, step.groups[0], step.size_bytes))
            found.stop, found.failure, found.failure_kind = StopReason.FAILED, str(error), error.kind
            return [None]
        return [
            self._record(step, group, [t.seconds[place] for t in timings]) for place, group in enumerate(step.groups)
        ]

    def _timed(self, step: Step) -> list[Timing]:
        return [time_step(self._backend, replace(step, warmup=0 if visit else WARMUP)) for visit in range(VISITS)]

    def _record(self, step: Step, group: Members, visits: Sequence[tuple[float, ...]]) -> float:
        """Keep the samples, and return busbw of the median visit."""
        found = self._measurement(Cell(step.operation, group, step.size_bytes))
        concurrent = len(step.groups) > 1
        found.samples += [Sample(seconds, step.iterations, concurrent) for seconds in visits]
        middle = float(np.median([np.median(seconds) for seconds in visits]))
        return algbw(step.size_bytes, middle) * busbw_factor(step.operation, len(group))

    def _measurement(self, cell: Cell) -> Measurement:
        if cell not in self._found:
            self._found[cell] = Measurement(cell)
            self._run.measurements.append(self._found[cell])
        return self._found[cell]


def by_node(devices: Sequence[Device]) -> dict[str, Members]:
    """Return each host's positions, hosts in the order of the ranks. Raises UsageError where there is only one."""
    nodes: dict[str, list[int]] = defaultdict(list)
    for position, device in enumerate(devices):
        nodes[device.host].append(position)
    if len(nodes) < 2:
        raise UsageError("all ranks are on one host, which 'collbench pairs' measures: start ranks on several nodes")
    return {host: tuple(positions) for host, positions in nodes.items()}


def _rounds_of(count: int, most: int) -> list[list[Pair]]:
    """Return a node's rounds, empty ones in the end where other nodes have more ranks."""
    rounds = pair_rounds(count) if count > 1 else []
    return rounds + [[] for _ in range(most - 1 + most % 2 - len(rounds))]
