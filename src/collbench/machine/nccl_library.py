"""Which NCCL to time: the very one that the training job will load, or the one the user names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from collbench import _native
from collbench.model.errors import MachineError

_NAME = "libnccl.so.2"


def find_nccl(explicit: str | None, open_library: Callable[[str], _native.Nccl] = _native.Nccl) -> _native.Nccl:
    """Return NCCL from the user's path, this process, torch's wheel, or the system, in that order.

    What exists first is used: a path that the user gave, or a wheel, that fails is an error and never a fall-through,
    for then another library than the job's would be timed. Raises MachineError.
    """
    if explicit:
        return _open(explicit, open_library, "check --nccl and COLLBENCH_NCCL")
    try:
        return open_library("")
    except _native.LibraryError:
        pass  # nothing loaded it yet
    wheel = wheel_library()
    if wheel is not None:
        return _open(str(wheel), open_library, "reinstall nvidia-nccl, or name another with --nccl PATH")
    return _open(_NAME, open_library, "install torch with CUDA or libnccl2, or name a file with --nccl PATH")


def wheel_library() -> Path | None:
    """Return the library of the nvidia-nccl wheel that torch depends on, None if it is not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((path for folder in folders if (path := Path(folder, "lib", _NAME)).exists()), None)


def _open(path: str, open_library: Callable[[str], _native.Nccl], advice: str) -> _native.Nccl:
    try:
        return open_library(path)
    except _native.LibraryError as error:
        raise MachineError(str(error), advice) from error
