"""A run as the text of nccl-tests: the same lines, widths and number formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from collbench.judge.outcome import outcome, without_idle
from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import by_communicator
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Run, ordinary
from collbench.model.units import DTYPE_BYTES
from collbench.report import sentences
from collbench.report.frame import worst_troubles

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


# Both halves of each size in bytes, out of place and in place; None for what was not measured.
Rows = dict[int, tuple[Half | None, Half | None]]


def _half(run: Run, measurement: Measurement | None) -> Half | None:
    """Return a half: with the time of the launch loop, or with -G of the graph replay."""
    if measurement is None or not measurement.samples:
        return None
    # The launch loop's time as each trial's only batch.
    loops = [sample for sample in measurement.samples if sample.launch_seconds and not run.settings.graph]
    looped = [replace(sample, seconds=(sample.launch_seconds or 0.0,)) for sample in loops]
    summary = summarize(replace(measurement, samples=looped or measurement.samples))
    unchecked = measurement.failure or not measurement.point.work.verifiable
    wrong = None if unchecked else measurement.wrong
    return Half(summary.seconds * 1e6, summary.algbw, summary.busbw, wrong, loop=bool(looped))


# The text. Comment lines of collbench avoid the words that parsers search for: "bandwidth", "out-of-place", "FAILED"
# (Azure's health checks take the first line with the first of these, SuperBench the last line with the second).

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

    Communicators are those of the file, in its order. Raises UsageError for a run without collectives.
    """
    first = [f"# not to be trusted: {worst_troubles(run)}"] if outcome(run).troubles else []
    run = ordinary(without_idle(run))
    groups = by_communicator(run)
    if not groups:
        raise UsageError(
            "the nccl-tests format has rows for collectives, and this run holds none: show it without --format"
        )
    impossible = by_point(run)
    reports = (_report(run, number, points, impossible) for number, points in enumerate(groups.values()))
    return first + [line for report in reports for line in report]


def _report(
    run: Run, number: int, measurements: Sequence[Measurement], impossible: Mapping[DataPoint, Impossible]
) -> Iterator[str]:
    """Yield what a run of an nccl-tests program prints: the data points of an operation on a set of devices."""
    points = {(measurement.point.size_bytes, measurement.point.variant): measurement for measurement in measurements}
    rows: Rows = {
        size: (_half(run, points.get((size, Variant.PLAIN))), _half(run, points.get((size, Variant.IN_PLACE))))
        for size in sorted({size for size, _ in points})
    }
    halves = [half for both in rows.values() for half in both if half is not None]
    point = measurements[0].point  # all of them have its operation, devices and skew
    yield from _origin(run, point, [*rows], halves)
    yield "# Using devices"
    yield from _devices(run, number, point.members)
    yield "#"
    yield f"{_COLUMNS.format('', '', '', '', '')}           out-of-place                       in-place          "
    half = _HALF_COLUMNS.format("time", "algbw", "busbw", "#wrong")
    yield f"{_COLUMNS.format('size', 'count', 'type', 'redop', 'root')}{half}{half} "
    half = _HALF_COLUMNS.format("(us)", "(GB/s)", "(GB/s)", "")
    yield f"{_COLUMNS.format('(B)', '(elements)', '', '', '')}{half}{half} "
    settings, operation = run.settings, point.operation
    # For all-to-all-v nccl-tests prints the mean block [src/alltoallv.cu, AlltoAllvGetCollByteCount].
    blocks = len(point.members) if operation.shares or operation.irregular else 1
    dtype = _TYPES.get(settings.dtype, settings.dtype)
    # For send/recv it prints a reduction, though there is none [src/sendrecv.cu:120].
    redop = settings.redop if operation.reduces or operation is Operation.SENDRECV else "none"
    root = settings.root if operation.rooted else -1
    for size, both in rows.items():
        count = size // DTYPE_BYTES[settings.dtype] // blocks
        yield f"{size:12d}  {count:12d}  {dtype:>8}  {redop:>6}  {root:6d}{''.join(map(_half_text, both))}"
    yield from _footer(run, halves, [*_remarks(run, measurements, impossible)])
    if number == 0:  # skips concern all communicators
        yield from (f"# skipped: {_one_line(sentences.skipped(skip, run))}" for skip in run.skipped)
    if not run.complete:
        yield "# interrupted: rows are missing"
    yield "#"
    yield f"# Collective test concluded: {operation.collective.nccl_tests}"
    yield "#"
    yield ""


