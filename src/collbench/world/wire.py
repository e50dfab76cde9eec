"""The connections between rank 0 and the other ranks: one over TCP each, so that a rank that dies is missed at once.

Both sides have proved who they are (listener.py). A frame is its length, four bytes, and a message (codec.py).
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeAlias, TypeVar

from collbench.world.codec import BadMessage, decode_order, decode_word, encode
from collbench.world.messages import Order, Word

# A host that loses power sends no farewell: probe after 10 s of silence, every 5 s, give up after 3 without answer.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# 300 bytes tell of a device: enough for a world of many thousand, and too little to exhaust a host's memory.
MOST_BYTES = 16 * 2**20
_LENGTH_BYTES = 4
# A frame that is not taken for so long is for a process that is stopped: it gets no other.
_SEND_S = 30.0

_Sent = TypeVar("_Sent", bound="Order | Word")
_Received = TypeVar("_Received", bound="Order | Word")


class HasFile(Protocol):
    """What the kernel can wait for."""

    def fileno(self) -> int:
        """Return its number."""


_Ready = TypeVar("_Ready", bound=HasFile)


def ready(heard: Iterable[_Ready], seconds: float | None = None) -> list[_Ready]:
    """Return those of which there is something to read, waiting so long for the first; None: for ever."""
    with selectors.PollSelector() as selector:  # a thousand sockets cost it one call of the system
        for one in heard:
            selector.register(one, selectors.EVENT_READ, one)
        return [key.data for key, _ in selector.select(seconds)]


class Connection(Generic[_Sent, _Received]):
    """One end of a socket that carries messages. `ready` waits for it."""

    def __init__(self, found: socket.socket, decode: Callable[[bytes], _Received]) -> None:
        """Take over the socket."""
        found.setblocking(False)
        self._socket, self._decode = found, decode
        self._frame = bytearray()  # what has come of it, its length included

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._socket.fileno()

    def send(self, message: _Sent) -> None:
        """Send a message. Raises OSError when the other side is gone, or takes nothing any more."""
        self.send_frame(framed(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what `framed` returned. Raises OSError; then nothing more arrives from here."""
        deadline, left = time.monotonic() + _SEND_S, memoryview(frame)
        try:
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    if not _writable(self._socket, deadline - time.monotonic()):
                        raise TimeoutError(f"nothing was taken for {_SEND_S:.0f} s") from None
        except OSError:
            self._hang_up()  # the rest of a frame would be taken for the start of another
            raise

    def receive(self) -> _Received | None:
        """Return the message of which the last byte is there, None while some are not. Call it when there are bytes.

        Raises EOFError or OSError when the other side is gone, BadMessage.
        """
        try:
            part = self._socket.recv(self._missing())  # never a byte of the next frame: `ready` must see that one
        except BlockingIOError:
            return None
        if not part:
            raise EOFError
        self._frame += part
        if self._missing():
            return None
        frame, self._frame = bytes(self._frame[_LENGTH_BYTES:]), bytearray()
        return self._decode(frame)

    def recv(self) -> _Received:
        """Return the next message, waiting for it. Raises what `receive` raises."""
        while True:
            ready([self])
            message = self.receive()
            if message is not None:
                return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _missing(self) -> int:
        """Return how many bytes are missing: of the length, or then of the frame. Raises BadMessage."""
        here = len(self._frame)
        if here < _LENGTH_BYTES:
            return _LENGTH_BYTES - here
        length = int.from_bytes(self._frame[:_LENGTH_BYTES], "big")
        if not 0 < length <= MOST_BYTES:
            raise BadMessage(f"it announced a message of {length} bytes: 1 to {MOST_BYTES} are possible")
        return _LENGTH_BYTES + length - here

    def _hang_up(self) -> None:
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)


# Rank 0's end, and the other ranks'.
Line: TypeAlias = Connection[Order, Word]
FarEnd: TypeAlias = Connection[Word, Order]


def framed(message: Order | Word) -> bytes:
    """Return a message as it goes over the wire. Raises ValueError for what cannot."""
    data = encode(message)
    if len(data) > MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is longer than {MOST_BYTES}")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def line(found: socket.socket) -> Line:
    """Return rank 0's end of an admitted socket."""
    return Connection(_kept_alive(found), decode_word)


def far_end(found: socket.socket) -> FarEnd:
    """Return another rank's end."""
    return Connection(_kept_alive(found), decode_order)


def pair() -> tuple[Line, FarEnd]:
    """Return both ends of a connection within this process, for rank 0's own device."""
    ours, theirs = socket.socketpair()
    return Connection(ours, decode_word), Connection(theirs, decode_order)


def own_address(peer: str, port: int) -> str:
    """Return this host's address towards `peer`, "" where that cannot be told."""
    for family, kind, protocol, _, address in _resolved(peer, port):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # UDP: sends nothing, but chooses the interface
            except OSError:
                continue
            return plain_address(probe.getsockname()[0])
    return ""


def is_loopback(address: str) -> bool:
    """Return whether an address means this very host."""
    return address.startswith("127.") or address == "::1"


def plain_address(address: str) -> str:
    """Return an IPv4 address that an IPv6 socket shows as "::ffff:10.0.0.1" in its own form."""
    return address.removeprefix("::ffff:") if "." in address else address


def _kept_alive(found: socket.socket) -> socket.socket:
    """Return the socket, whose silence after a power cut is noticed."""
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        found.setsockopt(socket.IPPROTO_TCP, option, value)
    return found


def _writable(found: socket.socket, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(found, selectors.EVENT_WRITE)
        return seconds > 0 and bool(selector.select(seconds))


def _resolved(peer: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        return list(socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM))
    except OSError:
        return []
