#!/usr/bin/env python3
"""Draws what a session of training.sh measured: steps with and without P2P, scaling, predicted against measured.

    python benchmarks/training_plots.py benchmarks/results/DATE-MACHINE

Reads files only, and writes ablation.svg, scaling.svg and predicted.svg beside them, those for which there are figures.
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
from training.results import Compared, ResultError
from training.tables import accuracies, margin

from collbench.model.errors import CollbenchError
from collbench.output.plot.figure import COLOURS, MARKERS, Picture, drawing, encode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.38  # width, two beside each other a job
_NAMES = {"per-gpu": "images per GPU fixed", "global": "images a step fixed"}
_FOR_ACCURACY = {"one-gpu": "one GPU, as large steps", "raised": "images per GPU fixed, rate × √GPUs"}


def _figure(columns: int, title: str, about: str, *, wide: float) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, 3.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title)
    # 17 characters of 6.5 points fit on an inch
    figure.supxlabel(textwrap.fill(about, int(wide * 17)), fontsize=6.5, x=0.01, ha="left")
    return figure, axes


def ablation(folder: Path) -> Picture | None:
    """Return the steps with and without P2P, a pair of bars for each job, with 95 % intervals."""
    found = results.ablations(folder)
    if not found:
        return None
    first = found[0].ablation
    most = max(found, key=lambda one: one.ranks).ablation
    title = "What P2P is worth to GPT-2 124M: time of a training step"
    about = f"{first.hostname}, {results.hardware(most.gpus)}{_backend(first.backend)}; collbench {first.collbench}, "
    about += f"{first.started[:10]}. Bars: geometric mean of the runs' medians; lines: 95 %; numbers: their ratio"
    figure, (axes,) = _figure(1, title, about, wide=max(5.0, 1.3 * len(found)))
    for number, name in enumerate(("with P2P", "without")):
        _arm(axes, found, number, name)
    highest = [1e3 * max(arm.interval[1] for arm in one.result.arms) for one in found]
    for index, (one, top) in enumerate(zip(found, highest, strict=True)):
        axes.annotate(f"{one.result.ratio.middle:.2f}×", (index, top), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(found)), [f"{one.job}\n{one.ranks} GPUs" for one in found])
    axes.set_ylabel("step, ms")
    axes.set_ylim(0, 1.25 * max(highest))  # room for the legend
    axes.legend(frameon=False, loc="upper left", ncols=2)
    return Picture(figure, title, f"{about}. {'; '.join(map(_words, found))}")


def _arm(axes: Axes, found: Sequence[Compared], number: int, name: str) -> None:
    arms = [one.result.arms[number] for one in found]
    places = [index + (number - 0.5) * _BAR for index in range(len(found))]
    steps = [1e3 * arm.seconds for arm in arms]
    below = [step - 1e3 * arm.interval[0] for step, arm in zip(steps, arms, strict=True)]
    above = [1e3 * arm.interval[1] - step for step, arm in zip(steps, arms, strict=True)]
    hatch = "//" if number else None  # distinguished in grey, too
    axes.bar(places, steps, _BAR, color=COLOURS[number], edgecolor="white", hatch=hatch, label=name)
    axes.errorbar(places, steps, [below, above], fmt="none", ecolor="black", capsize=2, linewidth=0.8)


def _words(one: Compared) -> str:
    with_p2p, without = (f"{1e3 * arm.seconds:.1f} ms" for arm in one.result.arms)
    return f"{one.job} on {one.ranks} GPUs {with_p2p}, without {without}"


def _backend(name: str) -> str:
    return {"host": " (CPU cores, host backend)", "sim": " (sim)"}.get(name, "")


def scaling(folder: Path) -> Picture | None:
    """Return time, efficiency and accuracy over the number of GPUs, beside the published table's."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    data, repeated = results.scaling(folder), results.repeated(folder)
    if data is None or repeated is None or not data["rows"]:
        return None
    gpus = results.hardware([data["rows"][0]["device"]] * max(row["gpus"] for row in data["rows"]))
    title = f"{data['network']} on more GPUs: time, efficiency, accuracy"
    about = f"{data['hostname']}, {gpus}, {data['started'][:10]}; {data['settings']['epochs']} epochs of "
    about += f"{data['settings']['images']} synthetic images. Published: EfficientNet, CIFAR-10, 25 epochs, A100"
    figure, (time, efficiency, right) = _figure(3, title, about, wide=9.0)
    series = _series(data)
    for number, (name, points) in enumerate(series.items()):
        _line(time, points, "seconds", name, number)
        _line(efficiency, points, "efficiency", name, number)
        _line(right, points, "accuracy", name, number)
    for number, (key, name) in enumerate(_FOR_ACCURACY.items(), len(series)):
        if points := _reached(repeated, key):
            _line(right, points, "accuracy", name, number)
    handles, names = right.get_legend_handles_labels()
    if len(handles) > len(series):  # the first plot names its own lines
        right.legend(handles[len(series) :], names[len(series) :], frameon=False, fontsize=7)
    for axes, label in ((time, "training time, s"), (efficiency, "efficiency, %"), (right, "held-out accuracy, %")):
        axes.set_xlabel("GPUs")
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
    time.set_yscale("log")
    time.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    time.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    time.yaxis.set_minor_formatter(NullFormatter())
    efficiency.set_ylim(0, 110)
    time.legend(frameon=False, fontsize=7)
    return Picture(figure, title, about)


