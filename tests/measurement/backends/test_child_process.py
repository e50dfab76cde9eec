"""How long a parent waits for its workers: silence counts, but not time in which the parent itself is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from collbench.measurement.backends import child_process
from collbench.measurement.backends.child_process import Scheduled, readable
from collbench.model.errors import Cause, Failure, FailureKind

SILENCE_S = 1.0
# Waits for two pipes, and prints after how many answers it gave up.
WAITS = f"""
import sys
from multiprocessing.connection import Connection
from collbench.measurement.backends.child_process import Child, ChildLost, readable
missing, left = [Connection(int(number)) for number in sys.argv[1:]], {SILENCE_S}
print("waits", flush=True)
while missing:
    ready, left = readable(missing, left)
    if not ready:
        break
    for pipe in ready:
        pipe.recv()
        missing.remove(pipe)
print(len(missing), "missing")
"""


def stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def test_time_in_which_the_parent_is_stopped_is_no_silence() -> None:
    (ours, theirs), (other, others) = Pipe(), Pipe()
    ends = [str(one.fileno()) for one in (theirs, others)]
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, *ends], stdout=subprocess.PIPE, text=True, pass_fds=list(map(int, ends))
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        ours.send("an answer")
        os.kill(waiting.pid, signal.SIGSTOP)
        while not stopped(waiting):
            time.sleep(0.01)
        time.sleep(1.5 * SILENCE_S)
        os.kill(waiting.pid, signal.SIGCONT)
        other.send("another")
        assert waiting.stdout.read() == "0 missing\n"


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.3])
def test_silence_ends_the_wait(timeout_s: float) -> None:
    (ours, theirs) = Pipe()
    begin = time.monotonic()
    ready, left = readable([ours], timeout_s)
    assert (list(ready), left <= 0) == ([], True)
    assert time.monotonic() - begin >= timeout_s
    theirs.send("an answer")
    assert readable([ours], timeout_s)[0] == [ours], "what is there is read, however late"


SECOND = 10**9


@pytest.mark.parametrize(
    ("case", "before", "now", "lost"),
    [
        ("it runs", Scheduled(SECOND, 0, ready=True), Scheduled(2 * SECOND, 0, ready=True), 0.0),
        (
            "it sleeps in the driver",
            Scheduled(SECOND, SECOND, ready=False),
            Scheduled(SECOND, SECOND, ready=False),
            0.0,
        ),
        ("a tenth of a core", Scheduled(SECOND, 0, ready=True), Scheduled(2 * SECOND, 9 * SECOND, ready=True), 0.9),
        ("it still waits", Scheduled(SECOND, 0, ready=True), Scheduled(SECOND, 0, ready=True), 1.0),
        ("a kernel that counts nothing", Scheduled(0, 0, ready=True), Scheduled(0, 0, ready=True), 0.0),
        ("a thread has ended", Scheduled(3 * SECOND, SECOND, ready=False), Scheduled(SECOND, 0, ready=False), 0.0),
    ],
)
def test_time_in_which_a_worker_could_not_run_is_lost(
    case: str, before: Scheduled, now: Scheduled, lost: float
) -> None:
    assert now.lost_since(before) == pytest.approx(lost), case


@pytest.mark.parametrize(
    ("case", "lost", "slices", "failure"),
    [
        ("it runs, and does not answer", 0.0, 8, Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=2.0)),
        ("others have half of its core", 0.5, 15, Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=2.0)),
        ("it never runs", 1.0, 48, Failure(FailureKind.BUSY, Cause.STARVED, seconds=12.0)),
    ],
)
def test_silence_counts_while_the_worker_can_run(
    monkeypatch: pytest.MonkeyPatch, case: str, lost: float, slices: int, failure: Failure
) -> None:
    """Slices of 0.25 s until 2 s of silence, of which 10 s at most are spared; of the first nothing is known."""
    clock = iter(range(10**6))

    def scheduled(_: object) -> Scheduled:
        second = next(clock) * SECOND
        return Scheduled(SECOND + int((1 - lost) * second), int(lost * second), ready=True)

    monkeypatch.setattr(child_process, "scheduled", scheduled)
    starvation, left, count = child_process.Starvation([1], 10.0), 2.0, 0
    while left > 1e-9:
        left -= starvation.silent()
        count += 1
    assert count == slices, case
    assert starvation.failure(2.0) == failure, case


def test_an_end_is_no_silence() -> None:
    (ours, theirs) = Pipe()
    theirs.close()
    assert readable([ours], 10.0)[0] == [ours]
