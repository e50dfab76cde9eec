"""torchrun in this process, as `train` starts it: `python -P agent.py TORCHRUN-OPTION… -- SCRIPT ARGUMENT…`.

It is `python -m torch.distributed.run`, but for two things at its end: a signal is reported in one line instead of
torchrun's traceback, and no folder stays in TMPDIR but one that torchrun's report of a failure names.

Imports nothing of collbench: it ends where torchrun begins.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

# Whoever names one of these wants torchrun's files, or says where they go.
_ABOUT_LOGS = ("--log-dir", "--log_dir", "--redirects", "-r", "--tee", "-t", "--logs-specs", "--logs_specs")


def wants_logs(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether torchrun's arguments, or its variables, request files of its ranks' output."""
    options = words[: words.index("--")] if "--" in words else words
    named = {word.split("=")[0] for word in options}
    variables = {f"PET_{name.lstrip('-').replace('-', '_').upper()}" for name in _ABOUT_LOGS if len(name) > 2}
    return bool(named & set(_ABOUT_LOGS) or variables & environment.keys())


def main(words: Sequence[str]) -> NoReturn:
    """Run torchrun to its end, and end as it does; by a signal with 128 + its number."""
    folder = "" if wants_logs(words, os.environ) else tempfile.mkdtemp(prefix="collbench-torchrun-")
    sys.argv = ["torchrun", *(["--log-dir", folder] if folder else []), *words]
    status = _run()
    named = status == 1 and any(files for _, _, files in os.walk(folder))  # in its report of a failure
    if folder and not named:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    sys.exit(status)


def _run() -> int:
    try:
        from torch.distributed.run import main as torchrun

        torchrun()
    except KeyboardInterrupt:
        return _ended_by(signal.SIGINT)
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
    sys.stderr.write(f"collbench: the job was ended by {number.name}\n")
    return 128 + number


if __name__ == "__main__":
    main(sys.argv[1:])