def _series(data: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Return points of (gpus, seconds, efficiency, accuracy, margin), per cent, by the series' name."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in sorted(data["rows"], key=lambda row: row["gpus"]):
        if row["series"] not in _NAMES:
            continue
        point = {"gpus": row["gpus"], "seconds": row["seconds"], "accuracy": 100 * fmean(accuracies(row))}
        found.setdefault(_NAMES[row["series"]], []).append(point | {"margin": 100 * margin(row)})
    found["published"] = [
        {"gpus": one.gpus, "seconds": one.seconds, "accuracy": one.accuracy} for one in published.IMAGES
    ]
    for points in found.values():
        work = points[0]["seconds"] * points[0]["gpus"]
        for point in points:
            point["efficiency"] = 100 * work / point["seconds"] / point["gpus"]
    return found


def _reached(data: dict[str, Any], series: str) -> list[dict[str, float]]:
    """Return the accuracies of a series; gpus are those whose steps they are, also where one GPU takes them."""
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


def predicted(folder: Path) -> Picture | None:
    """Return predicted over measured extra time of a step, with the predicted band and the measured interval."""
    data = results.loaded(folder / "predicted.json")
    if data is None or not data["cells"]:
        return None
    first = max(results.ablations(folder), key=lambda one: one.ranks).ablation
    title = "Extra time of a step without P2P: predicted against measured"
    about = f"{first.hostname}, {results.hardware(first.gpus)}, {first.started[:10]}; shaded: 25 % around equal; "
    about += "hollow: predicted without knowing the host's own time"
    figure, (axes,) = _figure(1, title, about, wide=5.2)
    for number, cell in enumerate(data["cells"]):
        x, y = cell["measured_ms"], cell["predicted_ms"]
        tall, wide = ([[one["middle"] - one["low"]], [one["high"] - one["middle"]]] for one in (y, x))
        style: dict[str, Any] = {
            "marker": MARKERS[number % len(MARKERS)],
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": "none",
        }
        axes.errorbar(x["middle"], y["middle"], tall, wide, label=cell["label"], capsize=2, **style)
        if cell.get("without_host"):
            axes.plot(x["middle"], cell["without_host"]["predicted_ms"]["middle"], fillstyle="none", **style)
    most = 1.1 * max(cell[key]["high"] for cell in data["cells"] for key in ("measured_ms", "predicted_ms"))
    axes.fill_between([0, most], [0, 0.75 * most], [0, 1.25 * most], color="#7F7F7F", alpha=0.2, linewidth=0)
    axes.plot([0, most], [0, most], color="#595959", linewidth=0.8)
    axes.set(xlabel="measured, ms", ylabel="predicted, ms", xlim=(0, most), ylim=(0, most))
    axes.legend(frameon=False, fontsize=7)
    errors = "; ".join(f"{cell['label']} {cell['error']:+.0%}" for cell in data["cells"])
    return Picture(figure, title, f"{about}. Errors: {errors}")


PICTURES: dict[str, Callable[[Path], Picture | None]] = {
    "ablation": ablation,
    "scaling": scaling,
    "predicted": predicted,
}


def main(argv: Sequence[str]) -> int:
    """Draw what there is; return the exit status."""
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
                (folder / f"{name}.svg").write_bytes(encode(picture, "svg"))
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
