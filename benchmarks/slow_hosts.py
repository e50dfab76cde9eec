"""One of several emulated hosts has half the others' rate, or none has: which does `collbench nodes` call slow?

    python benchmarks/slow_hosts.py --hosts 4 --runs 20 --file raw.jsonl
    python benchmarks/slow_hosts.py --hosts 8 --runs 20 --backend host --mbit 40 --size 64K --file raw.jsonl
    python benchmarks/slow_hosts.py --hosts 4 --runs 10 --one-way --file raw.jsonl    # slow in one direction

Needs root, `ip` and `tc`: the hosts are network namespaces of tests/ranks, whose links are token buckets. With
NCCL, hosts share the GPUs of this machine and NCCL_HOSTID tells them apart, so the emulated rate must be far below what
one GPU moves between so many processes. A line of the raw file is one run: even runs have a slow host, random by the
run's number; odd runs have none. A run is right if `nodes` calls exactly that host slow, or none. With `--one-way` only
what the host sends, or only what it receives, has half the rate. `late` lists the hosts that it reports late to
batches, with their median ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.ranks.emulated import emulated_hosts  # noqa: E402
from tests.ranks.processes import ends, started  # noqa: E402

TIMEOUT_S = 200.0
DIRECTIONS = ("sends", "receives")


def one_run(options: argparse.Namespace, number: int, folder: Path) -> dict[str, object]:
    """Run `nodes` once; return the line of the raw file."""
    rng = random.Random(number)
    slow = rng.randrange(options.hosts) if number % 2 == 0 else None
    slow_directions = (rng.choice(DIRECTIONS),) if options.one_way else DIRECTIONS
    arguments = ["nodes", "--backend", options.backend, "--size", options.size, "--budget", options.budget, "--json"]
    arguments += ["--output", str(folder / "run.json")]
    with emulated_hosts(options.hosts, folder, paced=False, mbit=options.mbit) as hosts:
        if slow is not None:
            hosts.rate(slow, options.mbit / 2, sends="sends" in slow_directions, receives="receives" in slow_directions)
        for host, environment in enumerate(hosts.places):
            if options.backend == "cuda":
                environment |= {"CUDA_VISIBLE_DEVICES": host % options.gpus, "NCCL_SOCKET_IFNAME": "veth0"}
        begin = time.time()
        with started(
            folder, arguments, hosts.places, hosts.before, all_of_torch=options.backend == "cuda"
        ) as processes:
            (status, out, err), *_ = ends(processes, TIMEOUT_S)
    result: dict[str, object] = {
        "hosts": options.hosts, "slow": slow, "ways": [] if slow is None else slow_directions, "status": status,
        "seconds": round(time.time() - begin, 1),
    }  # fmt: skip
    if not out.startswith("{"):
        return {**result, "right": False, "said": err[-2000:]}
    report = json.loads(out)
    nodes = report["judgement"]["nodes"]
    named = [host for host, node in enumerate(nodes) if node["state"] == "slow"]
    doubted = [host for host, node in enumerate(nodes) if node["state"] in ("either", "undecided")]
    result |= {
        "named": named, "doubted": doubted,
        "rounds": report["rounds"], "ratios": [round(node["ratio"], 3) for node in nodes],
        "typical_gbs": report["judgement"]["typical_gbs"],
        "late": [[one["node"], round(1e3 * one["seconds"], 3), one["later"], one["seen"]] for one in report["late"]],
    }  # fmt: skip
    return {**result, "right": named == ([] if slow is None else [slow])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--runs", type=int, default=20, help="with a slow host, and as many without")
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to continue a raw file")
    parser.add_argument("--one-way", action="store_true", help="slow in one direction alone")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--gpus", type=int, default=1, help="that the hosts share")
    parser.add_argument("--mbit", type=float, default=800.0, help="rate of a host that is not slow")
    parser.add_argument("--size", default="2M")
    parser.add_argument("--budget", default="10ms", help="of nodes: eight rounds are always made")
    parser.add_argument("--file", type=Path, required=True, help="raw file; runs are appended, a JSON line each")
    parser.add_argument("--keep", type=Path, help="folder for the run files of runs that are not right")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no run begins")
    options = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "kernel": platform.release(), "command": sys.argv,
    }  # fmt: skip
    right = total = 0
    begin = time.time()
    with options.file.open("a", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        print(json.dumps(head), file=file, flush=True)
        for number in range(options.first, 2 * options.runs):
            if time.time() - begin > options.until:
                break
            run_folder = Path(folder) / str(number)
            run_folder.mkdir()
            result = one_run(options, number, run_folder)
            if options.keep and not result["right"] and (run_folder / "run.json").exists():
                shutil.copy(run_folder / "run.json", options.keep / f"{options.hosts}-hosts-{number}.json")
            for stream in (file, sys.stdout):
                print(json.dumps(result), file=stream, flush=True)
            right, total = right + bool(result["right"]), total + 1
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
