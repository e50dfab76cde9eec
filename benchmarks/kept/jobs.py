"""What links are worth to jobs, how far predictions of it were off, and what `record` missed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

from training.tables import markdown

from collbench.jobs import job_file
from collbench.launch.ablation import load

from . import files
from .agreement import Row

TRAINING = "2026-11-21-4xh200-training"
STEPS = "2026-11-22-2xh200-steps"
RECORDED = "2026-11-23-2xh200-recorded-jobs/judged.md"
RESPONSES = "2026-11-23-2xh200-responses"
RECORDING = "2026-11-23-2xh200-recording"
JAX = "2026-11-23-1xh200-jax"
COST = "2026-11-23-2xh200-replay/cost.txt"
PROGRAM = "2026-11-23-2xh200-replay/program.txt"
STEP_BAR, EXTRA_BAR = 0.05, 0.25
_GPT2_MEDIUM = (
    "2026-11-23-2xh200-ablation/ablate-second-machine.json",
    "2026-11-23-2xh200-replay/ablate.json",
    "2026-11-23-2xh200-replay/ablate-loaded.json",
)
_FIRST = "2026-11-23-2xh200-ablation/session.txt"
_NAMES = {
    "ddp-gpt2": "DDP, GPT-2 124M",
    "ddp-gpt2-medium": "DDP, GPT-2 355M",
    "fsdp2-gpt2": "FSDP2, GPT-2 124M",
    "fsdp2-gpt2-medium": "FSDP2, GPT-2 355M",
    "tp-small": "tensor parallel, 8 blocks of 2048",
    "tp-large": "tensor parallel, 8 blocks of 4096",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step without P2P: errors of the prediction, as shares of it and of its extra time, None without any."""

    step: float
    extra: float | None


@cache
def worth() -> list[tuple[float, float, float]]:
    """Return what P2P is worth to GPT-2 355M on four machines, in percent of a step, with its 95% interval."""
    found = [files.numbers(_FIRST, r"^p2p is worth ([\d.]+) % \(95 %: ([\d.]+)–([\d.]+) %\)")]
    for name in _GPT2_MEDIUM:
        result = load(files.RESULTS / name).result
        if result is None:
            raise ValueError(f"{name} has no result")
        found.append(tuple(100 * (end - 1) for end in (result.ratio.middle, result.ratio.low, result.ratio.high)))
    return [(middle, low, high) for middle, low, high in found]


def steps() -> list[Prediction]:
    """Return the predictions from curves and factors of overlap."""
    rows = json.loads(files.text(f"{STEPS}/steps.json"))["rows"]
    return [
        Prediction(
            row["with"]["step_ms"] / row["measured_ms"] - 1,
            (row["with"]["step_ms"] - row["measured_ms"]) / (row["measured_ms"] - row["compute_ms"]),
        )
        for row in rows
    ]


def steps_table() -> str:
    """Return docs/results.md's table of the same, as benchmarks/steps.py printed it."""
    return files.text(f"{STEPS}/steps.md").partition("\n\n")[0]


def _judged() -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in files.text(RECORDED).splitlines()]
    return [row for row in rows if row[0] in _NAMES]


def recorded() -> list[Prediction]:
    """Return the predictions from records of jobs, as judged on that day."""
    found = []
    for _, fast, slow, predicted, _, _ in _judged():
        (measured_fast, recorded_fast), measured = map(float, fast.split(", ")), float(slow)
        middle, extra = float(predicted.split()[0]), measured - measured_fast
        found.append(Prediction(middle / measured - 1, (middle - recorded_fast - extra) / extra if extra > 0 else None))
    return found


def recorded_table() -> list[str]:
    """Return docs/results.md's table of recorded jobs."""
    head = (
        "job",
        "step with P2P, ms: measured, recorded",
        "without, measured",
        "predicted (at least to at most)",
        "error of the step",
        "of the extra time",
    )
    rows = [
        (_NAMES[job], fast, slow, predicted, step, "–" if "nan" in extra else extra)
        for job, fast, slow, predicted, step, extra in _judged()
    ]
    return markdown(head, rows)


def responses_table() -> list[str]:
    """Return docs/results.md's table of jobs whose trace shows how they respond to longer transfers."""
    head = (
        "job",
        "step with P2P, ms",
        "without, measured",
        "predicted (at least to at most)",
        "error of the step",
        "of the extra time",
    )
    rows = []
    for job, arms in json.loads(files.text(f"{RESPONSES}/steps-ms.json")).items():
        fast, slow = max(arms["p2p"]), max(arms["nop2p"])
        data = json.loads(files.text(f"{RESPONSES}/{job}-predicted.json"))
        parts = _PARTS.get(job, 1)
        ends = [fast + parts * 1e3 * (end - data["recorded_step_seconds"]) for end in data["step_seconds"]]
        low, middle, high = ends
        rows.append(
            (
                _NAMES[job],
                f"{fast:.2f}",
                f"{slow:.2f}",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                f"{middle / slow - 1:+.1%}",
                f"{(middle - slow) / (slow - fast):+.0%}",
            )
        )
    return markdown(head, rows)


_PARTS = {"tp-large": 16}  # equal parts of its step, of which the trace holds one


