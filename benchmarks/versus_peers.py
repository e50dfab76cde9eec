#!/usr/bin/env python3
"""Runs nccl-tests, nvbandwidth and collbench in turn on this machine; writes ratios with intervals against bars.

    python benchmarks/versus_peers.py --nccl-tests DIR --nvbandwidth FILE --out DIR [--repeats 3] [--part NAME …]

DIR/versus_peers.txt and .md hold the tables, rewritten after every part. DIR/raw holds everything that the programs
printed, the run files, and commands.txt with the wall time of each command. Three repeats of everything take about 8
minutes on 4 GPUs, most of it for `collectives`. Exits 1 when a bar is missed or a command failed, 2 when it could not
begin.

All programs get the environment unchanged, NCCL_* included; only the peers get CUDA_VISIBLE_DEVICES and
CUDA_DEVICE_ORDER, because they have no option for the GPUs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from peers.bench import Bench
from peers.rates import PROGRAMS, collectives, copies, host
from peers.registration import registration
from peers.skew import skew
from peers.table import Table, markdown, text
from peers.times import growth, repeat, wall

PARTS: dict[str, Callable[[Bench], Table]] = {
    "wall": wall,
    "repeat": repeat,
    "growth": growth,
    "copies": copies,
    "host": host,
    "collectives": collectives,
    "registration": registration,
    "skew": skew,
}
_NEEDS_NCCL_TESTS = {"collectives", "registration", "skew", "repeat", "wall"}
_NEEDS_NVBANDWIDTH = {"copies", "host", "wall"}
_HOW_TO_BUILD = (
    "Get the sources NVIDIA/nccl-tests and NVIDIA/nvbandwidth (on GitHub) and build them with CUDA's nvcc: in "
    "nccl-tests `make NCCL_HOME=…/nvidia/nccl` (the nvidia-nccl wheel's folder; make lib/libnccl.so a link to "
    "libnccl.so.2 there), "
    "in nvbandwidth `cmake . && make` (needs boost program_options). Then: versus_peers.py --nccl-tests "
    "nccl-tests/build --nvbandwidth nvbandwidth/nvbandwidth"
)


class CannotBeginError(Exception):
    """Why nothing was run, in one line."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="collbench against nccl-tests and nvbandwidth, in one session")
    parser.add_argument(
        "--nccl-tests", type=Path, metavar="DIR", help="the folder of all_reduce_perf and the other programs"
    )
    parser.add_argument("--nvbandwidth", type=Path, metavar="FILE", help="the program nvbandwidth")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="tables and raw files go here")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="how often each comparison is made [3]")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="[all, in this order]")
    parser.add_argument("--devices", metavar="LIST", help="GPUs, nvidia-smi indices or UUIDs [all visible]")
    parser.add_argument("--collbench", default=f"{shlex.quote(sys.executable)} -m collbench", metavar="COMMAND")
    return parser.parse_args(argv)


def open_bench(options: argparse.Namespace) -> Bench:
    """Return the session. Raises CannotBeginError where a peer, the GPUs or the folder is missing."""
    _check_peers(options)
    if options.repeats < 1:
        raise CannotBeginError(f"--repeats {options.repeats}: write 1 or more")
    devices = _devices(options.devices, options.part)
    try:
        (options.out / "raw").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotBeginError(
            f"cannot write into {options.out}: {error.strerror}; choose another --out DIR"
        ) from error
    return Bench(
        out=options.out.resolve(),
        collbench=tuple(shlex.split(options.collbench)),
        nccl_tests=(options.nccl_tests or Path()).resolve(),
        nvbandwidth=(options.nvbandwidth or Path()).resolve(),
        devices=devices,
        repeats=options.repeats,
    )


def _check_peers(options: argparse.Namespace) -> None:
    required = []
    if _NEEDS_NCCL_TESTS & set(options.part):
        programs = PROGRAMS.values() if "collectives" in options.part else ("all_reduce", "broadcast")
        programs = (*programs, "alltoallv") if "skew" in options.part else programs
        required += [("--nccl-tests", options.nccl_tests, f"{program}_perf") for program in programs]
    if _NEEDS_NVBANDWIDTH & set(options.part):
        required.append(("--nvbandwidth", options.nvbandwidth, ""))
    for option, path, program in required:
        if path is None:
            raise CannotBeginError(f"{option} is not given. {_HOW_TO_BUILD}")
        if not os.access(path / program, os.X_OK) or (path / program).is_dir():
            raise CannotBeginError(f"{option}: {path / program} is no program. {_HOW_TO_BUILD}")


def _devices(chosen: str | None, parts: Sequence[str]) -> tuple[str, ...]:
    listed = chosen or os.environ.get("CUDA_VISIBLE_DEVICES") or _gpu_indices()
    devices = tuple(name.strip() for name in listed.split(",") if name.strip())
    if len(devices) < 2 and set(parts) != {"host"}:
        raise CannotBeginError(f"{len(devices)} GPU ({listed}): all but --part host need two or more; see --devices")
    return devices


def _gpu_indices() -> str:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        return ",".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBeginError(f"cannot list the GPUs with nvidia-smi ({error}): name them, --devices 0,1") from error


def write(bench: Bench, tables: Sequence[Table], command: Sequence[str], started: str) -> None:
    """Write both reports; called after every part, so that an interrupted session keeps its tables."""
    heading = f"{started}, {platform.node()}, GPUs {','.join(bench.devices)}: versus_peers.py {shlex.join(command)}"
    failures = [f"FAILED {line}" for line in bench.failures]
    versions = ", ".join(f"{program} {version}" for program, version in sorted(bench.nccl.items()))
    heading += f"; NCCL: {versions or 'not used'}"
    pages = {
        "versus_peers.txt": "\n".join((f"# {heading}", "", *map(text, tables), *failures, "")),
        "versus_peers.md": "\n".join(
            (f"# {heading}", "", *map(markdown, tables), *(f"- {line}" for line in failures), "")
        ),
    }
    for name, page in pages.items():
        (bench.out / name).write_text(page, encoding="utf-8")


def _check_nccl(bench: Bench) -> None:
    """Add a failure if the programs loaded different NCCLs: then ratios between them say nothing about collbench."""
    failure = f"not the same NCCL: {', '.join(f'{name} {nccl}' for name, nccl in sorted(bench.nccl.items()))}"
    if len(set(bench.nccl.values())) > 1 and failure not in bench.failures:
        bench.failures.append(failure)


def main(argv: Sequence[str]) -> int:
    """Run the parts; return the exit status."""
    options = arguments(argv)
    try:
        bench = open_bench(options)
    except CannotBeginError as error:
        print(f"versus_peers: {error}", file=sys.stderr)
        return 2
    started = f"{datetime.now(UTC):%FT%TZ}"
    tables: list[Table] = []
    for name in dict.fromkeys(options.part):
        tables.append(PARTS[name](bench))
        _check_nccl(bench)
        print(f"\n{text(tables[-1])}", flush=True)
        write(bench, tables, argv, started)
    for line in bench.failures:
        print(f"FAILED {line}", file=sys.stderr)
    missed = sum(table.missed for table in tables)
    print(f"{missed} bars missed, {len(bench.failures)} commands failed; {bench.out}")
    return int(bool(missed or bench.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
