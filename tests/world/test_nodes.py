"""`collbench nodes` by real processes: one on each of three network namespaces, which stand for hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.processes import as_slurm, ends, free_port, started, the_run

COUNT = 3


@pytest.fixture
def three_hosts() -> Iterator[list[list[str]]]:
    """Give the words that run a command on each of three hosts: network namespaces that a bridge joins."""
    spaces = [f"collbench-{os.getpid()}-n{place}" for place in range(COUNT)]
    bridge = f"collbench-{os.getpid()}-bridge"
    commands = [f"ip netns add {space}" for space in (bridge, *spaces)]
    commands += [f"ip -n {bridge} link add br0 type bridge", f"ip -n {bridge} link set br0 up"]
    for place, space in enumerate(spaces):
        commands += [
            f"ip -n {bridge} link add port{place} type veth peer name veth0 netns {space}",
            f"ip -n {bridge} link set port{place} master br0 up",
            f"ip -n {space} addr add 10.77.1.{place + 1}/24 dev veth0",
            f"ip -n {space} link set veth0 up",
            f"ip -n {space} link set lo up",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("three hosts need the command ip (iproute2)")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
        yield [["ip", "netns", "exec", space, *named, f"n{place}"] for place, space in enumerate(spaces)]
    finally:
        for space in (*spaces, bridge):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def test_three_hosts_are_measured_in_pairs_and_some_are_chosen(three_hosts: list[list[str]], tmp_path: Path) -> None:
    words = ["nodes", "--backend", "host", "--size", "64K", "--select", "2", "--gpus", "1", "--budget", "10ms"]
    alone = {"SLURM_LOCALID": 0, "SLURM_STEP_TASKS_PER_NODE": f"1(x{COUNT})", "MASTER_ADDR": "10.77.1.1"}
    places = [as_slurm(rank, COUNT, 29500, SLURM_NODEID=rank, **alone) for rank in range(COUNT)]
    with started(tmp_path, words, places, three_hosts) as processes:
        (status, out, err), *others = ends(processes)
    assert status == 0, err
    assert others == [(0, "", "")] * (COUNT - 1)
    assert out.startswith("backend   host\nnodes     3 hosts, 3 ranks by Slurm")
    assert "rounds    8 (8 at random): 8 measurements; there are 3 pairs" in out
    assert "\nchosen    n" in out
    assert "sim" not in out
    run = the_run(tmp_path)
    assert {frozenset(found.cell.members) for found in run.measurements} == {
        frozenset(pair) for pair in ((0, 1), (0, 2), (1, 2))
    }
    assert run.complete


def test_one_host_is_refused(tmp_path: Path) -> None:
    port = free_port()
    places = [as_slurm(rank, 2, port) for rank in range(2)]
    with started(tmp_path, ["nodes", "--backend", "host"], places) as processes:
        (status, out, err), other = ends(processes)
    assert (status, out) == (2, "")
    assert "collbench pairs" in err
    assert other == (0, "", "")
