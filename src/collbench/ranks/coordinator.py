"""Rank 0's side: its calls to all ranks, and its backend, whose step has the slowest rank's times."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from collbench.measurement.backends.protocol import Backend, BackendFacts, Call, Step, Timing, slowest
from collbench.model.errors import (
    BackendError,
    Cause,
    CollbenchError,
    DataCorruption,
    Failure,
    FailureKind,
    PeerLost,
    StepFailed,
    UsageError,
    failure_of,
)
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Flag, Health, NetworkPort, SkipKind, Skipped
from collbench.ranks.connection import RankConnection, framed
from collbench.ranks.messages import ALONE, Abandon, Alive, BadMessage, Done, Leave, Opening, Reply
from collbench.ranks.store import Store

# The calls to all ranks, rank 0's own included: each gets one at a time and sends one answer.

# Ranks send Alive every 2 s while they work. A longer silence means a stopped process or a cut network.
SILENCE_S = 30.0
# If ranks report that they lost another one, that rank has these seconds to report why before it is told to stop.
CAUSE_S = 5.0
# Silence is counted in slices, so that time in which this process itself was stopped (Ctrl-Z) does not count.
_SLICE_S = 0.25


class RankLost(BackendError):
    """A rank's process has exited or is silent: nothing is measured with it any more."""


