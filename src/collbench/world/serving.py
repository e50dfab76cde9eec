"""A rank at work: it answers rank 0's requests one by one, and hears between them and meanwhile when to stop."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from collbench.backends.protocol import Step
from collbench.backends.worker_messages import Prepare, Reserve
from collbench.errors import BackendError, CollbenchError
from collbench.world.codec import BadMessage
from collbench.world.messages import (
    Abandon,
    Alive,
    Done,
    FindPaths,
    FoundHealth,
    FoundPaths,
    Introduce,
    Leave,
    MakeId,
    OpenRank,
    Order,
    Reply,
    Request,
    TakeHealth,
    UniqueId,
    Value,
)
from collbench.world.seat import Seat
from collbench.world.wire import FarEnd, HasFile, ready

# Rank 0 counts a rank as lost after several of these without a word.
ALIVE_EVERY_S = 2.0


def serve(line: FarEnd, seat: Seat, alive_every_s: float = ALIVE_EVERY_S) -> bool:
    """Answer requests until rank 0 says to leave: True; or until it is gone: False. Closes the seat."""
    with ThreadPoolExecutor(1) as worker:
        server = _Server(line, seat, worker, alive_every_s)
        try:
            while True:
                match server.next_order():
                    case None:
                        return False
                    case Leave():
                        return True
                    case Abandon():
                        pass  # it crossed our answer: there is nothing to abandon any more
                    case request:
                        server.work(request)
        finally:
            worker.submit(seat.close)


class _Server:
    def __init__(self, line: FarEnd, seat: Seat, worker: ThreadPoolExecutor, alive_every_s: float) -> None:
        self._line, self._seat, self._worker, self._alive_every_s = line, seat, worker, alive_every_s
        self._next: Order | None = None  # it came while another was worked on
        self._hung_up = False

    def next_order(self) -> Order | None:
        """Return what rank 0 wants next, None once it is gone."""
        if self._next is not None:
            order, self._next = self._next, None
            return order
        if self._hung_up:
            return None
        try:
            return self._line.recv()
        except (EOFError, OSError, BadMessage):  # who cannot be understood is not rank 0 any more
            self._hung_up = True
            return None

    def work(self, request: Request) -> None:
        """Answer one request, from another thread, while this one hears whether to abandon it."""
        ended, ends = socket.socketpair()
        with ended, ends:
            answer = self._worker.submit(_answer, self._seat, request)
            answer.add_done_callback(lambda _answer: ends.send(b"."))
            self._accompany(ended)
            ended.recv(1)
        self._say(answer.result())

    def _accompany(self, ended: socket.socket) -> None:
        """Return when the request is answered; every order that comes before ends it."""
        heard: list[HasFile] = [ended, self._line]
        while ended not in (speaking := ready(heard, self._alive_every_s)):
            if self._line in speaking:
                order = self.next_order()
                if not isinstance(order, Abandon):
                    self._next, heard = order, [ended]
                self._seat.interrupt()
            elif self._line not in heard:
                self._seat.interrupt()  # again: a worker may have been about to start when the last one came
            else:
                self._say(Alive())

    def _say(self, word: Reply | Alive) -> None:
        with suppress(OSError):  # rank 0 is gone, as the next order will tell
            try:
                self._line.send(word)
            except ValueError as error:  # a time that is no number, say: rank 0 would wait for ever
                self._line.send(BackendError(f"an answer that cannot be sent: {error}"))


def _answer(seat: Seat, request: Request) -> Reply:
    """Return the answer, which is the failure itself where there is one."""
    try:
        value = _value(seat, request)
        return Done(value, seat.flags() if isinstance(request, Step) else ())
    except CollbenchError as error:
        return error
    except Exception as error:  # noqa: BLE001  # rank 0 would wait for ever; it says which rank met what
        return BackendError(f"{type(error).__name__}: {error}")


def _value(seat: Seat, request: Request) -> Value:
    value: Value = None
    match request:
        case Introduce():
            value = seat.introduce()
        case MakeId():
            value = UniqueId(seat.make_id())
        case OpenRank():
            value = seat.open(request)
        case Reserve(largest_bytes):
            seat.reserve(largest_bytes)
        case Prepare(groups):
            seat.prepare(groups)
        case FindPaths(devices):
            value = FoundPaths(seat.paths(devices))
        case TakeHealth():
            value = FoundHealth(seat.health())
        case Step():
            value = seat.time(request)
    return value
