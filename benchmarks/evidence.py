#!/usr/bin/env python3
"""Computes the figures of README.md, benchmarks/README.md and docs/results.md from the raw files in benchmarks/results.

    python benchmarks/evidence.py              # lists the parts of these pages that differ; exits 1 if there are any
    python benchmarks/evidence.py --update     # writes them

A part of a page is between `<!-- evidence: NAME -->` and `<!-- end -->`. docs/results.md also has the tables of
results_tables.py. tests/test_evidence.py compares the pages with what this computes.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import extra_time
import results_tables
from kept import agreement, decisions, jobs
from kept.agreement import Row

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "benchmarks/README.md", "docs/results.md")
_PART = re.compile(r"(<!-- evidence: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FOLDER = re.compile(r"<!-- results: (.*?) -->")
_WIDTH = 120


def rows(measured: Sequence[Row]) -> str:
    """Return rows as a table of benchmarks/README.md."""
    lines = ["| what | measured | bar | file |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {figure} | {bar or '–'} | [{_name(file)}](results/{file}) |"
        for what, figure, bar, file in measured
    ]
    return "\n".join(lines)


def _name(file: str) -> str:
    """Return the session of a file: "2026-11-21-4xh200-peers/pairs.json" → "4xh200-peers"."""
    return "-".join(file.split("/", maxsplit=1)[0].split("-")[3:])


def bullets(*texts: str) -> str:
    """Return paragraphs as a list, wrapped as the pages are."""
    return "\n".join(
        textwrap.fill(
            one, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for one in texts
    )


def trust() -> str:
    """Return the README's list of how far its figures agree."""
    copies, farthest = agreement.copies(agreement.PEERS, 4, 3)
    four, two = agreement.collectives(agreement.PEERS, 4, 3), agreement.collectives(agreement.TWO, 2, 3)
    engine = copies.select("ce-")
    every = jobs.errors()["all"]
    return bullets(
        f"**Copies** by copy engine from 64 MiB on reach {agreement.range_of(engine)} of nvbandwidth's rates on the "
        f"median link of four H200, and {min(farthest.select('ce-')):.4f} on the link that is farthest off.",
        "**Collectives**, six on two and four H200 from 16 MiB on. The figure that pages show, replay of a CUDA graph, "
        f"against plain nccl-tests: {four.within('replay', large=True)}, ratios "
        f"{agreement.range_of(four.select('replay', large=True))}. The launch loop, which nccl-tests times: "
        f"{four.within('launch', large=True)}, and {two.within('launch', large=True)} in another session on two GPUs. "
        f"nccl-tests `-G` does not correspond ({four.within('graph', large=True)}): it allocates by `ncclMemAlloc`, "
        "and NCCL registers such buffers when a graph captures them. A job's ordinary buffers are not registered; "
        "`--registration buffer` measures registered ones.",
        f"**Predictions** by `predict` of how much longer a step takes without P2P are off by {every['now']:.1f} ms on "
        f'average over {every["count"]} comparisons on H200 and H100, where "no change" errs by '
        f"{every['no change']:.1f}; it refused {len(jobs.comparisons()) - every['count']:.0f} more "
        "([each](docs/results.md#extra-time-without-p2p)).",
    )


def busy() -> str:
    """Return the README's sentence about a busy machine."""
    chosen, first, gain, low, high = decisions.busy()
    return textwrap.fill(
        f"In that session `select 2 --allow-busy` also measured both pairs at 64 MiB: GPU2, GPU3 reached {chosen:.1f} "
        f"GB/s, GPU0, GPU1 {first:.1f} while the other job ran. The choice gave {gain:.2f} times the bandwidth "
        f"({low:.2f}–{high:.2f}) "
        f"([log](benchmarks/results/{decisions.JUDGING})).",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def worth() -> str:
    """Return the sentence about GPT-2 355M without P2P."""
    middles = [middle for middle, _, _ in jobs.worth()]
    lows, highs = [low for _, low, _ in jobs.worth()], [high for _, _, high in jobs.worth()]
    return textwrap.fill(
        f"On {len(middles)} machines with two H200 the same job gave {min(middles):.1f} to {max(middles):.1f}%, "
        f"with intervals from {min(lows):.1f} to {max(highs):.1f}%.",
        _WIDTH,
    )


def four_machines() -> str:
    """Return docs/results.md's sentence about the same."""
    listed = [f"{middle:.1f}% ({low:.1f}–{high:.1f})" for middle, low, high in jobs.worth()]
    return textwrap.fill(
        f"On four machines with two H200, on one day, a step took {', '.join(listed[:-1])} longer without P2P, "
        f"and, while 32 processes kept the 32 cores busy, {listed[-1]}, each with its 95% interval ([first "
        "two](../benchmarks/results/2026-11-23-2xh200-ablation/README.md), [last "
        "two](../benchmarks/results/2026-11-23-2xh200-replay/README.md)).",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


PARTS: dict[str, Callable[[], str]] = {
    "busy": busy,
    "worth": worth,
    "trust": trust,
    "agreement": lambda: rows(agreement.table()),
    "repeats": lambda: rows(agreement.repeats()),
    "seconds": lambda: rows(agreement.seconds()),
    "simulated": lambda: rows(decisions.simulated()),
    "real": lambda: rows(decisions.real()),
    "hosts": lambda: rows(decisions.hosts()),
    "jobs": lambda: rows(jobs.table()),
    "four-machines": four_machines,
    "shortened": lambda: textwrap.fill(jobs.shortened(), _WIDTH),
    "host-costs": lambda: textwrap.fill(jobs.host_costs(), _WIDTH),
    "extra-time": lambda: "\n".join(extra_time.errors_table(jobs.comparisons())),
    "extra-time-steps": lambda: "\n".join(extra_time.table(jobs.comparisons())),
}


def filled(page: str) -> str:
    """Return a page with its parts computed. Raises KeyError for a part of an unknown name."""
    page = _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", page)
    folder = _FOLDER.search(page)
    if folder is None:
        return page
    if not (ROOT / folder[1]).is_dir():
        sys.exit(f"evidence: {folder[1]}, which a page names, is no folder")
    return _FOLDER.sub(folder[0], results_tables.filled(page, ROOT / folder[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the parts that differ")
    update, differing = parser.parse_args().update, 0
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        computed = filled(page)
        if computed != page:
            differing += 1
            print(f"{name} {'written' if update else 'differs'}")
            (ROOT / name).write_text(computed, encoding="utf-8") if update else None
    return int(differing > 0 and not update)


if __name__ == "__main__":
    sys.exit(main())
