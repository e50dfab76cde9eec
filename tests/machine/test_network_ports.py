"""Ports of network cards from made-up trees: what cannot be read stays unknown, and only siblings are compared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collbench.machine.doctor.judge import Level
from collbench.machine.network_ports import Port, down, read_ports, slower
from tests.machine.doctor.described import machine, named


def put(root: Path, card: str, port: str = "1", model: str = "MT4129", **files: str) -> None:
    folder = root / "sys/class/infiniband" / card / "ports" / port
    folder.mkdir(parents=True)
    (folder.parents[1] / "hca_type").write_text(f"{model}\n")
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def up(rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand") -> dict[str, str]:
    return {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}


def test_a_port_has_the_kernels_words_and_its_rate(tmp_path: Path) -> None:
    put(tmp_path, "mlx5_0", **up("2.5 Gb/sec (1X SDR)"))
    assert read_ports(tmp_path) == (Port("mlx5_0", 1, "ACTIVE", "LinkUp", 2.5, "InfiniBand", "MT4129"),)


def test_no_cards_no_ports_and_odd_names_are_no_error(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == ()
    put(tmp_path, "mlx5_0", "lost+found", **up())
    (tmp_path / "sys/class/infiniband/mlx5_1").write_text("a file, no card")
    assert read_ports(tmp_path) == ()


def test_only_active_ports_of_one_card_type_and_link_layer_are_compared(tmp_path: Path) -> None:
    put(tmp_path, "mlx5_0", **up())
    put(tmp_path, "mlx5_1", **up("200 Gb/sec (4X HDR)"))
    put(tmp_path, "mlx5_2", **up("100 Gb/sec (4X EDR)", "Ethernet"))
    put(tmp_path, "mlx5_3", model="MT4127", **up("25 Gb/sec (1X EDR)"))
    put(tmp_path, "mlx5_4", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)")
    ports = read_ports(tmp_path)
    assert [(port.name, best) for port, best in slower(ports)] == [("mlx5_1:1", 400.0)]
    assert [port.name for port in down(ports)] == ["mlx5_4:1"]


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_never_fail_and_never_gain_a_figure(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    texts = ["", "4: ACTIVE", "4", ": ", "400 Gb/sec", "-1 Gb/sec", "0 Gb/sec", "nan Gb/sec", "\0", "9" * 40]
    for card in range(rng.randrange(1, 6)):
        files = ("state", "phys_state", "rate", "link_layer")
        put(tmp_path, f"mlx5_{card}", **{name: rng.choice(texts) for name in files if rng.random() < 0.8})
    ports = read_ports(tmp_path)
    assert {port.rate_gbits for port in ports} <= {None, 400.0}
    assert slower(ports) == ()


def test_doctor_warns_of_a_port_that_is_down_and_of_one_that_is_slow() -> None:
    ports = (
        Port("mlx5_0", 1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", "MT4129"),
        Port("mlx5_1", 1, "ACTIVE", "LinkUp", 200.0, "InfiniBand", "MT4129"),
        Port("mlx5_2", 1, "DOWN", "Polling", 10.0, "InfiniBand", "MT4129"),
    )
    found = named(machine(host={"network_ports": ports}), "network ports")
    assert found.level is Level.WARN
    assert "mlx5_2:1 is DOWN (Polling)" in found.text
    assert "mlx5_1:1 has 200" in found.text
    assert "siblings 400" in found.text
    assert named(machine(host={"network_ports": ports[:1]}), "network ports").level is Level.OK
    assert named(machine(host={"network_ports": (Port("mlx5_0", 1),)}), "network ports").level is Level.UNKNOWN
