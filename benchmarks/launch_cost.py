"""What `collbench train` adds to torchrun's own start-up: side by side, interleaved, repeated, against two bars.

    python benchmarks/launch_cost.py --out DIR                   # on GPUs
    python benchmarks/launch_cost.py --out DIR --backend host    # on CPU cores

A round starts a script that does nothing by torchrun, by `train` from a saved run, and by `train --fresh` (a probe).
What is added is each round's difference to its own torchrun, from the start of the command to its end.
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

from collbench.backends import factory
from collbench.model.run import Run
from collbench.runfile import run_file

TORCHRUN, SAVED, PROBED = "torchrun", "train, saved run", "train, --fresh"
BARS = {SAVED: 0.5, PROBED: 4.0}  # seconds added
# The same steps as `train` takes, alone and one after the other; `train` itself asks NVML while numpy loads.
PHASES = """
import os, sys, time
from pathlib import Path
def lap(what, clock=[time.perf_counter()]):
    now = time.perf_counter()
    print(f"{what}\\t{now - clock[0]:.3f}")
    clock[0] = now
import collbench.cli.program, collbench.cli.train
lap("import the command line")
from collbench.backends.factory import look
found = look(sys.argv[1])
lap("look at the machine (NVML once)" if found.backend == "cuda" else "look at the machine")
if found.backend == "cuda":
    from collbench.machine.nccl import find_nccl
    find_nccl(os.environ.get('COLLBENCH_NCCL')).version
    lap("ask NCCL its version")
from collbench.runfile import run_file as runfile
run = runfile.load(Path(sys.argv[2]))
lap("read the run file")
from collbench.analysis.select import choose
lap("import numpy and the choice")
choose(run, int(sys.argv[3]))
lap("choose")
"""


@dataclass(frozen=True, slots=True)
class FinalistRequest:
    """Where and on what is measured: the folder with script and saved runs, the backend, and K of its devices."""

    folder: Path
    backend: str
    count: int

    def command(self, arm: str) -> list[str]:
        """Return the words of one arm."""
        if arm == TORCHRUN:
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.count)]
        else:
            words = ["-m", "collbench", "train", "--backend", self.backend, "--auto-select", str(self.count)]
            words += ["--fresh"] if arm == PROBED else []
        return [sys.executable, *words, "nothing.py"]

    def environment(self) -> dict[str, str]:
        """Return what every command gets: the sitting's own saved runs; OMP_NUM_THREADS, lest torchrun warn of it."""
        return {**os.environ, "XDG_STATE_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}

    def seconds(self, words: Sequence[str]) -> float:
        """Run a command; return its wall time. Raises RuntimeError with its words where it fails."""
        begun = time.perf_counter()
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - begun
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} failed ({done.returncode}): {done.stderr.strip()}")
        return took

    def saved(self) -> Path:
        """Return the oldest saved run: the one that the sitting began with."""
        return min((self.folder / "collbench" / "runs").glob("*.json"))


def sit(folder: Path, asked: str, count: int | None) -> FinalistRequest:
    """Prepare a sitting: a script that does nothing, and a saved run of all pairs."""
    backend, why = factory.resolve(asked)
    if why is not None:
        raise RuntimeError(f"{why}: write --backend host")
    devices = len(factory.present_devices(backend))
    sitting = FinalistRequest(folder, backend, count or min(2, devices - 1))
    (folder / "nothing.py").touch()
    # On cores a whole sweep takes a minute; on GPUs 5 s, and its file is as large as people's.
    quick = ["--quick", "--operations", "copy,allreduce"] if backend == "host" else []
    sitting.seconds([sys.executable, "-m", "collbench", "pairs", "--backend", backend, *quick])
    return sitting


