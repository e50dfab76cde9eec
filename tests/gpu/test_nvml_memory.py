"""NVML touches only the memory that it is given; r580's touches more if it is given no room (machine/nvml.py)."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.machine import need_gpus
from tests.native.guarded import ALL_OF_NVML, run_guarded

need_gpus(1)


def test_all_that_is_asked_of_nvml_stays_inside_its_blocks(tmp_path: Path) -> None:
    done = run_guarded(ALL_OF_NVML, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000  # blocks that were watched
