"""Which transport NCCL's log names for each link, in the formats of its versions.

Lines as the sources of 2.10 to 2.30 format them [src/transport/p2p.cc, shm.cc, net.cc].
"""

from __future__ import annotations

import pytest

from collbench.model.errors import Cause, Failure, FailureKind
from collbench.p2p import transports
from collbench.p2p.peer_map import Link
from collbench.p2p.transports import asked_again, parsed
from tests.p2p.test_causes import HANGING, LINKS, STAGED, Seen


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


P2P = dict.fromkeys(LINKS, "P2P/CUMEM")
HUNG, BUSY = (Failure(kind, Cause.NO_ANSWER, seconds=6.0) for kind in (FailureKind.HANG, FailureKind.BUSY))


@pytest.mark.parametrize(
    ("case", "seen", "answer", "asked", "without"),
    [
        ("it takes P2P", STAGED, (P2P, None), True, "P2P/CUMEM"),
        ("it hangs", STAGED, (P2P, HUNG), True, ""),
        ("the host is busy", STAGED, ({}, BUSY), True, None),
        ("it does not log a link", STAGED, ({}, None), True, None),
        ("links are broken, over which it would hang", HANGING, (P2P, None), False, None),
        ("it failed with the variable", STAGED._replace(nccl_failure=HUNG), (P2P, None), False, None),
    ],
)
def test_nccl_is_asked_again_without_the_variable_that_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    seen: Seen,
    answer: tuple[dict[Link, str], Failure | None],
    asked: bool,
    without: str | None,
) -> None:
    variables = []

    class Probe:
        def __init__(self, variable: str) -> None:
            variables.append(variable)

        def ask(self, *_: object) -> tuple[dict[Link, str], Failure | None]:
            return answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(transports, "TransportProbe", Probe)
    for value, expected in (("1", asked), ("0", False)):
        blamed = seen.sets(NCCL_P2P_DISABLE=value)
        again = asked_again(blamed.map, blamed.facts, None)
        assert variables == ["NCCL_P2P_DISABLE"] * expected, case
        kept = {link.without.get("NCCL_P2P_DISABLE") for link in again.links}
        assert kept == {without if expected else None}, case
        variables.clear()
