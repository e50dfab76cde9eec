"""A host that stands in for NCCL and drives the profiler plugin, compiled once a session, and scripts for it."""

from __future__ import annotations

import atexit
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
    folder = Path(tempfile.mkdtemp(prefix="collbench-recorded-host-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-pthread", "-w", "-rdynamic", str(_SOURCE)]
    subprocess.run([*command, "-o", str(folder / "host"), "-ldl"], check=True)
    return folder / "host"


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
