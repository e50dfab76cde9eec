"""The messages between rank 0 and the ranks, as typed JSON: received data is never executed."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast, get_type_hints

from collbench.measurement.backends.protocol import Call
from collbench.model.errors import (
    BackendError,
    CollbenchError,
    DataCorruption,
    Failure,
    MachineError,
    PeerLost,
    RunFileError,
    StepFailed,
    UsageError,
    WrongData,
)
from collbench.model.run import Device, Flag, Machine
from collbench.runfile.codec import build

# The messages. Each call has one answer, except Abandon and Leave.


@dataclass(frozen=True, slots=True)
class Introduction:
    """A rank's host, machine and device. Ranks with the same `host_key` share a host, as NCCL sees it.

    Two ranks that can connect over loopback have the same `network_key`; two ranks on one kernel have the same `boot`;
    "" if unknown (machine/nccl.py).
    """

    host: str
    host_key: str
    network_key: str
    backend: str
    version: str
    device: Device
    machine: Machine
    boot: str = ""
    shown: int = 0  # GPUs that the driver shows to the rank, whatever CUDA_VISIBLE_DEVICES hides; 0 for cores


@dataclass(frozen=True, slots=True)
class Opening:
    """A new world to open the rank's device for. Calls name devices by position, as `meet` counted them.

    `positions` are those of the world, all unless ranks were lost, and this rank's is the one at `index`.

    `key` names what the ranks share in the store. `address` is the rank's own address for the other ranks, empty if all
    ranks can use loopback.
    """

    key: str
    address: str
    positions: tuple[int, ...]
    index: int


# The methods of RankWorker that rank 0 may call. Each rank answers those in ALONE by itself: nobody waits for a lost
# one.
ALONE = {"introduce", "meet", "make_id", "paths", "health", "ports"}
METHODS = ALONE | {"open", "reserve", "prepare", "time"}


@functools.cache
def _types(method: str) -> tuple[tuple[Any, ...], Any]:
    """Return the types of a method's arguments, and of its result: what arrives is built as these."""
    from collbench.ranks.rank_worker import RankWorker  # late: it imports this module

    *takes, returns = get_type_hints(getattr(RankWorker, method)).values()
    return tuple(takes), returns


@dataclass(frozen=True, slots=True)
class Abandon:
    """Ends the rank's current call: another rank has failed, and this one would wait for it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends the rank: the run is complete, or rank 0 has reported its `failure`, "" for none."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A method's result. `flags` are problems of the rank's device during the call; the device has position 0."""

    method: str
    value: object = None
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat: the rank still works on the call."""


Order: TypeAlias = Call | Abandon | Leave
# A failure travels as its class and text.
Reply: TypeAlias = Done | CollbenchError
RankMessage: TypeAlias = Reply | Alive


# The messages as JSON: a name, and what belongs to it. What arrives is data of the types above, or an error.

# A failure of another class arrives as the first of its bases that stands here.
_FAILURES: Mapping[str, type[CollbenchError]] = {
    kind.__name__: kind
    for kind in (
        CollbenchError,
        UsageError,
        MachineError,
        RunFileError,
        BackendError,
        StepFailed,
        PeerLost,
        DataCorruption,
    )
}


class BadMessage(BackendError):
    """The received data is not a message of this version of collbench."""


def encode(message: Order | RankMessage) -> bytes:
    """Return a message as JSON: its type's name, and its fields. Raises ValueError for a number that JSON lacks."""
    if isinstance(message, CollbenchError):
        kind = next(base.__name__ for base in type(message).__mro__ if base.__name__ in _FAILURES)
        fields: list[object] = ["Failed", kind, str(message), _facts(message)]
    else:
        fields = [type(message).__name__, *_fields(message).values()]
    return _ENCODER.encode(fields).encode("ascii")


def decode_order(data: bytes) -> Order:
    """Parse an order of rank 0. Raises BadMessage."""
    try:
        match _parsed(data):
            case ["Call", str(method), [*arguments]] if method in METHODS:
                takes, _ = _types(method)
                if len(arguments) != len(takes):
                    raise ValueError(f"{method} takes {len(takes)} arguments")
                return Call(
                    method, tuple(build(kind, value, method) for kind, value in zip(takes, arguments, strict=True))
                )
            case ["Abandon"]:
                return Abandon()
            case ["Leave", str(failure)]:
                return Leave(failure)
            case _:
                raise ValueError("no order")
    except ValueError as error:
        raise _refused(error) from None


def decode_rank_message(data: bytes) -> RankMessage:
    """Parse a message of a rank. Raises BadMessage."""
    try:
        match _parsed(data):
            case ["Alive"]:
                return Alive()
            case ["Failed", str(kind), str(text), fact] if kind in _FAILURES:
                return cast("RankMessage", _failure(_FAILURES[kind], text, fact))
            case ["Done", str(method), value, flags] if method in METHODS:
                _, returns = _types(method)
                if returns is type(None) and value is not None:
                    raise ValueError(f"{method} with a value")
                built = None if returns is type(None) else build(returns, value, method)
                return Done(method, built, build(tuple[Flag, ...], flags, "flags"))
            case _:
                raise ValueError("neither an answer nor a heartbeat")
    except ValueError as error:
        raise _refused(error) from None


def _facts(error: CollbenchError) -> object:
    """Return an error's fields apart from its text: how a step failed, which data was wrong."""
    match error:
        case BackendError():
            return error.failure
        case DataCorruption():
            return error.wrong
    return None


def _failure(kind: type[CollbenchError], text: str, fact: object) -> CollbenchError:
    if issubclass(kind, BackendError):
        return kind(text, failure=build(Failure, fact, "a failure"))
    if issubclass(kind, DataCorruption):
        return kind(text, build(WrongData | None, fact, "wrong data"))
    if fact is not None:
        raise ValueError("a failure that has no facts")
    return kind(text)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data, parse_constant=_no_number)
    except RecursionError:  # brackets nested a thousand deep
        raise ValueError("nested too deep") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _refused(error: ValueError) -> BadMessage:
    return BadMessage(f"unreadable ({error}): install the same version on all hosts")


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(dataclass_field.name for dataclass_field in dataclasses.fields(kind))


def _fields(value: Any) -> dict[str, object]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


# Tuples and string enums are left to json, which is written in C: rank 0 answers a thousand ranks.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_fields)
