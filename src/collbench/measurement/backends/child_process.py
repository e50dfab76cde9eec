"""What runs beside this thread: worker processes behind pipes, which end with us, and work on another thread."""

from __future__ import annotations

import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, NamedTuple, TypeVar, cast

import collbench
from collbench.model.errors import BackendError, Cause, DataCorruption, Failure, FailureKind, MachineError, died

# A process that died closes its pipe first; one that is killed needs a moment to give its memory back.
EXIT_S = 5.0
# Seconds by which an answer may be late because others have the cores of its process. On 2% of a core, beside ten
# spinning processes in groups of their own, 0.3 s of work took 16 s.
STARVED_S = 30.0
_SLICE_S = 0.25


class ChildLost(BackendError):
    """The worker hangs or has exited. The failure says which."""


class Child:
    """A running worker: its `process`, and our end of its `pipe`. After ChildLost the caller must kill it."""

    def __init__(
        self,
        module: str,
        words: Sequence[object],
        environment: Mapping[str, str],
        *,
        stdout: int | None = None,
        files: Sequence[int] = (),
    ) -> None:
        """Start `python -m MODULE FD WORDS…` and return at once; FD is the worker's end of the pipe.

        `last_line` reads what it writes to stderr, and to stdout unless `stdout` is a file descriptor. It inherits the
        open `files`.
        """
        pathlib.Path.cwd()  # raises if it was deleted: torch would fail to load with a misleading error
        self._stderr = tempfile.TemporaryFile(prefix="collbench-worker-")  # noqa: SIM115  # closed when it is reaped
        self.pipe: Connection[Any, Any]
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                # -P: a file in the user's folder must not become one of our modules, nor torch.
                [sys.executable, "-P", "-m", module, *map(str, (theirs.fileno(), *words))],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr if stdout is None else stdout,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(), *files),
                env=environment,
            )

    def send(self, request: object) -> None:
        """Send a request. If the worker is gone, `receive` raises."""
        with suppress(OSError):
            self.pipe.send(request)

    def receive(self, timeout_s: float, starved_s: float = 0.0) -> Any:
        """Return the next answer. Raises ChildLost after this many seconds of silence, or if the worker has exited.

        Up to `starved_s` seconds in which the worker waits for a core, or is stopped, are not silence. After these the
        failure is not a hang, unless the worker ran for most of the time.
        """
        starvation = Starvation([self.process.pid], starved_s)
        try:
            if not readable([self.pipe], timeout_s, starvation.silent)[0]:
                raise ChildLost(failure=starvation.failure(timeout_s))
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise ChildLost(failure=self.death()) from error

    def kill(self) -> None:
        """End the process, even a stopped one, without waiting for it."""
        self.process.kill()
        self.pipe.close()

    def reap(self, seconds: float = EXIT_S) -> None:
        """Wait a while for a killed process to exit and release its memory on the GPUs."""
        with suppress(subprocess.TimeoutExpired):  # stuck in the driver: it ends when the driver's call returns
            self.exit_status(seconds)
        self._stderr.close()

    def exit_status(self, seconds: float) -> int:
        """Wait this long for the process to exit, and return its status. Raises TimeoutExpired.

        Popen.wait with a timeout looks only every 50 ms: it is used only where the kernel has no pidfd.
        """
        left = seconds
        if self.process.poll() is None:  # else its id may be another process's
            with suppress(OSError):
                descriptor = os.pidfd_open(self.process.pid)
                try:
                    wait([descriptor], seconds)
                finally:
                    os.close(descriptor)
                left = 0.0
        return self.process.wait(left)

    def last_line(self) -> str:
        """Return the last line that the process wrote to stderr, "" for none."""
        number = self._stderr.fileno()
        written = os.pread(number, os.fstat(number).st_size, 0)  # without moving the process's position in the file
        lines = written.decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def death(self) -> Failure:
        """Wait a while for a process that closed its pipe, and return how it ended."""
        try:
            status = self.exit_status(EXIT_S)
        except subprocess.TimeoutExpired:
            return Failure(FailureKind.CRASH, Cause.ENDING)
        return died(status, self.last_line())


class Scheduled(NamedTuple):
    """How long threads have run and have waited for a core, in ns; 0 where the kernel does not say.

    `ready`: one of them waits for a core or runs, or is stopped. The kernel adds a wait only when it ends.
    """

    ran: int
    waited: int
    ready: bool

    def lost_since(self, before: Scheduled) -> float:
        """Return the share of the time since `before` in which they could not run."""
        ran, waited = (max(0, new - old) for new, old in zip(self[:2], before[:2], strict=True))
        if ran + waited > 0:
            return waited / (ran + waited)
        return 1.0 if self.ready and self.ran > 0 else 0.0


