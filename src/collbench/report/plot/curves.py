"""Bandwidth over message size, a line for each set of devices or tier."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from collbench.judge.stats import Summary
from collbench.judge.tiers import Members, labels_of, rank_links
from collbench.model.operations import Work
from collbench.model.units import fixed, format_size
from collbench.report.families import Family, families, limits_of
from collbench.report.plot.figure import (
    COLOURS,
    MARKERS,
    THEORY,
    Named,
    Picture,
    clean,
    figure_of,
    origins,
    quantity,
    subject,
)
from collbench.report.text.frame import device_names, sim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LINES = 8  # as many as a reader can distinguish
_MOST_TIERS = 4
_MOST_NAMES = 6  # devices of a communicator by name
_MOST_LIMITS = 3
_MOST_TICKS = 12
SIZE = 7.2, 4.4  # inches
_HEADROOM = 1.07  # of what is highest: room for a limit's name


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line: GB/s over bytes, the ends of its band where there are any, and its name in the legend."""

    name: str
    rates: dict[int, float]
    band: dict[int, tuple[float, float]]


Shown = tuple[Named, Work]
Curves = dict[Members, dict[int, Summary]]


def draw(shown: Sequence[Shown]) -> Picture:
    """Return the picture of one or several works of one or several runs, overlaid."""
    drawn = [(named, family, family.curves) for named, work in shown for family in families(named.run, work)]
    single = sum(len(curves) for _, _, curves in drawn) <= _MOST_LINES
    strokes = list(_strokes(drawn, single=single))
    works, runs = [work for _, work in shown], list({named.name: named for named, _ in shown}.values())
    title = f"{subject(works, runs)} over message size"
    plotted, axes = figure_of(SIZE, title, runs)
    for number, line in enumerate(strokes):
        stroke(axes, line, number)
    limits = _limits(drawn)
    for gbs, name in limits.items():
        axes.axhline(gbs, color=THEORY, linestyle=(0, (4, 3)), linewidth=1.0, gid=f"theory-{fixed(gbs, 6)}")
        axes.annotate(
            f"{fixed(gbs, 6)} GB/s theory, {name}", (0.01, gbs), xycoords=("axes fraction", "data"), va="bottom",
            color=THEORY, fontsize=7.5, xytext=(0, 1.5), textcoords="offset points",
        )  # fmt: skip
    frame(axes, strokes, limits, quantity(works))
    axes.set_xlabel(f"message size, bytes (bands: {'95% interval' if single else 'slowest to fastest'})")
    about = []
    for line in strokes:
        ends = (
            f"{fixed(line.rates[size])} GB/s at {format_size(size)}"
            for size in sorted({min(line.rates), max(line.rates)})
        )
        about.append(f"{line.name}: {', '.join(ends)}.")
    about += [f"Theory: {fixed(gbs, 6)} GB/s, {name}." for gbs, name in limits.items()]
    return Picture(plotted, title, " ".join([*about, origins(runs)]))


def _strokes(drawn: Sequence[tuple[Named, Family, Curves]], *, single: bool) -> Iterator[Stroke]:
    """Yield a line for each device set where a reader can follow them all, else for each tier or number of ranks."""
    several_runs = len({named.name for named, _, _ in drawn}) > 1
    several_works = len({family.work for _, family, _ in drawn}) > 1
    for named, family, curves in drawn:
        of_run = f"{sim(named.run)}{clean(named.name, 30)}: " if several_runs else ""
        prefix = f"{of_run}{family.work}: " if several_works else of_run
        for line in _set_strokes(family, curves) if single else _tier_strokes(family, curves):
            yield replace(line, name=f"{prefix}{line.name}")


def _set_strokes(family: Family, curves: Curves) -> Iterator[Stroke]:
    labels = labels_of(family.run, curves)
    for devices, curve in curves.items():
        label = f" ({clean(labels[devices], 20)})" if len(devices) == 2 and labels[devices] != "?" else ""
        yield Stroke(
            f"{clean(_short_name(family, devices), 60)}{label}",
            {size: summary.busbw for size, summary in curve.items()},
            {size: summary.interval for size, summary in curve.items() if summary.interval is not None},
        )


