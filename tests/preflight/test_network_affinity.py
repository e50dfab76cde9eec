"""Cards near GPUs, from made-up PCI trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.machine.labels import PCIE_BEST_FIRST
from collbench.preflight.collect import read_affinity
from collbench.preflight.judge import nearest

# Two sockets; a switch with two GPUs and a card, behind it a switch of its own for another card; one slot each side.
UP, PORTS = "pci0000:00/0000:00:01.0/0000:01:00.0", ("0000:02:00.0", "0000:02:01.0", "0000:02:02.0", "0000:02:03.0")
TREE = {
    "gpu0": (f"{UP}/{PORTS[0]}/0000:03:00.0", 0),
    "gpu1": (f"{UP}/{PORTS[1]}/0000:04:00.0", 0),
    "mlx5_0": (f"{UP}/{PORTS[2]}/0000:05:00.0", 0),
    "mlx5_1": (f"{UP}/{PORTS[3]}/0000:06:00.0/0000:07:00.0/0000:08:00.0", 0),
    "mlx5_2": ("pci0000:00/0000:00:02.0/0000:09:00.0", 0),
    "mlx5_3": ("pci0000:40/0000:40:01.0/0000:41:00.0", 0),
    "mlx5_4": ("pci0000:80/0000:80:01.0/0000:81:00.0", 1),
}
BUS_IDS = {0: "00000000:03:00.0", 1: "00000000:04:00.0"}
CARDS = tuple(name for name in TREE if name.startswith("mlx"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, (bus_path, node) in TREE.items():
        device = tmp_path / "sys/devices" / bus_path
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{node}\n")
        if name.startswith("gpu"):
            link = tmp_path / "sys/bus/pci/devices" / device.name
        else:
            link = tmp_path / "sys/class/infiniband" / name / "device"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    return tmp_path


def test_nearness_is_that_of_nvidia_smi(tree: Path) -> None:
    near = read_affinity(tree, BUS_IDS, CARDS)
    nearness = dict(zip(CARDS, PCIE_BEST_FIRST, strict=True))
    assert near == {0: nearness, 1: nearness}
    assert nearest(near[0]) == (("mlx5_0",), "PIX")


def test_what_firmware_does_not_say_is_left_out(tree: Path) -> None:
    (tree / "sys/devices" / TREE["mlx5_4"][0] / "numa_node").write_text("-1\n")
    (tree / "sys/class/infiniband/mlx5_0/device").unlink()
    near = read_affinity(tree, {**BUS_IDS, 2: "00000000:FF:00.0", 3: ""}, (*CARDS, "gone"))
    assert set(near[0]) == {"mlx5_1", "mlx5_2", "mlx5_3"}
    assert near[2] == near[3] == {}
    assert nearest(near[2]) == ((), "")
