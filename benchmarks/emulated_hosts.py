"""One of several emulated hosts fails while `collbench nodes` measures them: when is it named, and what is kept?

    .venv/bin/python benchmarks/emulated_hosts.py --hosts 8 --runs 10 --file raw.jsonl

Needs root, `ip` and `tc`: the hosts are network namespaces of tests/distributed, with gloo between them, so nothing of
NCCL is tried. A line of the raw file is one run. `named_s` is from the fault to rank 0's line on stderr that names the
host's rank; `ended_s` to the end of rank 0; both in seconds. A run is right where the rank is named within 30 s and
nobody else, the exit status says that a host was lost, all other pairs of a round were measured, and all other ranks
ended with rank 0. Of a fault at the end, when all was measured, nobody needs to be told.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from collbench.runfile import run_file  # noqa: E402
from tests.distributed.emulated import Hosts, emulated_hosts  # noqa: E402
from tests.distributed.processes import COLLBENCH, started  # noqa: E402

BAR_S = 30.0
PATIENCE_S = 200.0
# The first step tries how long a call takes; each of eight rounds has three: round n begins with step 3n - 1.
MOMENTS = (
    "start", "connecting", "Introduce:1", "OpenRank:1", "Reserve:1", "Step:1",
    *(f"Step:{3 * n - 1}" for n in range(1, 9)), "gathering:5", "end",
)  # fmt: skip
_NAMED = re.compile(r"rank (\d+)(?: on \S+| at \S+| of \d+)? (?:is gone|is silent|cannot|did not come|not here yet)")


@contextmanager
def torch_server(folder: Path) -> Iterator[dict[str, str]]:
    """Give the variables by which gloo's workers start as forks of one process that has loaded torch: 2.5 s less."""
    path = folder / "torch.socket"
    words = [sys.executable, str(ROOT / "tests/fork_server.py"), str(path), "torch"]
    # OpenBLAS would start threads, which a fork lacks.
    single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | single)
    while not path.exists():
        if server.poll() is not None:
            raise RuntimeError("the process with torch has ended")
        time.sleep(0.05)
    try:
        yield {"COLLBENCH_TEST_TORCH": str(path), "PYTHONPATH": f"{ROOT}/tests/loaded:{ROOT}"}
    finally:
        server.communicate()


def one_run(count: int, how: str, when: str, folder: Path) -> dict[str, object]:
    """Return what a run of `count` hosts shows, one of which fails."""
    victim = count // 2
    file, noted = folder / "run.json", folder / "fault"
    with emulated_hosts(count, folder, paced=False) as hosts:
        hosts.places[victim] |= {"EMULATED_FAULT": f"{how}:{when}", "EMULATED_FAULT_TIME": str(noted)}
        words = ["nodes", "--backend", "host", "--size", "64K", "--budget", "10ms", "--output", str(file), "-v"]
        begin = time.time()
        with _started(folder, words, hosts, victim) as (processes, heard):
            status = processes[0].wait(PATIENCE_S)
            ended = time.time()
            others = {rank: processes[rank].wait(BAR_S) for rank in range(1, count) if rank != victim}
    fault = float(noted.read_text()) if noted.exists() else None
    names = [(at, int(found[1]), text) for at, text in heard if (found := _NAMED.search(text))]
    run = run_file.load(file) if file.exists() else None
    measured = [one.point.members for one in run.measurements if one.samples] if run else []
    pairs = {tuple(sorted(run.devices[rank].host for rank in members)) for members in measured} if run else set()
    named_s = round(names[0][0] - fault, 2) if names and fault else None
    left = sum(f"h{victim}" not in pair for pair in pairs)
    seen: dict[str, object] = {
        "hosts": count, "how": how, "when": when, "victim": victim,
        "named": sorted({rank for _, rank, _ in names}), "named_s": named_s,
        "ended_s": round(ended - fault, 2) if fault else None, "seconds": round(ended - begin, 1), "status": status,
        "others": sorted(set(others.values())), "pairs_of_others": left,
        "said": [text for _, _, text in names][:1],
    }  # fmt: skip
    told = seen["named"] == [victim] and named_s is not None and named_s <= BAR_S and status in {1, 4}
    kept = seen["others"] == [0] and left >= count - 2
    return {**seen, "right": bool(kept and (told or when == "end"))}


@contextmanager
def _started(
    folder: Path, words: list[str], hosts: Hosts, victim: int
) -> Iterator[tuple[list[subprocess.Popen[str]], list[tuple[float, str]]]]:
    """Start all hosts; the lines that rank 0 writes to stderr come with the time at which they were read."""
    heard: list[tuple[float, str]] = []
    failing = [sys.executable, "-m", "tests.distributed.victim", *words]
    with (
        started(folder, words, hosts.places[:victim], hosts.before[:victim], COLLBENCH) as first,
        started(folder, [], hosts.places[victim : victim + 1], hosts.before[victim : victim + 1], failing) as middle,
        started(folder, words, hosts.places[victim + 1 :], hosts.before[victim + 1 :], COLLBENCH) as last,
    ):
        processes = [*first, *middle, *last]
        stream, out = (cast("TextIO", found) for found in (processes[0].stderr, processes[0].stdout))
        readers = [
            threading.Thread(target=lambda: heard.extend((time.time(), line.rstrip()) for line in stream)),
            threading.Thread(target=out.read),
        ]
        for reader in readers:
            reader.start()
        yield processes, heard
        for reader in readers:
            reader.join()
        _end(hosts.before[victim][3])


def _end(space: str) -> None:
    """Kill whatever still is in a namespace: stopped processes, too."""
    found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
    for process in found.stdout.split():
        try:
            os.kill(int(process), 9)
        except ProcessLookupError:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10, help="of each fault at each moment")
    parser.add_argument("--how", default="kill,stop,cut")
    parser.add_argument("--when", default=",".join(MOMENTS))
    parser.add_argument("--file", type=Path, required=True, help="raw file; runs are appended, a JSON line each")
    asked = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "kernel": platform.release(), "command": sys.argv,
    }  # fmt: skip
    right = total = 0
    plan = itertools.product(range(asked.runs), asked.when.split(","), asked.how.split(","))
    with (
        asked.file.open("a", encoding="utf-8") as file,
        tempfile.TemporaryDirectory() as folder,
        torch_server(Path(folder)) as variables,
    ):
        os.environ.update(variables)
        print(json.dumps(head), file=file, flush=True)
        for number, when, how in plan:
            own = Path(folder) / f"{how}-{when}-{number}"
            own.mkdir()
            found = one_run(asked.hosts, how, when, own)
            for stream in (file, sys.stdout):
                print(json.dumps(found), file=stream, flush=True)
            right, total = right + bool(found["right"]), total + 1
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
