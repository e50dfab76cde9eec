"""torch's TCPStore: where processes that know only a host and a port find each other. Torch is loaded here, late."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from collbench.errors import BackendError, MachineError
from collbench.world.environment import Place

if TYPE_CHECKING:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # absent from torch's __all__


class Publisher(Protocol):
    """Where rank 0 leaves what the ranks share."""

    def publish(self, name: str, value: str) -> None:
        """Set a value."""

    def forget(self, name: str) -> None:
        """Delete it."""


class Store:
    """Small values by name, for all ranks of this launch. Who sets one deletes it after use: runs are long."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        """Reach the store within `timeout_s` seconds; rank 0 opens it unless the launcher did. Raises MachineError."""
        # Its warnings on stderr (a host without a reverse name, a port not open yet) are nothing to act on; what is, is
        # raised. Torch reads this once, when it is loaded.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # as above
        except ImportError as error:
            raise MachineError(
                f"{place.launcher} started several ranks, which meet through torch: pip install torch"
            ) from error
        self._place = place
        opens = place.rank == 0 and not place.agent_listens
        try:
            store = TCPStore(
                place.master_addr,
                place.master_port,
                place.world_size,
                is_master=opens,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,  # rank 0 waits for them itself, and can then say who is missing
            )
        except RuntimeError as error:  # torch.distributed's own errors are RuntimeErrors
            raise BackendError(self._unreachable(timeout_s, error, opens=opens)) from error
        self._store: PrefixStore = PrefixStore(prefix(place), store)
        self._timeout_s = timeout_s

    def publish(self, name: str, value: str) -> None:
        """Set a value. Raises BackendError."""
        try:
            self._store.set(name, value)
        except RuntimeError as error:
            raise BackendError(f"{self._where()} does not answer any more: {_first_line(error)}") from error

    def read(self, name: str) -> str:
        """Return a value, waiting for it. Raises BackendError when nobody sets it in time."""
        try:
            return bytes(self._store.get(name)).decode()
        except RuntimeError as error:
            raise BackendError(
                f"{_self(self._place)} waited {self._timeout_s:.0f} s in vain for rank 0, which should have come to "
                f"{self._place.meeting_point}: see what rank 0 says, and whether both run the same command"
            ) from error

    def forget(self, name: str) -> None:
        """Delete a value, if the store still answers."""
        with suppress(RuntimeError):  # whoever keeps the store is gone, and the value with it
            self._store.delete_key(name)

    def _where(self) -> str:
        return f"the store at {self._place.meeting_point}"

    def _unreachable(self, timeout_s: float, error: RuntimeError, *, opens: bool) -> str:
        if opens:
            return (
                f"rank 0 cannot listen at {self._place.meeting_point}: {_first_line(error)}; MASTER_ADDR must be this "
                f"host ({socket.gethostname()}), and MASTER_PORT a free port"
            )
        return (
            f"{_self(self._place)} reached nobody at {self._place.meeting_point} within {timeout_s:.0f} s: check that "
            "rank 0 was started there, and that this host may connect to that port"
        )


def prefix(place: Place) -> str:
    """Return what our names in the store begin with: the launcher's own, and an earlier start's, stay apart."""
    return f"collbench/{place.generation}"


def _self(place: Place) -> str:
    return f"rank {place.rank} on {socket.gethostname()}"


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().split("\n")[0].removesuffix(".")
