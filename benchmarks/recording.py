#!/usr/bin/env python3
"""Checks that `collbench record` records every call of jobs, and measures what it costs their steps, on two GPUs.

    python benchmarks/recording.py                       # all jobs, and the cost, in about two minutes
    python benchmarks/recording.py --jobs ddp,killed --repeats 0 --out FOLDER
    python benchmarks/recording.py --gpu-times           # the same, with GPU times and their cost
    python benchmarks/recording.py --cost ddp-gpt2-medium --repeats 5      # the cost for a job that the GPU limits
    python benchmarks/recording.py --program all_reduce_perf               # nccl-tests: plain C++, no torch

Each job (recorded_job.py) lists what each rank sent: DDP, FSDP2 and tensor parallel with torch's Flight Recorder, the
others themselves. `calls equal` compares function, bytes and order on every rank; for the killed job, whose list is a
line ahead, all but the last line. The cost is the median step with the recorder over the one without, measured in turn
--repeats times. Steps vary by far more than that, so the job `calls` times small all-reduces as fast as the host
launches them: its step is a thousand calls, so the difference of steps in ms is the recorder's time per call in µs. The
exit status is 1 where calls differ; FOLDER keeps the job files and the jobs' output.

--cost measures pairs of runs, with and without the recorder, in alternating order, and gives the ratio of their steps
with its 95% interval. Then a program that plays NCCL measures the plugin's time per call in the calling thread; times
the calls of a step, that is the most that a host can lose.

--program records nccl-tests' all_reduce_perf on two GPUs in one process, which makes a known number of calls of each
size: 5 to warm up; out of place and in place one untimed, 20 timed and one checked each (src/common.cu).

--gpu-times records every job once more with 'collbench record --gpu-times'; its calls must be the same. A second table
shows how many calls have a GPU time, the time of a step's calls on each rank and the smallest over ranks, and the cost;
the graph's step is timed, too, because it costs most there. --traces adds three steps under torch.profiler, and the
step's GPU time that it measures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from collbench.jobs import job_file
from collbench.jobs.calls import kernels, report
from collbench.jobs.job import Ending, Job, JobRank
from collbench.overlaps.view import mean_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.native.recorded import ABIS, Made, play  # the tests' program that plays NCCL

_JOBS = ("ddp", "fsdp2", "tp", "moe", "graph", "calls", "killed")
_TIMED = ("ddp", "fsdp2", "calls")
_ARMS = {
    "plain": (),
    "recorded": ("record",),
    "GPU times": ("record", "--gpu-times"),
}  # collbench's arguments before the job
_SCRIPT = Path(__file__).with_name("recorded_job.py")
_RANKS = 2


def launch(job: str, folder: Path, output: Path, *, arm: str = "recorded", traces: bool = False) -> int:
    """Run a job under torchrun, recorded into a file or not, by its arm. Return its exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
    command += [str(_SCRIPT), job, str(folder), *["traces"] * traces]
    if _ARMS[arm]:
        command = [sys.executable, "-m", "collbench", *_ARMS[arm], "--force", "-o", str(output), "--", *command]
    # Room for all calls of a job, instead of torch's 2,000; both names, because torch renamed it.
    buffer_sizes = dict.fromkeys(("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"), "20000")
    with (folder / f"{job}.log").open("a", encoding="utf-8") as log:
        return subprocess.run(
            command, env={**os.environ, **buffer_sizes}, stdout=log, stderr=log, check=False
        ).returncode


def recorded_calls(job: Job, rank: JobRank) -> list[list[Any]]:
    """Return a rank's recorded calls, as [operation, bytes]."""
    return [[job.calls[index].operation, job.calls[index].size_bytes] for index in rank.unfolded()]


