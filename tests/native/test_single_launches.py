"""Plain launches of collectives on simulated GPUs, each timed separately, by clocks that differ."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.native.fakes import Fakes

_ALL, _PAIRS = "[[0, 1, 2, 3]]", "[[0, 1], [2, 3]]"
_MEGABYTE = "count=250000, iterations=1"  # of float32, decimal: 5 µs, and 10 µs over each link of 100 GB/s
_LAUNCHES_SCRIPT = """
    def launches(held, groups, **plan):
        return [
            {"group": one.group, "rank": one.rank, "arrived": one.arrived, "left": one.left,
             "uncertainty": one.uncertainty, "step": one.step, "cost": one.cost}
            for one in collect(held, groups, **plan).singles
        ]
"""


def _launches(
    fakes: Fakes, groups: str, arguments: str, **settings: object
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    call = f"launches(session(open_gpus(buffer=1 << 20)), {groups}, {_MEGABYTE}, {arguments})"
    script = f"{_LAUNCHES_SCRIPT}\n    report(found={call})"
    done = fakes.script(script, **settings)
    return done.reported["found"], done.log


def _array(ranks: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return the times of all ranks, shape (ranks, launches), ns after the earliest."""
    absolute = np.array([launches[name] for launches in ranks])
    relative: np.ndarray = absolute - min(min(launches["arrived"]) for launches in ranks)
    return relative


def test_each_launch_of_each_rank_is_timed_between_two_stamps(fakes: Fakes) -> None:
    ranks, _ = _launches(fakes, _PAIRS, "single_launches=23", rate="100,2-3=50", stamp="1e-6,1=2e-6")

    assert [(launches["group"], launches["rank"]) for launches in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(launches["arrived"]) == len(launches["left"]) == 23 for launches in ranks)
    assert [launches["cost"] for launches in ranks] == pytest.approx([1000, 2000, 1000, 1000], abs=2)
    assert {launches["step"] for launches in ranks} == {32}
    # On a pair whose stamps take equally long, the time between two stamps is the collective and the first stamp.
    durations = _array(ranks, "left")[2:] - _array(ranks, "arrived")[2:]
    assert durations == pytest.approx(np.full((2, 23), 26_000), abs=50)


def test_bursts_are_shallow_and_begin_together(fakes: Fakes) -> None:
    _, log = _launches(fakes, _ALL, "single_launches=23, launch_warmup=2, verify=False, batches=1")
    behind = [int(line.rsplit(" ", 1)[1]) for line in log if line.startswith("unblock")]

    # The batch's graph; five chains of stamps; then ten launches twice, and three, each with a collective before.
    assert Counter(behind) == {3: 4, 30: 5 * 4, 31: 2 * 4, 10: 4}
    assert Counter(line.split()[1] for line in log if line.startswith("launch "))["stamp"] == 4 * (5 * 30 + 2 * 23)


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("clocks that agree", {}),
        ("a clock that is ahead by a second, another behind", {"clock_ahead": "0,1=1,2=-0.5"}),
        ("a clock that runs fast by 200 ppm", {"clock_drift": "0,3=2e-4", "clock_ahead": "0,3=86400"}),
    ],
)
def test_a_rank_that_is_held_back_comes_late_by_as_much(fakes: Fakes, title: str, settings: dict[str, object]) -> None:
    arguments = "single_launches=40, hold_rank=2, hold_nanoseconds=50_000"
    held = pytest.approx([0, 0, 50_000, 0], abs=20_000)
    for _ in range(10):  # where cores are busy, reading the GPUs' clocks in turn takes longer: by some 8 µs, or by 50
        ranks, _ = _launches(fakes, _ALL, arguments, **settings)
        arrived, left = _array(ranks, "arrived"), _array(ranks, "left")
        late = np.median(arrived - np.median(arrived, axis=0), axis=1)
        taken = np.median(left.max(axis=0) - arrived.max(axis=0))
        if late == held and taken == pytest.approx(21_000, abs=10_000):
            break

    assert late == held, title
    assert taken == pytest.approx(21_000, abs=10_000), title


def test_single_launches_run_on_the_communicators_that_no_graph_holds(fakes: Fakes) -> None:
    script = f"""{_LAUNCHES_SCRIPT}
    held = session(open_gpus())
    first = launches(held, {_PAIRS}, single_launches=5)
    made = [line for line in open(os.environ["FAKE_LOG"]) if line.startswith("split")]
    launches(held, {_PAIRS}, single_launches=5, launch_iterations=3)
    report(ranks=len(first), made=len(made), later=len(
        [line for line in open(os.environ["FAKE_LOG"]) if line.startswith("split")]
    ), none=len(launches(held, {_PAIRS})))
    """
    reported = fakes.script(script).reported

    assert reported == {"ranks": 4, "made": reported["made"], "later": reported["made"], "none": 0}


@pytest.mark.parametrize(
    ("title", "settings", "kind"),
    [
        ("a stamp is not launched", {"fail": "cuLaunchKernel:719:12"}, "CudaError"),
        ("a rank fails in the background", {"break": "7:1:3"}, "NcclError"),
        ("the GPU never tells the time", {"hang": "tell_time"}, "HangError"),
        ("a blocking kernel gives up", {"block_expires": 0}, "LateError"),
    ],
)
def test_a_failure_has_its_own_kind_and_leaves_no_rank_waiting(
    fakes: Fakes, title: str, settings: dict[str, object], kind: str
) -> None:
    script = f"""
        held = session(open_gpus(2, buffer=1 << 20))
        report(**failure(collect, held, [[0, 1]], {_MEGABYTE}, verify=False, single_launches=20, deadline=0.5))
        os._exit(0)
    """
    done = fakes.script(script, **settings)

    assert done.reported["kind"] == kind, (title, json.dumps(done.reported))
