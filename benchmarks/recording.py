#!/usr/bin/env python3
"""Whether `collbench record` writes down what jobs send, call by call, and what it costs their steps, on two GPUs.

    python benchmarks/recording.py                       # all jobs, and the cost, in about two minutes
    python benchmarks/recording.py --jobs ddp,killed --repeats 0 --out FOLDER
    python benchmarks/recording.py --gpu-times           # the same, and what GPU times are and cost
    python benchmarks/recording.py --cost ddp-gpt2-medium --repeats 5      # what it costs a job that no host bounds
    python benchmarks/recording.py --program all_reduce_perf               # nccl-tests: plain C++, no torch

Each job (recorded_job.py) says itself what each rank sent: DDP, FSDP2 and tensor parallel by torch's Flight Recorder,
the others by hand. `calls equal` compares function, bytes and order on every rank; of the killed job, whose own list is
a line ahead, all but its last line. The cost is the median step with the recorder over the one without, in turn,
--repeats times; steps of a host vary by far more than it, so `calls` times small all-reduces as fast as the host
launches them: its step is a thousand, and the difference is the recorder's time of a call. The exit status is 1 where
calls differ; FOLDER keeps the job files and what the jobs said.

With --cost pairs of runs, with and without the recorder, each in the other order than the pair before, give the ratio
of their steps with its 95 % interval; and a program that plays NCCL says how long the plugin takes for a call of a step
in the calling thread, at most: that, times the calls of a step, is what a host can lose.

With --program nccl-tests' all_reduce_perf runs on two GPUs in one process, recorded; it makes a known number of calls
of each size (5 to warm up, and out of place and in place one ahead, 20 timed, and one checked, src/common.cu).

With --gpu-times every job is recorded once more, by 'collbench record --gpu-times', and its calls must be the same. A
second table says how many calls have a GPU time, what a step's calls took on each rank and at least over the ranks, and
what recording them costs; the graph's step is timed, too, for there it costs most. With --traces, which adds three
steps under torch.profiler, the step's GPU time there stands beside.
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

from collbench.analysis.job import kernels, report
from collbench.analysis.stats import mean_interval
from collbench.model.job import Ending, Job, JobRank
from collbench.runfile import job_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.native.recorded import ABIS, Made, play  # the host that plays NCCL is the tests'

_JOBS = ("ddp", "fsdp2", "tp", "moe", "graph", "calls", "killed")
_TIMED = ("ddp", "fsdp2", "calls")
_ARMS = {
    "plain": (),
    "recorded": ("record",),
    "GPU times": ("record", "--gpu-times"),
}  # collbench's words before the job
_SCRIPT = Path(__file__).with_name("recorded_job.py")
_RANKS = 2


def launch(job: str, folder: Path, output: Path, *, arm: str = "recorded", traces: bool = False) -> int:
    """Run a job under torchrun, recorded into a file as its arm says. Return its exit status."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_RANKS}"]
    words += [str(_SCRIPT), job, str(folder), *["traces"] * traces]
    if _ARMS[arm]:
        words = [sys.executable, "-m", "collbench", *_ARMS[arm], "--force", "-o", str(output), "--", *words]
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


def timed(job: Job, rank: JobRank) -> tuple[int, int, float | None]:
    """Return how many calls of a rank have a GPU time, of how many that ran, and the step's mean sum of them in µs.

    A captured call has none: it ran when its graph was replayed. Calls of one group share a kernel, the longest.
    """
    known = [
        (position.gpu.count if position.gpu else 0, phase.repetitions)
        for phase in rank.phases
        for position in phase.positions
        if not job.calls[position.call].captured
    ]
    step = rank.step
    whole: float | None = None
    if step is not None and all(position.gpu is not None for position in step.positions):
        means = [position.gpu.mean if position.gpu else math.nan for position in step.positions]
        whole = float(kernels(step.positions, means).sum())
    return sum(min(pair) for pair in known), sum(ran for _, ran in known), whole


def least_of_step(job: Job) -> float | None:
    """Return what the step's calls took on the rank that waited least for each, in µs: their transfer."""
    found = report(job)
    if found is None or not found.repeats or any(row.transfer is None for row in found.rows):
        return None
    return sum((row.transfer or 0.0) * row.count for row in found.rows) * 1e6


