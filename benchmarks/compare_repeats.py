#!/usr/bin/env python3
"""How often `collbench compare` says that a machine differs from itself: on every repeat recorded on real GPUs.

    python benchmarks/compare_repeats.py [--results DIR]

Repeats are runs of one command on the very same GPUs with the same NCCL variables, below benchmarks/results, archives
included. Each is compared with each, forth and back; what comes out worse or better is false. Then one link of the
later run is made 8 % slow, by its recorded times over 0.92: that must be found, and nothing else. Runs with a competing
job, a full GPU or an interrupt are no repeats. Of the judging's ten runs only the pages were kept: their figures are
compared.
Exits 1 where more than 1 % of the comparisons say anything false, or less than 99 % of the slow links are found.
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

from collbench.analysis.compare import Comparison, Kind, Verdict, compare
from collbench.model.errors import CollbenchError
from collbench.model.run import CommandKind, Measurement, Run, Settings
from collbench.runfile import run_file

RESULTS = Path(__file__).parent / "results"
FAIL_BELOW = 0.05
SLOW = 0.92
DISTURBED = ("busy", "full", "cut")
PAGES = "2026-11-21-4xh200-judging/ten.tar.gz"
_DELTA = 0.02
_PAIR = re.compile(r"^\d+ +(GPU\d+-GPU\d+) +NV\d+((?: +[\d.]+){6})", re.MULTILINE)


@dataclass(slots=True)
class Tally:
    """What came of the comparisons of one kind of run."""

    couples: int = 0
    points: int = 0
    same: int = 0
    false_points: int = 0
    false_couples: int = 0
    planted: int = 0
    found: int = 0
    beyond: int = 0
    elsewhere: int = 0

    def add(self, found: Comparison) -> None:
        """Count a comparison of a machine with itself."""
        wrong = [*_differing(found)]
        self.couples += 1
        self.points += len(found.changes)
        self.same += found.count(Verdict.SAME)
        self.false_points += len(wrong)
        self.false_couples += bool(wrong)

    def add_planted(self, found: Comparison, pair: tuple[int, int]) -> None:
        """Count a comparison in which one pair was made slow. A work that is slower as a whole names no other pair."""
        places = [members for members, kind in _differing(found) if kind is not Kind.WORK]
        self.planted += 1
        self.found += set(pair) in map(set, places)
        self.beyond += bool(found.regressions)
        self.elsewhere += any(set(members) != set(pair) for members in places)


def _differing(found: Comparison) -> Iterator[tuple[tuple[int, ...], Kind | None]]:
    for change in found.changes:
        if change.verdict in (Verdict.WORSE, Verdict.BETTER):
            yield change.key.members, None
    for group in found.groups:
        if group.verdict in (Verdict.WORSE, Verdict.BETTER):
            yield group.members, group.kind


def recorded(folder: Path) -> Iterator[tuple[str, Run]]:
    """Yield the name and the run of every undisturbed run file of real GPUs, those inside archives too."""
    for name, text in _texts(folder):
        if any(word in name.rpartition("/")[2] for word in DISTURBED):
            continue
        try:
            run = run_file.loads(text, name)
        except CollbenchError:
            continue  # JSON of something else
        if run.backend == "cuda":
            yield name, run


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.json")):
        yield str(path), path.read_text(encoding="utf-8")
    for path in sorted(folder.rglob("*.json.gz")):
        yield str(path).removesuffix(".gz"), gzip.decompress(path.read_bytes()).decode()
    for path in sorted(folder.rglob("*.tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member) if member.name.endswith(".json") else None
                if content is not None:
                    yield f"{path}/{member.name}", content.read().decode()


def repeats(folder: Path) -> list[list[Run]]:
    """Return the runs of one command on the same GPUs with the same variables, by date, where there are several."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for _, run in recorded(folder):
        variables = (f"{name}={value}" for name, value in sorted(run.settings.environment.items()))
        groups[*(device.uuid for device in run.devices), *variables, str(_asked(run))].append(run)
    return [sorted(group, key=lambda run: run.started) for group in groups.values() if len(group) > 1]


def _asked(run: Run) -> Settings:
    """Return what was asked for, but for the devices, which the UUIDs say, and what is another one every time.

    What was planned of it is an older version's choice.
    """
    return replace(run.settings, command=(), devices=(), environment={}, seed=0, operations=(), sizes=(), trials=0)


def slowed(run: Run, pair: tuple[int, int]) -> Run:
    """Return the run with everything on one pair taking 1 / 0.92 of its time."""
    found = [_slower(one) if set(one.point.members) == set(pair) else one for one in run.measurements]
    return replace(run, measurements=found)


