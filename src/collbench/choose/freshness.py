"""Whether a saved run still describes this machine, and if not, why; and its part on some of the devices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from collbench.choose.choice import Unfit
from collbench.choose.fitness import left_out
from collbench.model.operations import Operation, Registration
from collbench.model.run import Device, Run, Sample, capabilities, registrations
from collbench.model.units import AGES, TELLING_BYTES, fixed


@dataclass(frozen=True, slots=True)
class Here:
    """The machine as it is now: the backend asked for, all devices, and versions (empty if there is none).

    `besides` are devices that are here but not to be used: a run may have measured them, too. `nccl` is None if the
    job's version is not known; then it is not compared.
    """

    backend: str
    devices: Sequence[Device]
    driver: str = ""
    nccl: str | None = ""
    besides: Sequence[Device] = ()


def refusal(run: Run, here: Here, now: datetime, max_age: timedelta) -> str:
    """Return why `run` may not choose devices here, as a clause: "it is 9d old, …"; "" if it may.

    `now` must know its time zone. Driver and NCCL are compared on the cuda backend alone: the host's copies use none.
    """
    return mismatch(run, here) or _too_old(run.started, now, max_age) or _too_incomplete(run)


def mismatch(run: Run, here: Here) -> str:
    """Return why `run` describes another machine than this one, as a clause; "" if it is the same."""
    if run.backend != here.backend:
        return f"it was measured on the {run.backend} backend, not {here.backend}"
    if gone := _only_in(run.devices, [*here.devices, *here.besides]):
        return f"it was measured on {gone}, which this process may not use"
    if new := _only_in(here.devices, run.devices):
        return f"it did not measure {new}"
    versions = [("driver", run.machine.driver, here.driver), ("NCCL", run.machine.nccl, here.nccl)]
    for what, then, now in versions if capabilities(here.backend).nvml else ():
        if now is not None and then != now:
            return f"its {what} was {then or 'absent'} and is {now or 'absent'} now"
    return ""


def _only_in(these: Sequence[Device], those: Sequence[Device]) -> str:
    known = {device.uuid for device in those}
    return ", ".join(f"{device.tag} ({device.uuid})" for device in these if device.uuid not in known)


def _too_old(started: str, now: datetime, max_age: timedelta) -> str:
    try:
        start = datetime.fromisoformat(started)
    except ValueError:
        return f"its date '{started}' cannot be read"
    age = now - (start if start.tzinfo else start.replace(tzinfo=now.tzinfo))
    if age < timedelta(0):
        return f"its date {started} is in the future"
    return f"it is {_length(age)} old, more than --max-age {_length(max_age)}" if age > max_age else ""


def _length(duration: timedelta) -> str:
    unit = next(unit for unit in AGES if duration >= AGES[unit] or unit == "s")
    return f"{fixed(duration / AGES[unit], 3)}{unit}"


def _too_incomplete(run: Run) -> str:
    """Return why an interrupted run is not enough: it needs one operation on every pair at a size showing bandwidth."""
    if run.complete:
        return ""
    telling = min(TELLING_BYTES, max(run.settings.sizes, default=0))
    timed: dict[tuple[Operation, int], set[tuple[int, ...]]] = {}
    for measurement in run.measured():
        point = measurement.point
        if len(point.members) == 2 and point.size_bytes >= telling:
            # A copy is one direction; a collective on two devices stands for the pair.
            link = tuple(sorted(point.members)) if point.operation.is_collective else point.members
            timed.setdefault((point.operation, point.size_bytes), set()).add(link)
    left = []
    for (operation, _), links in timed.items():
        every = itertools.combinations if operation.is_collective else itertools.permutations
        left.append(len(set(every(range(len(run.devices)), 2)) - links))
    if not left:
        return "it was interrupted before any pair was timed at a size large enough to show bandwidth"
    return f"it was interrupted with {min(left)} of its links not yet timed" if min(left) else ""


def unfit(run: Run) -> str:
    """Return why a run that nobody named is not enough to choose by, as a clause; "" if it is.

    A run of 8 bytes was not meant for choosing, and other jobs' load then is not today's load. Runs of only registered
    memory, or of communicators with a config, are for jobs that use the same.
    """
    kinds = registrations(run)
    if kinds and Registration.NONE not in kinds:
        special = "registered memory or a configuration"
        return f"it used NCCL settings ({special}) that a job has only if it sets them, too"
    if not any(
        len(measurement.point.members) == 2 and measurement.point.size_bytes >= TELLING_BYTES
        for measurement in run.measured()
    ):
        return "it timed no pairs at a size large enough to show bandwidth"
    busy = [exclusion for exclusion in left_out(run) if any(why.sort is Unfit.BUSY for why in exclusion.why)]
    if not busy:
        return ""
    return f"it was disturbed: {run.devices[busy[0].member].tag} was {busy[0].reason}"


# A run restricted to some of its devices, as if it had measured no others: the one place that renumbers devices.


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
        return type(item)(renumbered(element, new) for element in item) if any(map(is_dataclass, item[:1])) else item
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
