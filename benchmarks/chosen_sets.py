#!/usr/bin/env python3
"""How much bandwidth `collbench select K` loses against the best of all sets of K devices, on a disturbed machine.

    python benchmarks/chosen_sets.py --out DIR                    # three or more GPUs; about 4 minutes on four
    python benchmarks/chosen_sets.py --out DIR --backend host     # a dry run on three or more CPU cores

The disturbances: none; a job that copies from the first to the second device; one that leaves the last device little
memory; one that keeps the last device computing. During each, `select K --fresh` chooses, and `allreduce` measures
every set of K devices --repeats times in turn. The regret is 1 − the chosen set's bandwidth / the best set's, by
medians. DIR/chosen_sets.jsonl has every rate. Exits with 1 if a regret is above 1%. Changes no setting of a device.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collbench.judge.stats import summarize
from collbench.runfile import run_file

BAR = 0.01
_COPY = """
import torch
a = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
b = torch.empty_like(a, device="cuda:1")
b.copy_(a)
torch.cuda.synchronize(0)
print("ready", flush=True)
while True:
    for _ in range(20):
        b.copy_(a, non_blocking=True)
    torch.cuda.synchronize(0)
"""
_FILL = """
import time, torch
device = torch.cuda.device_count() - 1
held = torch.empty(torch.cuda.mem_get_info(device)[0] - 3 * 2**30, dtype=torch.uint8, device=device)
print("ready", flush=True)
time.sleep(600)
"""
_COMPUTE = """
import torch
device = torch.cuda.device_count() - 1
a = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
a @ a
torch.cuda.synchronize(device)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(device)
"""
_CORE = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
print("ready", flush=True)
while True:
    pass
"""
GPU_JOBS = {"nothing": "", "GPU0 copies to GPU1": _COPY, "last GPU filled": _FILL, "last GPU computes": _COMPUTE}
CORE_JOBS = {"nothing": "", "last core busy": _CORE}


@contextlib.contextmanager
def disturbed(program: str) -> Iterator[None]:
    """Run a Python program until the block ends, which begins when it has printed "ready"; "" runs nothing."""
    if not program:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as job:
        try:
            if job.stdout is None or job.stdout.readline().strip() != "ready":
                raise SystemExit("the disturbing job did not start")
            yield
        finally:
            job.kill()


def collbench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collbench", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def chosen_set(backend: str, count: int) -> tuple[int, ...]:
    """Return the indices that `select` chooses from a new measurement."""
    result = collbench("select", count, "--fresh", "--backend", backend, "--json")
    if result.returncode:
        raise SystemExit(f"select {count}: exit {result.returncode}: {result.stderr.strip()}")
    return tuple(sorted(device["index"] for device in json.loads(result.stdout)["devices"]))


def measured_rate(backend: str, devices: tuple[int, ...], size: str) -> float | None:
    """Return the all-reduce's busbw in GB/s on these devices, None where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.json")
        options = [
            "--devices",
            ",".join(map(str, devices)),
            "--sizes",
            size,
            "--quick",
            "--backend",
            backend,
            "-o",
            file,
        ]
        collbench("allreduce", *options)
        if not file.exists():
            return None
        measurements = [measurement for measurement in run_file.load(file).measurements if measurement.samples]
        return summarize(measurements[0]).busbw if measurements else None


def measure_regret(name: str, backend: str, count: int, indices: list[int], size: str, repeats: int) -> dict[str, Any]:
    """Return the chosen set, every set's rates and the regret."""
    chosen = chosen_set(backend, count)
    sets = list(itertools.combinations(indices, count))
    rates: dict[tuple[int, ...], list[float]] = {devices: [] for devices in sets}
    for _ in range(repeats):
        for devices in sets:
            rate = measured_rate(backend, devices, size)
            if rate is not None:
                rates[devices].append(rate)
    medians = {devices: statistics.median(values) for devices, values in rates.items() if values}
    best = max(medians, key=lambda devices: medians[devices])
    regret = 1 - medians.get(chosen, 0.0) / medians[best]
    return {
        "disturbed_by": name, "k": count, "chosen": chosen, "best": best, "regret": regret,
        "rates": [{"devices": devices, "busbw": values} for devices, values in rates.items()],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--size", default="256M")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 3], metavar="K")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    topology = json.loads(collbench("topo", "--backend", options.backend, "--json").stdout)
    indices = [device["index"] for device in topology["devices"]]
    worst = 0.0
    with (options.out / "chosen_sets.jsonl").open("a", encoding="utf-8") as file:
        for name, program in (GPU_JOBS if options.backend == "cuda" else CORE_JOBS).items():
            for count in options.counts:
                with disturbed(program):
                    row = measure_regret(name, options.backend, count, indices, options.size, options.repeats)
                print(json.dumps(row), file=file, flush=True)
                print(f"{name:20}  select {count}: {row['chosen']}, best {row['best']}, regret {row['regret']:.2%}")
                worst = max(worst, row["regret"])
    sys.exit(worst > BAR)


if __name__ == "__main__":
    main()
