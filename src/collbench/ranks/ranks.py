"""Rank 0's calls to all ranks, its own rank included: each gets one at a time and sends one answer."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from collbench.measurement.backends.protocol import Call
from collbench.model.errors import BackendError, Cause, CollbenchError, Failure, FailureKind, PeerLost, UsageError
from collbench.ranks.connection import RankConnection, framed
from collbench.ranks.messages import METHODS, Abandon, Alive, BadMessage, Done, Leave, Reply

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
        self._independent = False  # no rank needs another one to answer the last call
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
        self._independent = all(METHODS[call.method].alone for call in calls.values())
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
        """Let all ranks go; the others learn the `failure` of rank 0, "" for none. Safe to call twice."""
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
