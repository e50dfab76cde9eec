"""Which pairs an interference check puts side by side: those that meet on the wires that their label names."""

import random
from collections.abc import Mapping

import pytest

from collbench.bench.interference import shared_uplinks
from collbench.bench.plan import directed_links, unordered_pairs
from tests.builders import paths

Pair = tuple[int, int]
# Two sockets of four GPUs, two below each PCIe switch.
TREE: Mapping[Pair, str] = {
    (a, b): "PIX" if a // 2 == b // 2 else "PHB" for a, b in unordered_pairs(8) if a // 4 == b // 4
}


def found(links: Mapping[Pair, str], groups: tuple[tuple[int, ...], ...], count: int = 8) -> dict[str, list[Pair]]:
    known = {frozenset(path.devices): path for path in paths(count, "SYS", links)}
    made = shared_uplinks(groups, known, random.Random(3))
    return {known[frozenset(some[0])].label: [(a, b) for a, b in some] for some in made}


def test_of_sys_all_cross_from_one_socket_to_the_other() -> None:
    across = found(TREE, directed_links(8))["SYS"]
    assert len(across) == 4
    assert {(a // 4, b // 4) for a, b in across} == {(0, 1)}


def test_of_phb_all_leave_one_switch_for_one_other_while_any_are_left() -> None:
    across = found(TREE, directed_links(8))["PHB"]
    assert [(a // 2, b // 2) for a, b in across] == [(0, 1), (0, 1), (2, 3), (2, 3)]


@pytest.mark.parametrize("groups", [directed_links(8), unordered_pairs(8)])
def test_no_device_is_in_two_pairs(groups: tuple[tuple[int, ...], ...]) -> None:
    for some in found(TREE, groups).values():
        members = [member for pair in some for member in pair]
        assert len(members) == len(set(members)) >= 4


@pytest.mark.parametrize(
    ("title", "links", "count", "labels"),
    [
        ("three labels of a tree", TREE, 8, {"PIX", "PHB", "SYS"}),
        ("NVLinks share nothing", dict.fromkeys(unordered_pairs(4), "NV18"), 4, set()),
        ("a label of one pair has nobody to meet", {(0, 1): "PIX"}, 4, {"SYS"}),
        ("labels of cores are no PCIe paths", dict.fromkeys(unordered_pairs(4), "L3"), 4, set()),
    ],
)
def test_labels_that_tell_of_shared_wires_are_tried(
    title: str, links: Mapping[Pair, str], count: int, labels: set[str]
) -> None:
    assert set(found(links, directed_links(count), count)) == labels, title
