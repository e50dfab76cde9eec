"""What 1,024 ranks cost rank 0, without GPUs, NCCL or a network: messages, bytes, seconds and memory by phase.

    .venv/bin/python benchmarks/many_ranks.py --nodes 128 --gpus 8 --file raw.jsonl

Rank 0 is real: its listener, its coordinator, its survey with its run file. The other ranks are real
connections over loopback to one other process that answers each request at once with made-up times, so that no figure
is one of a link. `cpu_s` is rank 0's processor time; `wall_s` includes the other process's, which on a cluster is
spread over a thousand hosts. `peak_mib` is rank 0's largest memory so far.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from collbench.api import SILENT
from collbench.cluster.api import NodesRequest, _new_run, _survey, request_for
from collbench.machine.launchers import LaunchEnvironment
from collbench.measurement.backends.protocol import BackendFacts
from collbench.measurement.plan import Request
from collbench.model.run import Device, Machine
from collbench.model.units import parse_size
from collbench.ranks import connection, factory
from collbench.ranks.connection import KEY_BYTES, Connection, Listener
from collbench.ranks.coordinator import Coordinator, Ranks
from collbench.ranks.messages import Done, Introduction, decode_rank_message, encode
from collbench.runfile.run_file import RunWriter

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = "127.0.0.1"
_SIZE = parse_size("512M")
_DEADLINE_S = 300.0


# The other process: all ranks, each a connection.


def answer_of_rank(gpus: int, rank: int, data: bytes, parsed: dict[bytes, list[list[int]]]) -> bytes | None:
    """Return a rank's answer to an encoded call; None for other orders."""
    if not data.startswith(b'["Call","'):
        return None
    name = data[9 : data.index(b'"', 9)].decode()
    if name == "introduce":
        node, gpu = divmod(rank, gpus)
        device = Device(gpu, f"GPU-{rank:08x}-0000-0000-0000-000000000000", f"0000:{gpu:02X}:00.0", "GPU", 2**36)
        machine = Machine(f"node{node}", "Linux 6.1", "CPU", driver="none", cuda="none")
        introduction = Introduction(f"node{node}", f"node{node}", f"node{node}", "cuda", "0", device, machine)
        return encode(Done(name, introduction))
    if name == "make_id":
        return encode(Done(name, "00" * 128))
    if name == "open":
        return encode(Done(name, BackendFacts((2**36,), 2**36, "ptx", "2.0.0", "libnccl.so.2", multicast=True)))
    if name == "time":
        if data not in parsed:
            parsed[data] = json.loads(data)[2][0]
        step = parsed[data]
        batches = [0.003 * (1 + rank % 7 / 1000)] * step["batches"]  # type: ignore[call-overload]
        seconds = [batches if rank in group else [] for group in step["groups"]]  # type: ignore[call-overload]
        return json.dumps(["Done", name, {"seconds": seconds}, []], separators=(",", ":")).encode()
    return encode(Done(name, None if name in {"meet", "reserve", "prepare"} else ()))


def answer_all(nodes: int, gpus: int, port: int, key: bytes) -> None:
    """Answer for all ranks except rank 0, until rank 0 closes the connections."""
    _allow_files(nodes * gpus)
    selector = selectors.EpollSelector()
    received: dict[socket.socket, bytearray] = {}
    parsed: dict[bytes, list[list[int]]] = {}
    ranks = {}
    for rank in range(1, nodes * gpus):
        connected = connection.connect((LOOPBACK,), port, key, rank)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received[connected], ranks[connected] = bytearray(), rank
        selector.register(connected, selectors.EVENT_READ)
    while received:
        for ready, _ in selector.select():
            connected = cast("socket.socket", ready.fileobj)
            try:
                chunk = connected.recv(2**20)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                selector.unregister(connected)
                del received[connected]
                continue
            received[connected] += chunk
            _answer(
                connected,
                received[connected],
                lambda data, rank=ranks[connected]: answer_of_rank(gpus, rank, data, parsed),
            )


def _answer(connected: socket.socket, received: bytearray, answer: object) -> None:
    while len(received) >= 4 and len(received) >= 4 + (length := int.from_bytes(received[:4], "big")):
        data = bytes(received[4 : 4 + length])
        del received[: 4 + length]
        reply = answer(data)  # type: ignore[operator]
        if reply is not None:
            connected.sendall(len(reply).to_bytes(4, "big") + reply)


def first_rank(gpus: int, rank_socket: socket.socket) -> None:
    """Answer for rank 0's own rank, which is in the coordinator's process."""
    received, parsed = bytearray(), dict[bytes, list[list[int]]]()
    while chunk := rank_socket.recv(2**20):
        received += chunk
        _answer(rank_socket, received, lambda data: answer_of_rank(gpus, 0, data, parsed))


