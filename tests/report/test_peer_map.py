"""The first line answers whether P2P works, and the exit status follows what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.doctor.peer_causes import causes, workarounds
from collbench.model.errors import Cause, ExitStatus, Failure, FailureKind, WrongData
from collbench.model.peer_map import COPY_ENGINE, KERNEL_WRITE, THROUGH_HOST, Crossing, PeerMap
from collbench.model.run import PeerStatus
from collbench.report.text.peer_map import answer, page, status, unanswered
from tests.machine.doctor.test_peer_causes import (
    BROKEN,
    HANGING,
    HEALTHY,
    HELD_BACK,
    NO,
    NOT_ENABLED,
    PLANTS,
    SLOW,
    STAGED,
    Seen,
)
from tests.report.pages import text

_ERROR = Failure(FailureKind.ERROR, Cause.REPORTED, detail="unhandled cuda error")


def _one_way(seen: Seen) -> PeerMap:
    """Return a map in which only the first link is as seen, and the other works."""
    return replace(seen.map, links=(seen.map.links[0], HEALTHY.map.links[1]))


def _denied(seen: Seen) -> PeerMap:
    denied = {"r": PeerStatus.GNS, "w": PeerStatus.GNS}
    return replace(seen.map, links=tuple(replace(link, tool=denied) for link in seen.links))


@pytest.mark.parametrize(
    ("peer_map", "expected", "said"),
    [
        (HEALTHY.map, ExitStatus.DONE, "P2P works on all 2 links: kernels and copy engines deliver; NCCL uses it."),
        (BROKEN.map, ExitStatus.UNTRUSTED, "P2P is broken on 2 of 2 links: GPU0→GPU1, GPU1→GPU0 deliver wrong data."),
        (HANGING.map, ExitStatus.UNTRUSTED, "P2P is broken on 2 of 2 links: GPU0→GPU1, GPU1→GPU0 hang."),
        (SLOW.map, ExitStatus.CONTRADICTION, "P2P works, but is slow on 2 of 2 links"),
        (_one_way(SLOW), ExitStatus.CONTRADICTION, "is slow on 1 of 2 links: GPU0→GPU1 is slower than through host"),
        (_one_way(HANGING), ExitStatus.UNTRUSTED, "P2P is broken on 1 of 2 links: GPU0→GPU1 hangs."),
        (NOT_ENABLED.map, ExitStatus.CONTRADICTION, "are offered by the driver, which then refuses them"),
        (_denied(NO), ExitStatus.DONE, "No P2P: the driver offers it for no link (GNS: GPU not supported)."),
        (_denied(HEALTHY), ExitStatus.CONTRADICTION, "nvidia-smi topo -p2p differ for GPU0→GPU1, GPU1→GPU0."),
        (
            replace(NO.map, nccl_failure=_ERROR),
            ExitStatus.FAILED,
            "No P2P: the driver offers it for no link. NCCL fails.",
        ),
        (STAGED.map, ExitStatus.DONE, "NCCL uses it on none."),
        (replace(HEALTHY.map, nccl_failure=_ERROR), ExitStatus.FAILED, "NCCL fails."),
        (replace(HEALTHY.map, nccl_failure=WrongData(COPY_ENGINE, 8, (0, 1))), ExitStatus.UNTRUSTED, "NCCL fails."),
    ],
)
def test_the_answer_and_the_status_follow_the_links(peer_map: PeerMap, expected: ExitStatus, said: str) -> None:
    assert status(peer_map) is expected
    assert said in answer(peer_map)
    assert text(page(peer_map, ())).startswith("answer    P2P " if "No P2P" not in said else "answer    No P2P: ")


def test_wrong_data_through_the_host_is_no_success() -> None:
    bad = Crossing(THROUGH_HOST, 4096, wrong=WrongData(THROUGH_HOST, 4096, (0, 1), 1, 0))
    links = tuple(replace(link, crossings=(*link.crossings[:-1], bad)) for link in HEALTHY.map.links)
    peer_map = replace(HEALTHY.map, links=links)
    assert status(peer_map) is ExitStatus.UNTRUSTED
    assert answer(peer_map).endswith("; copies through the host fail on GPU0→GPU1, GPU1→GPU0.")
    assert "trouble   through the host, GPU0→GPU1, GPU1→GPU0: wrong data" in text(page(peer_map, ()))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FailureKind.HANG, ExitStatus.UNTRUSTED),
        (FailureKind.ERROR, ExitStatus.FAILED),
        (FailureKind.BUSY, ExitStatus.FAILED),
    ],
)
def test_gpus_that_do_not_open_together_are_no_success(kind: FailureKind, expected: ExitStatus) -> None:
    peer_map = replace(HEALTHY.map, together=Failure(kind, Cause.REPORTED, detail="no answer"))
    assert status(peer_map) is expected
    assert answer(peer_map).endswith("; no process can open all GPUs.")
    assert "trouble   all GPUs in one process: no answer; each link had" in text(page(peer_map, ()))


@pytest.mark.parametrize(("others", "known"), [("works", False), ("hangs", True)])
def test_links_without_an_answer_on_a_busy_host_are_not_called_broken(others: str, known: bool) -> None:
    busy = Failure(FailureKind.BUSY, Cause.STARVED, seconds=32.0)
    first, second = HEALTHY.map.links
    silent = replace(first, crossings=(Crossing(KERNEL_WRITE, 4096, failure=busy),))
    if others == "hangs":
        second = replace(
            second, crossings=(Crossing(KERNEL_WRITE, 4096, failure=replace(busy, kind=FailureKind.HANG)),)
        )
    peer_map = replace(HEALTHY.map, links=(silent, second))
    said = "GPU0→GPU1 gave no answer on a busy host."
    broken = "P2P is broken on 1 of 2 links: GPU1→GPU0 hangs; "
    assert answer(peer_map) == (broken if known else "P2P is not known on 1 of 2 links: ") + said
    assert status(peer_map) is (ExitStatus.UNTRUSTED if known else ExitStatus.FAILED)
    assert unanswered(peer_map) is not known
    why = "no answer within 32 s; the host was busy: the worker process could hardly run"
    assert f"trouble   GPU0→GPU1 (kernel write): {why}" in text(page(peer_map, ()))
    assert bool([*workarounds(peer_map)]) is known
    assert status(replace(HEALTHY.map, nccl_failure=busy)) is ExitStatus.FAILED
    assert answer(replace(HEALTHY.map, nccl_failure=busy)).endswith("NCCL gave no answer on a busy host.")


def test_a_link_that_works_at_a_part_of_its_rate_is_no_success() -> None:
    narrow = PLANTS["held back"][1][0][1](HELD_BACK)
    every = causes(narrow.map, narrow.facts)
    assert status(narrow.map, every) is ExitStatus.CONTRADICTION
    slow = "P2P works, but is slow on 2 of 2 links: PCIe lanes are missing: GPU1 x8 of x16; NCCL uses it."
    assert answer(narrow.map, every) == slow
    assert text(page(narrow.map, every)).startswith(f"answer    {slow}")
