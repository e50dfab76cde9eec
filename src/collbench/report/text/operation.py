"""The page of `collbench show --operation`: heat maps and tiers of one operation, and its bandwidth over size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.judge.stats import summarize
from collbench.judge.tiers import Members, Ranking, labels_of, rank_links
from collbench.model.operations import Work
from collbench.model.run import Run
from collbench.model.units import figure, fixed, format_size
from collbench.report import sentences
from collbench.report.text.curves import (
    Curves,
    Line,
    abridged_device_names,
    curves_of,
    limits_of,
    lines_of,
    sizes_of,
    spreads,
)
from collbench.report.text.frame import alarm, device_names, header, origin, sim
from collbench.report.text.layout import Block, Lines, both, legend, short, table, whole
from collbench.report.text.matrix import tier_map, unit_of, value
from collbench.report.text.pairs import rates_line
from collbench.report.text.ranking import answer, section

_MOST_FAILURES = 8
_FEW_TIERS, _FEW_SIZES = 4, 8  # on the short page
_MOST_LIMITS = 3  # lines of theory; more hide the curves


def page(run: Run, works: Sequence[Work], size_bytes: int | None) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: each work at `size_bytes`, or at its largest and smallest size and over all sizes.

    The short page has the first work at its largest size, and its figures over sizes.
    """
    yield from alarm(run)
    yield from short(_answer(run, works[0], size_bytes))
    yield from whole("header", Lines(header(run)))
    mapped = False
    for number, work in enumerate(works):
        curves = curves_of(run, work)
        full = sizes_of(work, curves)
        for size in [size_bytes] if size_bytes is not None else dict.fromkeys((full[-1], full[0])):
            first = number == 0 and size in (size_bytes, full[-1])
            ranking = rank_links(run, work, size)
            if ranking is not None:
                map_it = ranking.kind != "device"
                mapped = mapped or map_it
                yield from whole("tiers", *section(run, ranking, mapped=map_it))
                if map_it and ranking.tiers > 1:  # what the shades say, without color
                    yield from whole("tiers", Text("tier of each, 1 is the best"), tier_map(run, ranking))
                if first:
                    yield from short(*section(run, ranking, mapped=map_it, most_tiers=_FEW_TIERS))
                    yield from short(*([legend()] if map_it else []))
            parts = [*_unmapped(run, work, size, ranking), *_failures(run, work, size)]
            yield from both("tables", *parts) if first else whole("tables", *parts)
        if size_bytes is None and len({size for curve in curves.values() for size in curve}) > 1:
            yield from whole("tables", *_over_sizes(run, work, curves))
            if number == 0:
                # As many sizes as the short page has room for, the largest included.
                sizes = sorted({size for curve in curves.values() for size in curve}, reverse=True)
                kept = sizes[:: math.ceil(len(sizes) / _FEW_SIZES)]
                few = {devices: {size: at[size] for size in at if size in kept} for devices, at in curves.items()}
                yield from short(Text(), _table(lines_of(run, work, curves), few, limits_of(run, work, curves)))
    if mapped:
        yield from whole("tiers", legend("\n"))
    yield from short(Lines(f"\n{origin(run)}"))


def _answer(run: Run, work: Work, size_bytes: int | None) -> Text:
    """Return whether links or pairs differ at the work's largest size; of other sets of devices their rates."""
    measurements = [m for m in run.measured(work.variant) if m.point.work == work]
    size = size_bytes or sizes_of(work, curves_of(run, work))[-1]
    ranking = rank_links(run, work, size)
    if ranking is not None:
        return answer(run, ranking)
    return rates_line(run, [m for m in measurements if m.point.size_bytes == size])


