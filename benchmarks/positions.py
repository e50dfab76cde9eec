#!/usr/bin/env python3
"""Shows whether a batch's time depends on its position in the trial, and on the trial.

    python benchmarks/positions.py RUN.json [RUN.json …] [--out FILE]

For each operation and size, computes over all data points of all run files the ratio of a trial's second batch to its
first, and of a data point's first trial to the median of its later ones. Prints the medians with 95% intervals. A bar
is missed where a median is outside 1 ± 0.5% (from 1 MiB on) or 1 ± 1% (below). Several files of one machine narrow
the intervals. Exits 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from collbench.judge.stats import median_interval
from collbench.model.units import format_size

_MEBIBYTE = 2**20
_LARGE_BAR, _SMALL_BAR = 0.005, 0.01
Key = tuple[str, str, int]  # operation, variant, bytes


@dataclass(slots=True)
class Ratios:
    """One operation at one size: time ratios by trial, by data point, and the slowest batch over the median."""

    batches: list[float] = field(default_factory=list)
    trials: list[float] = field(default_factory=list)
    slowest: float = 1.0


def collect(runs: Sequence[dict[str, Any]]) -> dict[Key, Ratios]:
    """Return the ratios of all runs by operation and size."""
    ratios_by_key: dict[Key, Ratios] = defaultdict(Ratios)
    for run in runs:
        for measurement in run["measurements"]:
            point = measurement.get("point") or measurement["cell"]  # of version 1
            trials = [sample["seconds"] for sample in measurement["samples"]]
            if not trials:
                continue
            ratios = ratios_by_key[point["operation"], point.get("variant", "plain"), point["size_bytes"]]
            ratios.batches += [batches[1] / batches[0] for batches in trials if len(batches) > 1]
            if len(trials) > 2:
                ratios.trials.append(median(trials[0]) / median(median(batches) for batches in trials[1:]))
            median_seconds = median(seconds for batches in trials for seconds in batches)
            ratios.slowest = max(
                ratios.slowest, *(seconds / median_seconds for batches in trials for seconds in batches)
            )
    return ratios_by_key


def judged(ratios: Sequence[float], bar: float) -> tuple[str, bool]:
    """Return a cell of the table, and whether the bar is missed."""
    interval = median_interval(ratios)
    if interval is None:
        return f"{len(ratios)}: too few", False
    median_ratio, (low, high) = median(ratios), interval
    missed = abs(median_ratio - 1) > bar
    return f"{median_ratio:.4f} ({low:.4f}–{high:.4f}){' MISSED' if missed else ''}", missed


def rows(ratios_by_key: dict[Key, Ratios]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield each operation and size as a row, and whether it misses a bar."""
    for (operation, variant, size), ratios in sorted(ratios_by_key.items()):
        bar = _LARGE_BAR if size >= _MEBIBYTE else _SMALL_BAR
        batches, batches_missed = judged(ratios.batches, bar)
        trials, trials_missed = judged(ratios.trials, bar)
        name = operation if variant == "plain" else f"{operation} {variant}"
        yield (
            (name, format_size(size), batches, trials, f"{ratios.slowest:.3f}", f"±{bar:.1%}"),
            batches_missed or trials_missed,
        )


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description="Does a timed batch mean the same wherever it stands?")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args(argv)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.runs]
    header = ("operation", "size", "second / first batch", "first / later trials", "slowest", "bar")
    table = list(rows(collect(runs)))
    widths = [max(len(row[i]) for row in (header, *(row for row, _ in table))) for i in range(len(header))]
    lines = [
        "  ".join(column.ljust(width) for column, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *(row for row, _ in table))
    ]
    missed = sum(row_missed for _, row_missed in table)
    heading = (
        f"{len(runs)} runs, {', '.join(sorted({run['machine']['hostname'] + ' ' + run['started'] for run in runs}))}"
    )
    text = "\n".join((f"# {heading}", *lines, f"{missed} of {len(table)} rows miss their bar", ""))
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
