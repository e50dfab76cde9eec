"""The door that ranks come in by, on this machine's own loopback."""

import contextlib
import socket
import threading

import pytest

from collbench.world.here import host_key, interface_of
from collbench.world.wire import KEY_BYTES, Door, dial, is_loopback, own_address, plain_address, wired

KEY = bytes(range(KEY_BYTES))
PATIENCE_S = 30.0


def admitted(door: Door, timeout_s: float, *guests: tuple[bytes, int]) -> tuple[set[int], list[int]]:
    """Let guests knock, each with its key and rank; return who came in, and who is missing."""
    with contextlib.ExitStack() as stack:
        for key, rank in guests:
            stack.enter_context(dial(("127.0.0.1",), door.port, key, rank))
        came, missing = door.admit(timeout_s)
        for found in came.values():
            stack.enter_context(found)
        return set(came), missing


@pytest.mark.parametrize(
    ("title", "guests", "came", "missing"),
    [
        ("all ranks", [(KEY, 2), (KEY, 1)], {1, 2}, []),
        ("one is missing", [(KEY, 2)], {2}, [1]),
        ("a stranger", [(bytes(KEY_BYTES), 1), (KEY, 2)], {2}, [1]),
        ("a rank twice", [(KEY, 1), (KEY, 1)], {1}, [2]),
        ("a rank that cannot be", [(KEY, 3), (KEY, 0), (KEY, 1)], {1}, [2]),
    ],
)
def test_those_come_in_who_know_the_key(
    title: str, guests: list[tuple[bytes, int]], came: set[int], missing: list[int]
) -> None:
    door = Door(KEY, 3)
    try:
        assert admitted(door, PATIENCE_S if not missing else 0.3, *guests) == (came, missing)
    finally:
        door.close()


def test_somebody_who_hangs_up_is_no_rank_and_stops_nobody() -> None:
    door = Door(KEY, 2)
    try:
        socket.create_connection(("127.0.0.1", door.port)).close()
        assert admitted(door, PATIENCE_S, (KEY, 1)) == ({1}, [])
    finally:
        door.close()


def test_the_second_address_is_tried_where_the_first_leads_nowhere() -> None:
    door = Door(KEY, 2)
    try:
        with dial(("127.255.255.254.invalid", "127.0.0.1"), door.port, KEY, 1):
            came, missing = door.admit(PATIENCE_S)
            assert (list(came), missing) == ([1], [])
            came[1].close()
    finally:
        door.close()
    with pytest.raises(OSError, match="refused"):
        dial(("127.0.0.1",), door.port, KEY, 1)


def test_objects_cross_and_an_end_is_noticed() -> None:
    door = Door(KEY, 2)
    far = wired(dial(("127.0.0.1",), door.port, KEY, 1))
    near = wired(door.admit(PATIENCE_S)[0][1])
    door.close()
    threading.Thread(target=near.send, args=(list(range(10**6)),)).start()  # more than a socket's buffer holds
    assert far.recv() == list(range(10**6))
    near.close()
    with pytest.raises(EOFError):
        far.recv()
    far.close()


def test_loopback_means_nothing_to_other_hosts() -> None:
    assert own_address("localhost", 29500) == ""
    assert own_address("no-such-host.invalid", 29500) == ""
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1")))
    assert not is_loopback("10.0.0.1")
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1") == "fe80::1"


def test_interfaces_have_names() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == "", "an address for documentation, which nobody has [RFC 5737]"
    assert interface_of("2001:db8::1") == "", "likewise [RFC 3849]"
    assert host_key() == host_key() != ""