def _slower(found: Measurement) -> Measurement:
    samples = [replace(one, seconds=tuple(second / SLOW for second in one.seconds)) for one in found.samples]
    return replace(found, samples=samples)


def tallies(groups: Sequence[Sequence[Run]]) -> dict[tuple[str, int], Tally]:
    """Return a tally of each command and number of GPUs."""
    counted: dict[tuple[str, int], Tally] = defaultdict(Tally)
    for group in groups:
        devices = len(group[0].devices)
        command = group[0].settings.command_name
        tally = counted[command if command in ("pairs", "copies") else "one collective", devices]
        for base, new in permutations(group, 2):
            tally.add(compare(base, new, FAIL_BELOW))
        for base, new in combinations(group, 2):
            measured = {one.point.members for one in new.measurements if len(one.point.members) == 2}
            # Where nothing else is measured there is no other link to tell it from.
            for pair in sorted({(min(pair), max(pair)) for pair in measured} if devices > 2 else ()):
                tally.add_planted(compare(base, slowed(new, pair), FAIL_BELOW), pair)
    return dict(sorted(counted.items()))


def machines(groups: Sequence[Sequence[Run]]) -> tuple[int, int, int, list[str]]:
    """Compare the last `pairs` of each machine of four GPUs with each other: couples, data points, and what differs.

    Those of other sizes are of an older native code.
    """
    last = [group[-1] for group in groups if group[0].settings.kind is CommandKind.PAIRS and len(group[0].devices) == 4]
    usual = max((run.settings.sizes for run in last), key=[run.settings.sizes for run in last].count)
    found = [compare(a, b, FAIL_BELOW) for a, b in combinations([r for r in last if r.settings.sizes == usual], 2)]
    changed = [c for one in found for c in one.changes if c.verdict in (Verdict.WORSE, Verdict.BETTER)]
    counted = [f"{c.key.work} on {c.key.members} at {c.key.size_bytes} B: {c.ratio:.3f}" for c in changed]
    grouped = sum(kind is not None for one in found for _, kind in _differing(one))
    return len(found), sum(len(one.changes) for one in found), grouped, counted


def pages(archive: Path) -> tuple[int, int, float]:
    """Return how many couples of figures the ten pages hold, how many differ beyond 2 %, and the most that any does."""
    with tarfile.open(archive) as held:
        texts = [held.extractfile(one) for one in held.getmembers() if re.search(r"/\d+\.txt$", one.name)]
        tables = [dict(_PAIR.findall(text.read().decode())) for text in texts if text is not None]
    figures = [{pair: [*map(float, row.split())] for pair, row in table.items()} for table in tables]
    ratios = [
        abs(a / b - 1)
        for one, other in combinations(figures, 2)
        for pair in one
        for a, b in zip(one[pair], other[pair], strict=True)
    ]
    return len(ratios), sum(ratio > _DELTA for ratio in ratios), max(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    groups = repeats(folder)
    counted = tallies(groups)
    total = Tally()
    titles = ["command", "GPUs", "comparisons", "points", "same", "worse or better (false)"]
    titles += ["8 % planted: found", "beyond 5 %", "another link named"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for (command, devices), tally in counted.items():
        print(_row(command, str(devices), tally))
        for field in Tally.__slots__:
            setattr(total, field, getattr(total, field) + getattr(tally, field))
    print(_row("all", "", total))
    couples, points, grouped, changed = machines(groups)
    print(
        f"\n{couples} couples of different machines: {len(changed)} of {points:,} data points differ, {grouped} groups"
    )
    print("".join(f"  {one}\n" for one in changed), end="")
    if (folder / PAGES).exists():
        many, beyond, most = pages(folder / PAGES)
        print(
            f"\nthe ten pages of the judging: {many:,} couples of figures at 1G, {beyond} differ beyond 2 %,", end=" "
        )
        print(f"the most by {most:.1%}")
    return 1 if total.false_couples > 0.01 * total.couples or total.found < 0.99 * total.planted else 0


def _row(command: str, devices: str, tally: Tally) -> str:
    same = f"{tally.same / max(tally.points, 1):.0%}"
    planted = [f"{count:,} of {tally.planted:,}" for count in (tally.found, tally.beyond, tally.elsewhere)]
    false = f"{tally.false_points} data points, {tally.false_couples} comparisons"
    words = [command, devices, f"{tally.couples:,}", f"{tally.points:,}", same, false]
    return f"| {' | '.join([*words, *(planted if tally.planted else ['–'] * 3)])} |"


if __name__ == "__main__":
    sys.exit(main())
