#!/usr/bin/env python3
"""Training time and accuracy of a small image network on 1, 2, … GPUs.

    python benchmarks/scaling.py --out scaling.json [--gpus 1,2,3,4] [--epochs 4] [--seeds 0,1,2,3]
    python benchmarks/scaling.py --out try.json --gpus 1,2 --backend host --tiny --images 960 --epochs 2   # a dry run

Each job is training/classify.py, an EfficientNet-B0 on CIFAR-shaped images made from a seed, started on the best K GPUs
by `collbench train --auto-select K`. There are two main series: `per-gpu` keeps the images per GPU and step (as the
published table did), so that K GPUs take K times fewer and larger steps; `global` keeps the images per step, shared by
the GPUs. `raised` is `per-gpu` with a learning rate √K times as high, as is usual for larger steps; `one-gpu` takes
those larger steps on one GPU, which shows their effect on accuracy alone.
Time is that of the training loop, without start-up and evaluation. `--seeds 0,1,2` repeats the trainings with other
weights and orders, because accuracy varies between trainings. Only the first seed's jobs run one at a time and are
timed; those of each other seed run concurrently. The file is rewritten after every job.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "training" / "classify.py"
FORMAT = "collbench-scaling"
SERIES = ("per-gpu", "raised", "global", "one-gpu")


class CannotBeginError(Exception):
    """Why nothing was run, in one line."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training: number of GPUs, images per GPU and step, and the factor on the learning rate."""

    gpus: int
    batch: int
    raised: float = 1.0

    def __str__(self) -> str:
        raised = f", learning rate × {self.raised:.3g}" if self.raised > 1 else ""
        return f"{self.gpus} GPUs × {self.batch} images a step{raised}"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time and accuracy of a small image network on 1, 2, … GPUs")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results as JSON")
    parser.add_argument("--gpus", default="1,2,3,4", metavar="LIST", help="numbers of GPUs [1,2,3,4]")
    parser.add_argument("--steps-of", metavar="LIST", help="numbers of GPUs whose steps one GPU takes [as --gpus]")
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES), help="[all]")
    parser.add_argument("--images", type=int, default=19_200, metavar="N", help="to train on [19200]")
    parser.add_argument("--held-out", type=int, default=9_600, metavar="N", help="for the accuracy [9600]")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="[4]")
    parser.add_argument("--batch", type=int, default=96, metavar="N", help="images a step, of a GPU or of all [96]")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="R", help="AdamW's, everywhere [0.001]")
    parser.add_argument("--seeds", default="0", metavar="LIST", help="of weights and order; the first is timed [0]")
    parser.add_argument("--amp", action="store_true", help="bf16 in the convolutions, by autocast")
    parser.add_argument("--tiny", action="store_true", help="a network of three convolutions: a dry run")
    parser.add_argument("--backend", default="auto", metavar="NAME", help="as collbench train has it [auto]")
    parser.add_argument("--collbench", default=f"{shlex.quote(sys.executable)} -m collbench", metavar="COMMAND")
    return parser.parse_args(argv)


def numbers_of(text: str, option: str, minimum: int = 1) -> list[int]:
    """Return the numbers that an option lists, each once. Raises CannotBeginError."""
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError as error:
        raise CannotBeginError(f"{option} {text} is no list of numbers: write {option} 1,2,4") from error
    if min(numbers) < minimum:
        raise CannotBeginError(f"{option} {text}: {minimum} or more each")
    return numbers


def counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of GPUs. Raises CannotBeginError for a wrong list, or if they do not divide the batch."""
    numbers = sorted(numbers_of(options.gpus, "--gpus"))
    not_divisors = [number for number in numbers if options.batch % number]
    if not_divisors and "global" in options.series:
        raise CannotBeginError(f"--batch {options.batch} cannot be shared by {not_divisors[0]} GPUs: write --batch 96")
    return numbers


def jobs(options: argparse.Namespace) -> dict[Job, list[str]]:
    """Return the jobs with the series that they belong to; all series share the job on one GPU."""
    numbers, batch = counts(options), options.batch
    multiples = numbers if options.steps_of is None else sorted(numbers_of(options.steps_of, "--steps-of"))
    jobs_of_series = {
        "per-gpu": [Job(number, batch) for number in numbers],
        "raised": [Job(number, batch, math.sqrt(number)) for number in numbers],
        "global": [Job(number, batch // number) for number in numbers],
        "one-gpu": [Job(1, batch * number) for number in multiples],
    }
    series_of_job: dict[Job, list[str]] = {}
    for series in options.series:
        for job in jobs_of_series[series]:
            series_of_job.setdefault(job, []).append(series)
    return series_of_job


def command(options: argparse.Namespace, job: Job, seed: int, devices: Sequence[str], result: Path) -> list[str]:
    """Return the command line of one job; `devices` are collbench train's options that choose the GPUs."""
    names = ("images", "held_out", "epochs")
    values = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    flags = [f"--{name}" for name in ("amp", "tiny") if getattr(options, name)]
    rate = ("--learning-rate", f"{options.learning_rate * job.raised:.6g}")
    launch = [
        *shlex.split(options.collbench),
        "train",
        *devices,
        "--backend",
        options.backend,
        str(SCRIPT),
        *values,
        *flags,
    ]
    return [*launch, "--batch", str(job.batch), "--seed", str(seed), *rate, "--json", str(result)]


