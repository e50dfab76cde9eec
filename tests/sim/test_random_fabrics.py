"""Made-up machines: plausible, of all families, and the same for the same seed."""

import numpy as np

from collbench.sim import fabrics, network
from collbench.sim.fabrics import Fabric
from tests.sim import random_fabrics
from tests.sim.made import fabric_text

MADE = [random_fabrics.make(np.random.default_rng(seed)) for seed in range(200)]


def family(fabric: Fabric) -> str:
    return "switch" if fabric.switches else "bundles" if fabric.bundles else "pcie"


def test_they_are_valid_and_of_4_to_16_gpus() -> None:
    assert {len(fabric.gpus) for fabric in MADE} == {4, 5, 6, 8, 10, 12, 16}
    assert all(fabrics.loads(fabric_text(fabric), fabric.name) == fabric for fabric in MADE)


def test_all_families_and_labels_occur_with_and_without_a_slow_part() -> None:
    assert {family(fabric) for fabric in MADE} == {"switch", "bundles", "pcie"}
    all_labels = {path.label for fabric in MADE for path in network.paths(fabric)}
    assert all_labels >= {"NV1", "NV2", "NV4", "NV12", "NV18", "PIX", "PHB", "SYS"}
    assert 0.2 < sum(bool(fabric.faults) for fabric in MADE) / len(MADE) < 0.5