def measure(sitting: FinalistRequest, repeats: int) -> dict[str, list[float]]:
    """Return wall seconds of each arm by round, after one that warms the page cache; every round in another order."""
    arms = (TORCHRUN, SAVED, PROBED)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(repeats + 1):
        turned = [arms[(index + number) % len(arms)] for index in range(len(arms))]
        for arm in turned:
            took = sitting.seconds(sitting.command(arm))
            if number > 0:
                times[arm].append(took)
            if arm == PROBED:
                newest(sitting).unlink()  # the next round chooses from the sitting's own run, not from a probe
    return times


def newest(sitting: FinalistRequest) -> Path:
    """Return the probe's file; the sitting's own run is older, by its name."""
    return max((sitting.folder / "collbench" / "runs").glob("*probe*.json"))


def report(sitting: FinalistRequest, run: Run, times: dict[str, list[float]]) -> Iterator[str]:
    """Yield the lines of the table, and where the time goes."""
    names = sorted({device.name for device in run.devices})
    yield f"machine   {socket.gethostname()}: {len(run.devices)} × {', '.join(names)}, backend {sitting.backend}"
    driver, nccl = run.machine.driver or "-", run.machine.nccl or "-"
    yield f"versions  driver {driver}, NCCL {nccl}, Python {sys.version.split()[0]}"
    now, rounds = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", len(times[TORCHRUN])
    yield f"measured  {now}, {rounds} rounds, interleaved, K = {sitting.count}"
    if sitting.backend == "host":
        yield "note      the bars are for GPUs: a probe of CPU cores takes its time, as their copies are slow"
    yield ""
    yield f"{'command':<18}{'wall, s: median':>16}  {'min–max':<13}{'added, s: median':>17}  {'min–max':<13}bar"
    for arm, walls in times.items():
        added = [wall - plain for wall, plain in zip(walls, times[TORCHRUN], strict=True)]
        line = f"{arm:<18}{statistics.median(walls):>16.2f}  {spread(walls):<13}"
        if arm in BARS:
            line += f"{statistics.median(added):>17.2f}  {spread(added):<13}{verdict(sitting, arm, added)}"
        yield line.rstrip()
    yield ""
    yield "where it goes, s (alone, one after the other)"
    yield from phases(sitting)


def verdict(sitting: FinalistRequest, arm: str, added: Sequence[float]) -> str:
    """Return an arm's bar, and whether it is met; CPU cores are not held to it."""
    if sitting.backend == "host":
        return f"{BARS[arm]} on GPUs"
    return f"{BARS[arm]} {'met' if statistics.median(added) <= BARS[arm] else 'missed'}"


def phases(sitting: FinalistRequest) -> Iterator[str]:
    """Yield a line for each step of a launch from a saved run, the middle of three."""
    words = [sys.executable, "-c", PHASES, sitting.backend, str(sitting.saved()), str(sitting.count)]
    found: dict[str, list[float]] = {"start Python": [sitting.seconds([sys.executable, "-c", ""]) for _ in range(3)]}
    for _ in range(3):
        said = subprocess.run(words, env=sitting.environment(), capture_output=True, text=True, check=True).stdout
        for line in said.splitlines():
            what, seconds = line.split("\t")
            found.setdefault(what, []).append(float(seconds))
    for what, seconds_of_it in found.items():
        yield f"  {what:<34}{statistics.median(seconds_of_it):6.3f}"


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
    given = parser.parse_args()
    with TemporaryDirectory(prefix="collbench-launch-") as folder:
        try:
            sitting = sit(Path(folder), given.backend, given.count)
            times = measure(sitting, given.repeats)
        except RuntimeError as error:
            raise SystemExit(f"launch_cost.py: {error}") from None
        lines = list(report(sitting, run_file.load(sitting.saved()), times))
    print("\n".join(lines))
    given.out.mkdir(parents=True, exist_ok=True)
    text = f"$ python benchmarks/launch_cost.py {' '.join(sys.argv[1:])}\n" + "\n".join(lines) + "\n"
    (given.out / "launch-cost.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
