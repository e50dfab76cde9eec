"""What other tools wrote down of a job's calls, as one job: torch's profiler (Kineto) and its Flight Recorder.

A trace is one rank's. What it does not say stays unknown, and what cannot be read as a call is counted, not guessed.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from collbench.model.dtypes import DTYPE_BYTES
from collbench.model.errors import RunFileError, UsageError
from collbench.model.job import (
    Call,
    Ending,
    Group,
    Job,
    JobRank,
    Phase,
    PointToPoint,
    Position,
    Sample,
    Source,
    Unknown,
)
from collbench.model.operations import Operation
from collbench.model.printable import one_line
from collbench.runfile.recorded import fold, spread_of

# The scalar types of torch that NCCL sends [c10/core/ScalarType.h]; a bool goes as a byte.
_DTYPES = {
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "uint8",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
}
# What torch calls its collectives, without underscores; the longest that fits counts [ProcessGroupNCCL.cpp].
_OPERATIONS: dict[str, Operation | PointToPoint] = {
    "allreduce": Operation.ALLREDUCE,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "allgather": Operation.ALLGATHER,
    "reducescatter": Operation.REDUCESCATTER,
    "alltoall": Operation.ALLTOALL,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
    "send": PointToPoint.SEND,
    "recv": PointToPoint.RECV,
}
# Rows that are no call: a wait, the making of a communicator, a barrier (whose all-reduce has a row of its own), and
# the row of a group beside those of its members.
_NO_CALL = re.compile(r"wait|init|barrier|coalesced|allgathercoalesced|reducescattercoalesced|startcoalescing|")
_LONGEST_FIRST = sorted(_OPERATIONS, key=len, reverse=True)
_SAMPLES = 32
_NELEMS = ("In msg nelems", "Out msg nelems")
_MOST_RANKS = 2**24
_FOLDED_AT_ONCE = 2**15  # calls: the time that fold() takes grows with the square, and a trace may have a million


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call as a trace has it. `group` is the trace's own name; `start` UTC µs; `gpu` µs, NaN where unknown."""

    operation: str
    size_bytes: int
    group: str
    dtype: str
    peer: int | None = None
    start: float = math.nan
    gpu: float = math.nan


@dataclass(slots=True)
class Trace:
    """One rank's trace. `members` are the job ranks of each group by its name; `skipped` rows could not be read."""

    source: Source
    rank: int | None
    calls: list[TracedCall] = field(default_factory=list)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    world_size: int = 0
    nccl: str = ""
    host: str = ""
    lost: int = 0  # calls before the first that the trace kept
    skipped: int = 0
    replays: bool = False  # kernels of NCCL without a call: a graph's


class _Unreadable(Exception):
    """Why something is no trace."""


def read(path: Path) -> Trace:
    """Read one rank's trace, of whichever kind it is. Raises RunFileError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFileError(f"cannot read trace {one_line(str(path))}: {error.strerror}") from error
    try:
        return parse(data, path.name)
    except _Unreadable as error:
        raise RunFileError(f"trace {one_line(str(path))}: {error}") from error


def parse(data: bytes, name: str) -> Trace:
    """Return the trace in a file's bytes; its name may hold the rank. Raises _Unreadable, which read() words."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise _Unreadable(f"it cannot be decompressed: {error}") from error
    try:
        fields = json.loads(data) if data[:1].isspace() or data[:1] in (b"{", b"[") else _Plain(io.BytesIO(data)).load()
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"it is no JSON: {error}") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise _Unreadable(
            "it is neither JSON nor a dump of plain values, as torch's Flight Recorder writes it"
        ) from error
    if isinstance(fields, dict) and isinstance(fields.get("traceEvents"), list):
        return _kineto(fields, _rank_in(name))
    if isinstance(fields, dict) and isinstance(fields.get("entries"), list):
        return _flight_recorder(fields, _rank_in(name))
    raise _Unreadable("it is neither a trace of torch.profiler nor a dump of torch's Flight Recorder")


class _Plain(pickle._Unpickler):
    """Reads plain containers alone: a pickle could otherwise run any program.

    Python's own reader, not C's, which makes room for as many objects as a damaged number says: 64 GiB.
    """

    _CODES = (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4, pickle.BINFLOAT),
        *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8, pickle.MEMOIZE),
        *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
        *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
        *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    )
    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _CODES}  # noqa: RUF012  # as its base has it


