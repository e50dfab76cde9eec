"""What makes `collbench check` a gate, for prologs and timers: it fails closed, whatever could not be measured."""

from __future__ import annotations

from itertools import combinations

from collbench.backends import opening
from collbench.errors import BackendError, MachineError
from collbench.model import Run

# Fewer visits bound nothing (docs/check.md): a pair with less was not judged.
_FEWEST_VISITS = 3


def refuse_cores(backend: str) -> None:
    """Raise MachineError where "auto" finds no GPU: a node that has lost its driver must not pass by its cores."""
    _, reason = opening.resolve(backend)
    if reason is not None:
        raise MachineError(f"no GPU to check: {reason}; write --backend host to check CPU cores")


def require_all(run: Run) -> None:
    """Raise BackendError unless every pair was measured, and nothing failed on the way."""
    for found in run.measurements:
        if found.failure:
            where = ", ".join(run.devices[member].tag for member in found.cell.members)
            raise BackendError(f"cannot vouch for {where}: {found.cell.work} failed: {found.failure}")
    visits: dict[frozenset[int], int] = {}
    for found in run.measurements:
        pair = frozenset(found.cell.members)
        visits[pair] = max(visits.get(pair, 0), len(found.samples))
    for a, b in combinations(range(len(run.devices)), 2):
        if visits.get(frozenset((a, b)), 0) < _FEWEST_VISITS:
            why = run.skipped[0].reason if run.skipped else "the run ended before"
            raise BackendError(f"cannot vouch for {run.devices[a].tag}, {run.devices[b].tag}: not measured: {why}")


def require_count(run: Run, expected: int | None) -> None:
    """Raise BackendError unless the run has `expected` devices: a GPU that fell off the bus is missing, not slow."""
    if expected is not None and len(run.devices) != expected:
        tags = ", ".join(device.tag for device in run.devices)
        raise BackendError(f"{len(run.devices)} devices were checked ({tags}), and --expect says {expected}")
