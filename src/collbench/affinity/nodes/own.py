"""One node's part of a run over several: what the choice of its GPUs rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.model import Health, Run


def own_run(run: Run, members: Sequence[int]) -> Run:
    """Return the run of these positions alone, counted from 0 in their order; the original is left as it is."""
    place = {member: number for number, member in enumerate(members)}
    return replace(
        run,
        devices=tuple(run.devices[member] for member in members),
        paths=tuple(
            replace(path, devices=(place[path.devices[0]], place[path.devices[1]]))
            for path in run.paths
            if set(path.devices) <= set(members)
        ),
        measurements=[
            replace(found, cell=replace(found.cell, members=tuple(place[member] for member in found.cell.members)))
            for found in run.measurements
            if set(found.cell.members) <= set(members)
        ],
        health_before=_of(run.health_before, members),
        health_after=_of(run.health_after, members),
        audits=[],
        chosen=[],
    )


def _of(states: tuple[Health, ...], members: Sequence[int]) -> tuple[Health, ...]:
    return tuple(states[member] for member in members) if states else ()