def _rank_in(name: str) -> int | None:
    """Return the rank that a file is named by: the last number before its endings, rank_3.json or trace-3.json.gz."""
    stem = re.sub(r"(\.(json|gz|pt|trace|kineto|fr|pkl|pickle))+$", "", name)
    found = re.search(r"(\d+)$", stem)
    return int(found[1]) if found and len(found[1]) < 7 else None


# The two formats.


def _kineto(fields: Mapping[str, Any], rank: int | None) -> Trace:
    """Read torch.profiler's trace: a row of the host for each call, and its kernel by the same External id."""
    distributed = _dict(fields.get("distributedInfo"))
    own = distributed.get("rank")
    trace = Trace(Source.KINETO, own if _natural(own) and own < _MOST_RANKS else rank)
    world = distributed.get("world_size")
    trace.world_size = world if _natural(world) and world < _MOST_RANKS else 0
    trace.nccl = _text(distributed.get("nccl_version"))
    trace.host = _text(fields.get("host_name"))
    for made in map(_dict, _list(distributed.get("pg_config"))):
        _add_group(trace, _text(made.get("pg_name")), _text(made.get("pg_desc")), made.get("ranks"))
    base: Any = fields.get("baseTimeNanoseconds")
    origin = base / 1e3 if _natural(base) else 0.0
    events = [event for event in map(_dict, fields["traceEvents"]) if event.get("ph") == "X"]
    kernels: dict[Any, float] = {}
    for event in events:
        if event.get("cat") == "kernel" and "nccl" in _text(event.get("name")).lower():
            number, lasted = _hashable(_dict(event.get("args")).get("External id")), _number(event.get("dur"))
            if not number:
                trace.replays = True
            elif not math.isnan(lasted):
                kernels[number] = kernels.get(number, 0.0) + lasted
    rows = [event for event in events if event.get("name") == "record_param_comms"]
    for event in sorted(rows, key=lambda event: _number(event.get("ts"))):
        words = _dict(event.get("args"))
        group = _text(words.get("Process Group Name"))
        if group not in trace.members:
            ranks, size = _ranks(words.get("Process Group Ranks")), words.get("Group size")
            _add_group(trace, group, _text(words.get("Process Group Description")), ranks)
            trace.sizes[group] = size if _natural(size) and 0 < size < _MOST_RANKS and not ranks else len(ranks)
        dtype = _DTYPES.get(_text(words.get("dtype")), "")
        given, got = (n if _natural(n := words.get(key)) and n < 2**50 else -1 for key in _NELEMS)
        name = _text(words.get("Collective name"))
        uneven = len({*_naturals(words.get("In split size")), *_naturals(words.get("Out split size"))}) > 1
        peer = words.get("Dst Rank") if name.startswith("send") else words.get("Src Rank")
        started = origin + _number(event.get("ts"))
        gpu = kernels.get(_hashable(words.get("External id")), math.nan)
        _add(trace, _Row(name, group, dtype, [given], [got], peer if _natural(peer) else None, started, gpu, uneven))
    return trace


def _flight_recorder(fields: Mapping[str, Any], rank: int | None) -> Trace:
    """Read a Flight Recorder dump: an entry for each call, in a ring, so that the first ones may be gone."""
    trace = Trace(Source.FLIGHT_RECORDER, rank)
    trace.nccl = _text(fields.get("comm_lib_version") or fields.get("nccl_version"))
    for made in map(_dict, _dict(fields.get("pg_config")).values()):
        _add_group(trace, _text(made.get("name")), _text(made.get("desc")), made.get("ranks"))
    entries = [_dict(entry) for entry in fields["entries"]]
    first: Any = entries[0].get("record_id") if entries else None
    trace.lost = first if _natural(first) else 0
    for entry in entries:
        names = [*_list(entry.get("process_group")), "", ""]
        group = _text(names[0])
        if group not in trace.members:
            _add_group(trace, group, _text(names[1]), ())
        # A scatter's receivers name no output.
        kinds = {_text(kind) for key in ("input_dtypes", "output_dtypes") for kind in _list(entry.get(key))}
        kinds -= {"UNKNOWN_SCALAR"}
        dtype = _DTYPES.get(kinds.pop(), "") if len(kinds) == 1 else ""
        name = _text(entry.get("profiling_name")).rpartition(":")[2]
        ends = re.search(r"(\d+)(->|<-)(\d+)", name)
        created: Any = entry.get("time_created_ns")
        lasted = _number(entry.get("duration_ms"))
        started = created / 1e3 if _natural(created) else math.nan
        given, got = (_elements(entry.get(key)) for key in ("input_sizes", "output_sizes"))
        peer = int(ends[3]) if ends and len(ends[3]) < 9 else None
        _add(trace, _Row(name, group, dtype, given, got, peer, started, lasted * 1e3))
    return trace


