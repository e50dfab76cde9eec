"""What pairs carry at most, by what is known of their GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from collbench.analysis.wiring import pair_capacities
from collbench.model.run import Path
from tests.builders import gpus


@pytest.mark.parametrize(
    ("name", "generation", "gbs"),
    [
        ("NVIDIA H200", 5, 63.0),
        ("NVIDIA A100-SXM4-80GB", 4, 31.5),
        ("NVIDIA H200", None, math.inf),
        ("NVIDIA GH200 480GB", 5, 450.0),  # its host is behind NVLink-C2C
    ],
)
def test_without_nvlinks_a_pair_carries_what_joins_its_gpus_to_their_host(
    name: str, generation: int | None, gbs: float
) -> None:
    pair = [replace(gpu, name=name, pcie_generation=generation, pcie_width=16) for gpu in gpus(2)]
    carried = pair_capacities(pair, {(0, 1): Path((0, 1), "SYS")}, np.zeros((2, 2)))
    assert carried[0, 1] == carried[1, 0] == gbs
