"""The tables of docs/results.md in markdown, from the files of a session, beside what others published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from collbench.launch.ablation import ArmResult, Ratio
from collbench.model.units import format_size

from . import bound, published, results
from .bound import Pair
from .results import Compared, Curve

MISSING = "*Not measured yet.*"
_SIZES = (1 << 20, 1 << 24, 1 << 26, 1 << 30)  # of messages, in the table of curves


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table, its first column to the left and the figures to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def headline(folder: Path) -> list[str]:
    """Return a sentence for each ablation: what the job loses without P2P."""
    return [f"- {_sentence(one)}" for one in results.ablations(folder)]


def picture(folder: Path, name: str, says: str) -> list[str]:
    """Return the lines that show a picture of training_plots.py in a page of docs/; none where it was not drawn."""
    path = folder / f"{name}.svg"
    return [f"![{says}](../benchmarks/results/{folder.name}/{path.name})", ""] if path.exists() else []


def _sentence(one: Compared) -> str:
    ratio = one.result.ratio
    where = f"{one.job} on {results.hardware(one.ablation.gpus)}"
    if ratio.low <= 1 <= ratio.high:
        return f"{where}: no difference shown, a step takes {_ratio(ratio)} times as long without P2P."
    return f"{where}: a step takes **{ratio.middle:.2f} times** as long without P2P ({ratio.low:.2f}–{ratio.high:.2f})."


def gpt2(folder: Path) -> list[str]:
    """Return the steps with and without P2P, and the published ones below."""
    head = ("job", "GPUs", "step with P2P", "without", "ratio", "all-reduce of 64 MiB with, GB/s", "without")
    rows = [_gpt2_row(one) for one in results.ablations(folder)]
    if not rows:
        return []
    old = [(one.job, one.gpus, one.fast, one.slow, f"{one.ratio:.2f}", "–", "–") for one in published.LANGUAGE]
    shown = picture(folder, "ablation", "Time of a training step with P2P and without, by strategy and number of GPUs")
    return [*shown, *markdown(head, [*rows, *old])]


def _gpt2_row(one: Compared) -> Sequence[str]:
    times = [_step(arm) for arm in one.result.arms]
    speeds = [{some.size_bytes: some.busbw_gbs for some in arm.allreduce}.get(1 << 26) for arm in one.ablation.arms]
    shown = [f"{speed:.1f}" if speed is not None else "–" for speed in speeds]
    return (one.job, results.hardware(one.ablation.gpus), *times, _ratio(one.result.ratio), *shown)


def _step(arm: ArmResult) -> str:
    low, high = (1e3 * end for end in arm.interval)
    return f"{1e3 * arm.seconds:.2f} ms ({low:.2f}–{high:.2f})"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.middle:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def exposed(folder: Path) -> list[str]:
    """Return what of DDP's step waits for communication: the step less one of the same sitting that never exchanges."""
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
    never = [results.step_ms(one) for one in (local.fast, local.slow)]
    steps = [results.step_ms(one) for one in (job.fast, job.slow)]
    waits = [f"{step - alone:.2f}" for step, alone in zip(steps, never, strict=True)]
    return (" / ".join(f"{alone:.2f}" for alone in never), *waits)


def buckets(folder: Path) -> list[str]:
    """Return the messages that DDP sends in a step, in their order."""
    found = results.buckets(folder)
    rows = [(job, str(len(sizes)), ", ".join(f"{size / 2**20:.1f}" for size in sizes)) for job, sizes in found.items()]
    return markdown(("job", "all-reduces", "MiB each, in order"), rows) if rows else []


def bounds(folder: Path) -> list[str]:
    """Return the host's own time of a step beside the step, and what the wires are worth, at two batches."""
    rows = list(bound.rows(folder))
    head = ("job", "GPUs", "batch per GPU", "step with P2P, ms", "the host's own, ms")
    return markdown((*head, "extra without P2P, ms", "predicted extra, ms"), rows) if rows else []


def curves(folder: Path) -> list[str]:
    """Return the bandwidth of the collectives that training uses, with P2P and without."""
    pairs: dict[tuple[str, int], dict[bool, Curve]] = {}
    for curve in results.curves(folder):
        pairs.setdefault((curve.operation, curve.ranks), {})[curve.p2p] = curve
    rows = [
        (operation, str(ranks), *(_both(both, size) for size in _SIZES))
        for (operation, ranks), both in sorted(pairs.items())
    ]
    head = ("busbw with P2P / without, GB/s", "GPUs", *(format_size(size) for size in _SIZES))
    return markdown(head, rows) if rows else []


def _both(curve: dict[bool, Curve], size: int) -> str:
    speeds = (curve[p2p].busbw.get(size) if p2p in curve else None for p2p in (True, False))
    return " / ".join(f"{speed:.1f}" if speed is not None else "–" for speed in speeds)


def predicted(folder: Path) -> list[str]:
    """Return predicted beside measured extra time of a step, from benchmarks/predicted.py's JSON."""
    data = results.loaded(folder / "predicted.json")
    if data is None:
        return []
    rows = []
    for cell in data["cells"]:
        alone = cell.get("without_host") or cell  # two lanes, where the cell also has the host's
        knows = cell if cell.get("without_host") else None
        mine = [f"{_span(one['predicted_ms'])}, {one['error']:+.0%}" if one else "–" for one in (alone, knows)]
        rows.append((cell["label"], _span(cell["measured_ms"]), *mine))
    head = ("job", "measured extra, ms", "predicted extra, ms, and error", "the same, knowing the host")
    shown = picture(folder, "predicted", "Extra time of a step without P2P, predicted over measured")
    return [*shown, *markdown(head, rows)]


