"""What limits a step of gpt2_ddp.py, the host or the GPU: the same jobs with P2P and without.

Reads the files that training.sh's part `bound` writes (gpt2-bound-*.txt), or the output of a script that timed several
jobs in one process, in a folder of the same day next to it (DATE-MACHINE-lanes/lanes-p2p.txt, lanes-nop2p.txt).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import results

_WITH, _WITHOUT = "-p2p.txt", "-nop2p.txt"
_CLOCKS = ("host_forward", "host_backward", "host_optimizer", "step")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same job with P2P (`fast`) and without (`slow`): the fields of both summaries."""

    fast: dict[str, str]
    slow: dict[str, str]

    @property
    def job(self) -> str:
        """The job's name: "DDP bf16"."""
        if self.fast["strategy"] == "local":
            return f"DDP {self.fast['dtype']} that exchanges nothing"
        return f"{self.fast['strategy'].upper()} {self.fast['dtype']}"

    @property
    def size(self) -> tuple[str, str]:
        """GPUs, and sequences per GPU and step."""
        return self.fast["ranks"], self.fast["batch"]

    @property
    def extra_ms(self) -> float:
        """How much longer a step takes without P2P, in ms."""
        return results.step_ms(self.slow) - results.step_ms(self.fast)

    def host_ms(self, part: str = "time") -> float:
        """Return the host's ms to launch a step, or a part of it (forward, backward, optimizer), with P2P."""
        return float(self.fast[f"host_{part}"].removesuffix("ms"))


def pairs(folder: Path) -> list[Pair]:
    """Return the folder's pairs, by strategy, ranks and batch. A job that failed in one arm is left out."""
    found = named_pairs(folder, "gpt2-bound")
    for other_folder in sorted(folder.parent.glob(f"{folder.name[:10]}-*-lanes")):  # the date is ten characters
        fast, slow = (_concurrent_jobs(other_folder / f"lanes{end}") for end in (_WITH, _WITHOUT))
        found += [Pair(fast[job], slow[job]) for job in fast if job in slow]
    return sorted(found, key=lambda pair: (pair.fast["strategy"], int(pair.fast["ranks"]), int(pair.fast["batch"])))


def named_pairs(folder: Path, prefix: str) -> list[Pair]:
    """Return the pairs of files PREFIX-…-p2p.txt and PREFIX-…-nop2p.txt, by name."""
    named = []
    for path in sorted(folder.glob(f"{prefix}-*{_WITH}")):
        partner = path.with_name(path.name.removesuffix(_WITH) + _WITHOUT)
        summaries = [results.summary(file) for file in (path, partner) if file.exists()]
        if len(summaries) == len([summary for summary in summaries if summary]) == len((path, partner)):
            named.append(Pair(*summaries))
    return named


def _concurrent_jobs(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Return each job's fields as in gpt2_ddp.py's summary; means where it was timed more than once.

    A line of the file gives the host's clock at the end of each part. All jobs are bf16.
    """
    lines = re.findall(r"^lanes (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.exists() else []
    runs_of_job: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        fields = dict(word.partition("=")[::2] for word in line.split())
        runs_of_job.setdefault((fields["strategy"], fields["world"], fields["batch"]), []).append(fields)
    summaries: dict[tuple[str, ...], dict[str, str]] = {}
    for (strategy, ranks, batch), runs in runs_of_job.items():
        means = {key: statistics.fmean(float(run[key].removesuffix("ms")) for run in runs) for key in _CLOCKS}
        forward, backward, optimizer, step = (means[key] for key in _CLOCKS)
        parts = {"forward": forward, "backward": backward - forward, "optimizer": optimizer - backward}
        fields = {"strategy": strategy, "dtype": "bf16", "ranks": ranks, "batch": batch, "median_step": f"{step}ms"}
        times = {f"host_{part}": f"{time}ms" for part, time in (parts | {"time": optimizer}).items()}
        summaries[strategy, ranks, batch] = fields | times
    return summaries


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each pair: job, GPUs, batch, step, the host's time, extra time."""
    for pair in pairs(folder):
        step, host = results.step_ms(pair.fast), pair.host_ms()
        cells = (pair.job, *pair.size, f"{step:.2f}", f"{host:.2f} ({host / step:.0%})")
        yield (*cells, f"{pair.extra_ms:.2f}")