def table() -> list[Row]:
    """Return the rows of jobs."""
    ratios = [load(path).result for path in sorted((files.RESULTS / TRAINING).glob("ablate-*.json"))]
    predicted = json.loads(files.text(f"{TRAINING}/predicted.json"))["cells"]
    ddp, fsdp = ([one for one in predicted if one["strategy"] == strategy] for strategy in ("ddp", "fsdp"))
    least, most = min(worth()), max(worth())
    rows: list[Row] = [
        (
            "GPT-2 124M bf16, step without P2P over with: DDP on 2 and 4 GPUs; FSDP",
            "; ".join(
                ", ".join(f"{one.ratio.middle:.3f} ({one.ratio.low:.3f}–{one.ratio.high:.3f})" for one in some if one)
                for some in (ratios[:2], ratios[2:])
            ),
            "",
            TRAINING,
        ),
        (
            "extra time predicted from curves and the host's lanes, over measured: DDP on 2 and 4 GPUs; FSDP",
            "; ".join(", ".join(f"{one['error']:+.0%}" for one in some) for some in (ddp, fsdp)),
            "25%, FSDP missed",
            f"{TRAINING}/predicted.json",
        ),
        (
            f"what P2P is worth to GPT-2 355M (DDP, amp, batch 16) on {len(worth())} machines, of a step",
            f"{least[0]:.1f}% to {most[0]:.1f}%",
            "± 3%",
            "2026-11-23-2xh200-ablation",
        ),
        (
            "steps predicted from curves and factors of overlap: within 5%; extra time within 25%",
            " and ".join(str(sum(within)) for within in zip(*map(bars, steps()), strict=True)) + f" of {len(steps())}",
            "all, missed",
            f"{STEPS}/steps.json",
        ),
        (
            "steps without P2P predicted from a record: within 5%; extra time within 25%",
            " and ".join(str(sum(within)) for within in zip(*map(bars, recorded()), strict=True))
            + f" of {len(recorded())}",
            "all, missed",
            RECORDED,
        ),
    ]
    return [*rows, *_records()]


def bars(prediction: Prediction) -> tuple[bool, bool]:
    """Return whether the step is within its bar, and the extra time within its own."""
    return abs(prediction.step) <= STEP_BAR, prediction.extra is not None and abs(prediction.extra) <= EXTRA_BAR


def shortened() -> str:
    """Return docs/results.md's sentence about what P2P saves of a step of GPT-2 124M."""
    saved: dict[str, list[float]] = {"ddp": [], "fsdp": []}
    for path in sorted((files.RESULTS / TRAINING).glob("ablate-*.json")):
        if result := load(path).result:
            saved["fsdp" if "fsdp" in path.name else "ddp"].append(1 - 1 / result.ratio.middle)
    return (
        f"On the same GPUs and with the same model, P2P shortens DDP's step by {min(saved['ddp']):.0%} to "
        f"{max(saved['ddp']):.0%} and FSDP's by {max(saved['fsdp']):.0%} at most."
    )


def host_costs() -> str:
    """Return docs/results.md's sentence about hosts in the session of `steps`."""
    with files.unpacked(f"{STEPS}/raw.tar.gz") as folder:
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("steps-*-*.txt"))]
        arms = [path.stem.rpartition("-")[2] for path in sorted(folder.glob("steps-*-*.txt"))]
    host: dict[tuple[str, ...], float] = {}
    for arm, text in zip(arms, texts, strict=True):
        for line in re.findall(r"^summary (.*)$", text, re.MULTILINE):
            words = dict(word.split("=") for word in line.split())
            slowest = words["host_slowest" if "host_slowest" in words else "host_time"]
            host[arm, words["model"], words["batch"], words["strategy"]] = float(slowest.removesuffix("ms"))
    local = [milliseconds for key, milliseconds in host.items() if key[-1] == "local"]
    fsdp = [milliseconds - host[*key[:-1], "local"] for key, milliseconds in host.items() if key[-1] == "fsdp"]
    return (
        f"A host needed {min(local):.0f} to {max(local):.0f} ms to launch a step that exchanges nothing, and FSDP2's "
        f"calls cost it {min(fsdp):.0f} to {max(fsdp):.0f} ms more."
    )


def _records() -> list[Row]:
    table = [line.split(" | ") for line in files.text(f"{RECORDING}/session.txt").splitlines()]
    jobs = {cells[0].strip("| "): cells for cells in table if len(cells) >= _COLUMNS and "+" in cells[2]}
    equal = [name for name, cells in jobs.items() if cells[6] == "yes"]
    calls = [int(cells[2].split(" + ")[0]) for name, cells in jobs.items() if name in equal]
    jax = [rank.calls for rank in job_file.load(files.RESULTS / JAX / "job.json").ranks]
    costs = [float(one) for one in re.findall(r"\| ([\d.]+) \|$", files.text(COST), re.MULTILINE)]
    return [
        (
            f"calls of `record` on 2 GPUs against torch's Flight Recorder or the job's own list, {len(jobs)} jobs",
            f"equal in {len(equal)} ({', '.join(equal)}: {sum(calls):,} calls of a rank); in "
            f"{', '.join(sorted(jobs.keys() - set(equal)))} NCCL gets scatters as messages",
            "all equal",
            f"{RECORDING}/session.txt",
        ),
        ("calls of `record` of a JAX job, by rank", " and ".join(map(str, jax)), "150 each", f"{JAX}/job.json"),
        (
            f"step with `record` over without, GPT-2 355M, {len(costs)} alternating pairs of runs",
            f"{min(costs):.3f} to {max(costs):.3f}, mean {sum(costs) / len(costs):.3f}",
            "1%",
            COST,
        ),
    ]


_COLUMNS = 7