def _unmapped(run: Run, work: Work, size: int, ranking: Ranking | None) -> Iterator[RenderableType]:
    """Yield a table of the sets that are on no heat map: single devices, and more than two devices."""
    mapped = {standing.members for standing in ranking.standings if ranking.kind != "device"} if ranking else set()
    measurements = [m for m in run.measured(work.variant) if m.point.work == work and m.point.size_bytes == size]
    unmapped = [measurement for measurement in measurements if measurement.point.members not in mapped]
    if not unmapped:
        return
    title = f"{sim(run)}{work} at {format_size(size)}"
    yield Text("" if ranking else f"\n{title}{', busbw' if work.operation.is_collective else ''}")
    unit = unit_of(run, work, size)
    rows = table("devices", *(("ns",) if unit == "ns" else ("µs", "GB/s", "95% interval")))
    for measurement in sorted(unmapped, key=lambda m: (len(m.point.members), m.point.members)):
        summary = summarize(measurement)
        figures = [figure(summary.seconds * 1e6), figure(summary.busbw)]
        figures.append("-" if summary.interval is None else " to ".join(map(figure, summary.interval)))
        if unit == "ns":
            figures = [figure(value(summary.seconds, summary.busbw, unit))]
        rows.add_row(abridged_device_names(run, work, measurement.point.members), *figures)
    yield rows


def _failures(run: Run, work: Work, size: int) -> Iterator[Text]:
    failed = [m for m in run.measurements if m.failure and m.point.work == work and m.point.size_bytes == size]
    for measurement in failed[:_MOST_FAILURES]:
        where = device_names(run.devices, work, measurement.point.members)
        why = sentences.failure(measurement.failure, run.devices) if measurement.failure else ""
        yield Lines(f"failed    {work} at {format_size(size)} on {where}: {why}")
    if len(failed) > _MOST_FAILURES:
        yield Lines(f"failed    {len(failed) - _MOST_FAILURES} more")


def _over_sizes(run: Run, work: Work, curves: Curves) -> Iterator[RenderableType]:
    """Yield the curves, the meaning of their marks, and a table of their figures."""
    what = "busbw" if work.operation.is_collective else "bandwidth"
    lines, limits = lines_of(run, work, curves), limits_of(run, work, curves)
    highest = sorted(set(limits.values()), reverse=True)[:_MOST_LIMITS]
    yield Text(f"\n{sim(run)}{work}: {what} over message size")
    try:
        picture = draw_curves(lines, highest[::-1])
    except ImportError:
        picture = Text("no curves drawn: the package plotille is missing; pip install plotille")
    if picture is not None:
        yield picture
    labels = labels_of(run, limits)
    named = {
        "/".join(sorted({labels[devices] for devices in limits if limits[devices] == gbs})): gbs for gbs in highest
    }
    yield Text(curves_legend(lines, named))
    yield _table(lines, curves, limits)


def _table(lines: Sequence[Line], curves: Curves, limits: dict[Members, float]) -> Table:
    together = spreads(curves.values())
    rows = table("size", "µs", *(line.name for line in lines), "lowest", "highest", left=())
    if limits:
        rows.add_column("of theory", justify="right")
    for size, all_of_them in together.items():
        row = [format_size(size), figure(all_of_them.seconds * 1e6)]
        row += [figure(line.points[size].middle) if size in line.points else "-" for line in lines]
        row += [figure(all_of_them.low), figure(all_of_them.high)]
        shares = [curves[devices][size].busbw / limit for devices, limit in limits.items() if size in curves[devices]]
        if limits:
            row.append(f"{median(shares):.1%}" if shares else "-")
        rows.add_row(*row)
    return rows


# Curves in characters, drawn by plotille: 80 columns at most, legible without color.

# plotille sets a tick every ten columns; six ticks, its scale and its arrow take 80 columns.
_TICK, _MOST_TICKS = 10, 6
_FEWEST_ROWS, _MOST_ROWS = 12, 16
_ROUND = (1, 2, 2.5, 3, 4, 5, 6, 8, 10)  # GB/s that one row may stand for, times a power of ten
# Okabe and Ito's colors, distinguished by the color-blind, in 256-color numbers that show on black and on white.
_COLOURS = (32, 208, 35, 170)
_GREY = 245
_THEORY = "="
_BLANK = "\u2800"  # braille without a dot
_EDGE, _AXIS = 11, 2  # the column of plotille's vertical axis, the rows of its horizontal axis


