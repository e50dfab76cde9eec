"""Import a job that another tool traced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collbench.api.notices import SILENT, Notices
from collbench.model.errors import UsageError
from collbench.model.job import Job, Source
from collbench.runfile import atomic_write, job_file


def import_job(
    files: Sequence[Path],
    output: Path,
    *,
    kind: Source | None = None,
    force: bool = False,
    notices: Notices = SILENT,
) -> Job:
    """Save the traces of a job's ranks, one file each, as one job. Raises UsageError and RunFileError.

    They are of one of the formats in runfile/traces, also gzipped: of `kind`, or by default of what they hold.
    """
    from collbench.runfile.traces import folding, formats  # late: numpy

    if not files:
        raise UsageError("no trace to import: name one file for each rank")
    atomic_write.check(output, "save the job", "--output", force=force)
    read = formats.read(files, kind)
    job = folding.job_of(read)
    skipped = sum(trace.skipped for trace in read)
    if skipped:
        notices.say(f"{skipped} rows were left out: their operation, type or size is none that collbench knows")
    lost = sum(trace.lost for trace in read)
    if lost:
        notices.say(f"{lost} calls are missing: {formats.FORMATS[job.source].lost}")
    called = [trace for trace in read if trace.calls]
    if any(trace.own for trace in called) and folding.own_numbers(called) is None:
        notices.say(
            "no communicator has all ranks, so ranks are numbered in file order: check that all files are of one job"
        )
    missing = job.world_size - len(job.ranks)
    if missing:
        notices.say(f"{missing} of {job.world_size} ranks have no trace with a call: name the files of all ranks")
    job_file.save(job, output, force=force)
    return job
