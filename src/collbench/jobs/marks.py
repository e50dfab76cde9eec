"""Where a program says that a step begins: `collbench.step()`, which costs nothing where nobody records.

Its moments go to a file beside the streams of NCCL's plugin, which cannot see them. Loads nothing but os and time.
"""

from __future__ import annotations

import os
import time

FOLDER = "COLLBENCH_RECORD_FOLDER"
STEP_RANGE = "COLLBENCH_RECORD_STEP_RANGE"
_file: int | None = None  # open since the first step, -1 where nobody records


def step() -> None:
    """Mark where a training step begins or ends: once a step, always at the same place, on every rank.

    `collbench record` then cuts the job's calls there instead of searching for its steps. Without `record`, or with its
    `--step-range`, the call does nothing; if the mark cannot be written, it is left out.
    """
    global _file  # noqa: PLW0603  # a look at a global is all that an unrecorded step may cost
    if _file is None:
        _file = _opened(os.environ.get(FOLDER, ""))
    if _file >= 0:
        os.write(_file, time.monotonic_ns().to_bytes(8, "little"))


def _opened(folder: str) -> int:
    """Return the file of this process, -1 if there is none to write."""
    if not folder or os.environ.get(STEP_RANGE):  # the job's NVTX ranges mark its steps instead
        return -1
    name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns():x}.marks"
    try:
        return os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except OSError:
        return -1
