"""What bounds a step of gpt2_ddp.py, the host or the GPU: the same jobs with P2P and without.

They are what training.sh's part `bound` leaves (gpt2-bound-*.txt), or what a script printed that timed several jobs in
one process, in a folder beside this one of the same day (DATE-MACHINE-lanes/lanes-p2p.txt, lanes-nop2p.txt).
"""

from __future__ import annotations

import importlib
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collbench.model.errors import CollbenchError

from . import results

_WITH, _WITHOUT = "-p2p.txt", "-nop2p.txt"
_CLOCKS = ("host_forward", "host_backward", "host_optimizer", "step")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same job with P2P and without: the words of both summaries."""

    fast: dict[str, str]
    slow: dict[str, str]

    @property
    def job(self) -> str:
        """The job in words: "DDP bf16"."""
        if self.fast["strategy"] == "local":
            return f"DDP {self.fast['dtype']} that exchanges nothing"
        return f"{self.fast['strategy'].upper()} {self.fast['dtype']}"

    @property
    def size(self) -> tuple[str, str]:
        """GPUs, and sequences per GPU and step."""
        return self.fast["ranks"], self.fast["batch"]

    @property
    def extra_ms(self) -> float:
        """What a step takes longer without P2P."""
        return results.step_ms(self.slow) - results.step_ms(self.fast)

    def host_ms(self, part: str = "time") -> float:
        """Return what the host takes to launch a step, or a part of it (forward, backward, optimizer), with P2P."""
        return float(self.fast[f"host_{part}"].removesuffix("ms"))


def pairs(folder: Path) -> list[Pair]:
    """Return the folder's pairs, smaller batches first within a strategy. A job whose partner failed is left out."""
    found = named_pairs(folder, "gpt2-bound")
    for beside in sorted(folder.parent.glob(f"{folder.name[:10]}-*-lanes")):  # the date is ten characters
        fast, slow = (_lanes(beside / f"lanes{end}") for end in (_WITH, _WITHOUT))
        found += [Pair(fast[job], slow[job]) for job in fast if job in slow]
    return sorted(found, key=lambda one: (one.fast["strategy"], int(one.fast["ranks"]), int(one.fast["batch"])))


def named_pairs(folder: Path, prefix: str) -> list[Pair]:
    """Return the pairs among the files PREFIX-…-p2p.txt and …-nop2p.txt, by name."""
    found = []
    for path in sorted(folder.glob(f"{prefix}-*{_WITH}")):
        partner = path.with_name(path.name.removesuffix(_WITH) + _WITHOUT)
        both = [results.summary(one) for one in (path, partner) if one.exists()]
        if len(both) == len([words for words in both if words]) == len((path, partner)):
            found.append(Pair(*both))
    return found


def _lanes(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Return each job's words as gpt2_ddp.py would sum them up, the mean where it was timed more than once.

    A line there gives the host's clock at the end of each part, and all jobs are bf16.
    """
    lines = re.findall(r"^lanes (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.exists() else []
    timed: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        words = dict(word.partition("=")[::2] for word in line.split())
        timed.setdefault((words["strategy"], words["world"], words["batch"]), []).append(words)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for (strategy, ranks, batch), some in timed.items():
        means = {key: statistics.fmean(float(one[key].removesuffix("ms")) for one in some) for key in _CLOCKS}
        forward, backward, optimizer, step = (means[key] for key in _CLOCKS)
        parts = {"forward": forward, "backward": backward - forward, "optimizer": optimizer - backward}
        words = {"strategy": strategy, "dtype": "bf16", "ranks": ranks, "batch": batch, "median_step": f"{step}ms"}
        times = {f"host_{part}": f"{time}ms" for part, time in (parts | {"time": optimizer}).items()}
        found[strategy, ranks, batch] = words | times
    return found


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each pair: job, GPUs, batch, step, the host's own time of it, extra, predicted."""
    for pair in pairs(folder):
        step, host = results.step_ms(pair.fast), pair.host_ms()
        shown = (pair.job, *pair.size, f"{step:.2f}", f"{host:.2f} ({host / step:.0%})")
        yield (*shown, f"{pair.extra_ms:.2f}", predicted(pair, folder))


def predicted(pair: Pair, folder: Path) -> str:
    """Return what benchmarks/predicted.py says that the step takes longer, in ms; "–" where it cannot say."""
    listed = folder / "predicted.toml"
    if not listed.exists():
        return "–"
    # beside this folder: a script finds it by its own path, a test from the repository's root
    module: Any = importlib.import_module(f"{__name__.rpartition('training.')[0]}predicted")
    words = (pair.fast["strategy"], int(pair.fast["ranks"]), pair.job)
    like = [cell for cell in module.cells_of(listed) if (cell.strategy, cell.gpus, cell.label.split(",")[0]) == words]
    if not like:
        return "–"
    devices = tuple(range(words[1]))
    try:
        _, extra = module.predict(_cell(pair, like[0], folder), folder, results.step_ms(pair.fast), (devices, devices))
    except CollbenchError:
        return "–"
    return f"{extra.middle:.2f}"


def _cell(pair: Pair, like: Any, folder: Path) -> Any:
    """Return the cell of the ablation with this job's own host, and the GPU's time where the batch is the same."""
    same = any(
        (one.strategy, one.ranks, one.batch) == (like.strategy, like.gpus, pair.fast["batch"])
        for one in results.ablations(folder)
    )
    if not same or like.gpu_time_ms is None:
        return like.without_host
    phases = ",".join(str(pair.host_ms(part)) for part in ("forward", "backward", "optimizer"))
    return replace(like, gpu_time_ms=min(like.gpu_time_ms, results.step_ms(pair.fast)), host_phases=phases)
