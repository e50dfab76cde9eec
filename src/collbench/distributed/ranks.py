"""Rank 0's backend: each step goes to all ranks, and the slowest rank's times are the step's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from collbench.backends.protocol import Backend, Coverage, Step, Timing
from collbench.backends.worker_messages import Prepare, Reserve
from collbench.distributed.connection import Hearing, Line, framed, is_loopback
from collbench.distributed.messages import (
    Abandon,
    Alive,
    BadMessage,
    Done,
    FindPaths,
    FoundHealth,
    FoundPorts,
    Introduce,
    Introduction,
    Leave,
    MakeId,
    OpenRank,
    RankFacts,
    ReadPorts,
    Reply,
    Request,
    TakeHealth,
    UniqueId,
)
from collbench.distributed.store import Publisher
from collbench.model.capabilities import capabilities
from collbench.model.errors import (
    BackendError,
    CollbenchError,
    DataCorruption,
    PeerLost,
    StepFailed,
    UsageError,
    failure_of,
)
from collbench.model.failures import Cause, Failure, FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Flag, Health, NetworkPort, Path, Refusal, SkipKind

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


def check(ranks: Sequence[Introduction]) -> None:
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


def check_libraries(ranks: Sequence[Introduction], facts: Sequence[RankFacts]) -> None:
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


# Rank 0's connections to all ranks, including its own: one request at a time to each, and one answer from each.


_Value = TypeVar("_Value")

# Ranks send Alive every 2 s while they work. A longer silence means a stopped process or a cut network.
SILENCE_S = 30.0
# If ranks report that they lost another one, that rank has so many seconds to report why before it is told to stop.
CAUSE_S = 5.0
# What each rank answers by itself: nobody waits for one that is lost meanwhile.
_APART = (Introduce, MakeId, FindPaths, TakeHealth, ReadPorts)
# Silence is counted in slices, so that time in which this process itself was stopped (Ctrl-Z) does not count.
_SLICE_S = 0.25


class RankLost(BackendError):
    """A rank's process has exited or is silent: nothing is measured with it any more."""