class Ranks:
    """The connections to all ranks, by rank, and the ranks' names: "rank 2 on node1". After RankLost, close it."""

    def __init__(
        self,
        connections: Mapping[int, RankConnection],
        names: Mapping[int, str],
        on_loss: Callable[[], object] = lambda: None,
        silence_s: float = SILENCE_S,
        cause_s: float = CAUSE_S,
        *,
        survives_losses: bool = False,
    ) -> None:
        """Take over the connections. A rank is lost after `silence_s` without a message; then `on_loss` is called.

        If it `survives_losses`, the answers of a lost rank are RankLost, and the others are asked as before; else every
        request raises RankLost. A rank with a name and no connection did not connect: it is lost from the start, which
        is allowed only if losses are survived. `cause_s` is how long a lost rank may take to report why.
        """
        self._survives_losses = survives_losses
        self._independent = False  # whether each rank answers the last call by itself
        self._connections = dict(connections)
        self._names = dict(names)
        self._on_loss, self._silence_s, self._cause_s = on_loss, silence_s, cause_s
        self._unanswered: set[int] = set()  # ranks whose answer is outstanding
        self._abandoning = False  # they were told to abandon the request
        self._abandoned: set[int] = set()  # ranks that were told so since the last request
        self._fatal: RankLost | None = None  # the loss that was not survived
        self._lost = {rank: _absent(rank, name) for rank, name in names.items() if rank not in connections}

    @property
    def everyone(self) -> range:
        """All ranks, including lost ones."""
        return range(len(self._names))

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks that were not lost."""
        return tuple(rank for rank in self.everyone if rank not in self._lost)

    @property
    def lost(self) -> Mapping[int, RankLost]:
        """The lost ranks, in the order in which they were lost, and how; empty unless losses are survived."""
        return dict(self._lost)

    def without_lost(self) -> tuple[int, ...]:
        """Renumber the present ranks from 0 on and forget the others; return each one's previous number."""
        kept = self.present
        self._connections = {number: self._connections[rank] for number, rank in enumerate(kept)}
        self._names = {number: self._names[rank] for number, rank in enumerate(kept)}
        self._lost.clear()
        return kept

    def not_abandoned(self, failed: Mapping[int, CollbenchError]) -> dict[int, CollbenchError]:
        """Return the failures of ranks that were not told to abandon the last request."""
        return {rank: failure for rank, failure in failed.items() if rank not in self._abandoned}

    def rename(self, names: Mapping[int, str]) -> None:
        """Give the ranks more informative names."""
        self._names.update(names)

    def ask(self, calls: Mapping[int, Call]) -> dict[int, Reply]:
        """Return these ranks' answers; a failure is an answer. Raises RankLost.

        After the first failure, the other ranks are told to abandon the call, because they might wait for the failed
        rank.
        """
        if self._fatal is not None:
            raise self._fatal
        self.settle()
        self._abandoned.clear()
        self._independent = all(call.method in ALONE for call in calls.values())
        framed_call, frame = None, b""
        for rank, call in calls.items():
            if rank in self._lost:
                continue
            # Encoded once: a thousand ranks may get the same call.
            if call is not framed_call:
                framed_call, frame = call, framed(call)
            self._unanswered.add(rank)
            with suppress(OSError):  # a rank that has exited shows when it should answer
                self._connections[rank].send_frame(frame)
        return {**{rank: self._lost[rank] for rank in calls if rank in self._lost}, **self._gather()}

    def values(self, replies: Mapping[int, Reply], method: str) -> tuple[Any, ...]:
        """Return the method's results by rank. Raises the failure that came first, with its rank's name.

        An answer of another method, which ranks of one version never give, is a BackendError.
        """
        for rank, reply in replies.items():
            if not isinstance(reply, Done):
                raise self.named(rank, reply)
            if reply.method != method:
                text = f"answered '{reply.method}' where '{method}' was asked: install one version on all hosts"
                raise self.named(rank, BackendError(text))
        return tuple(reply.value for _, reply in sorted(replies.items()) if isinstance(reply, Done))

    def named(self, rank: int, failure: CollbenchError) -> CollbenchError:
        """Return the failure with its rank's name; a UsageError applies to every rank and gets no name."""
        if isinstance(failure, UsageError | RankLost):
            return failure
        return failure.reworded(f"{self._names[rank]}: {failure}")

    def settle(self) -> bool:
        """Drain the answers that an interrupted `ask` left outstanding. Return whether there were any."""
        if not self._unanswered or self._fatal is not None:
            return False
        self._send(self._unanswered, Abandon())
        self._abandoning = True
        self._gather()
        return True

    def close(self, failure: str = "") -> None:
        """Let all ranks exit; the others learn the `failure` of rank 0, "" for none. Safe to call twice."""
        self._send([rank for rank in self._connections if rank], Leave(failure))
        self._send([rank for rank in self._connections if not rank], Leave())
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._unanswered.clear()

    def _gather(self) -> dict[int, Reply]:
        """Return the outstanding answers, in the order of arrival."""
        replies: dict[int, Reply] = {}
        failures: dict[int, CollbenchError] = {}
        clock = last_check = 0.0  # seconds in this loop, and when it looked for silent ranks last
        waited = 0.0  # seconds since a rank reported that it lost another one
        last_message = dict.fromkeys(self._unanswered, clock)
        with selectors.DefaultSelector() as selector:
            polled = {rank: self._connections[rank] for rank in self._unanswered}
            for rank, connection in polled.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while self._unanswered:
                begin = time.monotonic()
                ready = sorted(key.data for key, _ in selector.select(_SLICE_S))
                messages = {rank: self._message(rank) for rank in ready}
                passed = min(_SLICE_S, time.monotonic() - begin)
                clock += passed
                last_message.update(dict.fromkeys(messages, clock))
                if clock - last_check >= _SLICE_S:
                    last_check = clock
                    silent = [rank for rank in sorted(self._unanswered) if clock - last_message[rank] > self._silence_s]
                    messages.update({rank: self._silence(rank) for rank in silent})
                for rank, message in messages.items():
                    if message is None or isinstance(message, Alive):
                        continue
                    selector.unregister(polled[rank])  # closed, if the rank was lost
                    self._unanswered.discard(rank)
                    replies[rank] = message
                    if not isinstance(message, Done):
                        failures[rank] = message
                if any(isinstance(failure, PeerLost) for failure in failures.values()):
                    waited += passed
                self._abandon_after(failures.values(), late=waited > self._cause_s)
        return replies

    def _silence(self, rank: int) -> RankLost:
        return self._lose(
            rank, f"is silent for {self._silence_s:.0f} s: it is stopped, or the network is down", FailureKind.HANG
        )

    def _abandon_after(self, failures: Iterable[CollbenchError], *, late: bool) -> None:
        """Tell the working ranks, once, to abandon a request that another rank failed.

        A rank that only reports the loss of another one counts when it is `late`: the lost rank may yet report why.
        """
        tolerated: tuple[type[CollbenchError], ...] = () if late else (PeerLost,)
        if self._independent:
            tolerated += (RankLost,)
        failed = any(not isinstance(failure, tolerated) for failure in failures)
        if failed and not self._abandoning:
            self._send(self._unanswered, Abandon())
            self._abandoned |= self._unanswered
        self._abandoning = failed and bool(self._unanswered)

    def _message(self, rank: int) -> Reply | Alive | None:
        """Return a rank's message, None while it is incomplete."""
        try:
            return self._connections[rank].receive()
        except BadMessage as error:
            return self._lose(rank, f"sent a bad message: {error}", FailureKind.ERROR, error)
        except (EOFError, OSError) as error:
            return self._lose(rank, "is gone: its output says why, or it was killed", FailureKind.CRASH, error)

    def _send(self, ranks: Collection[int], order: Abandon | Leave) -> None:
        for rank in ranks:
            with suppress(OSError):
                self._connections[rank].send(order)

    def _lose(self, rank: int, how: str, kind: FailureKind, error: Exception | None = None) -> RankLost:
        """Note the loss of a rank and return it. Raises RankLost if losses are not survived."""
        text = f"{self._names[rank]} {how}"
        if self._survives_losses:
            self._lost[rank] = RankLost(text, failure=Failure(kind, Cause.REPORTED, (rank,), rank, detail=how))
            self._connections.pop(rank).close()
            self._on_loss()
            return self._lost[rank]
        self._fatal = RankLost(f"{text}; no collective can run without it: start all ranks again", kind)
        self._on_loss()
        raise self._fatal from error


