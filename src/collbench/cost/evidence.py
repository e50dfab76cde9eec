"""What several runs of one machine measured, put together: the run that ranks its pairs, and all curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from collbench.affinity.choice import Members
from collbench.cost.curves import Curve
from collbench.errors import UsageError
from collbench.model import Cell, Run
from collbench.operations import Operation, Variant
from collbench.stats import summarize

Key = tuple[Operation, Members]
# What training sends.
SENT = (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER)
# The version is what an image left behind; the loaded library's may differ.
_SAYS_NOTHING = "NCCL_VERSION"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The run whose pairs are judged, and the curves of all runs by operation and its positions, ascending."""

    run: Run
    curves: Mapping[Key, Curve]

    @property
    def sets(self) -> tuple[Members, ...]:
        """The sets that any collective was measured on, in order."""
        return tuple(sorted({members for _, members in self.curves}))

    def tags(self, members: Sequence[int]) -> str:
        """Return "GPU0, GPU1"."""
        return ", ".join(self.run.devices[member].tag for member in members)


def gather(runs: Sequence[tuple[str, Run]]) -> Evidence:
    """Return what runs, each with its file's name, say together. Raises UsageError where they do not belong together.

    The run with the most devices, then the most pairs, is the one that devices are chosen from.
    """
    name, base = max(runs, key=lambda named: (len(named[1].devices), _pairs(named[1])))
    for other, run in runs:
        _check(name, base, other, run)
    points: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, run in runs:
        for cell, seconds in _cells(run):
            members = tuple(sorted(_position(base, run, member) for member in cell.members))
            points[cell.operation, members][cell.size_bytes].append(seconds)
    if not points:
        files = ", ".join(name for name, _ in runs)
        raise UsageError(
            f"{files}: no all-reduce, all-gather or reduce-scatter was measured: run 'collbench pairs' first"
        )
    curves = {key: Curve({size: median(found) for size, found in sizes.items()}) for key, sizes in points.items()}
    return Evidence(base, curves)


def _pairs(run: Run) -> int:
    return len({frozenset(found.cell.members) for found in run.measured() if len(found.cell.members) == 2})


def _position(base: Run, run: Run, member: int) -> int:
    identity = run.devices[member].uuid
    return next(place for place, device in enumerate(base.devices) if device.uuid == identity)


def _cells(run: Run) -> Iterator[tuple[Cell, float]]:
    """Yield the sound cells of what training sends with their seconds, out of place; in place where that is all."""
    found = {m.cell: m for variant in (Variant.IN_PLACE, Variant.PLAIN) for m in run.measured(variant)}
    plain = {(c.operation, c.members, c.size_bytes) for c in found if c.variant is Variant.PLAIN}
    for cell, measurement in found.items():
        instead = cell.variant is not Variant.PLAIN and (cell.operation, cell.members, cell.size_bytes) in plain
        if cell.operation in SENT and not (measurement.wrong or measurement.failure or instead):
            yield cell, summarize(measurement).seconds


def _check(name: str, base: Run, other: str, run: Run) -> None:
    """Raise UsageError where two runs are not of one machine under the same settings."""
    if (base.backend, base.machine.fabric) != (run.backend, run.machine.fabric):
        told = " and ".join(sorted({_kind(base), _kind(run)}))
        raise UsageError(f"{name} and {other} are of different machines ({told}): give runs of one")
    known = {device.uuid for device in base.devices}
    strange = [device for device in run.devices if device.uuid not in known]
    if strange:
        raise UsageError(
            f"{other} has {strange[0].tag} ({strange[0].uuid}), which {name} lacks: give runs of one machine, "
            "with one among them that holds all its GPUs"
        )
    changed = sorted(_settings(base).items() ^ _settings(run).items())
    if changed:
        variable = changed[0][0]
        raise UsageError(
            f"{name} and {other} were measured with different settings ({variable}={_settings(base).get(variable, '')} "
            f"and {variable}={_settings(run).get(variable, '')}): predict from each by itself"
        )


def _kind(run: Run) -> str:
    return f"{run.backend} {run.machine.fabric}".strip()


def _settings(run: Run) -> dict[str, str]:
    return {name: value for name, value in run.settings.environment.items() if name != _SAYS_NOTHING}
