#!/usr/bin/env python3
"""Whether `collbench record` writes down what jobs send, call by call, and what it costs their steps, on two GPUs.

    python benchmarks/recording.py                       # all jobs, and the cost, in about two minutes
    python benchmarks/recording.py --jobs ddp,killed --repeats 0 --out FOLDER

Each job (recorded_job.py) says itself what each rank sent: DDP, FSDP2 and tensor parallel by torch's Flight Recorder,
the others by hand. `calls equal` compares function, bytes and order on every rank; of the killed job, whose own list is
a line ahead, all but its last line. The cost is the median step with the recorder over the one without, in turn,
--repeats times. The exit status is 1 where calls differ; FOLDER keeps the job files and what the jobs said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from collbench.model.job import Ending, Job, JobRank
from collbench.runfile import job_file

_JOBS = ("ddp", "fsdp2", "tp", "moe", "graph", "killed")
_TIMED = ("ddp", "fsdp2")
_SCRIPT = Path(__file__).with_name("recorded_job.py")
_RANKS = 2


def launch(job: str, folder: Path, output: Path | None, *, traces: bool = False) -> int:
    """Run a job under torchrun, recorded if there is an output. Return its exit status."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
    words += [str(_SCRIPT), job, str(folder), *["traces"] * traces]
    if output is not None:
        words = [sys.executable, "-m", "collbench", "record", "--force", "-o", str(output), "--", *words]
    # All calls of a job, where torch keeps 2,000; both names, as torch renamed it.
    room = dict.fromkeys(("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"), "20000")
    with (folder / f"{job}.log").open("a", encoding="utf-8") as log:
        return subprocess.run(words, env={**os.environ, **room}, stdout=log, stderr=log, check=False).returncode


def sent(job: Job, rank: JobRank) -> list[list[Any]]:
    """Return what a rank sent, as [operation, bytes]."""
    return [[job.calls[place].operation, job.calls[place].size_bytes] for place in rank.unfolded()]


def difference(job: Job, name: str, folder: Path) -> str:
    """Return where the record and the job's own word differ first; "" where they are equal."""
    if [rank.rank for rank in job.ranks] != list(range(_RANKS)):
        return f"ranks {[rank.rank for rank in job.ranks]}"
    for rank in job.ranks:
        have = sent(job, rank)
        if name == "killed":
            lines = (folder / f"killed-{rank.rank}.txt").read_text(encoding="utf-8").splitlines()
            want = [[line.split()[0], int(line.split()[1])] for line in lines]
            if rank.ending is not Ending.CUT_OFF:
                return f"rank {rank.rank} ends {rank.ending}"
            if have == want[:-1]:
                continue
        else:
            want = json.loads((folder / f"{name}-{rank.rank}.json").read_text(encoding="utf-8"))["calls"]
        if have != want:
            place = next((n for n, pair in enumerate(zip(have, want, strict=False)) if pair[0] != pair[1]), None)
            place = min(len(have), len(want)) if place is None else place
            shown = f"{place}: {have[place:][:3]} for {want[place:][:3]}"
            return f"rank {rank.rank}: {len(have)} of {len(want)} calls; {shown}"
    return ""


def step_ms(name: str, folder: Path) -> float:
    """Return the median step of the slower rank."""
    files = [folder / f"{name}-{rank}.json" for rank in range(_RANKS)]
    return max(float(json.loads(file.read_text(encoding="utf-8"))["step_ms"]) for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default=",".join(_JOBS))
    parser.add_argument("--repeats", type=int, default=2, help="of each arm, for the cost")
    parser.add_argument("--out", type=Path, help="keep the job files here")
    parser.add_argument("--traces", action="store_true", help="let jobs leave what 'collbench import' reads, too")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="recording-"))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    began = time.monotonic()
    print("| job | ranks | calls | phases | step | captured | calls equal | cost: recorded over plain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.jobs.split(","):
        output = folder / f"{name}-job.json"
        arms: dict[str, list[float]] = {"plain": [], "recorded": []}
        launch(name, folder, output, traces=asked.traces)
        job = job_file.load(output) if output.is_file() else None
        wrong = difference(job, name, folder) if job else "nothing was recorded"
        for _ in range(asked.repeats if name in _TIMED else 0):
            for arm, place in (("plain", None), ("recorded", folder / f"{name}-again.json")):
                if launch(name, folder, place) == 0:
                    arms[arm].append(step_ms(name, folder))
        failed += bool(wrong)
        print(row(name, job, wrong, arms), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s; files in {folder}")
    return 1 if failed else 0


def row(name: str, job: Job | None, wrong: str, arms: dict[str, list[float]]) -> str:
    """Return one line of the table."""
    if job is None:
        return f"| {name} | | | | | | {wrong} | |"
    step = job.ranks[0].step
    cells = [
        name,
        str(len(job.ranks)),
        " + ".join(str(rank.calls) for rank in job.ranks),
        " + ".join(str(len(rank.phases)) for rank in job.ranks),
        f"{len(step.positions)} calls × {step.repetitions}" if step else "",
        str(sum(call.captured for call in job.calls)),
        wrong or "yes",
        "",
    ]
    if all(arms.values()):
        ratio = statistics.median(arms["recorded"]) / statistics.median(arms["plain"])
        shown = {arm: ", ".join(f"{ms:.3f}" for ms in times) for arm, times in arms.items()}
        cells[-1] = f"{ratio:.4f} ({shown['recorded']} over {shown['plain']} ms)"
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
