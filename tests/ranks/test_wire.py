"""A connection between rank 0 and another: whole messages arrive; anything else neither hangs nor crashes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait

import pytest

from collbench.machine.launchers import LaunchEnvironment
from collbench.measurement.backends.protocol import Call
from collbench.model.errors import BackendError
from collbench.ranks import connection
from collbench.ranks.connection import MAX_BYTES, framed, is_loopback, own_address, plain_address, to_rank, to_rank_0
from collbench.ranks.coordinator import RankLost, Ranks
from collbench.ranks.factory import _address, _own_address
from collbench.ranks.messages import BadMessage, Done, Leave
from collbench.ranks.store import interface_of

TIMEOUT_S = 30.0


@pytest.fixture
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a TCP connection: rank 0's and another rank's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def test_messages_cross_and_an_end_is_noticed(socket_pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = to_rank(socket_pair[0]), to_rank_0(socket_pair[1])
    large = Done("make_id", "f" * 10**7)  # more than a socket's buffer holds

    def send() -> None:
        far.send(large)
        far.send(Done("reserve"))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert near.recv() == large
    assert near.recv() == Done("reserve"), "what comes right behind is another message"
    sender.join(TIMEOUT_S)
    near.close()
    with pytest.raises(EOFError):
        far.recv()


def test_part_of_a_message_blocks_no_receiver(socket_pair: tuple[socket.socket, socket.socket]) -> None:
    far = to_rank_0(socket_pair[1])
    message = framed(Leave())
    for byte in message[:-1]:
        socket_pair[0].sendall(bytes([byte]))
        wait([socket_pair[1]], TIMEOUT_S)
        assert far.receive() is None
    socket_pair[0].sendall(message[-1:])
    assert far.recv() == Leave()


@pytest.mark.parametrize(
    ("title", "data"),
    [
        ("a message that is too long", (MAX_BYTES + 1).to_bytes(4, "big")),
        ("an endless one", b"\xff" * 100),
        ("an empty one", bytes(4)),
        ("no message", b"\0\0\0\4abcd"),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n"),
    ],
)
def test_a_rank_that_sends_invalid_messages_is_lost_by_name(
    title: str, data: bytes, socket_pair: tuple[socket.socket, socket.socket]
) -> None:
    ranks = Ranks({1: to_rank(socket_pair[0])}, {1: "rank 1 on node1"})
    socket_pair[1].sendall(data)
    with pytest.raises(RankLost, match="rank 1 on node1 sent a bad message"):
        ranks.ask({1: Call("introduce")})


def test_a_rank_that_stops_in_the_middle_of_a_message_is_lost(socket_pair: tuple[socket.socket, socket.socket]) -> None:
    ranks = Ranks({1: to_rank(socket_pair[0])}, {1: "rank 1 on node1"}, silence_s=0.3)
    socket_pair[1].sendall(framed(Done("reserve"))[:-1])
    with pytest.raises(RankLost, match="rank 1 on node1 is silent"):
        ranks.ask({1: Call("introduce")})


def test_sending_to_a_side_that_reads_nothing_times_out(
    socket_pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SEND_S", 0.2)
    near = to_rank_0(socket_pair[0])
    with pytest.raises(TimeoutError):
        near.send(Done("make_id", "f" * (MAX_BYTES - 100)))
    with pytest.raises(BrokenPipeError):
        near.send(Done("reserve"))


def test_messages_that_are_too_long_are_not_sent() -> None:
    with pytest.raises(ValueError, match="longer than"):
        framed(Done("make_id", "f" * MAX_BYTES))


def test_invalid_messages_of_rank_0_are_refused(socket_pair: tuple[socket.socket, socket.socket]) -> None:
    far = to_rank_0(socket_pair[1])
    socket_pair[0].sendall(b"\0\0\0\4abcd")
    with pytest.raises(BadMessage):
        far.recv()


@pytest.mark.parametrize("text", ["", "[]", "{}", '["", "1", ""]', '["", 1, "no digits"]', '["", 1]'])
def test_invalid_entries_of_the_store_are_refused(text: str) -> None:
    with pytest.raises(BackendError, match="start all ranks again"):
        _address(text)


def test_rank_0_listens_where_the_other_ranks_can_connect() -> None:
    """Loopback is enough for one host; a name that means loopback on its own host alone says nothing."""
    one_host = LaunchEnvironment(0, 2, 0, 2, "127.0.0.1", 29500, "torchrun")
    assert _own_address(one_host) == "127.0.0.1"
    assert _own_address(LaunchEnvironment(0, 2, 0, 1, "127.0.1.1", 29500, "Slurm")) == ""
    outward = own_address("192.0.2.1", 29500)  # for documentation [RFC 5737]: routed, if at all, as any other host
    if outward:  # there is a network
        assert _own_address(LaunchEnvironment(0, 2, 0, 1, outward, 29500, "Slurm")) == outward


def test_an_address_of_this_host_towards_another() -> None:
    assert is_loopback(own_address("localhost", 29500))
    assert own_address("no-such-host.invalid", 29500) == ""
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1")))
    assert not is_loopback("10.0.0.1")
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1") == "fe80::1"


def test_interfaces_have_names() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == "", "an address for documentation, which nobody has [RFC 5737]"
    assert interface_of("2001:db8::1") == "", "likewise [RFC 3849]"
