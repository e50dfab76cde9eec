"""Lines over message size, drawn in characters by plotille: 80 columns at most, legible without colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from collbench.report.curves import Line
from collbench.units import fixed, format_size

# plotille sets a tick every ten columns; six of them, its scale and its arrow are 80 columns.
_TICK, _MOST_TICKS = 10, 6
_FEWEST_ROWS, _MOST_ROWS = 12, 16
_ROUND = (1, 2, 2.5, 3, 4, 5, 6, 8, 10)  # what a row may stand for, times a power of ten
# Okabe and Ito's colours, told apart by the colour-blind, in 256-colour numbers that show on black and on white.
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
    # plotille asks the environment for colours, so they are ours: those of the first line that alone is drawn there.
    layers = [(_COLOURS[place % len(_COLOURS)], _plain(scale, [line], [])) for place, line in enumerate(lines)]
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
    """Return the rows with each character of the drawing in the colour of the first layer that has one there."""
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
    told = [f"{line.mark} {line.name}{f', median of {line.places}' if line.places > 1 else ''}" for line in lines]
    if limits:
        words = ", ".join(f"{fixed(gbs, 6)} GB/s {name}".rstrip() for name, gbs in limits.items())
        told.append(f"{_THEORY} theory: {words}")
    return "\n".join(f"  {line}" for line in told)


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