class Results:
    """The finished trainings, written to the file `out` whenever one is added."""

    def __init__(self, options: argparse.Namespace, argv: Sequence[str], seeds: Sequence[int]) -> None:
        """Write the file without jobs. Raises CannotBeginError if it cannot be written."""
        settings = {name: getattr(options, name) for name in ("images", "epochs", "batch", "learning_rate")}
        self._out, self._rows = options.out, list[dict[str, Any]]()
        self._rows_of: dict[Job, list[dict[str, Any]]] = {}
        self._data = {
            "format": FORMAT,
            "format_version": 1,
            "started": f"{datetime.now(UTC):%FT%TZ}",
            "hostname": platform.node(),
            "command": ["benchmarks/scaling.py", *argv],
            "network": "three convolutions (tiny)" if options.tiny else "EfficientNet-B0",
            "settings": settings | {"seeds": list(seeds)},
            "amp": options.amp,
            "rows": self._rows,
        }
        try:
            self._write()  # before an hour of GPUs is spent
        except OSError as error:
            raise CannotBeginError(f"cannot write {self._out}: {error.strerror}; choose another --out FILE") from error

    def add(self, job: Job, series: Sequence[str], result: dict[str, Any], wall_seconds: float) -> None:
        """Add a timed job: a row for each of its series."""
        fields = {**result, "raised": job.raised, "wall_seconds": wall_seconds}
        self._rows_of[job] = [
            {"series": series_name, **fields, "accuracies": [result["accuracy"]]} for series_name in series
        ]
        self._rows += self._rows_of[job]
        self._write()

    def repeat(self, job: Job, accuracy: float) -> None:
        """Add the same job's accuracy from another seed."""
        for row in self._rows_of.get(job, ()):
            row["accuracies"].append(accuracy)
        self._write()

    def _write(self) -> None:
        self._out.write_text(json.dumps(self._data, indent=1) + "\n", encoding="utf-8")


def run(options: argparse.Namespace, argv: Sequence[str]) -> list[str]:
    """Run every job of every seed; return a line for each that failed."""
    jobs_to_run, (seed, *other_seeds) = jobs(options), numbers_of(options.seeds, "--seeds", minimum=0)
    results = Results(options, argv, (seed, *other_seeds))
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job, series in jobs_to_run.items():
            print(f"== {job} ({', '.join(series)})", flush=True)
            begin = time.perf_counter()
            command_line = command(options, job, seed, ("--auto-select", str(job.gpus)), folder / "result.json")
            status = subprocess.run(command_line, check=False).returncode
            if status == 0:
                results.add(job, series, read_result(folder / "result.json"), time.perf_counter() - begin)
            else:
                failures.append(f"{job}: exit status {status} of {shlex.join(command_line)}")
        for other_seed in other_seeds:
            failures += run_concurrently(options, jobs_to_run, other_seed, results, folder)
    return failures


def run_concurrently(
    options: argparse.Namespace, jobs_to_run: Collection[Job], seed: int, results: Results, folder: Path
) -> list[str]:
    """Run all jobs of a seed concurrently, for their accuracy; return a line for each that failed."""
    print(f"== all from seed {seed}, side by side", flush=True)
    started: list[tuple[Job, Path, subprocess.Popen[bytes]]] = []
    gpu_count, first_gpu = max(job.gpus for job in jobs_to_run), 0
    for number, job in enumerate(jobs_to_run):
        devices = (str((first_gpu + rank) % gpu_count) for rank in range(job.gpus))  # all GPUs get their share
        path = folder / f"{seed}-{number}.json"
        command_line = command(options, job, seed, ("--devices", ",".join(devices)), path)
        started.append((job, path, subprocess.Popen(command_line)))
        first_gpu += job.gpus
    failures = []
    for job, path, process in started:
        if process.wait() == 0:
            results.repeat(job, read_result(path)["accuracy"])
        else:
            failures.append(f"{job}, seed {seed}: exit status {process.returncode}")
    return failures


def read_result(path: Path) -> dict[str, Any]:
    """Return the result that a job wrote."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def main(argv: Sequence[str]) -> int:
    """Run the jobs, print the table; return the exit status."""
    options = arguments(argv)
    try:
        failures = run(options, argv)
    except CannotBeginError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"scaling: cannot start {error.filename}: {error.strerror}; see --collbench", file=sys.stderr)
        return 2
    from training.tables import scaling  # imported here, because only the table needs it

    print("\n".join(scaling(json.loads(options.out.read_text(encoding="utf-8")))))
    for line in failures:
        print(f"scaling: FAILED {line}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
