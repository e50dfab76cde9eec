"""Findings on a host's network cards: ports that are down or slow, GPUs that are far from every card."""

from __future__ import annotations

from collbench.model.run import NetworkPort
from collbench.preflight.findings import Level
from collbench.preflight.judge import nearest
from tests.preflight.described import machine, named


def test_doctor_warns_of_a_port_that_is_down_and_of_one_that_is_slow() -> None:
    ports = (
        NetworkPort("mlx5_0", 1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", "MT4129"),
        NetworkPort("mlx5_1", 1, "ACTIVE", "LinkUp", 200.0, "InfiniBand", "MT4129"),
        NetworkPort("mlx5_2", 1, "DOWN", "Polling", 10.0, "InfiniBand", "MT4129"),
    )
    finding = named(machine(host={"network_ports": ports}), "network ports")
    assert finding.level is Level.WARN
    assert "mlx5_2:1 is DOWN (Polling)" in finding.text
    assert "mlx5_1:1 has 200" in finding.text
    assert "other ports of its kind 400" in finding.text
    assert named(machine(host={"network_ports": ports[:1]}), "network ports").level is Level.OK
    assert named(machine(host={"network_ports": (NetworkPort("mlx5_0", 1),)}), "network ports").level is Level.UNKNOWN


def test_doctor_warns_of_gpus_without_a_card_on_their_socket() -> None:
    near = {0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "PIX", "mlx5_1": "SYS"}}
    finding = named(machine(host={"near_cards": near}), "network affinity")
    assert (finding.level, finding.text) == (Level.OK, "nearest cards: GPU0 mlx5_0 PIX, GPU1 mlx5_0 PIX")
    far = {0: {"mlx5_0": "PIX", "mlx5_1": "PIX"}, 1: {"mlx5_0": "SYS", "mlx5_1": "SYS"}}
    finding = named(machine(host={"near_cards": far}), "network affinity")
    assert finding.level is Level.WARN
    assert "GPU1 reaches cards only across sockets" in finding.text
    assert nearest(far[0]) == (("mlx5_0", "mlx5_1"), "PIX"), "two at the same distance are both nearest"
