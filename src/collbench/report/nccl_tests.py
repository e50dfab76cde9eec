"""A run as the text and the JSON of nccl-tests: the same lines, widths, keys and number formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from collbench.judge.outcome import outcome
from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import ordinary
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Run
from collbench.model.skew import Skew
from collbench.model.units import DTYPE_BYTES
from collbench.report import sentences
from collbench.report.text.frame import worst_troubles

# Source of every word and rule: nccl-tests 2.19.6, src/common.cu, src/util.cu and the file of each operation.

# The types that nccl-tests names differently [src/common.cu, test_typenames].
_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_ITERATIONS, _WARMUP = 20, 1  # its defaults, and ours: -n 20, -w 1 [src/common.cu]
_ONE_SIZE_STEP = 2**20  # the step that it prints for a single size

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a row, out of place or in place: microseconds, GB/s, and wrong elements (None: not checked).

    `loop`: the time is that of the ungraphed launch loop.
    """

    microseconds: float
    algbw: float
    busbw: float
    wrong: int | None
    loop: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A half is None if it was not measured; `iterations` is the total of both halves."""

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Half | None
    in_place: Half | None
    iterations: int

    @property
    def halves(self) -> tuple[Half, ...]:
        """The halves that were measured."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)


@dataclass(frozen=True, slots=True)
class Table:
    """One communicator's rows, as one run of an nccl-tests program prints them. `group` numbers the communicators.

    `failures`, `flags` and `impossible` are lines about data points.
    """

    operation: Operation
    members: tuple[int, ...]
    group: int
    rows: tuple[Row, ...]
    failures: tuple[str, ...]
    flags: tuple[str, ...]
    skew: Skew | None = None
    impossible: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of the program that measures this operation."""
        return self.operation.collective.nccl_tests

    @property
    def errors(self) -> int:
        """The number of halves with wrong elements, which nccl-tests counts as out of bounds [src/common.cu:478]."""
        return sum(bool(half.wrong) for row in self.rows for half in row.halves)


def tables(run: Run) -> tuple[Table, ...]:
    """Return the run's communicators, in the file's order.

    Times are those of the launch loop, or with -G of the graph replay. Raises UsageError for a run without collectives.
    """
    run, by_communicator = ordinary(run), dict[tuple[Operation, tuple[int, ...]], list[Measurement]]()
    for measurement in run.measurements:
        if measurement.point.operation.is_collective:
            by_communicator.setdefault((measurement.point.operation, measurement.point.members), []).append(measurement)
    if not by_communicator:
        raise UsageError(
            "the nccl-tests format has rows for collectives, and this run holds none: show it without --format"
        )
    impossible_points = by_point(run)
    return tuple(
        _table(run, group, by_communicator[key], impossible_points) for group, key in enumerate(by_communicator)
    )


def config(run: Run, table: Table) -> Json:
    """Return nccl-tests' configuration of a run: sizes from the table, -n, -w and -G from the run's command.

    The step is a factor or a number of bytes, 0 if sizes are a list.
    """
    sizes = [row.size_bytes for row in table.rows]
    pairs = [*pairwise(sizes)]
    factors = {large // small if large % small == 0 else 0 for small, large in pairs}
    steps, kind = {large - small for small, large in pairs} or {_ONE_SIZE_STEP}, "bytes"
    if len(factors) == 1 and min(factors) > 1:
        steps, kind = factors, "factor"
    return {
        "nthreads": 1 if run.settings.processes > 1 else len(table.members),
        "ngpus": 1,
        "minimum_bytes": sizes[0],
        "maximum_bytes": sizes[-1],
        f"step_{kind}": min(steps) if len(steps) == 1 else 0,
        "warmup_iters": _WARMUP if run.settings.warmup is None else run.settings.warmup,
        "iterations": run.settings.iterations or _ITERATIONS,
        "aggregated_iterations": 1,
        "validation": int(any(half.wrong is not None for row in table.rows for half in row.halves)),
        "graph": run.settings.graph,
        "blocking_collectives": "false",
        "per_iter_timing": "false",
        "per_iter_skip": 0,
        "parallel_init": "false",
    }


def _sound(communicators: tuple[Table, ...]) -> bool:
    """Return whether every value is right, and no data point failed or is impossible."""
    return not any(table.errors or table.failures or table.impossible for table in communicators)


def _average_busbw(communicators: tuple[Table, ...]) -> float:
    """Return the mean busbw of all sizes and halves, GB/s, the figure that parsers look for; 0 without any."""
    rates = [half.busbw for table in communicators for row in table.rows for half in row.halves]
    return sum(rates) / len(rates) if rates else 0.0


# "00000000:1B:00.0", which nccl-tests prints as "0000:1b:00".
_PCI = re.compile(r"0*([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]")


def _devices(run: Run, table: Table) -> Iterator[Json]:
    """Yield the devices in rank order; nccl-tests cuts a host's name at the first dot."""
    for rank, device in enumerate(run.devices[index] for index in table.members):
        address = _PCI.fullmatch(device.pci_bus_id.lower())
        yield {
            "rank": rank,
            "group": table.group,
            "pid": 0,
            "hostname": (device.host or run.machine.hostname).partition(".")[0],
            "device": device.index,
            "device_hex": address[1] if address else "none",
            "device_info": device.name,
        }