def _absent(rank: int, name: str) -> RankLost:
    how = "did not connect"
    return RankLost(f"{name} {how}", failure=Failure(FailureKind.CRASH, Cause.REPORTED, (rank,), rank, detail=how))


# The backend.


class Coordinator(Backend):
    """Times collectives on the ranks' devices; positions are ranks.

    A step that fails on any rank costs its data points: all ranks end their workers, and join a new world before the
    next step.
    """

    def __init__(
        self, name: str, ranks: Ranks, store: Store, devices: tuple[Device, ...], addresses: tuple[str, ...]
    ) -> None:
        """Open nothing yet. `name` is the ranks' backend; `addresses` are for Opening, by rank."""
        self.name = name
        self._ranks, self._store = ranks, store
        self._devices, self._addresses = devices, addresses
        self._world_ranks = tuple(ranks.everyone)  # of the present world
        self._worlds = 0  # how many were opened
        self._broken = False
        self._setup: list[Call] = []
        self._flags: dict[int, tuple[Flag, ...]] = {}
        self._facts: tuple[BackendFacts, ...] = ()

    @property
    def facts(self) -> tuple[BackendFacts, ...]:
        """What opening found, by rank, without lost ranks."""
        return self._facts

    @property
    def lost(self) -> Mapping[int, RankLost]:
        """The lost ranks, and how they were lost; empty unless losses are survived."""
        return self._ranks.lost

    def open(self) -> None:
        """Let all ranks join a new world. Raises the first failure, which names its rank.

        If a rank is lost meanwhile, and losses are survived, the others join another world.
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
        (unique_id,) = self._ranks.values(self._ranks.ask({0: Call("make_id")}), "make_id")
        self._store.publish(key, unique_id)
        self._world_ranks = self._ranks.present
        try:
            calls = {
                rank: Call("open", (Opening(key, self._addresses[rank], self._world_ranks, index),))
                for index, rank in enumerate(self._world_ranks)
            }
            self._facts = self._ranks.values(self._ranks.ask(calls), "open")
            for call in self._setup:
                self._set_up(call)
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
        return tuple(chain.from_iterable(facts.free_bytes for facts in self._facts))

    def reserve(self, largest_bytes: int) -> None:
        """Make room on every rank."""
        self._set_up_now(Call("reserve", (largest_bytes,)))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        """Return why a copy cannot run here."""
        if work.operation.is_collective:
            return None
        return Skipped(SkipKind.PROCESSES)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making the groups' communicators on every rank."""
        self._set_up_now(Call("prepare", (groups,)))

    def time(self, step: Step) -> Timing:
        """Time a collective on all ranks. Raises StepFailed, DataCorruption, RankLost, UsageError for copies."""
        if not step.work.operation.is_collective:
            raise UsageError(f"{step.work} is timed by one process: start collbench without torchrun, srun or mpirun")
        self._settle()
        if self._broken or self._world_ranks != self._ranks.present:
            self._reopen(step)
        lost = self._ranks.lost
        for rank in chain.from_iterable(step.groups):
            if rank in lost:
                raise StepFailed(str(lost[rank]), failure=replace(lost[rank].failure, rank=rank))
        replies = self._ranks.ask(dict.fromkeys(self._world_ranks, Call("time", (step,))))
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, CollbenchError)}
        if failed:
            self._broken = True
            raise self._failure(step, failed)
        self._flags = {
            rank: tuple(replace(flag, devices=(rank,)) for flag in reply.flags)
            for rank, reply in replies.items()
            if isinstance(reply, Done)
        }
        timings = self._ranks.values(replies, "time")
        return slowest(step, dict(zip(sorted(replies), timings, strict=True)))

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what was wrong with these ranks' devices in the last step."""
        return tuple(dict.fromkeys(flag for rank in sorted(set(members)) for flag in self._flags.get(rank, ())))

    def health(self) -> tuple[Health, ...]:
        """Return the devices' state now, by rank; empty if it is not reported. Of lost ranks nothing is known."""
        self._settle()
        healths: dict[int, tuple[Health, ...]] = self._from_present(self._ranks.everyone, "health")
        if not any(healths.values()):
            return ()
        return tuple(health for rank in self._ranks.everyone for health in healths.get(rank, (Health(),)))

    def ports(self) -> tuple[NetworkPort, ...] | None:
        """Return the ports of several hosts' network cards as they are now: one rank of each host reads them.

        None on one host, where nobody reads them.
        """
        if len({device.host for device in self._devices}) == 1:
            return None
        self._settle()
        first_ranks: dict[str, int] = {}  # of each host, without lost ones
        for rank in self._ranks.present:
            first_ranks.setdefault(self._devices[rank].host, rank)
        ports: dict[int, tuple[NetworkPort, ...]] = self._from_present(first_ranks.values(), "ports")
        return tuple(replace(port, host=self._devices[rank].host) for rank, own in ports.items() for port in own)

    def _from_present(self, ranks: Iterable[int], method: str) -> dict[int, Any]:
        """Return what a method without an argument returns on these ranks, without lost ones."""
        replies = self._ranks.ask(dict.fromkeys(ranks, Call(method)))
        kept = {rank: reply for rank, reply in replies.items() if not isinstance(reply, RankLost)}
        return dict(zip(sorted(kept), self._ranks.values(kept, method), strict=True))

    def _settle(self) -> None:
        """Wait for the answers to an interrupted request; its world cannot be used any more."""
        if self._ranks.settle():
            self._broken = True

    def close(self) -> None:
        """Let all ranks go."""
        self._ranks.close()

    def _set_up_now(self, call: Call) -> None:
        """Set up this world and later ones. If a rank is lost meanwhile, the next step begins with another world."""
        self._setup.append(call)
        try:
            self._set_up(call)
        except RankLost:
            if not self._ranks.lost:
                raise

    def _set_up(self, call: Call) -> None:
        match call:
            case Call("prepare", (tuple() as groups,)):
                call = Call("prepare", (tuple(group for group in groups if set(group) <= set(self._world_ranks)),))
        self._ranks.values(self._ranks.ask(dict.fromkeys(self._world_ranks, call)), call.method)

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
        """Return the failure to report: wrong data before all else, then the failure that came first.

        The failure of a rank that only lost another one is reported if there is no other.
        """
        for rank, reply in failed.items():
            if isinstance(reply, DataCorruption):
                return self._ranks.named(rank, reply)
        failed = {rank: reply for rank, reply in failed.items() if isinstance(reply, RankLost)} or failed
        first_failures = self._ranks.not_abandoned(failed) or failed
        causes = {rank: reply for rank, reply in first_failures.items() if not isinstance(reply, PeerLost)}
        rank, first = next(iter((causes or first_failures).items()))
        named = self._ranks.named(rank, first)
        if not isinstance(first, BackendError):
            return named
        return StepFailed(str(named), failure=replace(first.failure, rank=rank))
