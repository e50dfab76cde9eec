"""Bandwidth over the number of GPUs in a communicator, from one run or several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from collbench.judge.stats import Summary
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Work
from collbench.model.units import figure, fixed, format_size
from collbench.report.plot.figure import (
    COLOURS,
    MARKERS,
    Named,
    Picture,
    clean,
    figure_of,
    lines_frame,
    origins,
    quantity,
    subject,
)
from collbench.report.text.curves import curves_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 6.4, 4.2  # inches
_HEADROOM = 1.12  # of the highest bar: room for its number

Shown = tuple[Named, Work]
Sets = dict[int, list[Summary]]  # by number of GPUs


@dataclass(frozen=True, slots=True)
class _Line:
    """One machine's work: busbw in GB/s by number of GPUs, as (lowest, median, highest) of the sets measured."""

    name: str
    points: dict[int, tuple[float, float, float]]


def draw(shown: Sequence[Shown], size_bytes: int | None) -> Picture:
    """Return the picture at a size, or at the largest size that every number of GPUs has.

    Raises UsageError for fewer than two numbers of GPUs, or if they have no size in common.
    """
    size = _common_size(shown) if size_bytes is None else size_bytes
    lines = _lines(shown, size)
    if max((len(line.points) for line in lines), default=0) < 2:
        counts = sorted({count for line in lines for count in line.points})
        has = f"over {counts[0]} GPUs only" if counts else "nowhere"
        raise UsageError(
            f"no scaling to draw: {shown[0][1]} at {format_size(size)} was measured {has}; "
            f"add a run of another number: collbench {shown[0][1].operation} --split 2, or --devices 0,1"
        )
    works = [work for _, work in shown]
    runs = list({named.name: named for named, _ in shown}.values())
    title = f"{subject(works, runs)} at {format_size(size)} over the number of GPUs"
    plotted, axes = figure_of((_WIDTH, _HEIGHT), title, runs)
    for number, line in enumerate(lines):
        _draw(axes, line, number)
    top = max(high for line in lines for _, _, high in line.points.values())
    counts = sorted({count for line in lines for count in line.points})
    axes.set_xscale("log", base=2)  # 2, 4, 8, … at even distances
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.margins(x=0.08)
    axes.set_xlabel("GPUs in the communicator (bars: slowest to fastest set; 95% interval of a single set)")
    lines_frame(axes, _HEADROOM * top, quantity(works))
    return Picture(plotted, title, " ".join([*map(_about, lines), origins(runs)]))


def _common_size(shown: Iterable[Shown]) -> int:
    """Return the largest size in bytes at which each work was measured on each number of GPUs."""
    sizes: dict[tuple[Work, int], set[int]] = defaultdict(set)
    for named, work in shown:
        for devices, curve in curves_of(named.run, work).items():
            sizes[work, len(devices)] |= curve.keys()
    common = set.intersection(*sizes.values())
    if not common:
        raise UsageError("no size was measured on every number of GPUs: choose one with --size")
    return max(common)


def _lines(shown: Iterable[Shown], size: int) -> list[_Line]:
    """Return a line for each work, machine and NCCL; their runs share it."""
    groups: dict[tuple[str, Work], Sets] = defaultdict(lambda: defaultdict(list))
    for named, work in shown:
        for devices, curve in curves_of(named.run, work).items():
            if size in curve:
                groups[_machine(named), work][len(devices)].append(curve[size])
    several = len({machine for machine, _ in groups}) > 1
    return [
        _Line(f"{work}, {machine}" if several else str(work), {n: _bounds(sets[n]) for n in sorted(sets)})
        for (machine, work), sets in groups.items()
    ]


def _machine(named: Named) -> str:
    run = named.run
    if capabilities(run.backend).simulated:
        return f"sim {clean(run.machine.fabric, 30)}"
    nccl = f", NCCL {clean(run.machine.nccl, 20)}" if run.machine.nccl else ""
    return f"{clean(run.machine.hostname, 30)} ({run.backend}{nccl})"


def _bounds(sets: Sequence[Summary]) -> tuple[float, float, float]:
    """Return lowest, median and highest GB/s of several sets; for a single one the ends of its interval."""
    rates = [summary.busbw for summary in sets]
    if len(sets) == 1:
        low, high = sets[0].interval or (rates[0], rates[0])
        return min(low, rates[0]), rates[0], max(high, rates[0])
    return min(rates), median(rates), max(rates)


def _draw(axes: Axes, line: _Line, number: int) -> None:
    counts = [*line.points]
    low, middle, high = zip(*line.points.values(), strict=True)
    below = [rate - lowest for rate, lowest in zip(middle, low, strict=True)]
    above = [highest - rate for rate, highest in zip(middle, high, strict=True)]
    axes.errorbar(
        counts, middle, yerr=(below, above), color=COLOURS[number % len(COLOURS)], capsize=3, linewidth=1.3,
        marker=MARKERS[number % len(MARKERS)], markersize=4.5, label=line.name, gid=f"line-{number}",
    )  # fmt: skip
    for count, rate, highest in zip(counts, middle, high, strict=True):  # above the bar
        axes.annotate(
            figure(rate), (count, highest), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=7.5
        )


def _about(line: _Line) -> str:
    rates = ", ".join(f"{fixed(middle)} GB/s on {count}" for count, (_, middle, _) in line.points.items())
    return f"{line.name}: {rates}."
