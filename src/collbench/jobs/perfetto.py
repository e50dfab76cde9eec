"""A recorded job as a trace for Perfetto: each rank's kernels of communication, waiting and transfer told apart.

Chrome's JSON: complete events, µs, nested by their times on a thread [Trace Event Format]. A rank is a process, and a
group has a thread in it, and more where its kernels overlap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from collbench.jobs.calls import shown_phase, transfers
from collbench.jobs.job import Job, Phase, PointToPoint, Sample
from collbench.jobs.page import group_text, size_text
from collbench.model.errors import UsageError

_NANO = 1000  # ns in a µs: whole ones, so that parts end where the whole does
_LANES = 64  # threads of a group: more kernels do not overlap


def as_json(job: Job) -> str:
    """Return the trace. Raises UsageError for a job without kernel times."""
    moving = _transfers(job)
    events: list[dict[str, Any]] = []
    for rank in job.ranks:
        events.append(_named("process_name", rank.rank, 0, f"rank {rank.rank} {rank.host}".strip()))
        lanes: dict[int, list[int]] = defaultdict(list)  # of each group, until when each thread is busy
        for start, length, call_number, transfer, on_gpu in sorted(_kernels(rank.phases, moving.get(rank.rank, {}))):
            call = job.calls[call_number]
            busy = lanes[call.group]
            lane = next((at for at, until in enumerate(busy) if until <= start), len(busy))
            if lane == len(busy) < _LANES:
                busy.append(0)
                name = f"{'GPU' if on_gpu else 'calls'}: {job.groups[call.group].name or group_text(job, call)}"
                events.append(_named("thread_name", rank.rank, call.group * _LANES + lane + 1, name))
            elif lane == len(busy):
                continue
            busy[lane] = start + length
            where = {"ph": "X", "pid": rank.rank, "tid": call.group * _LANES + lane + 1, "cat": "collective"}
            size = size_text(job, call)
            about = {
                "bytes": call.size_bytes if size != "?" else None,
                "dtype": call.dtype,
                "group": group_text(job, call),
            }
            events.append({**where, "name": f"{call.operation} {size}", **_moment(start, length), "args": about})
            if transfer is not None and call.operation not in set(PointToPoint):
                moments = (start, start + max(0, length - transfer), start + length)
                for name, (begins, ends) in zip(("waiting", "transfer"), pairwise(moments), strict=True):
                    if ends > begins:
                        events.append({**where, "name": name, **_moment(begins, ends - begins)})
    if not any(event["ph"] == "X" for event in events):
        raise UsageError("the job has no kernel times: record it with --gpu-times, or import torch.profiler's traces")
    about_job = {"source": str(job.source), "started": job.started, "command": " ".join(job.command)}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about_job}, allow_nan=False) + "\n"


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _moment(start: int, length: int) -> dict[str, float]:
    return {"ts": start / _NANO, "dur": length / _NANO}


def _kernels(
    phases: tuple[Phase, ...], moving: dict[tuple[int, int], int]
) -> Iterator[tuple[int, int, int, int | None, bool]]:
    """Yield each kernel of the samples: when it began, how long it ran, its call, its transfer; times in whole ns.

    The last is True if the moment is the kernel's, and False if it is the host's call.
    """
    for phase in phases:
        for sample in phase.samples:
            for position, kernel in zip(phase.positions, _moments(sample), strict=False):
                if kernel[1] > 0:
                    yield *kernel, position.call, moving.get(kernel), bool(sample.gpu_starts)


def _moments(sample: Sample) -> list[tuple[int, int]]:
    """Return when each kernel of a sample began, and how long it ran, whole ns."""
    starts = sample.gpu_starts or sample.starts
    return [(round(start * _NANO), round(length * _NANO)) for start, length in zip(starts, sample.gpu, strict=False)]


def _transfers(job: Job) -> dict[int, dict[tuple[int, int], int]]:
    """Return, for each rank, the transfer of each kernel of samples that all ranks of its group kept, whole ns."""
    phases = {rank.rank: phase for rank in job.ranks if (phase := shown_phase(rank)) is not None}
    found: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for (rank, repetition), moving in transfers(job).items():
        sample = next(sample for sample in phases[rank].samples if sample.repetition == repetition)
        kernels = zip(_moments(sample), moving.tolist(), strict=False)
        found[rank] |= {kernel: round(least * _NANO) for kernel, least in kernels if least > 0}
    return found
