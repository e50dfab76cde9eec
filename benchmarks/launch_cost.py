"""How much time `collbench train` adds to torchrun's start-up: interleaved, repeated, against two bars.

    python benchmarks/launch_cost.py --out DIR                   # on GPUs
    python benchmarks/launch_cost.py --out DIR --backend host    # on CPU cores

A round starts an empty script with torchrun, with `train` from a saved run, and with `train --fresh` (a probe). The
added time is the difference of wall times, from start to end of a command, to the same round's torchrun.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from collbench.measurement.backends import factory
from collbench.model.run import Run
from collbench.runfile import run_file

TORCHRUN, SAVED, PROBED = "torchrun", "train, saved run", "train, --fresh"
BARS = {SAVED: 0.5, PROBED: 4.0}  # seconds added
# The steps of `train`, one after another; `train` itself queries NVML while numpy loads.
PHASES = """
import os, sys, time
from pathlib import Path
def lap(what, clock=[time.perf_counter()]):
    now = time.perf_counter()
    print(f"{what}\\t{now - clock[0]:.3f}")
    clock[0] = now
import collbench.cli.program, collbench.cli.train
lap("import the command line")
from collbench.measurement.backends.factory import look
machine = look(sys.argv[1])
lap("look at the machine (NVML once)" if machine.backend == "cuda" else "look at the machine")
if machine.backend == "cuda":
    from collbench.machine.nccl import find_nccl
    find_nccl(os.environ.get('COLLBENCH_NCCL')).version
    lap("ask NCCL its version")
from collbench.runfile import run_file as runfile
run = runfile.load(Path(sys.argv[2]))
lap("read the run file")
from collbench.choose.select import choose
lap("import numpy and the choice")
choose(run, int(sys.argv[3]))
lap("choose")
"""


@dataclass(frozen=True, slots=True)
class LaunchBench:
    """The commands to time: in `folder`, with the script and saved runs, on `count` devices of a backend."""

    folder: Path
    backend: str
    count: int

    def command(self, arm: str) -> list[str]:
        """Return the command line of one arm."""
        if arm == TORCHRUN:
            arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.count)]
        else:
            arguments = ["-m", "collbench", "train", "--backend", self.backend, "--auto-select", str(self.count)]
            arguments += ["--fresh"] if arm == PROBED else []
        return [sys.executable, *arguments, "nothing.py"]

    def environment(self) -> dict[str, str]:
        """Return every command's environment: saved runs in `folder`; OMP_NUM_THREADS silences torchrun's warning."""
        return {**os.environ, "XDG_STATE_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}

    def seconds(self, command: Sequence[str]) -> float:
        """Run a command; return its wall time in seconds. Raises RuntimeError with its stderr where it fails."""
        begin = time.perf_counter()
        result = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - begin
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed ({result.returncode}): {result.stderr.strip()}")
        return seconds

    def saved(self) -> Path:
        """Return the oldest saved run: the one that `prepare` measured."""
        return min((self.folder / "collbench" / "runs").glob("*.json"))


def prepare(folder: Path, requested: str, count: int | None) -> LaunchBench:
    """Prepare the folder: an empty script, and a saved run of all pairs."""
    backend, problem = factory.resolve(requested)
    if problem is not None:
        raise RuntimeError(f"{problem}: write --backend host")
    devices = len(factory.present_devices(backend))
    bench = LaunchBench(folder, backend, count or min(2, devices - 1))
    (folder / "nothing.py").touch()
    # On cores a full sweep takes a minute; on GPUs 5 s, and its file is as large as a user's.
    quick = ["--quick", "--operations", "copy,allreduce"] if backend == "host" else []
    bench.seconds([sys.executable, "-m", "collbench", "pairs", "--backend", backend, *quick])
    return bench


def measure(bench: LaunchBench, repeats: int) -> dict[str, list[float]]:
    """Return wall seconds of each arm by round, after one that warms the page cache; the order differs by round."""
    arms = (TORCHRUN, SAVED, PROBED)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(repeats + 1):
        order = [arms[(index + number) % len(arms)] for index in range(len(arms))]
        for arm in order:
            seconds = bench.seconds(bench.command(arm))
            if number > 0:
                times[arm].append(seconds)
            if arm == PROBED:
                newest(bench).unlink()  # the next round must choose from the saved run, not from a probe
    return times


def newest(bench: LaunchBench) -> Path:
    """Return the probe's file, which is newer than the saved run, by its name."""
    return max((bench.folder / "collbench" / "runs").glob("*probe*.json"))


