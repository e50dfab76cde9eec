#!/usr/bin/env python3
"""Compares steps of jobs without P2P: predicted by `collbench predict job.json` from a record with P2P, and measured.

    python benchmarks/predicted_jobs.py measure FOLDER           # on two GPUs, some five minutes
    python benchmarks/predicted_jobs.py judge FOLDER             # anywhere, from the files

`measure` writes to FOLDER the curves of three collectives with P2P and without (curves-ARM-OPERATION.json), the factors
of overlap with compute (overlap-ARM-OPERATION.json), and for each job of recorded_job.py the record of `collbench
record --gpu-times` with P2P (JOB-job.json) and each rank's median step in both arms (JOB-ARM-RANK.json). `judge`
predicts the step without P2P from the record, the curves and the factors; the measured step without P2P is only
compared with. It exits with 1 where a bar is missed: 5% of the step, 25% of the extra time that the step took without
P2P.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.tables import markdown

from collbench.jobs import job_file
from collbench.jobs.predict import contention
from collbench.jobs.predict.contention import OverlapCurve
from collbench.jobs.predict.recorded import Links, PredictedJob, predict_job
from collbench.jobs.predict.timing import gather
from collbench.model.errors import CollbenchError
from collbench.runfile import run_file

JOBS = ("ddp-gpt2-wide", "ddp-llama", "fsdp2-gpt2-wide", "fsdp2-llama", "tp-small", "tp-large")
OPERATIONS = ("allreduce", "allgather", "reducescatter")
ARMS = {"p2p": {}, "nop2p": {"NCCL_P2P_DISABLE": "1"}}
STEP_BAR, EXTRA_BAR = 0.05, 0.25
_RANKS = 2
_BLOCK_RATIO = 1.5
_SCRIPT = Path(__file__).with_name("recorded_job.py")


def _run(command: Sequence[str], arm: str, log: Path) -> int:
    with log.open("a", encoding="utf-8") as output:
        print(f"== {arm}: {' '.join(command)}", file=output, flush=True)
        environment = {**os.environ, **ARMS[arm]}
        return subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode


def _collbench(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "collbench", *arguments]


def measure(folder: Path, jobs: Sequence[str], *, factors: bool) -> int:
    """Measure links and jobs; return how many commands failed."""
    folder.mkdir(parents=True, exist_ok=True)
    log, failed = folder / "log.txt", 0
    for operation in OPERATIONS:
        for arm in ARMS:
            output = str(folder / f"curves-{arm}-{operation}.json")
            command = _collbench(
                operation, "--sizes", "64K:1G", "--quick", "--dtype", "bfloat16", "--force", "-o", output
            )
            failed += _run(command, arm, log) != 0
    for job in jobs:
        failed += _measure_job(folder, job, log)
    for operation in OPERATIONS if factors else ():
        output = str(folder / f"overlap-nop2p-{operation}.json")
        command = _collbench(
            "overlap", operation, "--compute", "gemm:2048", "--sizes", "1M,4M,16M,64M", "--force", "-o", output
        )
        failed += _run(command, "nop2p", log) != 0
    return failed


def _measure_job(folder: Path, job: str, log: Path) -> int:
    failed = 0
    for arm in ARMS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
        command += [str(_SCRIPT), job, str(folder)]
        if arm == "p2p":
            command = [
                *_collbench("record", "--gpu-times", "--force", "-o", str(folder / f"{job}-job.json")),
                "--",
                *command,
            ]
        failed += _run(command, arm, log) != 0
        for rank in range(_RANKS):
            rank_file = folder / f"{job}-{rank}.json"
            if rank_file.exists():
                shutil.move(rank_file, folder / f"{job}-{arm}-{rank}.json")
    return failed


@dataclass(frozen=True, slots=True)
class Row:
    """One job's step in ms: recorded and measured with P2P, measured without, and predicted (least, middle, most)."""

    job: str
    recorded_ms: float
    fast_ms: float
    measured_ms: float
    predicted_ms: tuple[float, float, float]

    @property
    def error(self) -> float:
        """Error of the prediction as a share of the measured step."""
        return self.predicted_ms[1] / self.measured_ms - 1

    @property
    def extra_error(self) -> float:
        """Error of the predicted extra time as a share of the measured extra time."""
        extra, predicted = self.measured_ms - self.fast_ms, self.predicted_ms[1] - self.recorded_ms
        return (predicted - extra) / extra if extra > 0 else float("nan")

    @property
    def met(self) -> bool:
        """True where both bars are met."""
        return abs(self.error) <= STEP_BAR and abs(self.extra_error) <= EXTRA_BAR


