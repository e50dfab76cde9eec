"""Open a backend on rank 0 of a launch, and serve it on the other ranks."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from collbench.machine import kernel, variables
from collbench.machine.launchers import LaunchEnvironment
from collbench.measurement.backends import child_process
from collbench.measurement.backends.protocol import BackendFacts, Call, Opened
from collbench.measurement.plan import Request, check_registrations
from collbench.model.errors import BackendError, UsageError
from collbench.model.run import Device, Machine, Path, capabilities
from collbench.ranks import connection
from collbench.ranks.connection import KEY_BYTES, Listener, connect, is_loopback
from collbench.ranks.coordinator import SILENCE_S, Coordinator, RankLost, Ranks
from collbench.ranks.messages import Introduction
from collbench.ranks.rank_worker import RankWorker, serve
from collbench.ranks.store import JOIN_S, JOIN_VARIABLE, UNSAID_S, Store, still_waiting
from collbench.runfile.codec import build

# What the ranks' introductions mean together: hosts, devices, addresses, and conflicts. Pure.

# What tables call the path between two hosts. nvidia-smi has no word for it; it sorts behind SYS.
NETWORK = "NET"

_Key = TypeVar("_Key", bound=Hashable)


def host_names(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return each rank's host by its first rank's name; hosts that share one are numbered, "node" and "node#2"."""
    names: dict[str, str] = {}  # by key
    alike: Counter[str] = Counter()
    for rank in ranks:
        if rank.host_key not in names:
            alike[rank.host] += 1
            names[rank.host_key] = f"{rank.host}#{alike[rank.host]}" if alike[rank.host] > 1 else rank.host
    return tuple(names[rank.host_key] for rank in ranks)


def devices_of(ranks: Sequence[Introduction]) -> tuple[Device, ...]:
    """Return the ranks' devices, with their hosts where there are several."""
    hosts = host_names(ranks)
    if len(set(hosts)) == 1:
        return tuple(rank.device for rank in ranks)
    return tuple(replace(rank.device, host=host) for rank, host in zip(ranks, hosts, strict=True))


def check_ranks(ranks: Sequence[Introduction]) -> None:
    """Raise UsageError if the ranks cannot measure together.

    They have different backends or versions, share a GPU, or have one NCCL_HOSTID on two machines.
    """
    hosts = host_names(ranks)
    for rank, facts in enumerate(ranks):
        if facts.backend != ranks[0].backend:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has the {facts.backend} backend and rank 0 on {hosts[0]} the "
                f"{ranks[0].backend} one: choose one with --backend"
            )
        if facts.version != ranks[0].version:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} runs collbench {facts.version} and rank 0 on {hosts[0]} "
                f"{ranks[0].version}: install the same version on all hosts"
            )
    for host_ranks in _grouped(facts.host_key for facts in ranks).values():
        first = host_ranks[0]
        for rank in host_ranks[1:]:
            if ranks[rank].boot and ranks[first].boot and ranks[rank].boot != ranks[first].boot:
                raise UsageError(
                    f"ranks {first} and {rank} have the same NCCL_HOSTID on two machines, which NCCL takes for one "
                    "host: give each machine its own, or leave NCCL_HOSTID out (it may come from nccl.conf)"
                )
    if capabilities(ranks[0].backend).cores:
        return  # two ranks on one core are slow, and right
    for (_, uuid), sharing in _grouped((facts.host_key, facts.device.uuid) for facts in ranks).items():
        if len(sharing) > 1:
            raise UsageError(
                f"ranks {' and '.join(map(str, sharing))} on {hosts[sharing[0]]} all have the same GPU, {uuid}: start "
                "one process for each GPU, or check which GPUs CUDA_VISIBLE_DEVICES and --gpus-per-task give to each"
            )


