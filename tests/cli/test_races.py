"""Processes that save at the same moment: every run is kept, whatever its name, the clock or the order."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.errors import RunFileError
from collbench.model.run import Run
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter
from tests.builders import pair_run
from tests.cli.program import collbench

COUNT = 3
ALLREDUCE = ("allreduce", "--backend", "sim", "--fabric", "nvlink-pairs-2x2", "--quick", "--sizes", "8", "--seed")
# Every process has the same time, so that names made of it are alike.
STOPPED_CLOCK = """
import datetime
class Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 11, 22, 10, 11, 12, tzinfo=tz)
datetime.datetime = Stopped
"""


def at_once(folder: Path, *args: str) -> list[tuple[int, str]]:
    """Start three runs, seeds 0 to 2, on one clock; return their exit statuses and stderr."""
    (folder / "sitecustomize.py").write_text(STOPPED_CLOCK)
    environment = os.environ | {"PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    started = [
        subprocess.Popen(
            collbench(*ALLREDUCE, str(seed), *args),
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(COUNT)
    ]
    outputs = [process.communicate()[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, outputs, strict=True)]


def seeds(folder: Path) -> list[int]:
    return sorted(run_file.load(path).settings.seed for path in folder.glob("*.json"))


def test_runs_of_the_same_second_leave_a_file_each(tmp_path: Path) -> None:
    assert at_once(tmp_path) == [(0, "")] * COUNT
    assert seeds(tmp_path / "state" / "collbench" / "runs") == list(range(COUNT))


def test_runs_into_one_name_are_all_there_or_were_refused_before(tmp_path: Path) -> None:
    ended = at_once(tmp_path, "--output", "run.json")
    kept = [seed for seed, (status, _) in enumerate(ended) if status == 0]
    assert seeds(tmp_path) == kept
    assert len(kept) >= 1
    for status, message in ended:
        if status:
            assert (status, message.count("\n")) == (2, 1)
            assert "run.json: it exists" in message


def unfinished(seed: int) -> Run:
    run = pair_run(3, lambda a, b: 100.0 + a + b)
    return replace(run, complete=False, settings=replace(run.settings, seed=seed))


def test_of_two_simultaneous_runs_the_second_saves_beside_the_first(tmp_path: Path) -> None:
    """Neither replaces the other's file, in any order of saving and ending."""
    path, reported = tmp_path / "run.json", list[str]()
    first, second = RunWriter(unfinished(1), path, pytest.fail), RunWriter(unfinished(2), path, reported.append)
    first.keep()
    second.keep()
    assert second.path is not None
    assert (first.path, second.path != path) == (path, True)
    assert [line for line in reported if str(second.path) in line and str(path) in line] == reported
    assert len(reported) == 1
    assert sorted(tmp_path.iterdir()) == sorted([path, second.path])
    second.end()
    first.end()
    assert [run_file.load(saved).settings.seed for saved in (path, second.path)] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_where_force_replaces_a_run_that_is_being_measured_both_are_kept(tmp_path: Path) -> None:
    path, reported = tmp_path / "run.json", list[str]()
    first = RunWriter(unfinished(1), path, reported.append)
    first.keep()
    second = RunWriter(unfinished(2), path, pytest.fail, replace=True)
    second.keep()
    first.end()
    second.end()
    assert first.path is not None
    assert [run_file.load(saved).settings.seed for saved in (first.path, path)] == [1, 2]
    assert len(reported) == 1


def test_a_file_that_came_while_measuring_is_not_replaced_at_the_end(tmp_path: Path) -> None:
    path, reported = tmp_path / "run.json", list[str]()
    writer = RunWriter(unfinished(1), path, reported.append)
    writer.keep()
    path.unlink()
    path.write_text("mine now")
    writer.end()
    assert path.read_text() == "mine now"
    assert writer.path is not None
    assert run_file.load(writer.path).settings.seed == 1
    assert len(reported) == 1
    assert sorted(tmp_path.iterdir()) == sorted([path, writer.path])


def test_where_there_are_no_hard_links_the_first_still_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_self: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")  # as vfat and some FUSE file systems have it

    monkeypatch.setattr(Path, "hardlink_to", unsupported)
    run_file.save(unfinished(1), tmp_path / "run.json")
    with pytest.raises(RunFileError, match="it exists"):
        run_file.save(unfinished(2), tmp_path / "run.json")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert seeds(tmp_path) == [1]
