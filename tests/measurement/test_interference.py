"""Which pairs an interference check runs concurrently: those that share the links that their label names."""

import random
from collections.abc import Mapping

import pytest

from collbench.measurement.plan import directed_links, unordered_pairs
from collbench.measurement.sweep import shared_uplinks
from tests.builders import paths

Pair = tuple[int, int]
# Two sockets of four GPUs, two below each PCIe switch.
TREE: Mapping[Pair, str] = {
    (a, b): "PIX" if a // 2 == b // 2 else "PHB" for a, b in unordered_pairs(8) if a // 4 == b // 4
}


def pairs_by_label(
    links: Mapping[Pair, str], groups: tuple[tuple[int, ...], ...], count: int = 8
) -> dict[str, list[Pair]]:
    path_of = {frozenset(path.devices): path for path in paths(count, "SYS", links)}
    checks = shared_uplinks(groups, path_of, random.Random(3))
    return {path_of[frozenset(pairs[0])].label: [(a, b) for a, b in pairs] for pairs in checks}


def test_sys_pairs_all_cross_from_one_socket_to_the_other() -> None:
    across = pairs_by_label(TREE, directed_links(8))["SYS"]
    assert len(across) == 4
    assert {(a // 4, b // 4) for a, b in across} == {(0, 1)}


def test_phb_pairs_all_leave_one_switch_for_one_other_while_any_are_left() -> None:
    across = pairs_by_label(TREE, directed_links(8))["PHB"]
    assert [(a // 2, b // 2) for a, b in across] == [(0, 1), (0, 1), (2, 3), (2, 3)]


@pytest.mark.parametrize("groups", [directed_links(8), unordered_pairs(8)])
def test_no_device_is_in_two_pairs(groups: tuple[tuple[int, ...], ...]) -> None:
    for pairs in pairs_by_label(TREE, groups).values():
        members = [member for pair in pairs for member in pair]
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
def test_labels_that_imply_shared_links_are_checked(
    title: str, links: Mapping[Pair, str], count: int, labels: set[str]
) -> None:
    assert set(pairs_by_label(links, directed_links(count), count)) == labels, title
