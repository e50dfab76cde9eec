"""A run over a whole machine, narrowed to the devices that a job may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.model import Device, Run


def part(run: Run, devices: Sequence[Device]) -> Run:
    """Return what a run says of these of its devices alone, as if it had measured no others."""
    wanted = {device.uuid for device in devices}
    kept = [place for place, device in enumerate(run.devices) if device.uuid in wanted]
    if len(kept) == len(run.devices):
        return run
    new = {place: number for number, place in enumerate(kept)}
    measurements = [
        replace(found, cell=replace(found.cell, members=tuple(new[member] for member in found.cell.members)))
        for found in run.measurements
        if new.keys() >= set(found.cell.members)
    ]
    paths = [path for path in run.paths if new.keys() >= set(path.devices)]
    audits = [audit for audit in run.audits if new.keys() >= set(audit.members)]
    return replace(
        run,
        devices=tuple(run.devices[place] for place in kept),
        paths=tuple(replace(path, devices=(new[path.devices[0]], new[path.devices[1]])) for path in paths),
        measurements=measurements,
        audits=[replace(audit, members=tuple(new[member] for member in audit.members)) for audit in audits],
        chosen=[],
        health_before=tuple(run.health_before[place] for place in kept if run.health_before),
        health_after=tuple(run.health_after[place] for place in kept if run.health_after),
    )
