"""One child process: its output, its time, and its end with its parent's. Real processes, and no sleeping."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from collbench.ablations.child import Reader, run_child
from collbench.model.errors import BackendError


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_both_streams_reach_the_log_the_reader_and_whoever_watches(tmp_path: Path) -> None:
    log, reader, seen = tmp_path / "run.log", Reader(), bytearray()
    code = "import sys; print('step_time=2ms', flush=True); print('step_time=3ms', file=sys.stderr); sys.exit(7)"
    status, wall_seconds = run_child(python(code), dict(os.environ), log, reader, seen.extend)
    assert status == 7
    assert wall_seconds > 0
    assert reader.steps == [0.002, 0.003]
    assert log.read_bytes() == bytes(seen) == b"step_time=2ms\nstep_time=3ms\n"


def test_a_child_gets_this_environment_and_no_input(tmp_path: Path) -> None:
    reader = Reader()
    code = "import os, sys; print(os.environ.get('NCCL_P2P_DISABLE'), os.environ.get('LEFT'), repr(sys.stdin.read()))"
    run_child(python(code), {"NCCL_P2P_DISABLE": "1"}, tmp_path / "log", reader)
    assert list(reader.tail) == ["1 None ''"]


def test_a_process_that_outlives_the_job_and_holds_its_output_is_not_waited_for(tmp_path: Path) -> None:
    # The grandchild sleeps until we open the other end of its pipe: it is ours to end.
    fifo, reader = tmp_path / "fifo", Reader()
    os.mkfifo(fifo)
    code = f"import subprocess; print('step_time=2ms', flush=True); subprocess.Popen(['cat', {str(fifo)!r}])"
    status, _ = run_child(python(code), dict(os.environ), tmp_path / "log", reader)
    fifo.open("w", encoding="utf-8").close()
    assert (status, reader.steps) == (0, [0.002])


# No pause(): a signal just before it would be handled after the next one.
WAITS = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, b"ended by %d\\n" % number)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("case", ["one that ends when asked", "one that only a second Ctrl-C ends"])
def test_ctrl_c_ends_the_child_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    fifo, reader = tmp_path / "fifo", Reader()
    os.mkfifo(fifo)
    code = WAITS if case == "one that ends when asked" else WAITS.replace("sys.exit(0)", "signal.pause()")
    command = [*python(code), str(fifo)]

    def press() -> None:
        fifo.open(encoding="utf-8").close()  # opens once the child is ready
        os.kill(os.getpid(), signal.SIGINT)

    def watch(data: bytes) -> None:
        if b"ended by" in data and case != "one that ends when asked":
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        run_child(command, dict(os.environ), tmp_path / "log", reader, watch)
    presser.join()
    assert list(reader.tail) == [f"ended by {int(signal.SIGTERM)}"]


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="No such file or directory"):
        run_child(python("pass"), dict(os.environ), tmp_path / "none" / "log", Reader())


def test_a_full_disk_does_not_stop_the_job_and_is_reported(tmp_path: Path) -> None:
    reader = Reader()
    with pytest.raises(BackendError, match="No space left on device"):
        run_child(python("print('step_time=2ms')"), dict(os.environ), Path("/dev/full"), reader)
    assert reader.steps == [0.002]
