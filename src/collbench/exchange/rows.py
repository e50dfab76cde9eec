"""A run as rows, one for each cell, in the order of the run file; `columns` says what each field means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from collbench.exchange.columns import COLUMNS
from collbench.machine.impossible import Check
from collbench.machine.nvls import nvls
from collbench.model import Cell, Device, Measurement, Run
from collbench.operations import Operation, Variant
from collbench.stats import summarize

Value = str | int | float | bool | None
Row = dict[str, Value]

_INWARD = (Operation.H2D_CE, Operation.H2D_SM)
_HOST_MEMORY = "host"


def rows(run: Run) -> list[Row]:
    """Return a row for each cell that was measured or failed; what is unknown or does not apply is None."""
    origin = _origin(run)
    paths = {frozenset(path.devices): path for path in run.paths}
    check, made = Check(run), []
    for found in run.measurements:
        path = paths.get(frozenset(found.cell.members))
        between = {"label": path.label if path else None, "theory_gbs": path.theory_gbs if path else None}
        row = {
            **origin,
            **_cell(run, found.cell),
            **between,
            **_figures(found),
            **_judged(check, found),
            **_ending(run, found),
        }
        made.append({column.name: row[column.name] for column in COLUMNS})
    return made


def run_id(run: Run) -> str:
    """Return a name that no two runs share: "20261121T065941Z-vm-978211"."""
    return f"{re.sub(r'[^0-9TZ]', '', run.started)}-{run.machine.hostname}-{run.settings.seed}"


def _origin(run: Run) -> Row:
    machine = run.machine
    return {
        "run": run_id(run),
        "started": run.started,
        "collbench": run.version,
        "backend": run.backend,
        "fabric": machine.fabric or None,
        "hostname": machine.hostname,
        "driver": machine.driver or None,
        "cuda": machine.cuda or None,
        "nccl": machine.nccl or None,
        "nvls": nvls(run).value if machine.nccl else None,
        "environment": " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(run.settings.environment.items())) or None,
        "command": shlex.join(run.settings.command) or None,
        "complete": run.complete,
    }


def _cell(run: Run, cell: Cell) -> Row:
    devices = [run.devices[member] for member in cell.members]
    collective = cell.operation.is_collective
    source, destination = _ends(cell, devices)
    return {
        "operation": cell.operation.value,
        "variant": cell.variant.value,
        "numa_node": cell.numa_node,
        "world_size": len(devices) if collective else None,
        "members": ",".join(device.tag for device in devices),
        "source": source,
        "destination": destination,
        "gpu_names": ",".join(dict.fromkeys(device.name for device in devices)),
        "gpu_uuids": ",".join(device.uuid for device in devices),
        "dtype": run.settings.dtype if collective else None,
        "redop": run.settings.redop if cell.operation.reduces else None,
        "root": run.settings.root if cell.operation.rooted else None,
        "size_bytes": cell.size_bytes,
    }


def _ends(cell: Cell, devices: list[Device]) -> tuple[str | None, str | None]:
    """Return where a copy's bytes come from and go, None where they go both ways or to many."""
    if not cell.operation.is_copy:
        return None, None
    if cell.variant is Variant.HOST:
        device = devices[0].tag
        return (_HOST_MEMORY, device) if cell.operation in _INWARD else (device, _HOST_MEMORY)
    if cell.variant in (Variant.PLAIN, Variant.STAGED):
        return devices[0].tag, devices[1].tag
    return None, None


def _figures(found: Measurement) -> Row:
    names = ("seconds", "launch_seconds", "algbw_gbs", "busbw_gbs", "busbw_low_gbs", "busbw_high_gbs", "concurrent")
    if not found.samples:
        return dict.fromkeys(names)
    summary = summarize(found)
    low, high = summary.interval or (None, None)
    values = (summary.seconds, summary.launch_seconds, summary.algbw, summary.busbw, low, high, summary.concurrent)
    return dict(zip(names, values, strict=True))


def _judged(check: Check, found: Measurement) -> Row:
    """Return what the figures are limited by, and how many blocks are beyond it."""
    beaten = check.cell(found)
    limit = beaten.capacity if beaten else check.limit(found.cell, 0.0)
    return {"limit_gbs": limit.gbs if limit else None, "impossible": beaten.blocks if beaten else 0}


def _ending(run: Run, found: Measurement) -> Row:
    return {
        "visits": len(found.samples),
        "blocks": sum(len(sample.seconds) for sample in found.samples),
        "stop": found.stop.value if found.stop else None,
        "flags": "; ".join(_flags(run, found)) or None,
        "failure": found.failure or None,
        "wrong": found.wrong,
    }


def _flags(run: Run, found: Measurement) -> Iterator[str]:
    yield from dict.fromkeys(flag.words(run.devices) for sample in found.samples for flag in sample.flags)
