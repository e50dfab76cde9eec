"""torch.profiler's trace (Kineto's JSON): rows of the host for each call, and the kernels that it launched.

Since 2024 a call's row has all that torch knows of it. Before, a call is a row "nccl:all_reduce" inside it, with
the shapes of its tensors if they were recorded: no row says the group, and of some calls none says the bytes. Kernels
of NCCL that no row launched, those of a CUDA graph among them, say their operation and their time alone.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collbench.jobs.exposed import Intervals, Timeline, pieces
from collbench.jobs.job import Library, Source
from collbench.jobs.traces import content
from collbench.jobs.traces.content import Trace, TracedCall
from collbench.jobs.traces.torch_traces import CALL_ROW, called, tensor_type

_COMPUTE, _NCCL, _COPY = range(3)  # as Timeline takes them
_COPIES = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_TITLE = re.compile(r"(nccl|gloo):(.+)")  # of a call's row of older torch, and of gloo's
_KERNEL = re.compile(r"nccl\w*?kernel_([a-z]+)_", re.IGNORECASE)  # and its operation
_UNCLEAR = {"", "sendrecv", "generic"}  # what no operation is sure of
_NESTED = 4  # rows of calls inside one another


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One of NCCL's. `row` is the number of the row that launched it; of older torch it is `launch`."""

    name: str
    device: int
    start: float
    lasted: float
    row: int | str | None
    launch: int | str | None


@dataclass(slots=True)
class _Span:
    """A row of the host, from start to end, the call that it is about, and the kernels that it launched."""

    start: float
    end: float
    call: TracedCall | None = None
    named: bool = False  # by the row itself
    kernels: list[int] = field(default_factory=list)


