"""Families: the data points of a run by operation and kind of device set, for the HTML page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from collbench.judge.diagnose.readings import Facts
from collbench.judge.tiers import Members, kind_of, work_order
from collbench.machine.theory import memory_gbs, slot
from collbench.model.capabilities import capabilities
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import Measurement, Run


@dataclass(frozen=True, slots=True)
class Family:
    """The data points of one operation on device sets of one kind: link, pair, device or group (3 ranks or more).

    `ranked` says whether they are put in tiers.
    """

    run: Run
    work: Work
    kind: str
    points: dict[tuple[int, Members], Measurement]
    ranked: bool

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes, ascending."""
        return sorted({size for size, _ in self.points})

    @property
    def sets(self) -> list[Members]:
        """The devices of each link, pair or set, ascending."""
        return sorted({devices for _, devices in self.points})

    @property
    def grid(self) -> list[list[Measurement | None]]:
        """The data point of each size and each set, None where there is none."""
        return [[self.points.get((size, devices)) for devices in self.sets] for size in self.sizes]


def families(run: Run) -> list[Family]:
    """Return the run's families in the model's order of operations, larger sets last."""
    groups: dict[tuple[Work, int], dict[tuple[int, Members], Measurement]] = defaultdict(dict)
    for measurement in run.measurements:
        work = measurement.point.work
        many = len(measurement.point.members) if work.operation.is_collective else 0
        groups[work, many][measurement.point.size_bytes, measurement.point.members] = measurement
    every_family = []
    for (work, many), points in sorted(groups.items(), key=lambda item: (work_order(item[0][0]), item[0][1])):
        devices = next(iter(points))[1]
        with_others = work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS
        kind = "device" if with_others else kind_of(work)
        kind = "group" if many > 2 else kind
        in_tiers = 1 if work.variant.endpoints is Endpoints.DEVICE else 2
        ranked = kind != "group" and len(devices) == in_tiers and not with_others
        every_family.append(Family(run, work, kind, points, ranked))
    return every_family


def limits_of(run: Run, work: Work, sets: Iterable[Members]) -> dict[Members, float]:
    """Return the theory of each set of devices in GB/s, where a single path, slot or memory limits it.

    A copy both ways has twice the path's theory, a local copy half of the memory's, because it reads and writes. More
    than two GPUs depend on rings and switches, and have none.
    """
    off_path = work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS or work.variant is Variant.STAGED
    if work.operation is Operation.CHASE or off_path:
        return {}
    facts, limits = Facts(run), dict[Members, float | None]()
    for devices in sets:
        if work.variant is Variant.LOCAL:
            memory = memory_gbs(run.devices[devices[0]].name)
            limits[devices] = None if memory is None else memory / 2
        elif len(devices) == 1 and not capabilities(run.backend).cores:
            theory = slot(run.devices[devices[0]])
            limits[devices] = None if theory is None else theory.gbs
        elif len(devices) == 2:
            limits[devices] = facts.limit(devices)
    directions = 2 if work.variant is Variant.BOTH_WAYS else 1
    return {devices: directions * limit for devices, limit in limits.items() if limit is not None}
