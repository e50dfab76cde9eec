#!/usr/bin/env python3
"""Compares how much longer steps take without P2P, measured and as `collbench predict` says, in 34 kept comparisons.

    python benchmarks/extra_time.py [--json FILE]      # anywhere, from files in benchmarks/results
    python benchmarks/extra_time.py measure FOLDER     # on two GPUs, some ten minutes: six more jobs

Twenty comparisons are of steps of which only the network's size is known: twelve of one session (GPT-2 124M and 355M
and ViT-B/16 by DDP and FSDP2, with 4 and 32 samples per GPU), four of a second, and four ablations. Fourteen are of
recorded jobs, nine on H200 and five on H100: `measure` writes to FOLDER the curves of three collectives with P2P and
without (curves-ARM-OPERATION.json), for each job of recorded_job.py the record of `collbench record --gpu-times` with
P2P (JOB-job.json), and each rank's median step in both arms (JOB-ARM-RANK.json), not recorded: the kept steps with P2P
were, which slows a job that its host limits. Of what was measured without P2P, only the links go into a prediction.
They are predicted as a user's command does, with the calls per step that a user knows where a record does not show
them; what the command refuses is a row without an answer, and in no mean. `before` are the predictions of an older
version of the code.

The JSON has the figures in ms: "rows": [{"set", "job", "measured_ms", "answer": {"gpu_bound", "least_ms",
"predicted_ms", "most_ms", "ends_ms"} or null, "refused": why, "before_ms"}], and "mean_errors_ms".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from training import bound, results
from training.bound import Pair
from training.tables import markdown

from collbench.jobs import api, job_file, steps
from collbench.jobs.calls import shown_phase
from collbench.jobs.job import Job
from collbench.jobs.predict.links import Links, Price
from collbench.jobs.predict.network import SHARE, Step, seconds_of
from collbench.jobs.predict.recorded import PredictedJob
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.runfile import run_file

RESULTS = Path(__file__).parent / "results"
TRAINING, STEPS = RESULTS / "2026-11-21-4xh200-training", RESULTS / "2026-11-22-2xh200-steps"
BEFORE = RESULTS / "2026-11-26-prediction" / "before.json"
RECORDED, TRACED = RESULTS / "2026-11-23-2xh200-recorded-jobs", RESULTS / "2026-11-23-2xh200-responses"
H100 = RESULTS / "2026-11-28-2xh100-jobs"
OPERATIONS, ARMS = ("allreduce", "allgather", "reducescatter"), {"p2p": {}, "nop2p": {"NCCL_P2P_DISABLE": "1"}}
JOBS = ("ddp-gpt2-wide", "ddp-llama", "fsdp2-gpt2-wide", "fsdp2-llama", "tp-small", "tp-large")
# Parameters and layers of the networks in torch.
NETWORKS = {"gpt2": (124_439_808, 12), "gpt2-medium": (354_823_168, 24), "vit-b/16": (86_567_656, 12)}
HOST_BOUND = 0.9  # share of the step from which on the host limits it
# Calls of a step of recorded_job.py: eight equal blocks of four, which look like steps, so a record does not show it.
CALLS_PER_STEP = {"tp-small": 32, "tp-large": 32}
_RANKS = 2
_RECORDED = ("recorded", "responses", "H100")


@dataclass(frozen=True, slots=True)
class Answer:
    """What `predict` says, in ms, and in `ends_ms` a rule that counts only a step's first gather and last call."""

    gpu_bound: bool
    least_ms: float
    predicted_ms: float
    most_ms: float
    ends_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, in ms; without an answer, `refused` is why. `before_ms` is the prediction of the code before."""

    set: str
    job: str
    measured_ms: float
    answer: Answer | None
    refused: str = ""
    before_ms: float | None = None


Answered = tuple[Row, Answer]


def answered(rows: Iterable[Row]) -> list[Answered]:
    """Return the rows that `predict` answers, with its answer."""
    return [(row, row.answer) for row in rows if row.answer is not None]


def _runs(folder: Path, pattern: str) -> list[tuple[str, Run]]:
    files = [folder / pattern.format(operation=operation) for operation in OPERATIONS]
    return [(file.name, run_file.load(file)) for file in files]


def _by_size(title: str, job: str, bound: bool, measured: float, step: Step, gpus: int, arms: Sequence[Links]) -> Row:
    """Return the comparison of a step of which only the size is known."""
    devices = tuple(range(gpus))
    fast, slow = (seconds_of(links, step, devices)[0] for links in arms)
    longer = 1e3 * (slow - fast)
    ends = [
        (operation, (arms[0].price(operation, size, devices), arms[1].price(operation, size, devices)))
        for operation, size in step.messages
    ]
    return Row(title, job, measured, Answer(bound, 0.0, SHARE * longer, longer, _ends_ms(ends)))


def _ends_ms(messages: Sequence[tuple[Operation | None, tuple[Price, Price] | None]]) -> float:
    """Return the change of the first of these messages, if it is a gather, and of the last, on both links."""
    gathers = messages[0][0] is Operation.ALLGATHER
    ends = [prices for _, prices in ([messages[0], messages[-1]] if gathers else [messages[-1]]) if prices is not None]
    return 1e3 * sum(after.seconds - before.seconds for before, after in ends)


def _step(network: str, strategy: str) -> Step:
    return Step(*NETWORKS[network], strategy, "bf16")


def timed_steps(title: str, pairs: Sequence[Pair], curves: Path) -> Iterator[Row]:
    """Yield the jobs of training.sh's parts `steps` and `bound`, except those that exchange nothing."""
    arms = [Links(_runs(curves, f"curves-2-{arm}-{{operation}}.json")) for arm in ARMS]
    for pair in pairs:
        model, strategy, batch = (pair.fast.get(name, "gpt2") for name in ("model", "strategy", "batch"))
        if strategy != "local":
            shares = [_host_ms(summary) / results.step_ms(summary) for summary in (pair.fast, pair.slow)]
            bound, name = max(shares) < HOST_BOUND, f"{model} {strategy} batch {batch}"
            yield _by_size(title, name, bound, pair.extra_ms, _step(model, strategy), 2, arms)


