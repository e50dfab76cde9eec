"""Each kind of fault, put into a simulated machine, is found at its place; a healthy machine contradicts nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collbench.judge.diagnose import Kind, Severity, judge
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.sim import fabrics
from collbench.sim.fabrics import Noise
from tests.report.html.runs import SIM_PAIRS
from tests.sim import faults
from tests.sim.made import simulate

# As `check` measures.
INSPECTION = replace(
    SIM_PAIRS,
    sizes=(2**26,),
    copies=(Variant.PLAIN, Variant.STAGED, Variant.HOST),
    collectives=(Work(Operation.ALLREDUCE), Work(Operation.BROADCAST)),
)
NOISE = Noise(trial=0.005, batch=0.002)
MACHINES = ("nvlink-pairs-2x2", "pcie-4-two-bridges", "dgx-1v", "hgx-h200")


def healthy(name: str) -> fabrics.Fabric:
    return replace(fabrics.load(name), faults=(), noise=NOISE)


@pytest.mark.parametrize("kind", faults.kinds())
def test_a_fault_is_found_at_its_place(kind: str) -> None:
    for fabric in map(healthy, MACHINES):
        try:
            broken, members = faults.with_fault(fabric, kind, np.random.default_rng(3))
        except UsageError:
            continue  # this machine has no place for it
        break
    wanted = Kind(kind.upper().replace("-", "_"))
    found = judge(simulate(broken, INSPECTION, 11))
    ours = [verdict for verdict in found if wanted is verdict.kind or wanted in verdict.explains]
    assert ours, [(verdict.kind, verdict.members) for verdict in found]
    assert any(set(verdict.members) & set(members) for verdict in ours) or not members


@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_machine_contradicts_nothing(name: str) -> None:
    found = judge(simulate(healthy(name), INSPECTION, 12))
    assert [verdict for verdict in found if verdict.severity is Severity.CONTRADICTION] == []


def test_a_variable_that_slows_several_pairs_is_one_verdict() -> None:
    """Commands that check it on one pair and on another are not two causes."""
    fabric = healthy("pcie-4-two-bridges")
    disabled = replace(fabric, faults=(fabrics.Fault(fabrics.FaultKind.P2P_DISABLED),))
    (found,) = judge(simulate(disabled, INSPECTION, 13))
    assert found.cause.name == "NCCL_P2P_DISABLE"
