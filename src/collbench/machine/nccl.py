"""NCCL on this machine: which library to time, and which variables its files set."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Mapping

from collbench import _native
from collbench.machine.kernel import read
from collbench.model.errors import MachineError

_LIBRARY = "libnccl.so.2"


def find_nccl(explicit: str | None, open_library: Callable[[str], _native.Nccl] = _native.Nccl) -> _native.Nccl:
    """Return NCCL from the user's path, this process, torch's wheel, or the system, in that order.

    The first that exists is used. If a path that the user gave or a wheel fails, that is an error, never a
    fall-through: another library than the job's would be timed. Raises MachineError.
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
    return _open(_LIBRARY, open_library, "install torch with CUDA or libnccl2, or name a file with --nccl PATH")


def wheel_library() -> pathlib.Path | None:
    """Return the library of the nvidia-nccl wheel that torch depends on, None if it is not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((path for folder in folders if (path := pathlib.Path(folder, "lib", _LIBRARY)).exists()), None)


def _open(path: str, open_library: Callable[[str], _native.Nccl], advice: str) -> _native.Nccl:
    try:
        return open_library(path)
    except _native.LibraryError as error:
        raise MachineError(str(error), advice) from error


def configured(root: pathlib.Path, environment: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return (file, name, value) that NCCL takes from its files where the environment does not set the name.

    In NCCL's order: the first that sets a name wins [src/misc/param.cc, initEnvFunc; setenv without overwriting].
    """
    own = environment.get("NCCL_CONF_FILE") or (f"{environment['HOME']}/.nccl.conf" if "HOME" in environment else "")
    settings: dict[str, tuple[str, str, str]] = {}
    for file in filter(None, (own, "/etc/nccl.conf")):
        path = root / file[1:] if file.startswith("/") else pathlib.Path(file)
        for line in read(path).splitlines() if path.is_file() else ():  # not of a device, which may never end
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#") and name not in environment:
                settings.setdefault(name, (file, name, value))
    return tuple(settings.values())
