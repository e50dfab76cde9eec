"""Run files that cannot be read or written, and pages that cannot: one clear line, and nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, collbench, environment, save_run
from tests.native.fakes import Fakes


@pytest.mark.parametrize(
    ("case", "target", "text"),
    [
        ("in a missing folder", "missing/below/run.json", "folder missing/below does not exist; make it"),
        ("on a full device", "/dev/full", "No space left on device"),
        pytest.param(
            *("in a folder without permission", "locked/run.json", "Permission denied"),
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere"),
        ),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_measuring(
    program: Program, tmp_path: Path, case: str, target: str, text: str
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "locked").mkdir(mode=0o500)
    result = program("pairs", "--backend", "host", "--sizes", "8", "-o", target)
    assert (result.status, result.out) == (2, "")
    assert f"cannot save the run as {target}: " in result.line
    assert text in result.line
    assert "--output FILE" in result.line
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("command", ["report {run} -o /dev/full", "export {run} --format csv -o /dev/full"])
def test_a_full_device_is_named_as_full(program: Program, tmp_path: Path, command: str) -> None:
    save_run(tmp_path / "run.json", gpus(2))
    result = program(*command.format(run=tmp_path / "run.json").split())
    assert (result.status, result.out) == (2, "")
    assert "/dev/full: No space left on device" in result.line


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4k none /mnt"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="this user may not mount a small disk of its own (unshare -m)")
def test_a_full_disk_loses_no_results(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = collbench("allreduce", "--backend", "cuda", "--sizes", "1K", "--output", "disk/run.json")
    small = 'mount -t tmpfs -o size=4k none disk && exec "$@"'
    done = fakes.run(
        ["unshare", "-m", "sh", "-c", small, "sh", *command], environment(fakes), memory=2**32, free=2306 * 2**20
    )
    assert done.code == 2
    assert "allreduce over GPU0, GPU1, GPU2, GPU3" in done.stdout
    assert "saved" not in done.stdout
    why = "No space left on device; choose another place with --output FILE"
    full = f"collbench: cannot save the run as disk/run.json: {why}"
    assert done.stderr.splitlines()[-1] == full
    assert all(line.startswith(full) for line in done.stderr.splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", [("show", "run.json"), ("--help",)])
def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, args: tuple[str, ...]) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            collbench(*args), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "collbench: cannot write the output: No space left on device: send it to another place\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_page_that_cannot_be_written_says_where_its_run_is(fakes: Fakes, tmp_path: Path) -> None:
    command = collbench("allreduce", "--backend", "cuda", "--quick", "--sizes", "1K", "--output", "run.json")
    done = fakes.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", *command], environment(fakes), memory=2**32, free=2306 * 2**20
    )
    assert done.code == 1
    why = "No space left on device: the run is saved: 'collbench show run.json' prints it"
    assert done.stderr == f"collbench: cannot write the output: {why}\n"
    assert run_file.load(tmp_path / "run.json").complete


@pytest.mark.parametrize(
    ("closed", "file", "status"),
    [
        ("<&- >&- 2>&-", "run.json", 0),
        ("2>&-", "none.json", 2),
    ],
)
@pytest.mark.usefixtures("own_program")
def test_a_closed_stream_is_as_good_as_dev_null(tmp_path: Path, closed: str, file: str, status: int) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *collbench("show", file)]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stdout + done.stderr