def _host_ms(summary: dict[str, str]) -> float:
    """Return the time of the slowest rank's host, ms; of rank 0's in older sessions."""
    return float(summary.get("host_slowest", summary["host_time"]).removesuffix("ms"))


def ablations() -> Iterator[Row]:
    """Yield the four ablations of GPT-2 on two and four GPUs."""
    for strategy in ("ddp", "fsdp"):
        for gpus in (2, 4):
            file = TRAINING / f"ablate-{strategy}-{gpus}-bf16.json"
            result = json.loads(file.read_text(encoding="utf-8"))["result"]
            longer = 1e3 * result["arms"][0]["seconds"] * (result["ratio"]["middle"] - 1)
            arms = [Links(_runs(TRAINING, f"curves-{gpus}-{arm}-{{operation}}.json")) for arm in ARMS]
            name = f"{strategy.upper()} bf16, {gpus} GPUs"
            yield _by_size("ablate", name, False, longer, _step("gpt2", strategy), gpus, arms)


def recorded(title: str, jobs: Path, curves: Path, steps: Callable[[str, str], float]) -> Iterator[Row]:
    """Yield the recorded jobs in a folder; `steps` returns the measured ms of a job's step in an arm."""
    fast, slow = (_runs(curves, f"curves-{arm}-{{operation}}.json") for arm in ARMS)
    for file in sorted(jobs.glob("*-job.json")):
        name = file.name.removesuffix("-job.json")
        with_p2p, without = (steps(name, arm) for arm in ARMS)
        job = _job(file, name)
        try:
            found = api.predict_job(job, slow, devices="0,1", recorded=fast, name=file.name)
        except UsageError as refusal:
            yield Row(title, name, without - with_p2p, None, str(refusal))
            continue
        least, predicted, most = (1e3 * end for end in found.change)
        ends = _ends_ms(_messages(job, found))
        yield Row(title, name, without - with_p2p, Answer(found.gpu_limits, least, predicted, most, ends))


