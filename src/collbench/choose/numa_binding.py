"""On which NUMA node a GPU's process belongs: by measurement, and by the labels (docs/method/measuring.md 11)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from collbench.judge.stats import log_rates, most_measured
from collbench.judge.tiers import Estimate, differs, estimates_of, ties, tolerance
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Device, Measurement, Run

# The copy engine shows the link (docs/method/measuring.md 2); a job loads batches one way and offloads the other.
_DIRECTIONS = (Operation.H2D_CE, Operation.D2H_CE)

DeviceNode = tuple[int, ...]  # a device's position, and a NUMA node


@dataclass(frozen=True, slots=True)
class NodeRate:
    """Copies between a device and one NUMA node's memory: GB/s of the slower direction."""

    node: int
    gbs: float


@dataclass(frozen=True, slots=True)
class Binding:
    """One device's NUMA nodes by measurement, `rates` fastest first, and `labelled`, the one that NVML reports.

    `best` are the nodes than which no other is significantly faster, fastest first; a single one if the measurement
    decides. `tied`: all nodes are equal. `agrees`: NVML's node is the only best one (True), it is significantly slower
    (False), or neither (None).
    """

    member: int
    rates: tuple[NodeRate, ...]
    best: tuple[int, ...]
    tied: bool
    labelled: int | None
    agrees: bool | None


def bindings(run: Run) -> tuple[Binding, ...]:
    """Return what a run's host copies show for each device; none without such copies on at least two NUMA nodes.

    A device is left out where a node or a direction was not measured.
    """
    copies = {m.point: m for m in run.measured(Variant.HOST) if m.point.operation in _DIRECTIONS}
    copies = {point: one for point, one in copies.items() if point.numa_node is not None}
    size = most_measured(Counter(point.size_bytes for point in copies)) or 0
    at_size = {point: one for point, one in copies.items() if point.size_bytes == size}
    nodes = tuple(sorted({point.numa_node for point in at_size if point.numa_node is not None}))
    if len(nodes) < 2:
        return ()
    slower = _slower(at_size)
    delta = tolerance(size)
    made = []
    for member, device in enumerate(run.devices):
        by_node = {node: slower[member, node] for node in nodes if (member, node) in slower}
        if len(by_node) == len(nodes):
            made.append(_binding(device, member, by_node, len(slower), delta))
    return tuple(made)


def _slower(measurements: Mapping[DataPoint, Measurement]) -> dict[DeviceNode, Estimate]:
    """Return the slower direction's estimate for each device and node that has both; σ̂ is pooled within a direction."""
    measured = [
        {(c.members[0], c.numa_node or 0): m for c, m in measurements.items() if c.operation is operation}
        for operation in _DIRECTIONS
    ]
    both = measured[0].keys() & measured[1].keys()
    made = []
    for operation, points in zip(_DIRECTIONS, measured, strict=True):
        logs: dict[DeviceNode, list[float]] = {key: log_rates(points[key]) for key in both}
        made.append(estimates_of(logs, dict.fromkeys(logs, operation.value)))
    return {
        key: min((estimated[key] for estimated in made), key=lambda estimate: estimate.middle) for key in sorted(both)
    }


def _binding(device: Device, member: int, by_node: Mapping[int, Estimate], count: int, delta: float) -> Binding:
    """Return one device's binding; `count` estimates of the machine are judged at once."""
    order = sorted(by_node, key=lambda node: (-by_node[node].middle, node))
    top = by_node[order[0]]
    best = tuple(node for node in order if not differs(top, by_node[node], count, delta))
    tied = all(ties(top, by_node[node], delta) for node in order)
    rates = tuple(NodeRate(node, math.exp(by_node[node].middle)) for node in order)
    labelled = device.numa_node
    agrees = None
    if best == (labelled,):
        agrees = True
    elif labelled in by_node and labelled not in best:
        agrees = False
    return Binding(member, rates, best, tied, labelled, agrees)
