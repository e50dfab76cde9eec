"""Reads the files of a session of training.sh: ablations, single jobs, curves, scaling, predictions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.ablations.ablation import Ablation, ArmsResult, load

_CURVE = re.compile(r"curves-(\d+)-(p2p|nop2p)-(\w+)\.json")


class ResultError(Exception):
    """Why a file of results cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class AblationResult:
    """One ablation of gpt2_ddp.py: the job, and how long a step took in both arms."""

    strategy: str
    dtype: str
    ranks: int
    ablation: Ablation
    result: ArmsResult

    @property
    def batch(self) -> str:
        """Sequences per rank and step."""
        return _option(self.ablation.command, "--batch", "4")

    @property
    def job(self) -> str:
        """The job's name: "DDP bf16"."""
        return f"{self.strategy.upper()} {self.dtype}"


def hardware(gpus: Sequence[str]) -> str:
    """Return the GPUs' names, counted: "2 × NVIDIA H200"."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items())


def ablations(folder: Path) -> list[AblationResult]:
    """Return the folder's finished ablations (ablate-*.json), smaller worlds first. Raises CollbenchError."""
    finished = []
    for path in sorted(folder.glob("ablate-*.json")):
        ablation = load(path)
        if ablation.result is None:
            raise ResultError(f"{path} is incomplete: it has no result; run collbench ablate again")
        command = ablation.command
        strategy, dtype = _option(command, "--strategy", "ddp"), _option(command, "--dtype", "bf16")
        finished.append(AblationResult(strategy, dtype, len(ablation.arms[0].devices), ablation, ablation.result))
    return sorted(
        finished, key=lambda ablation_result: (ablation_result.strategy, ablation_result.dtype, ablation_result.ranks)
    )


def _option(command: Sequence[str], name: str, default: str) -> str:
    """Return the value of a script's option, "--name value" or "--name=value"."""
    for argument, next_argument in zip(command, [*command[1:], ""], strict=True):
        if argument == name:
            return next_argument
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return default


def summary(path: Path) -> dict[str, str]:
    """Return the fields of the summary line that gpt2_ddp.py printed; none where the job failed."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("summary ")]
    return dict(field.partition("=")[::2] for field in lines[-1].split()[1:]) if lines else {}


def step_ms(job: dict[str, str]) -> float:
    """Return a job's median step in ms."""
    return float(job["median_step"].removesuffix("ms"))


def scaling(folder: Path) -> dict[str, Any] | None:
    """Return the jobs that scaling.py timed, None without a file. Raises ResultError."""
    return loaded(folder / "scaling.json", "collbench-scaling")


def repeated(folder: Path) -> dict[str, Any] | None:
    """Return the jobs that scaling.py trained from several seeds: from a file of their own, or the timed jobs' file."""
    return loaded(folder / "scaling-seeds.json", "collbench-scaling") or scaling(folder)


def loaded(path: Path, format_name: str | None = None) -> dict[str, Any] | None:
    """Return a JSON file, None where there is none. Raises ResultError for one that is not of that format."""
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict) or (format_name is not None and data.get("format") != format_name):
        raise ResultError(f'{path} is not what it should be: it has no "format": "{format_name}"')
    return data
