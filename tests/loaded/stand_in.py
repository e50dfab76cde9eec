"""Lets another process run what this one was started for: a fork of one that has loaded modules (tests/fork_server.py).

The fork gets this process's arguments, variables, folder, files, limits and cores. This process then stands for it: it
forwards signals, exits as the fork exits, and if it is killed, the fork is killed too. SIGSTOP stops this process
alone, SIGTSTP the other one alone. Its name, /proc/PID/comm, is `for` and the fork's id.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from types import FrameType
from typing import NoReturn

_OURS = os.path.dirname(__file__)  # noqa: PTH120  # pathlib takes longer to load than all of this
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
_SERVER_GONE = 70


def _open_files() -> list[int]:
    open_files = []
    for file in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the descriptor of that list itself is closed by now
            os.fstat(file)
            open_files.append(file)
    return open_files


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def stand_in(server: str, module: str | None, script: str = "", folders: tuple[str, ...] = ()) -> NoReturn:
    """Let a fork of the server run a module or a script, with `folders` before this process's own to import from."""
    files = _open_files()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(server)
    ignored = [number for number in _PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    state = {
        "process": os.getpid(),
        "module": module,
        "script": script,
        "arguments": sys.argv,
        "folders": [*folders, *(folder for folder in sys.path if folder != _OURS)],
        "unbuffered": getattr(sys.stdout, "write_through", False),
        "encodings": {"stdout": _encoding(sys.stdout), "stderr": _encoding(sys.stderr)},
        "variables": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "umask": _umask(),
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        "cores": sorted(os.sched_getaffinity(0)),
        "ignored": [int(number) for number in ignored],
        "files": files,
    }

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

    for number in _PASSED_ON:
        if number not in ignored:
            signal.signal(number, pass_on)
    socket.send_fds(connection, [json.dumps(state).encode()], files)
    for file in files:
        os.close(file)
    if fork := _received(connection):
        with open("/proc/self/comm", "wb") as name:  # noqa: PTH123
            name.write(b"for " + fork)
    end = _received(connection)
    status = int(end) if end else _SERVER_GONE
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(16)
    except ConnectionResetError:  # a signal was left unread, as it came too late; what was sent before is there still
        return connection.recv(16)


def _encoding(stream: object) -> tuple[str, str]:
    return getattr(stream, "encoding", "utf-8"), getattr(stream, "errors", "strict")