class Ranks:
    """The connections to all ranks, by rank, and their names: "rank 2 on node1". After a loss, close it."""

    def __init__(
        self,
        lines: Mapping[int, Line],
        names: Mapping[int, str],
        on_loss: Callable[[], object] = lambda: None,
        silence_s: float = SILENCE_S,
        cause_s: float = CAUSE_S,
        *,
        goes_on: bool = False,
    ) -> None:
        """Take over the lines. `on_loss` is called when a rank is lost, as one is after `silence_s` without a word.

        A rank that has a name and no line did not come: it is lost from the start, and only where it `goes_on`.
        `cause_s` is how long the cause of another rank's failure may take to come. Where it `goes_on`, a lost rank's
        answers are RankLost from then on, and the others are asked as before; else whatever is asked raises it.
        """
        self._goes_on = goes_on
        self._apart = False  # what was asked last needs no other rank
        self._lines = dict(lines)
        self._names = dict(names)
        self._on_loss, self._silence_s, self._cause_s = on_loss, silence_s, cause_s
        self._owing: set[int] = set()  # unanswered requests
        self._abandoning = False  # ranks that owe an answer and were told to abandon it
        self._abandoned: set[int] = set()  # those who were reported so since the last request
        self._lost: RankLost | None = None  # which ends everything
        self._gone = {rank: _absent(rank, name) for rank, name in names.items() if rank not in lines}  # it continues

    @property
    def everyone(self) -> range:
        """All ranks, those that were lost as well."""
        return range(len(self._names))

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks that were not lost."""
        return tuple(rank for rank in self.everyone if rank not in self._gone)

    @property
    def lost(self) -> Mapping[int, RankLost]:
        """The ranks without which it continues, in the order in which they were lost, and how."""
        return dict(self._gone)

    def without_lost(self) -> tuple[int, ...]:
        """Number the present ranks again from 0 on and forget the others; return each one's number before."""
        kept = self.present
        self._lines = {number: self._lines[rank] for number, rank in enumerate(kept)}
        self._names = {number: self._names[rank] for number, rank in enumerate(kept)}
        self._gone.clear()
        return kept

    def by_itself(self, failed: Mapping[int, CollbenchError]) -> dict[int, CollbenchError]:
        """Return the unrequested failures, such as those of ranks whose step was abandoned."""
        return {rank: failure for rank, failure in failed.items() if rank not in self._abandoned}

    def rename(self, names: Mapping[int, str]) -> None:
        """Give the ranks more informative names."""
        self._names.update(names)

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Return these ranks' answers; a failure is an answer. Raises RankLost.

        After the first failure, the other ranks are told to abandon the request, because they might wait for the failed
        rank.
        """
        if self._lost is not None:
            raise self._lost
        self.settle()
        self._abandoned.clear()
        self._apart = all(isinstance(request, _APART) for request in requests.values())
        framed_request, frame = None, b""
        for rank, request in requests.items():
            if rank in self._gone:
                continue
            # A thousand ranks are asked the same; and where not, one frame is enough to hold.
            if request is not framed_request:
                framed_request, frame = request, framed(request)
            self._owing.add(rank)
            with suppress(OSError):  # one that is gone shows when it should answer
                self._lines[rank].send_frame(frame)
        return {**{rank: self._gone[rank] for rank in requests if rank in self._gone}, **self._gather()}

    def values(self, replies: Mapping[int, Reply], kind: type[_Value]) -> tuple[_Value, ...]:
        """Return the answers' values by rank. Raises the failure that came first, with its rank's name."""
        for rank, reply in replies.items():
            if not isinstance(reply, Done):
                raise self.named(rank, reply)
        return tuple(checked(replies[rank], kind) for rank in sorted(replies))

    def named(self, rank: int, failure: CollbenchError) -> CollbenchError:
        """Return the failure with its rank's name; a UsageError applies to every rank and gets no name."""
        return (
            failure
            if isinstance(failure, UsageError | RankLost)
            else failure.reworded(f"{self._names[rank]}: {failure}")
        )

    def settle(self) -> bool:
        """Drain the answers that an interrupted `ask` left outstanding. Return whether there were any."""
        if not self._owing or self._lost is not None:
            return False
        self._tell(self._owing, Abandon())
        self._abandoning = True
        self._gather()
        return True

    def close(self) -> None:
        """Let all ranks go. Safe to call twice."""
        self._tell(self._lines, Leave())
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._owing.clear()

    def _gather(self) -> dict[int, Reply]:
        """Return one answer of each rank that owes one, in the order of arrival."""
        replies: dict[int, Reply] = {}
        failures: dict[int, Reply] = {}
        clock = looked = waited = 0.0  # seconds: of all, when who is silent was looked for, for the cause of a failure
        heard_at = dict.fromkeys(self._owing, clock)
        with Hearing() as hearing:
            for rank in self._owing:
                hearing.add(rank, self._lines[rank])
            while self._owing:
                begin = time.monotonic()
                messages = {rank: self._message(rank) for rank in sorted(hearing.ready(_SLICE_S))}
                passed = min(_SLICE_S, time.monotonic() - begin)
                clock += passed
                heard_at.update(dict.fromkeys(messages, clock))
                if clock - looked >= _SLICE_S:
                    looked = clock
                    silent = [rank for rank in sorted(self._owing) if clock - heard_at[rank] > self._silence_s]
                    messages.update({rank: self._silence(rank) for rank in silent})
                for rank, message in messages.items():
                    if message is not None and not isinstance(message, Alive):
                        hearing.drop(rank)
                        self._owing.discard(rank)
                        replies[rank] = message
                        failures.update({} if isinstance(message, Done) else {rank: message})
                waited += passed if any(isinstance(reply, PeerLost) for reply in failures.values()) else 0.0
                self._abandon_after(failures, late=waited > self._cause_s)
        return replies

    def _silence(self, rank: int) -> RankLost:
        return self._lose(
            rank, f"is silent for {self._silence_s:.0f} s: it is stopped, or the network is down", FailureKind.HANG
        )

    def _abandon_after(self, replies: Mapping[int, Reply], *, late: bool) -> None:
        """Tell those who work on, once, when somebody has failed; of one who lost another only when it is late."""
        fine = (Done,) if late else (Done, PeerLost)
        failed = any(not isinstance(reply, (*fine, RankLost) if self._apart else fine) for reply in replies.values())
        if failed and not self._abandoning:
            self._tell(self._owing, Abandon())
            self._abandoned |= self._owing
        self._abandoning = failed and bool(self._owing)

    def _message(self, rank: int) -> Reply | Alive | None:
        """Return a rank's message, None while it is incomplete."""
        try:
            return self._lines[rank].receive()
        except BadMessage as error:
            return self._lose(rank, f"sent a bad message: {error}", FailureKind.ERROR, error)
        except (EOFError, OSError) as error:
            return self._lose(rank, "is gone: its output says why, or it was killed", FailureKind.CRASH, error)

    def _tell(self, ranks: Collection[int], order: Abandon | Leave) -> None:
        for rank in ranks:
            with suppress(OSError):
                self._lines[rank].send(order)

    def _lose(self, rank: int, how: str, kind: FailureKind, error: Exception | None = None) -> RankLost:
        """Return the loss of a rank without which it continues. Raises RankLost if it does not."""
        text = f"{self._names[rank]} {how}"
        if self._goes_on:
            self._gone[rank] = RankLost(text, failure=Failure(kind, Cause.REPORTED, (rank,), rank, detail=how))
            self._lines.pop(rank).close()
            self._on_loss()
            return self._gone[rank]
        self._lost = RankLost(f"{text}; no collective can run without it: start all ranks again", kind)
        self._on_loss()
        raise self._lost from error