def draw_curves(lines: Sequence[Line], limits: Sequence[float]) -> Text | None:
    """Return a picture of GB/s over size, each line drawn with its mark, limits with '='; None for a single size.

    Raises ImportError without plotille.
    """
    sizes = sorted({size for line in lines for size in line.points})
    if len(sizes) < 2:
        return None
    scale = _scale(sizes, max([*limits, *(spread.middle for line in lines for spread in line.points.values())]))
    # plotille takes colors from the environment, so we color its text: by the first line that has a mark there.
    layers = [(_COLOURS[index % len(_COLOURS)], _plain(scale, [line], [])) for index, line in enumerate(lines)]
    layers.append((_GREY, _plain(scale, [], limits)))
    return _coloured(_plain(scale, lines, limits), layers)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The axes: the first tick and the distance between ticks, as powers of two, and the GB/s of a row."""

    first: int
    tick: int
    ticks: int
    rows: int
    step: float


def _plain(scale: _Scale, lines: Sequence[Line], limits: Iterable[float]) -> list[str]:
    """Return the rows of a picture with its axes, without colors."""
    from plotille import Figure  # type: ignore[import-untyped,unused-ignore]

    figure = Figure()
    end = scale.first + scale.tick * scale.ticks
    figure.width, figure.height, figure.linesep = scale.ticks * _TICK, scale.rows, "\n"
    figure.with_colors, figure.origin = False, False
    # Half a column more, because plotille leaves out what lies on the edge.
    figure.set_x_limits(scale.first, end + scale.tick / _TICK / 2)
    figure.set_y_limits(0, scale.rows * scale.step)
    figure.x_label, figure.y_label = "B", "GB/s"
    figure.x_ticks_fkt = lambda value, _next: format_size(2 ** round(value))
    figure.y_ticks_fkt = lambda value, _next: fixed(value, 6)
    across = [scale.first + scale.tick * column / _TICK for column in range(0, figure.width, 2)]
    for limit in limits:
        figure.scatter(across, [limit] * len(across), marker=_THEORY)
    for line in reversed(lines):  # the first line is drawn last, on top of the others
        rates = [spread.middle for spread in line.points.values()]
        figure.plot([math.log2(size) for size in line.points], rates, marker=line.mark)
    return [row.replace(_BLANK, " ").rstrip() for row in figure.show().split("\n")]


def _coloured(rows: Sequence[str], layers: Sequence[tuple[int, Sequence[str]]]) -> Text:
    """Return the rows, each character of the drawing in the color of the first layer that has one at that place."""
    text = Text()
    for number, row in enumerate(rows):
        text.append("\n" * (number > 0))
        for column, letter in enumerate(row):
            inside = (
                colour for colour, layer in layers if column > _EDGE and layer[number][column : column + 1].strip()
            )
            colour = next(inside, None) if number < len(rows) - _AXIS else None
            text.append(letter, style="" if colour is None else f"color({colour})")
    return text


def curves_legend(lines: Sequence[Line], limits: Mapping[str, float]) -> str:
    """Return what the marks stand for; `limits` are GB/s by the labels of the paths that have them, "NV18"."""
    entries = [f"{line.mark} {line.name}{f', median of {line.sets}' if line.sets > 1 else ''}" for line in lines]
    if limits:
        theories = ", ".join(f"{fixed(gbs, 6)} GB/s {name}".rstrip() for name, gbs in limits.items())
        entries.append(f"{_THEORY} theory: {theories}")
    return "\n".join(f"  {line}" for line in entries)


def _scale(sizes: Sequence[int], top: float) -> _Scale:
    """Return the tightest axes for these sizes in bytes and `top` GB/s."""
    first = math.floor(math.log2(sizes[0]))
    span = max(1, math.ceil(math.log2(sizes[-1])) - first)
    tick = math.ceil(span / _MOST_TICKS)
    power = 10.0 ** math.floor(math.log10(top / _MOST_ROWS))
    steps = [digit * power * shift for digit in _ROUND for shift in (1, 10)]
    fitting = [(rows * step, -rows, step) for rows in range(_FEWEST_ROWS, _MOST_ROWS + 1) for step in steps]
    # A row has four dots: a line that is less than a dot below the top edge would be rounded out of the picture.
    _, rows, step = min((height, rows, step) for height, rows, step in fitting if height - step / 4 > top)
    return _Scale(first, tick, math.ceil(span / tick), -rows, step)
