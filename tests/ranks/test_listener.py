"""The listener admits ranks that know the key, on this machine's loopback, whatever other clients do."""

from __future__ import annotations

import contextlib
import functools
import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.machine.launchers import LaunchEnvironment
from collbench.ranks import connection as under_test
from collbench.ranks import factory
from collbench.ranks.connection import KEY_BYTES, Listener, connect
from collbench.ranks.factory import late_after

KEY = bytes(range(KEY_BYTES))
WRONG = bytes(KEY_BYTES)
LOOPBACK = "127.0.0.1"
TIMEOUT_S = 30.0


@pytest.fixture
def open_sockets() -> Iterator[contextlib.ExitStack]:
    """Keep sockets open until the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def listening(world_size: int) -> Iterator[Listener]:
    listener = Listener(KEY, world_size, LOOPBACK)
    try:
        yield listener
    finally:
        listener.close()


def connecting(listener: Listener, key: bytes, rank: int, results: list[object]) -> threading.Thread:
    """Connect as a rank does, in a thread; add the socket or the error to `results`."""

    def knock() -> None:
        try:
            results.append(connect((LOOPBACK,), listener.port, key, rank))
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("title", "knocks", "missing"),
    [
        ("all ranks", [(KEY, 2), (KEY, 1)], []),
        ("a stranger", [(WRONG, 1), (KEY, 2)], [1]),
        ("a rank twice", [(KEY, 1), (KEY, 1)], [2]),
        ("a rank that cannot be", [(KEY, 3), (KEY, 0), (KEY, 1)], [2]),
    ],
)
def test_ranks_that_know_the_key_are_admitted(title: str, knocks: list[tuple[bytes, int]], missing: list[int]) -> None:
    with listening(3) as listener:
        results: list[object] = []
        threads = [connecting(listener, *knock, results) for knock in knocks]
        deadline = time.monotonic() + TIMEOUT_S
        waiting_for = listener.admit(0.05)
        while waiting_for and any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            waiting_for = listener.admit(0.05)
        assert waiting_for == missing
        admitted = listener.take()
        assert sorted(admitted) == [rank for rank in (1, 2) if rank not in missing]
        for connection in (*admitted.values(), *(result for result in results if isinstance(result, socket.socket))):
            connection.close()


def connect_stranger(listener: Listener) -> socket.socket:
    return socket.create_connection((LOOPBACK, listener.port), TIMEOUT_S)


def sends(sent: bytes) -> Callable[[Listener], socket.socket]:
    def knock(listener: Listener) -> socket.socket:
        connection = connect_stranger(listener)
        connection.sendall(sent)
        return connection

    return knock


def hangs_up(listener: Listener) -> socket.socket:
    connection = connect_stranger(listener)
    connection.close()
    return connection


def resets(listener: Listener) -> socket.socket:
    connection = connect_stranger(listener)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    return connection


def returns_the_challenge(listener: Listener) -> socket.socket:
    """Send the listener's challenge back as its own, hoping for a proof that works in both directions."""
    connection = connect_stranger(listener)
    connection.sendall((1).to_bytes(4, "big") + bytes(32) + hmac.digest(WRONG, b"rank", "sha256"))
    return connection


@pytest.mark.parametrize(
    ("title", "attack"),
    [
        ("it says nothing", connect_stranger),
        ("it hangs up", hangs_up),
        ("it resets the connection", resets),
        ("it sends a million bytes", sends(b"\xff" * 10**6)),
        ("it shows the key itself, as an older collbench did", sends(KEY + (1).to_bytes(4, "big") + bytes(32))),
        ("its proof is wrong", returns_the_challenge),
    ],
)
def test_strangers_neither_hang_nor_stop_rank_0_nor_become_ranks(
    title: str, attack: Callable[[Listener], socket.socket], open_sockets: contextlib.ExitStack
) -> None:
    with listening(2) as listener:
        for _ in range(20):
            with contextlib.suppress(OSError):  # it is not heard to the end
                open_sockets.enter_context(attack(listener))
        begin, results = time.monotonic(), list[object]()
        thread = connecting(listener, KEY, 1, results)
        assert listener.admit(TIMEOUT_S) == []
        assert time.monotonic() - begin < under_test._HANDSHAKE_S, "the strangers' time is not the rank's"
        thread.join(TIMEOUT_S)
        (rank_connection,) = results
        assert isinstance(rank_connection, socket.socket)
        open_sockets.enter_context(rank_connection)
        for connection in listener.take().values():
            open_sockets.enter_context(connection)