def difference(job: Job, name: str, folder: Path) -> str:
    """Return where the record and the job's own list first differ; "" where they are equal."""
    if [rank.rank for rank in job.ranks] != list(range(_RANKS)):
        return f"ranks {[rank.rank for rank in job.ranks]}"
    for rank in job.ranks:
        recorded = recorded_calls(job, rank)
        if name == "killed":
            lines = (folder / f"killed-{rank.rank}.txt").read_text(encoding="utf-8").splitlines()
            expected = [[line.split()[0], int(line.split()[1])] for line in lines]
            if rank.ending is not Ending.CUT_OFF:
                return f"rank {rank.rank} ends {rank.ending}"
            if recorded == expected[:-1]:
                continue
        else:
            expected = json.loads((folder / f"{name}-{rank.rank}.json").read_text(encoding="utf-8"))["calls"]
        if recorded != expected:
            index = next(
                (n for n, pair in enumerate(zip(recorded, expected, strict=False)) if pair[0] != pair[1]), None
            )
            index = min(len(recorded), len(expected)) if index is None else index
            calls_there = f"{index}: {recorded[index:][:3]} for {expected[index:][:3]}"
            return f"rank {rank.rank}: {len(recorded)} of {len(expected)} calls; {calls_there}"
    return ""


def step_ms(name: str, folder: Path) -> float:
    """Return the median step of the slower rank, in ms."""
    files = [folder / f"{name}-{rank}.json" for rank in range(_RANKS)]
    return max(float(json.loads(file.read_text(encoding="utf-8"))["step_ms"]) for file in files)


def gpu_times(job: Job, rank: JobRank) -> tuple[int, int, float | None]:
    """Return how many of a rank's kept calls have a GPU time, how many are kept, and the usual sum of a step's in µs.

    A captured call has none: it runs when its graph is replayed. Calls of one group share a kernel, the longest.
    """
    times = [
        sample.gpu[at] if sample.gpu else 0.0
        for phase in rank.phases
        for sample in phase.samples
        for at, position in enumerate(phase.positions)
        if not job.calls[position.call].captured
    ]
    step = rank.step
    step_us: float | None = None
    if step is not None and all(position.gpu is not None for position in step.positions):
        step_us = float(kernels(step, np.array([[position.gpu or math.nan for position in step.positions]]))[0])
    return sum(time > 0 for time in times), len(times), step_us


def least_of_step(job: Job) -> float | None:
    """Return the sum of the step's calls in µs, each on the rank that waited least: their transfer time."""
    job_report = report(job)
    if job_report is None or not job_report.repeats or any(row.transfer is None for row in job_report.rows):
        return None
    return sum((row.transfer or 0.0) * row.count for row in job_report.rows) * 1e6


def traced_step(name: str, folder: Path) -> float | None:
    """Return the GPU time of NCCL's kernels in one of the three steps that torch.profiler saw on rank 0, in µs."""
    path = folder / f"{name}-0.kineto.json.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as text:
        events = json.load(text)["traceEvents"]
    durations = [
        event["dur"] for event in events if event.get("cat") == "kernel" and "ncclDevKernel" in str(event.get("name"))
    ]
    return float(sum(durations)) / 3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default=",".join(_JOBS))
    parser.add_argument("--repeats", type=int, default=2, help="of each arm, for the cost")
    parser.add_argument("--out", type=Path, help="keep the job files here")
    parser.add_argument("--traces", action="store_true", help="let jobs write what 'collbench import' reads, too")
    parser.add_argument("--gpu-times", action="store_true", help="record with GPU times, too, and show what that costs")
    parser.add_argument("--cost", metavar="JOB", help="time pairs of runs of this job, with and without the recorder")
    parser.add_argument("--program", type=Path, help="record this all_reduce_perf, and count its calls")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="recording-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.cost or options.program:
        return (measure_cost(options.cost, folder, options.repeats) if options.cost else 0) or (
            compare_program(options.program, folder) if options.program else 0
        )
    failed = 0
    began = time.monotonic()
    arms_to_run = tuple(_ARMS) if options.gpu_times else ("plain", "recorded")
    timed_jobs = (*_TIMED, "graph") if options.gpu_times else _TIMED
    gpu_rows = []
    print("| job | ranks | calls | phases | step | captured | calls equal | cost: recorded over plain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.jobs.split(","):
        output = folder / f"{name}-job.json"
        arms: dict[str, list[float]] = {arm: [] for arm in arms_to_run}
        job, mismatch = record_once(name, folder, output, "recorded", traces=options.traces)
        failed += bool(mismatch)
        if options.gpu_times:
            gpu_job, gpu_mismatch = record_once(
                name, folder, folder / f"{name}-gpu-job.json", "GPU times", traces=options.traces
            )
            failed += bool(gpu_mismatch)
        for _ in range(options.repeats if name in timed_jobs else 0):
            for arm in arms_to_run:
                if launch(name, folder, folder / f"{name}-again.json", arm=arm) == 0:
                    arms[arm].append(step_ms(name, folder))
        print(row(name, job, mismatch, arms), flush=True)
        if options.gpu_times:
            gpu_rows.append(gpu_row(name, gpu_job, gpu_mismatch, arms, traced_step(name, folder)))
    if options.gpu_times:
        print(
            "\n| job | calls with a GPU time | step's calls, µs | least over ranks, µs | by torch.profiler, µs |",
            end="",
        )
        print(" calls equal | cost: GPU times over plain |")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(gpu_rows))
    print(f"\n{time.monotonic() - began:.0f} s; files in {folder}")
    return 1 if failed else 0


