"""The test bed itself: hosts on one machine have the rates, and the faults, that a test gives them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks import namespaces
from tests.ranks.emulated import Hosts, emulated_hosts
from tests.ranks.processes import free_port

BYTES = 300_000
# Sends BYTES in both directions one after the other; each side prints the seconds that its receiving took.
TALK = """
import socket, sys, time
listens, address, port, count = sys.argv[1] == "listen", sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def take(end):
    left, begin = count, None
    while left:
        left -= len(end.recv(min(left, 65536)))
        begin = begin or time.monotonic()
    print(time.monotonic() - begin, flush=True)

if listens:
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        end, _ = server.accept()
        take(end)
        end.sendall(bytes(count))
        end.recv(1)
else:
    end = socket.create_connection((address, port), 20)
    end.sendall(bytes(count))
    take(end)
"""


def transfer_seconds(hosts: Hosts, source: int, destination: int) -> tuple[float, float]:
    """Return how long BYTES take from host `a` to `b`, and back."""
    address = namespaces.address(destination) if hosts.bridge else "127.0.0.1"
    arguments = [address, str(free_port()), str(BYTES)]
    processes = []
    for host, role in ((destination, "listen"), (source, "call")):
        environment = {
            name: str(value) for name, value in hosts.places[host].items() if name.startswith(("LD_", "EMULATED_"))
        }
        command = [*hosts.before[host], sys.executable, "-S", "-c", TALK, role, *arguments]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        if role == "listen":
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
    forward_s, backward_s = (float(process.communicate(timeout=60)[0]) for process in processes)
    return forward_s, backward_s


def least_seconds(mbit: float) -> float:
    """Return the seconds that BYTES need at a rate, less what buckets and buffers let through at once."""
    return BYTES * 8 / mbit / 1e6 * 0.5


@pytest.mark.parametrize("paced", [False, True])
def test_links_are_as_slow_as_their_rates(paced: bool, tmp_path: Path) -> None:
    """Only what a busy machine cannot change is asserted: nothing passes a link faster than its rate."""
    if not paced and not namespaces.permitted():
        pytest.skip("network namespaces are not permitted here")
    with emulated_hosts(3, tmp_path, paced=paced) as hosts:
        hosts.rate(2, 5.0, receives=False)
        forward_s, backward_s = transfer_seconds(hosts, 2, 0)
        assert forward_s > least_seconds(5.0), "what host 2 sends is slow"
        assert backward_s > least_seconds(40.0)
        assert forward_s > 2 * backward_s or backward_s > least_seconds(5.0), (
            "and what it receives is not, or the machine is busy"
        )
        forward_s, backward_s = transfer_seconds(hosts, 0, 1)
        assert min(forward_s, backward_s) > least_seconds(40.0)


def test_a_host_that_is_cut_off_receives_nothing(tmp_path: Path) -> None:
    if not namespaces.permitted():
        pytest.skip("network namespaces are not permitted here")
    with emulated_hosts(2, tmp_path, paced=False) as hosts:
        hosts.cut(1)
        program = f"import socket; socket.create_connection(('{namespaces.address(1)}', 9), 0.5)"
        done = subprocess.run(
            [*hosts.before[0], sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
        )
        assert "timed out" in done.stderr or "No route to host" in done.stderr


def test_all_processes_of_a_host_are_stopped_and_killed(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'print(1, flush=True); input()'])"
    with emulated_hosts(2, tmp_path) as hosts:
        process = subprocess.Popen(
            [*hosts.before[1], sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        hosts.stop(process)
        deadline = time.monotonic() + 30
        while "T (stopped)" not in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.poll() is None
        hosts.kill(process)
        process.communicate(timeout=60)  # ends when the last of them has closed its stdout
        assert process.returncode == -9
