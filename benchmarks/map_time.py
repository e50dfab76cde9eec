#!/usr/bin/env python3
"""How long the map of P2P takes: what it adds to `check`, and `check --map-p2p` from start to prompt.

    python benchmarks/map_time.py [--gpus 2,8] [--repeats N] [--fakes] [--only check|map] [--without] [--steps FILE]
    python benchmarks/map_time.py --expect 8 FILE

On this machine's GPUs; with --fakes on the simulated libraries of tests/native, on which calls and copies last in real
time as long as on H100 (WAITS). Both pages are printed as far as their answer, so that only sound machines are timed.
With --without, each `check` is followed by one that makes no map. With --steps, a table says how long the steps of the
map last, and a line of JSON for each run is appended to FILE. --expect estimates from such a file how long they last on
more GPUs: by a line through all runs, and at most, if nothing grows faster than the number of links.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Seconds of one call: two H100, driver 580.159.04 [benchmarks/results/2026-11-24-2xh100-startup]. The times of NCCL and
# nvidia-smi are those on two GPUs; we guess three times as long on eight.
WAITS = {
    "cuInit": 0.25,
    "cuDevicePrimaryCtxRetain": 0.2,
    "cuCtxEnablePeerAccess": 0.01,
    "cuModuleLoadData": 0.02,
    "nvmlInitWithFlags": 0.1,
    "dlopen": 0.1,
}
NCCL_S, NVIDIA_SMI_S = 0.7, 0.07
# Rates in GB/s of H100: over NVLink, and through host memory. The fakes fill and move memory with a CPU, so buffers are
# small, and messages of 1 MiB stand for those of 16 MiB, at a sixteenth of the rate.
DIRECT, STAGED, SHRUNK = 360, 35, 16
MIB = 2**20
ROOM_FOR_COPIES, ROOM_FOR_NCCL = 262 * MIB, 512 * MIB  # CUDA and buffers for 1 MiB; NCCL for each GPU


# What a run executes: `collbench` with the map, and its steps, timed. A step's label may depend on what is called with
# it and on its result; steps that contain others are listed before them.
TIMED = """
import importlib, json, os, sys, threading, time
PLAN = json.loads(os.environ["MAP_TIME"])
from collbench.cli import check as command, main
from collbench.measurement.backends import isolated, protocol
from collbench.p2p import examine, transports
if PLAN["fakes"]:
    examine._ROOM_FOR_TWO = 0  # as on GPUs, both workers start at once
    backend = isolated.IsolatedBackend
    room = {"FAKE_FREE": str(PLAN["room"])}
    transports.IsolatedBackend = lambda extra, **more: backend(extra={**extra, **room}, **more)
if PLAN["without"]:
    importlib.import_module("collbench.cli.check")._peers_of = lambda *_: (None, "")
main_thread, steps, inside = threading.current_thread(), [], [False]
def worker(self, *_):
    opening = self._opening
    kind = "NCCL" if opening.collectives else "copies" if opening.peers else "staging"
    return f"{kind} on {len(opening.devices)} GPUs"
def exchanged(self, call, *_):
    return f"{call.method} ({worker(self)})" if call.method in ("reserve", "prepare") else call.method
def replied(reply, self, *_):
    return f"communicators made ({worker(self)})" if isinstance(reply, protocol.Prepared) else ""
def noted(_, self, step, answer):
    if inside[0]:
        steps.append((answer.seconds, f"in the worker: {step.work} of {step.size_bytes}"))
def timed(path, label, once=False):
    module, _, names = path.partition(":")
    owner, *rest = [importlib.import_module(module), *names.split(".")]
    for name in rest[:-1]:
        owner = getattr(owner, name)
    function = getattr(owner, rest[-1])
    def call(*arguments, **keywords):
        if once:
            inside[0] = True
        begin, result = time.monotonic(), None
        try:
            result = function(*arguments, **keywords)
            return result
        finally:
            end = time.monotonic()
            words = label(result, *arguments) if callable(label) else label
            if words and inside[0]:
                of_nccl = threading.current_thread() is not main_thread
                steps.append((end - begin, ("beside: " if of_nccl else "") + words))
            if once:
                inside[0] = False
                print("MAP", json.dumps({"seconds": end - begin, "steps": steps}), file=sys.stderr)
    setattr(owner, rest[-1], call)