def test_too_many_strangers_are_dropped(open_sockets: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_MAX_OTHER_CLIENTS", 3)
    with listening(2) as listener:
        for _ in range(10):
            open_sockets.enter_context(connect_stranger(listener))
            listener.admit(0.02)
        assert len(listener._clients) <= 5
        results: list[Any] = []
        thread = connecting(listener, KEY, 1, results)
        assert listener.admit(TIMEOUT_S) == []
        thread.join(TIMEOUT_S)
        for connection in (*listener.take().values(), *results):
            open_sockets.enter_context(connection)


def test_slow_clients_are_disconnected(open_sockets: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_HANDSHAKE_S", 0.05)
    with listening(2) as listener:
        slow = open_sockets.enter_context(connect_stranger(listener))
        deadline = time.monotonic() + TIMEOUT_S
        slow.settimeout(TIMEOUT_S)
        challenge = b""
        while (listener._clients or not challenge) and time.monotonic() < deadline:
            listener.admit(0.02)
            challenge = challenge or slow.recv(32)
        assert slow.recv(1) == b"", "the connection is closed"


def test_a_rank_does_not_trust_another_listener() -> None:
    """Another program listens on the port: it receives neither the key nor anything else."""
    received = bytearray()
    with socket.create_server((LOOPBACK, 0)) as impostor:

        def listen() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(bytes(32))
                while len(received) < 68 and (data := connection.recv(100)):
                    received.extend(data)
                connection.sendall(bytes(32))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(PermissionError, match="does not have the key of this launch"):
            connect((LOOPBACK,), impostor.getsockname()[1], KEY, 1)
        thread.join(TIMEOUT_S)
    assert len(received) == 68
    assert KEY not in bytes(received)


def test_the_second_address_is_tried_where_the_first_fails() -> None:
    with listening(2) as listener:
        connections: list[socket.socket] = []
        thread = threading.Thread(
            target=lambda: connections.append(connect(("127.255.255.254.invalid", LOOPBACK), listener.port, KEY, 1)),
            daemon=True,
        )
        thread.start()
        assert listener.admit(TIMEOUT_S) == []
        thread.join(TIMEOUT_S)
        for connection in (*connections, *listener.take().values()):
            connection.close()
    with pytest.raises(OSError, match="refused"):
        connect((LOOPBACK,), listener.port, KEY, 1)


def test_it_listens_on_one_address_only() -> None:
    with listening(2) as listener:
        assert listener._socket.getsockname()[0] == LOOPBACK
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", listener.port), TIMEOUT_S)
    everywhere = Listener(KEY, 2)
    socket.create_connection(("127.0.0.2", everywhere.port), TIMEOUT_S).close()
    everywhere.close()


@pytest.mark.parametrize(
    ("title", "connected", "world_size", "waits_to_the_end"),
    [("most are here", (1, 2), 4, False), ("half are here", (1,), 4, True), ("nobody is here", (), 3, True)],
)
def test_waiting_for_a_late_rank_ends_early_only_if_most_ranks_are_connected(
    title: str, connected: tuple[int, ...], world_size: int, waits_to_the_end: bool, open_sockets: contextlib.ExitStack
) -> None:
    results: list[object] = []
    with listening(world_size) as listener:
        for rank in connected:
            connecting(listener, KEY, rank, results)
        begin = time.monotonic()
        late_s = 0.0 if waits_to_the_end else 0.5
        missing = listener.admit(1.0 if waits_to_the_end else TIMEOUT_S, lambda latest: latest + late_s)
        elapsed_s = time.monotonic() - begin
        assert elapsed_s >= 1.0 if waits_to_the_end else elapsed_s < TIMEOUT_S
        for connection in (*results, *listener.take().values()):
            open_sockets.callback(connection.close)  # type: ignore[attr-defined]
    assert set(range(1, world_size)) - set(missing) <= set(connected)
    assert set(range(1, world_size)) - set(connected) <= set(missing)


@pytest.mark.parametrize(
    ("title", "latest_s", "until_s"),
    [
        ("nobody has come yet", 0.0, 12.0),
        ("the others came on a loaded machine", 7.0, 14.0),
        ("all load torch from a slow file system", 22.0, 44.0),
    ],
)
def test_a_rank_is_late_by_how_long_the_others_took(title: str, latest_s: float, until_s: float) -> None:
    assert late_after(1000.0, 1000.0 + latest_s) == 1000.0 + until_s


def test_a_rank_that_connects_gives_the_others_no_less_time() -> None:
    ends = [late_after(5.0, 5.0 + tenths / 10) - tenths / 10 for tenths in range(1000)]
    assert min(ends) - 5.0 >= 6.0, "and never less than half of the shortest wait after one came"
    assert sorted(late_after(5.0, 5.0 + tenths / 10) for tenths in range(1000)) == [
        late_after(5.0, 5.0 + tenths / 10) for tenths in range(1000)
    ]


@pytest.mark.parametrize(
    ("title", "since", "message"),
    [
        ("most go on", 1000.0, "once most ranks are, they continue without it"),
        ("the user has said how long", None, "waiting 290 s more at most (of 300, which COLLBENCH_JOIN_SECONDS"),
    ],
)
def test_the_users_join_timeout_is_obeyed(
    title: str, since: float | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[float, object]] = []

    class FakeListener:
        """A listener to which rank 1 of three comes."""

        address, port = LOOPBACK, 1

        def __init__(self, *_arguments: object) -> None:
            pass

        def admit(self, timeout_s: float, second_until: Callable[[float], float] | None = None) -> list[int]:
            waits.append((timeout_s, second_until and second_until(1001.0)))
            return [2]

        def take(self) -> dict[int, object]:
            return {}

        def close(self) -> None:
            pass

    monkeypatch.setattr(factory, "Listener", FakeListener)
    monkeypatch.setattr(factory, "_own_address", lambda _launch: LOOPBACK)
    world = object.__new__(factory.World)
    world.launch = LaunchEnvironment(0, 3, 0, 1, LOOPBACK, 1, "Slurm")
    world._store = SimpleNamespace(publish=lambda *_values: None, forget=lambda _name: None)  # type: ignore[assignment]
    messages: list[str] = []
    world._say = messages.append
    late = None if since is None else functools.partial(factory.late_after, since)
    assert world._admit(300.0, late, survives_losses=True) == {}
    (first_timeout_s, first_until), (second_timeout_s, second_until) = waits
    assert (first_timeout_s, first_until) == (10.0, None)
    assert second_timeout_s > 200.0
    assert second_until == (None if since is None else 1012.0)
    assert messages[0].startswith("rank 2 of 3 not connected yet: ")
    assert message in messages[0]
    assert ("COLLBENCH_JOIN_SECONDS" in messages[1]) == (since is not None), "where that would have helped"
