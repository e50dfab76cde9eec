"""Which processes share a host: NCCL compares a hash of one string of each [src/misc/utils.cc, getHostHashOnce]."""

from __future__ import annotations

import os
import pathlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from collbench.machine.kernel import read
from collbench.machine.nccl import configured

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
