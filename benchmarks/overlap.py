#!/usr/bin/env python3
"""Does `collbench overlap` repeat, and do its isolated figures agree with `collbench allreduce`?

    python benchmarks/overlap.py --out DIR [--repeats 3] [-- OPTIONS OF OVERLAP]

Each repeat runs `collbench overlap` (at its defaults, or with the options after --) and `collbench allreduce` with the
same sizes, devices and bf16, in and out of place, in turn, on GPUs. DIR/overlap.md has a row for each size, compute and
option: the factors of every repeat and how far apart they are, and the isolated collective's time over the launch
loop's (which launches each call as torch does) and over the replayed graph's. DIR/raw has the run files, the output,
and commands.txt with each command's wall time. Exits 1 where a bar is missed: factors within 3% of each other,
isolated times within 1% from 16 MiB on, 15 s for `overlap` at its defaults; 2 where a command failed. Both commands
get NCCL_* unchanged.
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
from typing import NamedTuple

from collbench.judge.stats import summarize
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run
from collbench.model.units import format_size
from collbench.overlaps import view as overlap
from collbench.overlaps.results import Compute, Overlap, Priority, overlaps_of
from collbench.overlaps.view import overlapping
from collbench.runfile import run_file

CHANGE_BAR, ISOLATED_BAR, WALL_BAR_S = 0.03, 0.01, 15.0
ISOLATED_FROM = 16 * 2**20
_DEVICES = "--devices"


@dataclass(frozen=True)
class Repeat:
    """One run of `overlap`, its wall time in seconds, and the run of `allreduce` to compare with."""

    overlap: Run
    wall_s: float
    ordinary: Run


class FailedError(Exception):
    """A command that failed, in one line."""


def main(argv: Sequence[str]) -> int:
    separator = list(argv).index("--") if "--" in argv else len(argv)
    options = list(argv[separator + 1 :])
    parser = argparse.ArgumentParser(description="repeats of collbench overlap, compared with collbench allreduce")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="tables and raw files go here")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="how often both are run [3]")
    arguments = parser.parse_args(argv[:separator])
    raw = arguments.out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    try:
        repeats = [_run_both(raw, number, options) for number in range(1, arguments.repeats + 1)]
    except FailedError as error:
        print(f"overlap.py: {error}", file=sys.stderr)
        return 2
    lines, missed = report(repeats, defaults=not options)
    text = "\n".join(lines) + "\n"
    (arguments.out / "overlap.md").write_text(text, encoding="utf-8")
    print(text, end="")
    return 1 if missed else 0


def _run_both(raw: Path, number: int, options: Sequence[str]) -> Repeat:
    """Run both commands once."""
    overlap_file, allreduce_file = raw / f"overlap-{number}.json", raw / f"allreduce-{number}.json"
    wall_s = _run(raw, f"overlap-{number}", "overlap", *options, "-o", str(overlap_file), "--force")
    run = run_file.load(overlap_file)
    sizes = ",".join(str(size) for size in run.settings.sizes)
    arguments = ["allreduce", "--sizes", sizes, "--dtype", "bfloat16", "--in-place", "--backend", run.backend]
    arguments += [_DEVICES, options[options.index(_DEVICES) + 1]] if _DEVICES in options else []
    arguments += ["--fabric", run.settings.fabric] if run.settings.fabric else []
    _run(raw, f"allreduce-{number}", *arguments, "-o", str(allreduce_file), "--force")
    return Repeat(run, wall_s, run_file.load(allreduce_file))


def _run(raw: Path, name: str, *arguments: str) -> float:
    """Run a collbench command, save its output, and return its wall time in seconds. Raises FailedError."""
    command = [sys.executable, "-m", "collbench", *arguments]
    begin = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - begin
    (raw / f"{name}.txt").write_text(result.stdout + result.stderr, encoding="utf-8")
    with (raw / "commands.txt").open("a", encoding="utf-8") as log:
        log.write(f"{wall_s:7.1f} s  status {result.returncode}  {shlex.join(['collbench', *arguments])}\n")
    if result.returncode:
        last_line = (result.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise FailedError(f"collbench {arguments[0]} ended with status {result.returncode}: {last_line}")
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
    for point in dict.fromkeys(
        _point_of(overlap_result) for overlap_result in overlaps_of(first) if overlap_result.trials
    ):
        row, bad = _row(repeats, point)
        lines.append(row)
        missed |= bad
    walls = [repeat.wall_s for repeat in repeats]
    too_slow = defaults and max(walls) > WALL_BAR_S
    bar = f"; bar {WALL_BAR_S:.0f} s: {'MISSED' if too_slow else 'met'}" if defaults else ""
    lines += ["", f"wall time of overlap: {', '.join(f'{wall:.1f}' for wall in walls)} s{bar}"]
    return lines, missed or too_slow


class Point(NamedTuple):
    """A data point's condition and its size."""

    operation: Operation
    compute: Compute
    priority: Priority
    ctas: int | None
    size: int


def _point_of(one: Overlap) -> Point:
    return Point(one.work.operation, one.compute, one.priority, one.ctas, one.size_bytes)


def _row(repeats: Sequence[Repeat], point: Point) -> tuple[str, bool]:
    size = point.size
    named = next(o for repeat in repeats for o in overlaps_of(repeat.overlap) if _point_of(o) == point)
    overlaps = [o for repeat in repeats for o in overlaps_of(repeat.overlap) if _point_of(o) == point and o.trials]
    summaries = [overlap.summarize(o) for o in overlaps]
    factors: tuple[Callable[[overlap.OverlapSummary], float], ...] = (
        lambda summary: summary.collective_factor.value,
        lambda summary: summary.compute_factor.value,
        lambda summary: summary.of_max.value,
    )
    cells, missed = [], len(overlaps) < len(repeats)
    for factor in factors:
        values = [factor(summary) for summary in summaries]
        change = max(values) / min(values) - 1
        missed |= change > CHANGE_BAR
        cells += [", ".join(f"{value:.2f}" for value in values), f"{change:.1%}"]
    ratios = list(_isolated_ratios(repeats, point))
    over_loop = median(loop for loop, _ in ratios) if ratios else None
    over_graph = median(graph for _, graph in ratios) if ratios else None
    missed |= over_loop is not None and size >= ISOLATED_FROM and abs(over_loop - 1) > ISOLATED_BAR
    cells += [f"{ratio:.4f}" if ratio else "-" for ratio in (over_loop, over_graph)]
    cells.append("MISSED" if missed else "met")
    return f"| {named.work.operation} {overlapping(named)} | {format_size(size)} | {' | '.join(cells)} |", missed


def _isolated_ratios(repeats: Sequence[Repeat], point: Point) -> Iterator[tuple[float, float]]:
    """Yield the isolated collective's time over `allreduce`'s, by launch loop and by graph; not with limited CTAs.

    In place, as in torch. Where nothing is launched (gloo), or no loop was timed, both are over the same time.
    """
    size = point.size
    if point.ctas is not None or point.operation != repeats[0].ordinary.settings.operations[0]:
        return
    for repeat in repeats:
        ordinary_measurements = [m for m in repeat.ordinary.measured(Variant.IN_PLACE) if m.point.size_bytes == size]
        overlaps = [o for o in overlaps_of(repeat.overlap) if _point_of(o) == point and o.trials]
        if ordinary_measurements and overlaps:
            isolated, ordinary = (
                overlap.summarize(overlaps[0]).collective_alone.value,
                summarize(ordinary_measurements[0]),
            )
            yield isolated / (ordinary.launch_seconds or ordinary.seconds), isolated / ordinary.seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
