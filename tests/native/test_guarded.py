"""The guard that tests/gpu puts around NVML sees what it is for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.native.fakes import Fakes
from tests.native.guarded import ALL_OF_NVML, ON, run_guarded

BLOCK = "import ctypes\n" + ON + "block = (ctypes.c_char * 1437)(); at = ctypes.addressof(block)\n"


@pytest.mark.parametrize(
    ("title", "then", "ends"),
    [
        ("inside", "ctypes.memset(at, 1, 1437); del block", 0),
        ("a byte behind, in the padding", "ctypes.memset(at, 1, 1438); del block", -signal.SIGABRT),
        ("an entry behind", "ctypes.memset(at, 1, 1477)", -signal.SIGSEGV),
        ("read behind", "ctypes.string_at(at + 1440, 8)", -signal.SIGSEGV),
        ("after it was freed", "del block; ctypes.memset(at, 1, 8)", -signal.SIGSEGV),
    ],
)
def test_access_outside_allocated_memory_is_stopped(tmp_path: Path, title: str, then: str, ends: int) -> None:
    done = run_guarded(BLOCK + then, tmp_path)
    assert done.returncode == ends, title


def test_a_fake_nvml_that_writes_beyond_its_fields_stays_inside_its_buffer(fakes: Fakes, tmp_path: Path) -> None:
    done = run_guarded(ALL_OF_NVML, tmp_path, fakes.environment(gpus=2))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
