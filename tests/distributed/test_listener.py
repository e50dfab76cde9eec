"""Where ranks come in, on this machine's own loopback: those who know the key, whatever strangers do meanwhile."""

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

from collbench.distributed import connection as under_test
from collbench.distributed import factory
from collbench.distributed.connection import KEY_BYTES, Listener, connect
from collbench.distributed.factory import late_after
from collbench.distributed.launchers import LaunchEnvironment

KEY = bytes(range(KEY_BYTES))
WRONG = bytes(KEY_BYTES)
HERE = "127.0.0.1"
PATIENCE_S = 30.0


@pytest.fixture
def guests() -> Iterator[contextlib.ExitStack]:
    """Hold open what a test opens."""
    with contextlib.ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def listening(world_size: int) -> Iterator[Listener]:
    found = Listener(KEY, world_size, HERE)
    try:
        yield found
    finally:
        found.close()


def knocking(listener: Listener, key: bytes, rank: int, came: list[object]) -> threading.Thread:
    """Connect as a rank does, in a thread; add the socket to `came`, or the error."""

    def knock() -> None:
        try:
            came.append(connect((HERE,), listener.port, key, rank))
        except OSError as error:
            came.append(error)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("title", "knocks", "missing"),
    [
        ("all ranks", [(KEY, 2), (KEY, 1)], []),
        ("one is missing", [(KEY, 2)], [1]),
        ("a stranger", [(WRONG, 1), (KEY, 2)], [1]),
        ("a rank twice", [(KEY, 1), (KEY, 1)], [2]),
        ("a rank that cannot be", [(KEY, 3), (KEY, 0), (KEY, 1)], [2]),
        ("a rank that is no small number", [(KEY, 2**32 - 1), (KEY, 2)], [1]),
    ],
)
def test_those_come_in_who_know_the_key(title: str, knocks: list[tuple[bytes, int]], missing: list[int]) -> None:
    with listening(3) as listener:
        answers: list[object] = []
        threads = [knocking(listener, *knock, answers) for knock in knocks]
        deadline = time.monotonic() + PATIENCE_S
        left = listener.admit(0.05)
        while left and any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            left = listener.admit(0.05)
        assert left == missing
        came = listener.take()
        assert sorted(came) == [rank for rank in (1, 2) if rank not in missing]
        for found in (*came.values(), *(one for one in answers if isinstance(one, socket.socket))):
            found.close()


def stranger(listener: Listener) -> socket.socket:
    return socket.create_connection((HERE, listener.port), PATIENCE_S)


def says(data: bytes) -> Callable[[Listener], socket.socket]:
    def knock(listener: Listener) -> socket.socket:
        found = stranger(listener)
        found.sendall(data)
        return found

    return knock


def hangs_up(listener: Listener) -> socket.socket:
    found = stranger(listener)
    found.close()
    return found


def resets(listener: Listener) -> socket.socket:
    found = stranger(listener)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    found.close()
    return found


def returns_what_it_was_asked(listener: Listener) -> socket.socket:
    """Take the other side's number for one's own, and hope for a proof that serves both ways."""
    found = stranger(listener)
    found.sendall((1).to_bytes(4, "big") + bytes(32) + hmac.digest(WRONG, b"rank", "sha256"))
    return found