def _origin(run: Run, point: DataPoint, sizes: Sequence[int], halves: Sequence[Half]) -> Iterator[str]:
    """Yield the lines above the devices: the origin and the meaning of the figures."""
    library = f", NCCL {run.machine.nccl} {run.machine.nccl_path}" if run.machine.nccl else ""
    yield f"# collbench {run.version} in the layout of nccl-tests 2.19.6, backend {run.backend}{library}"
    yield f"# Collective test starting: {point.operation.collective.nccl_tests}"
    settings = run.settings
    threads = 1 if settings.processes > 1 else len(point.members)
    warmup = _WARMUP if settings.warmup is None else settings.warmup
    checked = any(half.wrong is not None for half in halves)
    yield (
        f"# nThread {threads} nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {_step(sizes)} "
        f"warmup iters: {warmup} iters: {settings.iterations or _ITERATIONS} agg iters: 1 validation: {int(checked)} "
        f"graph: {settings.graph} unalign: 0"
    )
    if point.operation.irregular:
        yield f"# blocks: {point.skew or 'uniform'}; size: of the busiest rank, the more of sent and received"
    yield f"# measured {run.started}, seed {settings.seed}; Pid is not recorded"
    loops = {half.loop for half in halves}
    for loop, meaning in ((True, _LOOP), (False, _BATCHES)):
        if loop in loops:
            yield f"# time: {meaning}"
    if checked:
        yield "# #wrong: in every timed batch out of place, in one call in place; nccl-tests checks one call each"
    yield "#"


def _step(sizes: Sequence[int]) -> str:
    """Return the step between sizes as nccl-tests prints it: "2(factor)", or bytes, which are 0 for unequal steps."""
    pairs = [*pairwise(sizes)]
    factors = {large // small if large % small == 0 else 0 for small, large in pairs}
    if len(factors) == 1 and min(factors) > 1:
        return f"{factors.pop()}(factor)"
    steps = {large - small for small, large in pairs} or {_ONE_SIZE_STEP}
    return f"{steps.pop() if len(steps) == 1 else 0}(bytes)"


# "00000000:1B:00.0", which nccl-tests prints as "0000:1b:00".
_PCI = re.compile(r"0*([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]")


def _devices(run: Run, number: int, members: Sequence[int]) -> Iterator[str]:
    """Yield a line for each device in rank order; nccl-tests cuts a host's name at the first dot."""
    for rank, device in enumerate(run.devices[index] for index in members):
        address = _PCI.fullmatch(device.pci_bus_id.lower())
        host = (device.host or run.machine.hostname).partition(".")[0]
        where = f"{device.index:2d} [{address[1] if address else 'none'}] {device.name}"
        yield f"#  Rank {rank:2d} Group {number:2d} Pid {0:6d} on {host:>10} device {where}"


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


def _footer(run: Run, halves: Sequence[Half], remarks: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the summary. Scripts take OK for passed: it means that nothing is wrong, failed or missing.

    INTERRUPTED means that rows are missing, and no value was wrong. Notes follow the figures, because a machine's
    report of a failure may contain the words that scripts search for.
    """
    # Halves with wrong elements, which nccl-tests counts as out of bounds [src/common.cu:478].
    errors = sum(bool(half.wrong) for half in halves)
    bad = errors or any(kind != "flagged" for kind, _ in remarks)
    verdict = "FAILED" if bad else "OK" if run.complete else "INTERRUPTED"
    # The mean of all sizes and halves is the figure that parsers look for.
    mean = sum(half.busbw for half in halves) / len(halves) if halves else 0.0
    yield f"# {'Out of bounds values':<20} : {errors} {verdict}"
    yield f"# {'Avg bus bandwidth':<20} : {mean:g} "
    yield from (f"# {kind}: {text}" for kind, text in remarks)


def _remarks(
    run: Run, measurements: Sequence[Measurement], impossible_points: Mapping[DataPoint, Impossible]
) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of data points: each that failed, then each that is impossible, then each flag with where."""
    where = {
        measurement.point: f"{measurement.point.size_bytes} "
        f"{'in' if measurement.point.variant is Variant.IN_PLACE else 'out of'} place"
        for measurement in measurements
    }
    for measurement in measurements:
        if measurement.failure:
            failure = _one_line(sentences.failure(measurement.failure, run.devices))
            yield "failed", f"{where[measurement.point]}: {failure}"
    for measurement in measurements:
        if impossible := impossible_points.get(measurement.point):
            limit = f"the limit of the {impossible.capacity.part} is {impossible.capacity.gbs:.2f}"
            times = f"{impossible.batches} of {impossible.of} times"
            yield "IMPOSSIBLE", f"{where[measurement.point]}: {impossible.rate_gbs:.2f} GB/s, {limit}, {times}"
    flags: dict[str, dict[str, None]] = {}  # each problem of the machine during the run, and where
    for measurement in measurements:
        for flag in (flag for sample in measurement.samples for flag in sample.flags):
            flags.setdefault(sentences.flag(flag, run.devices), {})[where[measurement.point]] = None
    yield from (("flagged", f"{flag}: {', '.join(points)}") for flag, points in flags.items())


def _one_line(text: str) -> str:
    return " ".join(text.split())
