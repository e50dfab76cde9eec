"""What 1,024 ranks cost rank 0, without GPUs, NCCL and network: messages, bytes, seconds and memory by phase.

    .venv/bin/python benchmarks/many_ranks.py --nodes 128 --gpus 8 --file raw.jsonl

Rank 0 is the program's own: its listener, its coordinator, its survey with journal and run file. The others are 1,024
real connections over loopback, of one other process that answers each request as soon as it is there: its measured
times are made up, so nothing is said of any link. `cpu_s` is rank 0's processor time, `wall_s` has the other process's,
too, which on a cluster is a thousand hosts'. `peak_mib` is the largest memory that rank 0 has had until then.
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

from collbench.api.notices import SILENT
from collbench.api.surveying import NodesRequest, _new_run, _survey, request_for
from collbench.bench.plan import Request
from collbench.distributed import connection, factory
from collbench.distributed.connection import KEY_BYTES, Connection, Listener
from collbench.distributed.coordinator import Coordinator
from collbench.distributed.launchers import LaunchEnvironment
from collbench.distributed.messages import Done, Introduction, RankFacts, UniqueId, decode_rank_message, encode
from collbench.distributed.ranks import Ranks
from collbench.model.run import CommandKind, Device, Machine
from collbench.model.units import parse_size
from collbench.runfile.run_file import RunWriter

ROOT = Path(__file__).resolve().parents[1]
HERE = "127.0.0.1"
_SIZE = parse_size("512M")
_DEADLINE_S = 300.0


# The other process: all ranks, each a connection.


def answers(gpus: int, rank: int, data: bytes, parsed: dict[bytes, list[list[int]]]) -> bytes | None:
    """Return the answer of a rank to a request as it came; None to what has none."""
    name = data[2 : data.index(b'"', 2)].decode()
    if name in {"Abandon", "Leave"}:
        return None
    if name == "Introduce":
        node, gpu = divmod(rank, gpus)
        device = Device(gpu, f"GPU-{rank:08x}-0000-0000-0000-000000000000", f"0000:{gpu:02X}:00.0", "GPU", 2**36)
        machine = Machine(f"node{node}", "Linux 6.1", "CPU", driver="none", cuda="none")
        who = Introduction(f"node{node}", f"node{node}", f"node{node}", "cuda", "0", device, machine)
        return encode(Done(who))
    if name in {"MakeId", "OpenRank"}:
        facts = RankFacts(2**36, 2**36, "ptx", "2.0.0", "libnccl.so.2", multicast=True)
        return encode(Done(UniqueId("00" * 128) if name == "MakeId" else facts))
    if name == "Step":
        if data not in parsed:
            parsed[data] = json.loads(data)[1]
        step = parsed[data]
        batches = [0.003 * (1 + rank % 7 / 1000)] * step["batches"]  # type: ignore[call-overload]
        seconds = [batches if rank in group else [] for group in step["groups"]]  # type: ignore[call-overload]
        return json.dumps(["Done", ["Timing", {"seconds": seconds}], []], separators=(",", ":")).encode()
    if name in {"FindPaths", "TakeHealth"}:
        kind, field = ("FoundPaths", "paths") if name == "FindPaths" else ("FoundHealth", "states")
        return json.dumps(["Done", [kind, {field: []}], []]).encode()
    return b'["Done",null,[]]'


def answer_all(nodes: int, gpus: int, port: int, key: bytes) -> None:
    """Be all ranks but the first, until rank 0 hangs up."""
    _allow_files(nodes * gpus)
    waiting = selectors.EpollSelector()
    heard: dict[socket.socket, bytearray] = {}
    parsed: dict[bytes, list[list[int]]] = {}
    ranks = {}
    for rank in range(1, nodes * gpus):
        found = connection.connect((HERE,), port, key, rank)
        found.settimeout(None)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        heard[found], ranks[found] = bytearray(), rank
        waiting.register(found, selectors.EVENT_READ)
    while heard:
        for chosen, _ in waiting.select():
            found = cast("socket.socket", chosen.fileobj)
            try:
                part = found.recv(2**20)
            except ConnectionResetError:
                part = b""
            if not part:
                waiting.unregister(found)
                del heard[found]
                continue
            heard[found] += part
            _answer(found, heard[found], lambda data, rank=ranks[found]: answers(gpus, rank, data, parsed))


def _answer(found: socket.socket, said: bytearray, answer: object) -> None:
    while len(said) >= 4 and len(said) >= 4 + (length := int.from_bytes(said[:4], "big")):
        data = bytes(said[4 : 4 + length])
        del said[: 4 + length]
        reply = answer(data)  # type: ignore[operator]
        if reply is not None:
            found.sendall(len(reply).to_bytes(4, "big") + reply)


def first_rank(gpus: int, theirs: socket.socket) -> None:
    """Be rank 0's own rank, in its process as always."""
    said, parsed = bytearray(), dict[bytes, list[list[int]]]()
    while part := theirs.recv(2**20):
        said += part
        _answer(theirs, said, lambda data: answers(gpus, 0, data, parsed))


