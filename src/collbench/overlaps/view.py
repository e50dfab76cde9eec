"""How a collective and compute slow each other down: factors with intervals; page, rows for other tools, HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from rich.text import Text

from collbench.judge.stats import MIN_TRIALS, median_interval, student
from collbench.model.errors import FailureKind
from collbench.model.run import Device, Run, device_sets
from collbench.model.units import amount, capped, fixed, format_size, sentence
from collbench.overlaps.results import Overlap, OverlapTrial, Priority, overlaps_of
from collbench.report import sentences
from collbench.report.frame import header, origin, sim, troubled
from collbench.report.layout import Lines, Page, Part, Table, both, short, table, whole
from collbench.report.rows import Column, Row, Type, devices_of, outcome_of
from collbench.report.views import Html
from collbench.runfile.codec import picked

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class TrialFigure:
    """A median or a mean over trials with its 95% interval, None for fewer than three trials."""

    value: float
    interval: Interval | None

    @property
    def half(self) -> float:
        """Half of the interval over the median, a ratio; infinite without one."""
        return math.inf if self.interval is None else (self.interval[1] - self.interval[0]) / 2 / self.value

    def excludes(self, value: float) -> bool:
        """Return whether the interval is known, and does not hold a value."""
        return self.interval is not None and not self.interval[0] <= value <= self.interval[1]

    def columns(self, name: str) -> dict[str, float | None]:
        """Return it as three columns of a row: the value, and the ends of its interval."""
        low, high = self.interval or (None, None)
        return {name: self.value, f"{name}_low": low, f"{name}_high": high}


def median_figure(values: Sequence[float]) -> TrialFigure:
    """Return the median of trials with its 95% interval; not a number for none.

    Values may be 0 or negative, such as the seconds that calls add to a step if noise is larger than these.
    """
    if not values:
        return TrialFigure(float("nan"), None)
    return TrialFigure(median(values), median_interval(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean's 95% interval by Student's distribution, from independent positive values, None below three."""
    n = len(values)
    if n < MIN_TRIALS:
        return None
    middle = math.fsum(values) / n
    half = student(n - 1, 0.975) * math.dist(values, [middle] * n) / math.sqrt(n * (n - 1))
    return max(0.0, middle - half), middle + half


@dataclass(frozen=True, slots=True)
class OverlapSummary:
    """One data point (method/collectives.md 8). Seconds are of one call, or one unit of compute, of the slowest rank.

    Factors are overlapping seconds over isolated seconds, trial by trial. `of_sum` and `of_max` are the time of a fixed
    amount of both concurrently, over the sum and over the longer of their isolated times: `of_max` = 1 is perfect. All
    are medians over trials except the collective during compute and its factor, which are means: each trial's calls
    begin at different moments of a unit of compute, and only all trials together cover it evenly.
    """

    collective_alone: TrialFigure
    compute_alone: TrialFigure
    collective_beside: TrialFigure
    compute_beside: TrialFigure
    collective_factor: TrialFigure
    compute_factor: TrialFigure
    of_sum: TrialFigure
    of_max: TrialFigure


def summarize(overlap: Overlap) -> OverlapSummary:
    """Return the figures of a data point with at least one trial."""

    def over_trials(value: Callable[[OverlapTrial], float]) -> TrialFigure:
        return median_figure([value(trial) for trial in overlap.trials])

    def over_calls(value: Callable[[OverlapTrial], float]) -> TrialFigure:
        values = [value(trial) for trial in overlap.trials]
        return TrialFigure(fmean(values), mean_interval(values))

    return OverlapSummary(
        collective_alone=over_trials(lambda trial: max(trial.collective_alone)),
        compute_alone=over_trials(lambda trial: max(trial.compute_alone)),
        collective_beside=over_calls(lambda trial: max(trial.collective_beside)),
        compute_beside=over_trials(lambda trial: max(trial.compute_beside)),
        collective_factor=over_calls(lambda trial: max(trial.collective_beside) / max(trial.collective_alone)),
        compute_factor=over_trials(lambda trial: max(trial.compute_beside) / max(trial.compute_alone)),
        of_sum=over_trials(lambda trial: max(trial.together) / sum(_amounts(trial))),
        of_max=over_trials(lambda trial: max(trial.together) / max(_amounts(trial))),
    )


def _amounts(trial: OverlapTrial) -> tuple[float, float]:
    return max(trial.collective_amount), max(trial.compute_amount)


def spread(overlap: Overlap) -> Interval:
    """Return the 10th and 90th percentile of single calls during compute, in seconds, over all trials."""
    calls = [seconds for trial in overlap.trials for seconds in trial.beside_calls]
    low, high = np.percentile(calls, (10, 90))
    return float(low), float(high)


