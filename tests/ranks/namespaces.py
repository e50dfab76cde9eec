"""Network namespaces that stand for hosts: each has its own name and address, and a bridge joins them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest


def address(host: int) -> str:
    """Return the address of one host."""
    return f"10.77.1.{host + 1}"


def bridge() -> str:
    """Return the namespace with the bridge that joins the hosts: port0 leads to the first."""
    return f"collbench-{os.getpid()}-bridge"


def permitted() -> bool:
    """Return whether network namespaces can be made here."""
    probe = f"collbench-{os.getpid()}-probe"
    try:
        subprocess.run(["ip", "netns", "add", probe], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return True


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[list[str]]]:
    """Yield the command prefix for each of the hosts n0, n1, …; skip the test where that is not permitted."""
    spaces = [f"collbench-{os.getpid()}-n{index}" for index in range(count)]
    switch = bridge()
    commands = [f"ip netns add {space}" for space in (switch, *spaces)]
    commands += [f"ip -n {switch} link add br0 type bridge", f"ip -n {switch} link set br0 up"]
    for index, space in enumerate(spaces):
        commands += [
            f"ip -n {switch} link add port{index} type veth peer name veth0 netns {space}",
            f"ip -n {switch} link set port{index} master br0 up",
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
        set_host_name = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
        yield [["ip", "netns", "exec", space, *set_host_name, f"n{index}"] for index, space in enumerate(spaces)]
    finally:
        for space in (*spaces, switch):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