def _span(span: dict[str, float]) -> str:
    return f"{span['middle']:.2f} ({span['low']:.2f} to {span['high']:.2f})"


FIXED = {
    "per-gpu": "images per GPU",
    "raised": "images per GPU, rate × √GPUs",
    "global": "images a step",
    "one-gpu": "one GPU",
}


def scaling(data: dict[str, Any]) -> list[str]:
    """Return the series of a scaling file: time, speed-up, efficiency, accuracy."""
    head = ("fixed", "GPUs", "images a step", "steps", "time, s", "speed-up", "efficiency", "accuracy, %")
    rows = []
    for series in dict.fromkeys(row["series"] for row in data["rows"]):
        mine = [row for row in data["rows"] if row["series"] == series]
        mine.sort(key=lambda row: (row["gpus"], row["global_batch"]))
        # the speed-up of a list that does not begin at one GPU is over as many as it begins with
        first = mine[0]["seconds"] * mine[0]["gpus"]
        rows += [_scaling_row(row, first) for row in mine]
    return markdown(head, rows) if rows else []


def _scaling_row(row: dict[str, Any], first: float) -> Sequence[str]:
    speed_up = first / row["seconds"]
    gained = ("–", "–") if row["series"] == "one-gpu" else (f"{speed_up:.2f}", f"{speed_up / row['gpus']:.0%}")
    return (
        *_trained(row),
        f"{row['seconds']:.2f}",
        *gained,
        f"{100 * fmean(accuracies(row)):.1f} ± {100 * margin(row):.1f}",
    )


def _trained(row: dict[str, Any]) -> Sequence[str]:
    return (FIXED[row["series"]], str(row["gpus"]), str(row["global_batch"]), str(row["steps"]))


def accuracies(row: dict[str, Any]) -> list[float]:
    """Return the accuracy that a job reached from each seed."""
    found: list[float] = row["accuracies"]
    return found


def margin(row: dict[str, Any]) -> float:
    """Return half the 95 % interval of a job's mean accuracy: Student's over seeds.

    From one seed it is what the held-out images allow, binomial: without the luck of a training.
    """
    found = accuracies(row)
    if len(found) > 1:
        return float(student.ppf(0.975, len(found) - 1)) * stdev(found) / math.sqrt(len(found))
    return 1.96 * math.sqrt(found[0] * (1 - found[0]) / row["held_out"])


def published_scaling() -> list[str]:
    """Return the published table of EfficientNet on CIFAR-10."""
    first = published.IMAGES[0].seconds
    rows = [
        (
            str(one.gpus),
            f"{one.seconds:.0f}",
            f"{first / one.seconds:.2f}",
            f"{first / one.seconds / one.gpus:.0%}",
            f"{one.accuracy:.2f}",
        )
        for one in published.IMAGES
    ]
    return markdown(("GPUs", "time, s", "speed-up", "efficiency", "accuracy, %"), rows)


def seeds(folder: Path) -> list[str]:
    """Return the accuracies that the jobs of a scaling file reached from several seeds; nothing where one was taken."""
    data = results.repeated(folder)
    # on one GPU all series begin with the same job: it is shown once
    jobs = {(row["gpus"], row["batch_per_gpu"], row["raised"]): row for row in reversed(data["rows"] if data else [])}
    rows = [row for row in jobs.values() if len(accuracies(row)) > 1]
    if not rows:
        return []
    head = (
        "fixed",
        "GPUs",
        "images a step",
        "steps",
        f"accuracy of {len(accuracies(rows[0]))} trainings, %",
        "from – to",
    )
    rows.sort(key=lambda row: (list(FIXED).index(row["series"]), row["gpus"], row["global_batch"]))
    return markdown(head, [_seeds_row(row) for row in rows])


def _seeds_row(row: dict[str, Any]) -> Sequence[str]:
    shares = [100 * share for share in accuracies(row)]
    reached = f"{fmean(shares):.1f} ± {100 * margin(row):.1f}"
    return (*_trained(row), reached, f"{min(shares):.1f} – {max(shares):.1f}")


def _scaling_of(folder: Path) -> list[str]:
    data = results.scaling(folder)
    if data is None:
        return []
    shown = picture(folder, "scaling", "Training time, efficiency and accuracy over the number of GPUs")
    return [*shown, *scaling(data)]


def launch(folder: Path) -> list[str]:
    """Return what benchmarks/launch_cost.py printed, as it is."""
    path = folder / "launch-cost.txt"
    return [f"    {line}".rstrip() for line in path.read_text("utf-8").splitlines()] if path.exists() else []


TABLES: dict[str, Callable[[Path], list[str]]] = {
    "headline": headline,
    "gpt2": gpt2,
    "exposed": exposed,
    "buckets": buckets,
    "bound": bounds,
    "curves": curves,
    "predicted": predicted,
    "scaling": _scaling_of,
    "seeds": seeds,
    "launch": launch,
    "published-scaling": lambda _: published_scaling(),
}


def blocks(folder: Path | None) -> dict[str, str]:
    """Return each table by its name in the page; where nothing was measured, words that say so. Raises ResultError."""
    nowhere = folder or Path("/nonexistent")
    return {name: "\n".join(make(nowhere)) or MISSING for name, make in TABLES.items()}
