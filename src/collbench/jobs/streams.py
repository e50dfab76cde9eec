"""What the NCCL profiler plugin wrote of one rank: the bytes of its file as values (csrc/recorder/stream.hpp).

A file may be cut off or damaged anywhere, and its process may have been killed between any two stores: parts that do
not fit together raise StreamError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench import untrusted
from collbench.jobs.job import MAX_RANKS
from collbench.model.values import one_line

MAGIC, VERSION = b"CBSTREAM", 5

# The functions of csrc/recorder/stream.hpp, by number, as values of the table of operations; 0 is one that it does not
# know.
FUNCTIONS = (
    "",
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reducescatter",
    "send",
    "recv",
    "alltoall",
    "gather",
    "scatter",
)
_GPU_UNIT = 16  # ns, of a call's time on the GPU


class Lack(StrEnum):
    """Why calls have no GPU time, in the order of csrc/recorder/stream.hpp."""

    MISSING = "NCCL reported no end of them"  # nor, of some, that they ran
    IMPLAUSIBLE = "the times that NCCL reported are impossible"
    SELF = "NCCL reports wrong times after a send from a rank to itself"  # those of earlier calls
    CAPTURED = "they are in a CUDA graph, which launches them later"


Fields = dict[str, Any]  # of a record, by the names of its dtype


def _each(kind: str, *names: str) -> list[tuple[str, str]]:
    """Return fields of one type that follow one another in a record."""
    return [(name, kind) for name in names]


_TABLES = ("communicators", "calls", "phases", "runs")
_AREAS = (*_TABLES, "tail", "pending")
HEADER = np.dtype(
    [
        ("magic", "S8"),
        *_each("<u4", "version", "index"),
        *_each("<u8", "file_bytes", *(f"{area}_at" for area in (*_AREAS, "arena"))),
        *_each("<u4", *(f"{area}_max" for area in _AREAS), *_TABLES),
        *_each("<u8", "arena_used", "tail", "pending_first", "pending_next", "kept", "dropped", "unplaced"),
        *_each("<u8", "moving_tail"),
        *_each("<u4", "moving", "moving_runs", "moving_repetitions", "moving_phase"),
        *_each("<u8", "before_tail", "moving_before_tail"),
        *_each("<u4", "open", "exited"),
        *_each("<i4", "pid", "device", "abi", "env_rank", "env_world", "nccl"),
        *_each("<u8", "monotonic_ns", "realtime_ns", "last_group", "gpu_times"),
        ("lacks", "<u8", len(Lack)),
        ("host", "V256"),
        ("environment", "V32768"),
    ]
)
_COMMUNICATOR = np.dtype([("hash", "<u8"), *_each("<i4", "rank", "ranks", "nodes", "reserved"), ("name", "V104")])
_CALL = np.dtype(
    [
        ("count", "<u8"),
        *_each("<i4", "root", "peer"),
        ("communicator", "<u2"),
        *_each("u1", "function", "datatype"),
        ("captured", "?"),
        *_each("u1", "reduction"),
        ("reserved", "<u2"),
    ]
)
_PHASE = np.dtype(
    [
        *_each("<u8", "repetitions", "hash", "symbols", "samples", "gpu_samples", "gpu_begins"),
        *_each("<u4", "length", "slots", "used", "stride", "repeats", "reserved"),
    ]
)
_RUN = np.dtype([("phase", "<u4"), ("repetitions", "<u4")])
_TAIL = np.dtype([("start", "<u8"), ("begin", "<u8"), ("ahead", "<i8"), ("symbol", "<u4"), ("gpu", "<u4")])
_PENDING = np.dtype(
    [("call", _CALL), *_each("<u8", "start", "group", "begin"), ("ahead", "<i8"), *_each("<u4", "needs", "gpu")]
)

Numbers = NDArray[Any]
CommunicatorKey = tuple[int, str]  # a communicator's hash and name


class StreamError(Exception):
    """A file that is no stream, or one whose parts do not fit together."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One that the rank was in."""

    hash: int  # NCCL's
    rank: int  # its rank there
    ranks: int  # 0: unknown
    name: str

    @property
    def key(self) -> CommunicatorKey:
        """What the same communicator has on all of its ranks."""
        return self.hash, self.name


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One distinct call as NCCL got it."""

    count: int  # elements
    root: int  # -1: none
    peer: int  # -1: none
    communicator: int  # its place in Stream.communicators
    function: int  # its place in FUNCTIONS
    datatype: int  # ncclDataType_t
    captured: bool
    reduction: int  # its place in REDOPS + 1; 0: unknown


@dataclass(frozen=True, slots=True)
class Repetition:
    """A sequence of calls, or one repetition of it, whole: times in ns, 0 if unknown."""

    repetition: int
    before: int  # when the host made the call before the first one
    starts: Numbers  # when the host made each call
    gpu: Numbers  # how long each call ran on the GPU
    begins: Numbers  # when each call began there; plus `ahead`, on the clock of the starts
    ahead: Numbers


@dataclass(frozen=True, slots=True)
class Repeated:
    """A sequence of calls that came several times."""

    symbols: Numbers  # a call × 2, + 1 where grouped with the one before it
    samples: tuple[Repetition, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """All that one file says. The tail are the calls after the last run, one by one."""

    host: str
    pid: int
    index: int
    device: int | None
    abi: int
    nccl: int
    env_rank: int | None
    env_world: int | None
    monotonic_ns: int
    realtime_ns: int
    complete: bool
    dropped: int
    environment: dict[str, str]
    communicators: tuple[Communicator, ...]
    calls: tuple[NcclCall, ...]
    phases: tuple[Repeated, ...]
    runs: tuple[tuple[int, int], ...]  # (phase, repetitions)
    tail: Numbers  # symbols
    tail_times: Repetition
    too_old: bool = False  # GPU times were wanted, and this NCCL has none
    lacks: dict[Lack, int] = field(default_factory=dict)  # calls without a GPU time, where these were recorded


_RECORDED, _TOO_OLD = 1, 2  # of a header's gpu_times

# Beyond these it is damage: more ranks than any job has, more bytes than any memory.
_MAX_ELEMENTS = 1 << 56
_MAX_BYTES = 32 << 20
_MAX_CALLS = 1 << 15  # in the tail, which are searched for what repeats; a phase has half of them
_LATEST = 1 << 62  # ns: 146 years after a host's start


def read(path: Path) -> bytes:
    """Return a stream's bytes. Raises StreamError for a file that another user may have put there, and OSError."""
    try:
        return untrusted.read(path, _MAX_BYTES, {os.geteuid(), path.parent.stat().st_uid})
    except untrusted.Refused as error:
        raise StreamError(error.strerror) from error