def traced_step(name: str, folder: Path) -> float | None:
    """Return the GPU time of NCCL's kernels in one of the three steps that torch.profiler saw on rank 0, in µs."""
    path = folder / f"{name}-0.kineto.json.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as text:
        events = json.load(text)["traceEvents"]
    own = [one["dur"] for one in events if one.get("cat") == "kernel" and "ncclDevKernel" in str(one.get("name"))]
    return float(sum(own)) / 3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default=",".join(_JOBS))
    parser.add_argument("--repeats", type=int, default=2, help="of each arm, for the cost")
    parser.add_argument("--out", type=Path, help="keep the job files here")
    parser.add_argument("--traces", action="store_true", help="let jobs leave what 'collbench import' reads, too")
    parser.add_argument("--gpu-times", action="store_true", help="record with GPU times, too, and say what that costs")
    parser.add_argument("--cost", metavar="JOB", help="time pairs of runs of this job, with and without the recorder")
    parser.add_argument("--program", type=Path, help="record this all_reduce_perf, and count its calls")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="recording-"))
    folder.mkdir(parents=True, exist_ok=True)
    if asked.cost or asked.program:
        return (paired(asked.cost, folder, asked.repeats) if asked.cost else 0) or (
            counted(asked.program, folder) if asked.program else 0
        )
    failed = 0
    began = time.monotonic()
    chosen = tuple(_ARMS) if asked.gpu_times else ("plain", "recorded")
    costly = (*_TIMED, "graph") if asked.gpu_times else _TIMED
    on_gpu = []
    print("| job | ranks | calls | phases | step | captured | calls equal | cost: recorded over plain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.jobs.split(","):
        output = folder / f"{name}-job.json"
        arms: dict[str, list[float]] = {arm: [] for arm in chosen}
        job, wrong = checked(name, folder, output, "recorded", traces=asked.traces)
        failed += bool(wrong)
        if asked.gpu_times:
            own, differs = checked(name, folder, folder / f"{name}-gpu-job.json", "GPU times", traces=asked.traces)
            failed += bool(differs)
        for _ in range(asked.repeats if name in costly else 0):
            for arm in chosen:
                if launch(name, folder, folder / f"{name}-again.json", arm=arm) == 0:
                    arms[arm].append(step_ms(name, folder))
        print(row(name, job, wrong, arms), flush=True)
        if asked.gpu_times:
            on_gpu.append(gpu_row(name, own, differs, arms, traced_step(name, folder)))
    if asked.gpu_times:
        print(
            "\n| job | calls with a GPU time | step's calls, µs | least over ranks, µs | by torch.profiler, µs |",
            end="",
        )
        print(" calls equal | cost: GPU times over plain |")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(on_gpu))
    print(f"\n{time.monotonic() - began:.0f} s; files in {folder}")
    return 1 if failed else 0


def paired(name: str, folder: Path, pairs: int) -> int:
    """Print the step recorded over the step without, pair by pair; then what the plugin takes for a call."""
    output, ratios = folder / f"{name}-job.json", []
    print(f"{name}: step, ms\n| recorded | plain | ratio |\n|---:|---:|---:|")
    for number in range(pairs):
        found = {}
        for arm in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
            if launch(name, folder, output, arm=arm):
                print(f"{name} failed: see {folder / name}.log")
                return 1
            found[arm] = step_ms(name, folder)
        ratios.append(found["recorded"] / found["plain"])
        print(f"| {found['recorded']:.3f} | {found['plain']:.3f} | {ratios[-1]:.4f} |", flush=True)
    interval = mean_interval(ratios)
    shown = f", 95 % {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
    print(f"\nmean ratio {statistics.fmean(ratios):.4f}{shown}")
    step = job_file.load(output).ranks[0].step
    if step is not None:
        calls, whole = len(step.positions), found["plain"] * 1e6
        for line in call_costs(folder):
            print(line)
            nanoseconds = float(line.split()[-2])
            print(f"  {calls} calls a step: {calls * nanoseconds / whole:.4%} of it")
    return 0