def strongest(overlaps: Iterable[Overlap]) -> Overlap | None:
    """Return the data point whose collective loses most, of those whose factor is not 1; None if there is none."""
    sure = [overlap for overlap in overlaps if overlap.trials and summarize(overlap).collective_factor.excludes(1.0)]
    return max(sure, key=lambda overlap: summarize(overlap).collective_factor.value, default=None)


# What is shown of it.

HELD = "overlaps"
_LEGEND = """\
×: time while the other runs / time alone; slowest rank, median of the trials
(collective: mean of all calls), ± half of the 95% interval;
of max: time of both together / the longer time alone (1.00: perfect);
of sum: time of both together / the sum of their times alone"""
_FEW_FAILURES = 3


def page(run: Run) -> Page:
    """Yield the page's blocks: the answer, a table for each compute, what failed."""
    measured = any(overlap.trials for overlap in overlaps_of(run))
    yield Lines(sentence(answer(run) + sim(run, " (sim)")) if measured else "No data point was measured.")
    yield from whole("header", Lines(header(run)))
    if measured:
        for heads, rows, brief in _tables(run):
            yield from both("tables", Text(f"\n{sim(run)}{heads}"))
            yield from whole("tables", rows)
            yield from short(brief)
        yield from both("tables", Text(_LEGEND))
    yield from whole("tables", *_raw(run))
    lines = [*failures(run), *_verified(run)]
    if lines:
        yield Lines("\n" + "\n".join(lines))
    yield from short(Lines("\n" + "\n".join([*troubled(run), origin(run)])))


def answer(run: Run) -> str:
    """Return "all-reduce of 64M takes 4.5x as long when overlapping gemm:8192; the gemm takes 1.08x".

    A factor whose interval holds 1 is not named. The run has a trial.
    """
    overlap = strongest(overlaps_of(run))
    if overlap is None:
        return "no slowdown is shown: of each collective's factor, the 95% interval holds 1 or is unknown"
    summary = summarize(overlap)
    compute = summary.compute_factor
    return (
        f"{overlap.work.operation.collective.title} of {format_size(overlap.size_bytes)} takes "
        f"{_times(summary.collective_factor.value)} as long when {overlapping(overlap)}; "
        f"the {overlap.compute.kind} "
        + (f"takes {_times(compute.value)}" if compute.excludes(1.0) else "shows no slowdown")
    )


def overlapping(overlap: Overlap) -> str:
    """Return what a collective overlaps, and what was set of it: "overlapping gemm:8192, high priority, 4 CTAs"."""
    high = ", high priority" if overlap.priority is Priority.HIGH else ""
    ctas = "" if overlap.ctas is None else f", {amount(overlap.ctas, 'CTA')}"
    return f"overlapping {overlap.compute}{high}{ctas}"


def failed_overlap(overlap: Overlap, devices: Sequence[Device]) -> str:
    """Return "broadcast of 1M overlapping memory:256: hang: no answer within 60 s"."""
    what = f"{overlap.work.operation} of {format_size(overlap.size_bytes)} {overlapping(overlap)}"
    return f"{what}: {sentences.failure(overlap.failure, devices) if overlap.failure else 'wrong data'}"


def failures(run: Run) -> list[str]:
    """Return a line for each of the first data points that failed."""
    lines = [f"failed    {failed_overlap(lost, run.devices)}" for lost in overlaps_of(run) if lost.failure is not None]
    return capped(lines, _FEW_FAILURES, "failed    and {} more")


_SETTINGS = ("priority", "CTAs")
_HEADS = ("size", *_SETTINGS, "alone", "overlap", "×", "alone ", "overlap ", "× ", "of max", "of sum")
# With columns for priority and CTAs a row is wider than 80: the short page leaves these out.
_ONLY_WHOLE = ("alone ", "overlap ", "of sum")


def _tables(run: Run) -> Iterator[tuple[str, Table, Table]]:
    """Yield for each compute a title, a table with a row for each size and setting, and the short page's table."""
    measured = [overlap for overlap in overlaps_of(run) if overlap.trials]
    several_settings = len({(overlap.priority, overlap.ctas) for overlap in measured}) > 1
    for compute in dict.fromkeys(overlap.compute for overlap in measured):
        points = sorted((point for point in measured if point.compute == compute), key=lambda point: point.size_bytes)
        every = table(*_HEADS, rows=map(_cells, points), left=("size", "priority"), keys=3)
        rows = every if several_settings else every.without(_SETTINGS)
        brief = rows.without(_ONLY_WHOLE) if several_settings else rows
        what = f"{points[0].work.operation} over {len(points[0].members)} ranks"
        yield f"{what} (left) overlapping {compute}, one unit (right), ms", rows, brief