class KinetoReader:
    """Makes the trace of one rank of a trace's events."""

    title = "a trace of torch.profiler"
    elements, marks = "traceEvents", (b'"traceEvents"',)

    def __init__(self, rank: int | None) -> None:
        """Take the rank that the file is named by."""
        self._trace = Trace(Source.KINETO, rank)
        self._intervals: dict[int, tuple[array[float], ...]] = defaultdict(lambda: (array("d"), array("d"), array("d")))
        self._kernels: list[_Kernel] = []
        self._launches: dict[int | str, tuple[int | str, float, bool]] = {}  # where, when, and whether of a graph
        self._steps: list[tuple[float, float]] = []
        self._rows: list[tuple[int | str, float, float, str, dict[Any, Any]]] = []  # where, from, to, name, arguments

    def add(self, event: Any) -> None:
        """Take the next event."""
        event = content.fields(event)
        name, category = content.text(event.get("name")), content.text(event.get("cat")).lower()
        start, lasted = content.number(event.get("ts")), content.number(event.get("dur"))
        arguments, where = content.fields(event.get("args")), content.hashable(event.get("tid")) or 0
        self._trace.rows += 1
        if event.get("ph") != "X":
            return
        on_gpu = category == "kernel" or category in _COPIES
        of_call = name == CALL_ROW or (_TITLE.match(name) and category != "gpu_user_annotation")
        launch = content.hashable(arguments.get("correlation"))
        if math.isnan(start) or (on_gpu and math.isnan(lasted)):
            if of_call or "nccl" in name.lower():
                self._trace.left_out[f"{name.partition('(')[0]} without a time"] += 1
        elif on_gpu:
            kind = _COPY if category in _COPIES else _NCCL if "nccl" in name.lower() else _COMPUTE
            device = content.size(arguments.get("device"))
            self._intervals[device][kind].extend((start, start + lasted))
            if kind == _NCCL:
                row = content.hashable(arguments.get("External id"))
                self._kernels.append(_Kernel(name, device, start, lasted, row, launch))
        elif category == "user_annotation" and name.startswith("ProfilerStep#") and not math.isnan(lasted):
            self._steps.append((start, start + lasted))
        elif "launch" in (lower := name.lower()) and launch is not None:
            self._launches[launch] = where, start, "graph" in lower
        elif of_call or name.startswith("c10d::"):
            end = start if math.isnan(lasted) else start + lasted
            self._rows.append((where, start, end, name, arguments))

    def trace(self, fields: dict[Any, Any]) -> Trace:
        """Return the trace."""
        trace = self._trace
        distributed = content.fields(fields.get("distributedInfo"))
        own_rank = content.rank(distributed.get("rank"))
        trace.rank = trace.rank if own_rank is None else own_rank
        trace.world_size = content.size(distributed.get("world_size"))
        trace.nccl = content.text(distributed.get("nccl_version"))
        trace.host = content.text(fields.get("host_name"))
        for group in map(content.fields, content.items(distributed.get("pg_config"))):
            trace.add_group(_group(group, "pg_name", "uid"), content.text(group.get("pg_desc")), group.get("ranks"))
        steps = sorted(self._steps)
        trace.marks = [*(start for start, _ in steps), *(end for _, end in steps[-1:])]
        base: Any = fields.get("baseTimeNanoseconds")
        trace.origin = base / 1e3 if content.natural(base) else 0.0
        calls = [*self._launched(self._spans())]
        if self._kernels:
            self._time(calls)
        for call, _ in sorted(calls, key=lambda launched: (_last(launched[0].start), _last(launched[0].gpu_start))):
            trace.add(call)
        if not trace.calls:
            trace.left_out.update(name for *_, name, _ in self._rows)
        return trace

    def _spans(self) -> tuple[dict[int | str, list[_Span]], dict[int | str, _Span]]:
        """Return the rows of each thread that may launch a call's kernels, in order, and those that have a number."""
        spans: dict[int | str, list[_Span]] = defaultdict(list)
        numbered: dict[int | str, _Span] = {}
        around: dict[int | str, tuple[float, str, dict[Any, Any]]] = {}  # of each thread, torch's operation
        for where, start, end, name, arguments in sorted(self._rows, key=lambda row: (row[1], -row[2])):
            own, title = spans[where], _TITLE.match(name)
            if title is None and name != CALL_ROW:
                around[where] = end, name, arguments
            elif title is None:
                given = content.text(arguments.get("Collective name"))  # "" of a row of older torch
                own.append(_Span(start, end, self._named(given, arguments, start), bool(given)))
                if (number := content.hashable(arguments.get("External id"))) is not None:
                    numbered[number] = own[-1]
            elif not own or start >= own[-1].end:
                own.append(_Span(start, end, self._titled(title, arguments, start, around.get(where))))
            elif not own[-1].named and own[-1].call is None:
                own[-1].call = self._titled(title, arguments, start, around.get(where))
        return spans, numbered

    def _named(self, name: str, arguments: dict[Any, Any], start: float) -> TracedCall | None:
        """Return the call of a row that has all of it."""
        trace, key = self._trace, _group(arguments, "Process Group Name", "Process Group ID")
        if key not in trace.groups:
            trace.add_group(
                key,
                content.text(arguments.get("Process Group Description")),
                content.ranks(arguments.get("Process Group Ranks")),
                content.size(arguments.get("Group size")),
            )
        end = "Dst Rank" if name.startswith("send") else "Src Rank" if name.startswith("recv") else "Rank"
        number = arguments.get("Seq")
        return called(
            trace,
            key,
            name,
            content.text(arguments.get("dtype")),
            ([content.elements(arguments.get("In msg nelems"))], [content.elements(arguments.get("Out msg nelems"))]),
            other=content.rank(arguments.get(end)),
            split_sizes=(arguments.get("In split size"), arguments.get("Out split size")),
            start=start,
            number=number if content.natural(number) else None,
        )

    def _titled(
        self, title: Any, arguments: dict[Any, Any], start: float, around: tuple[float, str, dict[Any, Any]] | None
    ) -> TracedCall | None:
        """Return the call of a row that has its name, and of one tensor that goes in the shape and type."""
        sent, received = content.shaped(arguments.get("Input Dims")), list[int]()
        end, operation, outer = around or (-math.inf, "", dict[Any, Any]())
        if start <= end and operation == "c10d::_allgather_base_":
            received = content.shaped(outer.get("Input Dims"))[:1]
        elif start <= end and operation in {"c10d::alltoall_", "c10d::scatter_"}:
            sent = []  # of a list of blocks it has the first
        kind = next(map(content.text, content.items(arguments.get("Input type"))), "")
        trace, elements, library = self._trace, (sent, received), Library(title[1])
        return called(trace, trace.any_group(), title[2], tensor_type(kind), elements, start=start, library=library)

    def _launched(self, rows: tuple[dict[int | str, list[_Span]], dict[int | str, _Span]]) -> list[Any]:
        """Return each call and the places of its kernels; a kernel that no row launched is a call."""
        spans, numbered = rows
        if not any(kernel.row != kernel.launch for kernel in self._kernels):
            numbered.clear()  # older torch numbers kernels by their launches
        begins = {where: [span.start for span in own] for where, own in spans.items()}
        loose = list[tuple[int, float, bool]]()
        for place, kernel in enumerate(self._kernels):
            where, start, captured = self._launches.get(kernel.launch or "", (0, math.nan, False))
            span = None if captured else numbered.get(kernel.row or "")
            if span is None and where in spans and not captured:
                at = bisect_right(begins[where], start)
                near = reversed(spans[where][max(0, at - _NESTED) : at])
                span = next((span for span in near if start <= span.end), None)
            if span is None:
                loose.append((place, start, captured))
            else:
                span.kernels.append(place)
        calls = [(span.call, span.kernels) for own in spans.values() for span in own if span.call is not None]
        whole = bool(calls)
        for place, start, captured in loose:
            kernel = self._kernels[place]
            name = match[1].lower() if (match := _KERNEL.match(kernel.name)) else ""
            if name in _UNCLEAR or (whole and math.isnan(start)):
                self._trace.left_out[f"{kernel.name.partition('(')[0]} without a call"] += 1
            else:
                key = self._trace.any_group()
                call = called(self._trace, key, name, "", ([], []), start=start, captured=captured)
                calls += [(call, [place])] if call is not None else []
        return calls

    def _time(self, calls: list[Any]) -> None:
        """Set the times of the calls' kernels, and how the GPU's time passed."""
        kernels = self._kernels
        device = Counter(kernel.device for kernel in kernels).most_common(1)[0][0]
        compute, nccl, copies = (_pairs(part) for part in self._intervals[device])
        exposed, begins = np.full((2, len(kernels)), math.nan)
        if len(compute):  # a trace without it is one from which it was taken
            self._trace.gpu = Timeline(compute, nccl, copies)
            own, alone = np.array([kernel.device == device for kernel in kernels]), pieces(nccl)
            exposed[own], begins[own] = self._trace.gpu.exposed(alone), alone[:, 0]
        for call, places in calls:
            if places:
                call.gpu_start = min(kernels[place].start for place in places)
                call.gpu = sum(kernels[place].lasted for place in places)
                call.exposed = min(float(exposed[places].sum()), call.gpu)
                call.alone_from = float(begins[places].min())


def _group(fields: dict[Any, Any], name: str, number: str) -> str:
    """Return the key of a group: its name, and of torch 2.3 its number, which is the name."""
    uid = fields.get(number)
    return content.text(fields.get(name)) or (str(uid) if content.natural(uid) else "")


def _pairs(flat: array[float]) -> Intervals:
    return np.frombuffer(flat, dtype=float).reshape(-1, 2) if flat else np.empty((0, 2))


def _last(moment: float) -> float:
    return math.inf if math.isnan(moment) else moment
