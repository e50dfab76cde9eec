"""How much longer jobs take without links, how far predictions of it were off, and what `record` missed."""

from __future__ import annotations

import re
from functools import cache

import extra_time

from collbench.ablations.ablation import load
from collbench.jobs import job_file

from . import files
from .agreement import Row

TRAINING = "2026-11-21-4xh200-training"
STEPS = "2026-11-22-2xh200-steps"
PREDICTION = "2026-11-29-extra-time/extra-time.json"
RECORDING = "2026-11-23-2xh200-recording"
JAX = "2026-11-23-1xh200-jax"
COST = "2026-11-23-2xh200-replay/cost.txt"
PROGRAM = "2026-11-23-2xh200-replay/program.txt"
_GPT2_MEDIUM = (
    "2026-11-23-2xh200-ablation/ablate-second-machine.json",
    "2026-11-23-2xh200-replay/ablate.json",
    "2026-11-23-2xh200-replay/ablate-loaded.json",
)
_FIRST = "2026-11-23-2xh200-ablation/session.txt"


@cache
def worth() -> list[tuple[float, float, float]]:
    """Return how much longer a step of GPT-2 355M takes without P2P, %, on four machines, with 95% intervals."""
    found = [files.numbers(_FIRST, r"^p2p is worth ([\d.]+) % \(95 %: ([\d.]+)–([\d.]+) %\)")]
    for name in _GPT2_MEDIUM:
        result = load(files.RESULTS / name).result
        if result is None:
            raise ValueError(f"{name} has no result")
        found.append(tuple(100 * (end - 1) for end in (result.ratio.middle, result.ratio.low, result.ratio.high)))
    return [(middle, low, high) for middle, low, high in found]


@cache
def comparisons() -> list[extra_time.Row]:
    """Return how much longer steps take without P2P, measured and predicted."""
    return list(extra_time.kept_rows())


def errors() -> dict[str, dict[str, float]]:
    """Return the mean errors of `predict` in ms, by part."""
    return extra_time.mean_errors(comparisons())


def table() -> list[Row]:
    """Return the rows of jobs."""
    ratios = [load(path).result for path in sorted((files.RESULTS / TRAINING).glob("ablate-*.json"))]
    every, old, bound, own = (errors()[part] for part in ("all", "H200", "size known, GPU-bound", "recorded"))
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
            f"how much longer a step of GPT-2 355M (DDP, amp, batch 16) takes without P2P, on {len(worth())} machines",
            f"{least[0]:.1f}% to {most[0]:.1f}%",
            "± 3%",
            "2026-11-23-2xh200-ablation",
        ),
        (
            f"extra ms of a step without P2P, predicted against measured, mean error: {every['count']} of "
            f"{len(comparisons())} steps (the rest it refuses); "
            f"{old['count']} on H200; {bound['count']} of these that the GPU limits (each left out of the fit); "
            f"{own['count']} of recorded jobs",
            f"{every['now']:.2f}; {old['now']:.2f}; {bound['now']:.2f} ({bound['each left out']:.2f}); "
            f"{own['now']:.2f}",
            f"on H200 the method before: {old['before']:.2f}; {bound['before']:.2f}",
            PREDICTION,
        ),
    ]
    return [*rows, *_records()]


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