def shared_gpus(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return a sentence on each GPU that ranks of several hosts share: NCCL allows it, and each rank gets a part."""
    if capabilities(ranks[0].backend).cores:
        return ()
    hosts = host_names(ranks)
    return tuple(
        f"ranks {', '.join(map(str, sharing))} ({', '.join(hosts[rank] for rank in sharing)}) share the GPU {uuid}: "
        "NCCL treats them as several hosts, and each rank uses a part of the GPU"
        for uuid, sharing in _grouped(facts.device.uuid for facts in ranks).items()
        if len(sharing) > 1
    )


def unseen_gpus(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return a sentence on ranks that are shown fewer GPUs than the ranks of their host use; () if none is."""
    hosts, used = host_names(ranks), Counter(facts.host_key for facts in ranks)
    few = [rank for rank, facts in enumerate(ranks) if 0 < facts.shown < used[facts.host_key]]
    if not few:
        return ()
    first, others = ranks[few[0]], f" ({len(few) - 1} others likewise)" if len(few) > 1 else ""
    return (
        f"rank {few[0]} on {hosts[few[0]]} is shown {first.shown} of the {used[first.host_key]} GPUs that ranks there "
        f"use{others}: NCCL cannot use P2P with the rest; {kernel.UNBOUND}, or a container with all GPUs",
    )


def check_libraries(ranks: Sequence[Introduction], facts: Sequence[BackendFacts]) -> None:
    """Raise UsageError if the ranks loaded different versions of NCCL: the times would describe neither."""
    hosts = host_names(ranks)
    for rank, fact in enumerate(facts):
        if fact.nccl != facts[0].nccl:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has NCCL {fact.nccl} ({fact.nccl_path}) and rank 0 on {hosts[0]} "
                f"{facts[0].nccl} ({facts[0].nccl_path}): name one with --nccl"
            )


def host_leaders(ranks: Sequence[Introduction]) -> dict[int, tuple[int, ...]]:
    """Return each host's first rank, which knows the paths there, and all ranks of that host."""
    return {host_ranks[0]: host_ranks for host_ranks in _grouped(facts.host_key for facts in ranks).values()}


def all_paths(
    world_size: int, paths_of: Mapping[tuple[int, ...], Sequence[Path]], *, between_hosts: bool = True
) -> tuple[Path, ...]:
    """Return the path of each pair of ranks. `paths_of` maps the ranks of one host to the paths between them.

    Paths `between_hosts` are all alike; 1,024 ranks have half a million of them.
    """
    paths_by_pair: dict[tuple[int, int], Path] = {}
    for host_ranks, paths in paths_of.items():
        for path in paths:
            first, second = sorted(host_ranks[index] for index in path.devices)
            paths_by_pair[first, second] = replace(path, devices=(first, second))
    if between_hosts:
        host_of = {rank: host_ranks[0] for host_ranks in paths_of for rank in host_ranks}
        pairs = ((a, b) for a in range(world_size) for b in range(a + 1, world_size))
        paths_by_pair.update({pair: Path(pair, NETWORK) for pair in pairs if host_of[pair[0]] != host_of[pair[1]]})
    return tuple(paths_by_pair[pair] for pair in sorted(paths_by_pair))


def addresses(ranks: Sequence[Introduction], ends: Mapping[int, tuple[str, str]]) -> tuple[str, ...]:
    """Return each rank's address for the other ranks; empty ones if all ranks can use loopback.

    `ends` has, for the connection of each other rank with rank 0, that rank's address and rank 0's.
    """
    home = ranks[0].network_key
    abroad = [rank for rank, facts in enumerate(ranks) if facts.network_key != home]
    if not abroad:
        return ("",) * len(ranks)
    host_0_address = next((ends[rank][1] for rank in abroad if not is_loopback(ends[rank][1])), "")
    return tuple(ends[rank][0] if rank in abroad else host_0_address for rank in range(len(ranks)))


def _grouped(keys: Iterable[_Key]) -> dict[_Key, tuple[int, ...]]:
    """Return the ranks of each key, in the order of their first ranks."""
    groups: dict[_Key, list[int]] = {}
    for rank, key in enumerate(keys):
        groups.setdefault(key, []).append(rank)
    return {key: tuple(ranks) for key, ranks in groups.items()}


# The world, on rank 0 and on the others.

