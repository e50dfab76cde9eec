"""The TCP connections between rank 0 and the other ranks; both ends prove that they know the launch's key."""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Generic, TypeAlias, TypeVar

from collbench.ranks.messages import BadMessage, Order, RankMessage, decode_order, decode_rank_message, encode

# The handshake: a rank connects to rank 0, and both prove that they know this launch's key.

KEY_BYTES = 32
_NONCE_BYTES, _PROOF_BYTES, _RANK_BYTES = 32, 32, 4
_ANSWER_BYTES = _RANK_BYTES + _NONCE_BYTES + _PROOF_BYTES
# Seconds that a client has to prove itself, and how many clients besides the ranks may try at a time.
_HANDSHAKE_S = 10.0
_MAX_OTHER_CLIENTS = 64
_CONNECT_S = 5.0


class Listener:
    """Accepts ranks: each proves that it knows the key, and rank 0 proves it too.

    Clients that are not ranks, or that stall, delay nobody: each has a thread of its own.
    """

    def __init__(self, key: bytes, world_size: int, address: str = "") -> None:
        """Listen on a free port of one address, "" for all; `key` has KEY_BYTES. Raises OSError."""
        self._key, self._world_size = key, world_size
        self._socket = _listening(address)
        self._clients: list[socket.socket] = []  # which have not yet proved to be ranks, the oldest first
        self._admitted: dict[int, socket.socket] = {}
        self._latest_admission = time.monotonic()
        self._changed = threading.Condition()
        self.address = address
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def admit(self, timeout_s: float, until: Callable[[float], float] | None = None) -> list[int]:
        """Wait until all ranks have connected, for at most `timeout_s`. Return the missing ones, from rank 1 on.

        Once most ranks have connected, the wait ends at `until`(time of the last connection). Both are times of
        time.monotonic.
        """
        deadline = time.monotonic() + timeout_s

        def ends() -> float:
            most = 2 * (len(self._admitted) + 1) > self._world_size
            return min(deadline, until(self._latest_admission)) if most and until is not None else deadline

        with self._changed:
            while (missing := self._missing()) and (left := ends() - time.monotonic()) > 0:
                self._changed.wait(left)
        return missing

    def take(self) -> dict[int, socket.socket]:
        """Return the sockets of the connected ranks, by rank. The caller must close them."""
        with self._changed:
            admitted, self._admitted = self._admitted, {}
        return admitted

    def close(self) -> None:
        """Stop accepting clients."""
        with self._changed:
            for peer in (self._socket, *self._clients):
                _hang_up(peer)
            for peer in self._admitted.values():
                peer.close()
            self._admitted = {}

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._world_size) if rank not in self._admitted]

    def _accept(self) -> None:
        """Give each client a thread; drop the oldest one if there are too many, or no file is left."""
        with self._socket:
            while True:
                accepted: list[socket.socket] = []
                try:
                    accepted.append(self._socket.accept()[0])
                except OSError as error:
                    if error.errno == errno.EINVAL:  # it was closed
                        return
                    time.sleep(0.1)
                with self._changed:
                    full = len(self._clients) >= self._world_size + _MAX_OTHER_CLIENTS
                    if self._clients and (full or not accepted):
                        _hang_up(self._clients.pop(0))
                    self._clients += accepted
                for peer in accepted:
                    threading.Thread(target=self._hear, args=(peer,), daemon=True).start()

    def _hear(self, peer: socket.socket) -> None:
        """Admit a client that proves to be a missing rank, and prove rank 0 to it; else close its connection."""
        with suppress(OSError):
            peer.settimeout(_HANDSHAKE_S)
            nonce = secrets.token_bytes(_NONCE_BYTES)
            peer.sendall(nonce)
            answer = _exactly(peer, _ANSWER_BYTES)
            head, proof = answer[:-_PROOF_BYTES], answer[-_PROOF_BYTES:]
            rank = int.from_bytes(head[:_RANK_BYTES], "big")
            proved = hmac.compare_digest(proof, _proof(self._key, b"rank", nonce, head))
            with self._changed:
                if proved and rank in self._missing() and peer in self._clients:
                    peer.sendall(_proof(self._key, b"rank 0", nonce, head))
                    self._clients.remove(peer)
                    self._admitted[rank], self._latest_admission = peer, time.monotonic()
                    self._changed.notify()
                    return
        with self._changed:
            if peer in self._clients:
                self._clients.remove(peer)
        peer.close()


def _hang_up(peer: socket.socket) -> None:
    """End a connection, which another thread may use: that one closes it."""
    with suppress(OSError):  # the other side was faster
        peer.shutdown(socket.SHUT_RDWR)


def connect(addresses: tuple[str, ...], port: int, key: bytes, rank: int) -> socket.socket:
    """Return a connection to rank 0, which listens on one of these addresses and knows the key. Raises OSError."""
    failure = OSError("rank 0 reported no address")
    for address in addresses:
        try:
            peer = socket.create_connection((address, port), timeout=_CONNECT_S)
        except OSError as error:
            failure = error
            continue
        try:
            _prove_key(peer, key, rank)
        except OSError as error:
            peer.close()
            failure = error
        else:
            return peer
    raise failure


def _prove_key(peer: socket.socket, key: bytes, rank: int) -> None:
    """Prove knowledge of the key, and check the other side's proof. Raises OSError."""
    peer.settimeout(_HANDSHAKE_S)
    nonce = _exactly(peer, _NONCE_BYTES)
    head = rank.to_bytes(_RANK_BYTES, "big") + secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(head + _proof(key, b"rank", nonce, head))
    if not hmac.compare_digest(_exactly(peer, _PROOF_BYTES), _proof(key, b"rank 0", nonce, head)):
        raise PermissionError("the process that listens there does not have the key of this launch")