# Rank 0.


class Meter:
    """Counts messages and bytes of all connections, and gives what a phase has cost."""

    def __init__(self) -> None:
        self.messages = self.sent = 0
        self.rows: list[dict[str, object]] = []
        send, receive = Connection.send_frame, Connection.receive

        def counted_send(line: Connection, frame: bytes) -> None:  # type: ignore[type-arg]
            self.messages += 1
            self.sent += len(frame)
            send(line, frame)

        def counted_receive(line: Connection) -> object:  # type: ignore[type-arg]
            found = receive(line)
            self.messages += found is not None
            return found

        Connection.send_frame, Connection.receive = counted_send, counted_receive  # type: ignore[assignment, method-assign]

    @contextmanager
    def phase(self, what: str, times: int = 1) -> Iterator[None]:
        """Note what the body has cost, for each of so many times."""
        before = self.messages, self.sent
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.rows.append(
            {
                "phase": what, "times": times, "wall_s": round((time.perf_counter() - wall) / times, 4),
                "cpu_s": round((time.process_time() - cpu) / times, 4),
                "messages": round((self.messages - before[0]) / times),
                "sent_mb": round((self.sent - before[1]) / times / 1e6, 3),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )  # fmt: skip
        print(json.dumps(self.rows[-1]), flush=True)


class Board:
    """A store in memory, in torch's TCPStore's place."""

    def publish(self, name: str, value: str) -> None:
        """Do nothing: nobody reads it."""

    def forget(self, name: str) -> None:
        """Do nothing."""


def measured(nodes: int, gpus: int, folder: Path) -> list[dict[str, object]]:
    """Return what each phase costs rank 0."""
    meter, size = Meter(), nodes * gpus
    key = secrets.token_bytes(KEY_BYTES)
    listener = Listener(key, size, HERE)
    words = [sys.executable, __file__, "--nodes", str(nodes), "--gpus", str(gpus), "--be", str(listener.port)]
    others = subprocess.Popen(words, env=os.environ | {"MANY_RANKS_KEY": key.hex()})
    ours, theirs = socket.socketpair()
    threading.Thread(target=first_rank, args=(gpus, theirs), daemon=True).start()
    time.sleep(2)  # it imports
    with meter.phase("ranks connect"):
        if missing := listener.admit(_DEADLINE_S):
            raise RuntimeError(f"{len(missing)} ranks are missing")
        came = listener.take()
    own: dict[int, connection.RankConnection] = {0: Connection(ours, decode_rank_message)}
    lines = own | {rank: connection.to_rank(found) for rank, found in came.items()}
    launch = LaunchEnvironment(0, size, 0, gpus, HERE, 0, "Slurm")
    world = factory.World.__new__(factory.World)
    world.launch, world._say, world.unknown, world._coordinator = launch, lambda _text: None, (), None
    world._store = Board()  # type: ignore[assignment]
    world._ends = dict.fromkeys(came, (HERE, HERE))
    world._ranks = Ranks(lines, {rank: f"rank {rank}" for rank in range(size)}, survives_losses=True)
    with meter.phase("ranks introduced, world opened, paths"):
        opened = world.open()
    asked = NodesRequest(size_bytes=_SIZE, budget_seconds=0.001, count=nodes // 2)
    request = request_for(asked, Request(backend="cuda", seed=1, command=("nodes",), kind=CommandKind.NODES))
    with meter.phase("health of all devices"):
        run = _new_run(request, opened, launch)
    file = folder / "run.json"
    writer = RunWriter(run, file, print)
    with meter.phase("a round of the survey, with its share of the end", times=8):
        _survey(asked, replace(opened), world, run, writer, SILENT)
    with meter.phase("the ranks open another world, as after a loss"):
        cast("Coordinator", world._coordinator).open()
    world._ranks.close()
    others.wait(_DEADLINE_S)
    print(f"run file {file.stat().st_size / 1e6:.1f} MB")
    return meter.rows


def _allow_files(count: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + 1000), most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--file", type=Path, help="raw file; a JSON line for each phase is appended")
    parser.add_argument("--be", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.be:
        answer_all(asked.nodes, asked.gpus, asked.be, bytes.fromhex(os.environ["MANY_RANKS_KEY"]))
        return
    _allow_files(asked.nodes * asked.gpus)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(asked.nodes, asked.gpus, Path(folder))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit.stdout.strip(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release(), "command": sys.argv,
        "nodes": asked.nodes, "gpus": asked.gpus,
    }  # fmt: skip
    if asked.file is not None:
        with asked.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in (head, *rows))


if __name__ == "__main__":
    main()
