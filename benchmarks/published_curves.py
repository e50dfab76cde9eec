#!/usr/bin/env python3
"""Make src/collbench/judge/curves.json from the CSV of aiconfigurator's NCCL measurements that is kept with the tests.

    python benchmarks/published_curves.py [--check]

The CSV has all rows of 16-bit floats from 1 MiB on, as the source gives them: file, version, op_name, num_gpus,
elements and nccl-tests' milliseconds. --check only says whether the file would change. The rules:

- An NCCL version is the one that a row names (the column "version"), else the one in its file's name. Of several rows
  of one version the median counts.
- A machine is kept out as a whole if the busbw of any operation at the largest size falls to less than half from one
  number of ranks to the next: the links of such a machine are not alike, or something is wrong with it, and the source
  does not say which. That is L40S: 20.1, 5.2 and 1.4 GB/s on 2, 4 and 8 ranks.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
CSV = ROOT / "tests" / "data" / "published" / "aiconfigurator_nccl.csv.gz"
CURVES = ROOT / "src" / "collbench" / "judge" / "curves.json"
MIB = 2**20
# The operation as collbench names it, and nccl-tests' factor from bytes over time to busbw.
OPERATIONS = {
    "all_reduce": ("allreduce", 2),
    "all_gather": ("allgather", 1),
    "reduce_scatter": ("reducescatter", 1),
    "alltoall": ("alltoall", 1),
}
# The start of a file's name: product name, machine, labels of its pairs, and whether an all-reduce on eight uses NVLS.
PCIE = "PIX|PXB|PHB|NODE|SYS"
MACHINES = {
    "a100_sxm": (r"\bA100-SXM4?-", "A100 SXM behind NVSwitches", "NV12", False),
    "h100_sxm": (r"\bH100 80GB HBM3\b", "H100 SXM behind NVSwitches", "NV18", True),
    "h200_sxm": (r"\bH200\b(?! NVL)", "H200 behind NVSwitches", "NV18", True),
    "b200_sxm": (r"(?<!G)B200\b", "B200 behind NVSwitches", "NV18", True),
    "b300_sxm": (r"(?<!G)B300\b", "B300 behind NVSwitches", "NV18", True),
    "gb200": (r"\bGB200\b", "4 × GB200 of one tray", "NV18", True),
    "gb300": (r"\bGB300\b", "4 × GB300 of one tray", "NV18", True),
    "l40s": (r"\bL40S\b", "L40S", PCIE, False),
    "rtx_pro_6000_server": (r"\bRTX PRO 6000 Blackwell Server\b", "RTX PRO 6000 Blackwell, PCIe gen 5", PCIE, False),
}
# From which size on sources agree (held_out.py): eight Hopper GPUs and eight A100.
JUDGES_FROM, A100_JUDGES_FROM = 16 * MIB, 256 * MIB
SHARED = {
    "variant": "plain",
    "conditions": "nccl-tests, 100 to 1000 launches without a CUDA graph, out of place, 16-bit floats, one process "
    "with a thread for each GPU, mean of the ranks",
    "source": "ai-dynamo/aiconfigurator 302edbc, src/aiconfigurator/systems/data",
    "license": "Apache-2.0",
    "judges_from": JUDGES_FROM,
}

Curves = dict[tuple[str, str, int], dict[str, list[float]]]  # by machine, operation, ranks; then by NCCL version


def measured() -> Curves:
    """Return the busbw at each doubling from 1 MiB on."""
    rows: dict[tuple[str, str, int, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(CSV, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            machine, _, named = row["file"].partition("_comm_nccl_")
            ranks, size = int(row["num_gpus"]), 2 * int(row["elements"])
            operation, factor = OPERATIONS[row["op_name"]]
            gbs = factor * (ranks - 1) / ranks * size / float(row["milliseconds"]) / 1e6
            rows[machine, operation, ranks, row["version"] or named][size].append(gbs)
    curves: Curves = defaultdict(dict)
    for (machine, operation, ranks, nccl), sizes in rows.items():
        if sorted(sizes) != [MIB << step for step in range(len(sizes))]:
            raise SystemExit(f"{machine}, {operation} on {ranks}, NCCL {nccl}: the sizes do not double from 1 MiB on")
        curves[machine, operation, ranks][nccl] = [round(median(sizes[size]), 2) for size in sorted(sizes)]
    return curves


def suspicious(curves: Curves) -> set[str]:
    """Return the machines whose busbw at the largest size falls to less than half with more ranks."""
    found = set()
    for machine, operation in {key[:2] for key in curves}:
        by_ranks = sorted((key[2], curve) for key, curve in curves.items() if key[:2] == (machine, operation))
        for (_, fewer), (_, more) in pairwise(by_ranks):
            if any(max(curve[-1] for curve in more.values()) < curve[-1] / 2 for curve in fewer.values()):
                found.add(machine)
    return found


def text() -> str:
    """Return the file: a row for each curve, and what all have in common."""
    curves = measured()
    left_out, rows = suspicious(curves), []
    for (machine, operation, ranks), versions in sorted(curves.items()):
        gpus, kind, links, switch_reduces = MACHINES[machine]
        for nccl, curve in sorted(versions.items()):
            if machine not in left_out:
                row = {"gpus": gpus, "machine": kind, "links": links, "operation": operation, "ranks": ranks}
                row |= {"judges_from": A100_JUDGES_FROM} if machine == "a100_sxm" else {}
                row |= {"sizes": [MIB, MIB << (len(curve) - 1)], "curve": curve, "nccl": nccl}
                row |= {"nvls": "on" if switch_reduces and ranks == 8 and operation == "allreduce" else None}
                rows.append(json.dumps(row, ensure_ascii=False))
    head = {"format": "collbench-figures", "format_version": 1, "collected": "2026-11-24", "shared": SHARED}
    return json.dumps(head, ensure_ascii=False)[:-1] + ',\n"figures": [\n' + ",\n".join(rows) + "\n]}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file would change")
    wanted = text()
    if parser.parse_args().check:
        return int(CURVES.read_text(encoding="utf-8") != wanted)
    CURVES.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
