#!/usr/bin/env python3
"""How often `collbench compare` says that a machine differs from itself, on every repeat recorded on real GPUs.

    python benchmarks/compare_repeats.py [--results DIR]

Repeats are runs of one command on the same GPUs with the same NCCL variables, below benchmarks/results, archives
included. All are compared with each other in both orders; a result of worse or better is false. Then one link of the
later run is made 8% slow, by dividing its recorded times by 0.92: it must be found, and nothing else. Runs with a
competing job, a full GPU or an interrupt are not repeats. Of the ten runs of `judging` only the pages were kept: their
figures are compared. Exits 1 where more than 1% of the comparisons have a false result, or less than 99% of the slow
links are found.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

from collbench.judge.compare import ChangeVerdict, Comparison, GroupKind, compare
from collbench.model.errors import CollbenchError
from collbench.model.run import CommandKind, Measurement, Run, Settings
from collbench.runfile import run_file

RESULTS = Path(__file__).parent / "results"
FAIL_BELOW = 0.05
SLOW = 0.92
DISTURBED = ("busy", "full", "cut")
PAGES_ARCHIVE = "2026-11-21-4xh200-judging/ten.tar.gz"
_DELTA = 0.02
_PAIR = re.compile(r"^\d+ +(GPU\d+-GPU\d+) +NV\d+((?: +[\d.]+){6})", re.MULTILINE)


@dataclass(slots=True)
class Tally:
    """Counts over the comparisons of one kind of run."""

    couples: int = 0
    points: int = 0
    same: int = 0
    false_points: int = 0
    false_couples: int = 0
    planted: int = 0
    found: int = 0
    beyond: int = 0
    elsewhere: int = 0

    def add(self, comparison: Comparison) -> None:
        """Count a comparison of a machine with itself."""
        wrong = [*_differing(comparison)]
        self.couples += 1
        self.points += len(comparison.changes)
        self.same += comparison.count(ChangeVerdict.SAME)
        self.false_points += len(wrong)
        self.false_couples += bool(wrong)

    def add_planted(self, comparison: Comparison, pair: tuple[int, int]) -> None:
        """Count a comparison in which one pair was made slow. A group of a whole collective names no other pair."""
        differing = [members for members, kind in _differing(comparison) if kind is not GroupKind.WORK]
        self.planted += 1
        self.found += set(pair) in map(set, differing)
        self.beyond += bool(comparison.regressions)
        self.elsewhere += any(set(members) != set(pair) for members in differing)


def _differing(comparison: Comparison) -> Iterator[tuple[tuple[int, ...], GroupKind | None]]:
    for change in comparison.changes:
        if change.verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
            yield change.key.members, None
    for group in comparison.groups:
        if group.verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
            yield group.members, group.kind


def recorded(folder: Path, *, disturbed: bool = False) -> Iterator[tuple[str, Run]]:
    """Yield the name and the run of every run file of real GPUs, in archives too, and if wanted of disturbed ones."""
    for name, text in _json_texts(folder):
        if not disturbed and any(word in name.rpartition("/")[2] for word in DISTURBED):
            continue
        try:
            run = run_file.loads(text, name)
        except CollbenchError:
            continue  # not a run file
        if run.backend == "cuda":
            yield name, run


def _json_texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.json")):
        yield str(path), path.read_text(encoding="utf-8")
    for path in sorted(folder.rglob("*.json.gz")):
        yield str(path).removesuffix(".gz"), gzip.decompress(path.read_bytes()).decode()
    for path in sorted([*folder.rglob("*.tar.gz"), *folder.rglob("*.tgz")]):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member) if member.name.endswith(".json") else None
                if content is not None:
                    yield f"{path}/{member.name}", content.read().decode()


def repeats(folder: Path) -> list[list[Run]]:
    """Return groups of two or more runs of one command on the same GPUs with the same variables, each by date."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for _, run in recorded(folder):
        variables = (f"{name}={value}" for name, value in sorted(run.settings.environment.items()))
        groups[*(device.uuid for device in run.devices), *variables, str(request_key(run))].append(run)
    return [sorted(group, key=lambda run: run.started) for group in groups.values() if len(group) > 1]


def request_key(run: Run) -> Settings:
    """Return the settings without the devices (the UUIDs name them) and without what differs between repeats.

    Operations, sizes and trials are left out, too: versions of collbench plan them differently.
    """
    return replace(run.settings, command=(), devices=(), environment={}, seed=0, operations=(), sizes=(), trials=0)


def slowed(run: Run, pair: tuple[int, int]) -> Run:
    """Return the run with all times of one pair divided by 0.92."""
    measurements = [
        _slower(measurement) if set(measurement.point.members) == set(pair) else measurement
        for measurement in run.measurements
    ]
    return replace(run, measurements=measurements)