def measure_cost(name: str, folder: Path, pairs: int) -> int:
    """Print the recorded step over the plain one, pair by pair; then the plugin's time per call."""
    output, ratios = folder / f"{name}-job.json", []
    print(f"{name}: step, ms\n| recorded | plain | ratio |\n|---:|---:|---:|")
    for number in range(pairs):
        step_of_arm = {}
        for arm in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
            if launch(name, folder, output, arm=arm):
                print(f"{name} failed: see {folder / name}.log")
                return 1
            step_of_arm[arm] = step_ms(name, folder)
        ratios.append(step_of_arm["recorded"] / step_of_arm["plain"])
        print(f"| {step_of_arm['recorded']:.3f} | {step_of_arm['plain']:.3f} | {ratios[-1]:.4f} |", flush=True)
    interval = mean_interval(ratios)
    interval_text = f", 95% {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
    print(f"\nmean ratio {statistics.fmean(ratios):.4f}{interval_text}")
    step = job_file.load(output).ranks[0].step
    if step is not None:
        calls, step_ns = len(step.positions), step_of_arm["plain"] * 1e6
        for line in call_costs(folder):
            print(line)
            nanoseconds = float(line.split()[-2])
            print(f"  {calls} calls a step: {calls * nanoseconds / step_ns:.4%} of it")
    return 0


def call_costs(folder: Path) -> list[str]:
    """Return the plugin's time per call, in a step of three calls, for each ABI that it supports."""
    streams = folder / "streams"
    streams.mkdir(exist_ok=True)
    step = "".join(Made("allreduce", count).line() for count in (1000, 2000, 3000))
    script = f"comm 0 77 0 2 world\nrepeat 1000\n{step}end\nclock\nrepeat 100000\n{step}end\nclock\nfinalize 0\n"
    lines = []
    for abi in ABIS:
        output = play(script, streams, abi).stdout.split()
        lines.append(f"plugin of ABI v{abi}: {output[-3]} ns")
    return lines


# nccl-tests' defaults, except for the sizes: warm-up launches for each power of two, timed ones for each size.
_WARM_UP, _TIMES = 5, 20
_MIN_BYTES, _MAX_BYTES, _FACTOR = 2**20, 2**26, 4


