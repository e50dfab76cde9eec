"""Bandwidth over message size: which lines stand for many, drawn in characters in 80 columns at most."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.text import Text

from collbench.analysis.diagnose.readings import Facts
from collbench.analysis.stats import Summary, summarize
from collbench.analysis.tiers import Members, kind_of, rank_links, work_order
from collbench.machine.theory import memory_gbs, slot
from collbench.model.capabilities import capabilities
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import Run
from collbench.model.units import fixed, format_size
from collbench.output.text.frame import device_names

# The drawing, in characters by plotille: 80 columns at most, legible without color.

# plotille sets a tick every ten columns; six of them, its scale and its arrow are 80 columns.
_TICK, _MOST_TICKS = 10, 6
_FEWEST_ROWS, _MOST_ROWS = 12, 16
_ROUND = (1, 2, 2.5, 3, 4, 5, 6, 8, 10)  # what a row may stand for, times a power of ten
# Okabe and Ito's colors, distinguished by the color-blind, in 256-color numbers that show on black and on white.
_COLOURS = (32, 208, 35, 170)
_GREY = 245
_THEORY = "="
_BLANK = "\u2800"  # braille without a dot
_EDGE, _AXIS = 11, 2  # the column of plotille's upright axis, the rows of the other


def draw(lines: Sequence[Line], limits: Sequence[float]) -> Text | None:
    """Return busbw in GB/s over size, each line in its mark, limits in '='; None for a single size.

    Raises ImportError without plotille.
    """
    sizes = sorted({size for line in lines for size in line.points})
    if len(sizes) < 2:
        return None
    scale = _scale(sizes, max([*limits, *(spread.middle for line in lines for spread in line.points.values())]))
    # plotille asks the environment for colors, so they are ours: those of the first line that alone is drawn there.
    layers = [(_COLOURS[index % len(_COLOURS)], _plain(scale, [line], [])) for index, line in enumerate(lines)]
    layers.append((_GREY, _plain(scale, [], limits)))
    return _coloured(_plain(scale, lines, limits), layers)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The axes: the first tick and the distance of two, in powers of two, and the GB/s of a row."""

    first: int
    tick: int
    ticks: int
    rows: int
    step: float


def _plain(scale: _Scale, lines: Sequence[Line], limits: Iterable[float]) -> list[str]:
    """Return the rows of a picture, the axes' included."""
    from plotille import Figure  # type: ignore[import-untyped,unused-ignore]

    figure = Figure()
    end = scale.first + scale.tick * scale.ticks
    figure.width, figure.height, figure.linesep = scale.ticks * _TICK, scale.rows, "\n"
    figure.with_colors, figure.origin = False, False
    # Half a column more: the last size may lie on the edge, which plotille leaves out.
    figure.set_x_limits(scale.first, end + scale.tick / _TICK / 2)
    figure.set_y_limits(0, scale.rows * scale.step)
    figure.x_label, figure.y_label = "B", "GB/s"
    figure.x_ticks_fkt = lambda value, _next: format_size(2 ** round(value))
    figure.y_ticks_fkt = lambda value, _next: fixed(value, 6)
    across = [scale.first + scale.tick * column / _TICK for column in range(0, figure.width, 2)]
    for limit in limits:
        figure.scatter(across, [limit] * len(across), marker=_THEORY)
    for line in reversed(lines):  # the first lies on top
        rates = [spread.middle for spread in line.points.values()]
        figure.plot([math.log2(size) for size in line.points], rates, marker=line.mark)
    return [row.replace(_BLANK, " ").rstrip() for row in figure.show().split("\n")]


def _coloured(rows: Sequence[str], layers: Sequence[tuple[int, Sequence[str]]]) -> Text:
    """Return the rows with each character of the drawing in the color of the first layer that has one there."""
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


def legend(lines: Sequence[Line], limits: Mapping[str, float]) -> str:
    """Return what the marks stand for; `limits` are GB/s by what reaches them, "NV18"."""
    entries = [f"{line.mark} {line.name}{f', median of {line.sets}' if line.sets > 1 else ''}" for line in lines]
    if limits:
        theories = ", ".join(f"{fixed(gbs, 6)} GB/s {name}".rstrip() for name, gbs in limits.items())
        entries.append(f"{_THEORY} theory: {theories}")
    return "\n".join(f"  {line}" for line in entries)


def _scale(sizes: Sequence[int], top: float) -> _Scale:
    """Return axes that waste the least around these sizes in bytes and the highest GB/s."""
    first = math.floor(math.log2(sizes[0]))
    span = max(1, math.ceil(math.log2(sizes[-1])) - first)
    tick = math.ceil(span / _MOST_TICKS)
    power = 10.0 ** math.floor(math.log10(top / _MOST_ROWS))
    steps = [digit * power * shift for digit in _ROUND for shift in (1, 10)]
    fitting = [(rows * step, -rows, step) for rows in range(_FEWEST_ROWS, _MOST_ROWS + 1) for step in steps]
    # A quarter of a row is a dot: what lies less below the edge would be rounded out of the picture.
    _, rows, step = min((height, rows, step) for height, rows, step in fitting if height - step / 4 > top)
    return _Scale(first, tick, math.ceil(span / tick), -rows, step)


# Bandwidth over message size, as figures: what every set of devices reached, and few lines that stand for many.

# A reader tells so many lines apart in a terminal without color; the other tiers are in the table of tiers.
_MOST_LINES = 4
_MOST_NAMES = 6  # of a communicator; more break 80 columns


