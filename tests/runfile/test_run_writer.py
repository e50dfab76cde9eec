import errno
import os
import pathlib
from dataclasses import replace
from itertools import pairwise

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run, StopReason
from collbench.runfile import atomic_write, run_file
from collbench.runfile.run_file import RunWriter
from tests.builders import gpus, measured, run_of

GBS = 100.0


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def point(members: tuple[int, int], trials: int) -> Measurement:
    return replace(measured(Operation.CE_WRITE, members, GBS, trials=trials), stop=None)


def unfinished(*measurements: Measurement) -> Run:
    return replace(run_of(gpus(3), [*measurements]), complete=False)


def keep(path: pathlib.Path, trials: int) -> Run:
    """Keep a run with one trial of each of so many data points, and leave the file as a killed process does."""
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    run = unfinished(*(point(pairs[index], 1) for index in range(trials)))
    RunWriter(run, path, pytest.fail).keep()
    return run


def trials_in(path: pathlib.Path) -> int:
    return sum(len(measurement.samples) for measurement in run_file.load(path).measurements)


def test_a_killed_run_shows_what_was_written_last_as_interrupted(tmp_path: pathlib.Path) -> None:
    path, clock, run = tmp_path / "run.json", Clock(), unfinished(point((0, 1), 1))
    writer = RunWriter(run, path, pytest.fail, clock=clock)
    written = []
    for _ in range(12):
        writer.keep()
        written.append(trials_in(path))
        run.measurements[0].samples.append(run.measurements[0].samples[0])
        clock.now += 0.25
    assert written == [1] * 4 + [5] * 4 + [9] * 4, "at once, then every second"
    loaded = run_file.load(path)
    assert {m.stop for m in loaded.measurements} == {StopReason.INTERRUPTED}
    assert not loaded.complete
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_writing_takes_at_most_a_twentieth_of_the_time(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writes = Clock(), list[float]()

    def slowly(*_: object) -> None:
        writes.append(clock.now)
        clock.now += 3.0  # a run of thousands of data points, on a slow disk

    monkeypatch.setattr(atomic_write.OwnFile, "write", slowly)
    writer = RunWriter(unfinished(point((0, 1), 1)), tmp_path / "run.json", pytest.fail, clock=clock)
    while clock.now < 1200:
        writer.keep()
        clock.now += 0.5
    assert [after - before for before, after in pairwise(writes)] == [63.0] * 3


def test_the_end_writes_all_of_it(tmp_path: pathlib.Path) -> None:
    path, run = tmp_path / "run.json", unfinished(point((0, 1), 1))
    writer = RunWriter(run, path, pytest.fail)
    writer.keep()
    run.measurements.append(point((1, 0), 2))
    run.complete = True
    writer.end()
    assert trials_in(path) == 3
    assert run_file.load(path).complete


def test_a_disk_that_fills_up_meanwhile_is_reported_once_and_the_end_tries_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, clock, reported = tmp_path / "run.json", Clock(), list[str]()
    writer = RunWriter(unfinished(point((0, 1), 3)), path, reported.append, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(3):
            writer.keep()
            clock.now += 10
    assert len(reported) == 1
    assert "No space left on device; choose another place with --output FILE (measuring continues)" in reported[0]
    assert writer.failure is not None
    writer.end()
    assert writer.failure is None
    assert trials_in(path) == 3


def test_a_file_that_has_only_the_first_results_is_said_to(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the way of the next run, whose user would not know where it came from."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "run.json"
    writer = RunWriter(unfinished(point((0, 1), 3)), path, pytest.fail)
    writer.keep()
    monkeypatch.setattr(os, "fsync", full)
    writer.end()
    assert str(writer.failure).endswith(f"; {path} has only the first results")
    assert trials_in(path) == 3


def test_before_anything_is_finished_an_older_file_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("an older run", encoding="utf-8")
    RunWriter(unfinished(), path, pytest.fail, replace=True).keep()
    assert path.read_text(encoding="utf-8") == "an older run"
