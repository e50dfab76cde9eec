"""Record a job: run it with the NCCL profiler plugin, and merge what its processes left into one file."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api.notices import SILENT, Notices
from collbench.launch import recording
from collbench.model.errors import MachineError, RunFileError, UsageError
from collbench.model.job import Ending, Job
from collbench.model.printable import one_line
from collbench.runfile import atomic_write, job_file

if TYPE_CHECKING:
    from collbench.runfile.recorded import Merged

_NOTE = re.compile(r"\.failed-(\d+)$")
_DOING = "save the job"
# Why calls have no GPU time, by the word of streams.Lack.
_NO_TIME = {
    "missing": "NCCL reported no end of them",
    "implausible": "the times that NCCL reported are impossible",
    "self": "NCCL reports wrong times after a send from a rank to itself",
    "captured": "they are in a CUDA graph, which launches them later",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a job ended, and what was recorded of it: None if nothing was, and `why` says so."""

    status: int
    job: Job | None
    why: str = ""


def record(
    command: Sequence[str],
    output: Path | None,
    *,
    streams: Path | None = None,
    gpu_times: bool = False,
    force: bool = False,
    notices: Notices = SILENT,
) -> Recorded:
    """Run `command` and save what its ranks sent to `output`; what was wrong with the record alone is in `why`.

    With `streams` the ranks write into that folder, which is kept: several hosts share one, and None as `output` only
    leaves the streams there. With `gpu_times` NCCL (2.27 or newer) also says how long each call ran on the
    GPU. Raises UsageError, MachineError and RunFileError before the job is started.
    """
    recording.check(command)
    if output is not None:
        atomic_write.check(output, _DOING, "--output", force=force)
    try:
        if streams is not None:
            streams.mkdir(parents=True, exist_ok=True)
        folder = streams.resolve() if streams is not None else Path(tempfile.mkdtemp(prefix="collbench-record-"))
    except OSError as error:
        raise UsageError(f"cannot keep streams: {error}", "name another folder with --streams DIR") from error
    saved = False
    try:
        variables = recording.environment(os.environ, recording.plugin(), folder, gpu_times=gpu_times)
        status = recording.run(command, variables)
        if output is None:
            saved = True
            return Recorded(status, None)
        try:
            job = merge(folder, output, command, force=force, notices=notices)
        except (MachineError, RunFileError, OSError) as error:
            saved = not any(folder.glob("*.stream"))
            kept = "" if saved else f"; what was recorded is in {folder}: collbench record --streams {folder} -o FILE"
            return Recorded(status, None, f"{error}{kept}")
        saved = True
        return Recorded(status, job)
    finally:
        if streams is None and (saved or not any(folder.glob("*.stream"))):
            shutil.rmtree(folder, ignore_errors=True)


def merge(
    folder: Path, output: Path, command: Sequence[str] = (), *, force: bool = False, notices: Notices = SILENT
) -> Job:
    """Merge a folder's streams and save them as a job. Raises MachineError if there is none, and RunFileError."""
    from collbench.runfile import recorded  # late: numpy
    from collbench.runfile.streams import StreamError, parse

    parsed_streams = []
    for path in sorted(folder.glob("*.stream")):
        try:
            parsed_streams.append(parse(path.read_bytes()))
        except StreamError as error:
            notices.say(f"the stream {one_line(str(path))} is left out: {error}")
        except OSError as error:
            raise RunFileError(f"cannot read {path}: {error.strerror}") from error
    _say_failures(folder, notices)
    try:
        merged = recorded.merge(parsed_streams, command)
    except ValueError:
        raise MachineError(_nothing(len(parsed_streams))) from None
    for finding in _findings(merged):
        notices.say(finding)
    job_file.save(merged.job, output, force=force)
    return merged.job


def _findings(merged: Merged) -> Iterator[str]:
    """Yield a notice for each thing that an incomplete recording lacks."""
    if merged.others:
        yield f"{merged.others} other stream(s) are of other jobs of this command: only the job that sent most is kept"
    if merged.missing:
        shown = ", ".join(map(str, merged.missing[:8])) + (", …" if len(merged.missing) > 8 else "")
        yield f"{len(merged.missing)} of {merged.job.world_size} ranks left no stream: {shown}"
    cut = [rank.rank for rank in merged.job.ranks if rank.ending is Ending.CUT_OFF]
    if cut:
        yield f"{len(cut)} of {len(merged.job.ranks)} ranks were killed: their calls are recorded until then"
    dropped = sum(rank.dropped for rank in merged.job.ranks)
    if dropped:
        yield f"{dropped} calls are missing: a rank's recorder memory was full, or a call is of an unknown kind"
    if merged.too_old:
        nccl = " ".join(["this NCCL", *[f"({merged.job.nccl})"] * bool(merged.job.nccl)])
        yield f"no GPU times: {nccl} does not give them to a plugin, 2.27 or newer does: {recording.INSTEAD}"
    if merged.lacks:
        reasons = "; ".join(
            f"{merged.lacks[why]:,}: {explanation}" for why, explanation in _NO_TIME.items() if why in merged.lacks
        )
        yield f"{sum(merged.lacks.values()):,} of NCCL's calls have no GPU time ({reasons})"


def _say_failures(folder: Path, notices: Notices) -> None:
    """Say why processes could write no stream: they left notes whose names say it."""
    errors = {int(match[1]) for path in folder.iterdir() if (match := _NOTE.search(path.name))}
    for number in sorted(errors):
        notices.say(
            f"a process could not write its stream: {os.strerror(number)}; name another folder with --streams DIR"
        )


def _nothing(streams: int) -> str:
    if streams:
        return "nothing was recorded: NCCL loaded the plugin, but no rank sent data to another rank"
    return (
        "nothing was recorded: no NCCL loaded the plugin. The job created no communicator of two ranks, or its NCCL is "
        f"older than 2.23 or cannot load libraries: {recording.INSTEAD}"
    )
