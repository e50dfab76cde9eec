"""Without a writable home only the file is lost: the run is measured, printed, and one line says how to keep it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from collbench.api import by_run
from collbench.runfile import run_file
from tests.builders import gpus, pair_run
from tests.cli.program import Program, collbench, list_only

SIM = "--backend sim --fabric nvlink-pairs-2x2 --quick"
# What no user, root neither, can make a folder in.
NOWHERE = {"below a file": "/dev/null/state", "below what the kernel has": "/proc/state"}


@pytest.mark.parametrize("state", NOWHERE.values(), ids=NOWHERE)
@pytest.mark.parametrize("args", [f"pairs {SIM} --sizes 1M", f"latency {SIM}"], ids=lambda args: args.split()[0])
def test_it_is_measured_printed_and_one_line_says_how_to_keep_it(
    program: Program, monkeypatch: pytest.MonkeyPatch, args: str, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    result = program(*args.split())
    assert result.status == 0
    assert "SIMULATED" in result.out
    assert result.out.endswith("\nsaved     nowhere: no file could be made for it\n")
    assert "will not be saved" in result.line
    assert "XDG_STATE_HOME" in result.line
    assert "--output FILE" in result.line
    assert list(Path().iterdir()) == []


def test_without_any_home_it_is_the_same(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_STATE_HOME")}
    bare["HOME"] = "/proc/nobody"
    command = collbench(*f"pairs {SIM} --sizes 1M".split())
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "XDG_STATE_HOME" in done.stderr


def test_a_named_file_that_cannot_be_written_is_still_refused(program: Program) -> None:
    result = program(*f"pairs {SIM} -o /dev/null/run.json".split())
    assert (result.status, result.out) == (2, "")


class _FullDisk:
    """A file on a full disk: it can be created, but not written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("output", "status"), [("", 0), ("-o run.json", 2)])
def test_a_disk_that_is_full_before_the_start_is_reported_before_the_start(
    program: Program, monkeypatch: pytest.MonkeyPatch, output: str, status: int
) -> None:
    real = os.fdopen

    def fdopen(number: int, *args: Any, **more: Any) -> Any:
        if ".part" not in os.readlink(f"/proc/self/fd/{number}"):  # noqa: PTH115
            return real(number, *args, **more)
        os.close(number)
        return _FullDisk()

    monkeypatch.setattr(os, "fdopen", fdopen)
    result = program(*f"pairs {SIM} --sizes 1M {output}".split())
    assert (result.status, bool(result.out)) == (status, status == 0)
    assert "No space left on device" in result.line
    assert not list(Path().glob("run.json*"))


def test_select_chooses_all_the_same_and_advises_no_option_that_it_lacks(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probed: list[Path | None] = []

    def measured(_request: object, path: Path | None, *_: object) -> SimpleNamespace:
        probed.append(path)
        run = pair_run(4, lambda a, b: 300.0 if (a, b) == (2, 3) else 200.0)
        return SimpleNamespace(run=run, path=path, failure=None)

    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(by_run, "here", lambda *_: None)
    monkeypatch.setattr(by_run, "measure", measured)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = program("select", "2", "--backend", "cuda", "--no-verify", "--format", "list")
    assert (result.status, result.out) == (0, "2,3\n"), result.err
    warned = [line for line in result.err.splitlines() if "will not be saved" in line]
    assert len(warned) == 1
    assert "XDG_STATE_HOME" in warned[0]
    assert "--output" not in warned[0]
    assert probed == [None]


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_what_is_kept_only_this_user_can_write(program: Program, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert program(*f"allreduce {SIM} --sizes 1M".split()).status == 0
        assert program(*f"allreduce {SIM} --sizes 1M --output named.json".split()).status == 0
    finally:
        os.umask(before)
    folder = run_file.state_folder(run_file.RUNS)
    (run,) = folder.iterdir()
    for created in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(created.stat().st_mode) == 0o700
    for file in (run, tmp_path / "named.json"):
        assert stat.S_IMODE(file.stat().st_mode) & (0o022 | umask) == 0
    assert run_file.saved_runs() == (run,)
