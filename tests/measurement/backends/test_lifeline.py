"""Real processes whose parent is killed, or stopped and killed: no child and none of its files remain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from collbench.ablations import ended_with_us
from collbench.jobs import job_file
from collbench.measurement.backends.host import start_workers
from tests.ablations.test_running import WAITS
from tests.native.recorded import Made, host
from tests.ranks.processes import PATIENCE_S, environment, wait_for

# An environment variable that only the descendants of one test's process have.
MARK = "COLLBENCH_TEST_MARK"
COLLBENCH = [sys.executable, "-m", "collbench"]
# Runs until it is ended: no data point ever converges.
ENDLESS = ["--backend", "host", "--sizes", "8,64K", "--precision", "0.0001%", "--budget", "10min"]


def marked(mark: str) -> dict[int, str]:
    """Return the command lines of the living processes that carry a mark, by process id."""
    processes = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            carries = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if carries and state != "Z":
                processes[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
    return processes


def assert_all_end(mark: str) -> None:
    """Fail the test if a process with this mark stays alive, and kill it."""
    deadline = time.monotonic() + PATIENCE_S / 2
    while remaining := marked(mark):
        if time.monotonic() > deadline:
            for process in remaining:
                os.kill(process, signal.SIGKILL)
            raise AssertionError(f"these live on: {remaining}")
        time.sleep(0.05)


@pytest.fixture
def mark() -> Iterator[str]:
    """Yield a mark; processes that still carry it afterwards are killed."""
    name = uuid.uuid4().hex
    yield name
    for process in marked(name):
        os.kill(process, signal.SIGKILL)


def begin(tmp_path: Path, mark: str, args: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COLLBENCH, *args],
        env=environment(tmp_path, **{MARK: mark}),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(mark: str) -> list[int]:
    return [process for process, command in marked(mark).items() if "gloo_worker" in command]


def stopped_in_the_middle(folder: Path, mark: str) -> bool:
    """Stop the workers once they measure: a process that is stopped sees nothing close."""
    if not (folder / "run.json").exists():
        return False
    for worker in workers(mark):
        os.kill(worker, signal.SIGSTOP)
    return True


Moment = Callable[[Path, str], object]
MOMENTS: list[tuple[str, Moment]] = [
    ("the workers have just started", lambda _folder, mark: len(workers(mark)) == 2),
    ("they are stopped in the middle", stopped_in_the_middle),
]


@pytest.mark.parametrize(("title", "moment"), MOMENTS, ids=[title for title, _ in MOMENTS])
def test_gloo_workers_end_with_a_killed_parent_and_leave_nothing(
    title: str, moment: Moment, mark: str, tmp_path: Path
) -> None:
    process = begin(tmp_path, mark, ["allreduce", *ENDLESS, "--output", "run.json"])
    try:
        wait_for(title, lambda: moment(tmp_path, mark), [process])
    finally:
        process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert_all_end(mark)
    assert {path.name for path in tmp_path.iterdir()} <= {"run.json"}


def test_a_gloo_worker_whose_peer_never_came_ends_and_no_file_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent was killed while it loaded torch. What has no name in TMPDIR need not be removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = start_workers({0: min(os.sched_getaffinity(0))}, 2)
    try:
        assert list(tmp_path.iterdir()) == []
        (worker,) = workers._children.values()
        worker.pipe.close()
        worker.process.wait(PATIENCE_S / 2)
    finally:
        workers.close()
    assert list(tmp_path.iterdir()) == []


PARENT = """
import subprocess, sys, time
from collbench.ablations import ended_with_us
subprocess.Popen(ended_with_us.with_us(sys.argv[1:]))
time.sleep(1000)
"""


def test_a_job_in_a_group_of_its_own_is_terminated_with_its_parent(mark: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    args = [sys.executable, "-c", WAITS, str(fifo)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *args], env=environment(tmp_path, **{MARK: mark}), stdout=subprocess.PIPE
    )
    fifo.open(encoding="utf-8").close()  # opens once the child is ready
    parent.kill()
    out, _ = parent.communicate(timeout=PATIENCE_S)  # until every process has closed the pipe
    assert out == b"ended by %d\n" % signal.SIGTERM
    assert_all_end(mark)


def test_a_recorded_job_ends_with_a_killed_record_and_what_it_sent_is_kept(mark: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(
        f"comm 0 77 0 1\nrepeat 9\n{Made('allreduce', 1).line()}end\nclock\nsleep 900000000\n", encoding="utf-8"
    )
    rank = f"exec {host()} $NCCL_PROFILER_PLUGIN 5 <script"
    process = begin(tmp_path, mark, ["record", "--streams", "kept", "-o", "job.json", "--", "sh", "-c", rank])
    assert process.stdout is not None
    assert process.stdout.readline().startswith("9 calls")
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert_all_end(mark)
    merge = [*COLLBENCH, "record", "--streams", "kept", "-o", "job.json"]
    subprocess.run(merge, cwd=tmp_path, check=True, capture_output=True)
    assert job_file.load(tmp_path / "job.json").ranks[0].calls == 9


def test_a_job_whose_parent_ended_before_it_began_does_not_begin() -> None:
    # Process 0 is the parent of no process, like one that has ended.
    script = [sys.executable, "-I", "-S", ended_with_us.__file__, "0", "--", "echo", "begun"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")


def test_a_program_that_is_not_there_is_reported_before_anything_starts() -> None:
    with pytest.raises(FileNotFoundError):
        ended_with_us.with_us(["/nowhere/python"])
