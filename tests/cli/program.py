"""Runs `collbench` in this process where no device is used, else on simulated GPUs, and reads its output."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collbench.cli import main
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.run import Device, Health, Run
from collbench.runfile import run_file
from tests.builders import gpus, pair_run
from tests.native.fakes import Fakes, Outcome

_MIB = 2**20
# What torchrun sets for the first of two processes.
RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
RANK_0 |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@dataclass(frozen=True)
class Result:
    """The exit status and the two output streams of one call."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on stderr; fails the test if there are more."""
        return one_line(self.err)


class Program:
    """`collbench` in this process, entered as its installed script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *args: str) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["collbench", *args])
        status = main()
        out, err = self._capsys.readouterr()
        return Result(status, out, err)


def one_line(stderr: str) -> str:
    """Return the only line of `stderr` without its prefix; fails the test if there is more, or no prefix."""
    assert stderr.startswith("collbench: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.endswith("\n"), stderr
    return stderr.removeprefix("collbench: ").rstrip("\n")


def collbench(*args: str) -> list[str]:
    """Return the command that starts the program in another process."""
    return [sys.executable, "-m", "collbench", *args]


def environment(fakes: Fakes) -> dict[str, str]:
    """Return the environment of one test's processes: the simulated NCCL, and the folder of saved runs."""
    return {"COLLBENCH_NCCL": str(fakes.nccl), "XDG_STATE_HOME": str(fakes.place / "state"), "NO_COLOR": "1"}


def on_gpus(fakes: Fakes, args: Sequence[str], extra: dict[str, str] | None = None, /, **settings: object) -> Outcome:
    """Run the program on simulated GPUs with so little free memory that its buffers are small and the test quick."""
    count = int(str(settings.get("gpus", 4)))
    # CUDA's and NCCL's own needs (256 MiB, and 512 MiB a communicator's GPU), and 2 MiB for three buffers.
    plan = {"memory": 4096 * _MIB, "free": (256 + 512 * count + 2) * _MIB} | settings
    return fakes.run(collbench(*args), environment(fakes) | (extra or {}), **plan)


def fake_uuid(index: int) -> str:
    """Return the UUID of one simulated GPU."""
    return f"GPU-fa4e{index:02x}00-0000-0000-0000-{index:012x}"


def fake_gpus(count: int = 4) -> tuple[Device, ...]:
    """Return the simulated GPUs as a run names them."""
    return tuple(replace(gpu, uuid=fake_uuid(gpu.index)) for gpu in gpus(count))


def list_only(monkeypatch: pytest.MonkeyPatch, devices: Sequence[Device], **facts: Any) -> None:
    """Let this process find GPUs that are listed and healthy but cannot be used; `facts` are fields of `Present`."""
    every = (*devices, *facts.get("hidden", ()), *facts.get("mig", ()))
    states = {device.uuid: Health(processes=0) for device in every}
    cuda = Present("cuda", tuple(devices), driver="580.159.04", states=states)
    monkeypatch.setattr(factory, "look", lambda *_: replace(cuda, **facts))
    monkeypatch.setattr(factory, "present_devices", lambda name, *_: tuple(devices) if name == "cuda" else ())


def save_run(path: Path, devices: Sequence[Device], age: timedelta = timedelta(hours=1), **changes: object) -> Run:
    """Save a run of this age in which pair 0-1 is the slowest and 2-3 the fastest; return it."""
    rates = {(0, 1): 10.0, (2, 3): 300.0}
    run = pair_run(len(devices), lambda a, b: rates.get((a, b), 200.0))
    started = (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = replace(run, **{"devices": tuple(devices), "started": started} | changes)  # type: ignore[arg-type]
    run_file.save(run, path, replace=True)
    return run


_BEGAN = datetime.now(UTC)


def saved_in(folder: Path, name: str = "", age: timedelta = timedelta(hours=1)) -> Path:
    """Return where a test's processes find a saved run, by default under the name that one of this age gets."""
    stamped = f"{_BEGAN - age:%Y%m%dT%H%M%SZ}-cuda-pairs.json"
    return folder / "state" / "collbench" / "runs" / (name or stamped)


def has_library(name: str) -> bool:
    """Return whether this machine's loader finds a library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def without_nccl(fakes: Fakes, folder: Path) -> Path:
    """Return a folder with the simulated libraries but no NCCL, where Python does not find NCCL's wheel either."""
    folder.mkdir()
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(fakes.folder / library, folder)
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'nvidia':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    return folder
