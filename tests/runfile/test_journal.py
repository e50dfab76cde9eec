import errno
import os
import pathlib
from dataclasses import replace

import pytest

from collbench.model.failures import Cause, Failure, FailureKind, died
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run, StopReason
from collbench.runfile import run_file
from collbench.runfile.journal import Journal, journal_of
from collbench.runfile.run_file import RunWriter
from tests.builders import gpus, in_words, measured, run_of, shared

GBS = 100.0


def point(members: tuple[int, int], trials: int, failure: Failure | None = None) -> Measurement:
    measurement = measured(Operation.CE_WRITE, members, GBS, trials=trials)
    measurement.stop, measurement.failure = (StopReason.FAILED if failure else None), failure
    return measurement


def growing(trials: int) -> tuple[Run, list[tuple[Measurement, int]]]:
    """Return an unfinished run, and the trials that three of its points get in turn: a point and its samples so far."""
    points = [point((0, 1), 0), point((1, 0), 0), point((0, 2), 0)]
    run = replace(run_of(gpus(3), []), complete=False)
    return run, [(points[n % 3], n // 3 + 1) for n in range(trials)]


def keep(path: pathlib.Path, trials: int) -> Run:
    """Keep a run as far as it came, and leave the files as a killed process does."""
    run, order = growing(trials)
    writer = RunWriter(run, path, pytest.fail)
    for measurement, count in order:
        measurement.samples[:] = measured(Operation.CE_WRITE, (0, 1), range(1, count + 1)).samples
        if measurement not in run.measurements:
            run.measurements.append(measurement)
        writer.finished(measurement)
    return run


def rates(run: Run) -> dict[tuple[int, ...], list[float]]:
    by_point = {
        m.point: [m.point.size_bytes / sample.seconds[0] / 1e9 for sample in m.samples] for m in run.measurements
    }
    return {point.members: [round(rate) for rate in rates] for point, rates in by_point.items()}


def test_a_killed_run_shows_every_finished_trial_as_interrupted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    keep(path, 8)
    loaded = run_file.load(path)
    assert rates(loaded) == {(0, 1): [1, 2, 3], (1, 0): [1, 2, 3], (0, 2): [1, 2]}
    assert {m.stop for m in loaded.measurements} == {StopReason.INTERRUPTED}
    assert not loaded.complete
    assert len(path.read_text(encoding="utf-8").splitlines()) < len(run_file.dumps(loaded).splitlines())


@pytest.mark.parametrize("cut", [1, 2, 20, 100])
def test_a_torn_last_line_costs_only_its_trial(cut: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    keep(path, 8)
    journal = journal_of(path)
    journal.write_bytes(journal.read_bytes()[: -cut - 1])
    expected = {(0, 1): [1, 2, 3], (1, 0): [1, 2], (0, 2): [1, 2]}
    assert rates(run_file.load(path)) == expected


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("an empty one", ""),
        ("another program's", "hello\nworld\n"),
        ("one that is all numbers", "1\n2\n"),
        ("one of another file", '{"format": "collbench-journal", "continues": "0"}\n{"point": {}}\n'),
    ],
)
def test_a_journal_that_does_not_belong_to_the_file_means_nothing(what: str, text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    run_file.save(keep(tmp_path / "other.json", 2), path)
    journal_of(path).write_text(text, encoding="utf-8")
    assert rates(run_file.load(path)) == {(0, 1): [1], (1, 0): [1]}, what


def test_a_process_killed_between_the_last_save_and_the_journals_end_counts_nothing_twice(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "run.json"
    run = keep(path, 5)
    run_file.save(run, path, replace=True)
    assert journal_of(path).exists()
    assert rates(run_file.load(path)) == {(0, 1): [1, 2], (1, 0): [1, 2], (0, 2): [1]}


def test_a_point_that_was_given_up_keeps_its_trials_and_its_reason(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    run = keep(path, 4)
    text = run_file.save(run, path, replace=True)
    hang = Failure(FailureKind.HANG, Cause.NO_ANSWER, (1,), seconds=5.0, because=in_words("the first"))
    crash = died(-9, "café", (0,))
    journal = Journal(path, text)
    journal.add(point((0, 1), 2, failure=hang))
    journal.add(point((2, 1), 0, failure=crash))
    journal.close()
    measured_points = {m.point.members: m for m in run_file.load(path).measurements}
    assert [(len(measured_points[pair].samples), measured_points[pair].failure) for pair in ((0, 1), (2, 1))] == [
        (2, hang),
        (0, crash),
    ]
    assert measured_points[0, 1].stop is StopReason.FAILED


def test_a_point_that_failed_and_then_did_not_is_no_failure(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    run = run_of(gpus(2), [point((0, 1), 1, failure=in_words("hang"))])
    journal = Journal(path, run_file.save(replace(run, complete=False), path))
    journal.add(point((0, 1), 2))
    journal.close()
    (measurement,) = run_file.load(path).measurements
    assert (len(measurement.samples), measurement.failure, measurement.stop) == (2, None, StopReason.INTERRUPTED)


def test_an_end_leaves_one_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    run = replace(run_of(gpus(2), [point((0, 1), 1)]), complete=False)
    writer = RunWriter(run, path, pytest.fail)
    writer.finished(run.measurements[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.json", "run.json.journal"]
    run.complete = True
    writer.end()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert run_file.load(path).complete


def test_a_disk_that_fills_up_while_journalling_is_reported_once_and_the_end_tries_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reported: list[str] = []
    path = tmp_path / "run.json"
    run = replace(run_of(gpus(2), [point((0, 1), 3)]), complete=False)
    writer = RunWriter(run, path, reported.append)
    writer.finished(run.measurements[0])
    monkeypatch.setattr(Journal, "add", full)
    for _ in range(3):
        writer.finished(run.measurements[0])
    assert len(reported) == 1
    assert "No space left on device; choose another place with --output FILE (measuring continues)" in reported[0]
    assert writer.failure is not None
    writer.end()
    assert writer.failure is None
    assert len(run_file.load(path).measurements[0].samples) == 3


def test_before_anything_is_finished_an_older_file_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("an older run", encoding="utf-8")
    RunWriter(run_of(gpus(2), []), path, pytest.fail)
    assert path.read_text(encoding="utf-8") == "an older run"


def test_flags_of_trials_come_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    run = replace(run_of(gpus(2), []), complete=False)
    journal = Journal(path, run_file.save(run, path))
    measured_points = point((0, 1), 1)
    measured_points.samples[0] = replace(measured_points.samples[0], flags=(shared(1, 2),))
    journal.add(measured_points)
    journal.close()
    assert run_file.load(path).measurements[0].samples[0].flags == (shared(1, 2),)
