#!/usr/bin/env python3
"""How well published figures predict each other, and the runs that were kept below benchmarks/results.

    python benchmarks/held_out.py [--results DIR]

First each source is held out: what it measured should lie in the band of the others, or `compare --reference` must say
that the sources disagree. Then each undisturbed run of real GPUs is judged as `check` judges it. None of collbench's
own measurements is among the figures.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from compare_repeats import RESULTS, recorded
from kept_runs import ON_PURPOSE

from collbench.judge.references import Reference, by_kind, judge, load, reference_at, sizes_of
from collbench.model.units import format_size


def hold_out() -> None:
    """Print each place where sources meet, with what each of them measured and whether all lie in the others' bands."""
    counts = Counter[str]()
    for kind in by_kind(load()):
        for size in sizes_of(kind):
            reference = reference_at(kind, size)
            if reference is None or len(reference.sources) < 2:
                continue
            sources, inside = reference.sources, True
            for origin, (low, high) in sources.items():
                others = tuple(figure for figure in reference.figures if figure.origin != origin)
                lower, upper = Reference(others, size).band
                inside &= lower <= low and upper is not None and high <= upper
            said = "the page says that they disagree" if reference.disagree else "the page does not say so"
            verdict = "inside" if inside else f"outside, and {said}"
            counts[verdict] += 1
            rates = "; ".join(f"{origin} {low:.1f}-{high:.1f}" for origin, (low, high) in sources.items())
            figure = reference.figure
            print(f"{figure.machine}, {figure.operation} at {format_size(size)}: {verdict}: {rates}")
    print("held out:", "; ".join(f"{what} {count}" for what, count in counts.items()))


def kept(folder: Path) -> None:
    """Print, for each kind of machine, how many answers of how many runs are normal, and each one that is not."""
    runs = Counter[str]()
    standings: dict[str, Counter[str]] = defaultdict(Counter)
    for name, run in recorded(folder, disturbed=False):
        answers = judge(run, load())
        if not answers.answers or any(word in name.rpartition("/")[2] for word in ON_PURPOSE):
            continue
        machine = f"{len(run.devices)} × {run.devices[0].name}"
        runs[machine] += 1
        for answer in answers.answers:
            work = f"{answer.figure.operation} on {answer.figure.ranks}"
            minimum = " (minimum)" if answer.figure.at_least else ""
            standings[f"{machine}: {work}{minimum}"][answer.standing] += 1
            if answer.standing not in ("normal", "undecided"):
                low, high = answer.reference.band
                band = f"{low:.1f} to {high:.1f}" if high else f"{low:.1f} or more"
                rates = f"{answer.sets[0].gbs:.1f} to {answer.sets[-1].gbs:.1f}"
                where = f"{Path(name).relative_to(folder)}: {work} at {format_size(answer.size_bytes)}"
                print(f"{answer.standing}: {where}, {rates} GB/s; {band}")
    for what, counts in sorted(standings.items()):
        print(f"{what}: {', '.join(f'{count} {one}' for one, count in counts.most_common())}")
    print("runs:", "; ".join(f"{machine} {count}" for machine, count in runs.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    hold_out()
    kept(folder)


if __name__ == "__main__":
    main()
