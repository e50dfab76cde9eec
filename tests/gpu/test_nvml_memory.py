"""NVML touches no memory but what it is given: r580's does, where it is given no room (machine/query.py)."""

from __future__ import annotations

from pathlib import Path

from tests.native.guarded import ON, run_guarded

SCRIPT = f"""
from collbench.machine.nvml import Nvml
import pynvml
{ON}
for _ in range(3):
    with Nvml() as nvml:
        found = nvml.devices()
        nvml.paths(found), nvml.driver_version(), nvml.cuda_version(), nvml.virtualization()
        for device in found * 3:
            state = nvml.health(device)
            nvml.glance(device), nvml.memory_used(device), nvml.in_mig_mode(device)
print(guard.guard_count(), state.nvlink_errors)
"""


def test_all_that_is_asked_of_nvml_stays_inside_its_blocks(tmp_path: Path) -> None:
    done = run_guarded(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1000
