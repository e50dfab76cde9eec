"""torch's TCPStore: how processes that know only a host and a port find each other. Torch is loaded late."""

from __future__ import annotations

import fcntl
import os
import pathlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from collbench.machine.launchers import NUMBER, LaunchEnvironment, shown
from collbench.model.errors import BackendError, MachineError, UsageError

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # absent from torch's __all__


# Schedulers start ranks minutes apart where a container image must be fetched first.
JOIN_S = 300.0
JOIN_VARIABLE = "COLLBENCH_JOIN_SECONDS"
_LONGEST_JOIN_S = 86_400


def join_seconds(environment: Mapping[str, str]) -> float:
    """Return how long ranks wait for each other at the start, in seconds. Raises UsageError."""
    value = environment.get(JOIN_VARIABLE, "").strip()
    if not value:
        return JOIN_S
    if not NUMBER.fullmatch(value) or not 0 < int(value) <= _LONGEST_JOIN_S:
        raise UsageError(f"{JOIN_VARIABLE}={shown(value)}: write whole seconds, 1 to {_LONGEST_JOIN_S}")
    return float(value)


# The network interface through which this process reaches the others.

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_NAME_BYTES, _ADDRESS_AT = 256, 20  # struct ifreq: a name of up to 16 bytes, then a sockaddr_in with the address


def interface_of(address: str) -> str:
    """Return the network interface that has an address, or "" if it is not known."""
    if ":" in address:
        return _interface_of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_NAME_BYTES}s", name.encode())
            try:
                packed = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[_ADDRESS_AT : _ADDRESS_AT + 4]
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(packed) == address:
                return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        lines = pathlib.Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith(wanted)), "")


# The store.

# Waits shorter than this are not reported.
UNSAID_S = 10.0
# Waits are cut into slices, between which signals end them. A store that can be reached answers at once.
_SLICE_S, _PAUSE_S, _DIAL_S, _ATTEMPT_S = 1.0, 0.25, 5.0, 10.0
# A launcher opens its store before it starts ranks: if the port stays closed for this long, the launcher is gone.
_CLOSED_S = 5.0
# How long the store may take to delete a value, which nobody waits for.
_FORGET_S = 5.0

_Value = TypeVar("_Value")


class _Silent(Exception):
    """The store accepts connections, and does not answer: its process is stopped."""


def _answer(call: Callable[[], _Value], over: Callable[[], bool]) -> _Value:
    """Return what a call of torch returns. Raises what it raises, and _Silent once `over()`.

    Torch waits for an answer in C++, where no signal and no timeout ends the wait: in a thread that is left behind.
    """
    answers: queue.SimpleQueue[tuple[_Value] | RuntimeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(),))
        except RuntimeError as error:  # torch.distributed's own errors are RuntimeErrors
            answers.put(error)

    threading.Thread(target=ask, name="store", daemon=True).start()
    while True:
        try:
            answer = answers.get(timeout=_SLICE_S)
        except queue.Empty:
            if over():
                raise _Silent from None
            continue
        if isinstance(answer, RuntimeError):
            raise answer
        return answer[0]


class Waiting:
    """A wait with a deadline. A notice reports it once it has lasted some seconds."""

    def __init__(self, timeout_s: float, text: str, say: Callable[[str], object] | None) -> None:
        """Begin to wait. `text` says which rank waits for what."""
        self.text, self.say = text, say
        self._timeout_s, self._begin, self._said = timeout_s, time.monotonic(), say is None

    def left(self) -> float:
        """Return how many seconds are left, at least 0."""
        return max(0.0, self._begin + self._timeout_s - time.monotonic())

    def over(self) -> bool:
        """Return whether the deadline has passed; report the wait once it is long."""
        left = self.left()
        if not self._said and self._timeout_s - left > UNSAID_S:
            self._said = True
            if self.say is not None:
                self.say(still_waiting(self.text, left, self._timeout_s))
        return left == 0.0


def still_waiting(what: str, left_s: float, timeout_s: float) -> str:
    """Return the notice of a wait that lasts."""
    return f"{what}: waiting {left_s:.0f} s more at most (of {timeout_s:.0f}, which {JOIN_VARIABLE} sets)"


