"""NCCL's configuration files, and the host identity that NCCL gives a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.machine.nccl import configured
from collbench.ranks.rank_worker import host_identity
from tests.machine.roots import put


@pytest.fixture(autouse=True)
def one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")


def test_nccl_conf_is_read_in_nccls_order(tmp_path: Path) -> None:
    put(tmp_path, "home/u/.nccl.conf", "# mine\nNCCL_DEBUG=INFO\nNCCL_ALGO=Ring\nno equals sign\n")
    put(tmp_path, "etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME=eth0\n#NCCL_PROTO=LL\n")
    environment = {"HOME": "/home/u", "NCCL_DEBUG": "WARN"}
    assert configured(tmp_path, environment) == (
        ("/home/u/.nccl.conf", "NCCL_ALGO", "Ring"),
        ("/etc/nccl.conf", "NCCL_SOCKET_IFNAME", "eth0"),
    )
    named = put(tmp_path, "job.conf", "NCCL_ALGO=PAT\n")
    assert configured(tmp_path, {"HOME": "/home/u", "NCCL_CONF_FILE": "/job.conf"})[0][2] == "PAT"
    assert configured(Path("/nowhere"), {"NCCL_CONF_FILE": "/dev/zero"}) == ()
    named.unlink()


def booted(root: Path, boot: str = "1234-abcd") -> Path:
    put(root, "proc/sys/kernel/random/boot_id", f"{boot}\n")
    return root


def test_a_host_is_its_name_and_its_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = booted(tmp_path)
    assert (host_identity({}, root).name, host_identity({}, root).key) == ("node7", "node71234-abcd")
    monkeypatch.setattr(socket, "gethostname", lambda: "node8")  # a container of the same machine
    assert host_identity({}, root).key == "node81234-abcd"
    assert host_identity({}, root).network == host_identity({"NCCL_HOSTID": "x"}, root).network
    assert host_identity({}, tmp_path / "nowhere").key == "node8", "NCCL goes on without a boot id"


@pytest.mark.parametrize(
    ("title", "host_id", "name", "key"),
    [
        ("a name", "rack2:n-4.x", "rack2:n-4.x", "rack2:n-4.x"),
        ("set to nothing, which makes one host of all who do so", "", "node7", ""),
        ("words", "my host", "node7", "my host"),
        ("what would garble a table", "\x1b[31mred\n", "node7", "\x1b[31mred\n"),
        ("what is no text", "n\udce9", "node7", "n\udce9"),
        ("more than NCCL compares", "x" * 2000, "node7", "x" * 1023),
        ("more bytes than NCCL compares", "é" * 1000, "node7", "é" * 511 + "\udcc3"),
    ],
)
def test_nccl_hostid_names_the_host(title: str, host_id: str, name: str, key: str, tmp_path: Path) -> None:
    identity = host_identity({"NCCL_HOSTID": host_id}, booted(tmp_path))
    assert (identity.name, identity.key) == (name, key)


def test_nccl_hostid_may_stand_in_nccls_files(tmp_path: Path) -> None:
    put(booted(tmp_path), "etc/nccl.conf", "NCCL_HOSTID=from-etc\n")
    assert host_identity({}, tmp_path).key == "from-etc"
    put(tmp_path, "home/u/.nccl.conf", "NCCL_HOSTID=mine\n")
    assert host_identity({"HOME": "/home/u"}, tmp_path).key == "mine"
    assert host_identity({"HOME": "/home/u", "NCCL_HOSTID": "said"}, tmp_path).key == "said"


def test_processes_of_this_machine_share_its_host() -> None:
    program = "import os; from collbench.ranks.rank_worker import host_identity; print(host_identity(os.environ))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables
        ).stdout
        for variables in (dict(os.environ), {**os.environ, "SOMETHING": "else"})
    }
    assert len(outputs) == 1
    assert "network='/0'" not in outputs.pop()