def _table(
    run: Run, group: int, measurements: list[Measurement], impossible_points: Mapping[DataPoint, Impossible]
) -> Table:
    sizes: dict[int, dict[Variant, Measurement]] = {}
    flags: dict[str, dict[str, None]] = {}  # each problem of the machine during the run, and where
    failures, beyond = [], []
    for measurement in sorted(measurements, key=lambda m: m.point.size_bytes):
        sizes.setdefault(measurement.point.size_bytes, {})[measurement.point.variant] = measurement
    for measurement in measurements:
        point = measurement.point
        where = f"{point.size_bytes} {'in' if point.variant is Variant.IN_PLACE else 'out of'} place"
        for flag in (flag for sample in measurement.samples for flag in sample.flags):
            flags.setdefault(sentences.flag(flag, run.devices), {})[where] = None
        if measurement.failure:
            failures.append(f"{where}: {_one_line(sentences.failure(measurement.failure, run.devices))}")
        if one := impossible_points.get(point):
            rate = f"{one.rate_gbs:.2f} GB/s, the limit of the {one.capacity.part} is {one.capacity.gbs:.2f}"
            beyond.append(f"{where}: {rate}, {one.batches} of {one.of} times")
    return Table(
        operation=measurements[0].point.operation,
        members=measurements[0].point.members,
        skew=measurements[0].point.skew,
        group=group,
        rows=tuple(_row(run, list(halves.values())) for halves in sizes.values()),
        failures=tuple(failures),
        flags=tuple(f"{flag}: {', '.join(points)}" for flag, points in flags.items()),
        impossible=tuple(beyond),
    )


def _row(run: Run, measurements: list[Measurement]) -> Row:
    point, wanted = measurements[0].point, run.settings
    halves = {measurement.point.variant: _half(run, measurement) for measurement in measurements}
    # For all-to-all-v nccl-tests prints the mean block [src/alltoallv.cu, AlltoAllvGetCollByteCount].
    ranks = len(point.members) if point.operation.shares or point.operation.irregular else 1
    return Row(
        size_bytes=point.size_bytes,
        count=point.size_bytes // DTYPE_BYTES[wanted.dtype] // ranks,
        dtype=_TYPES.get(wanted.dtype, wanted.dtype),
        redop=wanted.redop if point.operation.collective.prints_redop else "none",
        root=wanted.root if point.operation.rooted else -1,
        out_of_place=halves.get(Variant.PLAIN),
        in_place=halves.get(Variant.IN_PLACE),
        iterations=sum(sample.iterations * len(sample.seconds) for m in measurements for sample in m.samples),
    )


