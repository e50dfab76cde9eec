#!/usr/bin/env python3
"""How often `check` and `pairs` are wrong on machines and noises that collbench's own simulator cannot make (sim).

    python benchmarks/verdicts.py [--machines N] [--seconds S] [--seed S] [--jobs J] [--part PART …] [--out FILE]

The machines, their faults and their noise come from judging/machines.py and judging/measured.py, a model of its own;
plan, stopping rule and judge are collbench's. FILE gets a line for each machine as soon as it is judged. All cells get
their next machine in turn; 100 of each take an hour of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # deciding imports the tests' random machines
from judging import machines
from judging.cells import Cell, Said, Tied, check, margin, tie

NORMAL = (("normal", 0.003), ("normal", 0.02), ("ceiling", 0.02))
UGLY = (
    ("two modes", 0.03),
    ("two modes", 0.06),
    ("one noisy pair", 0.05),
    ("each its own", 0.05),
    ("drift", 0.03),
)
HEALTHY = [
    *(Cell("none", "normal", sigma) for sigma in (0.002, 0.01, 0.02, 0.05)),
    *(Cell("none", "one noisy pair", sigma) for sigma in (0.02, 0.03, 0.05)),
    *(Cell("none", "two modes", sigma) for sigma in (0.03, 0.06)),
    Cell("none", "lasting modes", 0.06),
    Cell("none", "each its own", 0.05),
    Cell("none", "wild", 0.02),
    *(Cell("none", "AR(1)", sigma) for sigma in (0.005, 0.02)),
    *(Cell("none", "ceiling", sigma) for sigma in (0.01, 0.05)),
    Cell("none", "drift", 0.03),
    Cell("none", "normal", 0.003, idle=True),
    Cell("other product", "normal", 0.003),
]
FAULTS = [
    *(
        Cell(fault, noise, sigma)
        for fault in (
            "slow slot",
            "slow direction",
            "two slow slots",
            "two faults",
            "slow pair",
            "slow uplink",
            "slow root",
            "one slow root",
            "slow socket link",
            "slow socket link one way",
            "all slow",
        )
        for noise, sigma in (*NORMAL, ("AR(1)", 0.01), *UGLY)
    ),
    Cell("slow slot", "normal", 0.003, idle=True),
]
TOGETHER = [Cell(fault, noise, sigma) for fault in (*machines.TOGETHER, *machines.NESTED) for noise, sigma in NORMAL]
SEEN = [
    Cell(fault, noise, sigma)
    for fault in ("throttled", "throttled below PCIe", "busy", "NCCL_P2P_DISABLE", "peers refused", *machines.SEEN)
    for noise, sigma in (("normal", 0.003), ("normal", 0.02))
]
THIRDS = [Cell(fault, "normal", sigma) for fault in machines.THIRDS for sigma in (0.003, 0.02)]
EQUAL = [Cell(fault, noise, sigma) for fault in machines.EQUALLY_SLOW for noise, sigma in NORMAL]
SOCKETS = [
    Cell(fault, noise, sigma)
    for fault in ("slow socket link", "socket link at a quarter")
    for noise, sigma in (("normal", 0.003), ("normal", 0.02), ("normal", 0.05), ("ceiling", 0.02), ("AR(1)", 0.01))
]
TIES = [
    *(Cell("slow pair", "normal", sigma) for sigma in (0.002, 0.01, 0.02, 0.03, 0.04, 0.05)),
    *(Cell("slow pair", "one noisy pair", sigma) for sigma in (0.02, 0.04, 0.06, 0.1)),
    Cell("slow pair", "AR(1)", 0.02),
]


def healthy(cell: Cell, said: Sequence[Said]) -> str:
    kinds = Counter(kind.partition(":")[0] for one in said for kind in set(one.kinds.split()))
    worst = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3))
    return f"{cell!s:45} accused {margin(sum(one.accused for one in said), len(said))}  {worst}"


def faults(cell: Cell, said: Sequence[Said]) -> str:
    right, every = sum(one.first_right for one in said), sum(one.all_right for one in said)
    others, silent = sum(one.others > 0 for one in said), sum(not one.accused for one in said)
    left = [sum(one.left_open for one in said if one.accused is accused) for accused in (True, False)]
    return (
        f"{cell!s:45} first right {margin(right, len(said))}  all named {every / len(said):.1%}, "
        f"{left[0]} more left open  another place too {others / len(said):.1%}  agrees {silent / len(said):.1%}, "
        f"of these left open {left[1]}"
    )


def ties(cell: Cell, said: Sequence[Tied]) -> str:
    tied, free = sum(one.tied for one in said), sum(one.all_tied for one in said)
    found, best = sum(one.different for one in said), sum(one.best for one in said)
    return (
        f"{cell!s:45} tied {margin(tied, len(said))}  all tied {free / len(said):.1%}  "
        f"different {found / len(said):.1%}  ranked best {best / len(said):.1%}"
    )


PARTS: dict[str, tuple[Sequence[Cell], Callable[..., Any], Callable[..., str]]] = {
    "healthy": (HEALTHY, check, healthy),
    "faults": (FAULTS, check, faults),
    "together": (TOGETHER, check, faults),
    "seen": (SEEN, check, faults),
    "thirds": (THIRDS, check, faults),
    "equal": (EQUAL, check, faults),
    "sockets": (SOCKETS, check, faults),
    "ties": (TIES, tie, ties),
}


def look(seed: int, of: tuple[str, Cell, int]) -> Any:
    """Return what was said of one machine of a part's cell."""
    part, cell, number = of
    return PARTS[part][1](cell, seed, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=100, metavar="N", help="machines of each cell")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, metavar="S", help="end after this time, with what there is"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cell", default="", help="only cells with this text in their names")
    parser.add_argument("--out", type=Path, default=os.devnull, metavar="FILE", help="a line of JSON for each machine")
    options = parser.parse_args()
    cells = [(part, cell) for part in options.part for cell in PARTS[part][0] if options.cell in str(cell)]
    items = [(part, cell, number) for number in range(options.machines) for part, cell in cells]
    said = defaultdict[tuple[str, Cell], list[Any]](list)
    end = time.monotonic() + options.seconds
    with multiprocessing.Pool(options.jobs) as pool, options.out.open("w", encoding="utf-8") as lines:
        for (part, cell, _), one in zip(items, pool.imap(partial(look, options.seed), items), strict=True):
            said[part, cell].append(one)
            lines.write(f"{json.dumps({'part': part, **asdict(one)})}\n")
            lines.flush()
            if time.monotonic() > end:
                break
    for part in options.part:
        print(f"{part} (sim), up to {options.machines} machines a cell, seed {options.seed}")
        for cell in PARTS[part][0]:
            if (part, cell) in said:
                print(f"  {PARTS[part][2](cell, said[part, cell])}")


if __name__ == "__main__":
    main()
