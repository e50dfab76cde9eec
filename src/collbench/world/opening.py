"""From a place among several processes to an open backend on rank 0, and to a rank at work on the others."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Self

from collbench.backends.opening import Opened
from collbench.errors import BackendError, UsageError
from collbench.model import Machine
from collbench.planning import Request
from collbench.world import hosts, wire
from collbench.world.coordinator import Coordinator
from collbench.world.environment import Place
from collbench.world.messages import FindPaths, Introduce, Introduction, RankFacts
from collbench.world.ranks import Ranks, checked
from collbench.world.seat import Seat
from collbench.world.serving import serve
from collbench.world.store import Store

# Schedulers start ranks minutes apart where a container image must be fetched first.
JOIN_S = 300.0
_DOOR = "door"


def refuse(request: Request) -> None:
    """Raise UsageError for what is not for several processes. All ranks know it before they meet."""
    if request.copies or request.chase:
        raise UsageError(
            "copies and latencies are timed by one process that sees all GPUs: start this without torchrun, srun or "
            "mpirun, or time collectives: 'pairs --operations allreduce,broadcast', 'allreduce'"
        )
    if request.algorithms:
        raise UsageError("--algorithms is for one process: leave it out, or start without torchrun, srun or mpirun")
    if request.devices is not None:
        raise UsageError(
            "--devices is for one process, and here each of several has its own GPU: start fewer processes, or choose "
            "by CUDA_VISIBLE_DEVICES"
        )


class World:
    """All ranks, held by rank 0, which is one of them. Use as a context manager: in the end all ranks leave."""

    def __init__(self, place: Place, request: Request, timeout_s: float = JOIN_S) -> None:
        """Wait for all ranks. Raises BackendError when one does not come, MachineError, UsageError."""
        refuse(request)
        self.place = place
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._store = Store(place, timeout_s)
            seat = _seat(place, request, self._store)
            ours, theirs = Pipe()
            own = threading.Thread(target=serve, args=(theirs, seat), name="rank 0", daemon=True)
            own.start()
            stack.callback(own.join)
            stack.callback(ours.close)
            came = self._admit(timeout_s)
            self._ends = {rank: _ends(found) for rank, found in came.items()}
            lines = {0: ours, **{rank: wire.wired(found) for rank, found in came.items()}}
            names = {rank: f"rank {rank} at {wire_end[0]}" for rank, wire_end in self._ends.items()}
            self._ranks = Ranks(lines, {0: f"rank 0 on {socket.gethostname()}", **names}, on_loss=_end_in_peace)
            stack.callback(self._ranks.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let all ranks leave. Safe to call twice."""
        self._stack.close()

    def open(self) -> Opened:
        """Return the ranks' devices as one backend. Raises UsageError, MachineError, BackendError."""
        ranks = self._ranks
        replies = ranks.ask(dict.fromkeys(ranks.everyone, Introduce()))
        known = ranks.values(replies, Introduction)
        ranks.rename({rank: f"rank {rank} on {host}" for rank, host in enumerate(hosts.host_names(known))})
        hosts.check(known)
        devices = hosts.devices_of(known)
        backend = Coordinator(known[0].backend, ranks, self._store, devices, hosts.addresses(known, self._ends))
        backend.open()
        hosts.check_libraries(known, backend.facts)
        guides = hosts.guides(known)
        asked = {first: FindPaths(tuple(known[rank].device for rank in members)) for first, members in guides.items()}
        told = ranks.ask(asked)
        found = {members: checked(told[first], tuple) for first, members in guides.items()}
        return Opened(
            backend,
            _with_facts(known[0].machine, backend.facts),
            hosts.all_paths(len(known), found),
            health=backend.health,
            close=self.close,
            watch=backend,
        )

    def _admit(self, timeout_s: float) -> Mapping[int, socket.socket]:
        """Say where the door is, and return the ranks' sockets. Raises BackendError, which names who is missing."""
        key = secrets.token_bytes(wire.KEY_BYTES)
        door = wire.Door(key, self.place.world_size)
        address = wire.own_address(self.place.master_addr, self.place.master_port)
        self._store.publish(_DOOR, json.dumps({"address": address, "port": door.port, "key": key.hex()}))
        try:
            came, missing = door.admit(timeout_s)
        finally:
            door.close()
            self._store.forget(_DOOR)
        if missing:
            for found in came.values():
                found.close()
            names = ", ".join(map(str, missing))
            raise BackendError(
                f"rank{'s' if len(missing) > 1 else ''} {names} of {self.place.world_size} did not come to "
                f"{self.place.meeting_point} within {timeout_s:.0f} s: check that {self.place.launcher} started all, "
                "and that they reach that address"
            )
        return came


def join(place: Place, request: Request, timeout_s: float = JOIN_S) -> bool:
    """Work for rank 0 as another rank; return whether it said in the end to leave, and did not just vanish.

    Raises BackendError when rank 0 cannot be found, MachineError, UsageError.
    """
    refuse(request)
    store = Store(place, timeout_s)
    seat = _seat(place, request, store)
    try:
        door = json.loads(store.read(_DOOR))
        candidates = tuple(filter(None, (door["address"], place.master_addr)))
        try:
            found = wire.dial(candidates, door["port"], bytes.fromhex(door["key"]), place.rank)
        except OSError as error:
            raise BackendError(
                f"rank {place.rank} on {socket.gethostname()} cannot connect to rank 0 at {' or '.join(candidates)}, "
                f"port {door['port']}: {error}; the hosts' firewalls must let ranks connect to each other"
            ) from error
    except BaseException:
        seat.close()
        raise
    # From here on rank 0 decides; Ctrl-C and a scheduler's SIGTERM reach it too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line: Connection = wire.wired(found)
    return serve(line, seat)


def _seat(place: Place, request: Request, store: Store) -> Seat:
    if request.backend == "host":
        from collbench.world.host_seat import HostSeat

        return HostSeat(place)
    from collbench.world.cuda_seat import CudaSeat

    return CudaSeat(place, store, request.nccl)


def _ends(found: socket.socket) -> tuple[str, str]:
    """Return the other side's address and ours."""
    return wire.plain_address(found.getpeername()[0]), wire.plain_address(found.getsockname()[0])


def _end_in_peace() -> None:
    """Save what was measured: torchrun, too, notices that a rank has died, and sends SIGTERM to the others."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _with_facts(machine: Machine, facts: tuple[RankFacts, ...]) -> Machine:
    """Return rank 0's machine; multicast where all ranks' GPUs support it."""
    told = [found.multicast for found in facts]
    return replace(
        machine,
        nccl=facts[0].nccl,
        nccl_path=facts[0].nccl_path,
        kernel_image=facts[0].kernel_image,
        multicast=None if None in told else all(told),
    )
