"""Hosts on one machine whose links have rates, and which can be stopped, killed and cut off.

Where root may make network namespaces each host has one, and a bridge joins them: token buckets (tbf) shape what it
sends and what it receives. Elsewhere all hosts are on loopback, `NCCL_HOSTID` tells them apart, and a preloaded library
paces the sockets of each: what a host sends has a rate, and none can be cut off.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.distributed import namespaces
from tests.distributed.processes import as_slurm, free_port

# Far below what two busy cores carry, so that the link decides and not the processor.
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
    """`count` hosts h0, h1, …; `before` are the words that run a command on each, `places` what its process gets."""

    count: int
    before: Sequence[Sequence[str]]
    places: list[dict[str, object]]
    bridge: str = ""  # the namespace that joins them, "" where sockets are paced
    _stopped: list[int] = field(default_factory=list)

    def rate(self, host: int, mbit: float, *, sends: bool = True, receives: bool = True) -> None:
        """Limit what a host sends, receives, or both, in Mbit/s; with paced sockets before it starts, and it sends."""
        if not self.bridge:
            if not sends:
                pytest.skip("paced sockets have no rate of what a host receives")
            self.places[host]["EMULATED_BYTES_PER_S"] = round(mbit * 1e6 / 8)
            return
        space = self.before[host][3]
        for wanted, where, device in ((sends, space, "veth0"), (receives, self.bridge, f"port{host}")):
            if wanted:
                shape = f"tbf rate {mbit}mbit burst {_BURST_BYTES} latency 200ms"
                _run(f"tc -n {where} qdisc replace dev {device} root {shape}")

    def cut(self, host: int) -> None:
        """Cut the host's cable: nothing comes or goes any more, and nobody is told."""
        if not self.bridge:
            pytest.skip("without namespaces no host can be cut off")
        _run(f"ip -n {self.bridge} link set port{host} down")

    def stop(self, process: subprocess.Popen[str]) -> None:
        """Stop all processes of a host, as a kernel that hangs does; `process` is the first of them."""
        for found in _family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGSTOP)
                self._stopped.append(found)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill all processes of a host at once."""
        for found in _family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)

    def end(self) -> None:
        """Leave nobody stopped: whoever is killed must be able to end."""
        for found in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)


@contextlib.contextmanager
def emulated_hosts(
    count: int, tmp_path: Path, *, paced: bool | None = None, mbit: float = RATE_MBIT
) -> Iterator[Hosts]:
    """Give hosts with links of `mbit` Mbit/s; `paced` sockets where None and namespaces are not permitted."""
    if paced is None:
        paced = not namespaces.permitted() or shutil.which("tc") is None
    with contextlib.ExitStack() as stack:
        if paced:
            found = Hosts(count, [["env"]] * count, _paced_places(count, _library(tmp_path)))
        else:
            words = stack.enter_context(namespaces.hosts(count))
            found = Hosts(count, words, _places(count, namespaces.address(0), 29500), namespaces.bridge())
        stack.callback(found.end)
        for host in range(count):
            found.rate(host, mbit)
        yield found


def _places(count: int, address: str, port: int, **changes: object) -> list[dict[str, object]]:
    alone = {"SLURM_LOCALID": 0, "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})", "MASTER_ADDR": address}
    named = [{"NCCL_HOSTID": f"h{host}", **changes} for host in range(count)]
    return [as_slurm(host, count, port, SLURM_NODEID=host, **alone, **named[host]) for host in range(count)]


def _paced_places(count: int, library: Path) -> list[dict[str, object]]:
    preloaded = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD", ""))))
    return _places(count, "127.0.0.1", free_port(), LD_PRELOAD=preloaded)


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


def _family(first: int) -> list[int]:
    """Return the ids of a process and all that it has started, parents first."""
    found = [first]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in task.read_text(encoding="ascii").split()]
    return found
