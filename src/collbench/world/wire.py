"""The lines between rank 0 and the other ranks: one TCP connection each, so that a rank that dies is missed at once."""

from __future__ import annotations

import hmac
import socket
import time
from multiprocessing.connection import Connection
from typing import TypeAlias

from collbench.world.messages import Order, Word

KEY_BYTES = 32
_RANK_BYTES = 4
# A stranger who connects and says nothing must not hold up the ranks for longer.
_GREETING_S = 10.0
# A host that loses power sends no farewell: probe after 10 s of silence, every 5 s, give up after 3 without answer.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_DIAL_S = 5.0

# Rank 0's end, and the other ranks'.
Line: TypeAlias = "Connection[Order, Word]"
FarEnd: TypeAlias = "Connection[Word, Order]"


def listen() -> socket.socket:
    """Return a socket that listens on a free port of every address, IPv6 too where there is any."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError:
            pass  # compiled in, switched off
    return socket.create_server(("", 0), backlog=128)


def own_address(peer: str, port: int) -> str:
    """Return this host's address towards `peer`; "" where that is loopback, which means nothing to other hosts."""
    for family, kind, protocol, _, address in _resolved(peer, port):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # UDP: sends nothing, but chooses the interface
            except OSError:
                continue
            found = plain_address(probe.getsockname()[0])
            return "" if is_loopback(found) else found
    return ""


def _resolved(peer: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        return list(socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM))
    except OSError:
        return []


def is_loopback(address: str) -> bool:
    """Return whether an address means this very host."""
    return address.startswith("127.") or address == "::1"


def plain_address(address: str) -> str:
    """Return an IPv4 address that an IPv6 socket shows as "::ffff:10.0.0.1" in its own form."""
    return address.removeprefix("::ffff:") if "." in address else address


class Door:
    """Where ranks come in: they show the key that they read from the store, and say who they are."""

    def __init__(self, key: bytes, world_size: int) -> None:
        """Listen; `key` has KEY_BYTES."""
        self._key, self._world_size = key, world_size
        self._socket = listen()
        self.port: int = self._socket.getsockname()[1]

    def admit(self, timeout_s: float) -> tuple[dict[int, socket.socket], list[int]]:
        """Return the ranks' sockets by rank, and the ranks from 1 on that did not come in so many seconds."""
        deadline = time.monotonic() + timeout_s
        came: dict[int, socket.socket] = {}
        while len(came) < self._world_size - 1 and (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                guest, _ = self._socket.accept()
            except TimeoutError:
                break
            rank = self._greeting(guest)
            if rank is None or rank in came or not 0 < rank < self._world_size:
                guest.close()
            else:
                came[rank] = guest
        return came, [rank for rank in range(1, self._world_size) if rank not in came]

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()

    def _greeting(self, guest: socket.socket) -> int | None:
        guest.settimeout(_GREETING_S)
        try:
            said = _exactly(guest, KEY_BYTES + _RANK_BYTES)
        except OSError:
            return None
        # Nothing that a stranger sends is unpickled.
        if not hmac.compare_digest(said[:KEY_BYTES], self._key):
            return None
        return int.from_bytes(said[KEY_BYTES:], "big")


def dial(addresses: tuple[str, ...], port: int, key: bytes, rank: int) -> socket.socket:
    """Return a connection to rank 0's door, which has one of these addresses. Raises OSError."""
    failure = OSError("rank 0 told no address")
    for address in addresses:
        try:
            found = socket.create_connection((address, port), timeout=_DIAL_S)
            found.sendall(key + rank.to_bytes(_RANK_BYTES, "big"))
        except OSError as error:
            failure = error
        else:
            return found
    raise failure


def wired(found: socket.socket) -> Connection:
    """Return a socket as a connection that carries objects, and whose silence after a power cut is noticed."""
    found.settimeout(None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        found.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(found.detach())


def _exactly(guest: socket.socket, count: int) -> bytes:
    """Return so many bytes. Raises OSError when fewer come."""
    said = b""
    while len(said) < count:
        part = guest.recv(count - len(said))
        if not part:
            raise ConnectionResetError("the other side hung up")
        said += part
    return said
