"""The machines of benchmarks/judging, by which the judge's error rates are known, do nothing that no machine can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collbench.measurement.backends.protocol import Step, Timing
from collbench.model.operations import Variant
from collbench.model.run import Run
from tests.judge.checked import faults

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_no_noise_lifts_a_copy_through_host_memory_above_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two NVLinks carry 50 GB/s, PCIe gen 4 31.5: trials that vary by 30% would reach what no slot can."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from deciding.bench import check_request
    from judging import machines, measured

    rng = np.random.default_rng(5)
    bridged = machines.make_sized("bridged", rng, 4)
    run = measured.measure(bridged, measured.Situation(measured.Noise(0.3, rng)), check_request(), 1)
    through = {Variant.STAGED: 0, Variant.HOST: 0}
    for found in run.measurements:
        if found.point.variant in through and found.samples:
            fastest = min(seconds for sample in found.samples for seconds in sample.seconds)
            assert found.point.size_bytes / fastest / 1e9 < 31.5
            through[found.point.variant] += 1
    assert all(through.values())
    assert "IMPOSSIBLE" not in [verdict.kind for verdict in faults(run)]


@pytest.mark.parametrize(
    ("fault", "noise", "seed", "numbers"),
    [
        ("slow pair", "two modes", 12, (5, 45)),  # three trials of such noise accuse nobody
        ("slow pair", "lasting modes", 21, (3, 4)),  # an innocent GPU was blamed of the slow link
        ("slow direction", "normal", 11, (4,)),
        ("slow socket link one way", "normal", 11, (9,)),
        ("slow root", "normal", 11, (4,)),
        ("slow uplink", "two modes", 41, (3, 7)),  # only the mean of all copies below shows it
        ("slow slot and slow root", "normal", 30321, (0, 1, 2)),  # a third part was unsaid
        ("slow slot and slow socket link", "normal", 30312, (0, 49)),  # "either" hid the link between sockets
    ],
)
def test_a_fault_on_which_the_judge_once_erred_is_named(
    monkeypatch: pytest.MonkeyPatch, fault: str, noise: str, seed: int, numbers: tuple[int, ...]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from judging.cells import Cell, check

    cell = Cell(fault, noise, 0.003 if noise == "normal" else 0.06)
    for number in numbers:
        said = check(cell, seed, number)
        assert (said.first_right, said.all_right, said.others) == (True, True, 0), said


@pytest.mark.parametrize(("family", "seed"), [("pcie", 1), ("nvswitch", 2), ("pcie", 5)])
def test_what_slowed_links_beside_others_only_in_the_first_check_is_no_contention(
    monkeypatch: pytest.MonkeyPatch, family: str, seed: int
) -> None:
    """Before a verdict on it the links are timed beside others once more."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from deciding.bench import check_request
    from judging import machines, measured

    class SlowTogether(measured.MadeBackend):
        until = 0.0

        def time(self, step: Step) -> Timing:
            timing = super().time(step)
            slower = 1.4 if len(step.groups) > 1 and self.clock() < self.until else 1.0
            return replace(timing, seconds=tuple(tuple(slower * one for one in some) for some in timing.seconds))

    made = machines.make_sized(family, np.random.default_rng(seed), 8)

    def run() -> Run:
        situation = measured.Situation(measured.Noise(0.003, np.random.default_rng(seed)))
        return measured.measure(made, situation, check_request(), seed, SlowTogether)

    phases = run().phases
    SlowTogether.until = phases["warm-up"] + phases["interference check"]
    assert faults(run()) == []


def test_memory_of_another_socket_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from judging.cells import Cell, check

    said = [check(Cell("none", "normal", 0.003), 11, number) for number in range(4, 34, 10)]
    assert {one.family for one in said} == {"uneven"}
    assert not any(one.accused for one in said)
