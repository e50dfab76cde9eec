"""A run as rows of columns with names, units and types (docs/columns.md), in the formats of other tools."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, overload

from collbench.judge.outcome import without_idle
from collbench.judge.physics import Check, nvls
from collbench.judge.stats import summarize
from collbench.judge.tails import PERCENTILES, Tails, tails
from collbench.model.errors import Failure, RunFileError, UsageError
from collbench.model.operations import Operation, Variant, imbalance
from collbench.model.run import DataPoint, Measurement, Run, Trial, capabilities
from collbench.model.units import columns as aligned
from collbench.model.units import fixed, grouped
from collbench.report import sentences
from collbench.report.views import view
from collbench.runfile.codec import picked

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from prometheus_client import Metric

# The columns: names with units, types and meanings.

Value = str | int | float | bool | None
Row = dict[str, Value]


class Type(StrEnum):
    """The type of a column's values: an empty field is unknown, or does not apply."""

    TEXT = "text"
    WHOLE = "whole number"
    REAL = "number"
    YES_NO = "true or false"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, which ends in its unit, its type, and its meaning."""

    name: str
    type: Type
    meaning: str


# What all rows of a run share.
ORIGIN = (
    Column("run", Type.TEXT, "the run: its start, host and seed"),
    Column("started", Type.TEXT, "when the run began, ISO 8601, UTC"),
    Column("collbench", Type.TEXT, "the version that measured"),
    Column("backend", Type.TEXT, "cuda, host, or sim: a machine that was only simulated"),
    Column("fabric", Type.TEXT, "the simulated machine's name; empty for a real one"),
    Column("hostname", Type.TEXT, "the machine"),
    Column("driver", Type.TEXT, "NVIDIA driver"),
    Column("cuda", Type.TEXT, "the newest CUDA that the driver supports"),
    Column("nccl", Type.TEXT, "version of the NCCL that was timed"),
    Column("nvls", Type.TEXT, "NVLink SHARP: on, off, possible or unknown"),
    Column("environment", Type.TEXT, "the variables of NCCL, CUDA and torch that were set, as a shell writes them"),
    Column("command", Type.TEXT, "the command line after collbench"),
    Column("complete", Type.YES_NO, "the run finished"),
)
# The single launches of a data point.
_LAUNCHES = (
    Column("launches", Type.WHOLE, "single launches that were timed (--latency)"),
    Column(
        "transfer_p50_seconds",
        Type.REAL,
        "s; of single launches, from the last rank's arrival to the last rank's finish: the median",
    ),
    Column("transfer_p95_seconds", Type.REAL, "s; the 95th percentile, empty where the launches are too few"),
    Column("transfer_p99_seconds", Type.REAL, "s; the 99th percentile, likewise"),
    Column("transfer_max_seconds", Type.REAL, "s; the longest"),
    Column("waited_p50_seconds", Type.REAL, "s; from the first rank's arrival to the last rank's finish: the median"),
    Column("waited_p99_seconds", Type.REAL, "s; the 99th percentile"),
    Column("waited_max_seconds", Type.REAL, "s; the longest"),
    Column("late", Type.TEXT, "the ranks that arrived significantly late, the latest first, comma-separated"),
)
# A run of any other command: a row for each data point.
COLUMNS = (
    *ORIGIN,
    Column("operation", Type.TEXT, "what was timed (run-file.md)"),
    Column("variant", Type.TEXT, f"how it ran: {', '.join(Variant)}"),
    Column("numa_node", Type.WHOLE, "NUMA node of the host memory, for host copies"),
    Column("registration", Type.TEXT, "registered memory of a collective: none, buffer, window"),
    Column("skew", Type.TEXT, "block sizes of alltoallv: uniform, zipf:1.2:7, or the matrix"),
    Column("imbalance", Type.REAL, "bytes of the busiest rank / bytes of the mean rank, for alltoallv"),
    Column("world_size", Type.WHOLE, "number of ranks of a collective"),
    Column("members", Type.TEXT, "the devices in the data point's order, comma-separated: GPU0,GPU1"),
    Column("source", Type.TEXT, "source of a copy between two devices or between a device and the host"),
    Column("destination", Type.TEXT, "its destination"),
    Column("gpu_names", Type.TEXT, "the product names of the devices, each once, comma-separated"),
    Column("gpu_uuids", Type.TEXT, "the UUIDs of the devices, comma-separated"),
    Column("label", Type.TEXT, "nvidia-smi's label of the path between two members"),
    Column("theory_gbs", Type.REAL, "GB/s; the limit of that path in one direction"),
    Column("dtype", Type.TEXT, "element type of a collective"),
    Column("redop", Type.TEXT, "reduction operation"),
    Column("root", Type.WHOLE, "rank of the root of a rooted collective"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("seconds", Type.REAL, "s; one iteration, median of the trials"),
    Column(
        "launch_seconds", Type.REAL, "s; one call of the ungraphed launch loop, mean of the ranks, median of the trials"
    ),
    Column("algbw_gbs", Type.REAL, "GB/s; bytes of all messages over the time"),
    Column("busbw_gbs", Type.REAL, "GB/s; algbw × the factor of the operation"),
    Column("busbw_low_gbs", Type.REAL, "GB/s; the 95% interval of busbw, from"),
    Column("busbw_high_gbs", Type.REAL, "GB/s; to"),
    Column("trials", Type.WHOLE, "how often the data point was measured"),
    Column("batches", Type.WHOLE, "timed batches of iterations, of all trials"),
    Column("concurrent", Type.YES_NO, "other, disjoint devices were measured at the same time"),
    Column("stop", Type.TEXT, "why the measurement ended"),
    Column("flags", Type.TEXT, "flags of the devices during the measurement, each once, separated by semicolons"),
    Column("limit_gbs", Type.REAL, "GB/s; the hardware's limit for this data point; empty where not known"),
    Column("impossible", Type.WHOLE, "timed batches above 1.02 × that limit: their times are wrong"),
    Column("failure", Type.TEXT, "why the data point failed; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements that failed verification; empty where nothing was verified"),
    *_LAUNCHES,
)


# The rows: one for each data point, in the order of the run's file.


def columns_of(run: Run) -> tuple[Column, ...]:
    """Return the columns of a run's rows."""
    measured_by = view(run)
    return COLUMNS if measured_by is None else (*ORIGIN, *measured_by.COLUMNS)


