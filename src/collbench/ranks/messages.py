"""The messages between rank 0 and the ranks, as typed JSON: received data is never executed."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, cast

from collbench.measurement.backends.protocol import Step, Timing
from collbench.model.errors import (
    BackendError,
    CollbenchError,
    DataCorruption,
    MachineError,
    PeerLost,
    RunFileError,
    StepFailed,
    UsageError,
)
from collbench.model.failures import Failure, WrongData
from collbench.model.run import Device, Flag, Health, Machine, NetworkPort, Path
from collbench.runfile.codec import build

# The messages. Each request has one answer, except Abandon and Leave.


@dataclass(frozen=True, slots=True)
class Introduce:
    """Requests an Introduction."""


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


@dataclass(frozen=True, slots=True)
class MakeId:
    """Requests the UniqueId that the ranks of a new world must share."""


@dataclass(frozen=True, slots=True)
class UniqueId:
    """NCCL's id in hexadecimal digits; empty if the backend needs none."""

    digits: str


@dataclass(frozen=True, slots=True)
class OpenRank:
    """Opens the rank's device for a world of some `devices`; the answer is RankFacts. Steps name devices by position.

    `positions` are those of the world, all unless ranks were lost, and this rank's is the one at `index`.

    `key` names what the ranks share in the store. `address` is the rank's own address for the other ranks, empty if all
    ranks can use loopback.
    """

    devices: tuple[Device, ...]
    key: str
    address: str
    positions: tuple[int, ...]
    index: int


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What opening returned: the largest message in bytes, free bytes (None if devices share memory), the library."""

    capacity_bytes: int
    free_bytes: int | None = None
    kernel_image: str = ""
    nccl: str = ""
    nccl_path: str = ""
    multicast: bool | None = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Allocates the buffers for messages of up to this many bytes."""

    largest_bytes: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Starts to create the groups' communicators; answered at once. The first collective waits for them."""

    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FindPaths:
    """Requests the FoundPaths between devices of the rank's host, by their index in `devices`."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """The paths; none if not reported."""

    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class TakeHealth:
    """Requests the FoundHealth of the rank's device."""


@dataclass(frozen=True, slots=True)
class FoundHealth:
    """One state, or none if it is not reported."""

    states: tuple[Health, ...]


@dataclass(frozen=True, slots=True)
class ReadPorts:
    """Requests the FoundPorts of the rank's host."""


@dataclass(frozen=True, slots=True)
class FoundPorts:
    """The ports of InfiniBand and RoCE cards as the rank's container shows them, none if there is no card."""

    ports: tuple[NetworkPort, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Ends the rank's current step: another rank has failed, and this one would wait for it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends the rank: the run is complete, or rank 0 has reported its `failure`, "" for none."""

    failure: str = ""


Value: TypeAlias = Introduction | UniqueId | RankFacts | FoundPaths | FoundHealth | FoundPorts | Timing | None


@dataclass(frozen=True, slots=True)
class Done:
    """A request's result. `flags` are problems of the rank's device during the request; the device has position 0."""

    value: Value
    flags: tuple[Flag, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat: the rank still works on the request."""


Request: TypeAlias = Introduce | MakeId | OpenRank | Reserve | Prepare | Step | FindPaths | TakeHealth | ReadPorts
Order: TypeAlias = Request | Abandon | Leave
# A failure travels as its class and text.
Reply: TypeAlias = Done | CollbenchError
RankMessage: TypeAlias = Reply | Alive


# The messages as JSON: a type's name and its fields. What arrives is data of the types below, or an error.

_ORDERS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (Introduce, MakeId, OpenRank, Reserve, Prepare, Step, FindPaths, TakeHealth, ReadPorts, Abandon, Leave)
}
_VALUES: Mapping[str, type] = {
    kind.__name__: kind for kind in (Introduction, UniqueId, RankFacts, FoundPaths, FoundHealth, FoundPorts, Timing)
}
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
    match message:
        case Done(value, flags):
            fields: list[object] = ["Done", None if value is None else [type(value).__name__, value], flags]
        case CollbenchError():
            kind = next(base.__name__ for base in type(message).__mro__ if base.__name__ in _FAILURES)
            fields = ["Failed", kind, str(message), _facts(message)]
        case OpenRank():
            # All ranks' devices go to each of them: 0.3 MB of a thousand, made once.
            rest = _ENCODER.encode({name: value for name, value in _fields(message).items() if name != "devices"})
            return f'["OpenRank",{{"devices":{_devices_text(message.devices)},{rest[1:]}]'.encode("ascii")
        case _:
            fields = [type(message).__name__, message]
    return _ENCODER.encode(fields).encode("ascii")


def _devices_text(devices: tuple[Device, ...]) -> str:
    """Return devices as JSON, cached for the last argument: rank 0 sends the same devices to a thousand ranks."""
    kept = _last_devices.get(id(devices))
    if kept is None or kept[0] is not devices:
        _last_devices.clear()
        kept = _last_devices[id(devices)] = (devices, _ENCODER.encode(devices))
    return kept[1]


_last_devices: dict[int, tuple[tuple[Device, ...], str]] = {}


def decode_order(data: bytes) -> Order:
    """Parse a request of rank 0. Raises BadMessage."""
    try:
        return cast("Order", _built(_ORDERS, _parsed(data)))
    except ValueError as error:
        raise _refused(error) from None


def decode_rank_message(data: bytes) -> RankMessage:
    """Parse a message of a rank. Raises BadMessage."""
    try:
        match _parsed(data):
            case ["Alive", {}]:
                return Alive()
            case ["Failed", str(kind), str(text), fact] if kind in _FAILURES:
                return cast("RankMessage", _failure(_FAILURES[kind], text, fact))
            case ["Done", value, flags]:
                built = None if value is None else cast("Value", _built(_VALUES, value))
                return Done(built, build(tuple[Flag, ...], flags, "flags"))
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


def _built(kinds: Mapping[str, type], data: object) -> object:
    """Return the dataclass that `data` names, with these fields and no others. Raises ValueError."""
    match data:
        case [str(name), {**fields}] if name in kinds:
            unknown = [key for key in fields if key not in _names(kinds[name])]
            if unknown:
                raise ValueError(f"{name} has no '{unknown[0]}'")
            return build(kinds[name], fields, name)
    raise ValueError("of no known type")


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