def parse(data: bytes | bytearray | memoryview) -> Stream:
    """Return what a file holds. Raises StreamError."""
    if len(data) < HEADER.itemsize or data[:8] != MAGIC:
        raise StreamError("it is not a stream of the recorder, or its beginning is missing")
    header = _fields(np.frombuffer(data, HEADER, 1)[0])
    if header["version"] != VERSION:
        raise StreamError(f"it has version {header['version']}, this collbench reads {VERSION}")
    file = _File(data)
    communicators = tuple(_communicator(record) for record in file.area(header, "communicators", _COMMUNICATOR))
    calls = file.area(header, "calls", _CALL)
    phases = tuple(_phase(file, _fields(phase)) for phase in file.area(header, "phases", _PHASE))
    (first, count), before, runs = _settled(file, header)
    tail = _ring(file.at(header["tail_at"], _TAIL, header["tail_max"]), first, count)
    # A kill between two stores may leave a call counted that is not in the tail, or neither pending nor in the tail.
    lengths = [len(phase.symbols) for phase in phases]
    sent = sum(lengths[phase] * repetitions for phase, repetitions in runs if phase < len(lengths)) + len(tail)
    if header["kept"] - sent not in {0, 1}:
        raise StreamError(f"it says that {header['kept']} calls were kept, but has {sent}")
    if header["pending_first"] - sent - header["dropped"] not in {0, 1}:
        raise StreamError(f"it says that {header['pending_first']} calls wait no longer, but has {sent}")
    waiting, waiting_symbols = _waiting(file, header, sent + header["dropped"], len(calls))
    known = tuple(NcclCall(*record.item()[:-1]) for record in (*calls, *waiting["call"]))
    symbols = np.concatenate([tail["symbol"].astype(np.int64), waiting_symbols])
    starts, gpu, begins, ahead = (
        np.concatenate([tail[name], waiting[name]]) for name in ("start", "gpu", "begin", "ahead")
    )
    begins = begins.astype(np.int64)
    _check_clock(starts, begins, ahead)
    _check_tables(communicators, known, phases, runs, symbols)
    return Stream(
        host=_text(header["host"]),
        pid=header["pid"],
        index=header["index"],
        device=_or_none(header["device"]),
        abi=header["abi"],
        nccl=header["nccl"],
        env_rank=_or_none(header["env_rank"]),
        env_world=_or_none(header["env_world"]) if header["env_world"] <= MAX_RANKS else None,
        monotonic_ns=header["monotonic_ns"],
        realtime_ns=header["realtime_ns"],
        complete=bool(header["exited"]) or (not header["open"] and bool(communicators)),
        dropped=header["dropped"] + header["unplaced"],
        environment=_environment(header["environment"]),
        communicators=communicators,
        calls=known,
        phases=phases,
        runs=runs,
        tail=symbols,
        tail_times=Repetition(0, before, starts.astype(np.int64), gpu.astype(np.int64) * _GPU_UNIT, begins, ahead),
        too_old=header["gpu_times"] == _TOO_OLD,
        lacks=_lacks(header, waiting),
    )