def rows(run: Run) -> list[Row]:
    """Return a row for each data point that was measured or failed; what is unknown or does not apply is None."""
    run, measured_by = without_idle(run), view(run)
    kind_of_rows = _point_rows if measured_by is None else measured_by.rows
    columns, origin = columns_of(run), _origin(run)
    return [{column.name: (origin | row).get(column.name) for column in columns} for row in kind_of_rows(run)]


def run_id(run: Run) -> str:
    """Return a name that no two runs share: "20261121T065941Z-vm-978211"."""
    return f"{re.sub(r'[^0-9TZ]', '', run.started)}-{run.machine.hostname}-{run.settings.seed}"


def _origin(run: Run) -> Row:
    known = picked(run.machine, "fabric", "driver", "cuda", "nccl")
    return {
        **picked(run, "started", "backend", "complete"),
        **{name: text or None for name, text in known.items()},
        "run": run_id(run),
        "collbench": run.version,
        "hostname": run.machine.hostname,
        "nvls": nvls(run).value if run.machine.nccl else None,
        "environment": " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(run.settings.environment.items())) or None,
        "command": shlex.join(run.settings.command) or None,
    }


def devices_of(run: Run, members: Sequence[int]) -> Row:
    """Return a data point's devices, as columns of its row."""
    devices = [run.devices[position] for position in members]
    return {
        "members": ",".join(device.tag for device in devices),
        "gpu_names": ",".join(dict.fromkeys(device.name for device in devices)),
        "gpu_uuids": ",".join(device.uuid for device in devices),
    }


def outcome_of(run: Run, trials: Sequence[Trial], failure: Failure | None) -> Row:
    """Return what its trials were flagged with and why it failed, as columns of its row."""
    flags = dict.fromkeys(sentences.flag(flag, run.devices) for trial in trials for flag in trial.flags)
    return {
        "trials": len(trials),
        "flags": "; ".join(flags) or None,
        "failure": sentences.failure(failure, run.devices) if failure else None,
    }


def _point_rows(run: Run) -> Iterator[Row]:
    paths = {frozenset(path.devices): path for path in run.paths}
    check, launches = Check(run), {tail.point: tail for tail in tails(run)}
    for measurement in run.measurements:
        point = measurement.point
        path = None if point.variant.host_memory else paths.get(frozenset(point.members))
        impossible = check.beaten(measurement)
        limit = impossible.capacity if impossible else check.limit(point, check.fastest(measurement))
        yield {
            **devices_of(run, point.members),
            **_work(run, point),
            "label": path.label if path else None,
            "theory_gbs": path.theory_gbs if path else None,
            **_rates(measurement),
            **outcome_of(run, measurement.samples, measurement.failure),
            "batches": sum(len(sample.seconds) for sample in measurement.samples),
            "limit_gbs": limit.gbs if limit else None,
            "impossible": impossible.batches if impossible else 0,
            **picked(measurement, "stop", "wrong"),
            **(_launches(run, launches[point]) if point in launches else {}),
        }