def _add_group(trace: Trace, key: str, description: str, ranks: Any) -> None:
    members = _ranks(ranks)
    trace.members[key], trace.sizes[key] = members, len(members)
    trace.names[key] = description if description not in {"", "undefined"} else key


@dataclass(frozen=True, slots=True)
class _Row:
    """A trace's line about a call: torch's name of it, elements of the tensors that it sends and gets, times in µs."""

    name: str
    group: str
    dtype: str
    given: list[int]
    got: list[int]
    peer: int | None
    start: float
    gpu: float
    uneven: bool = False


def _add(trace: Trace, row: _Row) -> None:
    """Add a row's call; count one that cannot be read."""
    name = row.name.partition(" ")[0].replace("_", "").lower()
    if _NO_CALL.fullmatch(name):
        return
    operation = next((_OPERATIONS[one] for one in _LONGEST_FIRST if name.startswith(one)), None)
    ranks = max(trace.sizes.get(row.group, 0), len(trace.members.get(row.group, ())))
    if operation is None or not row.dtype or ranks < 1 or min((*row.given, *row.got), default=0) < 0:
        trace.skipped += 1
        return
    if row.uneven and operation is Operation.ALLTOALL:
        operation = Operation.ALLTOALLV
    size = _message(operation, row, ranks) * DTYPE_BYTES[row.dtype]
    peer = row.peer if isinstance(operation, PointToPoint) and row.peer is not None and row.peer < ranks else None
    trace.calls.append(TracedCall(operation.value, size, row.group, row.dtype, peer, row.start, row.gpu))


def _message(operation: Operation | PointToPoint, row: _Row, ranks: int) -> int:
    """Return the elements of a message as nccl-tests counts them."""
    given, got = sum(row.given), sum(row.got)
    if operation is Operation.ALLGATHER:
        return max(given * ranks, got)
    if operation is Operation.REDUCESCATTER:
        return max(given, got * ranks)
    if operation in (Operation.GATHER, Operation.SCATTER):  # torch names a list of blocks at the root, one elsewhere
        return max((*row.given, *row.got), default=0) * ranks
    return max(given, got)


# Together.


def job_of(traces: Sequence[Trace]) -> Job:
    """Return the traces of a job's ranks as one job. Raises UsageError where none called, or ranks are unclear."""
    traces = [trace for trace in traces if trace.calls]
    if not traces:
        raise UsageError("no trace has a collective: was the job traced while it trained, on every rank?")
    sources = {trace.source for trace in traces}
    if len(sources) > 1:
        raise UsageError(f"traces are of several kinds: {', '.join(sorted(sources))}; import one kind at a time")
    numbers = [trace.rank for trace in traces]
    if None in numbers or len(set(numbers)) < len(numbers):
        if any(number is not None for number in numbers) and len(traces) > 1:
            raise UsageError("which rank is which? Name the files by their ranks: trace-0.json, trace-1.json, …")
        numbers = list(range(len(traces)))
    order = sorted(range(len(traces)), key=lambda place: numbers[place] or 0)
    ranked = [(numbers[place] or 0, traces[place]) for place in order]
    members = [rank for trace in traces for group in trace.members.values() for rank in group]
    world = max([*(trace.world_size for trace in traces), *(rank + 1 for rank in members), ranked[-1][0] + 1])
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    made: list[Group] = []
    calls: dict[Call, int] = {}

    def group_of(trace: Trace, key: str) -> int:
        ranks = trace.members[key]
        if (key, ranks) not in groups:
            groups[key, ranks] = len(made)
            made.append(Group(ranks, max(trace.sizes[key], len(ranks)), trace.names[key]))
        return groups[key, ranks]

    def place_of(trace: Trace, call: TracedCall) -> int:
        asked = Call(call.operation, call.size_bytes, group_of(trace, call.group), call.dtype, peer=call.peer)
        return calls.setdefault(asked, len(calls))

    starts = [call.start for trace in traces for call in trace.calls if not math.isnan(call.start)]
    began = min(starts, default=0.0)
    ranks = tuple(
        _rank(number, trace, [place_of(trace, call) for call in trace.calls], began) for number, trace in ranked
    )
    return Job(
        source=sources.pop(),
        started=datetime.fromtimestamp(began / 1e6, UTC).isoformat(timespec="seconds") if 0 < began < 2**52 else "",
        world_size=world,
        groups=tuple(made),
        calls=tuple(calls),
        ranks=ranks,
        nccl=next((trace.nccl for trace in traces if trace.nccl), ""),
        unknown=tuple(_unknown(traces, made, calls)),
    )