def _check_tables(
    communicators: Sequence[Communicator],
    calls: Sequence[NcclCall],
    phases: Sequence[Repeated],
    runs: Sequence[tuple[int, int]],
    tail: Numbers,
) -> None:
    """Raise StreamError where an entry of a table cannot be, or names one of another table that is not there."""
    for symbols in (*(phase.symbols for phase in phases), tail):
        if len(symbols) and int(symbols.max()) // 2 >= len(calls):
            raise StreamError("a phase has a call that is not in the table of calls")
    if any(not 0 <= comm.rank < (comm.ranks or MAX_RANKS) <= MAX_RANKS for comm in communicators):
        raise StreamError("a communicator has a rank that it cannot have")
    if any(call.count > _MAX_ELEMENTS for call in calls):
        raise StreamError("a call is larger than any can be")
    if any(call.communicator >= len(communicators) for call in calls):
        raise StreamError("a call has a communicator that is not in their table")
    if any(phase >= len(phases) or not repetitions for phase, repetitions in runs):
        raise StreamError("a run repeats a phase that is not in their table")


def _lacks(header: Fields, waiting: Numbers) -> dict[Lack, int]:
    """Return how many calls have no GPU time, by the reason: those that wait have not got it yet."""
    if header["gpu_times"] != _RECORDED:
        return {}
    counts = dict(zip(Lack, map(int, header["lacks"]), strict=True))
    for call in waiting[waiting["gpu"] == 0]["call"]:
        counts[Lack.CAPTURED if call["captured"] else Lack.MISSING] += 1
    return counts


def _fields(record: Any) -> Fields:
    """Return a record's fields as Python's own numbers and bytes."""
    return dict(zip(record.dtype.names, record.item(), strict=True))


class _File:
    """A file's bytes, and arrays in them that are checked to lie in them."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = data
        self._left = len(data)  # bytes that no array has had: of phases that share them, each would be a copy

    def at(self, offset: int, kind: np.dtype[Any] | str, count: int) -> Numbers:
        """Return `count` values from an offset on. Raises StreamError."""
        size = np.dtype(kind).itemsize
        if offset < HEADER.itemsize or offset + count * size > len(self.data):
            raise StreamError(f"it was cut off: {count} values at byte {offset} of {len(self.data)}")
        self._left -= count * size
        if self._left < 0:
            raise StreamError("its parts overlap")
        return np.frombuffer(self.data, kind, count, offset)

    def area(self, header: Fields, name: str, kind: np.dtype[Any]) -> Numbers:
        """Return the used part of a table. Raises StreamError."""
        if header[name] > header[f"{name}_max"]:
            raise StreamError(f"its table of {name} is fuller than it can be")
        return self.at(header[f"{name}_at"], kind, header[name])


def _check_clock(*times: Any) -> None:
    for some in times:
        if int(np.max(some, initial=0)) > _LATEST or int(np.min(some, initial=0)) < -_LATEST:
            raise StreamError("a call was made later than any clock says")


def _settled(file: _File, header: Fields) -> tuple[tuple[int, int], int, tuple[tuple[int, int], ...]]:
    """Return the tail's first place and count, the start before it, and the runs: before a move that was cut off."""
    tail, before = header["tail"], header["before_tail"]
    runs: list[tuple[int, int]] = file.area(header, "runs", _RUN).tolist()  # (phase, repetitions)
    if header["moving"] and header["moving_tail"] == tail:
        runs = runs[: header["moving_runs"]]
        before = header["moving_before_tail"]
        if runs:
            runs[-1] = (runs[-1][0], header["moving_repetitions"])
    first, count = tail >> 32, tail & 0xFFFFFFFF
    if not count <= header["tail_max"] <= _MAX_CALLS or first >= max(1, header["tail_max"]):
        raise StreamError("its tail is longer than it can be")
    return (first, count), before, tuple(runs)


