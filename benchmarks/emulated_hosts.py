"""One of several emulated hosts fails while `collbench nodes` measures: how soon is it named, which results are kept?

    .venv/bin/python benchmarks/emulated_hosts.py --hosts 8 --runs 10 --file raw.jsonl

Needs root, `ip` and `tc`: the hosts are network namespaces of tests/ranks, with gloo between them, so NCCL is
not tested. A line of the raw file is one run. `named_s` is the time from the fault to rank 0's line on stderr that
names the host's rank; `ended_s` to the end of rank 0; both in seconds. A run is right if that rank and no other is
named within 30 s, the exit status says that a host was lost, all other pairs of a round were measured, and all other
ranks ended with rank 0. A fault at the end, after all measurements, need not be named.
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
from tests.conftest import fork_server  # noqa: E402
from tests.ranks.emulated import Hosts, emulated_hosts  # noqa: E402
from tests.ranks.processes import COLLBENCH, started  # noqa: E402

BAR_S = 30.0
TIMEOUT_S = 200.0
# The first step estimates the time of a call; each of eight rounds has three steps: round n begins with step 3n - 1.
MOMENTS = (
    "start", "connecting", "introduce:1", "open:1", "reserve:1", "time:1",
    *(f"time:{3 * n - 1}" for n in range(1, 9)), "gathering:5", "end",
)  # fmt: skip
_NAMES_RANK = re.compile(
    r"rank (\d+)(?: on \S+| at \S+| of \d+)? (?:is gone|is silent|cannot|did not come|not here yet)"
)


def one_run(count: int, how: str, when: str, folder: Path) -> dict[str, object]:
    """Run `nodes` on `count` hosts, one of which fails; return the line of the raw file."""
    victim = count // 2
    file, fault_time_file = folder / "run.json", folder / "fault"
    with emulated_hosts(count, folder, paced=False) as hosts:
        hosts.places[victim] |= {"EMULATED_FAULT": f"{how}:{when}", "EMULATED_FAULT_TIME": str(fault_time_file)}
        arguments = ["nodes", "--backend", "host", "--size", "64K", "--budget", "10ms", "--output", str(file), "-v"]
        begin = time.time()
        with _started(folder, arguments, hosts, victim) as (processes, stderr_lines):
            status = processes[0].wait(TIMEOUT_S)
            ended = time.time()
            others = {rank: processes[rank].wait(BAR_S) for rank in range(1, count) if rank != victim}
    fault_time = float(fault_time_file.read_text()) if fault_time_file.exists() else None
    naming_lines = [
        (read_at, int(match[1]), line) for read_at, line in stderr_lines if (match := _NAMES_RANK.search(line))
    ]
    run = run_file.load(file) if file.exists() else None
    measured_members = (
        [measurement.point.members for measurement in run.measurements if measurement.samples] if run else []
    )
    pairs = (
        {tuple(sorted(run.devices[rank].host for rank in members)) for members in measured_members} if run else set()
    )
    named_s = round(naming_lines[0][0] - fault_time, 2) if naming_lines and fault_time else None
    pairs_of_others = sum(f"h{victim}" not in pair for pair in pairs)
    result: dict[str, object] = {
        "hosts": count, "how": how, "when": when, "victim": victim,
        "named": sorted({rank for _, rank, _ in naming_lines}), "named_s": named_s,
        "ended_s": round(ended - fault_time, 2) if fault_time else None, "seconds": round(ended - begin, 1),
        "status": status,
        "others": sorted(set(others.values())), "pairs_of_others": pairs_of_others,
        "said": [line for _, _, line in naming_lines][:1],
    }  # fmt: skip
    is_named = result["named"] == [victim] and named_s is not None and named_s <= BAR_S and status in {1, 3, 4}
    is_kept = result["others"] == [0] and pairs_of_others >= count - 2
    return {**result, "right": bool(is_kept and (is_named or when == "end"))}


@contextmanager
def _started(
    folder: Path, arguments: list[str], hosts: Hosts, victim: int
) -> Iterator[tuple[list[subprocess.Popen[str]], list[tuple[float, str]]]]:
    """Start all hosts; yield the processes, and rank 0's lines on stderr with the time at which each was read."""
    stderr_lines: list[tuple[float, str]] = []
    victim_command = [sys.executable, "-m", "tests.ranks.victim", *arguments]
    with (
        started(folder, arguments, hosts.places[:victim], hosts.before[:victim], COLLBENCH) as first,
        started(
            folder, [], hosts.places[victim : victim + 1], hosts.before[victim : victim + 1], victim_command
        ) as middle,
        started(folder, arguments, hosts.places[victim + 1 :], hosts.before[victim + 1 :], COLLBENCH) as last,
    ):
        processes = [*first, *middle, *last]
        stderr, stdout = (cast("TextIO", pipe) for pipe in (processes[0].stderr, processes[0].stdout))
        readers = [
            threading.Thread(target=lambda: stderr_lines.extend((time.time(), line.rstrip()) for line in stderr)),
            threading.Thread(target=stdout.read),
        ]
        for reader in readers:
            reader.start()
        yield processes, stderr_lines
        for reader in readers:
            reader.join()
        _kill_namespace(hosts.before[victim][3])


def _kill_namespace(namespace: str) -> None:
    """Kill all processes that are still in a namespace, including stopped ones."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in pids.stdout.split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10, help="of each fault at each moment")
    parser.add_argument("--how", default="kill,stop,cut")
    parser.add_argument("--when", default=",".join(MOMENTS))
    parser.add_argument("--file", type=Path, required=True, help="raw file; runs are appended, a JSON line each")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no run begins")
    options = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "kernel": platform.release(), "command": sys.argv,
    }  # fmt: skip
    right = total = 0
    begin = time.monotonic()
    plan = itertools.product(range(options.runs), options.when.split(","), options.how.split(","))
    with (
        options.file.open("a", encoding="utf-8") as file,
        tempfile.TemporaryDirectory() as folder,
    ):
        # Gloo's workers start as forks of one process that has loaded torch, which saves 2.5 s.
        os.environ["COLLBENCH_TEST_TORCH"] = fork_server("torch", "torch")
        os.environ["PYTHONPATH"] = f"{ROOT}/tests/loaded:{ROOT}"
        print(json.dumps(head), file=file, flush=True)
        for number, when, how in plan:
            if time.monotonic() - begin > options.until:
                break
            run_folder = Path(folder) / f"{how}-{when}-{number}"
            run_folder.mkdir()
            result = one_run(options.hosts, how, when, run_folder)
            for stream in (file, sys.stdout):
                print(json.dumps(result), file=stream, flush=True)
            right, total = right + bool(result["right"]), total + 1
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
