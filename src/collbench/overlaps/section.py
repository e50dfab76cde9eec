"""How a run of `collbench overlap` is shown: its page, its rows for other tools, its answer in HTML."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.model.errors import FailureKind
from collbench.model.run import Run, device_sets
from collbench.model.units import amount, fixed, format_size
from collbench.overlaps.factors import strongest, summarize
from collbench.overlaps.page import answer, condition_name, failed_overlap, overlap_page
from collbench.overlaps.results import overlaps_of
from collbench.report.columns import Column, Row, Type, with_interval
from collbench.report.rows import devices_of, outcome_of
from collbench.report.sections import Html

HELD = "overlaps"
page = overlap_page


def failed(run: Run) -> str:
    """Return the worst data point that failed and how many more did, as a clause; "" if none did."""
    lost = [one for one in overlaps_of(run) if one.failure or one.wrong or one.wrong_compute]
    if not lost:
        return ""
    kinds = [None, *FailureKind]  # None: wrong data
    worst = min(lost, key=lambda one: kinds.index(one.failure and one.failure.kind))
    more = f"; and {amount(len(lost) - 1, 'more data point')}" if len(lost) > 1 else ""
    return f"{device_sets([worst.members], run.devices)}: {failed_overlap(worst, run.devices)}{more}"


def html(run: Run) -> Html:
    """Return the data point whose collective slows down most, and a line for each."""
    question = "Cost of overlap"
    if not any(one.trials for one in overlaps_of(run)):
        return Html(question, "nothing measured")
    worst = strongest(overlaps_of(run))
    if worst is None:
        return Html(question, "no slowdown shown", [answer(run), *_points(run)])
    factor = f"{fixed(summarize(worst).collective_factor.value, 2)} × as long"
    return Html(question, factor, [answer(run), *_points(run)])


def _points(run: Run) -> Iterator[str]:
    """Yield the figures of each data point, as the page's table has them."""
    for point in overlaps_of(run):
        if point.trials:
            summary = summarize(point)
            yield (
                f"{condition_name(point)}, {format_size(point.size_bytes)}: "
                f"{summary.collective_factor.value:.2f} × as long, the compute {summary.compute_factor.value:.2f} ×; "
                f"together {summary.of_max.value:.2f} × the longer time alone"
            )


# A row for each data point: fields of its summary, with the names of their columns.
_SECONDS = (
    ("collective_alone", "one call alone, median of the trials"),
    ("collective_beside", "one call overlapping the other, mean of all calls"),
    ("compute_alone", "one unit of compute alone, median of the trials"),
    ("compute_beside", "one unit of compute overlapping the other, median of the trials"),
)
_RATIOS = (
    ("collective_factor", "collective_factor", "seconds of the collective overlapping compute over seconds alone"),
    ("compute_factor", "compute_factor", "seconds of compute overlapping the collective over seconds alone"),
    ("of_sum", "together_of_sum", "seconds of both together over the sum of their seconds alone"),
    ("of_max", "together_of_max", "seconds of both together over the longer of their seconds alone; 1 is perfect"),
)
COLUMNS = (
    Column("operation", Type.TEXT, "the collective"),
    Column("world_size", Type.WHOLE, "its ranks, one process for each device"),
    Column("members", Type.TEXT, "the devices in rank order, comma-separated: GPU0,GPU1"),
    Column("gpu_names", Type.TEXT, "the product names of the devices, each once, comma-separated"),
    Column("gpu_uuids", Type.TEXT, "the UUIDs of the devices, comma-separated"),
    Column("dtype", Type.TEXT, "the collective's element type"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("compute", Type.TEXT, "the compute that overlaps it: gemm:8192, memory:1024"),
    Column("priority", Type.TEXT, "of the collective's stream: normal or high"),
    Column("ctas", Type.WHOLE, "thread blocks given to NCCL; empty for its own choice"),
    Column("trials", Type.WHOLE, "how often the data point was measured"),
    *(Column(f"{name}_seconds", Type.REAL, f"s; {text}, slowest rank") for name, text in _SECONDS),
    *(column for _, name, text in _RATIOS for column in with_interval(name, text)),
    Column("flags", Type.TEXT, "flags of the devices during the measurement, each once, separated by semicolons"),
    Column("failure", Type.TEXT, "why the data point failed; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements of the collective that failed verification; empty where none was compared"),
    Column("wrong_compute", Type.WHOLE, "elements of the compute's result that differ from those alone"),
)


def rows(run: Run) -> Iterator[Row]:
    """Yield the rows of a run's data points."""
    for point in overlaps_of(run):
        row: Row = {
            **devices_of(run, point.members),
            **outcome_of(run, point.trials, point.failure),
            "operation": point.work.operation.value,
            "world_size": len(point.members),
            "dtype": run.settings.dtype,
            "size_bytes": point.size_bytes,
            "compute": str(point.compute),
            "priority": point.priority.value,
            "ctas": point.ctas,
            "wrong": point.wrong,
            "wrong_compute": point.wrong_compute,
        }
        if point.trials:
            summary = summarize(point)
            row |= {f"{name}_seconds": getattr(summary, name).value for name, _ in _SECONDS}
            for field, name, _ in _RATIOS:
                row |= getattr(summary, field).columns(name)
        yield row
