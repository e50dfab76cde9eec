"""The program on a host that fails at a given moment: `python -m tests.distributed.victim nodes …`.

`EMULATED_FAULT` is `how:when`. How: kill, stop (SIGSTOP), or cut (its cable). When: `start`, before it does anything;
`connecting`, before it connects to rank 0; the name of a request and which of them, `OpenRank:1` or `Step:4`, a moment
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

from collbench.backends.protocol import Step

# Within the work on a request: a step of 64 KiB over 40 Mbit/s takes longer.
_WITHIN_S = 0.01


def fail(how: str) -> None:
    """Fail now, and note when."""
    Path(os.environ["EMULATED_FAULT_TIME"]).write_text(repr(time.time()), encoding="ascii")
    if how == "cut":
        subprocess.run(["ip", "link", "set", "veth0", "down"], check=True)
        return
    sign = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    here = Path("/proc/self/ns/net").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = (process / "ns/net").readlink() == here
        except OSError:  # it has ended
            continue
        if mine and int(process.name) != os.getpid():
            os.kill(int(process.name), sign)
    os.kill(os.getpid(), sign)


def arrange(how: str, when: str) -> None:
    """See to it that this process fails so, then."""
    from collbench.distributed import connection, factory, rank_worker

    what, _, number = when.partition(":")
    came: Counter[str] = Counter()
    answered, connected, served = rank_worker._value, connection.connect, rank_worker.serve

    def value(worker: object, request: object) -> object:
        name = type(request).__name__
        came[name] += 1
        if (what, number) == (name, str(came[name])):
            threading.Timer(_WITHIN_S, fail, [how]).start()
        found = answered(worker, request)  # type: ignore[arg-type]
        if isinstance(request, Step) and (what, number) == ("gathering", str(came[name])):
            fail(how)
        return found

    def connect(*arguments: object) -> object:
        if what == "connecting":
            fail(how)
        return connected(*arguments)  # type: ignore[arg-type]

    def serve(*arguments: object) -> bool:
        found = served(*arguments)  # type: ignore[arg-type]
        if what == "end":
            fail(how)
        return found

    for module, name, ours in (
        (rank_worker, "_value", value),
        (factory, "connect", connect),
        (factory, "serve", serve),
    ):
        setattr(module, name, ours)


if __name__ == "__main__":
    wanted, _, moment = os.environ["EMULATED_FAULT"].partition(":")
    if moment == "start":
        fail(wanted)
    arrange(wanted, moment)
    sys.argv[0] = "collbench"
    runpy.run_module("collbench", run_name="__main__", alter_sys=False)
