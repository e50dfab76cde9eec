"""Effects that were put into pairs come out again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collbench.cluster.fit import Observation, fit
from tests.cluster.made import seen, slow

EFFECTS = (0.0, -0.1, 0.0, 0.02, 0.0, -0.3, 0.0)


def test_noiseless_effects_come_out_as_they_went_in() -> None:
    found = fit(seen(7, lambda a, b: 50 * math.exp(EFFECTS[a] + EFFECTS[b])))
    assert math.exp(found.typical) == pytest.approx(50, rel=1e-3)
    assert found.effects == pytest.approx(EFFECTS, abs=1e-3)


def test_a_pair_of_two_slow_nodes_which_is_no_slower_than_one_misleads_nobody() -> None:
    found = fit(seen(12, slow(3, 8)))
    assert found.effects[[3, 8]] == pytest.approx([math.log(0.9)] * 2, abs=2e-3)


def test_errors_cover_what_noise_does() -> None:
    """Of 4 × 190 pairs with 2% noise, 20 estimates lie within 4 standard errors, and errors are what theory says."""
    found = fit(seen(20, slow(), 4, 0.02))
    assert np.all(np.abs(found.effects) < 4 * found.errors)
    assert found.sigma == pytest.approx(0.02, rel=0.2)
    # 76 measurements of each node; a partner's error adds (1 + 1/18).
    assert found.errors == pytest.approx([0.02 / math.sqrt(76)] * 20, rel=0.3)


def test_what_pairs_leave_open_has_an_error_that_says_so() -> None:
    """Two nodes have one pair: nobody can say which of them is slow, whatever eight times 5% noise would leave."""
    found = fit([Observation(0, 1, 100.0), Observation(1, 0, 90.0)] * 4)
    assert found.effects == pytest.approx([0, 0], abs=1e-6)
    assert min(found.errors) > 10 * found.sigma


@pytest.mark.parametrize("leaf", [0, 3])
def test_uplinks_are_distinguished_from_nodes(leaf: int) -> None:
    switches = tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))

    def rate(a: int, b: int) -> float:
        crosses = a // 4 != b // 4
        return (
            100
            * (0.5 if crosses else 1)
            * (0.8 if crosses and leaf in (a // 4, b // 4) else 1)
            * (0.9 if 5 in (a, b) else 1)
        )

    found = fit(seen(16, rate), [switches])
    assert math.exp(found.typical) == pytest.approx(100, rel=1e-2)
    assert math.exp(found.across[0]) == pytest.approx(0.5, rel=1e-2)
    assert np.exp(found.levels[0]) == pytest.approx([0.8 if index == leaf else 1.0 for index in range(4)], rel=1e-2)
    assert np.exp(found.effects) == pytest.approx([0.9 if node == 5 else 1.0 for node in range(16)], rel=1e-2)


def test_pairs_that_leave_a_hiding_switch_say_nothing_of_their_nodes() -> None:
    """Behind 2:1 uplinks a node with 0.9 of its cards is as fast as any: only its neighbours see it."""
    switches = tuple(tuple(range(first, first + 6)) for first in range(0, 18, 6))
    pairs = seen(18, lambda a, b: 50.0 if a // 6 != b // 6 else 90.0 if 7 in (a, b) else 100.0)
    found = fit(pairs, [switches], hiding=switches)
    assert np.exp(found.effects) == pytest.approx([0.9 if node == 7 else 1.0 for node in range(18)], rel=1e-2)