def _unknown(traces: Sequence[Trace], groups: Sequence[Group], calls: Mapping[Call, int]) -> Iterator[Unknown]:
    """Yield what these traces do not say; torch's own kernels' names call every reduction a sum."""
    all_calls = [call for trace in traces for call in trace.calls]
    operations = {call.collective for call in calls}
    yield from [Unknown.REDUCTION] * any(one is not None and one.reduces for one in operations)
    yield from [Unknown.ROOT] * any(one is not None and one.rooted for one in operations)
    yield from [Unknown.PEER] * any(call.collective is None and call.peer is None for call in calls)
    yield from [Unknown.GROUP_RANKS] * any(not group.ranks for group in groups)
    yield from [Unknown.PAUSES] * any(math.isnan(call.start) for call in all_calls)
    yield from [Unknown.GPU_TIMES] * any(math.isnan(call.gpu) for call in all_calls)
    yield from [Unknown.GRAPH_REPLAYS] * (
        any(trace.replays for trace in traces) or traces[0].source is not Source.KINETO
    )
    yield Unknown.OVERLAP


def _rank(number: int, trace: Trace, places: Sequence[int], began: float) -> JobRank:
    """Return one rank's calls folded, with all that is known of their times."""
    starts = np.array([call.start for call in trace.calls]) - began
    pauses = np.diff(starts, prepend=np.nan).clip(min=0.0)
    gpu = np.array([call.gpu for call in trace.calls])
    found: dict[tuple[int, ...], list[int]] = {}  # where each repetition of a phase begins
    order: list[tuple[int, int]] = []
    folded = (
        (first + start, period, repetitions)
        for first in range(0, len(places), _FOLDED_AT_ONCE)
        for start, period, repetitions in fold(np.array(places[first : first + _FOLDED_AT_ONCE]))
    )
    for start, period, repetitions in folded:
        symbols = tuple(places[start : start + period])
        begins = found.setdefault(symbols, [])
        begins += range(start, start + period * repetitions, period)
        order.append(([*found].index(symbols), repetitions))
    phases = tuple(_phase(symbols, begins, starts, pauses, gpu) for symbols, begins in found.items())
    once = len(order) == len(phases)
    return JobRank(number, phases, trace.host, None, Ending.COMPLETE, trace.lost, () if once else tuple(order))


def _phase(symbols: Sequence[int], begins: Sequence[int], starts: Any, pauses: Any, gpu: Any) -> Phase:
    length = len(symbols)
    rows = np.array(begins)[:, None] + np.arange(length)

    def column(values: Any, place: int) -> Any:
        own = values[rows[:, place]]
        return own[~np.isnan(own)]

    positions = tuple(
        Position(symbol, pause=spread_of(column(pauses, place)), gpu=spread_of(column(gpu, place)))
        for place, symbol in enumerate(symbols)
    )
    samples = []
    for repetition in range(0, len(begins), math.ceil(len(begins) / _SAMPLES)):
        own = rows[repetition]
        if not np.isnan(starts[own]).any():
            known = not np.isnan(gpu[own]).any()
            samples.append(Sample(repetition, _rounded(starts[own]), _rounded(gpu[own]) if known else ()))
    return Phase(positions, len(begins), tuple(samples))


def _rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)


# Values of files that anybody may have written.


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _natural(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, int | float) and abs(value) < 2**62 else math.nan
    return number if number >= 0 and math.isfinite(number) else math.nan


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else None


def _naturals(value: Any) -> list[int]:
    """Return the numbers of a list, or of its text "[0, 1]"; none of what is cut short or no such list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return _list(value) if all(map(_natural, _list(value))) else []


def _ranks(value: Any) -> tuple[int, ...]:
    """Return ranks of a list or its text; () of what is no list of different ranks."""
    ranks = _naturals(value)
    return tuple(ranks) if len(set(ranks)) == len(ranks) and max(ranks, default=0) < _MOST_RANKS else ()


def _elements(shapes: Any) -> list[int]:
    """Return the elements of each tensor by its shape; −1 of what is none."""
    found = []
    for shape in map(_list, _list(shapes)):
        product = math.prod(shape) if len(shape) < 64 and all(map(_natural, shape)) else -1
        found.append(product if product < 2**50 else -1)
    return found
