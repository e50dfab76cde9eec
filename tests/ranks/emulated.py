"""Hosts on one machine whose links have rates, and which can be killed.

Where root may make network namespaces each host has one, and a bridge joins them: token buckets (tbf) shape what it
sends and what it receives. Elsewhere all hosts are on loopback, `NCCL_HOSTID` tells them apart, and a preloaded library
paces the sockets of each: what a host sends has a rate.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ranks import namespaces
from tests.ranks.processes import as_slurm, free_port

# Far below what two busy cores reach, so that the link is the bottleneck and not the processor.
RATE_MBIT = 40.0
# A bucket this deep is empty after a hundredth of a message; packets that are larger are cut.
_BURST_BYTES = 8000
_PACING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

static int paced(int fd) {
    const char *rate = getenv("EMULATED_BYTES_PER_S");
    unsigned value = rate ? (unsigned)atol(rate) : 0;
    if (fd >= 0 && value) setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof value);
    return fd;
}

int connect(int fd, const struct sockaddr *to, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    int segment = 1448; /* as Ethernet's: TCP does not pace the first ten, and loopback's are 64 KiB each */
    setsockopt(paced(fd), IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    return real(fd, to, length);
}

int accept(int fd, struct sockaddr *from, socklen_t *length) {
    int (*real)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "accept");
    return paced(real(fd, from, length));
}

int accept4(int fd, struct sockaddr *from, socklen_t *length, int flags) {
    int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    return paced(real(fd, from, length, flags));
}
"""


@dataclass(slots=True)
class Hosts:
    """`count` hosts h0, h1, …; `before` is the command prefix of each, `places` the environment of its process."""

    count: int
    before: Sequence[Sequence[str]]
    places: list[dict[str, object]]
    bridge: str = ""  # the namespace that joins them, "" where sockets are paced

    def rate(self, host: int, mbit: float, *, sends: bool = True, receives: bool = True) -> None:
        """Limit what a host sends, receives, or both, in Mbit/s; with paced sockets before it starts, and it sends."""
        if not self.bridge:
            if not sends:
                pytest.skip("paced sockets have no rate of what a host receives")
            self.places[host]["EMULATED_BYTES_PER_S"] = round(mbit * 1e6 / 8)
            return
        host_namespace = self.before[host][3]
        for is_limited, namespace, device in ((sends, host_namespace, "veth0"), (receives, self.bridge, f"port{host}")):
            if is_limited:
                shape = f"tbf rate {mbit}mbit burst {_BURST_BYTES} latency 200ms"
                _run(f"tc -n {namespace} qdisc replace dev {device} root {shape}")

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill all processes of a host at once."""
        for process_id in _descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


@contextlib.contextmanager
def emulated_hosts(
    count: int, tmp_path: Path, *, paced: bool | None = None, mbit: float = RATE_MBIT
) -> Iterator[Hosts]:
    """Yield hosts with links of `mbit` Mbit/s; paced=None paces sockets only where namespaces are not permitted."""
    if paced is None:
        paced = not namespaces.permitted() or shutil.which("tc") is None
    with contextlib.ExitStack() as stack:
        if paced:
            hosts = Hosts(count, [["env"]] * count, _paced_environments(count, _library(tmp_path)))
        else:
            prefixes = stack.enter_context(namespaces.hosts(count))
            hosts = Hosts(count, prefixes, _environments(count, namespaces.address(0), 29500), namespaces.bridge())
        for host in range(count):
            hosts.rate(host, mbit)
        yield hosts


def _environments(count: int, address: str, port: int, **changes: object) -> list[dict[str, object]]:
    one_task_per_node = {"SLURM_LOCALID": 0, "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})", "MASTER_ADDR": address}
    host_variables = [{"NCCL_HOSTID": f"h{host}", **changes} for host in range(count)]
    return [
        as_slurm(host, count, port, SLURM_NODEID=host, **one_task_per_node, **host_variables[host])
        for host in range(count)
    ]


def _paced_environments(count: int, library: Path) -> list[dict[str, object]]:
    preloaded = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD", ""))))
    return _environments(count, "127.0.0.1", free_port(), LD_PRELOAD=preloaded)


def _library(tmp_path: Path) -> Path:
    """Return the library that paces sockets, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("hosts need root's namespaces, or a C compiler for a library that paces sockets")
    source, library = tmp_path / "pacing.c", tmp_path / "pacing.so"
    source.write_text(_PACING, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def _descendants(root: int) -> list[int]:
    """Return the ids of a process and all that it has started, parents first."""
    process_ids = [root]
    for process_id in process_ids:
        for task in Path(f"/proc/{process_id}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                process_ids += [int(child) for child in task.read_text(encoding="ascii").split()]
    return process_ids
