"""Network namespaces that stand for hosts: each has its own name and address, and a bridge joins them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest


def address(place: int) -> str:
    """Return the address of one host."""
    return f"10.77.1.{place + 1}"


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[list[str]]]:
    """Give the words that run a command on each of the hosts n0, n1, …; skip the test where that is not permitted."""
    spaces = [f"collbench-{os.getpid()}-n{index}" for index in range(count)]
    bridge = f"collbench-{os.getpid()}-bridge"
    commands = [f"ip netns add {space}" for space in (bridge, *spaces)]
    commands += [f"ip -n {bridge} link add br0 type bridge", f"ip -n {bridge} link set br0 up"]
    for index, space in enumerate(spaces):
        commands += [
            f"ip -n {bridge} link add port{index} type veth peer name veth0 netns {space}",
            f"ip -n {bridge} link set port{index} master br0 up",
            f"ip -n {space} addr add {address(index)}/24 dev veth0",
            f"ip -n {space} link set veth0 up",
            f"ip -n {space} link set lo up",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("several hosts need the command ip (iproute2)")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
        yield [["ip", "netns", "exec", space, *named, f"n{index}"] for index, space in enumerate(spaces)]
    finally:
        for space in (*spaces, bridge):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
