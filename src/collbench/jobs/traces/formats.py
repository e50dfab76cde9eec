"""The formats of traces: how each is recognized by what a file holds, and read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from collbench import untrusted
from collbench.jobs.job import JOB
from collbench.jobs.traces import content
from collbench.jobs.traces.content import Trace, Unreadable
from collbench.jobs.traces.kineto import KinetoReader
from collbench.jobs.traces.torch_traces import ExecutionTraceReader, FlightRecorderReader
from collbench.model.errors import RunFileError
from collbench.model.values import one_line

# Each has its `title`, the name `elements` of the list in which its elements stand, and `marks`, which such a file
# contains in its first MiB.
Reader: TypeAlias = KinetoReader | FlightRecorderReader | ExecutionTraceReader
READERS: tuple[type[Reader], ...] = (KinetoReader, FlightRecorderReader, ExecutionTraceReader)


def read(paths: Sequence[Path]) -> list[Trace]:
    """Read the traces of a job's ranks. Raises RunFileError."""
    traces = []
    for path in paths:
        try:
            with untrusted.opened(path, content.MAX_BYTES) as stream:
                trace = parse(stream, path.name, os.fstat(stream.fileno()).st_size or content.MAX_BYTES)
        except OSError as error:
            raise RunFileError(f"cannot read trace {one_line(str(path))}: {untrusted.unread(path, error)}") from error
        except Unreadable as error:
            raise RunFileError(f"trace {one_line(str(path))}: {error}") from error
        trace.file = str(path)
        traces.append(trace)
    return traces


def advice(path: Path) -> str:
    """Return what to do with a file that is no run; "" if it is no trace either."""
    title = title_of(path) if path.is_file() else ""
    shown = f"convert it with 'collbench import {path}', then 'collbench show job.json' prints it"
    return title and f"{path} is {title}, not a run: {shown}"


def title_of(path: Path) -> str:
    """Return the title of a trace's format, recognized in the first MiB; "" for a file that is no trace."""
    try:
        with untrusted.opened(path, content.MAX_BYTES) as stream:
            head = untrusted.unpacked(stream, os.fstat(stream.fileno()).st_size, content.MAX_BYTES).peek()
    except (OSError, Unreadable):
        return ""
    return next((known.title for known in READERS if all(mark in head for mark in known.marks)), "")


def parse(file: IO[bytes], name: str, size: int = 0) -> Trace:
    """Return the trace in a file of `size` bytes; its name may say the rank. Raises Unreadable, worded by read()."""
    stream = untrusted.unpacked(file, size, content.MAX_BYTES)
    head = stream.peek()
    readers: dict[str, Reader] = {known.elements: known(_rank_in(name)) for known in READERS}
    if not head:
        raise Unreadable("it is empty")
    if head[:1].isspace() or head[:1] in (b"{", b"[", b"\xef"):
        fields = content.read_json(stream, {elements: reader.add for elements, reader in readers.items()})
    else:
        fields = content.fields(content.read_pickle(stream))
        for entry in content.items(fields.get(FlightRecorderReader.elements)):
            readers[FlightRecorderReader.elements].add(entry)
    for elements, reader in readers.items():
        if isinstance(fields.get(elements), list) and _has_calls(reader, fields):
            return reader.trace(fields)
    if fields.get("format") == JOB:
        raise Unreadable("it is a recorded job already, which show, replay and predict read")
    raise Unreadable("it is not a trace of a known format: " + ", ".join(known.title for known in READERS))


def _has_calls(reader: Reader, fields: dict[Any, Any]) -> bool:
    """Return False of other files with nodes than an execution trace."""
    return not isinstance(reader, ExecutionTraceReader) or content.text(fields.get("schema"))[:2] == "1."


def _rank_in(name: str) -> int | None:
    """Return the rank that a file is named by: the last number before its suffixes, rank_3.json or trace-3.json.gz."""
    stem = re.sub(r"(\.(json|gz|pt|trace|kineto|fr|pkl|pickle))+$", "", name)
    match = re.search(r"(\d+)$", stem)
    return int(match[1]) if match and len(match[1]) < 7 else None