class Store:
    """Small values by name, for all ranks of this launch. The rank that sets one deletes it after use."""

    def __init__(
        self, launch: LaunchEnvironment, timeout_s: float, say: Callable[[str], object] = lambda _text: None
    ) -> None:
        """Reach the store within `timeout_s` seconds; rank 0 opens it unless the launcher did. Raises MachineError.

        `say` gets one notice, after some seconds, of what this rank waits for.
        """
        # Nobody needs to act on torch's warnings on stderr (a host without a reverse name, a port that is not open
        # yet); errors are raised. Torch reads this variable once, when it is loaded.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # absent from torch's __all__
        except ImportError as error:
            raise MachineError(
                f"{launch.launcher} started several ranks, which connect through torch: pip install torch"
            ) from error
        self._launch, self._timeout_s = launch, timeout_s
        self._waiting = Waiting(
            timeout_s,
            f"{_self(launch)} has not found rank 0 at {launch.meeting_point} yet",
            say if speaks(launch) else None,
        )
        self._store: PrefixStore = PrefixStore(prefix(launch), self._reached())

    def _reached(self) -> TCPStore:
        """Open the store, or connect to it. Raises BackendError."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as above

        launch = self._launch
        opens = launch.rank == 0 and not launch.agent_listens

        def reach() -> TCPStore:
            return TCPStore(
                launch.master_addr,
                launch.master_port,
                launch.world_size,
                is_master=opens,
                timeout=timedelta(seconds=max(1.0, min(_ATTEMPT_S, self._waiting.left()))),
                wait_for_workers=False,  # rank 0 waits for them itself, and can then name the missing ones
            )

        while True:
            if not opens:
                self._await_listener()
            try:
                return _answer(reach, self._waiting.over)
            except _Silent as error:
                raise self._silence(self._timeout_s) from error
            except RuntimeError as error:
                if opens or self._waiting.over():
                    raise BackendError(self._unreachable(error, opens=opens)) from error

    def _await_listener(self) -> None:
        """Return once the port is open. Raises BackendError, at once if the launcher that opened it is gone."""
        closed_since: float | None = None
        while True:
            try:
                with socket.create_connection(
                    (self._launch.master_addr, self._launch.master_port), max(0.1, min(_DIAL_S, self._waiting.left()))
                ):
                    return
            except ConnectionRefusedError as error:
                closed_since = closed_since or time.monotonic()
                if self._launch.agent_listens and time.monotonic() - closed_since > _CLOSED_S:
                    raise self._gone() from error
                failure: OSError = error
            except OSError as error:
                failure = error
            if self._waiting.over():
                raise BackendError(self._unreachable(failure, opens=False)) from failure
            time.sleep(_PAUSE_S)

    def publish(self, name: str, value: str) -> None:
        """Set a value. Raises BackendError."""
        try:
            _answer(lambda: self._store.set(name, value), Waiting(self._timeout_s, "", None).over)
        except _Silent as error:
            raise self._silence(self._timeout_s) from error
        except RuntimeError as error:
            raise BackendError(f"{self._where()} no longer answers: {_first_line(error)}") from error

    def read(self, name: str) -> str:
        """Return a value, waiting for it. Raises BackendError if it is not set in time, or if the store has exited."""
        from torch.distributed import DistStoreError

        waiting = Waiting(self._timeout_s, self._waiting.text, self._waiting.say)

        def get() -> bytes:
            self._store.wait([name], timedelta(seconds=_SLICE_S))
            return bytes(self._store.get(name))

        while True:
            try:
                return _answer(get, waiting.over).decode()
            except _Silent as error:
                raise self._silence(self._timeout_s) from error
            except DistStoreError as error:  # not yet
                if waiting.over():
                    raise BackendError(
                        f"{_self(self._launch)} waited {self._timeout_s:.0f} s for rank 0, which did not connect to "
                        f"{self._launch.meeting_point}: check the output of rank 0, and that both run the same command"
                    ) from error
            except RuntimeError as error:
                raise self._gone() from error

    def forget(self, name: str) -> None:
        """Delete a value, if the store still answers."""
        with suppress(RuntimeError, _Silent):  # the store's process has exited, and its values with it
            _answer(lambda: self._store.delete_key(name), Waiting(_FORGET_S, "", None).over)

    def _where(self) -> str:
        return f"the store at {self._launch.meeting_point}"

    def _server(self) -> str:
        return self._launch.launcher if self._launch.agent_listens else "rank 0"

    def _gone(self) -> BackendError:
        return BackendError(f"{_self(self._launch)} stops: {self._server()}, which kept {self._where()}, is gone")

    def _silence(self, seconds: float) -> BackendError:
        return BackendError(
            f"{_self(self._launch)} stops: {self._where()} did not answer for {seconds:.0f} s: {self._server()} is "
            "stopped, or another program listens there"
        )

    def _unreachable(self, error: Exception, *, opens: bool) -> str:
        if opens:
            return (
                f"rank 0 cannot listen at {self._launch.meeting_point}: {_first_line(error)}; MASTER_ADDR must be this "
                f"host ({socket.gethostname()}), and MASTER_PORT a free port"
            )
        return (
            f"{_self(self._launch)} reached no store at {self._launch.meeting_point} within {self._timeout_s:.0f} s: "
            "check that rank 0 was started there, and that this host may connect to that port"
        )


def prefix(launch: LaunchEnvironment) -> str:
    """Return the prefix of our keys in the store, which separates them from the launcher's and from earlier starts'."""
    return f"collbench/{launch.generation}"


def speaks(launch: LaunchEnvironment) -> bool:
    """Return whether this rank reports waits for its whole host: one line per rank would be a thousand lines."""
    return launch.local_rank == 0 or launch.rank == 1


def _self(launch: LaunchEnvironment) -> str:
    return f"rank {launch.rank} on {socket.gethostname()}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].removesuffix(".")
