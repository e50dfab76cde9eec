import pathlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from collbench.api import Notices
from collbench.api.measuring import RequestSession
from collbench.measurement.backends import factory
from collbench.measurement.backends.protocol import Opened, Step
from collbench.measurement.plan import Request
from collbench.model.errors import BackendError, MachineError, UsageError
from collbench.model.run import Health, Machine, StopReason
from collbench.runfile import run_file
from tests.builders import ALL, paths
from tests.measurement.fakes import FakeBackend

MIB, GIB = 2**20, 2**30
Begin = Callable[..., RequestSession]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Begin:
    """Return what begins a session on a backend; its run goes to run.json, and what it reports fails the test."""

    def session_on(
        backend: FakeBackend,
        request: Request = ALL,
        report: Callable[[str], None] = pytest.fail,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        **more: Any,
    ) -> RequestSession:
        parts: dict[str, Any] = {"paths": paths(len(backend.devices())), "health": tuple, "close": backend.close}
        opened = Opened(backend, machine=Machine("box", "Linux", "CPU"), **parts | more)
        monkeypatch.setattr(factory, "open_backend", lambda *_, **__: opened)
        notices = Notices(say=report, progress=lambda _title: nullcontext(progress))
        return RequestSession(request, tmp_path / "run.json", notices, "measuring")

    return session_on


def test_a_finished_session_has_saved_what_it_holds(begin: Begin, tmp_path: pathlib.Path) -> None:
    backend = FakeBackend(3)
    with begin(backend, health=lambda: (Health(temperature=40),) * 3) as measuring:
        measuring.measure()
    saved = run_file.load(tmp_path / "run.json")
    assert run_file.dumps(saved) == run_file.dumps(measuring.run)
    assert saved.complete
    assert (saved.backend, saved.settings.seed, saved.settings.command) == ("cuda", 5, ALL.command)
    assert saved.settings.sizes == (8, MIB)
    assert [health.temperature for health in saved.health_before + saved.health_after] == [40] * 6
    assert backend.reserved == [MIB]
    assert backend.closed
    assert measuring.failure is None


def test_devices_are_released_when_the_session_ends_not_before_the_run_is_shown(
    begin: Begin,
) -> None:
    """Closing waits for the worker (tests/native/test_cli_on_fakes.py); what is shown meanwhile costs nothing."""
    done: list[str] = []
    with begin(FakeBackend(2), close=lambda: done.append("closed")) as measuring:
        measuring.measure()
        done.append("shown")
    assert done == ["shown", "closed"]


def test_at_any_moment_the_file_is_a_whole_run(
    begin: Begin, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "_PERIOD_S", 0.0)
    monkeypatch.setattr(run_file, "_TIMES_AS_LONG", 0)
    path, trials = tmp_path / "run.json", list[int]()

    def check_file(done: int, _total: int) -> None:
        saved = run_file.load(path)
        assert (saved.complete, done) == (False, len(trials) + 1)
        assert {m.stop for m in saved.measurements} == {StopReason.INTERRUPTED}
        trials.append(sum(len(m.samples) for m in saved.measurements))

    with begin(FakeBackend(2), progress=check_file) as measuring:
        measuring.measure()
    assert trials == list(range(1, len(trials) + 1))
    assert len(trials) > 20
    assert run_file.load(path).complete
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("failure", [BackendError("cuMemcpyPeerAsync failed"), KeyboardInterrupt()])
def test_what_was_measured_before_the_end_is_saved(
    failure: BaseException, begin: Begin, tmp_path: pathlib.Path
) -> None:
    def on_step(number: int, _step: Step) -> None:
        if number == 40:
            raise failure

    backend = FakeBackend(2, on_step=on_step)
    trials = 0

    def count(done: int, _total: int) -> None:
        nonlocal trials
        trials = done

    with begin(backend, progress=count) as measuring, pytest.raises(type(failure)):
        measuring.measure()
    saved = run_file.load(tmp_path / "run.json")
    assert not saved.complete
    assert sum(len(measurement.samples) for measurement in saved.measurements) == trials > 0
    assert StopReason.INTERRUPTED in {measurement.stop for measurement in saved.measurements}
    assert backend.closed


def test_nothing_measured_leaves_no_file(begin: Begin, tmp_path: pathlib.Path) -> None:
    def fail(_number: int, _step: Step) -> None:
        raise BackendError("no GPU answers")

    with begin(FakeBackend(2, on_step=fail)) as measuring, pytest.raises(BackendError):
        measuring.measure()
    assert list(tmp_path.iterdir()) == []


def test_health_that_cannot_be_read_any_more_hides_neither_the_cause_nor_the_run(
    begin: Begin, tmp_path: pathlib.Path
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

    lost = FakeBackend(2, on_step=on_step)
    with begin(lost, health=health) as measuring, pytest.raises(BackendError, match="fell off the bus"):
        measuring.measure()
    assert run_file.load(tmp_path / "run.json").health_after == ()


def test_the_same_seed_measures_in_the_same_order(begin: Begin) -> None:
    orders = []
    for seed in (5, 5, 6):
        backend = FakeBackend(4)
        with begin(backend, replace(ALL, seed=seed, force=True)) as measuring:
            measuring.measure()
        orders.append(backend.steps)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_what_cannot_be_measured_at_all_is_refused(begin: Begin, tmp_path: pathlib.Path) -> None:
    backend = FakeBackend(2)
    backend.capacity = 512 * MIB
    with pytest.raises(UsageError, match="size 1G does not fit: the fullest device has room for messages of 512 MiB"):
        begin(backend, replace(ALL, sizes=(GIB,)))
    assert backend.closed
    assert list(tmp_path.iterdir()) == []


def test_no_other_variable_is_kept(begin: Begin, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    with begin(FakeBackend(2)) as measuring:
        measuring.measure()
    assert "hush" not in (tmp_path / "run.json").read_text(encoding="utf-8")
