"""It does not cry wolf, and finds a slow link: a small part of benchmarks/compare_trials.py, on simulated machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.judge.compare import ChangeVerdict, Comparison, compare
from collbench.sim import fabrics
from collbench.sim.fabrics import Fault, FaultKind, Noise
from tests.builders import ALL
from tests.judge.runs import FAIL
from tests.sim.made import simulate

REQUEST = replace(ALL, backend="sim", sizes=(8, 2**26))
NOISE = Noise(trial=0.015, batch=0.002)


def compared(name: str, seed: int, factor: float | None) -> Comparison:
    """Return a machine against itself, later with the link 0-1 slower where a factor is given."""
    fabric = replace(fabrics.load(name), noise=NOISE)
    faults = () if factor is None else (Fault(FaultKind.SLOW_LINK, (0, 1), factor=factor),)
    later = replace(fabric, faults=faults)
    return compare(simulate(fabric, REQUEST, seed), simulate(later, REQUEST, seed + 1000), FAIL)


def worse(found: Comparison) -> list[tuple[int, ...]]:
    groups = [group.members for group in found.groups if group.verdict is ChangeVerdict.WORSE]
    return groups + [change.key.members for change in found.changes if change.verdict is ChangeVerdict.WORSE]


@pytest.mark.parametrize("name", ["hgx-h200", "dgx-1v", "pcie-4-two-bridges"])
def test_a_healthy_machine_is_never_worse_than_itself(name: str) -> None:
    assert [worse(compared(name, seed, None)) for seed in range(2)] == [[]] * 2


@pytest.mark.parametrize("name", ["hgx-h200", "dgx-1v", "pcie-4-two-bridges"])
def test_a_link_that_became_8_percent_slower_is_found_and_no_other(name: str) -> None:
    for seed in range(2):
        assert {frozenset(members) for members in worse(compared(name, seed, 0.92))} == {frozenset((0, 1))}
