#!/usr/bin/env python3
"""How long the map of P2P takes: what it adds to `check`, and `check --map-p2p` from start to prompt.

    python benchmarks/map_time.py [--gpus 2,8] [--repeats N] [--fakes]

On this machine's GPUs; with --fakes on the simulated libraries of tests/native, on which calls and copies last in real
time as long as on H100 (WAITS). Both pages are printed as far as their answer, so that nothing else than a sound
machine is timed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
# Seconds of one call: two H100, driver 580.159.04 [benchmarks/results/2026-11-24-2xh100-startup]. Those of NCCL and of
# nvidia-smi are for eight GPUs, by guess: three times those of two.
WAITS = {
    "cuInit": 0.25,
    "cuDevicePrimaryCtxRetain": 0.2,
    "cuCtxEnablePeerAccess": 0.01,
    "cuModuleLoadData": 0.02,
    "nvmlInitWithFlags": 0.1,
    "dlopen": 0.1,
}
NCCL_S, NVIDIA_SMI_S = {2: 0.7, 8: 2.1}, {2: 0.07, 8: 0.21}
# Rates in GB/s of H100: over NVLink, and through host memory. The fakes fill and move memory with a CPU, so buffers are
# small, and messages of 1 MiB stand for those of 16 MiB, at a sixteenth of the rate.
DIRECT, STAGED, SHRUNK = 360, 35, 16
MIB = 2**20
ROOM_FOR_COPIES, ROOM_FOR_NCCL = 262 * MIB, 512 * MIB  # CUDA and buffers for 1 MiB; NCCL for each GPU


TIMED = """
import sys, time
from collbench.cli import main
from collbench.measurement import peer_map
from collbench.measurement.backends import nccl_transports
if {fakes}:
    peer_map._ROOM_FOR_TWO = 0  # as on GPUs, both workers start at once
    isolated = nccl_transports.IsolatedBackend
    nccl_transports.IsolatedBackend = lambda extra, **more: isolated(extra={{**extra, "FAKE_FREE": "{room}"}}, **more)
examine = peer_map.examine
def timed(*arguments, **keywords):
    begin = time.monotonic()
    try:
        return examine(*arguments, **keywords)
    finally:
        print(f"MAP {{time.monotonic() - begin:.2f}}", file=sys.stderr)
peer_map.examine = timed
sys.argv[0] = "collbench"
sys.exit(main())
"""


def on_fakes(folder: Path, gpus: int) -> dict[str, str]:
    """Build the libraries and a program nvidia-smi that only waits; return the variables with which they are found."""
    sys.path.insert(0, str(ROOT))
    from tests.native.fakes import build

    nccl = NCCL_S[gpus]
    fakes = build(folder / f"fakes-{gpus}")
    tool = folder / f"bin-{gpus}" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nsleep {NVIDIA_SMI_S[gpus]}\n", encoding="utf-8")
    tool.chmod(0o755)
    slow = {**WAITS, "ncclCommInitRank": nccl}
    variables = fakes.environment(
        gpus=gpus,
        memory=room(gpus),
        rate=DIRECT / SHRUNK,
        staged=STAGED / SHRUNK,
        copies_last=1,
        slow=",".join(f"{name}={seconds}" for name, seconds in slow.items()),
    )
    return variables | {"COLLBENCH_NCCL": str(fakes.nccl), "PATH": f"{tool.parent}:{variables['PATH']}"}


def room(gpus: int) -> int:
    """Return the free memory on each fake GPU that NCCL and small buffers need, in bytes."""
    return ROOM_FOR_COPIES + gpus * ROOM_FOR_NCCL


def run(words: list[str], variables: dict[str, str], fakes: int) -> tuple[float, float, str]:
    """Return the seconds of the map, those from start to prompt, and the first line that speaks of P2P.

    `fakes` is how many fake GPUs there are, 0 for real ones.
    """
    begin = time.monotonic()
    command = [sys.executable, "-c", TIMED.format(fakes=fakes, room=room(fakes)), *words]
    if fakes and "--map-p2p" in words:
        variables = variables | {"FAKE_FREE": str(ROOM_FOR_COPIES)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    whole = time.monotonic() - begin
    mapped = [float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("MAP ")]
    said = [line for line in done.stdout.splitlines() if line.startswith(("answer", "p2p"))]
    if not (mapped and said):
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return mapped[0], whole, said[0]


def main() -> None:
    """Time both commands on each number of GPUs, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default="2,8", metavar="LIST", help="how many, of the first ones")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--fakes", action="store_true")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores{', FAKES' if options.fakes else ''}")
    with tempfile.TemporaryDirectory() as name:
        for gpus in map(int, options.gpus.split(",")):
            variables = on_fakes(Path(name), gpus) if options.fakes else dict(os.environ)
            variables |= {"XDG_STATE_HOME": name, "NO_COLOR": "1"}
            where = ["--backend", "cuda", "--devices", ",".join(map(str, range(gpus)))]
            size = ["--sizes", "64K"] if options.fakes else []  # what the map adds does not depend on it
            for words in (["check", *where, *size], ["check", "--map-p2p", *where]):
                times = [run(words, variables, gpus if options.fakes else 0) for _ in range(options.repeats)]
                maps, wholes, said = zip(*times, strict=True)
                figures = ", ".join(f"{one:.2f}" for one in maps)
                print(
                    f"{gpus} GPUs, {words[0]}{' --map-p2p' if '--map-p2p' in words else ''}: the map {figures} s, "
                    f"median {median(maps):.2f} s; start to prompt {median(wholes):.2f} s; {said[-1]}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
