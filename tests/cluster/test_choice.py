"""Which nodes are taken: rates of pairs by hand, every pair measured four times with 1% noise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collbench.cluster.nodes import Effect, choose_nodes
from collbench.cluster.switches import Switches
from collbench.model.errors import UsageError
from tests.cluster.made import Rate, judged, leaves, slow

# 16 nodes under 4 leaves of 4; of two pods each has two of them.
LEAVES = leaves(16, 4)
PODS = (*LEAVES, Switches(("pod0", "pod1"), (tuple(range(8)), tuple(range(8, 16)))))


def behind(*members: int) -> Rate:
    return lambda a, b: 100.0 * (0.8 if (a in members) != (b in members) else 1.0)


@pytest.mark.parametrize(
    ("title", "rate", "known", "wanted", "members"),
    [
        ("healthy nodes without switches: the first", slow(), (), 3, (0, 1, 2)),
        ("not the slow one", slow(1), (), 3, (0, 2, 3)),
        ("all", slow(1), (), 16, tuple(range(16))),
        ("a slow node when there is no other", slow(1, 5), (), 15, tuple(node for node in range(16) if node != 1)),
        ("the less slow of two", lambda a, b: min(slow(1)(a, b), slow(5, ratio=0.7)(a, b)), (), 15,
         tuple(node for node in range(16) if node != 5)),
        ("one leaf holds four", slow(), LEAVES, 4, (0, 1, 2, 3)),
        ("one that has no slow node", slow(1), LEAVES, 4, (4, 5, 6, 7)),
        ("three where a slow one leaves three: whole leaves stay free", slow(1), LEAVES, 3, (0, 2, 3)),
        ("one pod holds eight", slow(1), PODS, 8, tuple(range(8, 16))),
        ("seven fit the pod that a slow node breaks", slow(1), PODS, 7, (0, 2, 3, 4, 5, 6, 7)),
        ("not behind a slow uplink", behind(0, 1, 2, 3), LEAVES, 8, tuple(range(4, 12))),
        ("nor where its uplinks carry just enough", behind(4, 5, 6, 7), LEAVES, 3, (0, 1, 2)),
        ("nor where it was found", behind(0, 1, 2, 3), (), 8, tuple(range(4, 12))),
        ("of those as many as its uplinks carry: 0.8 × 4 = 3", behind(0, 1, 2, 3), (), 15,
         (0, 1, 2, *range(4, 16))),
    ],
)  # fmt: skip
def test_chosen(title: str, rate: Rate, known: Sequence[Switches], wanted: int, members: tuple[int, ...]) -> None:
    assert choose_nodes(judged(16, rate, known), wanted, known).members == members


def test_neighbours_stand_side_by_side() -> None:
    """Leaves of every fourth node: ranks in this order leave each leaf once."""
    known = (Switches(("a", "b", "c", "d"), tuple(tuple(range(first, 16, 4)) for first in range(4))),)
    assert choose_nodes(judged(16, slow(), known), 8, known).members == (0, 4, 8, 12, 1, 5, 9, 13)


def test_the_band_and_the_reason_tell_of_the_bottleneck() -> None:
    chosen = choose_nodes(judged(16, slow(1, 5)), 16)
    assert chosen.band is not None
    assert chosen.band == pytest.approx((90 * 0.98, 90 * 1.02), rel=0.01)
    assert chosen.reason == "all 16 nodes"
    reason = choose_nodes(judged(16, slow(1, 5)), 15).reason
    assert reason == "the slowest reaches 90% of the typical rate; switches are unknown, so these are the first"
    assert choose_nodes(judged(16, slow()), 1).band is None


def test_behind_slow_uplinks_the_band_is_wide() -> None:
    """A ring leaves the leaf once: 100. All four nodes at once get 80 each."""
    found = judged(16, behind(0, 1, 2, 3), LEAVES)
    chosen = choose_nodes(found, 16, LEAVES)
    assert chosen.band is not None
    assert chosen.band == pytest.approx((80 * 0.98, 100 * 1.02), rel=0.01)


def test_what_leaving_a_leaf_costs_is_no_part_of_the_band_under_one() -> None:
    """Half the rate between leaves, whose uplinks are oversubscribed: four nodes of one leaf once got "49 to 102"."""
    found = judged(16, lambda a, b: 100.0 if a // 4 == b // 4 else 50.0, LEAVES)
    within, across = (choose_nodes(found, wanted, LEAVES).band for wanted in (4, 5))
    assert within == pytest.approx((98, 102), rel=0.01)
    assert across == pytest.approx((50 * 0.98, 102), rel=0.01)


def test_switches_are_counted_and_who_was_left_out_is_named() -> None:
    chosen = choose_nodes(judged(16, slow(1), PODS), 8, PODS)
    assert chosen.switches == (2, 1)
    assert chosen.reason == "none of them is slow; under 2 leaves of 1 pod, the fewest that hold them"
    assert chosen.heuristic
    ((node, why),) = chosen.left_out
    assert node == 1
    assert isinstance(why, Effect)
    assert why.ratio == pytest.approx(-0.1, abs=0.01)


@pytest.mark.parametrize("wanted", [0, 17])
def test_a_number_that_cannot_be_is_refused(wanted: int) -> None:
    with pytest.raises(UsageError, match=f"cannot choose {wanted} of 16 nodes: choose 1 to 16"):
        choose_nodes(judged(16, slow()), wanted)
