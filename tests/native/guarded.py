"""Run a Python script under guard.c: from guard_on() on, every memory block that it allocates is watched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).parent / "guard.c"
# A script calls this after its imports, which would allocate more blocks than can be watched.
ON = "import ctypes; guard = ctypes.CDLL(None); guard.guard_on()\n"

# Reads everything that collbench reads of GPUs, and prints how many blocks were watched.
ALL_OF_NVML = f"""
import pynvml
from collbench.machine.nvml import Nvml
{ON}
for _ in range(3):
    with Nvml() as nvml:
        devices = nvml.devices()
        nvml.paths(devices), nvml.driver_version(), nvml.cuda_version(), nvml.virtualization()
        for device in devices * 3:
            nvml.health(device), nvml.glance(device), nvml.memory_used(device), nvml.in_mig_mode(device)
print(guard.guard_count())
"""


def run_guarded(script: str, tmp_path: Path, extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script under the guard. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("needs a C compiler")
    library = tmp_path / "guard.so"
    flags = ["-O1", "-g", "-shared", "-fPIC", "-fno-builtin"]
    subprocess.run([compiler, *flags, "-o", str(library), str(GUARD)], check=True)
    preload = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    # malloc: Python's own allocator would put small blocks side by side.
    environment = os.environ | {"LD_PRELOAD": preload, "PYTHONMALLOC": "malloc", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment | (extra or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