def scheduled(process_ids: Sequence[int]) -> Scheduled:
    """Return what the kernel says of all threads of these processes."""
    ran, waited, states = 0, 0, set[str]()
    for thread in chain.from_iterable(pathlib.Path(f"/proc/{process_id}/task").glob("*") for process_id in process_ids):
        with suppress(OSError, ValueError):  # a thread that has just ended
            on_core, in_queue, _ = map(int, (thread / "schedstat").read_text(encoding="ascii").split())
            ran, waited = ran + on_core, waited + in_queue
            states.add((thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0])
    return Scheduled(ran, waited, bool(states & {"R", "T"}))


class Starvation:
    """How much of a wait for processes is silence: all but up to `most_s` seconds in which they could not run."""

    def __init__(self, process_ids: Sequence[int], most_s: float) -> None:
        self._process_ids, self._most_s = process_ids, most_s
        self._before: Scheduled | None = None
        self._lost_s = self._spared_s = 0.0

    def silent(self) -> float:
        """Return how many seconds of silence the last slice was."""
        now = scheduled(self._process_ids)
        lost = _SLICE_S * now.lost_since(self._before) if self._before else 0.0
        spared = min(lost, self._most_s - self._spared_s)
        self._before, self._lost_s, self._spared_s = now, self._lost_s + lost, self._spared_s + spared
        return _SLICE_S - spared

    def failure(self, timeout_s: float) -> Failure:
        """Return why there is no answer after this much silence."""
        waited_s = timeout_s + self._spared_s
        if self._most_s > self._spared_s or self._lost_s < waited_s / 2:
            return Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=timeout_s)
        return Failure(FailureKind.BUSY, Cause.STARVED, seconds=waited_s)


def readable(
    pipes: Sequence[Connection[Any, Any]], timeout_s: float, silent: Callable[[], float] = lambda: _SLICE_S
) -> tuple[Sequence[Connection[Any, Any]], float]:
    """Return the pipes with an answer or an end, none after this long a silence, and the seconds that are left.

    Silence is counted in slices, so that time in which this process itself was stopped (Ctrl-Z) does not count.
    `silent` returns how many seconds of silence the last slice was.
    """
    left = timeout_s
    while not (ready := cast("list[Connection[Any, Any]]", wait(pipes, max(0.0, min(left, _SLICE_S))))) and left > 0:
        left -= silent()
    return ready, left


