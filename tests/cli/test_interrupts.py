"""Ctrl-C or another terminating signal at any time: one line that says what is saved, and status 128 + its number."""

from __future__ import annotations

import ast
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.cli.program import Program, collbench, on_gpus, one_line
from tests.native.fakes import Fakes
from tests.ranks.processes import PATIENCE_S, environment, wait_for

# The seed fixes the order of trials, so that these runs make nearly the same calls.
PAIRS = ("pairs", "--sizes", "1K", "--operations", "broadcast", "--seed", "1", "-o", "run.json")
# The worker's calls decide when; Ctrl-C ends its parent, while the worker ignores it.
IN_THE_WORKER: dict[str, object] = {"signal_parent": 1}
NOTHING = ("interrupted before it was done", "interrupted: nothing was measured or saved")


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("while looking for a GPU", {"interrupt": "nvmlInitWithFlags=1"}),
        ("while listing the GPUs", IN_THE_WORKER | {"interrupt": "cuInit=1"}),
        ("while allocating", IN_THE_WORKER | {"interrupt": "cuMemAlloc_v2=1"}),
        ("while warming up", IN_THE_WORKER | {"interrupt": "cuGraphLaunch=2"}),
    ],
)
def test_before_the_first_trial(fakes: Fakes, tmp_path: Path, case: str, settings: dict[str, object]) -> None:
    done = on_gpus(fakes, PAIRS, **settings)
    assert (done.code, done.stdout) == (130, "")
    assert one_line(done.stderr) in NOTHING
    assert not (tmp_path / "run.json").exists()


def test_in_the_middle_what_was_measured_is_saved_and_can_be_shown(
    fakes: Fakes, program: Program, tmp_path: Path
) -> None:
    whole = on_gpus(fakes, PAIRS)
    assert whole.code == 0, whole.stderr
    late = len(whole.lines("cuGraphLaunch")) * 3 // 4
    (tmp_path / "run.json").unlink()

    done = on_gpus(fakes, PAIRS, interrupt=f"cuGraphLaunch={late}", **IN_THE_WORKER)
    assert (done.code, done.stdout) == (130, "")
    run = run_file.load(tmp_path / "run.json")
    assert not run.complete
    assert one_line(done.stderr) == (
        f"interrupted: {len(run.measurements)} data points measured so far are saved as run.json: "
        "'collbench show run.json' prints them"
    )
    shown = program("show", "run.json")
    assert (shown.status, shown.err) == (0, "")
    assert "(interrupted)" in shown.out


def test_in_the_probe_of_train_nothing_is_started(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    args = ["train", "--auto-select", "2", "--fresh", "train.py"]
    done = on_gpus(fakes, args, interrupt="cuGraphLaunch=2", **IN_THE_WORKER)
    assert done.code == 130
    assert done.stderr.splitlines()[-1] == "collbench: interrupted in the probe: nothing was started"


# Runs for seconds after its first trial, without a worker: a signal ends it before.
LONG = ("--operations", "copy", "--backend", "host", "--sizes", "8:64M", "--precision", "0.0001%")
MEASURING = collbench("pairs", *LONG, "--budget", "10min", "-o", "run.json")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=lambda signal_number: signal_number.name)
def test_other_signals_end_as_ctrl_c_does_and_the_status_names_them(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        MEASURING, env=environment(tmp_path), cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for("the first trial", (tmp_path / "run.json").exists, [process])
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (128 + number, "")
    assert one_line(err).endswith("'collbench show run.json' prints them")
    assert run_file.load(tmp_path / "run.json").measurements


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *MEASURING],
        env=environment(tmp_path), cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    file = tmp_path / "run.json"
    wait_for("the first trial", file.exists, [process])
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):  # it goes on
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM


# Makes its stdin its terminal, as a login does.
LOGIN = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_run_of_a_terminal_that_is_lost_in_the_middle_is_saved(tmp_path: Path) -> None:
    """A connection that breaks: SIGHUP comes, and every further line or bar to the terminal is an error."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LOGIN, *MEASURING],
        env=environment(tmp_path) | {"TERM": "xterm"}, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    drawn = b""
    while not (tmp_path / "run.json").exists() or b"measuring pairs" not in drawn:
        drawn += os.read(master, 1000)
    os.close(master)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGHUP
    assert not run_file.load(tmp_path / "run.json").complete


# Runs the program in forks of a process that has loaded nothing: each gets SIGINT at a later import than the last.
AT_IMPORTS = """
import os, runpy, signal, sys

class CtrlC:
    def __init__(self, at):
        self.left = at

    def find_spec(self, name, path=None, target=None):
        if name not in ("collbench", "collbench.__main__", "collbench.cli"):  # before these nothing of ours runs
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)

at, status = 1, None
while status != 0:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writer, 2)
        sys.meta_path.insert(0, CtrlC(at))
        sys.argv[0] = "collbench"
        runpy.run_module("collbench", run_name="__main__", alter_sys=True)
    os.close(writer)
    print(repr((open(reader).read(), status := os.waitstatus_to_exitcode(os.wait()[1]))))
    at += 1 if at < 12 else 67
"""


def test_at_any_import_there_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    arguments = ["nodes", "--backend", "sim", "--fabric-cluster", "thin-32"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", AT_IMPORTS, *arguments],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr == ""
    *interrupted, (_, last) = map(ast.literal_eval, done.stdout.splitlines())
    assert last == 0, "it came too late"
    assert len(interrupted) > 15
    for text, status in interrupted:
        assert one_line(text).startswith("interrupted"), (text, status)
        assert status == 130
