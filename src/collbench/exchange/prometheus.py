"""A run in Prometheus' text format, as node_exporter's textfile collector and a push gateway read it.

Values are in base units (bytes, seconds), the label names are the columns' own. There are no timestamps: the collector
refuses them. Source: prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from collbench.errors import RunFileError
from collbench.exchange.rows import Row, Value, rows, run_id
from collbench.model import Run

_GB = 1e9
_CELL = ("backend", "operation", "variant", "numa_node", "source", "destination", "members", "size_bytes")
# Name, help, column, factor to the base unit.
_GAUGES = (
    ("time_seconds", "Time of one iteration, median of the visits.", "seconds", 1.0),
    ("launch_time_seconds", "Time of one call of an ungraphed launch loop.", "launch_seconds", 1.0),
    ("algbw_bytes_per_second", "Bytes of all messages over the time.", "algbw_gbs", _GB),
    ("busbw_bytes_per_second", "Bus bandwidth as nccl-tests defines it.", "busbw_gbs", _GB),
    ("busbw_low_bytes_per_second", "Lower end of the 95 % interval of busbw.", "busbw_low_gbs", _GB),
    ("busbw_high_bytes_per_second", "Upper end of the 95 % interval of busbw.", "busbw_high_gbs", _GB),
    ("visits", "How often the cell was measured.", "visits", 1.0),
    ("wrong_elements", "Elements that failed verification.", "wrong", 1.0),
)
_Labels = dict[str, str]


def as_prometheus(run: Run) -> str:
    """Return the metrics of a run: gauges of each cell, and what the run and its devices are.

    Raises RunFileError for a run whose beginning is no date.
    """
    found = rows(run)
    lines = [*_run(run), *_devices(run)]
    for name, told, column, factor in _GAUGES:
        lines += _metric(name, told, ((_of(row), _scaled(row[column], factor)) for row in found))
    failed = ((_of(row) | {"reason": str(row["failure"])}, 1.0) for row in found if row["failure"])
    lines += _metric("failed", "Cells that were given up, with the reason.", failed)
    flagged = ((_of(row), 1.0) for row in found if row["flags"])
    lines += _metric("disturbed", "Cells measured while a device was throttled, hot or shared.", flagged)
    return "\n".join(lines) + "\n"


def _run(run: Run) -> Iterator[str]:
    machine = run.machine
    info = {
        "run": run_id(run),
        "backend": run.backend,
        "fabric": machine.fabric,
        "hostname": machine.hostname,
        "driver": machine.driver,
        "cuda": machine.cuda,
        "nccl": machine.nccl,
        "collbench": run.version,
    }
    yield from _metric("run_info", "What was measured, and by what.", [(info, 1.0)])
    yield from _metric("run_started_timestamp_seconds", "When the run began, Unix time.", [({}, _began(run))])
    yield from _metric("run_complete", "1 where the run was finished.", [({}, float(run.complete))])


def _began(run: Run) -> float:
    try:
        began = datetime.fromisoformat(run.started)
    except ValueError as error:
        told = f"cannot write when the run began as Unix time: its file says '{run.started}', which is no ISO 8601 date"
        raise RunFileError(f"{told}; use --format csv") from error
    return (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()


def _devices(run: Run) -> Iterator[str]:
    infos = [
        ({"device": device.tag, "uuid": device.uuid, "name": device.name, "pci_bus_id": device.pci_bus_id}, 1.0)
        for device in run.devices
    ]
    yield from _metric("device_info", "The devices of the run.", infos)


def _metric(name: str, told: str, samples: Iterable[tuple[_Labels, float | None]]) -> list[str]:
    """Return a metric's lines, none without a sample."""
    lines = [f"collbench_{name}{_labels(labels)} {value!r}" for labels, value in samples if value is not None]
    return [f"# HELP collbench_{name} {told}", f"# TYPE collbench_{name} gauge", *lines] if lines else []


def _of(row: Row) -> _Labels:
    return {name: str(row[name]) for name in _CELL if row[name] is not None}


def _scaled(value: Value, factor: float) -> float | None:
    return None if value is None or isinstance(value, str) else float(value) * factor


def _labels(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
