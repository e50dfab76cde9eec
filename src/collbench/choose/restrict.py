"""A run restricted to some of its devices, as if it had measured no others: the one place that renumbers devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from collbench.model.run import Device, Run, Sample


def part(run: Run, devices: Sequence[Device]) -> Run:
    """Return the part of the run on these of its devices, in the run's order; the run itself if these are all."""
    wanted = {device.uuid for device in devices}
    kept = [position for position, device in enumerate(run.devices) if device.uuid in wanted]
    return run if len(kept) == len(run.devices) else restricted(run, kept)


def restricted(run: Run, members: Sequence[int]) -> Run:
    """Return the part of the run on these positions, counted from 0 in their order; the run itself is unchanged."""
    new = {member: number for number, member in enumerate(members)}

    def inside(positions: Sequence[int]) -> bool:
        return new.keys() >= set(positions)

    return replace(
        run,
        devices=tuple(run.devices[member] for member in members),
        paths=tuple(renumbered(path, new) for path in run.paths if inside(path.devices)),
        measurements=[renumbered(found, new) for found in run.measurements if inside(found.point.members)],
        latencies=[renumbered(latency, new) for latency in run.latencies if inside(latency.point.members)],
        skipped=[renumbered(left, new) for left in run.skipped if inside(left.members)],
        interference_checks=[renumbered(check, new) for check in run.interference_checks if inside(check.members)],
        sections={
            name: [renumbered(result, new) for result in results if inside(result.members)]
            for name, results in run.sections.items()
        },
        health_before=tuple(run.health_before[member] for member in members if run.health_before),
        health_after=tuple(run.health_after[member] for member in members if run.health_after),
    )


def spread(run: Run, devices: Sequence[Device], positions: Sequence[int]) -> Run:
    """Return the run as one of more devices, among which its own stand at these positions; it has no paths."""
    new = dict(enumerate(positions))
    return replace(
        run,
        devices=tuple(devices),
        paths=(),
        measurements=[renumbered(measurement, new) for measurement in run.measurements],
        skipped=[renumbered(left, new) for left in run.skipped],
    )


def renumbered(item: Any, new: Mapping[int, int]) -> Any:
    """Return a part of a run with other positions for its devices, in it and in what it holds.

    Positions stand in fields named `members` and `devices`, and several of them in `groups`. Those without a new number
    are left out.
    """
    if isinstance(item, Sample) and not item.flags and not item.marks:
        return item  # most of a run
    if isinstance(item, tuple | list):
        return type(item)(renumbered(one, new) for one in item) if any(map(is_dataclass, item[:1])) else item
    if not is_dataclass(item) or isinstance(item, type):
        return item
    changed: dict[str, Any] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name in ("members", "devices"):
            changed[field.name] = _moved(value, new)
        elif field.name == "groups":
            changed[field.name] = tuple(filter(None, (_moved(group, new) for group in value)))
        elif field.name == "free_bytes":  # one for each device
            changed[field.name] = tuple(value[old] for old in new if value)
        elif (inner := renumbered(value, new)) is not value:
            changed[field.name] = inner
    return replace(item, **changed) if changed else item


def _moved(positions: tuple[int, ...], new: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(new[position] for position in positions if position in new)