@pytest.mark.parametrize(
    ("title", "attack"),
    [
        ("it says nothing", stranger),
        ("it begins and does not go on", says(b"\0\0\0\1" + bytes(10))),
        ("it hangs up", hangs_up),
        ("it resets the connection", resets),
        ("it speaks HTTP", says(b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n")),
        ("it sends a million bytes", says(b"\xff" * 10**6)),
        ("it shows the key itself, as an older collbench did", says(KEY + (1).to_bytes(4, "big") + bytes(32))),
        ("its proof is wrong", returns_what_it_was_asked),
    ],
)
def test_strangers_neither_hang_nor_stop_nor_become_rank_0s_ranks(
    title: str, attack: Callable[[Listener], socket.socket], guests: contextlib.ExitStack
) -> None:
    with listening(2) as listener:
        for _ in range(20):
            with contextlib.suppress(OSError):  # it is not heard to the end
                guests.enter_context(attack(listener))
        begin, answers = time.monotonic(), list[object]()
        thread = knocking(listener, KEY, 1, answers)
        assert listener.admit(PATIENCE_S) == []
        assert time.monotonic() - begin < under_test._HANDSHAKE_S, "the strangers' time is not the rank's"
        thread.join(PATIENCE_S)
        (found,) = answers
        assert isinstance(found, socket.socket)
        guests.enter_context(found)
        for one in listener.take().values():
            guests.enter_context(one)


def test_more_strangers_than_there_is_room_for_make_room(
    guests: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_MOST_OTHER_CLIENTS", 3)
    with listening(2) as listener:
        for _ in range(10):
            guests.enter_context(stranger(listener))
            listener.admit(0.02)
        assert len(listener._clients) <= 5
        answers: list[Any] = []
        thread = knocking(listener, KEY, 1, answers)
        assert listener.admit(PATIENCE_S) == []
        thread.join(PATIENCE_S)
        for found in (*listener.take().values(), *answers):
            guests.enter_context(found)


def test_who_takes_too_long_is_sent_away(guests: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_HANDSHAKE_S", 0.05)
    with listening(2) as listener:
        slow = guests.enter_context(stranger(listener))
        deadline = time.monotonic() + PATIENCE_S
        slow.settimeout(PATIENCE_S)
        asked = b""
        while (listener._clients or not asked) and time.monotonic() < deadline:
            listener.admit(0.02)
            asked = asked or slow.recv(32)
        assert slow.recv(1) == b"", "the connection is closed"


def test_a_rank_does_not_trust_whoever_listens_there() -> None:
    """Another program has the port: it hears neither the key nor anything else."""
    heard = bytearray()
    with socket.create_server((HERE, 0)) as impostor:

        def listen() -> None:
            found, _ = impostor.accept()
            with found:
                found.sendall(bytes(32))
                while len(heard) < 68 and (part := found.recv(100)):
                    heard.extend(part)
                found.sendall(bytes(32))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(PermissionError, match="does not have the key of this launch"):
            connect((HERE,), impostor.getsockname()[1], KEY, 1)
        thread.join(PATIENCE_S)
    assert len(heard) == 68
    assert KEY not in bytes(heard)


def test_the_second_address_is_tried_where_the_first_leads_nowhere() -> None:
    with listening(2) as listener:
        found: list[socket.socket] = []
        thread = threading.Thread(
            target=lambda: found.append(connect(("127.255.255.254.invalid", HERE), listener.port, KEY, 1)), daemon=True
        )
        thread.start()
        assert listener.admit(PATIENCE_S) == []
        thread.join(PATIENCE_S)
        for one in (*found, *listener.take().values()):
            one.close()
    with pytest.raises(OSError, match="refused"):
        connect((HERE,), listener.port, KEY, 1)


def test_it_listens_on_one_address_alone() -> None:
    with listening(2) as listener:
        assert listener._socket.getsockname()[0] == HERE
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", listener.port), PATIENCE_S)
    everywhere = Listener(KEY, 2)
    socket.create_connection(("127.0.0.2", everywhere.port), PATIENCE_S).close()
    everywhere.close()


@pytest.mark.parametrize(
    ("title", "here", "world_size", "waits_to_the_end"),
    [("most are here", (1, 2), 4, False), ("half are here", (1,), 4, True), ("nobody is here", (), 3, True)],
)
def test_only_most_of_the_ranks_stop_waiting_for_one_that_is_late(
    title: str, here: tuple[int, ...], world_size: int, waits_to_the_end: bool, guests: contextlib.ExitStack
) -> None:
    came: list[object] = []
    with listening(world_size) as listener:
        for rank in here:
            knocking(listener, KEY, rank, came)
        begin = time.monotonic()
        late_s = 0.0 if waits_to_the_end else 0.5
        missing = listener.admit(1.0 if waits_to_the_end else PATIENCE_S, lambda latest: latest + late_s)
        passed = time.monotonic() - begin
        assert passed >= 1.0 if waits_to_the_end else passed < PATIENCE_S
        for found in (*came, *listener.take().values()):
            guests.callback(found.close)  # type: ignore[attr-defined]
    assert set(range(1, world_size)) - set(missing) <= set(here)
    assert set(range(1, world_size)) - set(here) <= set(missing)


@pytest.mark.parametrize(
    ("title", "latest_s", "until_s"),
    [
        ("nobody has come yet", 0.0, 12.0),
        ("the others came at once", 3.0, 12.0),
        ("the others came on a loaded machine", 7.0, 14.0),
        ("all load torch from a slow file system", 22.0, 44.0),
    ],
)
def test_a_rank_is_late_by_how_long_the_others_took(title: str, latest_s: float, until_s: float) -> None:
    assert late_after(1000.0, 1000.0 + latest_s) == 1000.0 + until_s


def test_a_rank_that_comes_gives_the_others_no_less_time() -> None:
    ends = [late_after(5.0, 5.0 + tenths / 10) - tenths / 10 for tenths in range(1000)]
    assert min(ends) - 5.0 >= 6.0, "and never less than half of the shortest wait after one came"
    assert sorted(late_after(5.0, 5.0 + tenths / 10) for tenths in range(1000)) == [
        late_after(5.0, 5.0 + tenths / 10) for tenths in range(1000)
    ]


@pytest.mark.parametrize(
    ("title", "since", "says"),
    [
        ("most go on", 1000.0, "once most ranks are, they continue without it"),
        ("the user has said how long", None, "waiting 290 s more at most (of 300, which COLLBENCH_JOIN_SECONDS"),
    ],
)
def test_who_said_how_long_to_wait_is_obeyed(
    title: str, since: float | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[float, object]] = []

    class Nobody:
        """A listener to which rank 1 of three comes."""

        address, port = HERE, 1

        def __init__(self, *_arguments: object) -> None:
            pass

        def admit(self, timeout_s: float, until: Callable[[float], float] | None = None) -> list[int]:
            waits.append((timeout_s, until and until(1001.0)))
            return [2]

        def take(self) -> dict[int, object]:
            return {}

        def close(self) -> None:
            pass

    monkeypatch.setattr(factory, "Listener", Nobody)
    monkeypatch.setattr(factory, "_own_address", lambda _launch: HERE)
    world = object.__new__(factory.World)
    world.launch = LaunchEnvironment(0, 3, 0, 1, HERE, 1, "Slurm")
    world._store = SimpleNamespace(publish=lambda *_values: None, forget=lambda _name: None)  # type: ignore[assignment]
    said: list[str] = []
    world._say = said.append
    late = None if since is None else functools.partial(factory.late_after, since)
    assert world._admit(300.0, late, survives_losses=True) == {}
    (first, none), (rest, until) = waits
    assert (first, none) == (10.0, None)
    assert rest > 200.0
    assert until == (None if since is None else 1012.0)
    assert said[0].startswith("rank 2 of 3 not connected yet: ")
    assert says in said[0]
    assert ("COLLBENCH_JOIN_SECONDS" in said[1]) == (since is not None), "where that would have helped"
