"""The tables of docs/results.md in markdown, from the files of a session, with published figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from collbench.ablations.ablation import ArmResult, Ratio

from . import bound, results
from .bound import Pair
from .results import AblationResult

MISSING = "*Not measured yet.*"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table with its first column aligned left and the figures aligned right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def picture(folder: Path, name: str, caption: str) -> list[str]:
    """Return the lines that show a picture of training_plots.py in a page of docs/; none without the picture."""
    path = folder / f"{name}.svg"
    return [f"![{caption}](../benchmarks/results/{folder.name}/{path.name})", ""] if path.exists() else []


def gpt2(folder: Path) -> list[str]:
    """Return the table of steps with and without P2P."""
    head = ("job", "GPUs", "step with P2P", "without", "ratio", "all-reduce of 64 MiB with, GB/s", "without")
    rows = [_gpt2_row(ablation_result) for ablation_result in results.ablations(folder)]
    if not rows:
        return []
    image_lines = picture(
        folder, "ablation", "Time of a training step with P2P and without, by strategy and number of GPUs"
    )
    return [*image_lines, *markdown(head, rows)]


def _gpt2_row(ablation_result: AblationResult) -> Sequence[str]:
    times = [_step(arm) for arm in ablation_result.result.arms]
    busbw = [
        {point.size_bytes: point.busbw_gbs for point in arm.allreduce}.get(1 << 26)
        for arm in ablation_result.ablation.arms
    ]
    busbw_texts = [f"{gbs:.1f}" if gbs is not None else "–" for gbs in busbw]
    return (
        ablation_result.job,
        results.hardware(ablation_result.ablation.gpus),
        *times,
        _ratio(ablation_result.result.ratio),
        *busbw_texts,
    )


def _step(arm: ArmResult) -> str:
    low, high = (1e3 * end for end in arm.interval)
    return f"{1e3 * arm.seconds:.2f} ms ({low:.2f}–{high:.2f})"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.middle:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def exposed(folder: Path) -> list[str]:
    """Return DDP's exposed communication: its step minus a step of the same session that exchanges nothing."""
    pairs = bound.pairs(folder)
    local = {pair.size: pair for pair in pairs if pair.fast["strategy"] == "local"}
    rows = [
        (pair.job, *pair.size, *_exposed(local[pair.size], pair))
        for pair in pairs
        if pair.fast["strategy"] == "ddp" and pair.size in local
    ]
    arms = ("never exchanged, with P2P / without, ms", "exposed with P2P, ms", "exposed without, ms")
    return markdown(("job", "GPUs", "batch per GPU", *arms), rows) if rows else []


def _exposed(local: Pair, job: Pair) -> Sequence[str]:
    local_ms = [results.step_ms(summary) for summary in (local.fast, local.slow)]
    job_ms = [results.step_ms(summary) for summary in (job.fast, job.slow)]
    exposed = [f"{step - local_step:.2f}" for step, local_step in zip(job_ms, local_ms, strict=True)]
    return (" / ".join(f"{local_step:.2f}" for local_step in local_ms), *exposed)


def bounds(folder: Path) -> list[str]:
    """Return the table of steps, the host's time in them, and their extra time without P2P, at two batches."""
    rows = list(bound.rows(folder))
    head = ("job", "GPUs", "batch per GPU", "step with P2P, ms", "the host's own, ms")
    return markdown((*head, "extra without P2P, ms"), rows) if rows else []


FIXED = {
    "per-gpu": "images per GPU",
    "raised": "images per GPU, rate × √GPUs",
    "global": "images a step",
    "one-gpu": "one GPU",
}


def scaling(data: dict[str, Any]) -> list[str]:
    """Return the table of a scaling file's series: time, speed-up, efficiency, accuracy."""
    head = ("fixed", "GPUs", "images a step", "steps", "time, s", "speed-up", "efficiency", "accuracy, %")
    rows = []
    for series in dict.fromkeys(row["series"] for row in data["rows"]):
        series_rows = [row for row in data["rows"] if row["series"] == series]
        series_rows.sort(key=lambda row: (row["gpus"], row["global_batch"]))
        # speed-ups are relative to the smallest number of GPUs in the list
        first_work = series_rows[0]["seconds"] * series_rows[0]["gpus"]
        rows += [_scaling_row(row, first_work) for row in series_rows]
    return markdown(head, rows) if rows else []


def _scaling_row(row: dict[str, Any], first_work: float) -> Sequence[str]:
    speed_up = first_work / row["seconds"]
    speed_up_and_efficiency = (
        ("–", "–") if row["series"] == "one-gpu" else (f"{speed_up:.2f}", f"{speed_up / row['gpus']:.0%}")
    )
    return (
        *_trained(row),
        f"{row['seconds']:.2f}",
        *speed_up_and_efficiency,
        f"{100 * fmean(accuracies(row)):.1f} ± {100 * margin(row):.1f}",
    )


def _trained(row: dict[str, Any]) -> Sequence[str]:
    return (FIXED[row["series"]], str(row["gpus"]), str(row["global_batch"]), str(row["steps"]))


def accuracies(row: dict[str, Any]) -> list[float]:
    """Return a job's accuracy for each seed."""
    shares: list[float] = row["accuracies"]
    return shares


def margin(row: dict[str, Any]) -> float:
    """Return half the width of the 95% interval of a job's mean accuracy: Student's t over seeds.

    With one seed it is the binomial interval over the held-out images, without the variation between trainings.
    """
    shares = accuracies(row)
    if len(shares) > 1:
        return float(student.ppf(0.975, len(shares) - 1)) * stdev(shares) / math.sqrt(len(shares))
    return 1.96 * math.sqrt(shares[0] * (1 - shares[0]) / row["held_out"])


def _scaling_of(folder: Path) -> list[str]:
    data = results.scaling(folder)
    if data is None:
        return []
    image_lines = picture(folder, "scaling", "Training time, efficiency and accuracy over the number of GPUs")
    return [*image_lines, *scaling(data)]


TABLES: dict[str, Callable[[Path], list[str]]] = {
    "gpt2": gpt2,
    "exposed": exposed,
    "bound": bounds,
    "scaling": _scaling_of,
}


def blocks(folder: Path | None) -> dict[str, str]:
    """Return each table by its name in the page; MISSING where nothing was measured. Raises ResultError."""
    existing_folder = folder or Path("/nonexistent")
    return {name: "\n".join(make_table(existing_folder)) or MISSING for name, make_table in TABLES.items()}
