"""A recorded job as a file: JSON with a version, read with every field checked; what other commands do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collbench.api.runs import MAX_BYTES, load_named
from collbench.jobs.job import JOB, Call, Group, Job, JobRank, Phase
from collbench.model.errors import UsageError
from collbench.model.values import one_line
from collbench.runfile import atomic_write, codec

_FORMAT = codec.FileFormat(JOB, 1, "job", again="record or import the job again", most_bytes=MAX_BYTES)


def dumps(job: Job) -> str:
    """Return the file's text: one line, because most of it is numbers."""
    fields = {**_FORMAT.head, **codec.plain(job)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def save(job: Job, path: Path, *, force: bool = False) -> None:
    """Write the file whole or not at all. Raises RunFileError, Taken if another file stands there."""
    atomic_write.write(dumps(job), path, "save the job", force=force)


def load(path: Path) -> Job:
    """Read a file. Raises RunFileError, which says what is wrong and where."""
    return loads(_FORMAT.read(path), str(path))


def loads(text: str, name: str) -> Job:
    """Return the job in a file's text. Raises RunFileError."""
    return _FORMAT.loads(text, name, _built)


def _built(fields: dict[str, Any]) -> Job:
    job: Job = codec.build(Job, fields, "job")
    _check(job)
    if "steps" not in fields:
        from collbench.jobs import steps  # late: numpy

        job = steps.find(job)
    return job


def _check(job: Job) -> None:
    """Raise ValueError for what no job can have: a call without a group, a group with ranks that do not exist."""
    for number, group in enumerate(job.groups):
        wrong = [rank for rank in group.ranks if not 0 <= rank < job.world_size]
        if wrong or len(set(group.ranks)) != len(group.ranks) or len(group.ranks) not in {0, group.size}:
            raise ValueError(f"job.groups[{number}] has ranks {group.ranks} and size {group.size}")
    for number, call in enumerate(job.calls):
        _check_call(call, job.groups, f"job.calls[{number}]")
    seen = [rank.rank for rank in job.ranks]
    if len(set(seen)) != len(seen) or any(not 0 <= number < job.world_size for number in seen):
        raise ValueError(f"job.ranks are {seen}, of {job.world_size}")
    for rank in job.ranks:
        for phase in (*rank.phases, *([rank.step] if rank.step else [])):
            _check_phase(phase, len(job.calls), f"rank {rank.rank}")
        _check_order(rank)


def _check_call(call: Call, groups: tuple[Group, ...], where: str) -> None:
    try:
        _ = call.collective
    except ValueError:
        raise ValueError(f"{where}.operation is '{call.operation}', which is not a collective") from None
    if not 0 <= call.group < len(groups):
        raise ValueError(f"{where} is of group {call.group}, of {len(groups)}")
    for end, number in (("root", call.root), ("peer", call.peer)):
        if number is not None and not 0 <= number < groups[call.group].size:
            raise ValueError(f"{where}.{end} is {number}, of {groups[call.group].size} ranks")


def _check_order(rank: JobRank) -> None:
    """Raise ValueError where the order repeats phases more or less often than they say."""
    if rank.order:
        repeated = [0] * len(rank.phases)
        for phase, repetitions in rank.order:
            if not 0 <= phase < len(repeated) or repetitions < 1:
                raise ValueError(f"rank {rank.rank} has phase {phase}, {repetitions} times, in its order")
            repeated[phase] += repetitions
        if repeated != [phase.repetitions for phase in rank.phases]:
            raise ValueError(f"rank {rank.rank} repeats its phases otherwise than its order says")


def _check_phase(phase: Phase, calls: int, where: str) -> None:
    if not phase.positions:
        raise ValueError(f"{where} has a phase without calls")
    if any(not 0 <= position.call < calls for position in phase.positions):
        raise ValueError(f"{where} sends a call that the job's table lacks")
    for sample in phase.samples:
        per_call = (sample.starts, sample.gpu, sample.gpu_starts, sample.exposed, sample.exposed_waiting)
        if (
            any(times and len(times) != len(phase.positions) for times in per_call)
            or not 0 <= sample.repetition < phase.repetitions
        ):
            raise ValueError(f"{where} has a sample of another length than its phase")


# What other commands do with such a file: api/runs.py finds this module by the file's format.

NAME, CALL, OPTIONS = "a recorded job", "collbench.load_job({!r})", ("rank", "against")


def show(file: Path, rank: int | None, against: tuple[Path, ...]) -> None:
    """Print what a recorded job's step says."""
    from collbench.cli.terminal import show_answer  # late, as all below: Python calls load a job, too
    from collbench.jobs import api as jobs
    from collbench.jobs import page as pages

    report = jobs.report(load(file), rank, load_named(against), one_line(str(file)))
    show_answer(pages.page(report), lambda: codec.document("job-report", pages.as_json(report)))


def export(file: Path, output_format: str) -> str:
    """Return a recorded job for another tool. Raises UsageError."""
    from collbench.jobs import perfetto

    if output_format != "perfetto":
        raise UsageError(f"{one_line(str(file))} is a recorded job: export it with --format perfetto")
    return perfetto.as_json(load(file))
