#!/usr/bin/env python3
"""Does `collbench overlap` repeat, and do its figures alone agree with the ordinary command? In one sitting, on GPUs.

    python benchmarks/overlap.py --out DIR [--repeats 3] [-- OPTIONS OF OVERLAP]

Each repeat runs `collbench overlap` (at its defaults, or with the options after --) and `collbench allreduce` with the
same sizes, devices and bf16, in and out of place, in turn. DIR/overlap.md holds the tables: for each size, compute and
lever every repeat's factors and how far they lie apart, and the collective alone over the ordinary command's launch
loop, which launches each call as torch does, and over its replayed graph;
DIR/raw the run files, what was printed, and commands.txt with each command's wall time.
Exits 1 where a bar is missed: factors within 3 % of each other, alone within 1 % from 16 MiB on, 15 s for `overlap` at
its defaults; 2 where a command failed. NCCL_* reaches both as it is.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from collbench.analysis import overlap
from collbench.analysis.stats import summarize
from collbench.model.operations import Variant
from collbench.model.run import Overlap, Run
from collbench.model.units import format_size
from collbench.output.text.overlap import condition_name
from collbench.runfile import run_file

CHANGE, ALONE, WALL_S = 0.03, 0.01, 15.0
ALONE_FROM = 16 * 2**20
_DEVICES = "--devices"


@dataclass(frozen=True)
class Repeat:
    """One run of `overlap`, its wall time in seconds, and the ordinary command's run beside it."""

    overlap: Run
    wall_s: float
    ordinary: Run


class FailedError(Exception):
    """A command that failed, in one line."""


def main(argv: Sequence[str]) -> int:
    own = list(argv).index("--") if "--" in argv else len(argv)
    options = list(argv[own + 1 :])
    parser = argparse.ArgumentParser(description="repeats of collbench overlap beside collbench allreduce")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="tables and raw files go here")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="how often both are run [3]")
    asked = parser.parse_args(argv[:own])
    raw = asked.out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    try:
        repeats = [_repeated(raw, number, options) for number in range(1, asked.repeats + 1)]
    except FailedError as error:
        print(f"overlap.py: {error}", file=sys.stderr)
        return 2
    lines, missed = report(repeats, defaults=not options)
    text = "\n".join(lines) + "\n"
    (asked.out / "overlap.md").write_text(text, encoding="utf-8")
    print(text, end="")
    return 1 if missed else 0


def _repeated(raw: Path, number: int, options: Sequence[str]) -> Repeat:
    """Run both commands once."""
    beside, alone = raw / f"overlap-{number}.json", raw / f"allreduce-{number}.json"
    wall_s = _run(raw, f"overlap-{number}", "overlap", *options, "-o", str(beside), "--force")
    run = run_file.load(beside)
    sizes = ",".join(str(size) for size in run.settings.sizes)
    words = ["allreduce", "--sizes", sizes, "--dtype", "bfloat16", "--in-place", "--backend", run.backend]
    words += [_DEVICES, options[options.index(_DEVICES) + 1]] if _DEVICES in options else []
    words += ["--fabric", run.settings.fabric] if run.settings.fabric else []
    _run(raw, f"allreduce-{number}", *words, "-o", str(alone), "--force")
    return Repeat(run, wall_s, run_file.load(alone))


def _run(raw: Path, name: str, *words: str) -> float:
    """Run a command of collbench, keep what it says, and return its wall time in seconds. Raises FailedError."""
    command = [sys.executable, "-m", "collbench", *words]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - begin
    (raw / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    with (raw / "commands.txt").open("a", encoding="utf-8") as log:
        log.write(f"{wall_s:7.1f} s  status {done.returncode}  {shlex.join(['collbench', *words])}\n")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise FailedError(f"collbench {words[0]} ended with status {done.returncode}: {last}")
    return wall_s


def report(repeats: Sequence[Repeat], *, defaults: bool) -> tuple[list[str], bool]:
    """Return the page's lines, and whether a bar was missed."""
    first = repeats[0].overlap
    lines = [
        f"# Overlap, {len(repeats)} repeats",
        "",
        f"- backend: {first.backend}{f', simulated {first.machine.fabric}' if first.machine.fabric else ''}",
        f"- machine: {first.machine.hostname}, {len(first.devices)} × {first.devices[0].name}, driver "
        f"{first.machine.driver or '-'}, NCCL {first.machine.nccl or '-'} (allreduce: "
        f"{repeats[0].ordinary.machine.nccl or '-'})",
        f"- NCCL variables: {' '.join(f'{k}={v}' for k, v in sorted(first.settings.environment.items())) or 'none'}",
        "",
        "| what | size | collective × | change | compute × | change | of max | change | alone / launch loop | "
        "alone / graph | bar |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    missed = False
    for at in dict.fromkeys(_at(found) for found in first.overlaps if found.trials):
        row, bad = _row(repeats, at)
        lines.append(row)
        missed |= bad
    walls = [repeat.wall_s for repeat in repeats]
    late = defaults and max(walls) > WALL_S
    bar = f"; bar {WALL_S:.0f} s: {'MISSED' if late else 'met'}" if defaults else ""
    lines += ["", f"wall time of overlap: {', '.join(f'{wall:.1f}' for wall in walls)} s{bar}"]
    return lines, missed or late


def _at(found: Overlap) -> tuple[overlap.Condition, int]:
    return overlap.condition_of(found), found.size_bytes


def _row(repeats: Sequence[Repeat], at: tuple[overlap.Condition, int]) -> tuple[str, bool]:
    condition, size = at
    found = [one for repeat in repeats for one in repeat.overlap.overlaps if _at(one) == at and one.trials]
    summaries = [overlap.summarize(one) for one in found]
    factors: tuple[Callable[[overlap.OverlapSummary], float], ...] = (
        lambda one: one.collective_factor.value,
        lambda one: one.compute_factor.value,
        lambda one: one.of_max.value,
    )
    cells, bad = [], len(found) < len(repeats)
    for pick in factors:
        values = [pick(one) for one in summaries]
        change = max(values) / min(values) - 1
        bad |= change > CHANGE
        cells += [", ".join(f"{value:.2f}" for value in values), f"{change:.1%}"]
    ratios = list(_alone(repeats, at))
    looped = median(loop for loop, _ in ratios) if ratios else None
    replayed = median(graph for _, graph in ratios) if ratios else None
    bad |= looped is not None and size >= ALONE_FROM and abs(looped - 1) > ALONE
    cells += [f"{ratio:.4f}" if ratio else "-" for ratio in (looped, replayed)]
    cells.append("MISSED" if bad else "met")
    return f"| {condition_name(condition)} | {format_size(size)} | {' | '.join(cells)} |", bad


def _alone(repeats: Sequence[Repeat], at: tuple[overlap.Condition, int]) -> Iterator[tuple[float, float]]:
    """Yield the collective's time alone over the ordinary launch loop's and over its graph's; not with limited CTAs.

    In place, as torch has it. Where nothing is launched (gloo), or no loop was timed, both are over the one time.
    """
    condition, size = at
    if condition.ctas is not None or condition.operation != repeats[0].ordinary.settings.operations[0]:
        return
    for repeat in repeats:
        theirs = [m for m in repeat.ordinary.measured(Variant.IN_PLACE) if m.point.size_bytes == size]
        ours = [one for one in repeat.overlap.overlaps if _at(one) == at and one.trials]
        if theirs and ours:
            alone, ordinary = overlap.summarize(ours[0]).collective_alone.value, summarize(theirs[0])
            yield alone / (ordinary.launch_seconds or ordinary.seconds), alone / ordinary.seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
