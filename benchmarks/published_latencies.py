#!/usr/bin/env python3
"""Make src/collbench/judge/custom_all_reduce.json from the CSV of aiconfigurator's times of vLLM's custom all-reduce.

    python benchmarks/published_latencies.py [--check]

The CSV, which is kept with the tests, has all rows of CUDA graphs up to 1 MiB, as the source gives them: file, version
of vLLM, num_gpus, message_size and milliseconds. --check only says whether the file would change. The rules:

- Of several rows of one version at one size the median counts.
- The newest version's times are shipped if those of an older version are within 20% of them at every size. That leaves
  out A100 and L40S, of which the source has graphs by one version only, and RTX PRO 6000 Server: on 2 GPUs the versions
  differ by a factor of up to 4.3, and on 4 and 8 there is only one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sys
from collections import defaultdict
from statistics import median

from published_curves import MACHINES, ROOT

CSV = ROOT / "tests" / "data" / "published" / "aiconfigurator_custom_all_reduce.csv.gz"
LATENCIES = ROOT / "src" / "collbench" / "judge" / "custom_all_reduce.json"
AGREE = 1.2
SIZES = [2**exponent for exponent in range(7, 21)]
HEAD = {
    "format": "collbench-custom-all-reduce",
    "format_version": 1,
    "collected": "2026-11-27",
    "conditions": "vLLM's custom all-reduce, five in a CUDA graph, 20 replays or more, bfloat16",
    "source": "ai-dynamo/aiconfigurator 095f58a, aic-core/src/aiconfigurator_core/systems/data/*/comm/vllm",
    "license": "Apache-2.0",
    "sizes": SIZES,
}

Times = dict[tuple[str, int], dict[str, list[float]]]  # by machine and ranks, then by version: µs at SIZES


def measured() -> Times:
    """Return the times at each size, in µs."""
    rows: dict[tuple[str, int], dict[str, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    with gzip.open(CSV, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            machine = row["file"].partition("_comm_vllm_")[0]
            sizes = rows[machine, int(row["num_gpus"])][row["version"]]
            sizes[int(row["message_size"])].append(float(row["milliseconds"]) * 1e3)
    return {
        key: {version: [round(median(sizes[size]), 2) for size in SIZES] for version, sizes in versions.items()}
        for key, versions in rows.items()
    }


def agreed(versions: dict[str, list[float]]) -> tuple[str, list[float]] | None:
    """Return the newest version and its times, None if no older version is within 20% of it at every size."""
    newest, *older = sorted(versions, key=lambda version: [*map(int, re.findall(r"\d+", version)[:3])], reverse=True)
    for other in older:
        pairs = zip(versions[newest], versions[other], strict=True)
        if all(max(pair) <= AGREE * min(pair) for pair in pairs):
            return newest, versions[newest]
    return None


def text() -> str:
    """Return the file: a row for each machine and number of ranks."""
    rows = []
    for (machine, ranks), versions in sorted(measured().items()):
        if found := agreed(versions):
            row = {"gpus": MACHINES[machine][0], "machine": machine.removesuffix("_sxm").upper(), "ranks": ranks}
            rows.append(json.dumps(row | {"vllm": found[0], "microseconds": found[1]}))
    return json.dumps(HEAD)[:-1] + ',\n"figures": [\n' + ",\n".join(rows) + "\n]}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file would change")
    wanted = text()
    if parser.parse_args().check:
        return int(LATENCIES.read_text(encoding="utf-8") != wanted)
    LATENCIES.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