def _half(run: Run, measurement: Measurement) -> Half | None:
    if not measurement.samples:
        return None
    # The launch loop's time as each trial's only batch.
    loops = [sample for sample in measurement.samples if sample.launch_seconds and not run.settings.graph]
    looped = [replace(sample, seconds=(sample.launch_seconds or 0.0,)) for sample in loops]
    summary = summarize(replace(measurement, samples=looped or measurement.samples))
    unchecked = measurement.failure or not measurement.point.work.verifiable
    return Half(
        microseconds=summary.seconds * 1e6,
        algbw=summary.algbw,
        busbw=summary.busbw,
        wrong=None if unchecked else measurement.wrong,
        loop=bool(looped),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The text. Comment lines of collbench avoid the words that parsers search for: "bandwidth", "out-of-place", "FAILED"
# (Azure's health checks take the first line with the first of these, SuperBench the last line with the second).

_DEVICE = (
    "#  Rank {rank:2d} Group {group:2d} Pid {pid:6d} on {hostname:>10} device {device:2d} [{device_hex}] {device_info}"
)
_COLUMNS = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_HALF_COLUMNS = "  {:>7}  {:>6}  {:>6}  {:>6}"
_NOT_CHECKED = "    N/A"  # one column narrower than a number, as in nccl-tests
_NOT_MEASURED = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}{_NOT_CHECKED}"
_LOOP = "one call of the ungraphed launch loop, mean of the ranks, median of the trials; nccl-tests runs one loop"
_BATCHES = (
    "one call of a timed batch (on GPUs a graph replay between device events), slowest rank, median of the trials; "
    "nccl-tests takes the CPU's clock"
)


def lines(run: Run) -> list[str]:
    """Return the lines of nccl-tests' output, a report for each communicator: times in µs, rates in GB/s.

    Raises UsageError for a run without collectives.
    """
    first = [f"# not to be trusted: {worst_troubles(run)}"] if outcome(run).troubles else []
    return first + [line for table in tables(run) for line in _report(run, table)]


def _report(run: Run, table: Table) -> Iterator[str]:
    yield from _origin(run, table)
    yield "# Using devices"
    yield from map(_DEVICE.format_map, _devices(run, table))
    yield "#"
    yield f"{_COLUMNS.format('', '', '', '', '')}           out-of-place                       in-place          "
    half = _HALF_COLUMNS.format("time", "algbw", "busbw", "#wrong")
    yield f"{_COLUMNS.format('size', 'count', 'type', 'redop', 'root')}{half}{half} "
    half = _HALF_COLUMNS.format("(us)", "(GB/s)", "(GB/s)", "")
    yield f"{_COLUMNS.format('(B)', '(elements)', '', '', '')}{half}{half} "
    for row in table.rows:
        first = f"{row.size_bytes:12d}  {row.count:12d}  {row.dtype:>8}  {row.redop:>6}  {row.root:6d}"
        yield f"{first}{_half_text(row.out_of_place)}{_half_text(row.in_place)}"
    yield from _footer(run, table)


def _origin(run: Run, table: Table) -> Iterator[str]:
    """Yield the lines above the devices: the origin and the meaning of the figures."""
    library = f", NCCL {run.machine.nccl} {run.machine.nccl_path}" if run.machine.nccl else ""
    yield f"# collbench {run.version} in the layout of nccl-tests 2.19.6, backend {run.backend}{library}"
    yield f"# Collective test starting: {table.program}"
    asked = config(run, table)
    kind = "factor" if "step_factor" in asked else "bytes"
    yield (
        f"# nThread {asked['nthreads']} nGpus 1 minBytes {asked['minimum_bytes']} maxBytes {asked['maximum_bytes']} "
        f"step: {asked[f'step_{kind}']}({kind}) warmup iters: {asked['warmup_iters']} iters: {asked['iterations']} "
        f"agg iters: 1 validation: {asked['validation']} graph: {asked['graph']} unalign: 0"
    )
    if table.operation.irregular:
        yield f"# blocks: {table.skew or 'uniform'}; size: of the busiest rank, the more of sent and received"
    yield f"# measured {run.started}, seed {run.settings.seed}; Pid is not recorded"
    loops = {half.loop for row in table.rows for half in row.halves}
    for loop, meaning in ((True, _LOOP), (False, _BATCHES)):
        if loop in loops:
            yield f"# time: {meaning}"
    if asked["validation"]:
        yield "# #wrong: in every timed batch out of place, in one call in place; nccl-tests checks one call each"
    yield "#"


