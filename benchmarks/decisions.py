#!/usr/bin/env python3
"""What collbench decides on thousands of simulated machines, against fixed bars: ties, verdicts, the best k GPUs.

    python benchmarks/decisions.py [--part NAME …] [--runs N] [--seed S] [--jobs J] [--out DIR]

All of it is simulation (sim); no figure here is of a real GPU. DIR/decisions.txt and .md hold the tables of all parts
that were run into DIR; DIR/PART.csv holds every trial of a part, with the numbers that repeat it. `--runs` replaces
each part's own number. The whole takes about 40 minutes on two cores. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # random machines and their faults are the tests'
from deciding import dgx, healthy, kinds, regret, relabel, slow, timing
from deciding.bench import FIRST_SEED, Options, Part, table
from peers.table import Table, markdown, text
from rows import save_rows

PARTS: dict[str, Callable[[Options], Part]] = {
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
    arguments = parser.parse_args()
    options = Options(arguments.runs, arguments.seed, arguments.jobs)
    missed = 0
    for name in arguments.part:
        begin = time.monotonic()
        part = PARTS[name](options)
        missed += sum(row.met is False for row in part.rows)
        shown = part_table(name, part, options, time.monotonic() - begin)
        print(text(shown), flush=True)
        if arguments.out:
            save(arguments.out, name, part, shown)
    return int(missed > 0)


def part_table(name: str, part: Part, options: Options, seconds: float) -> Table:
    """Return a part as a table; its note gives the seed and how long it took."""
    note = f"sim, seed {options.seed}; {seconds:.0f} s by {options.jobs} process{'es' if options.jobs > 1 else ''}"
    return Table(f"{name} (sim)", "\n".join((note, *part.notes)), ("what", "measured", "bar", ""), table(part.rows))


def save(out: Path, name: str, part: Part, shown: Table) -> None:
    """Write a part's table and trials, and join the tables of all parts that the folder holds by now."""
    out.mkdir(parents=True, exist_ok=True)
    head = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.node()}: {shlex.join(sys.argv)}\n"
    for kind, formatter in (("txt", text), ("md", markdown)):
        (out / f"{name}.{kind}").write_text(f"{head}\n{formatter(shown)}", encoding="utf-8")
        saved = [path for part in PARTS if (path := out / f"{part}.{kind}").is_file()]
        all_parts = "\n".join(path.read_text(encoding="utf-8") for path in saved)
        (out / f"decisions.{kind}").write_text(all_parts, encoding="utf-8")
    save_rows(out / f"{name}.csv", [asdict(trial) for trial in part.trials])


if __name__ == "__main__":
    sys.exit(main())
