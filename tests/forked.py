"""`--jobs N` runs tests in N processes at once, forked from the one that has loaded and collected them.

pytest-xdist's processes would each load and collect all tests, for 15 s of a core.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest
from hypothesis.internal.charmap import charmap

_FORK = multiprocessing.get_context("fork")
# What nearly every process would load later.
_LOADED_LATER = ("jsonschema", "scipy.optimize", "scipy.stats")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jobs", type=int, default=1, help="how many processes run tests at once")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes, and report what they report."""
    if session.config.option.jobs < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    children = _started(session)
    unfinished = {item.nodeid: item.location for item in session.items}
    try:
        while children:
            for connection in wait([*children]):
                assert isinstance(connection, Connection)
                try:
                    data = connection.recv()
                except EOFError:
                    os.waitpid(children.pop(connection), 0)
                    continue
                _report(session, session.config.hook.pytest_report_from_serializable(config=session.config, data=data))
                if data["when"] == "teardown":
                    unfinished.pop(data["nodeid"])
    finally:
        for process in children.values():
            os.kill(process, signal.SIGTERM)
    for name, location in unfinished.items():
        words = "the process that had this test before it has ended"
        _report(session, pytest.TestReport(name, location, {}, "failed", words, "call"))
    return True


def _started(session: pytest.Session) -> dict[Connection, int]:
    """Return the processes that run the tests, by what they report to."""
    for module in _LOADED_LATER:
        importlib.import_module(module)
    charmap()  # hypothesis makes this table once for each clone: 3 s
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    begun, children = _FORK.Value("l", 0), {}
    for number in range(session.config.option.jobs):
        here, there = _FORK.Pipe(duplex=False)
        process = os.fork()
        if not process:
            _run(session, number, begun, there)
        there.close()
        children[here] = process
    return children


def _report(session: pytest.Session, report: pytest.TestReport) -> None:
    hook = session.config.hook
    hook.pytest_runtest_logreport(report=report)
    if report.when == "teardown":
        hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)


def _run(session: pytest.Session, number: int, begun: Any, parent: Connection) -> NoReturn:
    """Be a process that runs tests. It has the variables and the folder that pytest-xdist's would have."""
    status = 1
    try:
        config, jobs = session.config, session.config.option.jobs
        os.environ |= {"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(jobs)}
        temporary = config._tmp_path_factory.getbasetemp() / f"gw{number}"  # type: ignore[attr-defined]
        temporary.mkdir()
        config._tmp_path_factory._basetemp = temporary  # type: ignore[attr-defined]
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # into files that the other processes have, too
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Reports(config, parent))
        places = _places(len(session.items), jobs, begun)
        place = next(places, None)
        while place is not None:
            following = next(places, None)
            after = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=after)
            place = following
        status = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001  # what called this function is the parent's to run
        traceback.print_exc()
    os._exit(status)


def _places(count: int, jobs: int, begun: Any) -> Iterator[int]:
    """Yield places of tests that no other process runs: neighbours, which share fixtures, and fewer towards the end."""
    while True:
        with begun.get_lock():
            begin = begun.value
            end = begun.value = begin + max(1, (count - begin) // (4 * jobs))
        if begin >= count:
            return
        yield from range(begin, end)


class _Reports:
    """Sends what tests report."""

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self._config, self._parent = config, parent

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "setup" or not report.passed:
            self._parent.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
