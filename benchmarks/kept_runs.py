#!/usr/bin/env python3
"""What `check` says today of every run of real GPUs that was kept below benchmarks/results, archives included.

    python benchmarks/kept_runs.py [--results DIR]

Prints each run with a verdict that is more than information. Runs that were disturbed on purpose say so in their names:
"busy" (a competing job), "full" (a GPU without memory), "cut" and "killed" (an interrupt), "nop2p" and "no-p2p"
(NCCL_P2P_DISABLE).
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from compare_repeats import RESULTS, recorded

from collbench.judge import diagnose
from collbench.judge.diagnose import Severity

ON_PURPOSE = ("busy", "full", "cut", "killed", "nop2p", "no-p2p", "slow", "uneven", "staged")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    counts = Counter[str]()
    for name, run in recorded(folder, disturbed=True):
        found = [verdict for verdict in diagnose.judge(run) if verdict.severity is not Severity.INFO]
        kind = "disturbed" if any(word in name.rpartition("/")[2] for word in ON_PURPOSE) else "undisturbed"
        counts[f"{kind} runs"] += 1
        counts[f"{kind} with a verdict"] += bool(found)
        if found:
            said = ", ".join(sorted({f"{verdict.severity} {verdict.kind}" for verdict in found}))
            print(f"{kind:11} {Path(name).relative_to(folder)}: {said}", flush=True)
    print("; ".join(f"{what}: {count}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
