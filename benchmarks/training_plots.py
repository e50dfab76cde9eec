#!/usr/bin/env python3
"""Draws what a session of training.sh measured: steps with and without P2P, scaling.

    python benchmarks/training_plots.py benchmarks/results/DATE-MACHINE

Only reads files, and writes ablation.svg and scaling.svg next to them, if their figures exist.
The same files give the same bytes. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from training import published, results
from training.picture import COLOURS, MARKERS, Picture, drawing, svg
from training.results import AblationResult, ResultError
from training.tables import accuracies, margin

from collbench.model.errors import CollbenchError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.38  # width; each job has two
_NAMES = {"per-gpu": "images per GPU fixed", "global": "images a step fixed"}
_FOR_ACCURACY = {"one-gpu": "one GPU, as large steps", "raised": "images per GPU fixed, rate × √GPUs"}


def _figure(columns: int, title: str, footnote: str, *, wide: float) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, 3.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title)
    # 17 characters of 6.5 points fit on an inch
    figure.supxlabel(textwrap.fill(footnote, int(wide * 17)), fontsize=6.5, x=0.01, ha="left")
    return figure, axes


def ablation(folder: Path) -> Picture | None:
    """Return the picture of steps with and without P2P: two bars for each job, with 95% intervals."""
    ablations = results.ablations(folder)
    if not ablations:
        return None
    first = ablations[0].ablation
    most_gpus = max(ablations, key=lambda ablation_result: ablation_result.ranks).ablation
    title = "What P2P is worth to GPT-2 124M: time of a training step"
    footnote = (
        f"{first.hostname}, {results.hardware(most_gpus.gpus)}{_backend(first.backend)}; collbench {first.collbench}, "
    )
    footnote += f"{first.started[:10]}. Bars: geometric mean of the runs' medians; lines: 95%; numbers: their ratio"
    figure, (axes,) = _figure(1, title, footnote, wide=max(5.0, 1.3 * len(ablations)))
    for number, name in enumerate(("with P2P", "without")):
        _arm(axes, ablations, number, name)
    highest = [1e3 * max(arm.interval[1] for arm in ablation_result.result.arms) for ablation_result in ablations]
    for index, (ablation_result, highest_ms) in enumerate(zip(ablations, highest, strict=True)):
        axes.annotate(
            f"{ablation_result.result.ratio.middle:.2f}×",
            (index, highest_ms),
            (0, 4),
            textcoords="offset points",
            ha="center",
        )
    axes.set_xticks(
        range(len(ablations)), [f"{ablation_result.job}\n{ablation_result.ranks} GPUs" for ablation_result in ablations]
    )
    axes.set_ylabel("step, ms")
    axes.set_ylim(0, 1.25 * max(highest))  # room for the legend
    axes.legend(frameon=False, loc="upper left", ncols=2)
    return Picture(figure, title, f"{footnote}. {'; '.join(map(_description, ablations))}")


def _arm(axes: Axes, ablations: Sequence[AblationResult], number: int, name: str) -> None:
    arms = [ablation_result.result.arms[number] for ablation_result in ablations]
    positions = [index + (number - 0.5) * _BAR for index in range(len(ablations))]
    steps = [1e3 * arm.seconds for arm in arms]
    below = [step - 1e3 * arm.interval[0] for step, arm in zip(steps, arms, strict=True)]
    above = [1e3 * arm.interval[1] - step for step, arm in zip(steps, arms, strict=True)]
    hatch = "//" if number else None  # so that a gray print shows the difference
    axes.bar(positions, steps, _BAR, color=COLOURS[number], edgecolor="white", hatch=hatch, label=name)
    axes.errorbar(positions, steps, [below, above], fmt="none", ecolor="black", capsize=2, linewidth=0.8)


def _description(ablation_result: AblationResult) -> str:
    with_p2p, without = (f"{1e3 * arm.seconds:.1f} ms" for arm in ablation_result.result.arms)
    return f"{ablation_result.job} on {ablation_result.ranks} GPUs {with_p2p}, without {without}"


def _backend(name: str) -> str:
    return {"host": " (CPU cores, host backend)", "sim": " (sim)"}.get(name, "")


def scaling(folder: Path) -> Picture | None:
    """Return the picture of time, efficiency and accuracy over the number of GPUs, with the published ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    data, repeated = results.scaling(folder), results.repeated(folder)
    if data is None or repeated is None or not data["rows"]:
        return None
    gpus = results.hardware([data["rows"][0]["device"]] * max(row["gpus"] for row in data["rows"]))
    title = f"{data['network']} on more GPUs: time, efficiency, accuracy"
    footnote = f"{data['hostname']}, {gpus}, {data['started'][:10]}; {data['settings']['epochs']} epochs of "
    footnote += f"{data['settings']['images']} synthetic images. Published: EfficientNet, CIFAR-10, 25 epochs, A100"
    figure, (time, efficiency, accuracy) = _figure(3, title, footnote, wide=9.0)
    series = _series(data)
    for number, (name, points) in enumerate(series.items()):
        _line(time, points, "seconds", name, number)
        _line(efficiency, points, "efficiency", name, number)
        _line(accuracy, points, "accuracy", name, number)
    for number, (key, name) in enumerate(_FOR_ACCURACY.items(), len(series)):
        if points := _reached(repeated, key):
            _line(accuracy, points, "accuracy", name, number)
    handles, names = accuracy.get_legend_handles_labels()
    if len(handles) > len(series):  # the first plot names its own lines
        accuracy.legend(handles[len(series) :], names[len(series) :], frameon=False, fontsize=7)
    for axes, label in ((time, "training time, s"), (efficiency, "efficiency, %"), (accuracy, "held-out accuracy, %")):
        axes.set_xlabel("GPUs")
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
    time.set_yscale("log")
    time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    time.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    time.yaxis.set_minor_formatter(NullFormatter())
    efficiency.set_ylim(0, 110)
    time.legend(frameon=False, fontsize=7)
    return Picture(figure, title, footnote)


