"""Where a run was measured and in what state, for the page: environment, devices, labels, health, notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from collbench.machine import labels
from collbench.model import Device, Health, Run
from collbench.report.header import header
from collbench.report.health import health_lines
from collbench.report.notes import notes
from collbench.report.topology import explain_pair
from collbench.units import fixed, format_approximate_size, format_size

_NAME_COLUMNS = 10  # of report/header.py and report/notes.py
_NO_DATA = "–"
# One sentence for each path says too much where there are hundreds: then the labels have to do.
_MOST_PATHS = 64


def environment(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of all that the header of every page says, and of what was asked for."""
    told = [_named(line) for line in header(run).splitlines()]
    settings = run.settings
    asked = [
        ("command", shlex.join(("collbench", *settings.command))),
        ("elements", f"{settings.dtype}, {settings.redop}, root {settings.root}"),
        ("precision", "as the method has it" if settings.precision is None else f"{settings.precision:.2%}"),
        ("sizes", ", ".join(map(format_size, settings.sizes))),
        ("seed", str(settings.seed)),
        ("variables", ", ".join(f"{name}={value}" for name, value in sorted(settings.environment.items())) or "none"),
        ("collbench", run.version),
    ]
    return [*told, *(pair for pair in asked if pair[1])]


def remarks(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of the lines below every page: how precise, what failed, what was skipped, the audit."""
    return [_named(line) for line in notes(run, health=False)]


def _named(line: str) -> tuple[str, str]:
    return line[:_NAME_COLUMNS].strip(), line[_NAME_COLUMNS:].strip()


def devices(run: Run) -> list[dict[str, str]]:
    """Return what identifies each device and how it is attached."""
    return [_device(device) for device in run.devices]


def _device(device: Device) -> dict[str, str]:
    generation, width = device.pcie_generation, device.pcie_width
    return {
        "tag": device.tag,
        "name": device.name,
        "uuid": device.uuid,
        "pci": device.pci_bus_id or _NO_DATA,
        "memory": format_approximate_size(device.memory_bytes) if device.memory_bytes else _NO_DATA,
        "numa": _NO_DATA if device.numa_node is None else str(device.numa_node),
        "cpus": device.cpu_affinity or _NO_DATA,
        "pcie": f"gen {generation} ×{width}" if generation and width else _NO_DATA,
    }


def label_matrix(run: Run) -> list[list[str]]:
    """Return the labels as `nvidia-smi topo -m` has them, row and column in the order of the devices."""
    n = len(run.devices)
    matrix = [[labels.SELF if i == j else labels.UNKNOWN for j in range(n)] for i in range(n)]
    for path in run.paths:
        i, j = path.devices
        matrix[i][j] = matrix[j][i] = path.label
    return matrix


def legend(run: Run) -> list[tuple[str, str]]:
    """Return (label, meaning) of the labels that occur."""
    return list(labels.legend(path.label for path in run.paths))


def limits(run: Run) -> list[tuple[str, str]]:
    """Return (label, one-way limit with its source) of each distinct one, best label first."""
    known = {(path.label, path.theory_gbs, path.theory_source) for path in run.paths if path.theory_gbs is not None}
    ordered = sorted(known, key=lambda limit: (labels.rank_key(limit[0]), -limit[1], limit[2]))
    return [
        (label, f"{fixed(gbs, 6)} GB/s: {source}" if source else f"{fixed(gbs, 6)} GB/s")
        for label, gbs, source in ordered
    ]


def paths(run: Run) -> list[str]:
    """Return a sentence on each path, nothing where they are too many to be read."""
    return [explain_pair(run.devices, path) for path in run.paths] if len(run.paths) <= _MOST_PATHS else []


def health(run: Run) -> dict[str, Any]:
    """Return the lines of `report.health`, and each device's state before and after; no rows for CPU cores."""
    before, after = run.health_before, run.health_after
    rows = [
        {"tag": device.tag, **_state(first, after[place] if place < len(after) else Health())}
        for place, (device, first) in enumerate(zip(run.devices, before, strict=False))
    ]
    return {"lines": health_lines(run), "rows": rows}


def _state(before: Health, after: Health) -> dict[str, str]:
    """Return each reading as "before → after", one figure where it did not change."""
    return {
        "sm": _change(before.sm_clock, after.sm_clock),
        "memory_clock": _change(before.memory_clock, after.memory_clock),
        "temperature": _change(before.temperature, after.temperature),
        "power": _change(_whole(before.power), _whole(after.power)),
        "throttle": ", ".join(dict.fromkeys((*before.throttle, *after.throttle))) or "none",
        "nvlink_errors": _change(before.nvlink_errors, after.nvlink_errors),
        "nvlink_replays": _change(before.nvlink_replays, after.nvlink_replays),
        "ecc": _change(before.ecc_errors, after.ecc_errors),
        "processes": _change(before.processes, after.processes),
        "used": _change(*(_memory(state.memory_used) for state in (before, after))),
        "pcie": _change(*(_pcie(state) for state in (before, after))),
    }


def _change(before: Any, after: Any) -> str:
    known = [str(value) for value in (before, after) if value is not None]
    return " → ".join(dict.fromkeys(known)) or _NO_DATA


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _memory(used: int | None) -> str | None:
    return None if used is None else format_approximate_size(used)


def _pcie(state: Health) -> str | None:
    return f"gen {state.pcie_generation} ×{state.pcie_width}" if state.pcie_generation and state.pcie_width else None


def audits(run: Run) -> Iterator[dict[str, str]]:
    """Yield each comparison of a pair measured alone and beside others."""
    for found in run.audits:
        plus = f"{found.operation} {'' if found.variant == 'plain' else found.variant}".strip()
        yield {
            "what": f"{plus} on {', '.join(run.devices[member].tag for member in found.members)}",
            "label": found.label,
            "alone": fixed(found.isolated_gbs),
            "together": fixed(found.concurrent_gbs),
            "ratio": f"{found.ratio:.3f}",
            "trusted": "yes" if found.trusted else f"no: ±{found.delta:.1%} was allowed",
        }
