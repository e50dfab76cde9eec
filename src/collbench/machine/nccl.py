"""NCCL on this machine: which library to time, which variables its files set, and which host it takes us to be on."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collbench import _native
from collbench.machine.kernel import read
from collbench.model.errors import MachineError

_LIBRARY = "libnccl.so.2"


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


# Which processes share a host: NCCL compares a hash of one string of each [src/misc/utils.cc, getHostHashOnce].

# What an id must be like to stand for the host in tables and sentences.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")
_MAX_BYTES = 1023  # NCCL compares no more of the string


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """This process's host."""

    name: str  # what people call it
    key: str  # processes with the same key share a host for NCCL
    # The same where loopback joins two processes, which the key does not say: NCCL_HOSTID may make several hosts of one
    # network namespace, or one host of several.
    network: str
    boot: str = ""  # the kernel's boot id, "" if unknown


def host_identity(environment: Mapping[str, str], root: pathlib.Path = pathlib.Path("/")) -> HostIdentity:
    """Return the host that NCCL takes this process to be on; `root` holds proc/ and etc/.

    NCCL_HOSTID where it is set, even to nothing, in the environment or in nccl.conf; else host name and boot id.
    """
    named, boot = socket.gethostname(), (read(root / "proc/sys/kernel/random/boot_id").split() or [""])[0]
    host_id = environment.get("NCCL_HOSTID")
    if host_id is None:
        host_id = next((value for _, name, value in configured(root, environment) if name == "NCCL_HOSTID"), None)
    key = os.fsencode(f"{named}{boot}" if host_id is None else host_id)[:_MAX_BYTES]
    return HostIdentity(
        name=host_id if host_id is not None and _NAME.fullmatch(host_id) else named,
        key=os.fsdecode(key),
        network=f"{boot}/{_network_namespace(root)}",
        boot=boot,
    )


def _network_namespace(root: pathlib.Path) -> int:
    try:
        return (root / "proc/self/ns/net").stat().st_ino
    except OSError:
        return 0
