"""The bars of benchmarks/cluster_plan.py on a few clusters: 1,000 runs of each series are for the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.cluster_plan import FIRST_SEED, lines, trial

RUNS = 6


@pytest.mark.parametrize("told", [True, False])
def test_faults_are_found_nobody_is_accused_and_the_best_nodes_are_taken(told: bool) -> None:
    trials = [trial(FIRST_SEED + number, told=told) for number in range(RUNS)]
    assert sum(one.slow_nodes for one in trials) > 4, "the seeds draw faults"
    assert sum(one.slow_uplinks for one in trials) > 1, "of both kinds"
    assert [one.found_nodes for one in trials] == [one.slow_nodes for one in trials]
    assert [one.found_uplinks for one in trials] == [one.slow_uplinks for one in trials]
    assert not any(one.accused for one in trials)
    assert all(max(one.regrets) <= 0.01 for one in trials)
    assert all(one.measurements < 8128 / 4 for one in trials)
    assert lines(trials)[2].endswith(f"0 of {RUNS}")