def _half_text(half: Half | None) -> str:
    if half is None:
        return _NOT_MEASURED
    wrong = _NOT_CHECKED if half.wrong is None else f"  {half.wrong:6g}"
    return f"  {_fit(half.microseconds, 7)}  {_fit(half.algbw, 6)}  {_fit(half.busbw, 6)}{wrong}"


def _fit(value: float, width: int) -> str:
    """Return the number with up to two decimals, as its column has room for [src/util.cu, getFloatStr]."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"[:width]


def _footer(run: Run, table: Table) -> Iterator[str]:
    """Yield the summary. Scripts take OK for passed: it means that nothing is wrong, failed or missing.

    INTERRUPTED means that rows are missing, and no value was wrong. Notes follow the figures, because a machine's
    report of a failure may contain the words that scripts search for.
    """
    verdict = "FAILED" if not _sound((table,)) else "OK" if run.complete else "INTERRUPTED"
    yield f"# {'Out of bounds values':<20} : {table.errors} {verdict}"
    yield f"# {'Avg bus bandwidth':<20} : {_average_busbw((table,)):g} "
    yield from (f"# failed: {failure}" for failure in table.failures)
    yield from (f"# IMPOSSIBLE: {line}" for line in table.impossible)
    yield from (f"# flagged: {flag}" for flag in table.flags)
    if table.group == 0:  # skips concern all communicators
        yield from (f"# skipped: {_one_line(sentences.skipped(skip, run))}" for skip in run.skipped)
    if not run.complete:
        yield "# interrupted: rows are missing"
    yield "#"
    yield f"# Collective test concluded: {table.program}"
    yield "#"
    yield ""


# The JSON (its -J, version 3), without the environment variables, which may be private. Keys, nesting and types are as
# in nccl-tests: flags and verdicts are strings ("true"), and so is `root`, six characters wide.

_VERSION = 3


def dumps(run: Run) -> str:
    """Return the JSON text: times in µs, rates in GB/s, times of day in UTC.

    With several communicators, `experiment_name` names the one of a row. Raises UsageError without collectives.
    """
    communicators = tables(run)
    started = datetime.fromisoformat(run.started)
    document = {
        "version": _VERSION,
        "start_time": _clock(started),
        "args": ["collbench", *run.settings.command],
        "nccl_version": _version_code(run.machine.nccl),
        "config": config(run, communicators[0])
        | {"devices": [device for table in communicators for device in _devices(run, table)]},
        "results": [
            {
                "size": row.size_bytes,
                "count": row.count,
                "type": row.dtype,
                "redop": row.redop,
                "root": f"{row.root:6d}",
                "out_of_place": _half_json(row.out_of_place),
                "in_place": _half_json(row.in_place),
                "actual_iterations": row.iterations,
                "experiment_name": " ".join([table.program, *(run.devices[index].tag for index in table.members)])
                if len(communicators) > 1
                else "",
            }
            for table in communicators
            for row in table.rows
        ],
        "out_of_bounds": {
            "count": sum(table.errors for table in communicators),
            "okay": "true" if run.complete and _sound(communicators) else "false",
        },
        "average_bus_bandwidth": {"bandwidth": round(_average_busbw(communicators), 6), "okay": "unchecked"},
        "errors": [
            *(failure for table in communicators for failure in table.failures),
            *(f"IMPOSSIBLE: {line}" for table in communicators for line in table.impossible),
        ],
        "end_time": _clock(started + timedelta(seconds=run.seconds)),
    }
    return json.dumps(document, allow_nan=False) + "\n"


def _half_json(half: Half | None) -> Json | None:
    if half is None:
        return None
    return {
        "time": round(half.microseconds, 6),
        "alg_bw": round(half.algbw, 6),
        "bus_bw": round(half.busbw, 6),
        "nwrong": None if half.wrong is None else float(half.wrong),
    }


def _clock(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _version_code(version: str) -> int:
    """Return NCCL's version as its number, 22809 for "2.28.9"; 0 without NCCL [nccl.h, NCCL_VERSION]."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return 0
    major, minor, patch = (int(part) for part in match.groups())
    return (major * 1000 + minor * 100 if (major, minor) <= (2, 8) else major * 10000 + minor * 100) + patch
