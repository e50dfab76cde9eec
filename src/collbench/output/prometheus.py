"""A run in Prometheus' text format, as node_exporter's textfile collector and a push gateway read it.

Values are in base units (bytes, seconds), the label names are the columns' own. There are no timestamps: the collector
refuses them. Every label set is a series that a server keeps, so there is a bound: a work has the times of its smallest
size, the rates of its largest, and where these are too many the slowest places alone. What is left out is counted.
Source: prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from collbench.model.errors import RunFileError
from collbench.model.run import Run
from collbench.output.rows import Row, Value, rows, run_id

_GB = 1e9
_WORK = ("backend", "operation", "variant", "numa_node")
_PLACE = (*_WORK, "source", "destination", "members")
_CELL = (*_PLACE, "size_bytes")
# Name, help, column, factor to the base unit. Times tell of small messages, rates of large ones.
_TIMES = (
    ("time_seconds", "Time of one iteration of the smallest size, median of the visits.", "seconds", 1.0),
    ("launch_time_seconds", "Time of one call of an ungraphed launch loop.", "launch_seconds", 1.0),
)
_RATES = (
    ("busbw_bytes_per_second", "Bus bandwidth of the largest size as nccl-tests defines it.", "busbw_gbs", _GB),
    ("busbw_low_bytes_per_second", "Lower end of the 95 % interval of busbw.", "busbw_low_gbs", _GB),
    ("busbw_high_bytes_per_second", "Upper end of the 95 % interval of busbw.", "busbw_high_gbs", _GB),
)
# A textfile of some hundred kilobytes. A machine of 8 GPUs keeps all its pairs; of more the slowest are told.
_MOST_CELLS = 1000
_MOST_PLACES = 16
_Labels = dict[str, str]


def as_prometheus(run: Run) -> str:
    """Return the metrics of a run: gauges of each work's ends, and what the run and its devices are.

    Raises RunFileError for a run whose beginning is no date.
    """
    found = rows(run)
    lines = [*_run(run), *_devices(run)]
    sets = _by(found, (*_WORK, "world_size"))
    smallest, largest = (_told(sets, end) for end in (min, max))
    for gauges, kept in ((_TIMES, smallest), (_RATES, largest)):
        for name, told, column, factor in gauges:
            lines += _metric(name, told, ((_of(row, _CELL), _scaled(row[column], factor)) for row in kept))
    wrong = ((_of(some[0], _WORK), _sum(row["wrong"] for row in some)) for some in _by(found, _WORK))
    lines += _metric("wrong_elements", "Elements that failed verification, at any size.", wrong)
    lines += _metric("failed", "Sizes at which a place was given up, with the first reason.", _failed(found))
    beaten = ((_of(row, _CELL), _scaled(row["impossible"], 1.0)) for row in found if row["impossible"])
    lines += _metric("impossible_blocks", "Timed blocks that beat what the hardware can carry.", beaten)
    flagged = _counted(row for row in found if row["flags"])
    lines += _metric("disturbed", "Sizes measured while a device was throttled, hot or shared.", flagged)
    kept_cells = {id(row) for row in (*smallest, *largest)}
    left = float(len(found) - len(kept_cells))
    lines += _metric("cells_left_out", "Measured cells without a gauge here: other formats have all.", [({}, left)])
    return "\n".join(lines) + "\n"


def _by(found: Sequence[Row], names: Sequence[str]) -> list[list[Row]]:
    """Return the rows in groups that are alike in these columns."""
    groups: dict[tuple[Value, ...], list[Row]] = defaultdict(list)
    for row in found:
        groups[tuple(row[name] for name in names)].append(row)
    return list(groups.values())


def _told(sets: Sequence[Sequence[Row]], end: Callable[[Iterable[int]], int]) -> list[Row]:
    """Return the measured rows at one end of each work's sizes, of those that most places have.

    Where these are too many, the slowest places of each work.
    """
    ends = []
    for some in sets:
        measured = [row for row in some if row["seconds"] is not None]
        places = Counter(int(row["size_bytes"] or 0) for row in measured)
        if places:
            size = end(size for size, count in places.items() if count == max(places.values()))
            ends.append([row for row in measured if row["size_bytes"] == size])
    if sum(map(len, ends)) > _MOST_CELLS:
        ends = [sorted(rows, key=lambda row: -float(row["seconds"] or 0))[:_MOST_PLACES] for rows in ends]
    return [row for rows in ends for row in rows]


def _failed(found: Sequence[Row]) -> Iterator[tuple[_Labels, float]]:
    given_up = [row for row in found if row["failure"]]
    reasons: dict[tuple[tuple[str, str], ...], str] = {}
    for row in given_up:
        reasons.setdefault(tuple(_of(row, _PLACE).items()), str(row["failure"]))
    for labels, count in _counted(given_up):
        yield labels | {"reason": reasons[tuple(labels.items())]}, count


def _counted(found: Iterable[Row]) -> list[tuple[_Labels, float]]:
    """Return how many sizes each place has among these rows, the most first."""
    counts = Counter(tuple(_of(row, _PLACE).items()) for row in found)
    return [(dict(labels), float(count)) for labels, count in counts.most_common(_MOST_CELLS)]


def _sum(values: Iterable[Value]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) if known else None


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


def _of(row: Row, names: Sequence[str]) -> _Labels:
    return {name: str(row[name]) for name in names if row[name] is not None}


def _scaled(value: Value, factor: float) -> float | None:
    return None if value is None or isinstance(value, str) else float(value) * factor


def _labels(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
