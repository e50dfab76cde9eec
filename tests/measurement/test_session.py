import errno
import os
import pathlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.measurement import session
from collbench.measurement.backends.protocol import Opened, Step
from collbench.measurement.session import Session
from collbench.model.errors import BackendError, MachineError, UsageError
from collbench.model.run import Health, Machine, StopReason
from collbench.runfile import run_file
from tests.builders import ALL, paths
from tests.measurement.fakes import FakeBackend

KIB, MIB, GIB = 2**10, 2**20, 2**30


def opened(backend: FakeBackend, health: Callable[[], tuple[Health, ...]] = tuple) -> Opened:
    machine = Machine("box", "Linux", "CPU")
    return Opened(backend, machine=machine, paths=paths(len(backend.devices())), health=health, close=backend.close)


@pytest.fixture
def install_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Opened], None]:
    """Return a function that makes sessions open the given backend."""

    def install(opened_backend: Opened) -> None:
        monkeypatch.setattr(session, "open_backend", lambda *_, **__: opened_backend)

    return install


def quiet(_done: int, _total: int) -> None:
    pass


def test_a_finished_session_has_saved_what_it_holds(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    backend = FakeBackend(3)
    install_backend(opened(backend, lambda: (Health(temperature=40),) * 3))
    path = tmp_path / "run.json"
    with Session(ALL, path, pytest.fail) as measuring:
        measuring.measure(quiet)
    saved = run_file.load(path)
    assert run_file.dumps(saved) == run_file.dumps(measuring.run)
    assert saved.complete
    assert (saved.backend, saved.settings.seed, saved.settings.command) == ("cuda", 5, ALL.command)
    assert saved.settings.sizes == (8, MIB)
    assert [health.temperature for health in saved.health_before + saved.health_after] == [40] * 6
    assert backend.reserved == [MIB]
    assert backend.closed
    assert measuring.writer.failure is None


def test_devices_are_released_when_the_session_ends_not_before_the_run_is_shown(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    """Closing waits for the worker (tests/native/test_cli_on_fakes.py); what is shown meanwhile costs nothing."""
    done: list[str] = []
    backend = FakeBackend(2)
    install_backend(replace(opened(backend), close=lambda: done.append("closed")))
    with Session(ALL, tmp_path / "run.json", pytest.fail) as measuring:
        measuring.measure(quiet)
        done.append("shown")
    assert done == ["shown", "closed"]


def test_at_any_moment_the_file_is_a_whole_run(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "_PERIOD_S", 0.0)
    monkeypatch.setattr(run_file, "_TIMES_AS_LONG", 0)
    install_backend(opened(FakeBackend(2)))
    path = tmp_path / "run.json"
    trials: list[int] = []

    def check_file(done: int, _total: int) -> None:
        saved = run_file.load(path)
        assert (saved.complete, done) == (False, len(trials) + 1)
        assert {m.stop for m in saved.measurements} == {StopReason.INTERRUPTED}
        trials.append(sum(len(m.samples) for m in saved.measurements))

    with Session(ALL, path, pytest.fail) as measuring:
        measuring.measure(check_file)
    assert trials == list(range(1, len(trials) + 1))
    assert len(trials) > 20
    assert run_file.load(path).complete
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("failure", [BackendError("cuMemcpyPeerAsync failed"), KeyboardInterrupt()])
def test_what_was_measured_before_the_end_is_saved(
    failure: BaseException, install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    def on_step(number: int, _step: Step) -> None:
        if number == 40:
            raise failure

    backend = FakeBackend(2, on_step=on_step)
    install_backend(opened(backend))
    trials = 0

    def count(done: int, _total: int) -> None:
        nonlocal trials
        trials = done

    with Session(ALL, tmp_path / "run.json", pytest.fail) as measuring, pytest.raises(type(failure)):
        measuring.measure(count)
    saved = run_file.load(tmp_path / "run.json")
    assert not saved.complete
    assert sum(len(measurement.samples) for measurement in saved.measurements) == trials > 0
    assert StopReason.INTERRUPTED in {measurement.stop for measurement in saved.measurements}
    assert backend.closed


def test_nothing_measured_leaves_no_file(install_backend: Callable[[Opened], None], tmp_path: pathlib.Path) -> None:
    def fail(_number: int, _step: Step) -> None:
        raise BackendError("no GPU answers")

    install_backend(opened(FakeBackend(2, on_step=fail)))
    with Session(ALL, tmp_path / "run.json", pytest.fail) as measuring, pytest.raises(BackendError):
        measuring.measure(quiet)
    assert list(tmp_path.iterdir()) == []


def test_health_that_cannot_be_read_any_more_hides_neither_the_cause_nor_the_run(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    gpu_lost = False

    def health() -> tuple[Health, ...]:
        if gpu_lost:
            raise MachineError("NVML: GPU is lost")
        return (Health(temperature=40),) * 2

    def on_step(number: int, _step: Step) -> None:
        nonlocal gpu_lost
        if number == 40:
            gpu_lost = True
            raise BackendError("GPU1 fell off the bus")

    install_backend(opened(FakeBackend(2, on_step=on_step), health))
    with (
        Session(ALL, tmp_path / "run.json", pytest.fail) as measuring,
        pytest.raises(BackendError, match="fell off the bus"),
    ):
        measuring.measure(quiet)
    assert run_file.load(tmp_path / "run.json").health_after == ()


def test_a_full_disk_is_reported_once_and_measuring_goes_on(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    install_backend(opened(FakeBackend(2)))
    path, reported = tmp_path / "run.json", list[str]()
    path.write_text("an older run", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    with Session(replace(ALL, force=True), path, reported.append) as measuring:
        measuring.measure(quiet)
    assert measuring.run.complete
    assert len(reported) == 1
    assert "No space left on device" in reported[0]
    assert "measuring continues" in reported[0]
    assert measuring.writer.failure is not None
    assert path.read_text(encoding="utf-8") == "an older run"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_the_same_seed_measures_in_the_same_order(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    orders = []
    for seed in (5, 5, 6):
        backend = FakeBackend(4)
        install_backend(opened(backend))
        with Session(replace(ALL, seed=seed, force=True), tmp_path / "run.json", pytest.fail) as measuring:
            measuring.measure(quiet)
        orders.append(backend.steps)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_what_cannot_be_measured_at_all_is_refused(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path
) -> None:
    backend = FakeBackend(2)
    backend.capacity = 512 * MIB
    install_backend(opened(backend))
    with pytest.raises(UsageError, match="size 1G does not fit: the fullest device has room for messages of 512 MiB"):
        Session(replace(ALL, sizes=(GIB,)), tmp_path / "run.json", pytest.fail)
    assert backend.closed
    assert list(tmp_path.iterdir()) == []


def test_no_other_variable_is_kept(
    install_backend: Callable[[Opened], None], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    install_backend(opened(FakeBackend(2)))
    with Session(ALL, tmp_path / "run.json", pytest.fail) as measuring:
        measuring.measure(quiet)
    assert "hush" not in (tmp_path / "run.json").read_text(encoding="utf-8")
