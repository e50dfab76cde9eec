"""The program on a host that fails at a given moment: `python -m tests.ranks.victim nodes …`.

`EMULATED_FAULT` is `how:when`. How: kill, stop (SIGSTOP), or cut (its cable). When: `start`, before it does anything;
`connecting`, before it connects to rank 0; the name of a method and which call of it, `open:1` or `time:4`, a moment
after it has come; `gathering:4`, when the fourth step is measured and its answer is not sent; and `end`. The time of
the fault goes into the file `EMULATED_FAULT_TIME`. All processes of the host's network namespace fail together.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collbench.measurement.backends.protocol import Call
    from collbench.ranks.rank_worker import RankWorker

# Within the work on a request: a step of 64 KiB over 40 Mbit/s takes longer.
_WITHIN_S = 0.01


def fail(fault: str) -> None:
    """Fail now, and note when."""
    Path(os.environ["EMULATED_FAULT_TIME"]).write_text(repr(time.time()), encoding="ascii")
    if fault == "cut":
        subprocess.run(["ip", "link", "set", "veth0", "down"], check=True)
        return
    signal_number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
    own_namespace = Path("/proc/self/ns/net").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_here = (process / "ns/net").readlink() == own_namespace
        except OSError:  # it has ended
            continue
        if is_here and int(process.name) != os.getpid():
            os.kill(int(process.name), signal_number)
    os.kill(os.getpid(), signal_number)


def arrange(fault: str, moment: str) -> None:
    """Make this process fail with `fault` at `moment`."""
    from collbench.ranks import connection, factory, rank_worker

    event, _, number = moment.partition(":")
    counts: Counter[str] = Counter()
    original_answer, original_connect, original_serve = rank_worker._answer, connection.connect, rank_worker.serve

    def answer(worker: RankWorker, call: Call) -> object:
        counts[call.method] += 1
        if (event, number) == (call.method, str(counts[call.method])):
            threading.Timer(_WITHIN_S, fail, [fault]).start()
        result = original_answer(worker, call)
        if call.method == "time" and (event, number) == ("gathering", str(counts["time"])):
            fail(fault)
        return result

    def connect(*arguments: object) -> object:
        if event == "connecting":
            fail(fault)
        return original_connect(*arguments)  # type: ignore[arg-type]

    def serve(*arguments: object) -> bool:
        result = original_serve(*arguments)  # type: ignore[arg-type]
        if event == "end":
            fail(fault)
        return result

    for module, name, replacement in (
        (rank_worker, "_answer", answer),
        (factory, "connect", connect),
        (factory, "serve", serve),
    ):
        setattr(module, name, replacement)


if __name__ == "__main__":
    fault, _, moment = os.environ["EMULATED_FAULT"].partition(":")
    if moment == "start":
        fail(fault)
    arrange(fault, moment)
    sys.argv[0] = "collbench"
    runpy.run_module("collbench", run_name="__main__", alter_sys=False)
