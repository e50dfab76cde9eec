"""Plain launches of collectives on simulated GPUs, each timed on its own, by clocks that differ."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.fakes import Fakes

_ALL, _PAIRS = "[[0, 1, 2, 3]]", "[[0, 1], [2, 3]]"
_MEGABYTE = "count=250000, iterations=1"  # of float32, decimal: 5 µs, and 10 µs over each link of 100 GB/s
_SAY = """
    def launches(held, groups, **plan):
        return [
            {"group": one.group, "rank": one.rank, "arrived": one.arrived, "left": one.left,
             "uncertainty": one.uncertainty, "step": one.step, "cost": one.cost}
            for one in collect(held, groups, **plan).singles
        ]
"""


def _launches(
    fakes: Fakes, tmp_path: Path, groups: str, arguments: str, **settings: object
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    script = f"{_SAY}\n    say(found=launches(session(open_gpus(buffer=1 << 20)), {groups}, {_MEGABYTE}, {arguments}))"
    done = fakes.script(script, tmp_path, **settings)
    return done.said["found"], done.log


def _array(found: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return the times of all ranks, shape (ranks, launches), ns after the earliest."""
    every = np.array([one[name] for one in found])
    since: np.ndarray = every - min(min(one["arrived"]) for one in found)
    return since


def test_each_launch_of_each_rank_is_timed_between_two_stamps(fakes: Fakes, tmp_path: Path) -> None:
    found, _ = _launches(fakes, tmp_path, _PAIRS, "single_launches=23", rate="100,2-3=50", stamp="1e-6,1=2e-6")

    assert [(one["group"], one["rank"]) for one in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(one["arrived"]) == len(one["left"]) == 23 for one in found)
    assert [one["cost"] for one in found] == pytest.approx([1000, 2000, 1000, 1000], abs=2)
    assert {one["step"] for one in found} == {32}
    # On a pair whose stamps take equally long, the time between two stamps is the collective and the first stamp.
    own = _array(found, "left")[2:] - _array(found, "arrived")[2:]
    assert own == pytest.approx(np.full((2, 23), 26_000), abs=50)


def test_bursts_are_shallow_and_begin_together(fakes: Fakes, tmp_path: Path) -> None:
    _, log = _launches(fakes, tmp_path, _ALL, "single_launches=23, launch_warmup=2, verify=False, batches=1")
    behind = [int(line.rsplit(" ", 1)[1]) for line in log if line.startswith("unblock")]

    # The batch's graph; five chains of stamps; then ten launches twice, and three, each with a collective before.
    assert Counter(behind) == {3: 4, 30: 5 * 4, 31: 2 * 4, 10: 4}
    assert Counter(line.split()[1] for line in log if line.startswith("launch "))["stamp"] == 4 * (5 * 30 + 2 * 23)


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("clocks that agree", {}),
        ("a clock that is ahead by a second, another behind", {"clock_ahead": "0,1=1,2=-0.5"}),
        ("a clock that runs fast by 200 ppm", {"clock_drift": "0,3=2e-4", "clock_ahead": "0,3=86400"}),
    ],
)
def test_a_rank_that_is_held_back_comes_late_by_as_much(
    fakes: Fakes, tmp_path: Path, case: str, settings: dict[str, object]
) -> None:
    held = "single_launches=40, hold_rank=2, hold_nanoseconds=50_000"
    found, _ = _launches(fakes, tmp_path, _ALL, held, **settings)
    arrived, left = _array(found, "arrived"), _array(found, "left")
    late = arrived - np.median(arrived, axis=0)

    assert np.median(late, axis=1) == pytest.approx([0, 0, 50_000, 0], abs=5_000), case
    assert np.median(left.max(axis=0) - arrived.max(axis=0)) == pytest.approx(21_000, abs=5_000), case


def test_single_launches_run_on_the_communicators_that_no_graph_holds(fakes: Fakes, tmp_path: Path) -> None:
    script = f"""{_SAY}
    held = session(open_gpus())
    first = launches(held, {_PAIRS}, single_launches=5)
    made = [line for line in open(os.environ["FAKE_LOG"]) if line.startswith("split")]
    launches(held, {_PAIRS}, single_launches=5, launch_iterations=3)
    say(ranks=len(first), made=len(made), later=len(
        [line for line in open(os.environ["FAKE_LOG"]) if line.startswith("split")]
    ), none=len(launches(held, {_PAIRS})))
    """
    said = fakes.script(script, tmp_path).said

    assert said == {"ranks": 4, "made": said["made"], "later": said["made"], "none": 0}


@pytest.mark.parametrize(
    ("case", "settings", "kind"),
    [
        ("a stamp is not launched", {"fail": "cuLaunchKernel:719:12"}, "CudaError"),
        ("a rank fails in the background", {"break": "7:1:3"}, "NcclError"),
        ("the GPU never tells the time", {"hang": "tell_time"}, "HangError"),
        ("a blocking kernel gives up", {"block_expires": 1}, "HangError"),
    ],
)
def test_a_failure_is_its_own_and_leaves_nobody_waiting(
    fakes: Fakes, tmp_path: Path, case: str, settings: dict[str, object], kind: str
) -> None:
    script = f"""
        held = session(open_gpus(2, buffer=1 << 20))
        say(**failure(collect, held, [[0, 1]], {_MEGABYTE}, verify=False, single_launches=20, deadline=0.5))
        os._exit(0)
    """
    done = fakes.script(script, tmp_path, **settings)

    assert done.said["kind"] == kind, (case, json.dumps(done.said))