def _proof(key: bytes, sender: bytes, nonce: bytes, head: bytes) -> bytes:
    """Return an HMAC over the sender, both sides' random numbers and the rank; it requires the key."""
    return hmac.digest(key, b"collbench %s\0%s%s" % (sender, nonce, head), "sha256")


def _exactly(peer: socket.socket, count: int) -> bytes:
    """Return `count` bytes. Raises OSError if fewer arrive, or too late."""
    deadline, received = time.monotonic() + _HANDSHAKE_S, b""
    while len(received) < count and time.monotonic() < deadline:
        part = peer.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        received += part
    if len(received) < count:
        raise TimeoutError(f"the other side did not complete the handshake in {_HANDSHAKE_S:.0f} s")
    return received


def _listening(address: str) -> socket.socket:
    """Return a socket that listens on a free port of this address; "" means all addresses, IPv6 too if available."""
    if address:
        family, *_, bound = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        return socket.create_server(bound, family=family, backlog=128)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError:
            pass  # IPv6 is compiled in, but switched off
    return socket.create_server(("", 0), backlog=128)


# The connections after the handshake: one over TCP each, so that a rank's death is noticed at once. A frame is its
# length, four bytes, and a message (messages.py).

# A host that loses power does not close its connections: probe after 10 s of silence, every 5 s, at most 3 times.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# A device takes 300 bytes: enough for a world of many thousand ranks, and too little to exhaust a host's memory.
MAX_BYTES = 16 * 2**20
_LENGTH_BYTES = 4
# If a frame is not read for this long, the process is stopped: it gets no other frame.
_SEND_S = 30.0

_Sent = TypeVar("_Sent", bound="Order | RankMessage")
_Received = TypeVar("_Received", bound="Order | RankMessage")


class Connection(Generic[_Sent, _Received]):
    """One end of a socket that carries messages."""

    def __init__(self, peer: socket.socket, decode: Callable[[bytes], _Received]) -> None:
        """Take over the socket."""
        peer.settimeout(_SEND_S)
        self._socket, self._decode = peer, decode
        self._frame = bytearray()  # what has arrived of it, its length included

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._socket.fileno()

    def send(self, message: _Sent) -> None:
        """Send a message. Raises OSError if the other side has exited or no longer reads."""
        self.send_frame(framed(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what `framed` returned. Raises OSError; afterwards this connection sends nothing more."""
        try:
            self._socket.sendall(frame)
        except OSError:
            _hang_up(self._socket)  # else the rest would be read as the start of the next frame
            raise

    def receive(self) -> _Received | None:
        """Return the next message if it is complete, else None. Call it when there are bytes to read.

        Raises EOFError or OSError if the other side has exited, BadMessage.
        """
        part = self._socket.recv(self._missing())  # never a byte of the next frame: polling must see that one
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
            wait([self._socket])
            message = self.receive()
            if message is not None:
                return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _missing(self) -> int:
        """Return how many bytes are missing, of the length or of the frame. Raises BadMessage."""
        here = len(self._frame)
        if here < _LENGTH_BYTES:
            return _LENGTH_BYTES - here
        length = int.from_bytes(self._frame[:_LENGTH_BYTES], "big")
        if not 0 < length <= MAX_BYTES:
            raise BadMessage(f"it announced a message of {length} bytes: 1 to {MAX_BYTES} are possible")
        return _LENGTH_BYTES + length - here


# Rank 0's end of a connection to a rank, and that rank's end.
RankConnection: TypeAlias = Connection[Order, RankMessage]
Rank0Connection: TypeAlias = Connection[RankMessage, Order]


def framed(message: Order | RankMessage) -> bytes:
    """Return a message as bytes to send. Raises ValueError if it cannot be encoded."""
    data = encode(message)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is longer than {MAX_BYTES}")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def to_rank(peer: socket.socket) -> RankConnection:
    """Return rank 0's end of an admitted socket."""
    return Connection(_with_keepalive(peer), decode_rank_message)


def to_rank_0(peer: socket.socket) -> Rank0Connection:
    """Return another rank's end of its socket to rank 0."""
    return Connection(_with_keepalive(peer), decode_order)


def pair() -> tuple[RankConnection, Rank0Connection]:
    """Return both ends of a connection within this process, for rank 0's own device."""
    ours, theirs = socket.socketpair()
    return Connection(ours, decode_rank_message), Connection(theirs, decode_order)


def own_address(peer: str, port: int) -> str:
    """Return this host's address towards `peer`, "" if that is not known."""
    with suppress(OSError):  # the name is unknown
        for family, kind, protocol, _, address in socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, suppress(OSError):
                probe.connect(address)  # UDP: sends nothing, but chooses the interface
                return plain_address(probe.getsockname()[0])
    return ""


def is_loopback(address: str) -> bool:
    """Return whether an address is on the loopback interface."""
    return address.startswith("127.") or address == "::1"


def plain_address(address: str) -> str:
    """Return an IPv4 address that an IPv6 socket shows as "::ffff:10.0.0.1" in its own form."""
    return address.removeprefix("::ffff:") if "." in address else address


def _with_keepalive(peer: socket.socket) -> socket.socket:
    """Return the socket with TCP keepalive, which detects a power loss of the other host."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    return peer