def _cells(overlap: Overlap) -> Iterator[str]:
    summary = summarize(overlap)
    yield from (
        format_size(overlap.size_bytes),
        str(overlap.priority),
        "-" if overlap.ctas is None else str(overlap.ctas),
    )
    for alone, beside, factor in (
        (summary.collective_alone, summary.collective_beside, summary.collective_factor),
        (summary.compute_alone, summary.compute_beside, summary.compute_factor),
    ):
        yield from (milliseconds(alone.value), milliseconds(beside.value), times(factor))
    yield from (f"{summary.of_max.value:.2f}", f"{summary.of_sum.value:.2f}")


def milliseconds(seconds: float) -> str:
    """Return a time in ms for a table."""
    return f"{seconds * 1e3:.3f}"


def half_interval(figure: TrialFigure) -> str:
    """Return half of a figure's interval as a share of it, " ±1.2%"; "" without an interval."""
    return f" ±{figure.half:.1%}" if figure.interval and figure.value > 0 else ""


def times(factor: TrialFigure) -> str:
    """Return a factor with half of its interval: "1.08 ±1.2%"."""
    return f"{factor.value:.2f}{half_interval(factor)}"


def _times(factor: float) -> str:
    return f"{factor:.2f}x" if factor < 1.995 else f"{factor:.1f}x"  # 1.996 rounds up to a number without the digit


def _raw(run: Run) -> Iterator[Part]:
    """Yield how many trials, calls and units of compute each data point rests on, and how calls spread."""
    rows = []
    for overlap in (timed for timed in overlaps_of(run) if timed.trials):
        name = f"{format_size(overlap.size_bytes)} {overlapping(overlap)}"
        calls = sum(len(trial.beside_calls) for trial in overlap.trials)
        units = sum(trial.covered_units for trial in overlap.trials)
        rows.append((name, str(len(overlap.trials)), str(calls), *map(milliseconds, spread(overlap)), str(units)))
    if rows:
        yield Text("\nsingle calls during compute, started at random times; calls that wait for compute take longer")
        yield table("data point", "trials", "overlapping calls", "p10 ms", "p90 ms", "overlapping units", rows=rows)


def _verified(run: Run) -> Iterator[str]:
    """Yield how many data points were not verified: no line would look like agreement."""
    unknown = sum(
        bool(overlap.trials) and None in (overlap.wrong, overlap.wrong_compute) for overlap in overlaps_of(run)
    )
    if unknown:
        yield f"verified  not {amount(unknown, 'data point')}: no result could be compared"


def failed(run: Run) -> str:
    """Return the worst data point that failed and how many more did, as a clause; "" if none did."""
    lost = [overlap for overlap in overlaps_of(run) if overlap.failure or overlap.wrong or overlap.wrong_compute]
    if not lost:
        return ""
    kinds = [None, *FailureKind]  # None: wrong data
    worst = min(lost, key=lambda overlap: kinds.index(overlap.failure and overlap.failure.kind))
    more = f"; and {amount(len(lost) - 1, 'more data point')}" if len(lost) > 1 else ""
    return f"{device_sets([worst.members], run.devices)}: {failed_overlap(worst, run.devices)}{more}"


def html(run: Run) -> Html:
    """Return the data point whose collective slows down most: tables have each of them."""
    question = "Cost of overlap"
    if not any(overlap.trials for overlap in overlaps_of(run)):
        return Html(question, "nothing measured")
    worst = strongest(overlaps_of(run))
    if worst is None:
        return Html(question, "no slowdown shown", [answer(run)])
    factor = f"{fixed(summarize(worst).collective_factor.value, 2)} × as long"
    return Html(question, factor, [answer(run)])


def with_interval(name: str, meaning: str) -> tuple[Column, Column, Column]:
    """Return the columns of a figure and of its interval's ends, as the `TrialFigure.columns` fills them."""
    return (
        Column(name, Type.REAL, meaning),
        Column(f"{name}_low", Type.REAL, f"{meaning}; its 95% interval, from"),
        Column(f"{name}_high", Type.REAL, f"{meaning}; to"),
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
SHOWN = (
    *("operation", "compute", "members", "size_bytes", "collective_factor", "collective_factor_low"),
    *("collective_factor_high", "compute_factor", "failure"),
)


def rows(run: Run) -> Iterator[Row]:
    """Yield the rows of a run's data points."""
    for point in overlaps_of(run):
        row: Row = {
            **devices_of(run, point.members),
            **outcome_of(run, point.trials, point.failure),
            **picked(point, "size_bytes", "priority", "ctas", "wrong", "wrong_compute"),
            "operation": point.work.operation.value,
            "world_size": len(point.members),
            "dtype": run.settings.dtype,
            "compute": str(point.compute),
        }
        if point.trials:
            summary = summarize(point)
            row |= {f"{name}_seconds": getattr(summary, name).value for name, _ in _SECONDS}
            for field, name, _ in _RATIOS:
                row |= getattr(summary, field).columns(name)
        yield row