def report(bench: LaunchBench, run: Run, times: dict[str, list[float]]) -> Iterator[str]:
    """Yield the lines of the table, and where the time goes."""
    names = sorted({device.name for device in run.devices})
    yield f"machine   {socket.gethostname()}: {len(run.devices)} × {', '.join(names)}, backend {bench.backend}"
    driver, nccl = run.machine.driver or "-", run.machine.nccl or "-"
    yield f"versions  driver {driver}, NCCL {nccl}, Python {sys.version.split()[0]}"
    now, rounds = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", len(times[TORCHRUN])
    yield f"measured  {now}, {rounds} rounds, interleaved, K = {bench.count}"
    if bench.backend == "host":
        yield "note      the bars are for GPUs: a probe of CPU cores takes its time, as their copies are slow"
    yield ""
    yield f"{'command':<18}{'wall, s: median':>16}  {'min–max':<13}{'added, s: median':>17}  {'min–max':<13}bar"
    for arm, walls in times.items():
        added = [wall - torchrun_wall for wall, torchrun_wall in zip(walls, times[TORCHRUN], strict=True)]
        line = f"{arm:<18}{statistics.median(walls):>16.2f}  {spread(walls):<13}"
        if arm in BARS:
            line += f"{statistics.median(added):>17.2f}  {spread(added):<13}{verdict(bench, arm, added)}"
        yield line.rstrip()
    yield ""
    yield "where it goes, s (alone, one after the other)"
    yield from phases(bench)


def verdict(bench: LaunchBench, arm: str, added: Sequence[float]) -> str:
    """Return an arm's bar, and whether it is met; CPU cores are not held to it."""
    if bench.backend == "host":
        return f"{BARS[arm]} on GPUs"
    return f"{BARS[arm]} {'met' if statistics.median(added) <= BARS[arm] else 'missed'}"


def phases(bench: LaunchBench) -> Iterator[str]:
    """Yield a line for each step of a launch from a saved run, the middle of three."""
    command = [sys.executable, "-c", PHASES, bench.backend, str(bench.saved()), str(bench.count)]
    seconds_of_phase: dict[str, list[float]] = {
        "start Python": [bench.seconds([sys.executable, "-c", ""]) for _ in range(3)]
    }
    for _ in range(3):
        output = subprocess.run(command, env=bench.environment(), capture_output=True, text=True, check=True).stdout
        for line in output.splitlines():
            phase, seconds = line.split("\t")
            seconds_of_phase.setdefault(phase, []).append(float(seconds))
    for phase, values in seconds_of_phase.items():
        yield f"  {phase:<34}{statistics.median(values):6.3f}"


def spread(values: Sequence[float]) -> str:
    """Return the smallest and the largest."""
    return f"{min(values):.2f}–{max(values):.2f}"


def main() -> None:
    """Measure, print, and keep what was printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for launch-cost.txt")
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "host"))
    parser.add_argument("--repeats", type=int, default=7, help="rounds; one more warms up")
    parser.add_argument("--count", type=int, help="K; 2 by default, or one less than there are")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="collbench-launch-") as folder:
        try:
            bench = prepare(Path(folder), options.backend, options.count)
            times = measure(bench, options.repeats)
        except RuntimeError as error:
            raise SystemExit(f"launch_cost.py: {error}") from None
        lines = list(report(bench, run_file.load(bench.saved()), times))
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    text = f"$ python benchmarks/launch_cost.py {' '.join(sys.argv[1:])}\n" + "\n".join(lines) + "\n"
    (options.out / "launch-cost.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
