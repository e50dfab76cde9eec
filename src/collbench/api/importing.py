"""Import a job that another tool traced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collbench.api.notices import SILENT, Notices
from collbench.model.errors import UsageError
from collbench.model.job import Job
from collbench.runfile import atomic_write, job_file


def import_job(files: Sequence[Path], output: Path, *, force: bool = False, notices: Notices = SILENT) -> Job:
    """Save the traces of a job's ranks, one file each, as one job. Raises UsageError and RunFileError.

    They are traces of torch.profiler (JSON, also gzipped) or dumps of torch's Flight Recorder (pickle or JSON).
    """
    from collbench.runfile import traces  # late: numpy

    if not files:
        raise UsageError("no trace to import: name one file for each rank")
    atomic_write.check(output, "save the job", "--output", force=force)
    read = [traces.read(path) for path in files]
    job = traces.job_of(read)
    skipped = sum(trace.skipped for trace in read)
    if skipped:
        notices.say(f"{skipped} rows were left out: their operation, type or size is none that collbench knows")
    lost = sum(trace.lost for trace in read)
    if lost:
        notices.say(f"{lost} calls are missing: the Flight Recorder's ring had no room for them (TORCH_FR_BUFFER_SIZE)")
    missing = job.world_size - len(job.ranks)
    if missing:
        notices.say(f"{missing} of {job.world_size} ranks have no trace with a call here: name the files of all ranks")
    job_file.save(job, output, force=force)
    return job
