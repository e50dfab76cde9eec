"""What a session of training.sh left in a folder, read: ablations, single jobs, curves, scaling, predictions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.analysis.stats import summarize
from collbench.launch.ablation import Ablation, Result, load
from collbench.runfile import run_file

_CURVE = re.compile(r"curves-(\d+)-(p2p|nop2p)-(\w+)\.json")


class ResultError(Exception):
    """What is wrong with a file of results, in one line."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One ablation of gpt2_ddp.py: what was trained, and how long a step took in both arms."""

    strategy: str
    dtype: str
    ranks: int
    ablation: Ablation
    result: Result

    @property
    def batch(self) -> str:
        """Sequences per rank and step."""
        return _option(self.ablation.command, "--batch", "4")

    @property
    def job(self) -> str:
        """The job in words: "DDP bf16"."""
        return f"{self.strategy.upper()} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Busbw in GB/s of a collective by message size in bytes, as measured on so many GPUs."""

    ranks: int
    p2p: bool
    operation: str
    busbw: dict[int, float]


def hardware(gpus: Sequence[str]) -> str:
    """Return names as a sentence has them: "2 × NVIDIA H200"."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items())


def ablations(folder: Path) -> list[Compared]:
    """Return the folder's finished ablations (ablate-*.json), smaller worlds first. Raises CollbenchError."""
    found = []
    for path in sorted(folder.glob("ablate-*.json")):
        ablation = load(path)
        if ablation.result is None:
            raise ResultError(f"{path} is incomplete: it has no result; run collbench ablate again")
        words = ablation.command
        strategy, dtype = _option(words, "--strategy", "ddp"), _option(words, "--dtype", "bf16")
        found.append(Compared(strategy, dtype, len(ablation.arms[0].devices), ablation, ablation.result))
    return sorted(found, key=lambda one: (one.strategy, one.dtype, one.ranks))


def _option(words: Sequence[str], name: str, otherwise: str) -> str:
    """Return the value of a script's option, "--name value" or "--name=value"."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return otherwise


def summary(path: Path) -> dict[str, str]:
    """Return the words of the summary in what gpt2_ddp.py printed; none where the job failed."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("summary ")]
    return dict(word.partition("=")[::2] for word in lines[-1].split()[1:]) if lines else {}


def step_ms(job: dict[str, str]) -> float:
    """Return a job's median step in ms."""
    return float(job["median_step"].removesuffix("ms"))


def buckets(folder: Path) -> dict[str, list[int]]:
    """Return the bytes of the messages that a step sends, by job, from the gpt2-*.txt made with --profile-buckets."""
    found = {}
    for path in sorted(folder.glob("gpt2-*.txt")):
        text = path.read_text(encoding="utf-8")
        sizes = [int(size) for size in re.findall(r"^bucket \d+ bytes=(\d+)$", text, re.MULTILINE)]
        summary = re.search(r"^summary .*strategy=(\w+) dtype=(\w+)", text, re.MULTILINE)
        if sizes and summary:
            found[f"{summary[1].upper()} {summary[2]}"] = sizes
    return found


def curves(folder: Path) -> list[Curve]:
    """Return the folder's curves (curves-RANKS-p2p|nop2p-OPERATION.json). Raises CollbenchError."""
    found = []
    for path in sorted(folder.glob("curves-*.json")):
        named = _CURVE.fullmatch(path.name)
        if named is None:
            continue
        measured = run_file.load(path).measured()
        busbw = {one.point.size_bytes: summarize(one).busbw for one in measured}
        found.append(Curve(int(named[1]), named[2] == "p2p", named[3], busbw))
    return found


def scaling(folder: Path) -> dict[str, Any] | None:
    """Return what scaling.py timed, None where there is nothing. Raises ResultError."""
    return loaded(folder / "scaling.json", "collbench-scaling")


def repeated(folder: Path) -> dict[str, Any] | None:
    """Return the jobs that scaling.py repeated from several seeds: a file of their own, or that of the timed ones."""
    return loaded(folder / "scaling-seeds.json", "collbench-scaling") or scaling(folder)


def loaded(path: Path, form: str | None = None) -> dict[str, Any] | None:
    """Return a JSON file, None where there is none. Raises ResultError for one that is not of that format."""
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict) or (form is not None and data.get("format") != form):
        raise ResultError(f'{path} is not what it should be: it has no "format": "{form}"')
    return data
