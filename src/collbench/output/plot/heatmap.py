"""A heat map of one operation at one size: row and column are devices, every cell says its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collbench.analysis.tiers import RankedLink, Ranking
from collbench.model.capabilities import capabilities
from collbench.model.run import Run
from collbench.model.units import figure as printed
from collbench.model.units import format_size
from collbench.output.plot.figure import Named, Picture, clean, origins, small_print, subject
from collbench.output.text.matrix import DEVICES_WITH_DECIMALS, unit_of, value
from collbench.output.text.ranking import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

_CELL = 0.62  # inches
_MISSING = "#E0E0E0"
_DARK = 0.5  # luminance below which a figure is written in white


def draw(named: Named, ranking: Ranking) -> Picture:
    """Return the picture of a ranking of links or pairs, in GB/s, of small messages in µs, of a pointer chase in ns."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    run, count = named.run, len(named.run.devices)
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    inches = _CELL * count + 2.6
    figure = Figure(figsize=(inches, _CELL * count + 1.9), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["viridis" if unit == "GB/s" else "viridis_r"]
    standings = _by_place(ranking)
    top = max(value(standing.seconds, standing.gbs, unit) for standing in standings.values())
    for row in range(count):
        for column in range(count):
            if row != column:
                standing = standings.get((row, column))
                share = value(standing.seconds, standing.gbs, unit) / top if standing else None
                _cell(axes, (row, column), colours(share) if share is not None else None)
                axes.text(column, row, _figure(standing, unit, ranking, count), **_writing(colours, share, count))
    _frame(axes, run, ranking)
    # From 0, so that links that tie look alike.
    scale = ScalarMappable(Normalize(0, top), colours)
    figure.colorbar(scale, ax=axes, label=_unit(ranking, unit), shrink=0.8)
    title = f"{subject([ranking.work], [named])} at {format_size(ranking.size_bytes)}, {_unit(ranking, unit)}"
    figure.suptitle(title)
    figure.supxlabel(small_print([named], inches), fontsize=6.5, x=0.01, ha="left")
    tips = {f"cell-{row}-{column}": _tip(run, ranking, standings[row, column], unit) for row, column in standings}
    return Picture(figure, title, f"{_about(ranking, unit)} {origins([named])}", tips)


def _by_place(ranking: Ranking) -> dict[tuple[int, int], RankedLink]:
    placed = {standing.pair: standing for standing in ranking.standings}
    mirrored = {pair[::-1]: standing for pair, standing in placed.items()} if ranking.kind == "pair" else {}
    return mirrored | placed


def _cell(axes: Axes, place: tuple[int, int], colour: tuple[float, float, float, float] | None) -> None:
    from matplotlib.patches import Rectangle

    row, column = place
    patch = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour or _MISSING, edgecolor="white")
    patch.set_gid(f"cell-{row}-{column}")
    axes.add_patch(patch)


def _figure(standing: RankedLink | None, unit: str, ranking: Ranking, count: int) -> str:
    """Return a cell's text: its figure, and below it the tier where there are several and room."""
    if standing is None:
        return "–"
    wide = count <= DEVICES_WITH_DECIMALS
    told = printed(value(standing.seconds, standing.gbs, unit), decimals=int(wide))
    return f"{told}\ntier {standing.tier}" if wide and ranking.tiers > 1 else told


def _writing(colours: Colormap, share: float | None, count: int) -> dict[str, Any]:
    red, green, blue, _ = (1.0, 1.0, 1.0, 1.0) if share is None else colours(share)
    dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < _DARK  # Rec. 709
    size = 8.0 if count <= DEVICES_WITH_DECIMALS else 7.0
    return {"ha": "center", "va": "center", "color": "white" if dark else "black", "fontsize": size}


def _frame(axes: Axes, run: Run, ranking: Ranking) -> None:
    count = len(run.devices)
    tags = [clean(device.tag, 12) for device in run.devices]
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xticks(range(count), tags if count <= DEVICES_WITH_DECIMALS else [str(d.index) for d in run.devices])
    axes.set_yticks(range(count), tags)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.xaxis.set_label_position("top")
    if ranking.kind == "link":
        axes.set_xlabel("to")
        axes.set_ylabel("from")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _unit(ranking: Ranking, unit: str) -> str:
    if unit != "GB/s":
        return unit
    return "busbw, GB/s" if ranking.operation.is_collective else "GB/s"


def _tip(run: Run, ranking: Ranking, standing: RankedLink, unit: str) -> str:
    sim = "sim " if capabilities(run.backend).simulated else ""
    figure = printed(value(standing.seconds, standing.gbs, unit), 2)
    told = f"{sim}{name(run, ranking.work, standing.members)}: {figure}"
    interval = standing.interval if unit == "GB/s" else None
    between = f" (95 %: {printed(interval[0], 2)} to {printed(interval[1], 2)})" if interval else ""
    return f"{told} {unit}{between}, {standing.label}, tier {standing.tier}, {standing.relation}"


def _about(ranking: Ranking, unit: str) -> str:
    figures = [value(standing.seconds, standing.gbs, unit) for standing in ranking.standings]
    how = "Row sends to column" if ranking.kind == "link" else "A figure for each pair"
    many = f"{len(figures)} {ranking.kind}s, {printed(min(figures))} to {printed(max(figures))} {unit}"
    return f"{how}: {many}. {ranking.verdict[0].upper()}{ranking.verdict[1:]}."
