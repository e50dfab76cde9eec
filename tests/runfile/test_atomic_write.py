"""Files are written atomically; links stay links, and pipes and devices are never replaced by files."""

from __future__ import annotations

import errno
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

MESSAGE_PARTS = ("write", "--output")


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
    atomic_write.check(pipe, *MESSAGE_PARTS)  # which must not end the reader's file
    reader = read_from(pipe, received)
    atomic_write.write("whole", pipe, *MESSAGE_PARTS)
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
        atomic_write.write("too much", full, *MESSAGE_PARTS)
    assert full.is_char_device()


def test_a_link_keeps_pointing_at_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest.json").symlink_to("runs/new.json")
    for content in ("first", "second"):
        atomic_write.check(tmp_path / "latest.json", *MESSAGE_PARTS, force=content == "second")
        atomic_write.write(content, tmp_path / "latest.json", *MESSAGE_PARTS, force=content == "second")
        assert (tmp_path / "runs" / "new.json").read_text(encoding="utf-8") == content
    assert (tmp_path / "latest.json").is_symlink()
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / "runs" / "new.json"]


def test_a_run_into_a_pipe_arrives_once_and_leaves_no_journal(tmp_path: Path) -> None:
    pipe, received = stand_in(tmp_path / "pipe"), list[bytes]()
    reader = read_from(pipe, received)
    args = ("pairs", "--backend", "sim", "--fabric", "dgx-1v", "--quick", "-o", "pipe")
    done = subprocess.run(collbench(*args), cwd=tmp_path, capture_output=True, text=True, check=False)
    reader.join(10)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(received[0])["format"] == "collbench-run"
    assert list(tmp_path.iterdir()) == [pipe]


def test_the_file_is_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    path.parent.mkdir()
    for again, text in enumerate(('{"a": 1}\n', '{"b": 2}\n')):
        atomic_write.check(path, *MESSAGE_PARTS, force=bool(again))
        atomic_write.write(text, path, *MESSAGE_PARTS, force=bool(again))
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads(text)
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_reported_in_one_line_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "x.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFileError) as caught:
        atomic_write.write("new", path, *MESSAGE_PARTS, force=True)
    assert str(caught.value) == (
        f"cannot write {path}: No space left on device; choose another place with --output FILE"
    )
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("title", "path", "why"),
    [
        ("a folder", ".", "it is a folder"),
        ("below a file", "file/x.json", "a part of that path is a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_reported_before_measuring(
    title: str, path: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFileError, match=why):
        atomic_write.check(tmp_path / path, *MESSAGE_PARTS)
