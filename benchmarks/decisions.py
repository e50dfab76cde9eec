#!/usr/bin/env python3
"""What collbench decides, on thousands of simulated machines, against fixed bars: ties, verdicts, the best k GPUs.

    python benchmarks/decisions.py [--part NAME …] [--runs N] [--seed S] [--jobs J] [--out DIR]

All of it is simulation (sim); no figure here is of a real GPU. DIR/decisions.txt and .md hold the tables of all parts
that were run into DIR, and DIR/PART.csv every trial of a part, with what draws it again. `--runs` replaces each part's
own number. The whole takes about 40 minutes on two cores. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import csv
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # random machines and their faults are the tests'
from deciding import dgx, healthy, kinds, regret, relabel, slow, timing
from deciding.bench import FIRST_SEED, Asked, Part, table
from peers.table import Table, markdown, text

PARTS: dict[str, Callable[[Asked], Part]] = {
    "healthy": healthy.run,
    "slow": slow.run,
    "kinds": kinds.run,
    "dgx": dgx.run,
    "regret": regret.run,
    "time": timing.run,
    "relabel": relabel.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--runs", type=int, help="trials of each part, instead of its own number")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="folder for the tables and every trial")
    given = parser.parse_args()
    asked = Asked(given.runs, given.seed, given.jobs)
    missed = 0
    for name in given.part:
        begin = time.monotonic()
        part = PARTS[name](asked)
        missed += sum(row.met is False for row in part.rows)
        found = shown(name, part, asked, time.monotonic() - begin)
        print(text(found), flush=True)
        if given.out:
            save(given.out, name, part, found)
    return int(missed > 0)


def shown(name: str, part: Part, asked: Asked, seconds: float) -> Table:
    """Return a part as a table; its note says what it was drawn from."""
    note = f"sim, seed {asked.seed}; {seconds:.0f} s by {asked.jobs} process{'es' if asked.jobs > 1 else ''}"
    return Table(f"{name} (sim)", "\n".join((note, *part.notes)), ("what", "measured", "bar", ""), table(part.rows))


def save(out: Path, name: str, part: Part, found: Table) -> None:
    """Write a part's table and trials, and the tables of all parts that lie in the folder by now."""
    out.mkdir(parents=True, exist_ok=True)
    head = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.node()}: {shlex.join(sys.argv)}\n"
    for kind, show in (("txt", text), ("md", markdown)):
        (out / f"{name}.{kind}").write_text(f"{head}\n{show(found)}", encoding="utf-8")
        there = [path for part in PARTS if (path := out / f"{part}.{kind}").is_file()]
        every = "\n".join(path.read_text(encoding="utf-8") for path in there)
        (out / f"decisions.{kind}").write_text(every, encoding="utf-8")
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, [one.name for one in fields(part.trials[0])], lineterminator="\n")
        lines.writeheader()
        lines.writerows(asdict(trial) for trial in part.trials)


if __name__ == "__main__":
    sys.exit(main())
