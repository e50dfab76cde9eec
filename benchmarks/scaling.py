#!/usr/bin/env python3
"""How the training time of a small image network falls with more GPUs, and what that does to its accuracy.

    python benchmarks/scaling.py --out scaling.json [--gpus 1,2,3,4] [--epochs 10] [--amp]
    python benchmarks/scaling.py --out try.json --gpus 1,2 --backend host --tiny --images 960 --epochs 2   # a dry run

Each job is training/classify.py, an EfficientNet-B0 on CIFAR-shaped images made from a seed, started on the best K GPUs
by `collbench train --auto-select K`. Two series, as two people would do it: `per-gpu` keeps the images per GPU and step
(the published table did), so that K GPUs take K times fewer and larger steps; `global` keeps the step, and shares it.
`one-gpu` takes those larger steps on a single GPU: what they do to accuracy, without a second GPU to blame.
Time is that of the training loop, without start-up and evaluation. The file is rewritten after every job.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "training" / "classify.py"
FORMAT = "collbench-scaling"
SERIES = ("per-gpu", "global", "one-gpu")


class CannotBeginError(Exception):
    """The reason why nothing was run, in one line."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time and accuracy of a small image network on 1, 2, … GPUs")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results as JSON")
    parser.add_argument("--gpus", default="1,2,3,4", metavar="LIST", help="numbers of GPUs [1,2,3,4]")
    parser.add_argument("--steps-of", metavar="LIST", help="numbers of GPUs whose steps one GPU takes [as --gpus]")
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES), help="[all]")
    parser.add_argument("--images", type=int, default=19_200, metavar="N", help="to train on [19200]")
    parser.add_argument("--held-out", type=int, default=9_600, metavar="N", help="for the accuracy [9600]")
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="[10]")
    parser.add_argument("--batch", type=int, default=96, metavar="N", help="images a step, of a GPU or of all [96]")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="R", help="AdamW's, everywhere [0.001]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of images, weights and order [0]")
    parser.add_argument("--amp", action="store_true", help="bf16 in the convolutions, by autocast")
    parser.add_argument("--tiny", action="store_true", help="a network of three convolutions: a dry run")
    parser.add_argument("--backend", default="auto", metavar="NAME", help="as collbench train has it [auto]")
    parser.add_argument("--collbench", default=f"{shlex.quote(sys.executable)} -m collbench", metavar="COMMAND")
    return parser.parse_args(argv)


def numbers_of(text: str, option: str) -> list[int]:
    """Return the numbers of GPUs that an option lists. Raises CannotBeginError."""
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError as error:
        raise CannotBeginError(f"{option} {text} is no list of numbers: write {option} 1,2,4") from error
    if numbers[0] < 1:
        raise CannotBeginError(f"{option} {text}: 1 or more each")
    return numbers


def counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of GPUs. Raises CannotBeginError for what is no such list, or does not share the batch."""
    numbers = numbers_of(options.gpus, "--gpus")
    odd = [number for number in numbers if options.batch % number]
    if odd and "global" in options.series:
        raise CannotBeginError(f"--batch {options.batch} cannot be shared by {odd[0]} GPUs: write --batch 96")
    return numbers


def jobs(options: argparse.Namespace) -> list[tuple[tuple[str, ...], int, int]]:
    """Return (series, GPUs, images per GPU and step) of each job: on one GPU all series have the same first job."""
    numbers, batch = counts(options), options.batch
    multiples = numbers if options.steps_of is None else numbers_of(options.steps_of, "--steps-of")
    of_series = {
        "per-gpu": [(number, batch) for number in numbers],
        "global": [(number, batch // number) for number in numbers],
        "one-gpu": [(1, batch * number) for number in multiples],
    }
    made: dict[tuple[int, int], list[str]] = {}
    for series in options.series:
        for job in of_series[series]:
            made.setdefault(job, []).append(series)
    return [(tuple(series), number, batch) for (number, batch), series in made.items()]


def command(options: argparse.Namespace, number: int, batch: int, result: Path) -> list[str]:
    """Return the command line of one job."""
    names = ("images", "held_out", "epochs", "learning_rate", "seed")
    values = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    flags = [f"--{name}" for name in ("amp", "tiny") if getattr(options, name)]
    launch = [*shlex.split(options.collbench), "train", "--auto-select", str(number), "--backend", options.backend]
    return [*launch, str(SCRIPT), *values, "--batch", str(batch), *flags, "--json", str(result)]


def run(options: argparse.Namespace, argv: Sequence[str]) -> list[str]:
    """Run every job and keep its rows in the file; return what failed, a line each."""
    wanted = jobs(options)
    data: dict[str, Any] = {
        "format": FORMAT,
        "format_version": 1,
        "started": f"{datetime.now(UTC):%FT%TZ}",
        "hostname": platform.node(),
        "command": ["benchmarks/scaling.py", *argv],
        "network": "three convolutions (tiny)" if options.tiny else "EfficientNet-B0",
        "settings": {name: getattr(options, name) for name in ("images", "epochs", "batch", "learning_rate", "seed")},
        "amp": options.amp,
        "rows": [],
    }
    failures: list[str] = []
    try:
        write(options.out, data)  # before an hour of GPUs is spent
    except OSError as error:
        raise CannotBeginError(f"cannot write {options.out}: {error.strerror}; choose another --out FILE") from error
    for series, number, batch in wanted:
        print(f"== {number} GPUs × {batch} images a step ({', '.join(series)})", flush=True)
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            words = command(options, number, batch, Path(folder) / "result.json")
            status = subprocess.run(words, check=False).returncode
            if status == 0:
                result = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
                launched = {"wall_seconds": time.perf_counter() - begin}
                data["rows"] += [{"series": one, **result, **launched} for one in series]
                write(options.out, data)
            else:
                failures.append(f"{number} GPUs × {batch}: exit status {status} of {shlex.join(words)}")
    return failures


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the results so far."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


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
