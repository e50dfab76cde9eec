"""Which transport NCCL's log names for each link, in the formats of its versions.

Lines as the sources of 2.10 to 2.30 format them [src/transport/p2p.cc, shm.cc, net.cc].
"""

from __future__ import annotations

import pytest

from collbench.p2p.examine import parsed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Channel 00/1 : 0[0] -> 3[3] via P2P/direct pointer/read", {(0, 3): "P2P/direct pointer/read"}),
        ("Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM", {(1, 0): "P2P/CUMEM"}),
        ("Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC", {(0, 1): "P2P/IPC"}),
        ("Channel 02 : 12[4] -> 13[5] via SHM/direct/direct", {(12, 13): "SHM/direct/direct"}),
        ("Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0", {(1, 0): "NET/Socket/0"}),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]", {(0, 1): "P2P/indirect/2[2]"}),
        ("Channel 00/32 :    0   1", {}),
        ("Connected all rings", {}),
    ],
)
def test_a_line_names_the_transport_of_a_link(line: str, expected: dict[tuple[int, int], str]) -> None:
    assert parsed(f"vm:7:7 [0] NCCL INFO {line}\n") == expected


def test_several_transports_of_a_link_are_all_named_once() -> None:
    lines = [
        f"Channel 0{n}/1 : 0[0] -> 1[1] via {how}\n" for n, how in enumerate(["P2P/CUMEM", "NET/IB/0", "P2P/CUMEM"])
    ]
    assert parsed("".join(lines)) == {(0, 1): "P2P/CUMEM, NET/IB/0"}
