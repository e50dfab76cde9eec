"""A run in Prometheus' text format, for node_exporter's textfile collector and push gateways.

A server stores a series for every label set, so a run of 8 GPUs gives only some dozens: for each operation, variant and
number of ranks the slowest, the median and the fastest link, pair or set.
Values are in base units (bytes, seconds) with four significant digits. They have no timestamps, because the textfile
collector refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

from collbench.model.errors import RunFileError
from collbench.model.run import Run
from collbench.model.units import grouped
from collbench.report.rows import Row, rows, run_id
from collbench.runfile.codec import picked

if TYPE_CHECKING:
    from prometheus_client import Metric

_DIGITS = 4  # significant; the 95% interval of a rate is 0.1% wide at best
_OPERATION = ("backend", "operation", "variant", "numa_node", "registration", "skew", "world_size")
_STATISTICS: tuple[tuple[str, Callable[[list[float]], float]], ...] = (("min", min), ("median", median), ("max", max))
# (name, help, column, factor to the base unit, which size): small messages show latency, large ones bandwidth.
_MEASURED = (
    ("time_seconds", "Time of one iteration at the smallest size.", "seconds", 1.0, min),
    (
        "launch_time_seconds",
        "Time of one ungraphed launch at the smallest size, mean of the ranks.",
        "launch_seconds",
        1.0,
        min,
    ),
    ("busbw_bytes_per_second", "Bus bandwidth (nccl-tests) at the largest size.", "busbw_gbs", 1e9, max),
)
# (name, help, what one data point adds)
_COUNTED: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("data_points", "Data points: a link, pair or set at one size.", lambda _: 1),
    ("failed", "Data points that failed.", lambda row: row["failure"] is not None),
    ("disturbed", "Data points during which a device was throttled, hot or shared.", lambda row: bool(row["flags"])),
    ("impossible", "Data points faster than the hardware can be.", lambda row: bool(row["impossible"])),
    ("wrong_elements", "Elements that failed verification.", lambda row: float(row["wrong"] or 0)),
)


def as_prometheus(run: Run) -> str:
    """Return the metrics of a run. Raises RunFileError for a run whose start is no date."""
    from prometheus_client import generate_latest  # late: `--help` and other formats do without

    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield from _about(run)
            yield from _metrics(rows(run))

    return generate_latest(Collector()).decode()  # it only calls collect()


def _about(run: Run) -> Iterator[Metric]:
    machine = picked(run.machine, "fabric", "hostname", "driver", "cuda", "nccl")
    labels = {"run": run_id(run), "backend": run.backend, **machine, "collbench": run.version}
    yield _gauge("run_info", "What was measured, and by what.", [(labels, 1)])
    yield _gauge("run_started_timestamp_seconds", "When the run began, Unix time.", [({}, _started(run))])
    yield _gauge("run_complete", "1 if the run finished.", [({}, run.complete)])
    devices = [({"device": device.tag, **picked(device, "uuid", "name", "pci_bus_id")}, 1) for device in run.devices]
    yield _gauge("device_info", "The devices of the run.", devices)


def _metrics(run_rows: Sequence[Row]) -> Iterator[Metric]:
    groups = grouped((tuple(row[name] for name in _OPERATION), row) for row in run_rows)
    for name, meaning, column, factor, end in _MEASURED:
        samples = []
        for group in groups.values():
            if ends := _at_one_size([row for row in group if row[column] is not None], end):
                labels = _labels(ends[0], (*_OPERATION, "size_bytes"))
                values = [factor * float(row[column] or 0) for row in ends]
                samples += [
                    (labels | {"statistic": statistic}, float(f"{of(values):.{_DIGITS}g}"))
                    for statistic, of in _STATISTICS
                ]
        if samples:
            yield _gauge(name, f"{meaning} Slowest, median and fastest link, pair or set.", samples)
    for name, meaning, amount in _COUNTED:
        sums = [(_labels(group[0], _OPERATION), sum(map(amount, group))) for group in groups.values()]
        yield _gauge(name, meaning, sums)


def _at_one_size(measured: Sequence[Row], end: Callable[[Iterable[int]], int]) -> list[Row]:
    """Return the rows of the smallest or largest size (`end`) among the sizes that most links, pairs or sets have."""
    counts = Counter(int(row["size_bytes"] or 0) for row in measured)
    size = end(size for size, count in counts.items() if count == max(counts.values())) if counts else None
    return [row for row in measured if row["size_bytes"] == size]


def _started(run: Run) -> float:
    try:
        started = datetime.fromisoformat(run.started)
    except ValueError as error:
        raise RunFileError(
            f"cannot convert the run's start to Unix time: '{run.started}' is not an ISO 8601 date; use --format csv"
        ) from error
    return (started if started.tzinfo else started.replace(tzinfo=UTC)).timestamp()


def _gauge(name: str, meaning: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    from prometheus_client import Metric

    metric = Metric(f"collbench_{name}", meaning, "gauge")
    for labels, value in samples:
        metric.add_sample(metric.name, labels, float(value))
    return metric


def _labels(row: Row, names: Sequence[str]) -> dict[str, str]:
    return {name: str(row[name]) for name in names if row[name] is not None}
