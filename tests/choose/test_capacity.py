"""What pairs carry at most, by what is known of their GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from collbench.choose.wiring import pair_capacities, port_capacities
from collbench.machine.labels import chained
from collbench.model.run import Path
from tests.builders import gpus

V100, A100, H200 = "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"


@pytest.mark.parametrize(
    ("title", "names", "path", "gbs"),
    [
        ("labelled links carry what they promise", (A100, A100), Path((0, 1), "NV4", theory_gbs=100.0), 100.0),
        ("or the whole port where nobody knows", (A100, A100), Path((0, 1), "NV4"), 300.0),
        ("of the GPU that has less, the first", (V100, A100), Path((0, 1), "NV4"), 150.0),
        ("or the second", (A100, V100), Path((0, 1), "NV4"), 150.0),
        ("hidden links are not held to their slot", (H200, H200), Path((0, 1), "PHB", theory_gbs=63.0), 450.0),
    ],
)
def test_with_nvlinks_a_pair_carries_what_they_do(title: str, names: tuple[str, str], path: Path, gbs: float) -> None:
    pair = [replace(gpu, name=name) for gpu, name in zip(gpus(2), names, strict=True)]
    carried = pair_capacities(pair, {(0, 1): path}, np.ones((2, 2)) - np.eye(2))
    assert carried[0, 1] == carried[1, 0] == gbs


@pytest.mark.parametrize(("narrow", "gbs"), [(0, 15.75), (1, 15.75), (None, 63.0)])
def test_the_narrower_slot_of_a_pair_decides(narrow: int | None, gbs: float) -> None:
    pair = [
        replace(gpu, pcie_generation=3 if index == narrow else 5, pcie_width=16) for index, gpu in enumerate(gpus(2))
    ]
    carried = pair_capacities(pair, {(0, 1): Path((0, 1), "SYS")}, np.zeros((2, 2)))
    assert carried[0, 1] == carried[1, 0] == gbs


def ports(label: str, links: list[list[int]], plane: int = -1, theory: float | None = None) -> list[float]:
    """Return the ports of three V100 whose pairs have one label and so many links."""
    paths = {pair: Path(pair, label, theory_gbs=theory) for pair in ((0, 1), (0, 2), (1, 2))}
    used, machine = np.array(links, dtype=float), gpus(3, V100)
    carried = pair_capacities(machine, paths, used)
    return [*map(float, port_capacities(machine, paths, used, np.full(3, plane), carried))]


RING, ROW, NONE = [[0, 1, 1], [1, 0, 1], [1, 1, 0]], [[0, 1, 0], [1, 0, 1], [0, 1, 0]], [[0] * 3] * 3


@pytest.mark.parametrize(
    ("title", "found", "expected"),
    [
        ("direct links add up", ports("NV1", RING, theory=25.0), [50.0, 50.0, 50.0]),
        ("of those that are used", ports("NV1", ROW, theory=25.0), [25.0, 50.0, 25.0]),
        ("a switch gives every pair the whole port", ports("NV6", RING, 0, 150.0), [150.0, 150.0, 150.0]),
        ("whatever its number", ports("NV6", RING, 1, 150.0), [150.0, 150.0, 150.0]),
        ("labels are believed beyond what the GPU is known for", ports("NV4", RING, theory=100.0), [200.0] * 3),
        ("hidden links add up to what the GPU has", ports("PHB", RING), [150.0, 150.0, 150.0]),
        ("without any there is no limit", ports("PHB", NONE), [math.inf] * 3),
    ],
)
def test_ports(title: str, found: list[float], expected: list[float]) -> None:
    assert found == expected


def test_a_path_without_links_hides_none() -> None:
    paths = {(0, 1): Path((0, 1), "NV4", theory_gbs=200.0), (0, 2): Path((0, 2), "PHB"), (1, 2): Path((1, 2), "PHB")}
    links, machine = np.array([[0, 4, 0], [4, 0, 0], [0, 0, 0]], dtype=float), gpus(3, V100)
    carried = pair_capacities(machine, paths, links)
    assert port_capacities(machine, paths, links, np.full(3, -1), carried).tolist() == [200.0, 200.0, math.inf]


@pytest.mark.parametrize(
    ("title", "groups", "islands"),
    [
        ("apart", [(0, 1), (2, 3)], [{0, 1}, {2, 3}]),
        ("by one that both share", [(0, 1), (2, 3), (1, 2)], [{0, 1, 2, 3}]),
        ("over a chain", [(0, 1), (1, 2), (2, 3), (5,)], [{0, 1, 2, 3}, {5}]),
        ("none", [], []),
    ],
)
def test_groups_that_share_a_member_are_one(title: str, groups: list[tuple[int, ...]], islands: list[set[int]]) -> None:
    assert chained(groups) == islands, title