def compare_program(program: Path, folder: Path) -> int:
    """Record all_reduce_perf on two GPUs, and compare its calls with those in its source. Return the exit status."""
    output = folder / "program-job.json"
    command_of_program = [str(program), "-b", str(_MIN_BYTES), "-e", str(_MAX_BYTES), "-f", str(_FACTOR), "-g", "2"]
    command_of_program += ["-w", str(_WARM_UP), "-n", str(_TIMES)]
    command = [sys.executable, "-m", "collbench", "record", "--force", "-o", str(output), "--", *command_of_program]
    with (folder / "program.log").open("w", encoding="utf-8") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    job = job_file.load(output)
    expected: Counter[int] = Counter()
    size = _MIN_BYTES
    while size <= _MAX_BYTES:
        expected[size] += _WARM_UP
        size *= 2
    size = _MIN_BYTES
    while size <= _MAX_BYTES:
        expected[size] += 2 * (1 + _TIMES + 1)
        size *= _FACTOR
    for rank in job.ranks:
        calls = [job.calls[index] for index in rank.unfolded()]
        counts = Counter(call.size_bytes for call in calls if call.operation == "allreduce")
        others = sorted({call.operation for call in calls} - {"allreduce"})
        print(f"rank {rank.rank} of {job.world_size}: {counts.total()} all-reduces, {expected.total()} made", end="")
        difference_text = f"differ: {counts - expected}, {expected - counts}"
        print(f"; sizes and counts {'equal' if counts == expected else difference_text}", end="")
        print(f"; others {', '.join(others) or 'none'}; {rank.ending}")
    mismatch = not job.ranks or any(
        Counter(job.calls[index].size_bytes for index in rank.unfolded()) != expected for rank in job.ranks
    )
    print(f"exit status {status}; log in {folder / 'program.log'}")
    return int(mismatch)


def record_once(name: str, folder: Path, output: Path, arm: str, *, traces: bool) -> tuple[Job | None, str]:
    """Record a job once. Return the record, and where it differs from the job's own list."""
    output.unlink(missing_ok=True)
    launch(name, folder, output, arm=arm, traces=traces)
    job = job_file.load(output) if output.is_file() else None
    return job, difference(job, name, folder) if job else "nothing was recorded"


def cost(arms: dict[str, list[float]], arm: str) -> str:
    """Return the median step of an arm over the plain arm's, with all steps; "" where one was not timed."""
    if not arms["plain"] or not arms.get(arm):
        return ""
    ratio = statistics.median(arms[arm]) / statistics.median(arms["plain"])
    steps = {timed_arm: ", ".join(f"{ms:.3f}" for ms in arms[timed_arm]) for timed_arm in (arm, "plain")}
    added_us = (statistics.median(arms[arm]) - statistics.median(arms["plain"])) * 1e3
    return f"{ratio:.4f}, {added_us:+.0f} µs ({steps[arm]} over {steps['plain']} ms)"


def gpu_row(name: str, job: Job | None, mismatch: str, arms: dict[str, list[float]], traced_us: float | None) -> str:
    """Return one line of the table of GPU times."""
    if job is None:
        return f"| {name} | | | | | {mismatch} | |"

    def text(micro: float | None) -> str:
        return "unknown" if micro is None else f"{micro:.1f}"

    times_by_rank = [gpu_times(job, rank) for rank in job.ranks]
    cells = [
        name,
        " + ".join(f"{known} of {ran}" for known, ran, _ in times_by_rank),
        " + ".join(text(step) for _, _, step in times_by_rank),
        text(least_of_step(job)),
        "" if traced_us is None else f"{traced_us:.1f}",
        mismatch or "yes",
        cost(arms, "GPU times"),
    ]
    return f"| {' | '.join(cells)} |"


def row(name: str, job: Job | None, mismatch: str, arms: dict[str, list[float]]) -> str:
    """Return one line of the table."""
    if job is None:
        return f"| {name} | | | | | | {mismatch} | |"
    step = job.ranks[0].step
    cells = [
        name,
        str(len(job.ranks)),
        " + ".join(str(rank.calls) for rank in job.ranks),
        " + ".join(str(len(rank.phases)) for rank in job.ranks),
        f"{len(step.positions)} calls × {step.repetitions}" if step else "",
        str(sum(call.captured for call in job.calls)),
        mismatch or "yes",
        cost(arms, "recorded"),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