# The name of the value in the store that says where rank 0 listens.
_LISTENER = "listener"
# If losses are survived, a rank is lost after these seconds without an Alive (sent every 2 s).
_SHORT_SILENCE_S = 15.0
# A run of up to this many ranks lists the path of each pair (8,128). Between hosts it is the network's, listed or not.
_MAX_LISTED = 128
# If losses are survived, a missing rank is late this long after rank 0 began to load torch, as all ranks do at the same
# time, or after twice as long as the last one took: a file system that is slow for all gives each more time. With eight
# hosts on two loaded cores 3 s go before it and 9 s after it, so that all ends within 30 s
# [benchmarks/results/2026-11-23-emulated-hosts].
_LATE_S = 12.0


def late_after(begin: float, latest: float) -> float:
    """Return when missing ranks count as late, if rank 0 began at `begin` and the last rank connected at `latest`.

    All in seconds of one clock.
    """
    return begin + max(_LATE_S, 2 * (latest - begin))


def _in_silence(_text: str) -> None:
    """Do not report a wait."""


def refuse(request: Request) -> None:
    """Raise UsageError for what several processes cannot do. All ranks check it before they connect."""
    check_registrations(request)
    if capabilities(request.backend).nvml:
        variables.refuse()
    if request.copies or request.chase:
        raise UsageError(
            "copies and latencies are timed by one process that sees all GPUs: start this without torchrun, srun or "
            "mpirun, or time collectives: 'pairs --operations allreduce,broadcast', 'allreduce'"
        )
    if request.devices is not None:
        raise UsageError(
            "--devices is for one process, and here each of several has its own GPU: start fewer processes, or choose "
            "by CUDA_VISIBLE_DEVICES"
        )


