"""How `train`'s torchrun ends: by a signal, which reaches its ranks, and without an unrequested log folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from collbench.launch import agent
from collbench.launch.agent import wants_logs

# As torchrun ends by a signal [torch 2.13, elastic/multiprocessing/api.py, SignalException] that comes while it starts
# ranks: it has no list of them yet, and does not end them. They are in sessions of their own.
TORCHRUN = """
import signal, subprocess, time
RANK = '''
for one in TERM INT HUP QUIT; do trap "echo SIG$one > heard; exit" $one; done
echo ready
while :; do sleep 0.02; done
'''
class SignalException(Exception):
    def __init__(self, number):
        super().__init__(f"Process got signal: {number}")
        self.sigval = signal.Signals(number)
def end(number, frame):
    raise SignalException(number)
def main():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, end)
    subprocess.Popen(["sh", "-c", RANK], start_new_session=True)
    while True:  # no pause(): a signal just before it would be handled after the next one
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda sent: sent.name
)
def test_a_signal_ends_torchrun_and_its_ranks_in_a_line_and_leaves_no_folder(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "torch" / "distributed"
    folder.mkdir(parents=True)
    (tmp_path / "temporary").mkdir()
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "run.py").write_text(TORCHRUN, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-P", str(agent.__file__), "--", "train.py"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(number)
        _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (128 + number, f"collbench: the job was ended by {number.name}\n")
    assert (tmp_path / "heard").read_text() == f"{number.name}\n"
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("moment", ["while torch loads", "before torchrun handles signals"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_an_early_signal_is_reported_and_leaves_no_folder(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    folder = tmp_path / "torch" / "distributed"
    folder.mkdir(parents=True)
    (tmp_path / "temporary").mkdir()
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    wait = "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.05)\n"
    code = wait if moment == "while torch loads" else f"def main():\n{textwrap.indent(wait, '    ')}"
    (folder / "run.py").write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-P", str(agent.__file__), "--", "train.py"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == "ready\n"
        begun.send_signal(number)
        _, err = begun.communicate(timeout=60)
    assert (begun.returncode, err) == (128 + number, f"collbench: the job was ended by {number.name}\n")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_rank_that_ignores_the_signal_is_killed() -> None:
    """Another process, which is not a child of this one, is left alone."""
    rank = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    code = f"""
import signal, subprocess
from collbench.launch import agent
agent._GRACE_S = 0.1
rank = subprocess.Popen(["sh", "-c", {rank!r}], stdout=subprocess.PIPE, text=True)
rank.stdout.readline()
agent._end_ranks(signal.SIGTERM)
print(signal.Signals(-rank.wait()).name)
"""
    with subprocess.Popen(["sleep", "100"]) as stranger:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, stranger.poll()) == ("SIGKILL\n", None), done.stderr
        stranger.kill()


@pytest.mark.parametrize(
    ("title", "args", "variables", "expected"),
    [
        ("nothing of the kind", ["--nproc-per-node", "2", "--", "train.py"], [], False),
        ("a folder", ["--log-dir", "x", "--", "train.py"], [], True),
        ("in torchrun's older spelling", ["--log_dir=x", "--", "train.py"], [], True),
        ("a copy on the terminal", ["--tee", "3", "--", "train.py"], [], True),
        ("into files", ["-r", "3", "--", "train.py"], [], True),
        ("an option of the script's", ["--standalone", "--", "train.py", "--log-dir", "x", "-t"], [], False),
        ("a variable", ["--", "train.py"], ["PET_LOG_DIR"], True),
        ("another variable", ["--", "train.py"], ["PET_NNODES", "LOG_DIR"], False),
    ],
)
def test_log_files_are_kept_only_if_requested(
    title: str, args: list[str], variables: list[str], expected: bool
) -> None:
    assert wants_logs(args, dict.fromkeys(variables, "1")) is expected
