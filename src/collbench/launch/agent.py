"""torchrun in this process, as `train` starts it: `python -P agent.py TORCHRUN-OPTION… -- SCRIPT ARGUMENT…`.

It is `python -m torch.distributed.run`, but for three things at its end: a signal is reported in one line instead of
torchrun's traceback, it reaches ranks that torchrun was only starting when it came, and no folder stays in TMPDIR but
one that torchrun's report of a failure names.

Imports nothing of collbench: it ends where torchrun begins.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

# Whoever names one of these wants torchrun's files, or says where they go.
_ABOUT_LOGS = ("--log-dir", "--log_dir", "--redirects", "-r", "--tee", "-t", "--logs-specs", "--logs_specs")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# How long ranks may take to end by a signal before they are killed: as long as torchrun gives them.
_GRACE_S = 30.0


def wants_logs(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether torchrun's arguments, or its variables, request files of its ranks' output."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    named = {option.split("=")[0] for option in options}
    variables = {f"PET_{name.lstrip('-').replace('-', '_').upper()}" for name in _ABOUT_LOGS if len(name) > 2}
    return bool(named & set(_ABOUT_LOGS) or variables & environment.keys())


def main(arguments: Sequence[str]) -> NoReturn:
    """Run torchrun to its end, and end as it does; by a signal with 128 + its number."""
    for number in _SIGNALS:  # until torchrun handles them, when it starts ranks: perhaps after minutes
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    # Named before it is made: a signal may come between two lines.
    folder = Path(tempfile.gettempdir(), f"collbench-torchrun-{secrets.token_hex(8)}")
    status = _run(arguments, folder)
    named = status == 1 and any(files for _, _, files in os.walk(folder))  # in its report of a failure
    if not named:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    sys.exit(status)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


def _run(arguments: Sequence[str], folder: Path) -> int:
    """Run torchrun, which gets a folder for its files unless it has one, and return its status."""
    try:
        from torch.distributed.run import main as torchrun

        sys.argv = ["torchrun", *arguments]
        if not wants_logs(arguments, os.environ):
            folder.mkdir(mode=0o700)
            sys.argv[1:1] = ["--log-dir", str(folder)]
        torchrun()
    except KeyboardInterrupt as error:
        return _ended_by(signal.Signals(*error.args or (signal.SIGINT,)))
    except SystemExit as error:  # wrong options, say: argparse has reported
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:  # noqa: BLE001  # as Python would, without this file's own lines
        if (number := getattr(error, "sigval", None)) is not None:  # torchrun's SignalException
            return _ended_by(signal.Signals(number))
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, frames)
        return 1
    return 0


def _ended_by(number: signal.Signals) -> int:
    for again in _SIGNALS:
        signal.signal(again, signal.SIG_DFL)  # torchrun's handlers would raise in the wait for ranks
    _end_ranks(number)
    sys.stderr.write(f"collbench: the job was ended by {number.name}\n")
    return 128 + number


def _end_ranks(number: signal.Signals) -> None:
    """End the ranks that torchrun has not: of those that it was starting it knows nothing, and they keep their GPUs."""
    ranks = _children()
    for rank in ranks:
        os.kill(rank, number)
    deadline = time.monotonic() + _GRACE_S
    while ranks and time.monotonic() < deadline:
        time.sleep(0.02)
        ranks = _children()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)


def _children() -> list[int]:
    """Return the running processes that this one started. A child stays until it is waited for, so each can be sent a
    signal; those that ended are not returned."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # a process that has just ended
            continue
        if parent == str(os.getpid()) and state != "Z":
            children.append(int(path.parent.name))
    return children


if __name__ == "__main__":
    main(sys.argv[1:])
