"""Single launches against two bars: their p50 equals the launch loop's time, and a rank that is held back is named.

    python benchmarks/tails.py --out DIR          # on two GPUs or more: three minutes

Each repeat times, at each size, the launch loop and then single launches, in one call of the extension. Then one rank's
stream is held back before each launch (another rank in each repeat); that rank must be named, with that lateness. The
raw times of every launch are written to DIR/tails.json.
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
from collbench.judge.tails import Tails, tails_of
from collbench.machine.nccl import find_nccl
from collbench.measurement.backends import factory
from collbench.measurement.backends.cuda import shipped_ptx
from collbench.measurement.sweep import latency_of
from collbench.model.operations import Operation, format_version
from collbench.model.run import DataPoint, Device, Latency, RankLaunches
from collbench.model.units import format_size

_SIZES = (8, 256, 8 * 2**10, 64 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 16 * 2**20)
_HELD_SIZES = (8, 2**20, 16 * 2**20)
_HELD_NS, _HELD_TOLERANCE_NS = 50_000, 5_000
_P50_BAR = 0.03
_BUFFER = 256 * 2**20
_MICRO = 1e6


class Bench:
    """An NCCL session over all chosen GPUs. It times all-reduces of float32 on one communicator."""

    def __init__(self, gpus: int, nccl: str | None) -> None:
        """Open the first `gpus` GPUs in CUDA's order."""
        self.gpus = _native.Gpus(list(range(gpus)), shipped_ptx())
        self.gpus.allocate(_BUFFER)
        self.nccl = find_nccl(nccl)
        self._session = _native.Collectives(self.gpus, self.nccl)
        self.members = tuple(range(gpus))
        self._devices = [Device(index, f"GPU-{index}", "") for index in self.members]

    def time(self, size: int, singles: int, loop: int = 0, held: int = -1) -> tuple[float, Latency]:
        """Return the launch loop's seconds per call (NaN without a loop), and the single launches."""
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
            RankLaunches(
                tuple(launches.arrived), tuple(launches.left), launches.cost, launches.uncertainty, launches.step
            )
            for launches in sorted(times.singles, key=lambda rank_launches: rank_launches.rank)
        ]
        point = DataPoint(Operation.ALLREDUCE, self.members, size)
        return (times.launch_seconds[0] if loop else math.nan), latency_of(point, ranks, self._devices)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print two tables, write the raw times; return 1 where a bar is missed."""
    options = _options().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.gpus or len(_native.list_gpus()), options.nccl)
    raw: list[dict[str, Any]] = []
    loops: dict[int, list[tuple[float, Tails]]] = {size: [] for size in _SIZES}
    held: dict[int, list[tuple[int, Tails]]] = {size: [] for size in _HELD_SIZES}
    for repeat in range(options.repeats):
        for size in _SIZES:
            seconds, latency = bench.time(size, options.launches, options.loop)
            loops[size].append((seconds, tails_of(latency)))
            raw.append({"repeat": repeat, "loop_seconds": seconds, **asdict(latency)})
        for size in _HELD_SIZES:
            rank = repeat % len(bench.members)
            _, latency = bench.time(size, options.launches, held=rank)
            held[size].append((rank, tails_of(latency)))
            raw.append({"repeat": repeat, "held_rank": rank, "held_ns": _HELD_NS, **asdict(latency)})
    names = [device.name for device in factory.present_devices("cuda")]
    head = {"nccl": format_version(bench.nccl.version), "gpus": names}
    (options.out / "tails.json").write_text(json.dumps({**head, "launches": raw}) + "\n", encoding="utf-8")
    met = True
    print(f"NCCL {head['nccl']}, {len(bench.members)} GPUs; {_clocks(raw)}\n")
    print("p50 of single launches over the launch loop's mean time per call; bar: within 3%")
    print("size    loop µs  p50 µs  ratio (least-most)     waited p50 µs  ratio  verdict")
    for size, pairs in loops.items():
        line, row_met = _loop_row(size, pairs)
        print(line)
        met &= row_met
    print(f"\na rank held back by {_HELD_NS / 1000:.0f} µs; bar: named alone, with its 50 ± 5 µs, in each repeat")
    print("size    named   lateness µs (least-most)  last  verdict")
    for size, runs in held.items():
        line, row_met = _held_row(size, runs)
        print(line)
        met &= row_met
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
    """Return the clocks' resolution over all launches: step, uncertainty, and the time that a stamp takes."""
    ranks = [rank for launch in raw for rank in launch["ranks"]]
    texts = []
    for name in ("step_ns", "uncertainty_ns", "stamp_ns"):
        values = [rank[name] for rank in ranks]
        texts.append(f"{name} {min(values)}-{max(values)}, median {median(values):.0f}")
    return "; ".join(texts)


def _loop_row(size: int, pairs: Sequence[tuple[float, Tails]]) -> tuple[str, bool]:
    loop = median(seconds for seconds, _ in pairs)
    transfer_p50 = [tails.transfer.at(50) or 0.0 for _, tails in pairs if tails.transfer]
    waited_p50 = [tails.waited.at(50) or 0.0 for _, tails in pairs]
    ratios = [p50 / seconds for p50, (seconds, _) in zip(transfer_p50, pairs, strict=True)]
    waited_ratios = [p50 / seconds for p50, (seconds, _) in zip(waited_p50, pairs, strict=True)]
    met = abs(median(ratios) - 1) <= _P50_BAR
    transfer_us, waited_us = median(transfer_p50) * _MICRO, median(waited_p50) * _MICRO
    return (
        f"{format_size(size):6}  {loop * _MICRO:7.2f}  {transfer_us:6.2f}  {median(ratios):.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f})     {waited_us:13.2f}  {median(waited_ratios):.3f}  "
        f"{'met' if met else 'MISSED'}"
    ), met


def _held_row(size: int, runs: Sequence[tuple[int, Tails]]) -> tuple[str, bool]:
    named, lateness, last = 0, [], []
    for rank, tails in runs:
        named += [late.member for late in tails.late] == [rank]
        held_rank = tails.ranks[rank]
        lateness.append(held_rank.arrives.median if held_rank.arrives else 0.0)
        last.append(held_rank.last or 0.0)
    met = named == len(runs) and all(abs(late * 1e9 - _HELD_NS) <= _HELD_TOLERANCE_NS for late in lateness)
    low, middle, high = (value * _MICRO for value in (min(lateness), median(lateness), max(lateness)))
    return (
        f"{format_size(size):6}  {named:2} of {len(runs):2}  {middle:.2f} ({low:.2f}-{high:.2f})  "
        f"{median(last):.0%}  {'met' if met else 'MISSED'}"
    ), met


if __name__ == "__main__":
    sys.exit(main())
