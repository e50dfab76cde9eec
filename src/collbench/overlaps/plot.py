"""How much collectives slow down when they overlap compute: over message size, or as a map of conditions × sizes."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.model.capabilities import capabilities
from collbench.model.run import Run
from collbench.model.units import fixed, format_size
from collbench.overlaps.factors import Condition, OverlapSummary, by_condition, summarize
from collbench.overlaps.page import condition_name
from collbench.overlaps.results import overlaps_of
from collbench.report.plot import curves, heatmap
from collbench.report.plot.figure import Named, Picture, clean, figure_of, origins
from collbench.report.text.frame import sim

_COLUMN, _ROW = 0.8, 0.4  # inches of a square
_LETTER = 0.07  # inches that a character of the names takes
_QUANTITY = "time overlapping compute / time alone"
_DARK = 0.6  # share of the scale above which text is white
Summaries = dict[int, OverlapSummary]  # by size in bytes


def draw_curves(runs: Sequence[Named]) -> Picture:
    """Return the picture of the collectives' factors over size, a line with 95% intervals for each condition."""
    simulated = {capabilities(named.run.backend).simulated for named in runs}
    mark = "sim " if simulated == {True} else "(some sim) " if True in simulated else ""
    title = f"{mark}overlap with compute over message size"
    figure, axes = figure_of(curves.SIZE, title, runs)
    strokes = []
    for named in runs:
        of_run = f"{sim(named.run)}{clean(named.name, 30)}: " if len(runs) > 1 else ""
        for condition, summaries in _measured(named.run):
            figures = {size: summary.collective_factor for size, summary in summaries.items()}
            values = {size: factor.value for size, factor in figures.items()}
            band = {size: factor.interval for size, factor in figures.items() if factor.interval is not None}
            strokes.append(curves.Stroke(f"{of_run}{clean(condition_name(condition), 60)}", values, band))
    for number, line in enumerate(strokes):
        curves.stroke(axes, line, number)
    curves.frame(axes, strokes, (), f"{_QUANTITY}, ×")
    axes.set_xlabel("message size, bytes (bands: 95% interval)")
    about = []
    for line in strokes:
        factors = ", ".join(f"{fixed(value, 3)} × at {format_size(size)}" for size, value in line.rates.items())
        about.append(f"{line.name}: {factors}.")
    return Picture(figure, title, " ".join([*about, origins(runs)]))


def draw_heatmap(named: Named) -> Picture:
    """Return the picture of the collectives' factors, a row for each condition and a column for each size."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    rows = _measured(named.run)
    sizes = sorted({size for _, summaries in rows for size in summaries})
    names = [clean(condition_name(condition), 60) for condition, _ in rows]
    title = f"{sim(named.run)}overlap, {_QUANTITY}"
    inches = (_COLUMN * len(sizes) + 1.6 + _LETTER * max(map(len, names)), _ROW * len(rows) + 1.4)
    figure, axes = figure_of(inches, title, [named])
    top = max(one.collective_factor.value for _, summaries in rows for one in summaries.values())
    colours, tips = colormaps["viridis_r"], {}
    for row, (condition, summaries) in enumerate(rows):
        for column, size in enumerate(sizes):
            one = summaries.get(size)
            share = one.collective_factor.value / top if one else 0.0
            look = colours(share) if one else "#E0E0E0"
            text = f"{one.collective_factor.value:.2f}" if one else "–"
            ink = "white" if share > _DARK else "black"
            heatmap.square(axes, row, column, {"facecolor": look}, text, color=ink, fontsize=8.0)
            if one:
                tips[f"square-{row}-{column}"] = (
                    f"{sim(named.run)}{format_size(size)} {condition_name(condition)}: {text} × as long; the "
                    f"{condition.compute.kind} {one.compute_factor.value:.2f} ×"
                )
    heatmap.frame(axes, names, [format_size(size) for size in sizes])
    figure.colorbar(ScalarMappable(Normalize(0, top), colours), ax=axes, label="×", shrink=0.8)
    return Picture(figure, title, f"{'. '.join(tips.values())}. {origins([named])}", tips)


def _measured(run: Run) -> list[tuple[Condition, Summaries]]:
    """Return the measured data points of each condition that has any."""
    measured = [
        (condition, {one.size_bytes: summarize(one) for one in points if one.trials})
        for condition, points in by_condition(overlaps_of(run)).items()
    ]
    return [(condition, summaries) for condition, summaries in measured if summaries]
