"""The page of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from rich.text import Text

from collbench.judge.outcome import without_idle
from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import kinds_of, ordinary
from collbench.judge.stats import summarize
from collbench.judge.tiers import rank_pairs
from collbench.model.operations import Operation, Registration, Variant, imbalance
from collbench.model.run import DataPoint, Measurement, Run, tags
from collbench.model.units import DTYPE_BYTES, format_size, micro
from collbench.report.text.frame import ending, header, sim
from collbench.report.text.layout import Lines, Page, Part, Table, both, listed, short, table, whole
from collbench.report.text.matrix import at_largest, rates_line
from collbench.report.text.reference import normal_line
from collbench.report.text.registration import compared_memory

# On the short page: rows of a table, and the columns that it lacks, so that its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(run: Run) -> Page:
    """Yield the page's blocks, a table for each communicator; the short page compares several at the largest size."""
    run = without_idle(run)
    for largest in at_largest(ordinary(run).measured()).values():
        yield rates_line(run, largest)
    yield from whole("header", Lines(header(run)))
    groups = sorted(dict.fromkeys((m.point.operation, m.point.members) for m in run.measurements))
    few, impossible_points, kinds = len(groups) <= 1, by_point(run), kinds_of(run)
    if any(measurement.samples for measurement in run.measurements):
        yield from both("notes", *normal_line(run))
    if not few:
        yield from short(*_communicators(ordinary(run)))
    for operation, devices in groups:
        measurements = [m for m in run.measurements if (m.point.operation, m.point.members) == (operation, devices)]
        head = Lines(f"\n{_title(run, operation, devices, measurements, kinds)}")
        every = _table(run, measurements, impossible_points)
        compared = compared_memory(run, operation, devices) if len(kinds) > 1 else []
        if compared:
            yield from both("tables", head, *compared)
            yield from whole("tables", Text(), every)
            continue
        yield from whole("tables", head, every)
        if few:
            # The largest size, and below it every second, third, … size, so that all rows fit.
            sizes = sorted({measurement.point.size_bytes for measurement in measurements}, reverse=True)
            step = ceil(len(measurements) / _FEW_ROWS)
            kept = sizes[::step]
            spaced = [measurement for measurement in measurements if measurement.point.size_bytes in kept]
            yield from short(head, _table(run, spaced, impossible_points).without(_ONLY_WHOLE))
            if step > 1:
                yield from short(Text(f"one size of {step}; --verbose shows all {len(sizes)}"))
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield from whole("tables", Text(_legend(run, operation)))
    if run.latencies:
        from collbench.report.text.tails import blocks as single_launches  # late: few runs need it

        yield from single_launches(run)
    yield from ending(run)


def _communicators(run: Run) -> Iterator[Part]:
    """Yield the rates at the largest size: of pairs a ranking and a matrix, of larger communicators a table."""
    pairs, others = (
        at_largest(one for one in run.measured() if (len(one.point.members) == 2) is of_pairs)
        for of_pairs in (True, False)
    )
    for operation in dict.fromkeys(m.point.operation for m in run.measurements):
        if operation in pairs and (ranking := rank_pairs(run, operation, pairs[operation][0].point.size_bytes)):
            from collbench.report.text.pairs import ranked_pairs  # late: few runs have several communicators

            yield from ranked_pairs(run, ranking)
        if operation in others:
            yield Text(f"\n{sim(run)}{operation} at {format_size(others[operation][0].point.size_bytes)}")
            rates = table("devices", "time µs", "busbw GB/s", "95% interval")
            for one in others[operation]:
                time, _, _, busbw, interval, _ = point_figures(one)
                rates.add_row(tags(one.point.members, run.devices), time, busbw, interval)
            yield from listed(rates, _FEW_ROWS)


def _title(
    run: Run,
    operation: Operation,
    devices: tuple[int, ...],
    measurements: Sequence[Measurement],
    kinds: Sequence[Registration],
) -> str:
    settings = [run.settings.dtype]
    if operation.reduces:
        settings.append(run.settings.redop)
    if operation.irregular:
        largest = max((one.point for one in measurements), key=lambda point: point.size_bytes)
        uneven = f"{largest.skew}, busiest rank {imbalance(largest.blocks):.2f} × the mean"
        settings.append("uniform" if largest.skew is None else uneven)
    if len(kinds) == 1 and kinds[0] is not Registration.NONE:
        settings.append(f"memory registered as {kinds[0]}")
    if operation.rooted:
        root = run.settings.root
        settings.append(f"root {root} ({run.devices[devices[root]].tag})")
    if any(sample.concurrent for measurement in measurements for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    return f"{operation} over {tags(devices, run.devices)} ({len(devices)} ranks): {', '.join(settings)}"


_LEGEND = """\
time: one collective on the device, the slowest rank, median; launch: one call
of an ungraphed loop, as in a training step, the mean of the ranks;
interval: 95% of busbw, GB/s; wrong: elements that failed verification"""


def _legend(run: Run, operation: Operation) -> str:
    """Return the meaning of the columns in lines of at most 80 characters."""
    lines = [_LEGEND, f"busbw = algbw × {operation.collective.busbw.formula}"]
    if any(sample.plain for measurement in run.measurements for sample in measurement.samples):
        lines.append("between hosts, time is of plain launches, not of CUDA graph replays")
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block")
    if operation.irregular:
        lines.append("size: bytes of the busiest rank, the more of sent and received")
    return "\n".join(lines)


_FIGURES = ("time µs", "launch µs", "algbw", "busbw GB/s", "interval", "wrong")


def _table(run: Run, measurements: Sequence[Measurement], impossible_points: Mapping[DataPoint, Impossible]) -> Table:
    """Return the table of one communicator, without columns that have no figure."""
    memory = list(Registration)
    ordered = sorted(
        measurements,
        key=lambda m: (m.point.size_bytes, m.point.variant is Variant.IN_PLACE, memory.index(m.point.registration)),
    )
    rows = (_cells(run, one, impossible=one.point in impossible_points) for one in ordered)
    heads = ("size", "in place", "memory", "count", *_FIGURES, "flags")
    every = table(
        *heads, rows=rows, left=("in place", "memory", "flags"), keys=3, optional={*heads} - {"size", "wrong"}
    )
    several = len({measurement.point.registration for measurement in ordered}) > 1
    return every if several else every.without(["memory"])


def _cells(run: Run, measurement: Measurement, *, impossible: bool) -> Iterator[str]:
    """Yield a data point's text in each column; of a flag one word, the page's notes say more."""
    point = measurement.point
    blocks = len(point.members) if point.operation.shares else 1
    flags = ["failed"] if measurement.failure else []
    flags += ["impossible"] if impossible else []
    flags += [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    yield format_size(point.size_bytes)
    yield "yes" if point.variant is Variant.IN_PLACE else ""
    yield point.registration.value
    yield str(point.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks)
    yield from point_figures(measurement)
    yield ", ".join(dict.fromkeys(flags))


def point_figures(measurement: Measurement) -> tuple[str, ...]:
    """Return a data point's times in µs, its rates, their interval and its wrong elements; "-" for what is unknown."""
    if not measurement.samples:
        return ("-",) * len(_FIGURES)
    summary = summarize(measurement)
    unchecked = measurement.wrong is None or not measurement.point.work.verifiable
    return (
        micro(summary.seconds),
        micro(summary.launch_seconds or None),
        f"{summary.algbw:.2f}",
        f"{summary.busbw:.2f}",
        "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "-" if unchecked else str(measurement.wrong),
    )
