"""The formats of traces: how each is recognised by what a file holds, and read."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench import untrusted
from collbench.jobs.job import Source
from collbench.jobs.job_file import is_job
from collbench.jobs.traces.inspector import is_inspector, read_inspector
from collbench.jobs.traces.torch_traces import (
    is_execution_trace,
    is_flight_recorder,
    is_kineto,
    read_execution_trace,
    read_flight_recorder,
    read_kineto,
)
from collbench.jobs.traces.trace import Trace
from collbench.jobs.traces.values import Content, Unreadable
from collbench.model.errors import RunFileError
from collbench.model.printable import one_line


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `recognizes` says whether a file has it, `traces` reads it, `lost` says why calls may be missing."""

    title: str
    recognizes: Callable[[Content], bool]
    traces: Callable[[Content], list[Trace]]
    lost: str = "the trace does not contain them"


# In the order in which a file is asked: lines of JSON before one JSON.
FORMATS = {
    Source.INSPECTOR: Format(
        "JSON lines of NCCL Inspector",
        is_inspector,
        read_inspector,
        "they were shorter than NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, or the plugin's ring had no room for them",
    ),
    Source.KINETO: Format("a trace of torch.profiler", is_kineto, read_kineto),
    Source.FLIGHT_RECORDER: Format(
        "a dump of torch's Flight Recorder",
        is_flight_recorder,
        read_flight_recorder,
        "the Flight Recorder's ring had no room for them (TORCH_FR_BUFFER_SIZE)",
    ),
    Source.EXECUTION_TRACE: Format(
        "an execution trace of torch's ExecutionTraceObserver", is_execution_trace, read_execution_trace
    ),
}


_MOST_BYTES = 2**30  # of a rank's trace, decompressed
# gzip makes a trace 10 to 30 times smaller, and zeros 1,000 times.
_MOST_COMPRESSED, _FEWEST_BYTES = 100, 2**26


def read(paths: Sequence[Path], forced: Source | None = None) -> list[Trace]:
    """Read the traces of a job's ranks, of the kind that is forced or that each file holds. Raises RunFileError."""
    return [trace for path in paths for trace in _read(path, forced)]


def _read(path: Path, forced: Source | None) -> list[Trace]:
    try:
        data = untrusted.read(path, _MOST_BYTES)
    except OSError as error:
        raise RunFileError(f"cannot read trace {one_line(str(path))}: {error.strerror}") from error
    try:
        return parse(data, path.name, forced)
    except Unreadable as error:
        raise RunFileError(f"trace {one_line(str(path))}: {error}") from error


def parse(data: bytes, name: str, forced: Source | None = None) -> list[Trace]:
    """Return the traces in a file's bytes; its name may hold the rank. Raises Unreadable, which read() words."""
    if data[:2] == b"\x1f\x8b":
        try:
            most = min(_MOST_BYTES, max(_FEWEST_BYTES, _MOST_COMPRESSED * len(data)))
            data = untrusted.bounded(gzip.GzipFile(fileobj=io.BytesIO(data)).read, most)
        except (OSError, EOFError, zlib.error) as error:
            why = error.strerror if isinstance(error, untrusted.Refused) else error
            raise Unreadable(f"it cannot be decompressed: {why}") from error
    if not data:
        raise Unreadable("it is empty")
    content = Content(data, _rank_in(name))
    candidates = FORMATS if forced is None else {forced: FORMATS[forced]}
    for format_ in candidates.values():
        if format_.recognizes(content):
            return format_.traces(content)
    if forced is not None:
        raise Unreadable(f"it is not {FORMATS[forced].title}")
    content.check()
    if is_job(content.fields):
        raise Unreadable("it is a recorded job already: show, replay and predict read it directly")
    raise Unreadable("it is not a trace of a known format: " + ", ".join(one.title for one in FORMATS.values()))


def _rank_in(name: str) -> int | None:
    """Return the rank that a file is named by: the last number before its endings, rank_3.json or trace-3.json.gz."""
    stem = re.sub(r"(\.(json|gz|pt|trace|kineto|fr|pkl|pickle))+$", "", name)
    match = re.search(r"(\d+)$", stem)
    return int(match[1]) if match and len(match[1]) < 7 else None
