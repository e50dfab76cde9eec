#!/usr/bin/env python3
"""How much runs on the same real GPUs vary beyond their trials, and how often `compare` allows for it.

    python benchmarks/repeats_variation.py [--results DIR]

The repeats are those of compare_repeats.py. First table: for each kind of work and class of sizes, the variance of a
data point's level from run to run, less that of its trials, as a latency (the variance of the time) and as a ratio;
and on four GPUs, how much of it all links share. Second table: how far apart the levels of machines with as many GPUs
of one model lie, beside those of one machine's runs. Third table: over all couples of repeats, how many comparisons
have any interval (simultaneous, 99%) that excludes 1, and how many single 95% intervals do: with trials alone, with the
default, and with all other repeats as history.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, variance

from compare_repeats import FAIL_BELOW, RESULTS, repeats, request_key

from collbench.judge.between_runs import NO_VARIATION, Key, estimates, in_both, parts_of, points_by_key, varies_as
from collbench.judge.compare import compare, match_devices
from collbench.judge.stats import reach, summarize
from collbench.model.run import DataPoint, Run

MAX_HISTORY = 5
MIN_RUNS = 4
EDGES = (0, 2**16, 2**20, 2**24, 2**26)
NAMES = ("below 64K", "64K to 512K", "1M to 8M", "16M to 32M", "64M and more")


def signed_root(variance: float) -> float:
    """Return the square root, negative for a variance that chance or too wide an error of trials made negative."""
    return math.copysign(math.sqrt(abs(variance)), variance)


def levels(runs: Sequence[Run]) -> Iterator[tuple[DataPoint, list[float], float, float]]:
    """Yield each data point of all runs: its log levels, the mean variance of their errors, and its seconds."""
    points = [points_by_key(run, match_devices(runs[0], run).positions) for run in runs]
    known = [estimates(some, runs[0].paths) for some in points]
    for key in set(points[0]).intersection(*points[1:]):
        seconds = median(summarize(some[key]).seconds for some in points)
        yield (
            points[0][key].point,
            [one[key].middle for one in known],
            fmean(one[key].error ** 2 for one in known),
            seconds,
        )


def components(groups: Iterable[Sequence[Run]]) -> None:
    """Print the first table."""
    found: dict[tuple[str, str, int], list[tuple[int, float, float, float]]] = defaultdict(list)
    shared: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for runs in groups:
        whole: dict[tuple[str, str, int], list[tuple[list[float], float]]] = defaultdict(list)
        for point, logs, error, seconds in levels(runs):
            kind = varies_as(point.work)
            size = sum(point.size_bytes >= edge for edge in EDGES) - 1
            gpu = runs[0].devices[0].name.split()[1]
            found[kind, gpu, size].append((len(runs) - 1, variance(logs), error, seconds))
            whole[kind, str(point.work), point.size_bytes].append((logs, error))
        for (kind, _, size_bytes), ours in whole.items():
            if len(ours) < 6 or len(runs[0].devices) < 4:
                continue
            total = fmean(variance(logs) - error for logs, error in ours)
            of_means = variance([fmean(logs[run] for logs, _ in ours) for run in range(len(runs))])
            every = fmean(variance(logs) for logs, _ in ours)
            common = (of_means - every / len(ours)) * len(ours) / (len(ours) - 1)
            shared[kind, sum(size_bytes >= edge for edge in EDGES) - 1].append((total, common))
    head = [
        "what",
        "GPU",
        "sizes",
        "degrees of freedom",
        "runs differ by",
        "of it trials",
        "between runs",
        "as a latency",
    ]
    print(f"| {' | '.join([*head, 'common to all links'])} |\n{'|---' * (len(head) + 1)}|")
    for (kind, gpu, size), rows in sorted(found.items()):
        weight = sum(freedom for freedom, *_ in rows)
        whole_variance = sum(freedom * all_ for freedom, all_, _, _ in rows) / weight
        of_trials = sum(freedom * error for freedom, _, error, _ in rows) / weight
        latency = sum(freedom * (all_ - error) * seconds**2 for freedom, all_, error, seconds in rows) / weight
        of_four = shared[kind, size] if gpu == "H200" else []
        of_all = f"{signed_root(fmean(part for _, part in of_four)):.3%}" if of_four else "–"
        sds = [f"{math.sqrt(whole_variance):.3%}", f"{math.sqrt(of_trials):.3%}"]
        sds += [f"{signed_root(whole_variance - of_trials):.3%}", f"{signed_root(latency) * 1e9:.0f} ns", of_all]
        print(f"| {' | '.join([kind, gpu, NAMES[size], f'{weight:,}', *sds])} |")


def machines(groups: Iterable[Sequence[Run]]) -> None:
    """Print the second table: of groups of four runs or more that differ in their GPUs alone."""
    alike: dict[tuple[str, ...], list[Sequence[Run]]] = defaultdict(list)
    for runs in groups:
        if len(runs) >= MIN_RUNS:
            variables = (f"{name}={value}" for name, value in sorted(runs[0].settings.environment.items()))
            alike[*(gpu.name for gpu in runs[0].devices), *variables, str(request_key(runs[0]))].append(runs)
    found: dict[tuple[str, str, int], list[tuple[int, float, float]]] = defaultdict(list)
    for several in alike.values():
        # Members by position: the GPUs have other UUIDs.
        whole: dict[tuple[DataPoint, int], list[list[float]]] = defaultdict(list)
        for runs in several if len(several) > 1 else ():
            for point, logs, _, _ in levels(runs):
                whole[point, len(runs[0].devices)].append(logs)
        for (point, _), machines_logs in whole.items():
            if len(machines_logs) > 1:
                within = fmean(variance(logs) for logs in machines_logs)
                of_means = fmean(variance(logs) / len(logs) for logs in machines_logs)
                between = variance([fmean(logs) for logs in machines_logs]) - of_means
                size = sum(point.size_bytes >= edge for edge in EDGES) - 1
                gpu = several[0][0].devices[0].name.split()[1]
                found[varies_as(point.work), gpu, size].append((len(machines_logs) - 1, within, between))
    head = ("what", "GPU", "sizes", "degrees of freedom", "runs of a machine", "machines")
    print(f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for (kind, gpu, size), rows in sorted(found.items()):
        weight = sum(freedom for freedom, *_ in rows)
        within, between = (sum(row[0] * row[part] for row in rows) / weight for part in (1, 2))
        print(f"| {kind} | {gpu} | {NAMES[size]} | {weight:,} | {math.sqrt(within):.3%} | {signed_root(between):.3%} |")


def single_intervals(base: Run, new: Run, history: Sequence[Run], *, trials_only: bool) -> Iterator[tuple[Key, bool]]:
    """Yield for each data point whether its own 95% interval excludes 1."""
    old, now = points_by_key(base), points_by_key(new, match_devices(base, new).positions)
    earlier = [points_by_key(run, match_devices(base, run).positions) for run in history]
    for one in in_both(old, now, base.paths, earlier):
        if one.decided:
            judged = replace(one, between=NO_VARIATION) if trials_only else one
            yield one.key, abs(one.difference) > reach([*parts_of([(1.0, judged)])], 0.05)


def calibration(groups: Sequence[Sequence[Run]]) -> None:
    """Print the third table."""
    any_excluded, couples = [0, 0], [0, 0]
    single: dict[str, list[int]] = {name: [0, 0] for name in ("trials alone", "default", "history")}
    large: dict[str, list[int]] = {name: [0, 0] for name in single}
    for runs in groups:
        for base, new in pairwise(runs):
            rest = [run for run in runs if run is not base and run is not new][:MAX_HISTORY]
            for place, history in enumerate(([], rest)):
                if place and len(history) < 2:
                    continue
                comparison = compare(base, new, FAIL_BELOW, None, history)
                intervals = [one.interval for one in comparison.changes if one.interval]
                intervals += [one.interval for one in comparison.groups]
                couples[place] += 1
                any_excluded[place] += any(not low <= 1 <= high for low, high in intervals)
            for name, known in (("trials alone", []), ("default", []), ("history", rest)):
                if name == "history" and not rest:
                    continue
                for key, excluded in single_intervals(base, new, known, trials_only=name == "trials alone"):
                    for tally in (single[name], *([large[name]] if key.size_bytes >= EDGES[2] else [])):
                        tally[0] += excluded
                        tally[1] += 1
    print(
        "\n| variation between runs | comparisons with an interval that excludes 1 | 95% intervals that do | from 1M |"
    )
    print("|---|---|---|---|")
    simultaneous = {"default": 0, "history": 1}  # what `compare` itself says; trials alone are an earlier version's
    for name, (count, of) in single.items():
        whole = f"{any_excluded[simultaneous[name]]} of {couples[simultaneous[name]]}" if name in simultaneous else "–"
        share = large[name][0] / max(1, large[name][1])
        print(f"| {name} | {whole} | {count / max(1, of):.1%} of {of:,} | {share:.1%} of {large[name][1]:,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    groups = [runs for runs in repeats(parser.parse_args().results) if runs[0].measurements]
    print(f"{len(groups)} groups of repeats, {sum(map(len, groups))} runs")
    components(groups)
    machines(groups)
    sys.stdout.flush()
    calibration(groups)


if __name__ == "__main__":
    main()