def _work(run: Run, point: DataPoint) -> Row:
    operation = point.operation
    row: Row = picked(point, "operation", "variant", "numa_node", "size_bytes")
    if operation.is_copy:
        row["source"], row["destination"] = _ends(run, point)
    if operation.is_collective:
        row |= {
            **picked(point, "registration"),
            "world_size": len(point.members),
            "dtype": run.settings.dtype,
            "redop": run.settings.redop if operation.reduces else None,
            "root": run.settings.root if operation.rooted else None,
        }
    if operation.irregular:
        row["skew"] = "uniform" if point.skew is None else str(point.skew)
        row["imbalance"] = 1.0 if point.skew is None else imbalance(point.blocks)
    return row


def _ends(run: Run, point: DataPoint) -> tuple[str | None, str | None]:
    """Return the source and the destination of a copy, None if bytes go both ways or to many devices."""
    tags = [run.devices[position].tag for position in point.members]
    if point.variant.host_memory:
        to_device = point.operation in (Operation.H2D_CE, Operation.H2D_SM)
        return ("host", tags[0]) if to_device else (tags[0], "host")
    if point.variant is Variant.LOCAL:
        return tags[0], tags[0]
    if point.variant in (Variant.PLAIN, Variant.STAGED):
        return tags[0], tags[1]
    return None, None


def _rates(measurement: Measurement) -> Row:
    if not measurement.samples:
        return {}
    summary = summarize(measurement)
    low, high = summary.interval or (None, None)
    rates = {"algbw_gbs": summary.algbw, "busbw_gbs": summary.busbw, "busbw_low_gbs": low, "busbw_high_gbs": high}
    return picked(summary, "seconds", "launch_seconds", "concurrent") | rates


def _launches(run: Run, launches: Tails) -> Row:
    moved, waited = launches.transfer, launches.waited
    return {
        "launches": launches.count,
        **{f"transfer_p{percent}_seconds": _to_ps(moved.at(percent)) if moved else None for percent in PERCENTILES},
        "transfer_max_seconds": _to_ps(moved.maximum) if moved else None,
        "waited_p50_seconds": _to_ps(waited.at(50)),
        "waited_p99_seconds": _to_ps(waited.at(99)),
        "waited_max_seconds": _to_ps(waited.maximum),
        "late": ",".join(run.devices[rank.member].tag for rank in launches.late) or None,
    }


def _to_ps(seconds: float | None) -> float | None:
    """Return a time in whole picoseconds: no clock resolves less."""
    return None if seconds is None else round(seconds, 12)


# Rows in the formats of other tools: CSV, JSON records, a Markdown table.


# CSV and JSON keep all digits of numbers. Markdown is for readers: it has as many as the interval warrants.

_MAX_DIGITS, _MIN_DIGITS = 4, 3
_NARROW = 0.005  # half an interval as a share of the rate, up to which the fourth digit means something
_SMALL = 1e-4  # smaller numbers are shorter in scientific notation: 2.1934e-06
# What CommonMark allows a backslash to escape; before letters it would be shown. Inside a word, _ is no markup.
_MARKS = re.compile(r"([\\`*{}\[\]<>()#+!|~&$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")
_FORMULA = re.compile(r"[=+\-@\t\r]")  # what a cell begins with that a spreadsheet computes
_LINES = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def as_csv(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> str:
    """Return CSV with a head (RFC 4180, lines end in LF): texts are quoted, numbers are not, None is empty.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    file = io.StringIO()
    lines = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    lines.writerow([column.name for column in columns])
    for row in rows:
        values = row.values()
        lines.writerow([f"'{text}" if isinstance(text, str) and _FORMULA.match(text) else text for text in values])
    return file.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """Return a JSON list of records, one per line; None is null."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows) + "\n]\n"


def as_markdown(run: Run, rows: Sequence[Row]) -> str:
    """Return a list of the values that all rows share, the backend first, and a table of the other columns."""
    names = [column.name for column in columns_of(run)]
    shared = [name for name in names if len({row[name] for row in rows}) == 1]
    kept = [name for name in names if name not in shared]
    origin = (
        "sim: SIMULATED, nothing here was measured on a GPU" if capabilities(run.backend).simulated else run.backend
    )
    lines = [f"- backend: {_escaped(origin)}"]
    lines += [
        f"- {_escaped(name)}: {_shown(rows[0][name], _digits(rows[0]))}"
        for name in shared
        if name != "backend" and rows[0][name] is not None
    ]
    if kept:  # of one data point all is in the lines above
        lines += ["", _line(map(_escaped, kept)), _line("---" for _ in kept)]
        lines += [_line(_shown(row[name], _digits(row)) for name in kept) for row in rows]
    return "\n".join(lines) + "\n"


