"""Single launches against two bars: their p50 beside the launch loop, and a rank that is held back on purpose.

    python benchmarks/tails.py --out DIR          # on two GPUs or more: three minutes

Each repeat times, at each size, the launch loop and then single launches, in one call of the extension. Then one rank's
stream is held back before each launch, another rank in each repeat: it has to be named, with so much lateness. Raw
times of every launch are written to DIR/tails.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from collbench import _native
from collbench.analysis.tails import Tails, tails_of
from collbench.backends.cuda import shipped_ptx
from collbench.bench.sweep import latency_of
from collbench.machine.nccl import find_nccl
from collbench.model.nccl_options import format_version
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Device, Latency, RankLaunches
from collbench.model.units import format_size

_SIZES = (8, 256, 8 * 2**10, 64 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 16 * 2**20)
_HELD_SIZES = (8, 2**20, 16 * 2**20)
_HELD_NS, _HELD_BAR_NS = 50_000, 5_000
_P50_BAR = 0.03
_BUFFER = 256 * 2**20
_MICRO = 1e6


class Bench:
    """An NCCL session over all chosen GPUs. It times all-reduces of float32 on one communicator."""

    def __init__(self, gpus: int, nccl: str | None) -> None:
        """Open the first GPUs of CUDA's order."""
        self.gpus = _native.Gpus(list(range(gpus)), shipped_ptx())
        self.gpus.allocate(_BUFFER)
        self.nccl = find_nccl(nccl)
        self._session = _native.Collectives(self.gpus, self.nccl)
        self.members = tuple(range(gpus))
        self._devices = [Device(index, f"GPU-{index}", "") for index in self.members]

    def time(self, size: int, singles: int, loop: int = 0, held: int = -1) -> tuple[float, Latency]:
        """Return the launch loop's seconds per call, not a number without one, and the single launches."""
        times = self._session.time(
            _native.CollectiveRound(
                groups=[list(self.members)],
                operation=_native.Collective.__members__["allreduce"],
                dtype=_native.Dtype.__members__["float32"],
                reduction=_native.Reduction.__members__["sum"],
                root=0,
                count=size // 4,
                in_place=False,
                verify=True,
                iterations=4,
                batches=1,
                warmup=1,
                launch_iterations=loop,
                launch_warmup=5,
                deadline=30.0,
                single_launches=singles,
                hold_rank=held,
                hold_nanoseconds=_HELD_NS if held >= 0 else 0,
            )
        )
        ranks = [
            RankLaunches(tuple(one.arrived), tuple(one.left), one.cost, one.uncertainty, one.step)
            for one in sorted(times.singles, key=lambda found: found.rank)
        ]
        point = DataPoint(Operation.ALLREDUCE, self.members, size)
        return (times.launch_seconds[0] if loop else math.nan), latency_of(point, ranks, self._devices)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print two tables, write the raw times; return 1 where a bar is missed."""
    asked = _options().parse_args(words)
    asked.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(asked.gpus or len(_native.list_gpus()), asked.nccl)
    raw: list[dict[str, Any]] = []
    loops: dict[int, list[tuple[float, Tails]]] = {size: [] for size in _SIZES}
    held: dict[int, list[tuple[int, Tails]]] = {size: [] for size in _HELD_SIZES}
    for repeat in range(asked.repeats):
        for size in _SIZES:
            seconds, latency = bench.time(size, asked.launches, asked.loop)
            loops[size].append((seconds, tails_of(latency)))
            raw.append({"repeat": repeat, "loop_seconds": seconds, **asdict(latency)})
        for size in _HELD_SIZES:
            rank = repeat % len(bench.members)
            _, latency = bench.time(size, asked.launches, held=rank)
            held[size].append((rank, tails_of(latency)))
            raw.append({"repeat": repeat, "held_rank": rank, "held_ns": _HELD_NS, **asdict(latency)})
    head = {"nccl": format_version(bench.nccl.version), "gpus": [gpu.name for gpu in _native.list_gpus()]}
    (asked.out / "tails.json").write_text(json.dumps({**head, "launches": raw}) + "\n", encoding="utf-8")
    met = True
    print(f"NCCL {head['nccl']}, {len(bench.members)} GPUs; {_clocks(raw)}\n")
    print("p50 of single launches over the launch loop's mean time per call; bar: within 3 %")
    print("size    loop µs  p50 µs  ratio (least-most)     waited p50 µs  ratio  verdict")
    for size, found in loops.items():
        line, good = _beside_loop(size, found)
        print(line)
        met &= good
    print(f"\na rank held back by {_HELD_NS / 1000:.0f} µs; bar: named alone, with its 50 ± 5 µs, in each repeat")
    print("size    named   lateness µs (least-most)  last  verdict")
    for size, runs in held.items():
        line, good = _held_back(size, runs)
        print(line)
        met &= good
    return 0 if met else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the raw times")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--launches", type=int, default=2000, help="single launches of each size")
    parser.add_argument("--loop", type=int, default=200, help="calls of the launch loop; nccl-tests' default is 20")
    parser.add_argument("--gpus", type=int, help="the first N GPUs of CUDA's order (default: all)")
    parser.add_argument("--nccl", help="this libnccl.so.2")
    return parser


def _clocks(raw: Sequence[dict[str, Any]]) -> str:
    """Return what the clocks can tell, over all launches: step, uncertainty and what the stamps add."""
    ranks = [rank for one in raw for rank in one["ranks"]]
    said = []
    for name in ("step_ns", "uncertainty_ns", "stamp_ns"):
        values = [rank[name] for rank in ranks]
        said.append(f"{name} {min(values)}-{max(values)}, median {median(values):.0f}")
    return "; ".join(said)


def _beside_loop(size: int, found: Sequence[tuple[float, Tails]]) -> tuple[str, bool]:
    loop = median(seconds for seconds, _ in found)
    moved = [one.transfer.at(50) or 0.0 for _, one in found if one.transfer]
    waited = [one.waited.at(50) or 0.0 for _, one in found]
    ratios = [p50 / seconds for p50, (seconds, _) in zip(moved, found, strict=True)]
    others = [p50 / seconds for p50, (seconds, _) in zip(waited, found, strict=True)]
    good = abs(median(ratios) - 1) <= _P50_BAR
    return (
        f"{format_size(size):6}  {loop * _MICRO:7.2f}  {median(moved) * _MICRO:6.2f}  {median(ratios):.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f})     {median(waited) * _MICRO:13.2f}  {median(others):.3f}  "
        f"{'met' if good else 'MISSED'}"
    ), good


def _held_back(size: int, runs: Sequence[tuple[int, Tails]]) -> tuple[str, bool]:
    named, lateness, last = 0, [], []
    for rank, one in runs:
        named += [late.member for late in one.late] == [rank]
        found = one.ranks[rank]
        lateness.append(found.arrives.median if found.arrives else 0.0)
        last.append(found.last or 0.0)
    good = named == len(runs) and all(abs(late * 1e9 - _HELD_NS) <= _HELD_BAR_NS for late in lateness)
    low, middle, high = (value * _MICRO for value in (min(lateness), median(lateness), max(lateness)))
    return (
        f"{format_size(size):6}  {named:2} of {len(runs):2}  {middle:.2f} ({low:.2f}-{high:.2f})  "
        f"{median(last):.0%}  {'met' if good else 'MISSED'}"
    ), good


if __name__ == "__main__":
    sys.exit(main())