BACKENDS = "collbench.measurement.backends."
timed("collbench.p2p.examine:examine", "", once=True)
if PLAN["steps"]:
    timed("collbench.machine.nvml:Nvml.__enter__", "NVML starts")
    timed("collbench.p2p.examine:_answers", "NVML answers about P2P")
    timed("collbench.p2p.examine:_read_slots", "NVML reads PCIe links")
    timed("collbench.machine.nvidia_smi:LiveTools.__init__", "nvidia-smi starts")
    timed("collbench.machine.nvidia_smi:LiveTools.texts", "nvidia-smi's end is waited for")
    timed("collbench.preflight.collect:examine", "doctor's facts")
    timed("collbench.p2p.examine:causes", "causes")
    timed("collbench.p2p.examine:cross_links", "all links")
    timed(BACKENDS + "isolated:Supervised.start", "a worker is started")
    timed(BACKENDS + "isolated:Supervised.facts", lambda facts, self: f"worker opens ({worker(self)})")
    timed(BACKENDS + "isolated:Supervised._exchange", lambda answer, self, call: exchanged(self, call))
    timed(BACKENDS + "isolated:Supervised._reply", replied)
    timed(BACKENDS + "isolated:Supervised.time", lambda timing, self, step: f"{step.work} of {step.size_bytes}")
    timed(BACKENDS + "isolated:Supervised._note", noted)
    timed(BACKENDS + "isolated:IsolatedBackend.reap", "workers end")
    timed("collbench.p2p.transports:TransportProbe.ask", "NCCL's choice, whole")
    timed(BACKENDS + "child_process:Background.result", "NCCL's choice is waited for")