def call_costs(folder: Path) -> list[str]:
    """Return what the plugin takes for a call of a step of three, by each ABI that it speaks."""
    streams = folder / "streams"
    streams.mkdir(exist_ok=True)
    step = "".join(Made("allreduce", count).line() for count in (1000, 2000, 3000))
    script = f"comm 0 77 0 2 world\nrepeat 1000\n{step}end\nclock\nrepeat 100000\n{step}end\nclock\nfinalize 0\n"
    found = []
    for abi in ABIS:
        words = play(script, streams, abi).stdout.split()
        found.append(f"plugin of ABI v{abi}: {words[-3]} ns")
    return found


# nccl-tests' defaults, but for the sizes: warm-up launches of each power of two, timed ones of each size.
_WARM_UP, _TIMES = 5, 20
_LEAST, _MOST, _FACTOR = 2**20, 2**26, 4


def counted(program: Path, folder: Path) -> int:
    """Record all_reduce_perf on two GPUs, and compare its calls with what its source makes. Return the exit status."""
    output = folder / "program-job.json"
    words = [str(program), "-b", str(_LEAST), "-e", str(_MOST), "-f", str(_FACTOR), "-g", "2"]
    words += ["-w", str(_WARM_UP), "-n", str(_TIMES)]
    command = [sys.executable, "-m", "collbench", "record", "--force", "-o", str(output), "--", *words]
    with (folder / "program.log").open("w", encoding="utf-8") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    job = job_file.load(output)
    expected: Counter[int] = Counter()
    size = _LEAST
    while size <= _MOST:
        expected[size] += _WARM_UP
        size *= 2
    size = _LEAST
    while size <= _MOST:
        expected[size] += 2 * (1 + _TIMES + 1)
        size *= _FACTOR
    for rank in job.ranks:
        calls = [job.calls[place] for place in rank.unfolded()]
        have = Counter(call.size_bytes for call in calls if call.operation == "allreduce")
        others = sorted({call.operation for call in calls} - {"allreduce"})
        print(f"rank {rank.rank} of {job.world_size}: {have.total()} all-reduces, {expected.total()} made", end="")
        print(
            f"; sizes and counts {'equal' if have == expected else f'differ: {have - expected}, {expected - have}'}",
            end="",
        )
        print(f"; others {', '.join(others) or 'none'}; {rank.ending}")
    wrong = not job.ranks or any(
        Counter(job.calls[place].size_bytes for place in rank.unfolded()) != expected for rank in job.ranks
    )
    print(f"exit status {status}; log in {folder / 'program.log'}")
    return int(wrong)


def checked(name: str, folder: Path, output: Path, arm: str, *, traces: bool) -> tuple[Job | None, str]:
    """Record a job once. Return what was recorded, and where it differs from what the job itself says."""
    output.unlink(missing_ok=True)
    launch(name, folder, output, arm=arm, traces=traces)
    job = job_file.load(output) if output.is_file() else None
    return job, difference(job, name, folder) if job else "nothing was recorded"


def cost(arms: dict[str, list[float]], arm: str) -> str:
    """Return the median step of an arm over the plain one's, with all steps; "" where one was not timed."""
    if not arms["plain"] or not arms.get(arm):
        return ""
    ratio = statistics.median(arms[arm]) / statistics.median(arms["plain"])
    shown = {one: ", ".join(f"{ms:.3f}" for ms in arms[one]) for one in (arm, "plain")}
    more = (statistics.median(arms[arm]) - statistics.median(arms["plain"])) * 1e3
    return f"{ratio:.4f}, {more:+.0f} µs ({shown[arm]} over {shown['plain']} ms)"


def gpu_row(name: str, job: Job | None, wrong: str, arms: dict[str, list[float]], traced: float | None) -> str:
    """Return one line of the table of GPU times."""
    if job is None:
        return f"| {name} | | | | | {wrong} | |"

    def shown(micro: float | None) -> str:
        return "unknown" if micro is None else f"{micro:.1f}"

    found = [timed(job, rank) for rank in job.ranks]
    cells = [
        name,
        " + ".join(f"{known} of {ran}" for known, ran, _ in found),
        " + ".join(shown(step) for _, _, step in found),
        shown(least_of_step(job)),
        "" if traced is None else f"{traced:.1f}",
        wrong or "yes",
        cost(arms, "GPU times"),
    ]
    return f"| {' | '.join(cells)} |"


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
        cost(arms, "recorded"),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