def _absent(rank: int, name: str) -> RankLost:
    how = "did not connect"
    return RankLost(f"{name} {how}", failure=Failure(FailureKind.CRASH, Cause.REPORTED, (rank,), rank, detail=how))


def checked(reply: Reply, kind: type[_Value]) -> _Value:
    """Return an answer's value. Raises BackendError for another kind, which ranks of one version never give."""
    if not (isinstance(reply, Done) and isinstance(reply.value, kind)):
        raise BackendError(
            f"a rank answered {reply} where {kind.__name__} was expected: install one version on all hosts"
        )
    return reply.value


# Rank 0's backend: every step goes to all ranks, and the slowest rank's times are the step's.


class Coordinator(Backend):
    """Times collectives on the ranks' devices; positions are ranks.

    A step that fails on any rank costs its data points: all ranks end their workers, and join a new world before the
    next.
    """

    def __init__(
        self, name: str, ranks: Ranks, store: Publisher, devices: tuple[Device, ...], addresses: tuple[str, ...]
    ) -> None:
        """Open nothing yet. `name` is the ranks' backend; `addresses` are for OpenRank, by rank."""
        self.name = name
        self._ranks, self._store = ranks, store
        self._devices, self._addresses = devices, addresses
        self._world_ranks = tuple(ranks.everyone)  # of the present world
        self._worlds = 0  # how many were opened
        self._broken = False
        self._setup: list[Request] = []
        self._flags: dict[int, tuple[Flag, ...]] = {}
        self._facts: tuple[RankFacts, ...] = ()

    @property
    def facts(self) -> tuple[RankFacts, ...]:
        """What opening found, by rank; of those that were not lost."""
        return self._facts

    @property
    def lost(self) -> Mapping[int, RankLost]:
        """The ranks that were lost, and how, where it continues without them."""
        return self._ranks.lost

    def open(self) -> None:
        """Let all ranks join a new world. Raises the first failure, which names its rank.

        Where a rank is lost meanwhile, and it continues without, the others join another one.
        """
        while True:
            before = self._ranks.present
            try:
                self._join()
            except CollbenchError:
                if len(self._ranks.present) == len(before) or len(self._ranks.present) < 2:
                    raise
            else:
                return

    def _join(self) -> None:
        key = f"world{self._worlds}"
        self._worlds += 1
        self._broken = True  # until all is done
        (unique_id,) = self._ranks.values(self._ranks.ask({0: MakeId()}), UniqueId)
        self._store.publish(key, unique_id.digits)
        self._world_ranks = self._ranks.present
        try:
            requests = {
                rank: OpenRank(self._devices, key, self._addresses[rank], self._world_ranks, index)
                for index, rank in enumerate(self._world_ranks)
            }
            self._facts = self._ranks.values(self._ranks.ask(requests), RankFacts)
            for request in self._setup:
                self._set_up(request)
        finally:
            self._store.forget(key)
        self._broken = False

    def devices(self) -> tuple[Device, ...]:
        """Return the ranks' devices, by rank."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return nothing: copies are for one process that sees both devices."""
        return ()

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that every rank has room for."""
        return min(facts.capacity_bytes for facts in self._facts)

    def free_bytes(self) -> tuple[int, ...]:
        """Return each device's free memory in bytes, by rank; empty if devices share their host's."""
        free = tuple(facts.free_bytes for facts in self._facts if facts.free_bytes is not None)
        return free if len(free) == len(self._facts) else ()

    def reserve(self, largest_bytes: int) -> None:
        """Make room on every rank."""
        self._set_up_now(Reserve(largest_bytes))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return why a copy cannot run here."""
        if work.operation.is_collective:
            return None
        return Refusal(SkipKind.PROCESSES)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making the groups' communicators on every rank."""
        self._set_up_now(Prepare(groups))

    def time(self, step: Step) -> Timing:
        """Time a collective on all ranks. Raises StepFailed, DataCorruption, RankLost, UsageError for copies."""
        if not step.operation.is_collective:
            raise UsageError(f"{step.work} is timed by one process: start collbench without torchrun, srun or mpirun")
        if self._ranks.settle():
            self._broken = True
        if self._broken or self._world_ranks != self._ranks.present:
            self._reopen(step)
        self._need(step)
        replies = self._ranks.ask(dict.fromkeys(self._world_ranks, step))
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, CollbenchError)}
        if failed:
            self._broken = True
            raise self._failure(step, failed)
        self._flags = {
            rank: tuple(replace(flag, devices=(rank,)) for flag in reply.flags)
            for rank, reply in replies.items()
            if isinstance(reply, Done)
        }
        timings = self._ranks.values(replies, Timing)
        return slowest(step, dict(zip(sorted(replies), timings, strict=True)))

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what was wrong with these ranks' devices in the last step."""
        return tuple(dict.fromkeys(flag for rank in sorted(set(members)) for flag in self._flags.get(rank, ())))

    def health(self) -> tuple[Health, ...]:
        """Return the devices' state now, by rank; empty if it is not reported. Of lost ranks nothing is known."""
        if self._ranks.settle():
            self._broken = True
        replies = self._ranks.ask(dict.fromkeys(self._ranks.everyone, TakeHealth()))
        kept = {rank: reply for rank, reply in replies.items() if not isinstance(reply, RankLost)}
        healths = dict(zip(sorted(kept), self._ranks.values(kept, FoundHealth), strict=True))
        if not any(answer.states for answer in healths.values()):
            return ()
        unknown = FoundHealth((Health(),))
        return tuple(health for rank in self._ranks.everyone for health in healths.get(rank, unknown).states)

    def ports(self) -> tuple[NetworkPort, ...] | None:
        """Return the ports of several hosts' network cards as they are now: one rank of each reads them.

        None on one host, where nobody reads them.
        """
        if len({device.host for device in self._devices}) == 1:
            return None
        if self._ranks.settle():
            self._broken = True
        lost = self._ranks.lost
        readers = {self._devices[rank].host: rank for rank in reversed(self._ranks.everyone) if rank not in lost}
        replies = self._ranks.ask(dict.fromkeys(readers.values(), ReadPorts()))
        kept = {rank: reply for rank, reply in replies.items() if not isinstance(reply, RankLost)}
        ports = dict(zip(sorted(kept), self._ranks.values(kept, FoundPorts), strict=True))
        hosts = {rank: host for host, rank in readers.items()}
        return tuple(replace(port, host=hosts[rank]) for rank, answer in ports.items() for port in answer.ports)

    def close(self) -> None:
        """Let all ranks go."""
        self._ranks.close()

    def _set_up_now(self, request: Request) -> None:
        """Set up this world and those to come. Where a rank is lost, the next step begins with another one."""
        self._setup.append(request)
        try:
            self._set_up(request)
        except RankLost:
            if not self._ranks.lost:
                raise

    def _set_up(self, request: Request) -> None:
        if isinstance(request, Prepare):
            request = Prepare(tuple(group for group in request.groups if set(group) <= set(self._world_ranks)))
        self._ranks.values(self._ranks.ask(dict.fromkeys(self._world_ranks, request)), type(None))

    def _need(self, step: Step) -> None:
        """Raise StepFailed where a rank of the step was lost before."""
        lost = self._ranks.lost
        for rank in (rank for group in step.groups for rank in group if rank in lost):
            raise StepFailed(str(lost[rank]), failure=replace(lost[rank].failure, rank=rank))

    def _reopen(self, step: Step) -> None:
        """Join a new world after a failure. Raises StepFailed if that is not possible, RankLost."""
        try:
            self.open()
        except RankLost as error:
            if self._ranks.lost:
                raise StepFailed(str(error), failure=error.failure) from error
            raise
        except CollbenchError as error:
            why = failure_of(error)
            text = f"{step.work}: the ranks could not reconnect: {error}"
            raise StepFailed(text, failure=Failure(why.kind, Cause.NO_WORLD, because=why)) from error

    def _failure(self, step: Step, failed: Mapping[int, CollbenchError]) -> CollbenchError:
        """Return the first failure to be reported: wrong data before all, then the one that came first.

        A rank that only lost another one is reported where nobody knows more.
        """
        for rank, reply in failed.items():
            if isinstance(reply, DataCorruption):
                return self._ranks.named(rank, reply)
        failed = {rank: reply for rank, reply in failed.items() if isinstance(reply, RankLost)} or failed
        first_failures = self._ranks.by_itself(failed) or failed
        causes = {rank: reply for rank, reply in first_failures.items() if not isinstance(reply, PeerLost)}
        rank, first = next(iter((causes or first_failures).items()))
        named = self._ranks.named(rank, first)
        if not isinstance(first, BackendError):
            return named
        return StepFailed(str(named), failure=replace(first.failure, rank=rank))


