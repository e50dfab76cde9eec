"""One of several emulated hosts has half the others' rate, or none has: whom does `collbench nodes` name?

    python benchmarks/slow_hosts.py --hosts 4 --runs 20 --file raw.jsonl
    python benchmarks/slow_hosts.py --hosts 8 --runs 20 --backend host --mbit 40 --size 64K --file raw.jsonl
    python benchmarks/slow_hosts.py --hosts 4 --runs 10 --one-way --file raw.jsonl

Needs root, `ip` and `tc`: the hosts are network namespaces of tests/distributed, whose links are token buckets. With
NCCL, hosts share the GPUs that there are and NCCL_HOSTID tells them apart, so the rate must be far below what one GPU
moves between so many processes. A line of the raw file is one run: even ones have a slow host, drawn by the run's
number, odd ones have none. A run is right where `nodes` calls exactly that host slow, or nobody. With `--one-way` only
what the host sends, or only what it receives, has half the rate, and `nodes --one-way` must say which. `late` lists the
hosts that it says come late to batches, with their median ms.
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

from tests.distributed.emulated import emulated_hosts  # noqa: E402
from tests.distributed.processes import ends, started  # noqa: E402

PATIENCE_S = 200.0
WAYS = ("sends", "receives")


def one_run(asked: argparse.Namespace, number: int, folder: Path) -> dict[str, object]:
    """Return what a run shows."""
    drawn = random.Random(number)
    slow = drawn.randrange(asked.hosts) if number % 2 == 0 else None
    ways = (drawn.choice(WAYS),) if asked.one_way else WAYS
    words = ["nodes", "--backend", asked.backend, "--size", asked.size, "--budget", asked.budget, "--json"]
    words += ["--output", str(folder / "run.json"), *(["--one-way"] if asked.one_way else [])]
    with emulated_hosts(asked.hosts, folder, paced=False, mbit=asked.mbit) as hosts:
        if slow is not None:
            hosts.rate(slow, asked.mbit / 2, sends="sends" in ways, receives="receives" in ways)
        for host, place in enumerate(hosts.places):
            if asked.backend == "cuda":
                place |= {"CUDA_VISIBLE_DEVICES": host % asked.gpus, "NCCL_SOCKET_IFNAME": "veth0"}
        begin = time.time()
        with started(folder, words, hosts.places, hosts.before, all_of_torch=asked.backend == "cuda") as processes:
            (status, out, err), *_ = ends(processes, PATIENCE_S)
    seen: dict[str, object] = {
        "hosts": asked.hosts, "slow": slow, "ways": [] if slow is None else ways, "status": status,
        "seconds": round(time.time() - begin, 1),
    }  # fmt: skip
    if not out.startswith("{"):
        return {**seen, "right": False, "said": err[-2000:]}
    found = json.loads(out)
    nodes = found["judgement"]["nodes"]
    states = [{way: node[way]["state"] for way in WAYS} for node in nodes]
    named = [host for host, state in enumerate(states) if "slow" in state.values()]
    named_ways = [[way for way in WAYS if states[host][way] == "slow"] for host in named]
    doubted = [host for host, state in enumerate(states) if {"suspect", "undecided"} & {*state.values()}]
    seen |= {
        "named": named, "named_ways": named_ways, "doubted": doubted, "rounds": found["rounds"],
        "ratios": [[round(node[way]["ratio"], 3) for way in WAYS] for node in nodes],
        "typical_gbs": found["judgement"]["typical_gbs"],
        "late": [[one["node"], round(1e3 * one["seconds"], 3), one["later"], one["seen"]] for one in found["late"]],
    }  # fmt: skip
    right = named == ([] if slow is None else [slow]) and (not asked.one_way or named_ways == [[*ways]] * len(named))
    return {**seen, "right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--runs", type=int, default=20, help="with a slow host, and as many without")
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to continue a raw file")
    parser.add_argument("--one-way", action="store_true", help="slow in one direction alone, measured in both")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--gpus", type=int, default=1, help="that the hosts share")
    parser.add_argument("--mbit", type=float, default=800.0, help="rate of a host that is not slow")
    parser.add_argument("--size", default="2M")
    parser.add_argument("--budget", default="10ms", help="of nodes: eight rounds are always made")
    parser.add_argument("--file", type=Path, required=True, help="raw file; runs are appended, a JSON line each")
    parser.add_argument("--keep", type=Path, help="folder for the run files of runs that are not right")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no run begins")
    asked = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "kernel": platform.release(), "command": sys.argv,
    }  # fmt: skip
    right = total = 0
    begin = time.time()
    with asked.file.open("a", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        print(json.dumps(head), file=file, flush=True)
        for number in range(asked.first, 2 * asked.runs):
            if time.time() - begin > asked.until:
                break
            own = Path(folder) / str(number)
            own.mkdir()
            found = one_run(asked, number, own)
            if asked.keep and not found["right"] and (own / "run.json").exists():
                shutil.copy(own / "run.json", asked.keep / f"{asked.hosts}-hosts-{number}.json")
            for stream in (file, sys.stdout):
                print(json.dumps(found), file=stream, flush=True)
            right, total = right + bool(found["right"]), total + 1
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
