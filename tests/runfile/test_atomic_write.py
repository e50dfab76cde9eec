"""Files are written atomically; links stay links, and pipes and devices are never replaced by files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from collbench.model.errors import RunFileError
from collbench.runfile import atomic_write
from tests.cli.program import collbench

DOING = "write"


def stand_in(path: Path) -> Path:
    """Put a pipe in place of a device, which only root could create; neither is a regular file."""
    os.mkfifo(path)
    return path


def read_from(pipe: Path, into: list[bytes]) -> threading.Thread:
    reader = threading.Thread(target=lambda: into.append(pipe.read_bytes()), daemon=True)
    reader.start()
    return reader


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, received = stand_in(tmp_path / "pipe"), list[bytes]()
    atomic_write.check(pipe, DOING)  # which must not end the reader's file
    reader = read_from(pipe, received)
    atomic_write.write("whole", pipe, DOING)
    reader.join(10)
    assert (received, pipe.is_fifo(), list(tmp_path.iterdir())) == ([b"whole"], True, [pipe])


def test_a_full_device_is_reported_and_stays_a_device(tmp_path: Path) -> None:
    full = tmp_path / "full"  # of our own: on the machine's, a test that fails would do what it tests for
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, Path("/dev/full").stat().st_rdev)
        full.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    with pytest.raises(RunFileError, match="full: No space left on device; choose another place with --output FILE"):
        atomic_write.write("too much", full, DOING)
    assert full.is_char_device()


def test_a_link_keeps_pointing_at_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest.json").symlink_to("runs/new.json")
    for content in ("first", "second"):
        atomic_write.check(tmp_path / "latest.json", DOING, force=content == "second")
        atomic_write.write(content, tmp_path / "latest.json", DOING, force=content == "second")
        assert (tmp_path / "runs" / "new.json").read_text(encoding="utf-8") == content
    assert (tmp_path / "latest.json").is_symlink()
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / "runs" / "new.json"]


def test_without_force_a_file_that_exists_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RunFileError, match="it exists"):
        atomic_write.check(path, DOING)
    with pytest.raises(RunFileError, match="it exists"):
        atomic_write.write("new", path, DOING)
    assert path.read_text(encoding="utf-8") == "old"


def test_a_run_into_a_pipe_arrives_once_and_leaves_nothing(tmp_path: Path) -> None:
    pipe, received = stand_in(tmp_path / "pipe"), list[bytes]()
    reader = read_from(pipe, received)
    args = ("pairs", "--backend", "sim", "--fabric", "titan-rtx-nv2", "--sizes", "1M", "-o", "pipe")
    done = subprocess.run(collbench(*args), cwd=tmp_path, capture_output=True, text=True, check=False)
    reader.join(10)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(received[0])["format"] == "collbench-run"
    assert list(tmp_path.iterdir()) == [pipe]