def _job(file: Path, name: str) -> Job:
    """Return a job, as `collbench import --calls-per-step` does where a record does not show them."""
    job = job_file.load(file)
    return steps.find(job, CALLS_PER_STEP[name]) if name in CALLS_PER_STEP else job


def _messages(job: Job, found: PredictedJob) -> list[tuple[Operation | None, tuple[Price, Price] | None]]:
    """Return the calls of the step that was predicted, with their prices on both links."""
    (phase,) = [shown_phase(rank) for rank in job.ranks if rank.rank == found.rank]
    numbers = [position.call for position in phase.positions] if phase is not None else []
    return [(job.calls[number].collective, found.prices.get(number)) for number in numbers]


def _rank_steps(folder: Path) -> Callable[[str, str], float]:
    def steps(job: str, arm: str) -> float:
        files = [folder / f"{job}-{arm}-{rank}.json" for rank in range(_RANKS)]
        return max(float(json.loads(file.read_text(encoding="utf-8"))["step_ms"]) for file in files)

    return steps


def kept_rows() -> Iterator[Row]:
    """Yield the kept comparisons."""
    kept = json.loads(BEFORE.read_text(encoding="utf-8"))["rows"]
    before = {(one["set"], one["job"]): one["before_ms"] for one in kept}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for archive in (STEPS, RECORDED, H100):
            with tarfile.open(archive / "raw.tar.gz") as kept_files:
                kept_files.extractall(folder, filter="data")
        measured = json.loads((TRACED / "steps-ms.json").read_text(encoding="utf-8"))
        for row in (
            *timed_steps("steps", bound.named_pairs(folder / "t", "steps"), folder / "t"),
            *timed_steps("bound", bound.pairs(TRAINING), TRAINING),
            *ablations(),
            *recorded("recorded", folder / "pj", folder / "pj", _rank_steps(folder / "pj")),
            *recorded("responses", TRACED, folder / "pj", lambda job, arm: max(measured[job][arm])),
            *recorded("H100", folder / "h100", folder / "h100", _rank_steps(folder / "h100")),
        ):
            yield replace(row, before_ms=before.get((row.set, row.job)))