def _series(data: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Return points by the series' name: gpus, seconds; efficiency, accuracy and margin in percent."""
    points_by_series: dict[str, list[dict[str, float]]] = {}
    for row in sorted(data["rows"], key=lambda row: row["gpus"]):
        if row["series"] not in _NAMES:
            continue
        point = {"gpus": row["gpus"], "seconds": row["seconds"], "accuracy": 100 * fmean(accuracies(row))}
        points_by_series.setdefault(_NAMES[row["series"]], []).append(point | {"margin": 100 * margin(row)})
    points_by_series["published"] = [
        {"gpus": row.gpus, "seconds": row.seconds, "accuracy": row.accuracy} for row in published.IMAGES
    ]
    for points in points_by_series.values():
        work = points[0]["seconds"] * points[0]["gpus"]
        for point in points:
            point["efficiency"] = 100 * work / point["seconds"] / point["gpus"]
    return points_by_series


def _reached(data: dict[str, Any], series: str) -> list[dict[str, float]]:
    """Return the accuracies of a series; `gpus` is the number whose step size it is, also where one GPU trains."""
    rows = [row for row in data["rows"] if row["series"] == series]
    return [
        {
            "gpus": row["global_batch"] / data["settings"]["batch"],
            "accuracy": 100 * fmean(accuracies(row)),
            "margin": 100 * margin(row),
        }
        for row in sorted(rows, key=lambda row: row["global_batch"])
    ]


def _line(axes: Axes, points: Sequence[dict[str, float]], what: str, name: str, number: int) -> None:
    x, y = [point["gpus"] for point in points], [point[what] for point in points]
    margins = [point["margin"] for point in points] if what == "accuracy" and "margin" in points[0] else None
    style = ":" if name == "published" else "-"
    axes.errorbar(x, y, margins, color=COLOURS[number], marker=MARKERS[number], ls=style, label=name, capsize=2, ms=4)


PICTURES: dict[str, Callable[[Path], Picture | None]] = {
    "ablation": ablation,
    "scaling": scaling,
}


def main(argv: Sequence[str]) -> int:
    """Draw the pictures that have results; return the exit status."""
    parser = argparse.ArgumentParser(description="pictures of a session of training.sh")
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args(argv).folder
    drawn = 0
    try:
        for name, draw in PICTURES.items():
            with drawing():
                picture = draw(folder)
                if picture is None:
                    continue
                (folder / f"{name}.svg").write_bytes(svg(picture))
            print(folder / f"{name}.svg")
            drawn += 1
    except (CollbenchError, ResultError, OSError) as error:
        print(f"training_plots: {error}", file=sys.stderr)
        return 2
    if not drawn:
        print(f"training_plots: {folder} holds no results to draw: name a folder of training.sh", file=sys.stderr)
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