class World:
    """All ranks, controlled by rank 0, which is one of them. A context manager: all ranks exit at its end."""

    def __init__(
        self,
        launch: LaunchEnvironment,
        request: Request,
        timeout_s: float = JOIN_S,
        say: Callable[[str], object] = _in_silence,
        *,
        survives_losses: bool = False,
        waits: bool = False,
    ) -> None:
        """Wait for all ranks, and report through `say` when that takes long.

        If it `survives_losses`, a rank that is lost later, or missing when most have connected, costs only what it
        takes part in; `lost` and `unknown` say which ranks these are. It continues without a missing rank when that is
        late by `late_after`, or if it `waits`, after `timeout_s`.

        Raises BackendError if a rank does not connect, MachineError, UsageError for what several processes cannot do.
        """
        refuse(request)
        self.launch, self._say = launch, say
        self.unknown: tuple[RankLost, ...] = ()  # lost before their introduction
        self._coordinator: Coordinator | None = None
        self._stack = ExitStack()
        begin = time.monotonic()
        with ExitStack() as stack:
            self._store = Store(launch, timeout_s, say)
            rank_worker = _open_rank_worker(launch, request, self._store)
            ours, theirs = connection.pair()
            rank_0_thread = threading.Thread(target=serve, args=(theirs, rank_worker), name="rank 0", daemon=True)
            rank_0_thread.start()
            stack.callback(rank_0_thread.join)
            stack.callback(ours.close)
            late = partial(late_after, begin) if survives_losses and not waits else None
            sockets = self._admit(timeout_s, late, survives_losses=survives_losses)
            self._ends = {rank: _ends(peer) for rank, peer in sockets.items()}
            names = {rank: f"rank {rank}" for rank in range(launch.world_size)}
            names[0] += f" on {socket.gethostname()}"
            for rank, (rank_address, _) in self._ends.items():
                names[rank] += f" at {rank_address}"
            self._ranks = Ranks(
                {0: ours, **{rank: connection.to_rank(peer) for rank, peer in sockets.items()}},
                names,
                on_loss=self._report_loss if survives_losses else _ignore_sigterm,
                silence_s=_SHORT_SILENCE_S if survives_losses else SILENCE_S,
                survives_losses=survives_losses,
            )
            stack.callback(self._ranks.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._ranks.close(f"rank 0 failed: {error or 'it was interrupted'}")
        self.close()

    def close(self) -> None:
        """Let all ranks exit. Safe to call twice."""
        self._stack.close()

    def lost(self) -> Mapping[int, RankLost]:
        """Return the ranks that were lost since all were introduced, by position, and how."""
        return self._coordinator.lost if self._coordinator is not None else {}

    def _report_loss(self) -> None:
        """Report a lost rank at once, because the next steps take time."""
        _ignore_sigterm()
        *_, last = self._ranks.lost.values()
        self._say(f"{last}; the other ranks continue without it")

    def open(self) -> Opened:
        """Return the ranks' devices as one backend. Raises UsageError, MachineError, BackendError."""
        ranks = self._ranks
        replies = ranks.ask(dict.fromkeys(ranks.everyone, Call("introduce")))
        self.unknown = tuple(ranks.lost.values())
        kept = ranks.without_lost()
        numbers = {rank: number for number, rank in enumerate(kept)}
        # In order of arrival: the first failure is the cause of those after it.
        present = {numbers[rank]: reply for rank, reply in replies.items() if rank in numbers}
        introduced: tuple[Introduction, ...] = ranks.values(present, "introduce")
        ends = {number: self._ends[rank] for number, rank in enumerate(kept) if rank in self._ends}
        ranks.rename({rank: f"rank {rank} on {host}" for rank, host in enumerate(host_names(introduced))})
        check_ranks(introduced)
        for text in (*shared_gpus(introduced), *unseen_gpus(introduced)):
            self._say(text)
        devices = devices_of(introduced)
        ranks.ask(dict.fromkeys(ranks.everyone, Call("meet", (devices,))))
        backend = Coordinator(introduced[0].backend, ranks, self._store, devices, addresses(introduced, ends))
        self._coordinator = backend
        backend.open()
        left = [rank for rank in range(len(introduced)) if rank not in backend.lost]
        check_libraries([introduced[rank] for rank in left], backend.facts)
        leaders = host_leaders(introduced)
        answers = ranks.ask(
            {
                first: Call("paths", (tuple(introduced[rank].device for rank in host_ranks),))
                for first, host_ranks in leaders.items()
            }
        )
        paths = {
            host_ranks: ()
            if isinstance(answers[first], RankLost)
            else ranks.values({first: answers[first]}, "paths")[0]
            for first, host_ranks in leaders.items()
        }
        return Opened(
            backend,
            machine=_with_facts(introduced[0].machine, backend.facts),
            paths=all_paths(len(introduced), paths, between_hosts=len(introduced) <= _MAX_LISTED),
            health=backend.health,
            ports=backend.ports,
            close=self.close,
            flags=backend.flags,
            processes=self.launch.world_size,
            launcher=self.launch.launcher,
        )

    def _admit(
        self, timeout_s: float, late: Callable[[float], float] | None, *, survives_losses: bool
    ) -> Mapping[int, socket.socket]:
        """Publish rank 0's address, and return the ranks' sockets. Raises BackendError, which names the missing ranks.

        `late` returns until when to wait for the others once most have connected, from the time of the last connection;
        None: until the timeout.
        """
        key = secrets.token_bytes(KEY_BYTES)
        listener = Listener(key, self.launch.world_size, _own_address(self.launch))
        address = (listener.address, listener.port, key.hex())
        begin, continues = time.monotonic(), False
        try:
            self._store.publish(_LISTENER, json.dumps(address, allow_nan=False))
            missing = listener.admit(min(UNSAID_S, timeout_s))
            if missing and timeout_s > UNSAID_S:
                waiting = f"{self._names(missing)} not connected yet"
                if late is None:
                    self._say(still_waiting(waiting, timeout_s - UNSAID_S, timeout_s))
                else:
                    self._say(f"{waiting}: once most ranks are, they continue without it")
                missing = listener.admit(begin + timeout_s - time.monotonic(), late)
            continues = survives_losses and 0 < len(missing) < self.launch.world_size - 1
            if continues:
                waited = time.monotonic() - begin
                longer = "" if late is None else f" (to wait longer set {JOIN_VARIABLE}, in seconds)"
                self._say(f"{self._names(missing)} did not connect in {waited:.0f} s; the others continue{longer}")
            elif missing:
                raise BackendError(
                    f"{self._names(missing)} did not connect to {self.launch.meeting_point} within {timeout_s:.0f} s: "
                    f"check that {self.launch.launcher} started all ranks, and that they reach that address"
                )
            return listener.take()
        finally:
            listener.close()
            if not continues:  # a late rank finds no address and need not wait for it
                self._store.forget(_LISTENER)

    def _names(self, missing: Sequence[int]) -> str:
        names = ", ".join(map(str, missing))
        return f"rank{'s' if len(missing) > 1 else ''} {names} of {self.launch.world_size}"


def join(
    launch: LaunchEnvironment, request: Request, timeout_s: float = JOIN_S, say: Callable[[str], object] = _in_silence
) -> None:
    """Work for rank 0 as another rank, until that ends the work; `say` reports a long wait for rank 0.

    Raises BackendError if it cannot be found or its connection breaks, Rank0Failed, MachineError, UsageError.
    """
    refuse(request)
    store = Store(launch, timeout_s, say)
    rank_worker = _open_rank_worker(launch, request, store)
    try:
        address, port, key = _address(store.read(_LISTENER))
        candidates = tuple(dict.fromkeys(filter(None, (address, launch.master_addr))))
        try:
            peer = connect(candidates, port, key, launch.rank)
        except OSError as error:
            raise BackendError(
                f"rank {launch.rank} on {socket.gethostname()} cannot connect to rank 0 at {' or '.join(candidates)}, "
                f"port {port}: {error}; firewalls must allow connections between the hosts"
            ) from error
    except BaseException:
        rank_worker.close()
        raise
    child_process.leave_signals_to_parent()  # from here on the ranks reach rank 0 directly
    if not serve(connection.to_rank_0(peer), rank_worker):
        raise BackendError(f"rank {launch.rank} stops: rank 0 is gone, and its output says why")


def _own_address(launch: LaunchEnvironment) -> str:
    """Return the address to listen on: the one from which this host reaches the rendezvous point.

    Returns "" (all addresses) if the host's name means loopback on the host itself, as on Debian, while other hosts
    resolve it differently.
    """
    address = connection.own_address(launch.master_addr, launch.master_port)
    return "" if connection.is_loopback(address) and launch.local_size < launch.world_size else address


def _address(text: str) -> tuple[str, int, bytes]:
    """Return where rank 0 listens, by its entry in the store, and the key. Raises BackendError for any other entry."""
    try:
        address, port, key = build(tuple[str, int, str], json.loads(text), "the value")
        return address, port, bytes.fromhex(key)
    except ValueError as error:
        raise BackendError(f"cannot read the address of rank 0 in the store: {error}; start all ranks again") from error


def _open_rank_worker(launch: LaunchEnvironment, request: Request, store: Store) -> RankWorker:
    if capabilities(request.backend).cores:
        from collbench.ranks.rank_worker import HostRankWorker

        return HostRankWorker(launch)
    from collbench.ranks.rank_worker import CudaRankWorker

    return CudaRankWorker(launch, store, request.nccl, len(request.registrations))


def _ends(peer: socket.socket) -> tuple[str, str]:
    """Return the other side's address and this side's."""
    return connection.plain_address(peer.getpeername()[0]), connection.plain_address(peer.getsockname()[0])


def _ignore_sigterm() -> None:
    """Let this process save its results: torchrun also notices a dead rank, and sends SIGTERM to the others."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _with_facts(machine: Machine, facts: tuple[BackendFacts, ...]) -> Machine:
    """Return rank 0's machine; its multicast is True if all ranks' GPUs support it."""
    supports = [fact.multicast for fact in facts]
    return replace(
        machine,
        nccl=facts[0].nccl,
        nccl_path=facts[0].nccl_path,
        kernel_image=facts[0].kernel_image,
        multicast=None if None in supports else all(supports),
    )
