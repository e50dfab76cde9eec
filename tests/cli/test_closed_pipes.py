"""Neither a closed reader (`| head -1`: pipes here have none) nor a full disk hides a command's exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.operations import Operation
from collbench.runfile import run_file
from collbench.sim import fabrics as fabric_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.cli.program import Program, collbench
from tests.judge.checked import failed, h200
from tests.sim.made import fabric_text

FAULTS = {
    "well": (),
    "hangs": (Fault(FaultKind.HANGING_LINK, (2, 3)),),
}
SIM = ("--backend", "sim", "--seed", "3", "--output", "new.json", "--fabric")


def without_reader(monkeypatch: pytest.MonkeyPatch, *streams: str) -> None:
    """Replace these streams by pipes whose reader has closed them."""
    for name in streams:
        read, write = os.pipe()
        os.close(read)
        monkeypatch.setattr(sys, name, os.fdopen(write, "w", encoding="utf-8"))


@pytest.fixture(scope="module")
def saved_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of machine files, and of the run of a machine that fails."""
    folder = tmp_path_factory.mktemp("made")
    for name, faults in FAULTS.items():
        fabric = replace(fabric_file.load("nvlink-pairs-2x2"), faults=faults)
        (folder / f"{name}.machine").write_text(fabric_text(fabric), encoding="utf-8")
    run_file.save(failed(h200(), Operation.CE_WRITE, (2, 3), "words"), folder / "bad.json")
    return folder


@pytest.fixture
def files(saved_files: Path, tmp_path: Path) -> None:
    """Put a copy of them into the test's folder."""
    shutil.copytree(saved_files, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("pairs", "--sizes", "1M", *SIM, "hangs.machine"), 4),
        (("pairs", "--sizes", "1M", *SIM, "well.machine"), 0),
        (("check", "bad.json"), 4),
        (("select", "4", "bad.json", "--any-machine", "--format", "env"), 4),
        (("show", "bad.json"), 0),
        (("export", "bad.json", "--format", "csv"), 0),
        (("show", "none.json"), 2),
        (("--help",), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.usefixtures("files")
def test_the_exit_status_does_not_depend_on_the_closed_pipe(
    program: Program, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], status: int
) -> None:
    without_reader(monkeypatch, "stdout", "stderr")  # below: a process without stdout only
    assert program(*args).status == status


@pytest.mark.usefixtures("files")
def test_a_process_with_closed_streams_measures_saves_and_exits_normally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read, write = os.pipe()
    os.close(read)
    command = collbench("pairs", "--sizes", "1M", *SIM, "hangs.machine")
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        silent = subprocess.run([*command, "--force"], stdout=write, stderr=write, check=False)
    finally:
        os.close(write)
    assert (done.returncode, silent.returncode) == (4, 4)
    assert "Traceback" not in done.stderr
    assert "FAILED: GPU2-GPU3" in done.stderr
    assert run_file.load(Path("new.json")).complete


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("check", "bad.json"), 4),
        (("pairs", *SIM, "hangs.machine", "--quick"), 4),
        (("check", *SIM, "hgx-h200"), 1),
    ],
)
@pytest.mark.usefixtures("files")
def test_a_full_disk_hides_no_higher_status(tmp_path: Path, args: tuple[str, ...], status: int) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            collbench(*args), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == status
    assert "collbench: cannot write the output: No space left on device: " in done.stderr
    if args[0] == "check" and SIM[0] in args:
        assert "the run is saved: 'collbench show " in done.stderr