sys.argv[0] = "collbench"
sys.exit(main())
"""


def on_fakes(folder: Path, gpus: int) -> dict[str, str]:
    """Build the libraries and a program nvidia-smi that only waits; return the variables with which they are found."""
    sys.path.insert(0, str(ROOT))
    from tests.native.fakes import build

    grown = 1 + (gpus - 2) / 3
    fakes = build(folder / f"fakes-{gpus}")
    tool = folder / f"bin-{gpus}" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nsleep {NVIDIA_SMI_S * grown}\n", encoding="utf-8")
    tool.chmod(0o755)
    slow = {**WAITS, "ncclCommInitRank": NCCL_S * grown}
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


class Timed(NamedTuple):
    """One run: seconds of the map, None without one; from start to prompt; its steps; the line that speaks of P2P."""

    map_s: float | None
    whole_s: float
    steps: list[tuple[float, str]]
    said: str


def run(words: list[str], variables: dict[str, str], fakes: int, *, steps: bool, without: bool = False) -> Timed:
    """Run collbench once. `fakes` is how many fake GPUs there are, 0 for real ones."""
    plan = {"fakes": fakes, "room": room(fakes), "steps": steps, "without": without}
    variables = variables | {"MAP_TIME": json.dumps(plan)}
    if fakes and "--map-p2p" in words:
        variables |= {"FAKE_FREE": str(ROOM_FOR_COPIES)}
    begin = time.monotonic()
    command = [sys.executable, "-c", TIMED, *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    whole = time.monotonic() - begin
    if without:
        return Timed(None, whole, [], f"status {done.returncode}")
    mapped = [json.loads(line.removeprefix("MAP ")) for line in done.stderr.splitlines() if line.startswith("MAP ")]
    said = [line for line in done.stdout.splitlines() if line.startswith(("answer", "p2p"))]
    if not (mapped and said):
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return Timed(mapped[0]["seconds"], whole, mapped[0]["steps"], said[0])


def table(runs: Iterable[list[tuple[float, str]]]) -> list[str]:
    """Return a line for each kind of step: how often, and the median over runs of the seconds of all its steps."""
    sums = [summed(steps) for steps in runs]
    names = dict.fromkeys(name for one in sums for name in one)
    rows = [(name, [one.get(name, (0, 0.0)) for one in sums]) for name in names]
    return [f"    {name:<58} {of[-1][0]:4} {median(seconds for _, seconds in of):8.3f} s" for name, of in rows]


def summed(steps: list[tuple[float, str]]) -> dict[str, tuple[int, float]]:
    """Return how many steps of each name there were, and their seconds."""
    found: dict[str, tuple[int, float]] = {}
    for seconds, name in steps:
        count, before = found.get(name, (0, 0.0))
        found[name] = (count + 1, before + seconds)
    return found


def expected(file: Path, gpus: int) -> Iterator[str]:
    """Yield lines on the map and its steps on so many GPUs, from a file of --steps: medians, and a line over links."""
    by_step: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in file.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        for name, (_, seconds) in (("the map", (1, one["map_s"])), *one["steps"].items()):
            by_step[one["command"], re.sub(r" on \d+ GPUs", "", name)][one["gpus"]].append(seconds)
    if len({count for of in by_step.values() for count in of}) < 2:
        raise SystemExit(f"{file} has one number of GPUs: how long others take needs two")
    for (command, name), of in by_step.items():
        counts = sorted(of)
        measured = [median(of[count]) for count in counts]
        # A step that gets no longer keeps its longest time.
        each, alone = (
            linear_regression([_links(count) for count in counts], measured) if len(counts) > 1 else (0.0, 0.0)
        )
        most = max(*measured, alone + each * _links(gpus)) if len(counts) > 1 else measured[0]
        seen = ", ".join(f"{seconds:.3f} s on {count}" for count, seconds in zip(counts, measured, strict=True))
        yield f"{command:5} {name:<52} at most {most:7.3f} s on {gpus} GPUs; {seen}"


def _links(gpus: int) -> int:
    return gpus * (gpus - 1)


COMMANDS = {"check": ["check"], "map": ["check", "--map-p2p"]}


def main() -> None:
    """Time both commands on each number of GPUs, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default="2,8", metavar="LIST", help="how many, of the first ones")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--fakes", action="store_true")
    parser.add_argument("--only", choices=[*COMMANDS], help="one of the two commands")
    parser.add_argument("--without", action="store_true", help="also time `check` without the map, in turn")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="time the map's steps, and append them as JSON")
    parser.add_argument("--expect", nargs=2, metavar=("N", "FILE"), help="what a file of --steps says of N GPUs")
    options = parser.parse_args()
    if options.expect:
        print(*expected(Path(options.expect[1]), int(options.expect[0])), sep="\n")
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores{', FAKES' if options.fakes else ''}")
    with tempfile.TemporaryDirectory() as name:
        for gpus in map(int, options.gpus.split(",")):
            variables = on_fakes(Path(name), gpus) if options.fakes else dict(os.environ)
            variables |= {"XDG_STATE_HOME": name, "NO_COLOR": "1"}
            where = ["--backend", "cuda", "--devices", ",".join(map(str, range(gpus)))]
            size = ["--sizes", "64K"] if options.fakes else []  # what the map adds does not depend on it
            fakes = gpus if options.fakes else 0
            for command in [options.only] if options.only else [*COMMANDS]:
                words = [*COMMANDS[command], *where, *(size if command == "check" else [])]
                runs, without = list[Timed](), list[float]()
                for _ in range(options.repeats):
                    runs.append(run(words, variables, fakes, steps=options.steps is not None))
                    if options.without and command == "check":
                        without.append(run(words, variables, fakes, steps=False, without=True).whole_s)
                report(gpus, " ".join(COMMANDS[command]), runs, without)
                if options.steps:
                    print(*table(one.steps for one in runs), sep="\n", flush=True)
                    with options.steps.open("a", encoding="utf-8") as file:
                        for one in runs:
                            line = {"gpus": gpus, "command": command, **one._asdict(), "steps": summed(one.steps)}
                            file.write(json.dumps(line) + "\n")


def report(gpus: int, command: str, runs: list[Timed], without: list[float]) -> None:
    """Print one line on all runs of a command."""
    maps = [one.map_s or 0.0 for one in runs]
    apart = f", without the map {median(without):.2f} s" if without else ""
    print(
        f"{gpus} GPUs, {command}: the map {', '.join(f'{one:.2f}' for one in maps)} s, median {median(maps):.2f} s; "
        f"start to prompt {median(one.whole_s for one in runs):.2f} s{apart}; {runs[-1].said}",
        flush=True,
    )


if __name__ == "__main__":
    main()
