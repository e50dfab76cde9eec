"""What a collective and compute cost each other: their factors over message size, or conditions × sizes as a map."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.analysis.overlap import Condition, OverlapSummary, by_condition, summarize
from collbench.model.capabilities import capabilities
from collbench.model.run import Run
from collbench.model.units import fixed, format_size
from collbench.output.plot.curves import Stroke, frame, stroke
from collbench.output.plot.figure import Named, Picture, clean, figure_of, origins
from collbench.output.text.overlap import condition_name

_WIDTH, _HEIGHT = 7.2, 4.4  # inches
_COLUMN, _ROW = 0.8, 0.4  # inches of a square
_LETTER = 0.07  # inches that a character of the names takes
_HEADROOM = 1.07
_QUANTITY = "time overlapping compute / time alone"
_DARK = 0.6  # of the scale, from where the ink is black
Summaries = dict[int, OverlapSummary]  # by size in bytes


def curves(runs: Sequence[Named]) -> Picture:
    """Return the picture of the collectives' factors over size, a line with 95 % intervals for each condition."""
    lines = [
        (_called(named, condition, runs), summaries) for named in runs for condition, summaries in _measured(named.run)
    ]
    title = f"{_sim(runs)}overlap with compute over message size"
    figure, axes = figure_of((_WIDTH, _HEIGHT), title, runs)
    strokes = []
    for number, (name, summaries) in enumerate(lines):
        factors = {size: one.collective_factor for size, one in summaries.items()}
        band = {size: factor.interval for size, factor in factors.items() if factor.interval is not None}
        strokes.append(Stroke(name, {size: factor.value for size, factor in factors.items()}, band, 0))
        stroke(axes, strokes[-1], number)
    ends = [end for line in strokes for ends in line.band.values() for end in ends]
    top = max([*ends, *(value for line in strokes for value in line.rates.values())])
    frame(axes, sorted({size for line in strokes for size in line.rates}), _HEADROOM * top, f"{_QUANTITY}, ×")
    axes.set_xlabel("message size, bytes (bands: 95 % interval)")
    about = [f"{line.name}: {_factors(line)}." for line in strokes]
    return Picture(figure, title, " ".join([*about, origins(runs)]))


def heatmap(named: Named) -> Picture:
    """Return the picture of the collectives' factors, a row for each condition and a column for each size."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    rows = _measured(named.run)
    sizes = sorted({size for _, summaries in rows for size in summaries})
    names = [clean(condition_name(condition), 60) for condition, _ in rows]
    title = f"{_sim([named])}overlap, {_QUANTITY}"
    inches = (_COLUMN * len(sizes) + 1.6 + _LETTER * max(map(len, names)), _ROW * len(rows) + 1.4)
    figure, axes = figure_of(inches, title, [named])
    top = max(one.collective_factor.value for _, summaries in rows for one in summaries.values())
    colours, tips = colormaps["viridis_r"], {}
    for row, (condition, summaries) in enumerate(rows):
        for column, size in enumerate(sizes):
            one = summaries.get(size)
            share = one.collective_factor.value / top if one else 0.0
            look = colours(share) if one else "#E0E0E0"
            square = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=look, edgecolor="white")
            square.set_gid(f"square-{row}-{column}")
            axes.add_patch(square)
            text = f"{one.collective_factor.value:.2f}" if one else "–"
            ink = "white" if share > _DARK else "black"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8.0)
            if one:
                tips[f"square-{row}-{column}"] = (
                    f"{_sim([named])}{format_size(size)} {condition_name(condition)}: {text} × as long; the "
                    f"{condition.compute.kind} {one.compute_factor.value:.2f} ×"
                )
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(sizes)), [format_size(size) for size in sizes])
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.colorbar(ScalarMappable(Normalize(0, top), colours), ax=axes, label="×", shrink=0.8)
    return Picture(figure, title, f"{'. '.join(tips.values())}. {origins([named])}", tips)


def _measured(run: Run) -> list[tuple[Condition, Summaries]]:
    """Return the measured data points of each condition that has any."""
    measured = [
        (condition, {one.size_bytes: summarize(one) for one in points if one.trials})
        for condition, points in by_condition(run.overlaps).items()
    ]
    return [(condition, summaries) for condition, summaries in measured if summaries]


def _called(named: Named, condition: Condition, runs: Sequence[Named]) -> str:
    front = f"{_sim([named])}{clean(named.name, 30)}: " if len(runs) > 1 else ""
    return f"{front}{clean(condition_name(condition), 60)}"


def _sim(runs: Sequence[Named]) -> str:
    simulated = {capabilities(named.run.backend).simulated for named in runs}
    return "sim " if simulated == {True} else "(some sim) " if True in simulated else ""


def _factors(line: Stroke) -> str:
    return ", ".join(f"{fixed(value, 3)} × at {format_size(size)}" for size, value in line.rates.items())
