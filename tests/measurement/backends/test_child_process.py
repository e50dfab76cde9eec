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

from collbench.measurement.backends.child_process import readable

SILENCE_S = 1.0
# Waits for two pipes, and prints after how many answers it gave up.
WAITS = f"""
import sys
from multiprocessing.connection import Connection
from collbench.measurement.backends.child_process import readable
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


def test_an_end_is_no_silence() -> None:
    (ours, theirs) = Pipe()
    theirs.close()
    assert readable([ours], 10.0)[0] == [ours]
