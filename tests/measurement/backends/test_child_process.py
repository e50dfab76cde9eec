"""How long a parent waits for its workers: silence counts, but not time in which the parent itself is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from collbench.measurement.backends.child_process import Child, ChildLost, readable

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


def test_a_worker_that_waits_for_a_core_is_not_silent(tmp_path: Path) -> None:
    """On a core that it shares with twelve others it runs for a thirteenth of the time."""
    (tmp_path / "spinning.py").write_text("while True: pass\n", encoding="utf-8")
    core, silence_s = {min(os.sched_getaffinity(0))}, 1.0
    with ExitStack() as stack:
        child = Child("spinning", (), {**os.environ, "PYTHONPATH": str(tmp_path)})
        stack.callback(child.reap)
        stack.callback(child.kill)
        words = (sys.executable, "-c", "while True: pass")
        others = [stack.enter_context(subprocess.Popen(words)) for _ in range(12)]
        for process in (child.process, *others):
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, core)
        begin = time.monotonic()
        with pytest.raises(ChildLost, match="no answer"):
            child.receive(silence_s, patience=4)
        assert time.monotonic() - begin > 1.5 * silence_s


def test_an_end_is_no_silence() -> None:
    (ours, theirs) = Pipe()
    theirs.close()
    assert readable([ours], 10.0)[0] == [ours]
