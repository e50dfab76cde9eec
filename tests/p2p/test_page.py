"""The first line answers whether P2P works, and the exit status follows what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from collbench.model.errors import Cause, ExitStatus, Failure, FailureKind, WrongData
from collbench.model.run import PeerStatus
from collbench.p2p.causes import causes, workarounds
from collbench.p2p.page import answer, page, status, unanswered
from collbench.p2p.peer_map import COPY_ENGINE, KERNEL_WRITE, THROUGH_HOST, Crossing, PeerMap
from tests.p2p.test_causes import (
    ACS,
    BROKEN,
    HANG,
    HANGING,
    HEALTHY,
    HELD_BACK,
    NO,
    NOT_ENABLED,
    PLANTS,
    SLOW,
    STAGED,
    Seen,
    cards,
    peer_link,
)
from tests.preflight.described import machine
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
        (
            replace(SLOW.map, links=(HANGING.links[0], SLOW.links[1])),
            ExitStatus.UNTRUSTED,
            "P2P is broken on 1, slow on 1 of 2 links: GPU0→GPU1 hangs; GPU1→GPU0 is slower than through host",
        ),
        (
            NOT_ENABLED.map,
            ExitStatus.CONTRADICTION,
            "P2P is refused on 2 of 2 links: GPU0→GPU1, GPU1→GPU0 are offered by the driver, which then refuses them",
        ),
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
    broken = "P2P is broken on 1, not known on 1 of 2 links: GPU1→GPU0 hangs; "
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


def test_links_below_their_best_are_slow_whatever_others_do() -> None:
    """GPU2 has 8 of 16 lanes; GPU0→GPU1 is slower than through host memory, or hangs."""
    at_4, at_12 = (Crossing(KERNEL_WRITE, 16 * 2**20, gbs=gbs) for gbs in (4.0, 12.0))
    states = cards(3)
    states = (*states[:2], replace(states[2], health=replace(states[2].health, pcie_width=8)))
    facts = machine(states, driver={"virtualization": "none"})
    ends = [*permutations(range(3), 2)]
    for worst, said, first in (
        (at_4, "P2P works, but is slow on 5 of 6 links: GPU0→GPU1 is slower than ", "PCIe width (consistent; "),
        (HANG, "P2P is broken on 1, slow on 4 of 6 links: GPU0→GPU1 hangs; ", "not seen: "),
    ):
        links = tuple(peer_link(end, worst if end == (0, 1) else at_12 if 2 in end else None) for end in ends)
        peer_map = PeerMap("cuda", "node7", tuple(card.device for card in states), links)
        every = causes(peer_map, facts)
        shown = text(page(peer_map, every))
        assert answer(peer_map, every).startswith(said)
        assert answer(peer_map, every).endswith("GPU0→GPU2, GPU1→GPU2, GPU2→GPU0, GPU2→GPU1: " + every[0].text + ".")
        assert shown.split("\n")[1].startswith(f"cause     {first}")
        assert ("\ncause     not seen for GPU0→GPU1: " in shown) is (worst is at_4)
        assert shown.count("\ncause     PCIe width (consistent; ") == 1


def _of_eight(hanging: Iterable[tuple[int, int]] = (), slower: Iterable[tuple[int, int]] = ()) -> PeerMap:
    """Return the map of eight GPUs, of whose links these hang, and these have 14 of 24 GB/s."""
    device = HEALTHY.map.devices[0]
    at_14 = Crossing(KERNEL_WRITE, 16 * 2**20, gbs=14.0)
    shown = {**dict.fromkeys(hanging, HANG), **dict.fromkeys(slower, at_14)}
    links = tuple(peer_link(link, shown.get(link)) for link in permutations(range(8), 2))
    return replace(HEALTHY.map, devices=tuple(replace(device, index=at) for at in range(8)), links=links, paths=())


def _rows(peer_map: PeerMap, *, verbose: bool) -> list[list[str]]:
    lines = text(page(peer_map, ()), verbose=verbose).split("\n")
    start = next(at for at, line in enumerate(lines) if line.startswith("link "))
    return [line.split("  ") for line in lines[start + 1 : lines.index("", start)]]


def test_the_first_lines_have_the_cause_and_what_can_be_pasted() -> None:
    by_acs, by_iommu = ACS[1](HANGING), PLANTS["a hang"][1][1][1](HANGING)
    lines = [line[:40].rstrip() for line in text(page(by_acs.map, causes(by_acs.map, by_acs.facts))).split("\n")]
    assert [line.split()[0] for line in lines[:4]] == ["answer", "cause", "fix", "then"]
    assert lines[2].startswith("fix       sudo setpci -s 0000:00:01.1 ")
    assert "meanwhile export NCCL_P2P_DISABLE=1" in lines
    lines = text(page(by_iommu.map, causes(by_iommu.map, by_iommu.facts))).split("\n")
    assert lines[1].startswith("cause     IOMMU (consistent; GPU0→GPU1, GPU1→GPU0): ")
    assert lines[2] == "meanwhile export NCCL_P2P_DISABLE=1"
    lines = text(page(HANGING.map, ())).split("\n")
    assert lines[1].startswith("cause     not seen: ")
    assert lines[2] == "meanwhile export NCCL_P2P_DISABLE=1"


def test_further_causes_of_the_same_links_are_names_on_the_short_page() -> None:
    seen = PLANTS["a hang"][1][1][1](ACS[1](HANGING))
    every = causes(seen.map, seen.facts)
    assert "\nor        IOMMU (consistent)\n" in text(page(seen.map, every), verbose=False)
    whole = text(page(seen.map, every))
    assert "\ncause     IOMMU (consistent; GPU0→GPU1, GPU1→GPU0): " in whole
    assert "\nor " not in whole


def test_links_that_show_the_same_have_one_row_on_the_short_page() -> None:
    healthy, bad = _of_eight(), _of_eight(hanging=[(2, 3)], slower=[(4, 5), (5, 4)])
    assert [row[0] for row in _rows(healthy, verbose=False)] == ["56 links"]
    rows = _rows(bad, verbose=False)
    assert [row[0] for row in rows] == ["GPU2→GPU3", "GPU4→GPU5, GPU5→GPU4", "53 links"]
    assert [row.count("hangs") + row.count(" hangs") for row in rows] == [3, 0, 0]
    assert len(_rows(bad, verbose=True)) == 56


@pytest.mark.parametrize(
    ("slower", "expected"),
    [
        ([link for link in permutations(range(8), 2) if 4 in link], ["all 14 of GPU4", "42 links"]),
        ([link for link in permutations(range(8), 2) if 4 in link or link == (5, 6)], ["GPU5→GPU6", "all 14 of GPU4"]),
        ([(4, to) for to in (0, 1, 2, 3, 5, 6, 7)], ["all 7 from GPU4", "49 links"]),
        ([(4, to) for to in (0, 1, 2)], ["3 from GPU4", "53 links"]),
        ([(0, 1), (2, 3), (4, 5)], ["3 links", "53 links"]),
    ],
)
def test_a_row_of_many_links_names_the_gpu_that_they_have_in_common(
    slower: list[tuple[int, int]], expected: list[str]
) -> None:
    names = [row[0] for row in _rows(_of_eight(slower=slower), verbose=False)]
    assert names[:2] == expected


def test_wrong_data_has_no_usual_cause_beside_the_maps_own() -> None:
    assert "usual cause" not in text(page(BROKEN.map, causes(BROKEN.map, BROKEN.facts)))


def test_links_that_fail_alike_are_those_of_the_gpu_that_they_have_in_common() -> None:
    bad = _of_eight(hanging=[link for link in permutations(range(8), 2) if 3 in link])
    assert answer(bad) == "P2P is broken on 14 of 56 links: 14 links of GPU3 hang."
    assert text(page(bad, ()), verbose=False).count("\ntrouble ") == 1
    assert text(page(bad, ())).count("\ntrouble ") == 14
