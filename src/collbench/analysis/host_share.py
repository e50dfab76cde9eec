"""What a host link keeps while others are busy, over what it reaches isolated (docs/method.md 3.8). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.analysis.stats import summarize
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Run


@dataclass(frozen=True, slots=True)
class HostShare:
    """One device's rate in GB/s by host copies, one direction, beside what its variant names; `device` is a position.

    `isolated_gbs` is the same copy's with nothing else running, None where that was not measured.
    """

    device: int
    work: Work
    size_bytes: int
    gbs: float
    isolated_gbs: float | None

    @property
    def share(self) -> float | None:
        """What is left of the isolated rate."""
        return None if self.isolated_gbs is None else self.gbs / self.isolated_gbs


def host_shares(run: Run) -> tuple[HostShare, ...]:
    """Return each device's shares at the largest size of each work, in the model's order.

    Where all devices copy at once, each with its own NUMA node's memory, each is compared with that node's.
    """
    rates = {found.point: summarize(found).busbw for found in run.measurements if found.samples}
    nodes = {point.numa_node for point in rates if point.variant is Variant.HOST}
    largest: dict[Work, int] = {}
    for point in rates:
        largest[point.work] = max(point.size_bytes, largest.get(point.work, 0))
    made = []
    for point, gbs in rates.items():
        if not point.variant.covered or point.size_bytes != largest[point.work]:
            continue
        device = point.members[0]
        node = point.numa_node
        if node not in nodes:
            node = run.devices[device].numa_node
        isolated = DataPoint(point.operation, (device,), point.size_bytes, Variant.HOST, node)
        made.append(HostShare(device, point.work, point.size_bytes, gbs, rates.get(isolated)))
    return tuple(sorted(made, key=_in_order))


def _in_order(one: HostShare) -> tuple[int, int, int, int]:
    node = -1 if one.work.numa_node is None else one.work.numa_node
    operations, variants = list(Operation), list(Variant)
    return node, operations.index(one.work.operation), one.device, variants.index(one.work.variant)


def share_of_all(shares: Sequence[HostShare], work: Work) -> float | None:
    """Return what all devices together keep of the sum of their isolated rates; None where one of these is unknown."""
    ours = [one for one in shares if one.work == work]
    isolated = [one.isolated_gbs for one in ours if one.isolated_gbs is not None]
    if not ours or len(isolated) < len(ours):
        return None
    return sum(one.gbs for one in ours) / sum(isolated)
