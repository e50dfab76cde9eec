#!/usr/bin/env python3
"""How the training time of a small image network falls with more GPUs, and what that does to its accuracy.

    python benchmarks/scaling.py --out scaling.json [--gpus 1,2,3,4] [--epochs 4] [--seeds 0,1,2,3]
    python benchmarks/scaling.py --out try.json --gpus 1,2 --backend host --tiny --images 960 --epochs 2   # a dry run

Each job is training/classify.py, an EfficientNet-B0 on CIFAR-shaped images made from a seed, started on the best K GPUs
by `collbench train --auto-select K`. Two series, as two people would do it: `per-gpu` keeps the images per GPU and step
(the published table did), so that K GPUs take K times fewer and larger steps; `global` keeps the step, and shares it.
`raised` is `per-gpu` with a learning rate √K times as high, as larger steps want it, and `one-gpu` takes those larger
steps on a single GPU: what they do to accuracy, without a second GPU to blame.
Time is that of the training loop, without start-up and evaluation. `--seeds 0,1,2` trains from other weights in other
orders, too: accuracy also has its luck. Only the first seed's jobs have the machine to themselves and are timed; those
of each other seed run side by side. The file is rewritten after every job.
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
    """The reason why nothing was run, in one line."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training: on how many GPUs, with how many images on each a step, and the learning rate over the usual one."""

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


def numbers_of(text: str, option: str, least: int = 1) -> list[int]:
    """Return the numbers that an option lists, each once. Raises CannotBeginError."""
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError as error:
        raise CannotBeginError(f"{option} {text} is no list of numbers: write {option} 1,2,4") from error
    if min(numbers) < least:
        raise CannotBeginError(f"{option} {text}: {least} or more each")
    return numbers


def counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of GPUs. Raises CannotBeginError for what is no such list, or does not share the batch."""
    numbers = sorted(numbers_of(options.gpus, "--gpus"))
    odd = [number for number in numbers if options.batch % number]
    if odd and "global" in options.series:
        raise CannotBeginError(f"--batch {options.batch} cannot be shared by {odd[0]} GPUs: write --batch 96")
    return numbers


def jobs(options: argparse.Namespace) -> dict[Job, list[str]]:
    """Return what is to be trained, with its series: on one GPU all of them have the same first job."""
    numbers, batch = counts(options), options.batch
    multiples = numbers if options.steps_of is None else sorted(numbers_of(options.steps_of, "--steps-of"))
    of_series = {
        "per-gpu": [Job(number, batch) for number in numbers],
        "raised": [Job(number, batch, math.sqrt(number)) for number in numbers],
        "global": [Job(number, batch // number) for number in numbers],
        "one-gpu": [Job(1, batch * number) for number in multiples],
    }
    made: dict[Job, list[str]] = {}
    for series in options.series:
        for job in of_series[series]:
            made.setdefault(job, []).append(series)
    return made


def command(options: argparse.Namespace, job: Job, seed: int, on: Sequence[str], result: Path) -> list[str]:
    """Return the command line of one job; `on` says on which GPUs, as collbench train has it."""
    names = ("images", "held_out", "epochs")
    values = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    flags = [f"--{name}" for name in ("amp", "tiny") if getattr(options, name)]
    rate = ("--learning-rate", f"{options.learning_rate * job.raised:.6g}")
    launch = [*shlex.split(options.collbench), "train", *on, "--backend", options.backend, str(SCRIPT), *values, *flags]
    return [*launch, "--batch", str(job.batch), "--seed", str(seed), *rate, "--json", str(result)]


class Results:
    """What was trained so far, in the file `out`, which is rewritten whenever something is added."""

    def __init__(self, options: argparse.Namespace, argv: Sequence[str], seeds: Sequence[int]) -> None:
        """Write the file without any job. Raises CannotBeginError where that is not possible."""
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
        """Add a timed job: a row for each series that it is of."""
        made = {**result, "raised": job.raised, "wall_seconds": wall_seconds}
        self._rows_of[job] = [{"series": one, **made, "accuracies": [result["accuracy"]]} for one in series]
        self._rows += self._rows_of[job]
        self._write()

    def repeat(self, job: Job, accuracy: float) -> None:
        """Add what the same job reached from another seed."""
        for row in self._rows_of.get(job, ()):
            row["accuracies"].append(accuracy)
        self._write()

    def _write(self) -> None:
        self._out.write_text(json.dumps(self._data, indent=1) + "\n", encoding="utf-8")


def run(options: argparse.Namespace, argv: Sequence[str]) -> list[str]:
    """Run every job of every seed; return what failed, a line each."""
    wanted, (seed, *others) = jobs(options), numbers_of(options.seeds, "--seeds", least=0)
    kept = Results(options, argv, (seed, *others))
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job, series in wanted.items():
            print(f"== {job} ({', '.join(series)})", flush=True)
            begin = time.perf_counter()
            words = command(options, job, seed, ("--auto-select", str(job.gpus)), folder / "result.json")
            status = subprocess.run(words, check=False).returncode
            if status == 0:
                kept.add(job, series, loaded(folder / "result.json"), time.perf_counter() - begin)
            else:
                failures.append(f"{job}: exit status {status} of {shlex.join(words)}")
        for other in others:
            failures += side_by_side(options, wanted, other, kept, folder)
    return failures


def side_by_side(
    options: argparse.Namespace, wanted: Collection[Job], seed: int, kept: Results, folder: Path
) -> list[str]:
    """Run all jobs of a seed at once, for their accuracy; return what failed."""
    print(f"== all from seed {seed}, side by side", flush=True)
    started: list[tuple[Job, Path, subprocess.Popen[bytes]]] = []
    every, first = max(job.gpus for job in wanted), 0
    for number, job in enumerate(wanted):
        places = (str((first + rank) % every) for rank in range(job.gpus))  # all GPUs get their share
        path = folder / f"{seed}-{number}.json"
        words = command(options, job, seed, ("--devices", ",".join(places)), path)
        started.append((job, path, subprocess.Popen(words)))
        first += job.gpus
    failures = []
    for job, path, process in started:
        if process.wait() == 0:
            kept.repeat(job, loaded(path)["accuracy"])
        else:
            failures.append(f"{job}, seed {seed}: exit status {process.returncode}")
    return failures


def loaded(path: Path) -> dict[str, Any]:
    """Return what a job wrote."""
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
    from training.tables import scaling  # late: what reads results is not needed to make them

    print("\n".join(scaling(json.loads(options.out.read_text(encoding="utf-8")))))
    for line in failures:
        print(f"scaling: FAILED {line}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