def _links(folder: Path, arm: str) -> Links:
    runs = [(file.name, run_file.load(file)) for file in sorted(folder.glob(f"curves-{arm}-*.json"))]
    evidence = gather(runs)
    factors: list[OverlapCurve] = []
    for file in sorted(folder.glob(f"overlap-{arm}-*.json")):
        factors += contention.gather(evidence, [(file.name, run_file.load(file))])
    return Links(evidence, {rank: rank for rank in range(_RANKS)}, factors)


def predicted(folder: Path, job: str) -> PredictedJob:
    """Return the prediction of a job without P2P. Raises CollbenchError."""
    return predict_job(job_file.load(folder / f"{job}-job.json"), _links(folder, "nop2p"), _links(folder, "p2p"))


def _step_ms(folder: Path, job: str, arm: str) -> float:
    files = [folder / f"{job}-{arm}-{rank}.json" for rank in range(_RANKS)]
    return max(float(json.loads(file.read_text(encoding="utf-8"))["step_ms"]) for file in files)


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each job whose files are complete. Raises CollbenchError."""
    for job in sorted({file.name.removesuffix("-job.json") for file in folder.glob("*-job.json")}):
        if (folder / f"{job}-job.json").exists() and (folder / f"{job}-nop2p-0.json").exists():
            bounds = predicted(folder, job).bounds
            fast, slow = _step_ms(folder, job, "p2p"), _step_ms(folder, job, "nop2p")
            recorded = 1e3 * bounds.recorded
            # Where a step consists of equal blocks, the record's shortest period is one block.
            scale = 1e3 * (fast / recorded if fast > _BLOCK_RATIO * recorded else 1.0)
            low, middle, high = (scale * end for end in bounds.step)
            yield Row(job, scale * bounds.recorded, fast, slow, (low, middle, high))


def table(rows: Sequence[Row]) -> list[str]:
    """Return the comparison in markdown."""
    head = (
        "job",
        "step with P2P: measured, recorded",
        "without, measured",
        "predicted (least to most)",
        "step",
        "extra",
    )
    cells = [
        (
            row.job,
            f"{row.fast_ms:.2f}, {row.recorded_ms:.2f}",
            f"{row.measured_ms:.2f}",
            f"{row.predicted_ms[1]:.2f} ({row.predicted_ms[0]:.2f} to {row.predicted_ms[2]:.2f})",
            f"{row.error:+.1%}",
            f"{row.extra_error:+.0%}",
        )
        for row in rows
    ]
    met = sum(row.met for row in rows)
    return [*markdown(head, cells), "", f"Both bars are met in {met} of {len(rows)} jobs. Times are ms."]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("measure", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default=",".join(JOBS), metavar="A,B", help="to measure [all]")
    parser.add_argument(
        "--no-factors", action="store_true", help="do not measure what overlap costs: half a minute less"
    )
    options = parser.parse_args()
    if options.part == "measure":
        return 1 if measure(options.folder, options.jobs.split(","), factors=not options.no_factors) else 0
    try:
        found_rows = list(rows(options.folder))
    except CollbenchError as error:
        print(f"predicted_jobs: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(found_rows)))
    return 0 if found_rows and all(row.met for row in found_rows) else 1


if __name__ == "__main__":
    sys.exit(main())
