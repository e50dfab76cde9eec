"""Ratios of a run to what nccl-tests and nvbandwidth gave on the same kind of machine (4 × H200, tests/data/h200x4).

    python benchmarks/against_reference.py pairs.json allreduce.json > ratios.txt

Another sitting on another machine of the kind: bars are 1 % for copies, 3 % for all-reduce from 16 MiB. Exits 1 when
one is missed. benchmarks/README.md keeps the figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collbench import runfile
from collbench.model import Operation, Run
from collbench.stats import summarize
from collbench.units import format_size

REFERENCE = Path(__file__).parent.parent / "tests" / "data" / "h200x4"
COPY_BAR, ALLREDUCE_BAR, ALLREDUCE_FROM = 0.01, 0.03, 16 * 2**20
NVBANDWIDTH_BYTES = 512 * 2**20  # its default buffer
_NVBANDWIDTH = {
    Operation.CE_WRITE: "device_to_device_memcpy_write_ce",
    Operation.CE_READ: "device_to_device_memcpy_read_ce",
}

Row = tuple[str, float, float, float]  # what, ours, theirs, bar


def copies(run: Run) -> Iterator[Row]:
    """Yield the median over all links at nvbandwidth's size, GB/s."""
    cases = json.loads((REFERENCE / "nvbandwidth-d2d-ce.json").read_text(encoding="utf-8"))["nvbandwidth"]["testcases"]
    for operation, name in _NVBANDWIDTH.items():
        matrix = next(case["bandwidth_matrix"] for case in cases if case["name"] == name)
        theirs = float(np.median([float(cell) for row in matrix for cell in row if cell != "N/A"]))
        ours = [
            summarize(m).algbw
            for m in run.measurements
            if m.cell.operation is operation and m.cell.size_bytes == NVBANDWIDTH_BYTES
        ]
        if ours:
            yield f"{operation} 512M, {len(ours)} links", float(np.median(ours)), theirs, COPY_BAR


def allreduces(run: Run) -> Iterator[Row]:
    """Yield busbw by size, GB/s: the median over communicators against the out-of-place column."""
    found = [m for m in run.measurements if m.cell.operation is Operation.ALLREDUCE]
    for world_size in sorted({len(m.cell.members) for m in found}):
        recorded = _nccl_tests(REFERENCE / f"all_reduce_perf-{world_size}-ranks.txt")
        for size in sorted({m.cell.size_bytes for m in found}):
            ours = [summarize(m).busbw for m in found if (len(m.cell.members), m.cell.size_bytes) == (world_size, size)]
            if ours and size in recorded:
                bar = ALLREDUCE_BAR if size >= ALLREDUCE_FROM else float("inf")
                what = f"allreduce {format_size(size)}, {world_size} ranks, {len(ours)} communicators"
                yield what, float(np.median(ours)), recorded[size], bar


def _nccl_tests(file: Path) -> dict[int, float]:
    if not file.exists():
        return {}
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()[:1].isdigit()]
    return {int(row[0]): float(row[7]) for row in rows}


def main(files: list[str]) -> int:
    """Print one line a ratio; return 1 if a bar is missed."""
    missed = 0
    print(f"{'what':<48}{'collbench':>10}{'reference':>10}{'ratio':>8}  bar")
    for file in files:
        run = runfile.load(Path(file))
        print(f"# {file}: {len(run.devices)} × {run.devices[0].name}, {run.started}, NCCL {run.machine.nccl}")
        for what, ours, theirs, bar in (*copies(run), *allreduces(run)):
            within = abs(ours / theirs - 1) <= bar if theirs else True
            missed += not within
            verdict = "" if bar == float("inf") else f"±{bar:.0%} {'met' if within else 'MISSED'}"
            print(f"{what:<48}{ours:>10.2f}{theirs:>10.2f}{ours / theirs if theirs else 1:>8.3f}  {verdict}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
