"""Saved runs are trusted if no other user can have written them; one line names those that are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.api import by_run
from collbench.choose.freshness import Here
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, list_only, save_run

STRANGER = 54321
NEWEST, OLDER = "20261122T000000Z-cuda-pairs.json", "20261121T000000Z-cuda-pairs.json"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("20261122T210053Z-sim-overlap-8b430281.json", "overlap"),
        (NEWEST, ""),
        ("mine.json", ""),
    ],
)
def test_the_name_of_a_saved_run_tells_its_command(name: str, command: str) -> None:
    assert run_file.command_of(Path(name)) == command


def link_to_another_users_file(path: Path) -> None:
    path.rename(path.parent.parent / "theirs.json")
    path.symlink_to(path.parent.parent / "theirs.json")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


# What was done to the newest file, how, and what the line says.
DOUBTFUL: list[tuple[str, Callable[[Path], object], str]] = [
    ("its group can write it", lambda path: path.chmod(0o664), "others can write it"),
    ("everybody can write it", lambda path: path.chmod(0o602), "others can write it"),
    ("it is a pipe", pipe, "a file of another kind"),
    ("it is a folder", folder, "a file of another kind"),
    ("it leads nowhere", dangling, "it cannot be examined"),
]


@pytest.fixture
def saved(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of saved runs with two of a machine of four GPUs, and that machine."""
    where = tmp_path / "state" / "collbench" / "runs"
    where.mkdir(parents=True, mode=0o700)
    for name in (OLDER, NEWEST):
        save_run(where / name, gpus(4))
    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(
        by_run, "here", lambda criteria: Here(criteria.backend, criteria.candidates, "580.159.04", "2.28.9")
    )
    monkeypatch.setattr(by_run, "probe", lambda _criteria, why, _notices: pytest.fail(f"probed: {why}"))
    (tmp_path / "train.py").touch()
    return where


def owned_by_a_stranger(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let files look like another user's; only root could really change their owner."""
    real_stat, inodes = Path.stat, {path.stat().st_ino for path in paths}

    def reported(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real_stat(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], STRANGER, *status[5:])) if status.st_ino in inodes else status

    monkeypatch.setattr(Path, "stat", reported)


@pytest.mark.parametrize(("what", "spoil", "message"), DOUBTFUL, ids=[row[0] for row in DOUBTFUL])
def test_a_doubtful_file_is_left_out_in_one_line_and_the_next_one_taken(
    program: Program, saved: Path, what: str, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(saved / NEWEST)
    result = program("train", "--backend", "cuda", "--auto-select", "2", "--dry-run", "train.py")
    assert result.status == 0, result.err
    ignored = [line for line in result.err.splitlines() if "ignoring" in line]
    assert len(ignored) == 1, what
    assert f"ignoring {saved / NEWEST}: " in ignored[0], what
    assert message in ignored[0], what
    assert OLDER in result.err, what
    assert run_file.saved_runs() == (saved / OLDER,), what


def test_another_users_file_is_ignored_linked_or_not(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_to_another_users_file(saved / OLDER)
    owned_by_a_stranger(monkeypatch, saved / NEWEST, saved.parent / "theirs.json")
    said: list[str] = []
    assert run_file.saved_runs(said.append) == ()
    assert f"{NEWEST} and 1 more: it belongs to another user (uid {STRANGER})" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_whose_owner_changed_is_ignored(saved: Path) -> None:
    os.chown(saved / NEWEST, STRANGER, -1)
    assert run_file.saved_runs() == (saved / OLDER,)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777], ids=oct)
def test_nothing_of_a_folder_that_others_can_write_is_taken(saved: Path, mode: int) -> None:
    """Sticky or not: whoever can put a file there can choose the newest."""
    saved.chmod(mode)
    said: list[str] = []
    assert run_file.saved_runs(said.append) == ()
    assert f"the saved runs in {saved}: others can write it" in said[0]
    assert "chmod 700" in said[0]


def test_another_users_folder_is_not_trusted(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned_by_a_stranger(monkeypatch, saved)
    assert run_file.saved_runs() == ()


def test_a_link_of_ones_own_to_ones_own_file_is_believed(saved: Path) -> None:
    link_to_another_users_file(saved / NEWEST)  # which the user names himself
    assert run_file.saved_runs() == (saved / NEWEST, saved / OLDER)


def test_a_named_file_is_used_even_if_others_can_write_it(program: Program, saved: Path) -> None:
    (saved / NEWEST).chmod(0o666)
    result = program("select", "2", "--no-verify", "--backend", "cuda", "--format", "list", str(saved / NEWEST))
    assert (result.status, result.out, "ignoring" in result.err) == (0, "2,3\n", False)


def test_no_folder_has_nothing_to_say(program: Program) -> None:
    assert run_file.saved_runs() == ()