def _ring(values: Numbers, first: int, count: int) -> Numbers:
    return values[(first + np.arange(count)) % max(1, len(values))]


def _phase(file: _File, phase: Fields) -> Repeated:
    length, used = phase["length"], phase["used"]
    if not 0 < length <= _MAX_CALLS or used > phase["slots"]:
        raise StreamError("a phase is empty, or has more calls or samples than it can have")
    samples = file.at(phase["samples"], "<u8", used * (2 + length)).reshape(used, 2 + length).astype(np.int64)
    gpu: Numbers = np.zeros((used, length), np.int64)
    if phase["gpu_samples"]:
        gpu = file.at(phase["gpu_samples"], "<u4", used * length).reshape(used, length).astype(np.int64)
    begins: Numbers = np.zeros((used, length), np.int64)
    if phase["gpu_begins"]:  # before them, the call before the first one: its begin, and how long it ran
        begins = file.at(phase["gpu_begins"], "<u8", used * (2 + length)).reshape(used, 2 + length)[:, 2:]
        _check_clock(begins)
    sampled = zip(samples, gpu * _GPU_UNIT, begins.astype(np.int64), strict=True)
    repetitions = (
        Repetition(int(sample[0]), int(sample[1]), sample[2:], took, began, np.zeros(length, np.int64))
        for sample, took, began in sampled
    )
    return Repeated(file.at(phase["symbols"], "<u4", length).astype(np.int64), tuple(repetitions))


def _waiting(file: _File, header: Fields, first: int, known: int) -> tuple[Numbers, Numbers]:
    """Return the calls from `first` on, which wait for their launch or end, and their symbols after `known` calls."""
    after, most = header["pending_next"], header["pending_max"]
    if after - first > most or most > _MAX_CALLS:
        raise StreamError("more calls wait to be launched than can")
    if after <= first:
        return np.zeros(0, _PENDING), np.zeros(0, np.int64)
    entries = _ring(file.at(header["pending_at"], _PENDING, most), first % most, after - first)
    groups = np.concatenate([np.array([header["last_group"]], np.uint64), entries["group"]])
    grouped = (groups[1:] != 0) & (groups[1:] == groups[:-1])
    return entries, (known + np.arange(len(entries))) * 2 + grouped


def _communicator(record: Any) -> Communicator:
    hash_, rank, ranks, _nodes, _reserved, name = record.item()
    return Communicator(hash_, rank, ranks, _text(name))


def _text(data: Any) -> str:
    """Return text up to its end, as a job file has it: without control characters."""
    return one_line(bytes(data).split(b"\0", 1)[0].decode("utf-8", "replace"))


def _environment(data: Any) -> dict[str, str]:
    variables = (_text(entry).partition("=") for entry in bytes(data).split(b"\0\0", 1)[0].split(b"\0"))
    return {name: value for name, _, value in variables if name}


def _or_none(number: int) -> int | None:
    return None if number < 0 else number  # NO_RANK, or damage


def marks(files: Iterable[Path]) -> dict[tuple[str, int], list[int]]:
    """Return the ns at which each process, by host and number, marked a step: 8 bytes each in its file."""
    called: dict[tuple[str, int], list[int]] = {}
    for path in sorted(files):
        host, _, rest = path.name.removesuffix(".marks").rpartition("-")
        host, _, process = host.rpartition("-")
        if path.suffix == ".marks" and rest and process.isdigit():
            data = read(path)
            times = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
            called.setdefault((host, int(process)), []).extend(times[times < _LATEST].tolist())
    return called