def own_environment() -> dict[str, str]:
    """Return our environment for a worker, which then runs the same collbench, however this process found it."""
    ours = str(pathlib.Path(collbench.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


# Work on a thread of its own, beside what this one waits for.

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Work that begins at once. A thread that hangs in a library's call does not keep the process from ending."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._results = work, list[Result]()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised again in `result`
            self._failure = error

    def stand_by(self, timeout_s: float) -> float:
        """Wait for the end, successful or not, at most this long, and return the seconds that are left.

        Waits are counted in slices, as in `readable`.
        """
        left = timeout_s
        while self._thread.is_alive() and left > 0:
            begin, slice_s = time.monotonic(), min(left, _SLICE_S)
            self._thread.join(slice_s)
            left -= min(slice_s, time.monotonic() - begin)
        return left

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with a result."""
        return bool(self._results)

    def result(self) -> Result:
        """Wait for the end, and return the work's result. Raises the work's error."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]


# How a process of ours ends when its parent does, for whatever reason: SIGKILL, a crash, a lost terminal.


_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# What reaches a whole process group: a terminal's Ctrl-C, Ctrl-\ and hangup, and a scheduler's SIGTERM.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def leave_signals_to_parent() -> None:
    """Ignore what reaches the whole group: the parent decides what it means, and ends us."""
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(pipe: int) -> None:
    """Let the kernel kill this process, even one that hangs in a driver, when its parent ends.

    The kernel counts the *thread* that started us as the parent. `pipe` is a socket to the parent: it reports an end
    that came before this call.
    """
    _signal_at_parents_end(signal.SIGKILL)
    if _hung_up(pipe, wait=False):
        os._exit(0)


def leave_with_parent(pipe: int) -> None:
    """Start a thread that ends this process when the parent closes its end of `pipe`, or ends.

    For work that lets other threads run. A process that is stopped is woken for it.
    """
    _signal_at_parents_end(signal.SIGCONT)

    def wait() -> None:
        _hung_up(pipe, wait=True)
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _hung_up(pipe: int, *, wait: bool) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)  # no event but those that are always reported: the other side has hung up
    return bool(poll.poll(None if wait else 0))


def _signal_at_parents_end(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


# Workers that load torch, one per rank: gloo_worker and those of annexes; torch_rank.py is their side. Their parent,
# which uses this module, does not load it.

# `import torch` takes 3 s, and tens of seconds from a cold network disk.
JOIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Joined:
    """What a worker says once it has met the others: the versions of its torch and NCCL, and NCCL's file."""

    torch: str
    nccl: str = ""
    nccl_path: str = ""


class TorchWorkers:
    """The workers of some ranks, which get their requests together. After an error they have exited."""

    def __init__(
        self,
        module: str,
        backend: str,
        devices: Mapping[int, int],
        ranks: int,
        environment: Mapping[str, str],
        meeting: Sequence[str] = (),
        *,
        by_core: bool = False,
    ) -> None:
        """Start the worker in `module`, of collbench, for each rank of `devices` and return at once.

        `backend` is cuda or host; `devices` has the number of each rank's GPU among the visible ones, or of its core.
        All `ranks` meet in a file without a name, which nobody need remove, or at `meeting`: host, port and prefix of a
        TCPStore. Messages name a worker `by_core`, or else by its rank. Raises MachineError without torch.
        """
        if find_spec("torch") is None:
            raise MachineError("this needs torch, which is not installed: pip install torch")
        self._names = {rank: f"gloo worker on CPU{at}" if by_core else f"rank {rank}" for rank, at in devices.items()}
        self._children: dict[int, Child] = {}  # by rank
        try:
            with tempfile.TemporaryFile(prefix="collbench-") as file:
                for rank, device in devices.items():
                    words = (rank, ranks, backend, device, file.fileno(), *meeting)
                    self._children[rank] = Child(f"collbench.{module}", words, environment, files=(file.fileno(),))
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' ids; none once they have exited."""
        return tuple(child.process.pid for child in self._children.values())

    def join(self, timeout_s: float = JOIN_S) -> Joined:
        """Wait until all ranks have met; return what the first worker has loaded. Raises BackendError."""
        joined = self._replies(timeout_s)[0]
        assert isinstance(joined, Joined)  # noqa: S101  # what a worker says first
        return joined

    def ask(self, timeout_s: float, method: str, *arguments: object) -> list[Any]:
        """Call a method of every rank, and return their answers by rank. Raises as `ask_each` does."""
        return self.ask_each(timeout_s, method, [arguments] * len(self._children))

    def ask_each(self, timeout_s: float, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a method of each rank with its arguments, in the order of ranks, and return their answers.

        Raises MachineError for what a rank cannot do but others may, DataCorruption, and BackendError for one that is
        lost.
        """
        if not self._children:
            raise BackendError("the workers have exited: an earlier request failed")
        answers = self._replies(
            timeout_s, {rank: (method, own) for rank, own in zip(self._children, arguments, strict=True)}
        )
        for rank, answer in zip(self._children, answers, strict=True):
            if isinstance(answer, MachineError):
                raise MachineError(f"rank {rank}: {answer}")
            if isinstance(answer, DataCorruption):
                raise answer
        return answers

    def interrupt(self) -> None:
        """Kill the processes: another thread that waits for an answer gets an error at once."""
        for child in self._children.values():
            child.process.kill()

    def close(self) -> None:
        """End the workers, also those that hang in a collective; does nothing the second time."""
        for child in self._children.values():
            child.kill()
        deadline = time.monotonic() + EXIT_S
        for child in self._children.values():
            child.reap(max(0.0, deadline - time.monotonic()))
        self._children = {}

    def _replies(self, timeout_s: float, requests: Mapping[int, object] | None = None) -> list[Any]:
        """Send the requests by rank, and return one reply of each worker.

        Raises BackendError once one is lost or time is up; then, and after Ctrl-C, all are killed.
        """
        left, starvation, replies = timeout_s, Starvation(self.process_ids, STARVED_S), dict[int, Any]()
        try:
            for rank, request in (requests or {}).items():
                self._children[rank].send(request)
            while missing := {rank: child for rank, child in self._children.items() if rank not in replies}:
                ready, left = readable([child.pipe for child in missing.values()], left, starvation.silent)
                if not ready:
                    said = next(iter(missing.values())).last_line()
                    raise self._failed([*missing], replace(starvation.failure(timeout_s), detail=said))
                for rank, child in missing.items():
                    if child.pipe in ready:
                        try:
                            replies[rank] = child.pipe.recv()
                        except (EOFError, OSError) as error:
                            raise self._lost(rank) from error
        except BaseException:  # an unread reply would answer the next request
            self.close()
            raise
        return [replies[rank] for rank in self._children]

    def _lost(self, rank: int) -> BackendError:
        """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
        failures = {rank: self._children[rank].death()}
        failures |= {
            other: child.death() for other, child in self._children.items() if child.process.poll() is not None
        }
        cause = max(failures, key=lambda other: failures[other].signal or 0)  # a tie goes to `rank`
        return self._failed([cause], failures[cause])

    def _failed(self, ranks: Sequence[int], failure: Failure) -> BackendError:
        named = ", ".join(self._names[rank] for rank in ranks)
        return BackendError(f"{named}: {failure}", failure=replace(failure, devices=tuple(ranks)))


def worker_environment(interface: str = "lo") -> dict[str, str]:
    """Return our variables, and the network interface to listen on unless the user has chosen one."""
    # Gloo listens on the address that the host name resolves to, and in containers that name often resolves to
    # nothing or to another machine. Where all ranks are on one host, loopback always works.
    return {"GLOO_SOCKET_IFNAME": interface, **own_environment()}
