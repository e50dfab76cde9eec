"""A process that has loaded modules, and forks for those that ask: `fork_server.py SOCKET WHAT PROCESS`.

It ends with the process whose number is PROCESS.

WHAT is `torch`, for which tests/loaded/torch asks: nothing of the program is loaded then, and a fork loads the modules
that its process would. Or `program`, for which tests/loaded/sitecustomize.py asks: all of collbench but its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import re
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

_MAX_FILES, _MAX_BYTES = 200, 2**18
# Files are first put where none of their own numbers is.
_ASIDE = 512
_ENCODINGS = {"stdout": ("utf-8", "strict"), "stderr": ("utf-8", "backslashreplace")}
_CORES = os.sched_getaffinity(0)


def serve(listener: socket.socket, watched: int) -> dict[str, Any]:
    """Fork for all that ask. Returns, in a fork, what it shall run; ends with the process `watched`, a pidfd."""
    events = select.poll()
    events.register(listener, select.POLLIN)
    events.register(watched, select.POLLIN)
    while True:
        if watched in dict(events.poll()):
            Path(sys.argv[1]).unlink()
            Path(f"{sys.argv[1]}.lock").unlink(missing_ok=True)
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(watched)
            return _forked(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):  # none has ended yet
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _forked(connection: socket.socket) -> dict[str, Any]:
    """Return, in one more fork, what it shall run. This process reports its id and end, and passes signals to it."""
    message, files, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_FILES)
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):  # the process that it stands for was killed: _watch sees that, too
            connection.send(str(child).encode())
        _watch(child, connection)
    connection.close()
    state: dict[str, Any] = json.loads(message)
    _take_over(state, files)
    return state


def _watch(child: int, connection: socket.socket) -> NoReturn:
    ended = os.pidfd_open(child)
    events = select.poll()
    events.register(ended, select.POLLIN)
    events.register(connection, select.POLLIN)
    while ended not in dict(events.poll()):
        passed_on = connection.recv(1)
        number = passed_on[0] if passed_on else signal.SIGKILL
        # No terminal could continue what SIGTSTP stops here, so the kernel would not stop it.
        os.kill(child, signal.SIGSTOP if number == signal.SIGTSTP else number)
        if not passed_on:  # the process that it stands for was killed
            break
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _take_over(state: dict[str, Any], files: list[int]) -> None:
    """Give this process all that the other one was started with."""
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, _ASIDE) for file in files]
    os.closerange(0, _ASIDE)
    for file, number in zip(aside, state["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    for space in ("mnt", "uts", "net") if "process" in state else ():  # where tests make hosts of namespaces
        namespace = Path(f"/proc/{state['process']}/ns/{space}")
        if namespace.readlink() != Path(f"/proc/self/ns/{space}").readlink():
            entered = os.open(namespace, os.O_RDONLY)
            assert ctypes.CDLL(None).setns(entered, 0) == 0
            os.close(entered)
    os.environ.clear()
    os.environ.update(state["variables"])
    os.chdir(state["folder"])
    os.sched_setaffinity(0, state.get("cores", _CORES))
    for number in state.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)
    sys.argv, sys.path[:] = state["arguments"], state["folders"]
    if "umask" in state:
        os.umask(state["umask"])
    for limit, soft_and_hard in state.get("limits", ()):
        resource.setrlimit(limit, tuple(soft_and_hard))
    unbuffered = state.get("unbuffered", False)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if number in state["files"]:
            encoding, errors = state.get("encodings", _ENCODINGS)[name]
            stream = open(number, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
            lines = unbuffered or name == "stderr" or os.isatty(number)
            stream.reconfigure(line_buffering=lines, write_through=unbuffered)
            setattr(sys, name, stream)


def run(state: dict[str, Any]) -> int:
    """Run a program as its own process would; return its exit status."""
    try:
        if state.get("code"):
            names = {"__name__": "__main__"}
            exec(compile(state["code"], "<string>", "exec"), names)  # noqa: S102
            names.clear()  # as an interpreter does at its end: tests count what is released then
            gc.collect()
        elif state["module"]:
            runpy.run_module(state["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(state["script"], run_name="__main__")
    except SystemExit as exit_request:
        if isinstance(exit_request.code, str):
            print(exit_request.code, file=sys.stderr)
            return 1
        return exit_request.code or 0
    except Exception as error:  # noqa: BLE001  # as the interpreter does, less the frames of this file and of runpy
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        return 1
    return 0


def leave(status: int) -> NoReturn:
    """End as an interpreter does, but without releasing all objects: torch's take a third of a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def load_torch() -> None:
    """Load what workers need of torch."""
    import torch
    import torch.distributed  # noqa: F401  # what most of them need

    torch.set_num_threads(1)


def load_program() -> None:
    """Load all of collbench except what imports torch and what is a program of its own."""
    import collbench

    apart = re.compile(r"worker|(overlaps|replay)\.streams|torch|agent|ended_with_us|__main__|_profiler")
    for module in pkgutil.walk_packages(collbench.__path__, "collbench."):
        if not apart.search(module.name):
            importlib.import_module(module.name)
    assert "torch" not in sys.modules
    _look_at_forks()


def _look_at_forks() -> None:
    """Let the program see how long its workers wait for a core: those are forks, for which its children only stand.

    Else a fork that others keep from its core for two seconds would count as one that hangs.
    """
    from collbench.measurement.backends import child_process

    kernels = child_process.scheduled
    child_process.scheduled = lambda process_ids: kernels([*map(_worker, process_ids)])


def _worker(process_id: int) -> int:
    """Return the fork that a process stands for (tests/loaded/stand_in.py), or the process itself."""
    try:
        name = Path(f"/proc/{process_id}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has just ended
        return process_id
    return int(name.removeprefix("for ")) if name.startswith("for ") else process_id


def main() -> None:
    """Load, listen, and run whatever a fork shall run."""
    watched = os.pidfd_open(int(sys.argv[3]))
    {"torch": load_torch, "program": load_program}[sys.argv[2]]()
    gc.collect()
    gc.freeze()  # else each fork would look through all of torch's objects, and copy their memory
    gc.set_threshold(50_000, 50, 100)  # a fork lives for a moment, and what it makes mostly stays
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lack the other threads"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        unfinished = f"{sys.argv[1]}.part"
        listener.bind(unfinished)
        listener.listen(64)
        Path(unfinished).rename(sys.argv[1])
        state = serve(listener, watched)
    leave(run(state))


if __name__ == "__main__":
    main()
