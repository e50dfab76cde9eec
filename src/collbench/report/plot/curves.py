"""Bandwidth over message size, a line for each set of devices or tier, and over the number of GPUs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from collbench.judge.stats import Summary
from collbench.judge.tiers import Members, labels_of, rank_links
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Work
from collbench.model.units import figure, fixed, format_size
from collbench.report.families import Family, families, limits_of
from collbench.report.plot.figure import (
    COLOURS,
    MARKERS,
    THEORY,
    Named,
    Picture,
    clean,
    figure_of,
    lines_frame,
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
    """Set the axes of lines over message sizes, from 0 to the highest of lines, bands and limits."""
    sizes = sorted({size for line in strokes for size in line.rates})
    ends = [end for line in strokes for interval in line.band.values() for end in interval]
    top = max([*limits, *ends, *(rate for line in strokes for rate in line.rates.values())])
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    powers = range(low, high + 1, step)
    axes.set_xticks([2**power for power in powers], [format_size(2**power) for power in powers])
    lines_frame(axes, _HEADROOM * top, label)


# Bandwidth over the number of GPUs in a communicator, from one run or several.

_SCALING_SIZE = 6.4, 4.2  # inches
_BAR_HEADROOM = 1.12  # of the highest bar: room for its number


def draw_scaling(shown: Sequence[Shown], size_bytes: int | None) -> Picture:
    """Return the picture at a size, or at the largest size that every number of GPUs has.

    Raises UsageError for fewer than two numbers of GPUs, or if they have no size in common.
    """
    size = _common_size(shown) if size_bytes is None else size_bytes
    lines = _scaling_strokes(shown, size)
    counts = sorted({count for line in lines for count in line.rates})
    if max((len(line.rates) for line in lines), default=0) < 2:
        has = f"over {counts[0]} GPUs only" if counts else "nowhere"
        raise UsageError(
            f"no scaling to draw: {shown[0][1]} at {format_size(size)} was measured {has}; "
            f"add a run of another number: collbench {shown[0][1].operation} --split 2, or --devices 0,1"
        )
    works, runs = [work for _, work in shown], list({named.name: named for named, _ in shown}.values())
    title = f"{subject(works, runs)} at {format_size(size)} over the number of GPUs"
    plotted, axes = figure_of(_SCALING_SIZE, title, runs)
    for number, line in enumerate(lines):
        ends = [(rate - line.band[n][0], line.band[n][1] - rate) for n, rate in line.rates.items()]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.errorbar(
            [*line.rates], [*line.rates.values()], yerr=[*zip(*ends, strict=True)], color=colour, capsize=3,
            linewidth=1.3, marker=marker, markersize=4.5, label=line.name, gid=f"line-{number}",
        )  # fmt: skip
        for count, rate in line.rates.items():  # above the bar
            axes.annotate(
                figure(rate), (count, line.band[count][1]), xytext=(0, 5), textcoords="offset points", ha="center",
                fontsize=7.5,
            )  # fmt: skip
    axes.set_xscale("log", base=2)  # 2, 4, 8, … at even distances
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.margins(x=0.08)
    axes.set_xlabel("GPUs in the communicator (bars: slowest to fastest set; 95% interval of a single set)")
    lines_frame(axes, _BAR_HEADROOM * max(high for line in lines for _, high in line.band.values()), quantity(works))
    about = [
        f"{line.name}: {', '.join(f'{fixed(rate)} GB/s on {count}' for count, rate in line.rates.items())}."
        for line in lines
    ]
    return Picture(plotted, title, " ".join([*about, origins(runs)]))


def _common_size(shown: Iterable[Shown]) -> int:
    """Return the largest size in bytes at which each work was measured on each number of GPUs."""
    sizes: dict[tuple[Work, int], set[int]] = defaultdict(set)
    for named, work in shown:
        for family in families(named.run, work):
            for devices, curve in family.curves.items():
                sizes[work, len(devices)] |= curve.keys()
    common = set.intersection(*sizes.values())
    if not common:
        raise UsageError("no size was measured on every number of GPUs: choose one with --size")
    return max(common)


def _scaling_strokes(shown: Iterable[Shown], size: int) -> list[Stroke]:
    """Return a line over numbers of GPUs for each work, machine and NCCL; their runs share it.

    It has the median of several sets from the slowest to the fastest, and a single one with its interval.
    """
    groups: dict[tuple[str, Work], dict[int, list[Summary]]] = defaultdict(lambda: defaultdict(list))
    for named, work in shown:
        machine, nccl = (
            named.run.machine,
            f", NCCL {clean(named.run.machine.nccl, 20)}" if named.run.machine.nccl else "",
        )
        name = f"{clean(machine.hostname, 30)} ({named.run.backend}{nccl})"
        if capabilities(named.run.backend).simulated:
            name = f"sim {clean(machine.fabric, 30)}"
        for family in families(named.run, work):
            for devices, curve in family.curves.items():
                if size in curve:
                    groups[name, work][len(devices)].append(curve[size])
    several, strokes = len({machine for machine, _ in groups}) > 1, []
    for (name, work), sets in groups.items():
        rates = {n: median(one.busbw for one in sets[n]) for n in sorted(sets)}
        ends = {n: [one.busbw for one in sets[n]] + [*(sets[n][0].interval or ())] * (len(sets[n]) == 1) for n in rates}
        band = {n: (min(ends[n]), max(ends[n])) for n in rates}
        strokes.append(Stroke(f"{work}, {name}" if several else str(work), rates, band))
    return strokes
