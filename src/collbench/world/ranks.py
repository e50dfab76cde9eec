"""Rank 0's hold on all ranks, its own among them: one request at a time to each, and one answer from each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from collbench.errors import BackendError, CollbenchError, FailureKind, PeerLost, UsageError
from collbench.world.codec import BadMessage
from collbench.world.messages import Abandon, Alive, Done, Leave, Reply, Request
from collbench.world.wire import Line, framed, ready

_Value = TypeVar("_Value")

# Ranks send a sign of life every 2 s while they work. So much silence is a stopped process or a cut network.
SILENCE_S = 30.0
# Where ranks say that they have lost another one, that one has so long to say why before it is told to stop.
CAUSE_S = 5.0
# Silence is counted in slices, so that time in which this process itself was stopped (Ctrl-Z) does not count.
_SLICE_S = 0.25


class RankLost(BackendError):
    """A rank's process is gone or silent: without it there is nothing left to measure."""


class Ranks:
    """The lines to all ranks, by rank, and what to call each: "rank 2 on node1". Whoever loses one must close it."""

    def __init__(
        self,
        lines: Mapping[int, Line],
        names: Mapping[int, str],
        on_loss: Callable[[], object] = lambda: None,
        silence_s: float = SILENCE_S,
        cause_s: float = CAUSE_S,
    ) -> None:
        """Take over the lines. `on_loss` is called when a rank is lost, as one is after `silence_s` without a word.

        `cause_s` is how long the cause of another rank's failure may take to come.
        """
        self._lines = dict(lines)
        self._names = dict(names)
        self._on_loss, self._silence_s, self._cause_s = on_loss, silence_s, cause_s
        self._owing: set[int] = set()  # asked, and not answered yet
        self._abandoning = False  # those who owe an answer were told that it is not wanted
        self._abandoned: set[int] = set()  # those who were told so since the last request
        self._lost: RankLost | None = None

    @property
    def everyone(self) -> range:
        """All ranks."""
        return range(len(self._names))

    def by_itself(self, failed: Mapping[int, CollbenchError]) -> dict[int, CollbenchError]:
        """Return the failures that were not asked for, as those of ranks that were told to abandon their step are."""
        return {rank: failure for rank, failure in failed.items() if rank not in self._abandoned}

    def rename(self, names: Mapping[int, str]) -> None:
        """Call ranks by names that tell more."""
        self._names.update(names)

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Return these ranks' answers; a failure is an answer. Raises RankLost.

        Once one has failed, those that still work are told to abandon it: they might wait for that one.
        """
        if self._lost is not None:
            raise self._lost
        self.settle()
        self._abandoned.clear()
        frames: dict[int, bytes] = {}  # by request: a thousand ranks are asked the same
        for rank, request in requests.items():
            if id(request) not in frames:
                frames[id(request)] = framed(request)
            self._owing.add(rank)
            with suppress(OSError):  # one that is gone shows when it should answer
                self._lines[rank].send_frame(frames[id(request)])
        return self._gather()

    def values(self, replies: Mapping[int, Reply], kind: type[_Value]) -> tuple[_Value, ...]:
        """Return the answers' values by rank. Raises the failure that came first, with its rank's name."""
        for rank, reply in replies.items():
            if not isinstance(reply, Done):
                raise self.named(rank, reply)
        return tuple(checked(replies[rank], kind) for rank in sorted(replies))

    def named(self, rank: int, failure: CollbenchError) -> CollbenchError:
        """Return the failure with its rank's name; what the user asked for is every rank's."""
        return failure if isinstance(failure, UsageError) else failure.retold(f"{self._names[rank]}: {failure}")

    def settle(self) -> bool:
        """End what an interrupted `ask` has left the ranks at. Return whether there was anything."""
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
        """Return an answer of each rank that owes one, in the order in which they come."""
        replies: dict[int, Reply] = {}
        silent = dict.fromkeys(self._owing, 0.0)  # seconds
        waited = 0.0  # for the cause of a failure
        while self._owing:
            begin = time.monotonic()
            speaking = ready([self._lines[rank] for rank in self._owing], _SLICE_S)
            passed = min(_SLICE_S, time.monotonic() - begin)
            for rank in sorted(self._owing):
                if self._lines[rank] not in speaking:
                    silent[rank] = self._noted_silence(rank, silent[rank] + passed)
                    continue
                silent[rank] = 0.0
                word = self._word(rank)
                if word is not None and not isinstance(word, Alive):
                    self._owing.discard(rank)
                    replies[rank] = word
            waited += passed if any(isinstance(reply, PeerLost) for reply in replies.values()) else 0.0
            self._abandon_after(replies, late=waited > self._cause_s)
        return replies

    def _noted_silence(self, rank: int, seconds: float) -> float:
        if seconds > self._silence_s:
            raise self._lose(
                rank, f"is silent for {self._silence_s:.0f} s: it is stopped, or the network is cut", FailureKind.HANG
            )
        return seconds

    def _abandon_after(self, replies: Mapping[int, Reply], *, late: bool) -> None:
        """Tell those who work on, once, when somebody has failed; of one who lost another only when it is late."""
        failed = any(not isinstance(reply, Done if late else (Done, PeerLost)) for reply in replies.values())
        if failed and not self._abandoning:
            self._tell(self._owing, Abandon())
            self._abandoned |= self._owing
        self._abandoning = failed and bool(self._owing)

    def _word(self, rank: int) -> Reply | Alive | None:
        """Return what a rank says, None where the end of it is still to come."""
        try:
            return self._lines[rank].receive()
        except BadMessage as error:
            raise self._lose(rank, f"cannot be understood: {error}", FailureKind.ERROR) from error
        except (EOFError, OSError) as error:
            raise self._lose(rank, "is gone: its own output says why, or it was killed", FailureKind.CRASH) from error

    def _tell(self, ranks: Collection[int], order: Abandon | Leave) -> None:
        for rank in ranks:
            with suppress(OSError):
                self._lines[rank].send(order)

    def _lose(self, rank: int, how: str, kind: FailureKind) -> RankLost:
        self._lost = RankLost(
            f"{self._names[rank]} {how}; without it no collective is complete: start all ranks again", kind
        )
        self._on_loss()
        return self._lost


def checked(reply: Reply, kind: type[_Value]) -> _Value:
    """Return an answer's value. Raises BackendError for another kind, which ranks of one version never give."""
    if not (isinstance(reply, Done) and isinstance(reply.value, kind)):
        raise BackendError(f"a rank answered {reply} where {kind.__name__} was expected: install one collbench on all")
    return reply.value