def _digits(row: Row) -> int:
    """Return how many significant digits a row's numbers have: the last one is noisy."""
    low, middle, high = (row.get(name) for name in ("busbw_low_gbs", "busbw_gbs", "busbw_high_gbs"))
    if not (isinstance(low, float) and isinstance(middle, float) and isinstance(high, float)) or not middle:
        return _MIN_DIGITS
    return _MAX_DIGITS if (high - low) / 2 <= _NARROW * middle else _MIN_DIGITS


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float, digits: int = _MAX_DIGITS) -> str:
    """Return a number for readers: a small one with an exponent."""
    return fixed(value, digits) if abs(value) >= _SMALL or value == 0 else f"{value:.{digits - 1}e}"


def _shown(value: Value, digits: int) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _escaped(value) if isinstance(value, str) else _text(value, digits)


def _escaped(text: str) -> str:
    """Return text that Markdown renders unchanged: on one line, with all markup escaped."""
    marked = _LINES.sub(lambda match: f"&#{ord(match[0])};", _MARKS.sub(r"\\\1", text))
    return re.sub(r"^ | $", "&#32;", marked)  # Markdown strips blanks at the ends of a cell


# A run's rows as an object to look at in Python: its text and a data frame.


_HOW = {"variant": "plain", "numa_node": None, "registration": "none"}  # how an operation ran, by default so
# What the text shows of a row, where any row has it; a row holds much more.
_SHOWN = (
    *("operation", *_HOW, "members", "size_bytes", "seconds", "algbw_gbs"),
    *("busbw_gbs", "busbw_low_gbs", "busbw_high_gbs", "failure"),
)
_MAX_ROWS = 20  # rows
_DTYPES = {Type.WHOLE: "Int64", Type.REAL: "float64", Type.YES_NO: "boolean"}  # the first and the last know "missing"


@dataclass(frozen=True, slots=True, repr=False)
class Table(Sequence[Row]):
    """Figures of a run: a row for each data point, a dict by the names of `columns`, as `collbench export` writes it.

    A name ends in its unit (`size_bytes`, `seconds`, `busbw_gbs`); a column also has its type and meaning. What is
    unknown or does not apply is None.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    shown: tuple[str, ...]  # the columns of its text

    @classmethod
    def of(cls, run: Run) -> Table:
        """Return a run's table."""
        measured_by = view(run)
        return cls(columns_of(run), tuple(rows(run)), measured_by.SHOWN if measured_by else _SHOWN)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Row | Table:
        return Table(self.columns, self.rows[index], self.shown) if isinstance(index, slice) else self.rows[index]

    def main(self) -> list[Row]:
        """Return of each row what the text shows, without what is unknown."""
        return [{name: row[name] for name in self.shown if row.get(name) is not None} for row in self.rows]

    def __repr__(self) -> str:
        """Return the columns that say something as text, of the first rows."""
        if not self.rows:
            return "no rows"
        names = [name for name in self.shown if any(row.get(name) not in (None, _HOW.get(name)) for row in self.rows)]
        lines = aligned([names, *([_text(row[name]) for name in names] for row in self.rows[:_MAX_ROWS])])
        left = len(self.rows) - _MAX_ROWS
        return "\n".join([*lines, *([f"… and {left} more rows"] if left > 0 else [])])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas.DataFrame with all columns, typed. Raises Error without pandas."""
        try:
            frames = import_module("pandas")  # late: only users who have it ask for it
        except ImportError as error:
            raise UsageError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        names = [column.name for column in self.columns]
        frame = frames.DataFrame(list(self.rows), columns=names)
        types = {column.name: _DTYPES[column.type] for column in self.columns if column.type in _DTYPES}
        return frame.astype(types)


def _text(value: Value, digits: int = _MAX_DIGITS) -> str:
    return "" if value is None else number(value, digits) if isinstance(value, float) else str(value)


# Gauges of the rows in Prometheus' text format, for node_exporter's textfile collector and push gateways.
#
# A server stores a series for every label set, so a run of 8 GPUs gives only some dozens: for each operation, variant
# and number of ranks the slowest, the median and the fastest link, pair or set. Values are in base units (bytes,
# seconds) with four significant digits. They have no timestamps, because the textfile collector refuses them.

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
