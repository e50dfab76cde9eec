"""A heat map of one operation at one size: devices × devices, each square with its rate or time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collbench.judge.tier_words import verdict_of
from collbench.judge.tiers import RankedLink, Ranking
from collbench.model.run import Run
from collbench.model.units import figure as printed
from collbench.model.units import format_size, sentence
from collbench.report.plot.figure import Named, Picture, clean, figure_of, origins, subject
from collbench.report.text.frame import sim
from collbench.report.text.matrix import DEVICES_WITH_DECIMALS, unit_of, value
from collbench.report.text.ranking import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SQUARE = 0.62  # inches
_SHORT = 6  # characters that fit above a square
_LONGEST = 24
_LETTER = 0.085  # inches that a character of the tick labels takes
_MISSING, _FAILED = "#E0E0E0", "#B3261E"
_DARK = 0.5  # luminance below which text is white


def draw(named: Named, ranking: Ranking) -> Picture:
    """Return the picture of a ranking of links or pairs, in GB/s, of small messages in µs, of a pointer chase in ns.

    A failed pair is hatched and says so; one that was not measured is grey with a dash; the diagonal is empty.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    run, count = named.run, len(named.run.devices)
    wide = count <= DEVICES_WITH_DECIMALS
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    names = _names(run)
    # Long names (of hosts) need room of their own, or the layout takes it from the squares.
    longer = max(0, max(map(len, names)) - _SHORT) * _LETTER
    inches = max(_SQUARE * count, 2.0) + 2.6 + longer
    quantity = "busbw, GB/s" if unit == "GB/s" and ranking.operation.is_collective else unit
    title = f"{subject([ranking.work], [named])} at {format_size(ranking.size_bytes)}, {quantity}"
    figure, axes = figure_of((inches, _SQUARE * count + 1.9 + longer), title, [named])
    colours = colormaps["viridis" if unit == "GB/s" else "viridis_r"]
    ranked = {link.pair: link for link in ranking.standings}
    points = (measurement.point for measurement in run.measurements if measurement.failure)
    failed = {point.members for point in points if (point.work, point.size_bytes) == (ranking.work, ranking.size_bytes)}
    if ranking.kind == "pair":
        ranked |= {pair[::-1]: link for pair, link in ranked.items()}
        failed |= {pair[::-1] for pair in failed}
    top = max(value(link.seconds, link.gbs, unit) for link in ranked.values())
    for row, column in ((row, column) for row in range(count) for column in range(count) if row != column):
        link = ranked.get((row, column))
        look: dict[str, Any] = {"facecolor": _MISSING}
        text, ink = "–", "black"
        if link is not None:
            figure_of_link = value(link.seconds, link.gbs, unit)
            colour = colours(figure_of_link / top)
            look, text = {"facecolor": colour}, printed(figure_of_link, decimals=int(wide))
            text += f"\ntier {link.tier}" if wide and ranking.tiers > 1 else ""  # where the square has room
            luminance = 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]  # Rec. 709
            ink = "white" if luminance < _DARK else "black"
        elif (row, column) in failed:
            look = {"facecolor": "white", "edgecolor": _FAILED, "hatch": "////"}
            text, ink = "failed", _FAILED
        fontsize = 8.0 if wide else 7.0
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if text == "failed" else None
        square(axes, row, column, look, text, color=ink, fontsize=fontsize, bbox=box)
    frame(axes, names, names)
    axes.set_aspect("equal")
    axes.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.tick_params(axis="x", rotation=90 if max(map(len, names)) > _SHORT else 0)
    axes.xaxis.set_label_position("top")
    if ranking.kind == "link":
        axes.set_xlabel("to")
        axes.set_ylabel("from")
    # From 0, so that links that tie look alike.
    figure.colorbar(ScalarMappable(Normalize(0, top), colours), ax=axes, label=quantity, shrink=0.8)
    tips = {f"square-{row}-{column}": _tip(run, ranking, link, unit) for (row, column), link in ranked.items()}
    numbers = [value(link.seconds, link.gbs, unit) for link in ranking.standings]
    how = "Row sends to column" if ranking.kind == "link" else "One number for each pair"
    many = f"{len(numbers)} {ranking.kind}s, {printed(min(numbers))} to {printed(max(numbers))} {unit}"
    return Picture(figure, title, f"{how}: {many}. {sentence(verdict_of(ranking))} {origins([named])}", tips)


def _names(run: Run) -> list[str]:
    """Return the names of rows and columns; of a long one its end, which has the GPU's index."""
    one_host = len({device.host for device in run.devices}) == 1
    hosts = ["" if one_host else device.host.partition(".")[0] for device in run.devices]
    names = [clean(replace(device, host=host).tag) for device, host in zip(run.devices, hosts, strict=True)]
    return [name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}" for name in names]


def square(axes: Axes, row: int, column: int, look: dict[str, Any], text: str, **style: Any) -> None:
    """Draw a square, `square-ROW-COLUMN` in the SVG, with its text in the middle."""
    from matplotlib.patches import Rectangle

    patch = Rectangle((column - 0.5, row - 0.5), 1, 1, **({"edgecolor": "white"} | look))
    patch.set_gid(f"square-{row}-{column}")
    axes.add_patch(patch)
    axes.text(column, row, text, ha="center", va="center", **style)


def frame(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Set the axes of a map of squares: the first row on top, names without ticks, no border."""
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _tip(run: Run, ranking: Ranking, link: RankedLink, unit: str) -> str:
    number = printed(value(link.seconds, link.gbs, unit), 2)
    rate = f"{sim(run)}{name(run, ranking.work, link.members)}: {number}"
    interval = link.interval if unit == "GB/s" else None
    between = f" (95%: {printed(interval[0], 2)} to {printed(interval[1], 2)})" if interval else ""
    return f"{rate} {unit}{between}, {link.label}, tier {link.tier}, {link.relation}"
