"""In place of torch: the process that imports it goes on in one that has loaded it (tests/torch_server.py).

Loading torch takes 2.5 s of a core. A program that imports torch before it does anything else may have it at once: the
server forks, and its child runs the same program with this process's arguments, variables, folder, files and cores.
This process then stands for it: it passes signals on, ends as the other one ends, and when it is killed, so is the
other one. A stop (SIGSTOP) stops this process alone. Any other program gets torch itself.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

_OURS = str(Path(__file__).parents[1])
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SERVER_GONE = 70


def _open_files() -> list[int]:
    found = []
    for file in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one of that list itself is closed by now
            os.fstat(file)
            found.append(file)
    return found


def _main() -> tuple[str | None, str]:
    """Return the module that this process runs, if it runs one, and the script."""
    if sys.argv[0] == "-m":  # this package is looked at before the module in it has a name
        return sys.orig_argv[sys.orig_argv.index("-m") + 1], ""
    specification = sys.modules["__main__"].__spec__
    return specification.name if specification else None, sys.argv[0]


def _stand_for_another(server: str, module: str | None, script: str) -> NoReturn:
    files = _open_files()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(server)
    ignored = [number for number in _PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    state = {
        "process": os.getpid(),
        "module": module,
        "script": script,
        "arguments": sys.argv,
        "folders": [folder for folder in sys.path if folder != _OURS],
        "unbuffered": getattr(sys.stdout, "write_through", False),
        "variables": dict(os.environ),
        "folder": str(Path.cwd()),
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
    end = connection.recv(16)
    status = int(end) if end else _SERVER_GONE
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


_module, _script = _main()
if _module == "collbench.__main__" or _script == "-c":  # it has begun its work
    sys.path.remove(_OURS)
    del sys.modules["torch"]
    import torch  # noqa: F401  # itself
else:
    _stand_for_another(os.environ["COLLBENCH_TEST_TORCH"], _module, _script)
