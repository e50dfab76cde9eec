"""What every test shares: properties that find the same examples on every run and watch no clock; simulated GPUs."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest
from hypothesis import settings

from tests.native.fakes import Fakes, build

settings.register_profile("collbench", derandomize=True, deadline=None)
settings.load_profile("collbench")

# A test run in the background (nohup, some CI runners) has SIGINT or SIGHUP ignored, and so would every program that it
# starts: the tests of Ctrl-C and of a closed terminal would wait for ever. What is not ignored here, is not there.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """Simulated GPUs that have everything: compiled once for all processes that pytest-xdist starts."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fakes"
    with (folder.parent / "fakes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():  # renamed when it is whole: where compiling fails, it fails in each process
            build(folder.with_suffix(".part")).folder.rename(folder)
    return Fakes(folder)
