"""Fixtures and settings of all tests: deterministic hypothesis examples without deadlines, and simulated GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.cli.program import Program
from tests.native.fakes import Fakes, build
from tests.native.recorded import remove_host

pytest_plugins = ("tests.browser",)

# Twenty examples, always the same: a fault that only one in a hundred shows deserves its own test. Many
# others: make test ARGS='-m hypothesis --hypothesis-profile=thorough'
settings.register_profile("collbench", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=500, suppress_health_check=list(HealthCheck))
settings.load_profile("collbench")

# Several processes share two cores, where the threads of OpenBLAS would busy-wait for each other. Set before
# any test loads numpy, and passed on to what tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # xdist sets it in its processes, and pages in pipes obey it

# Collecting creates a million objects that all stay: scanning them repeatedly would free nothing.
gc.disable()

# A test run in the background (nohup, some CI runners) ignores SIGINT or SIGHUP, and every program that it starts
# would, too: the tests of Ctrl-C and of a closed terminal would wait forever. What this process handles, its children
# do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

_HERE = Path(__file__).parent
_LOADED = _HERE / "loaded"
_SERVERS: list[tuple[Path, subprocess.Popen[bytes]]] = []


def pytest_collection() -> None:
    """Let hypothesis try no constants of our modules, so that its examples change with a test alone.

    In a fresh clone it parses each of them for these, which takes a core eight seconds.
    """
    if settings.get_current_profile_name() == "collbench":
        providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, and make it rare."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)  # they took a tenth of a test's time: runs are many small objects that stay
    gc.enable()


def pytest_unconfigure() -> None:
    """End this run's servers. What pytest-xdist's processes share ends with its first process."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    for socket, process in _SERVERS:
        process.kill()
        process.wait()
        socket.unlink()
    remove_host()


def _variables() -> dict[bytes, bytes]:
    """Return a copy of the environment, without decoding it, less the variable that pytest changes in every test."""
    variables: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
    variables.pop(b"PYTEST_CURRENT_TEST", None)
    return variables


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Restore the environment after a test that changes it, as `collbench.select` does."""
    before = _variables()
    yield
    if (after := _variables()) != before:
        for name in after.keys() - before.keys():
            del os.environb[name]
        os.environb.update(before)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In pytest-xdist's processes, report of a test that it ran, and no setup or teardown in which nothing failed.

    Each report is sent, which takes as long as pytest itself takes for a short test.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(scope="session")
def built_fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """Simulated GPUs with every library, compiled once for all processes that pytest-xdist starts."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fakes"
    with _alone("fakes"):
        if not folder.exists():  # renamed when complete: a failed compilation fails in each process
            build(folder.with_suffix(".part")).folder.rename(folder)
    socket = fork_server("program", "fakes", LD_LIBRARY_PATH=str(folder))
    loaded = {"COLLBENCH_TEST_PROGRAM": socket, "COLLBENCH_TEST_LIBRARIES": str(folder)}
    return Fakes(folder, loaded=loaded, asks=_LOADED)


@pytest.fixture
def fakes(built_fakes: Fakes, tmp_path: Path) -> Fakes:
    """Simulated GPUs for programs that run in the test's folder."""
    return replace(built_fakes, place=tmp_path)


def _test_run() -> int:
    """Return the id of this test run's main process: pytest-xdist's first, or this one."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@contextlib.contextmanager
def _alone(what: str) -> Iterator[Path]:
    """Let one process of this test run do something at a time; yield a path short enough for a socket."""
    path = Path(tempfile.gettempdir(), f"collbench-tests-{_test_run()}-{what}")
    with Path(f"{path}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    if "PYTEST_XDIST_WORKER" not in os.environ:
        Path(f"{path}.lock").unlink()


def fork_server(what: str, name: str, **variables: str) -> str:
    """Return the socket of a process that has loaded `torch` or the `program` (tests/fork_server.py).

    The first process of this run that needs it starts it. It ends with the run.
    """
    with _alone(name) as socket:
        if not socket.exists():
            # OpenBLAS would start threads, which a fork lacks; OpenMP's would wait for each other on one core.
            process = subprocess.Popen(
                [sys.executable, str(_HERE / "fork_server.py"), str(socket), what, str(_test_run())],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | variables,
            )
            _SERVERS.append((socket, process))
            while not socket.exists():
                assert process.poll() is None
                time.sleep(0.02)
    return str(socket)


@pytest.fixture(scope="session")
def torch_server() -> str:
    """The socket of a process that has loaded torch."""
    return fork_server("torch", "torch")


@pytest.fixture(scope="module")
def loaded_torch(torch_server: str) -> Iterator[None]:
    """Fork the processes that the module's tests start from one that has loaded torch, except with `own_torch`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLBENCH_TEST_TORCH", torch_server)
        patch.setenv("PYTHONPATH", str(_LOADED), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def program_server() -> str:
    """The socket of a process that has loaded collbench."""
    return fork_server("program", "program")


@pytest.fixture(scope="module")
def loaded_program(program_server: str) -> Iterator[None]:
    """Fork the processes that the module's tests start from one that has loaded collbench."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLBENCH_TEST_PROGRAM", program_server)
        patch.setenv("COLLBENCH_TEST_LIBRARIES", os.environ.get("LD_LIBRARY_PATH", ""))
        patch.setenv("PYTHONPATH", str(_LOADED), prepend=os.pathsep)
        yield


@pytest.fixture
def own_program(loaded_program: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of this test load collbench themselves, with their own files, parents and descendants."""
    monkeypatch.delenv("COLLBENCH_TEST_PROGRAM")


@pytest.fixture
def own_torch(loaded_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of this test load torch themselves, as users' processes do."""
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folder for folder in folders if folder != str(_LOADED)))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Program:
    """The program, in an empty folder and with no saved runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("CUDA_VISIBLE_DEVICES", "COLLBENCH_NCCL"):
        monkeypatch.delenv(name, raising=False)
    return Program(monkeypatch, capsys)