def mean_errors(all_rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the mean absolute error in ms of the answers, and on the same rows of other rules, by part."""
    rows = answered(all_rows)
    parts: dict[str, list[Answered]] = {
        "all": rows,
        "H200": [(row, answer) for row, answer in rows if row.before_ms is not None],
        "size known, GPU-bound": [one for one in rows if one[1].gpu_bound and one[0].set not in _RECORDED],
        "size known": [(row, answer) for row, answer in rows if row.set not in _RECORDED],
        "recorded": [(row, answer) for row, answer in rows if row.set in _RECORDED],
        "H100": [(row, answer) for row, answer in rows if row.set == "H100"],
    }
    errors: dict[str, dict[str, float]] = {}
    for name, part in parts.items():
        if not part:
            continue
        now = fmean(abs(answer.predicted_ms - row.measured_ms) for row, answer in part)
        errors[name] = {"count": len(part), "now": now}
        before = [abs(row.before_ms - row.measured_ms) for row, _ in part if row.before_ms is not None]
        if len(before) == len(part):
            errors[name]["before"] = fmean(before)
        errors[name]["only the ends"] = fmean(abs(answer.ends_ms - row.measured_ms) for row, answer in part)
        errors[name]["no change"] = fmean(abs(row.measured_ms) for row, _ in part)
    bound = parts["size known, GPU-bound"]
    if len(bound) > 1:  # each predicted with the share that fits the others best
        shares = [_fitted([other for other in bound if other is not one]) for one in bound]
        left_out = [
            abs(share * answer.most_ms - row.measured_ms) for (row, answer), share in zip(bound, shares, strict=True)
        ]
        errors["size known, GPU-bound"]["each left out"] = fmean(left_out)
    return errors


def _fitted(some: Sequence[Answered]) -> float:
    """Return the share of the difference between links, in percent steps, with the least mean error."""

    def error(share: int) -> float:
        return sum(abs(share / 100 * answer.most_ms - row.measured_ms) for row, answer in some)

    return min(range(101), key=error) / 100


def table(all_rows: Sequence[Row]) -> Iterator[str]:
    """Yield the comparisons in markdown."""
    heads = ("job", "measured, ms", "predicted (band)", "error")
    cells = []
    for row in all_rows:
        answer, said = row.answer, ("refused", "–")
        if answer is not None:
            band = f"{answer.predicted_ms:.2f} ({answer.least_ms:.2f} to {answer.most_ms:.2f})"
            said = band, f"{answer.predicted_ms - row.measured_ms:+.2f}"
        bound = " (GPU-bound)" if answer is not None and answer.gpu_bound else ""
        cells.append((f"{row.set}: {row.job}{bound}", f"{row.measured_ms:.2f}", *said))
    yield from markdown(heads, cells)


def errors_table(all_rows: Sequence[Row]) -> Iterator[str]:
    """Yield the mean errors in markdown, how many figures lie in their band, and how many were refused."""
    columns = ("now", "only the ends", "no change", "each left out")
    errors = [
        (f"{name}, {one['count']}", *(f"{one[column]:.2f}" if column in one else "–" for column in columns))
        for name, one in mean_errors(all_rows).items()
    ]
    yield from markdown(("mean error, ms", *columns), errors)
    rows = answered(all_rows)
    inside = sum(answer.least_ms <= row.measured_ms <= answer.most_ms for row, answer in rows)
    refused = f"`predict` refuses {len(all_rows) - len(rows)} of {len(all_rows)} steps."
    yield f"\n{inside} of {len(rows)} measured figures lie in their band; {refused}"


def measure(folder: Path) -> int:
    """Measure links and jobs on two GPUs; return how many commands failed."""
    folder.mkdir(parents=True, exist_ok=True)
    collbench, failed = [sys.executable, "-P", "-m", "collbench"], 0
    for arm, variables in ARMS.items():
        for operation in OPERATIONS:
            output = str(folder / f"curves-{arm}-{operation}.json")
            sizes = ["--sizes", "64K:1G", "--quick", "--dtype", "bfloat16", "--force", "-o", output]
            failed += _run([*collbench, operation, *sizes], variables, folder)
        for job in JOBS:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
            command = [*launcher, str(Path(__file__).with_name("recorded_job.py")), job, str(folder)]
            if arm == "p2p":
                output = str(folder / f"{job}-job.json")
                record = [*collbench, "record", "--gpu-times", "--force", "-o", output, "--"]
                failed += _run([*record, *command], variables, folder)
            failed += _run(command, variables, folder)  # apart: a recorder slows a job that its host limits
            for rank in range(_RANKS):
                file = folder / f"{job}-{rank}.json"
                if file.exists():
                    shutil.move(file, folder / f"{job}-{arm}-{rank}.json")
    return failed


def _run(command: Sequence[str], variables: dict[str, str], folder: Path) -> bool:
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        print(f"== {variables} {' '.join(command)}", file=log, flush=True)
        environment = {**os.environ, **variables}
        return subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode != 0


def main() -> int:
    """Print the comparisons, or measure further ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("measure", "judge"), help="judge: the files of `measure`")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    if options.part is not None and options.folder is None:
        parser.error(f"{options.part} needs a FOLDER")
    if options.part == "measure":
        return 1 if measure(options.folder) else 0
    folder = options.folder
    all_rows = list(kept_rows() if folder is None else recorded("recorded", folder, folder, _rank_steps(folder)))
    print("\n".join([*table(all_rows), "", *errors_table(all_rows)]))
    if options.json is not None:
        document: dict[str, Any] = {"rows": [asdict(row) for row in all_rows], "mean_errors_ms": mean_errors(all_rows)}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