def _short_name(family: Family, devices: Members) -> str:
    """Return the names of devices, for a larger communicator shortened: "GPU0, GPU1, GPU2, … GPU7 (8 ranks)"."""
    if len(devices) <= _MOST_NAMES or not family.work.operation.is_collective:
        return device_names(family.run.devices, family.work, devices)
    tags = [family.run.devices[position].tag for position in devices]
    return f"{', '.join(tags[: _MOST_NAMES - 3])}, … {tags[-1]} ({len(tags)} ranks)"


def _tier_strokes(family: Family, curves: Curves) -> Iterator[Stroke]:
    """Yield a line for each tier at the largest size that most sets have, or one for sets that are in no tiers.

    Of more than four tiers the best three and the worst stay.
    """
    if not curves:
        return
    if not family.ranked:
        ranks = len(family.sets[0])
        yield _median(f"{ranks} ranks" if family.kind == "group" else str(family.work.variant), [*curves.values()])
        return
    ranking = rank_links(family.run, family.work, family.full_size)
    tiers: dict[int, list[dict[int, Summary]]] = defaultdict(list)
    for standing in ranking.standings if ranking else ():
        if standing.members in curves:
            tiers[standing.tier].append(curves[standing.members])
    kept = sorted(tiers) if len(tiers) <= _MOST_TIERS else [*sorted(tiers)[: _MOST_TIERS - 1], max(tiers)]
    for tier in kept:
        yield _median(f"all {family.kind}s" if len(tiers) == 1 else f"tier {tier}", tiers[tier])


def _median(name: str, curves: Sequence[dict[int, Summary]]) -> Stroke:
    """Return the line of the median of several sets at each size, with the slowest and the fastest as its band."""
    rates: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for size, summary in curve.items():
            rates[size].append(summary.busbw)
    sizes = sorted(rates)
    return Stroke(
        f"{name}, median of {len(curves)}" if len(curves) > 1 else name,
        {size: median(rates[size]) for size in sizes},
        {size: (min(rates[size]), max(rates[size])) for size in sizes},
    )


def stroke(axes: Axes, line: Stroke, number: int) -> None:
    """Draw a line and its band, in the color and with the marker of its number."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    dashes = "-" if number < len(COLOURS) else "-."
    sizes, rates = [*line.rates], [*line.rates.values()]
    axes.plot(
        sizes, rates, color=colour, marker=marker, markersize=3.5, linewidth=1.3, linestyle=dashes, label=line.name,
        gid=f"line-{number}",
    )  # fmt: skip
    if len(line.band) > 1:
        low, high = zip(*line.band.values(), strict=True)
        axes.fill_between([*line.band], low, high, color=colour, alpha=0.2, linewidth=0, gid=f"band-{number}")


def _limits(drawn: Iterable[tuple[Named, Family, Curves]]) -> dict[float, str]:
    """Return the highest theories in GB/s, each with the labels of the paths that have it."""
    names: dict[float, dict[str, None]] = {}
    for _, family, curves in drawn:
        limits = limits_of(family.run, family.work, curves)
        labels = labels_of(family.run, limits)
        for devices, gbs in limits.items():
            names.setdefault(gbs, {})[clean(labels[devices], 20)] = None
    return {gbs: "/".join(names[gbs]) for gbs in sorted(names, reverse=True)[:_MOST_LIMITS]}


def frame(axes: Axes, strokes: Sequence[Stroke], limits: Iterable[float], label: str) -> None:
    """Set the axes of lines over message sizes, from 0 to the highest of lines, bands and limits, grid and legend."""
    from matplotlib.ticker import NullLocator

    sizes = sorted({size for line in strokes for size in line.rates})
    ends = [end for line in strokes for interval in line.band.values() for end in interval]
    top = max([*limits, *ends, *(rate for line in strokes for rate in line.rates.values())])
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    powers = range(low, high + 1, step)
    axes.set_xticks([2**power for power in powers], [format_size(2**power) for power in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    # matplotlib's own margin is a share of the points' range, which is nothing if all sizes are equally fast.
    axes.set_ylim(0, _HEADROOM * top)
    axes.set_ylabel(label)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=7.5, loc="best")
