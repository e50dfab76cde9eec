"""A host that stands in for NCCL and drives the profiler plugin, compiled once a test run, and scripts for it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import collbench
from collbench.jobs.streams import Stream, parse

PLUGIN = Path(collbench.__file__).parent / "_profiler.so"
ABIS = (1, 2, 3, 4, 5, 6)
_SOURCE = Path(__file__).parent / "recorded_host.cpp"
# Of all processes that pytest-xdist starts; its first one removes it.
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
_FOLDER = Path(tempfile.gettempdir(), f"collbench-recorded-host-{_RUN}")
# NCCL's names of our dtypes and operations, for the scripts.
DTYPES = {
    "int8": "ncclInt8",
    "uint8": "ncclUint8",
    "int32": "ncclInt32",
    "float16": "ncclFloat16",
    "float32": "ncclFloat32",
    "bfloat16": "ncclBfloat16",
}
FUNCTIONS = {
    "allreduce": "AllReduce",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "send": "Send",
    "recv": "Recv",
}


@dataclass(frozen=True)
class Made:
    """One call of a script; `root` is the peer of a send or receive."""

    operation: str
    count: int
    dtype: str = "float32"
    root: int = 0
    communicator: int = 0
    captured: bool = False

    def line(self) -> str:
        fields = (FUNCTIONS[self.operation], self.count, DTYPES[self.dtype], self.root, int(self.captured))
        return f"call {self.communicator} {' '.join(map(str, fields))}\n"


@cache
def host() -> Path:
    """Return the compiled host."""
    _FOLDER.mkdir(exist_ok=True)
    compiled, part = _FOLDER / "host", _FOLDER / "part"
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-pthread", "-w", "-rdynamic", str(_SOURCE)]
    with (_FOLDER / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not compiled.exists():  # renamed when complete: a failed compilation fails in each process
            subprocess.run([*command, "-o", str(part), "-ldl"], check=True)
            part.rename(compiled)
    return compiled


def remove_host() -> None:
    """Remove what this test run has compiled."""
    shutil.rmtree(_FOLDER, ignore_errors=True)


def play(script: str, folder: Path, abi: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own that writes its streams into the folder."""
    variables = {**os.environ, "COLLBENCH_RECORD_FOLDER": str(folder), **environment}
    return subprocess.run(
        [str(host()), str(PLUGIN), str(abi)], input=script, env=variables, capture_output=True, text=True, check=False
    )


def streams(folder: Path) -> list[Stream]:
    """Return all streams in a folder, parsed, and delete their files."""
    parsed = []
    for path in sorted(folder.glob("*.stream")):
        parsed.append(parse(path.read_bytes()))
        path.unlink()
    return parsed