def slowest(step: Step, timings: Sequence[Timing] | Mapping[int, Timing]) -> Timing:
    """Return each group's times from `timings` by rank: the maximum of each batch, the mean of the launch loop.

    Bytes received and compared are summed; single launches are kept per rank.
    """
    return Timing(
        seconds=tuple(
            tuple(max(times) for times in zip(*(timings[rank].seconds[index] for rank in group), strict=True))
            for index, group in enumerate(step.groups)
        ),
        launch_seconds=tuple(
            fmean(timings[rank].launch_seconds[index] for rank in group) for index, group in enumerate(step.groups)
        )
        if all(timings[rank].launch_seconds for group in step.groups for rank in group)
        else (),
        coverage=tuple(
            Coverage(
                sum(timings[rank].coverage[index].moved for rank in group),
                sum(timings[rank].coverage[index].verified for rank in group),
            )
            for index, group in enumerate(step.groups)
        )
        if all(timings[rank].coverage for group in step.groups for rank in group)
        else (),
        singles=tuple(
            tuple(one for rank in group for one in timings[rank].singles[index])
            for index, group in enumerate(step.groups)
        )
        if step.singles
        else (),
        plain=tuple(
            any(timings[rank].plain[index : index + 1] == (True,) for rank in group)
            for index, group in enumerate(step.groups)
        )
        if any(timings[rank].plain for group in step.groups for rank in group)
        else (),
        waits=tuple(
            tuple(waits for rank in group for waits in timings[rank].waits[index])
            for index, group in enumerate(step.groups)
        )
        if all(timings[rank].waits for group in step.groups for rank in group)
        else (),
    )