@dataclass(frozen=True, slots=True)
class Spread:
    """What several sets reached at one size: the median's seconds, and lowest, median and highest GB/s (busbw)."""

    seconds: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line over the sizes in bytes, ascending. `name` says whose it is, `mark` is one character for it."""

    name: str
    mark: str
    sets: int
    points: dict[int, Spread]


Curves = dict[Members, dict[int, Summary]]


def works_of(run: Run) -> list[Work]:
    """Return the works that hold a sample, in the model's order: plain ones first."""
    works = {measurement.point.work for measurement in run.measurements if measurement.samples}
    return sorted(works, key=work_order)


def curves_of(run: Run, work: Work) -> Curves:
    """Return the figures of each set of devices by size in bytes, both ascending."""
    curves: Curves = defaultdict(dict)
    for measurement in run.measured(work.variant):
        if measurement.point.work == work:
            curves[measurement.point.members][measurement.point.size_bytes] = summarize(measurement)
    return {devices: dict(sorted(curves[devices].items())) for devices in sorted(curves)}


def sizes_of(work: Work, curves: Curves) -> list[int]:
    """Return the sizes in bytes, ascending, that most links, pairs or devices have; without these most sets.

    At another size fewer would be compared.
    """
    counts = Counter(size for curve in (_alone(work, curves) or curves).values() for size in curve)
    return sorted(size for size, count in counts.items() if count == max(counts.values()))


def abridged_device_names(run: Run, work: Work, devices: Members) -> str:
    """Name devices as `frame.device_names` does; of a larger communicator the first ranks, the last, and how many."""
    if len(devices) <= _MOST_NAMES or not work.operation.is_collective:
        return device_names(run.devices, work, devices)
    tags = [run.devices[position].tag for position in devices]
    return f"{', '.join(tags[: _MOST_NAMES - 3])}, … {tags[-1]} ({len(tags)} ranks)"


def limits_of(run: Run, work: Work, sets: Iterable[Members]) -> dict[Members, float]:
    """Return the theory of each set of devices in GB/s, none for what takes another way than the path, or many.

    Of a copy both ways at once it is twice the path's, of a local one half of what the memory reads and writes. Between
    more than two GPUs it depends on rings and switches.
    """
    elsewhere = work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS or work.variant is Variant.STAGED
    if work.operation is Operation.CHASE or elsewhere:
        return {}
    facts, limits = Facts(run), dict[Members, float | None]()
    for devices in sets:
        if work.variant is Variant.LOCAL:
            memory = memory_gbs(run.devices[devices[0]].name)
            limits[devices] = None if memory is None else memory / 2
        elif len(devices) == 1 and not capabilities(run.backend).cores:
            theory = slot(run.devices[devices[0]])
            limits[devices] = None if theory is None else theory.gbs
        elif len(devices) == 2:
            limits[devices] = facts.limit(devices)
    directions = 2 if work.variant is Variant.BOTH_WAYS else 1
    return {devices: directions * limit for devices, limit in limits.items() if limit is not None}


def spreads(curves: Iterable[Mapping[int, Summary]]) -> dict[int, Spread]:
    """Return what these sets reached together, by size in bytes, ascending."""
    summaries_at: dict[int, list[Summary]] = defaultdict(list)
    for curve in curves:
        for size, summary in curve.items():
            summaries_at[size].append(summary)
    spread_by_size = {}
    for size, summaries in sorted(summaries_at.items()):
        rates = [summary.busbw for summary in summaries]
        spread_by_size[size] = Spread(median(one.seconds for one in summaries), min(rates), median(rates), max(rates))
    return spread_by_size


def lines_of(run: Run, work: Work, curves: Curves) -> list[Line]:
    """Return a line for each tier of links, pairs or devices, and for each larger number of ranks; four at most.

    Tiers are those at the largest size that most sets have. Of many the best three and the worst are kept.
    """
    alone = _alone(work, curves)
    lines = _tier_lines(run, work, alone) if alone else []
    groups: dict[int, list[Members]] = defaultdict(list)
    for devices in curves.keys() - alone.keys():
        groups[len(devices)].append(devices)
    for count, sets in sorted(groups.items()):
        name = f"{count} ranks" if work.operation.is_collective else str(work.variant)
        lines.append(_line(name, "abcdefghij"[len(lines) % 10], sets, curves))
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], lines[-1]]


def _tier_lines(run: Run, work: Work, alone: Curves) -> list[Line]:
    ranking = rank_links(run, work, sizes_of(work, alone)[-1])
    standings = {} if ranking is None else {standing.members: standing.tier for standing in ranking.standings}
    tiers: dict[int, list[Members]] = defaultdict(list)
    for devices in alone.keys() & standings.keys():
        tiers[standings[devices]].append(devices)
    kind = f"all {kind_of(work)}s" if len(tiers) == 1 else ""
    return [_line(kind or f"tier {tier}", str(tier % 10), tiers[tier], alone) for tier in sorted(tiers)]


def _line(name: str, mark: str, sets: Sequence[Members], curves: Curves) -> Line:
    return Line(name, mark, len(sets), spreads(curves[devices] for devices in sets))


def _alone(work: Work, curves: Curves) -> Curves:
    """Return the sets that `rank` puts in tiers: links, pairs, or of host copies devices."""
    if work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS:
        return {}
    wanted = 1 if work.variant.endpoints is Endpoints.DEVICE else 2
    return {devices: curve for devices, curve in curves.items() if len(devices) == wanted}
