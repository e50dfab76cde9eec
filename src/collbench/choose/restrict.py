"""A run restricted to some of its devices, as if it had measured no others: the one place that renumbers devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collbench.model.failures import Failure
from collbench.model.run import Device, Flag, Measurement, Run, Sample, Skipped


def part(run: Run, devices: Sequence[Device]) -> Run:
    """Return the part of the run on these of its devices, in the run's order; the run itself if these are all."""
    wanted = {device.uuid for device in devices}
    kept = [position for position, device in enumerate(run.devices) if device.uuid in wanted]
    return run if len(kept) == len(run.devices) else restricted(run, kept)


def restricted(run: Run, members: Sequence[int]) -> Run:
    """Return the part of the run on these positions, counted from 0 in their order; the run itself is unchanged."""
    new = {member: number for number, member in enumerate(members)}
    inside = new.keys()
    return replace(
        run,
        devices=tuple(run.devices[member] for member in members),
        paths=tuple(
            replace(path, devices=(new[path.devices[0]], new[path.devices[1]]))
            for path in run.paths
            if inside >= set(path.devices)
        ),
        measurements=[
            renumbered(measurement, new) for measurement in run.measurements if inside >= set(measurement.point.members)
        ],
        latencies=[
            replace(
                latency,
                point=replace(latency.point, members=_renumbered(latency.point.members, new)),
                flags=_flags(latency.flags, new),
            )
            for latency in run.latencies
            if inside >= set(latency.point.members)
        ],
        skipped=[_skipped(left, new) for left in run.skipped if inside >= set(left.members)],
        interference_checks=[
            replace(check, members=_renumbered(check.members, new))
            for check in run.interference_checks
            if inside >= set(check.members)
        ],
        sections={
            name: [_with_trials(result, new) for result in results if inside >= set(result.members)]
            for name, results in run.sections.items()
        },
        chosen=[],  # NCCL chose for sets that may not be inside
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
        skipped=[_skipped(left, new) for left in run.skipped],
    )


def renumbered(measurement: Measurement, new: Mapping[int, int]) -> Measurement:
    """Return a measurement with other positions for its devices: of the data point, failure, flags and marks."""
    point = replace(measurement.point, members=_renumbered(measurement.point.members, new))
    samples = [_sample(sample, new) for sample in measurement.samples]
    return replace(measurement, point=point, samples=samples, failure=_failure(measurement.failure, new))


def _with_trials(result: Any, new: Mapping[int, int]) -> Any:
    """Return what an annex measured (a Result) with other positions for its devices."""
    trials = [replace(trial, flags=_flags(trial.flags, new)) for trial in result.trials]
    return replace(
        result, members=_renumbered(result.members, new), trials=trials, failure=_failure(result.failure, new)
    )


def _flags(flags: Sequence[Flag], new: Mapping[int, int]) -> tuple[Flag, ...]:
    return tuple(replace(flag, devices=_renumbered(flag.devices, new)) for flag in flags)


def _failure(failure: Failure | None, new: Mapping[int, int]) -> Failure | None:
    if failure is None:
        return None
    groups = tuple(filter(None, (_renumbered(group, new) for group in failure.groups)))
    devices, because = _renumbered(failure.devices, new), _failure(failure.because, new)
    return replace(failure, devices=devices, groups=groups, because=because)


def _skipped(left: Skipped, new: Mapping[int, int]) -> Skipped:
    wrong = left.wrong and replace(left.wrong, members=_renumbered(left.wrong.members, new))
    free = tuple(left.free_bytes[old] for old in new if left.free_bytes)
    return replace(left, members=_renumbered(left.members, new), wrong=wrong, free_bytes=free)


def _sample(sample: Sample, new: Mapping[int, int]) -> Sample:
    if not sample.flags and not sample.marks:
        return sample
    marks = tuple(replace(mark, devices=_renumbered(mark.devices, new)) for mark in sample.marks)
    return replace(sample, flags=_flags(sample.flags, new), marks=marks)


def _renumbered(members: tuple[int, ...], new: Mapping[int, int]) -> tuple[int, ...]:
    """Return the positions by their new numbers, without those that have none."""
    return tuple(new[member] for member in members if member in new)