def _slower(measurement: Measurement) -> Measurement:
    samples = [
        replace(sample, seconds=tuple(second / SLOW for second in sample.seconds)) for sample in measurement.samples
    ]
    return replace(measurement, samples=samples)


def tallies(groups: Sequence[Sequence[Run]]) -> dict[tuple[str, int], Tally]:
    """Return a tally for each command and number of GPUs."""
    tally_of: dict[tuple[str, int], Tally] = defaultdict(Tally)
    for group in groups:
        devices = len(group[0].devices)
        command = group[0].settings.command_name
        tally = tally_of[command if command in ("pairs", "copies") else "one collective", devices]
        for base, new in permutations(group, 2):
            tally.add(compare(base, new, FAIL_BELOW))
        for base, new in combinations(group, 2):
            pairs_measured = {
                measurement.point.members for measurement in new.measurements if len(measurement.point.members) == 2
            }
            # With two GPUs there is no other link to tell the slow one from.
            for pair in sorted({(min(pair), max(pair)) for pair in pairs_measured} if devices > 2 else ()):
                tally.add_planted(compare(base, slowed(new, pair), FAIL_BELOW), pair)
    return dict(sorted(tally_of.items()))


def machines(groups: Sequence[Sequence[Run]]) -> tuple[int, int, int, list[str]]:
    """Compare the last `pairs` of machines of four GPUs: comparisons, data points, differing groups, differing points.

    Runs with other sizes than most come from an older native layer, and are left out.
    """
    last = [group[-1] for group in groups if group[0].settings.kind == CommandKind.PAIRS and len(group[0].devices) == 4]
    most_common_sizes = max((run.settings.sizes for run in last), key=[run.settings.sizes for run in last].count)
    comparisons = [
        compare(a, b, FAIL_BELOW)
        for a, b in combinations([r for r in last if r.settings.sizes == most_common_sizes], 2)
    ]
    changed = [
        c
        for comparison in comparisons
        for c in comparison.changes
        if c.verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER)
    ]
    changes_text = [f"{c.key.work} on {c.key.members} at {c.key.size_bytes} B: {c.ratio:.3f}" for c in changed]
    grouped = sum(kind is not None for comparison in comparisons for _, kind in _differing(comparison))
    return len(comparisons), sum(len(comparison.changes) for comparison in comparisons), grouped, changes_text


def pages(archive: Path) -> tuple[int, int, float]:
    """Compare the figures of the ten pages: number of comparisons, how many differ by more than 2%, largest change."""
    with tarfile.open(archive) as opened:
        texts = [opened.extractfile(member) for member in opened.getmembers() if re.search(r"/\d+\.txt$", member.name)]
        tables = [dict(_PAIR.findall(text.read().decode())) for text in texts if text is not None]
    figures = [{pair: [*map(float, row.split())] for pair, row in table.items()} for table in tables]
    ratios = [
        abs(a / b - 1)
        for first, second in combinations(figures, 2)
        for pair in first
        for a, b in zip(first[pair], second[pair], strict=True)
    ]
    return len(ratios), sum(ratio > _DELTA for ratio in ratios), max(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    groups = repeats(folder)
    tally_of = tallies(groups)
    total = Tally()
    titles = ["command", "GPUs", "comparisons", "points", "same", "worse or better (false)"]
    titles += ["8% planted: found", "beyond 5%", "another link named"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for (command, devices), tally in tally_of.items():
        print(_row(command, str(devices), tally))
        for field in Tally.__slots__:
            setattr(total, field, getattr(total, field) + getattr(tally, field))
    print(_row("all", "", total))
    compared, points, grouped, changed = machines(groups)
    print(
        f"\n{compared} couples of different machines: {len(changed)} of {points:,} data points differ, {grouped} groups"
    )
    print("".join(f"  {change}\n" for change in changed), end="")
    if (folder / PAGES_ARCHIVE).exists():
        figures, beyond, max_change = pages(folder / PAGES_ARCHIVE)
        print(
            f"\nthe ten pages of the judging: {figures:,} couples of figures at 1G, {beyond} differ beyond 2%,",
            end=" ",
        )
        print(f"the most by {max_change:.1%}")
    return 1 if total.false_couples > 0.01 * total.couples or total.found < 0.99 * total.planted else 0


def _row(command: str, devices: str, tally: Tally) -> str:
    same = f"{tally.same / max(tally.points, 1):.0%}"
    planted = [f"{count:,} of {tally.planted:,}" for count in (tally.found, tally.beyond, tally.elsewhere)]
    false = f"{tally.false_points} data points, {tally.false_couples} comparisons"
    cells = [command, devices, f"{tally.couples:,}", f"{tally.points:,}", same, false]
    return f"| {' | '.join([*cells, *(planted if tally.planted else ['–'] * 3)])} |"


if __name__ == "__main__":
    sys.exit(main())
