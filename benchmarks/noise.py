#!/usr/bin/env python3
"""How often `collbench check` calls a healthy simulated machine with noisy measurements defective (sim).

    python benchmarks/noise.py [--fabric hgx-h200] [--first SEED]

Each row is a noise of trials and of batches, as a standard deviation of log rates. The simulator lets no rate exceed
the typical one by more than 3%, as a link has a ceiling. A run is false if `check` ends with 3. Takes three minutes on
two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from collbench.model.errors import ExitStatus
from collbench.runfile.codec import plain
from collbench.sim import fabrics

# Standard deviations of trials and batches, runs, and whether they are quick.
ROWS = (
    (0.05, 0.01, 40, True),
    (0.1, 0.03, 60, True),
    (0.2, 0.05, 40, True),
    (0.3, 0.1, 30, True),
    (0.2, 0.05, 12, False),
)


def status(fabric: Path, state: str, quick: bool, seed: int) -> int:
    """Return the exit status of one `check`."""
    command = [sys.executable, "-m", "collbench", "check", "--backend", "sim", "--fabric", str(fabric), "--json"]
    command += ["--seed", str(seed), *(["--quick"] if quick else [])]
    environment = {**os.environ, "XDG_STATE_HOME": state, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fabric", default="hgx-h200")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    options = parser.parse_args()
    healthy = fabrics.load(options.fabric)
    print("trials  batches  mode   exit 3 (sim)")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for trial, batch, runs, quick in ROWS:
            noisy = replace(healthy, name="noisy", noise=replace(healthy.noise, trial=trial, batch=batch))
            file = Path(folder, f"noisy-{trial}-{batch}.json")
            head = fabrics.FORMAT.head
            file.write_text(json.dumps({**head, **plain(noisy)}), encoding="utf-8")
            seeds = range(options.first, options.first + runs)
            statuses = list(pool.map(partial(status, file, folder, quick), seeds))
            if not set(statuses) <= {ExitStatus.DONE, ExitStatus.CONTRADICTION}:
                raise SystemExit(f"check ended with {sorted(set(statuses))}")
            false = statuses.count(ExitStatus.CONTRADICTION)
            print(f"{trial:6.0%}  {batch:7.0%}  {'quick' if quick else 'full ':5}  {false} of {runs}", flush=True)


if __name__ == "__main__":
    main()