# Rank 0.


class Meter:
    """Counts messages and bytes of all connections, and measures the cost of a phase."""

    def __init__(self) -> None:
        self.messages = self.sent = 0
        self.rows: list[dict[str, object]] = []
        send, receive = Connection.send_frame, Connection.receive

        def counted_send(peer: Connection, frame: bytes) -> None:  # type: ignore[type-arg]
            self.messages += 1
            self.sent += len(frame)
            send(peer, frame)

        def counted_receive(peer: Connection) -> object:  # type: ignore[type-arg]
            message = receive(peer)
            self.messages += message is not None
            return message

        Connection.send_frame, Connection.receive = counted_send, counted_receive  # type: ignore[assignment, method-assign]

    @contextmanager
    def phase(self, name: str, times: int = 1) -> Iterator[None]:
        """Add a row with the cost of the body, divided by `times`."""
        before = self.messages, self.sent
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.rows.append(
            {
                "phase": name, "times": times, "wall_s": round((time.perf_counter() - wall) / times, 4),
                "cpu_s": round((time.process_time() - cpu) / times, 4),
                "messages": round((self.messages - before[0]) / times),
                "sent_mb": round((self.sent - before[1]) / times / 1e6, 3),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )  # fmt: skip
        print(json.dumps(self.rows[-1]), flush=True)


class MemoryStore:
    """Replaces torch's TCPStore; stores nothing."""

    def publish(self, name: str, value: str) -> None:
        """Do nothing: no rank reads it."""

    def forget(self, name: str) -> None:
        """Do nothing."""


def measure_phases(nodes: int, gpus: int, folder: Path) -> list[dict[str, object]]:
    """Run the phases; return a row with the cost of each for rank 0."""
    meter, size = Meter(), nodes * gpus
    key = secrets.token_bytes(KEY_BYTES)
    listener = Listener(key, size, LOOPBACK)
    command = [sys.executable, __file__, "--nodes", str(nodes), "--gpus", str(gpus), "--be", str(listener.port)]
    others = subprocess.Popen(command, env=os.environ | {"MANY_RANKS_KEY": key.hex()})
    coordinator_socket, rank_socket = socket.socketpair()
    threading.Thread(target=first_rank, args=(gpus, rank_socket), daemon=True).start()
    time.sleep(2)  # it imports
    with meter.phase("ranks connect"):
        if missing := listener.admit(_DEADLINE_S):
            raise RuntimeError(f"{len(missing)} ranks are missing")
        admitted = listener.take()
    rank_0: dict[int, connection.RankConnection] = {0: Connection(coordinator_socket, decode_rank_message)}
    connections = rank_0 | {rank: connection.to_rank(accepted) for rank, accepted in admitted.items()}
    launch = LaunchEnvironment(0, size, 0, gpus, LOOPBACK, 0, "Slurm")
    world = factory.World.__new__(factory.World)
    world.launch, world._say, world.unknown, world._coordinator = launch, lambda _text: None, (), None
    world._store = MemoryStore()  # type: ignore[assignment]
    world._ends = dict.fromkeys(admitted, (LOOPBACK, LOOPBACK))
    world._ranks = Ranks(connections, {rank: f"rank {rank}" for rank in range(size)}, survives_losses=True)
    with meter.phase("ranks introduced, world opened, paths"):
        opened = world.open()
    nodes_request = NodesRequest(size_bytes=_SIZE, budget_seconds=0.001, count=nodes // 2)
    request = request_for(nodes_request, Request(backend="cuda", seed=1, command=("nodes",), kind="nodes"))
    with meter.phase("health of all devices"):
        run = _new_run(request, opened)
    file = folder / "run.json"
    writer = RunWriter(run, file, print)
    with meter.phase("a round of the survey, with its share of the end", times=8):
        _survey(nodes_request, replace(opened), world, run, writer, SILENT)
    with meter.phase("the ranks open another world, as after a loss"):
        cast("Coordinator", world._coordinator).open()
    world._ranks.close()
    others.wait(_DEADLINE_S)
    print(f"run file {file.stat().st_size / 1e6:.1f} MB")
    return meter.rows


def _allow_files(count: int) -> None:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard_limit, count + 1000), hard_limit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--file", type=Path, help="raw file; a JSON line for each phase is appended")
    parser.add_argument("--be", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        answer_all(options.nodes, options.gpus, options.be, bytes.fromhex(os.environ["MANY_RANKS_KEY"]))
        return
    _allow_files(options.nodes * options.gpus)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_phases(options.nodes, options.gpus, Path(folder))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release(), "command": sys.argv,
        "nodes": options.nodes, "gpus": options.gpus,
    }  # fmt: skip
    if options.file is not None:
        with options.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in (head, *rows))


if __name__ == "__main__":
    main()
