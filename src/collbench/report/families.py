"""Families: the data points of a run by operation and kind of device set, for pictures and for the HTML page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from collbench.judge.diagnose.readings import Facts
from collbench.judge.stats import Summary, summarize
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

    @property
    def curves(self) -> dict[Members, dict[int, Summary]]:
        """The figures of each set that was measured, by size in bytes, both ascending."""
        curves: dict[Members, dict[int, Summary]] = {}
        for (size, devices), measurement in sorted(self.points.items(), key=lambda item: item[0][::-1]):
            if measurement.samples:
                curves.setdefault(devices, {})[size] = summarize(measurement)
        return curves

    @property
    def full_size(self) -> int:
        """The largest size in bytes at which most sets were measured."""
        counts = Counter(size for (size, _), measurement in self.points.items() if measurement.samples)
        return max(size for size, count in counts.items() if count == max(counts.values()))


def families(run: Run, wanted: Work | None = None) -> list[Family]:
    """Return the run's families in the model's order of operations, larger sets last; only `wanted` if it is given."""
    groups: dict[tuple[Work, int], dict[tuple[int, Members], Measurement]] = defaultdict(dict)
    for measurement in run.measurements:
        work = measurement.point.work
        if wanted in (None, work):
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


def works_of(run: Run) -> list[Work]:
    """Return the works that have a sample, in the model's order: plain ones first."""
    works = {measurement.point.work for measurement in run.measurements if measurement.samples}
    return sorted(works, key=work_order)


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
