"""A real FSDP2 job whose ranks take turns to wait: exposed communication beside a union of its kernels."""

from __future__ import annotations

import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from collbench.jobs import job_file, steps
from collbench.jobs.calls import matched, report
from collbench.jobs.job import Job
from collbench.jobs.page import remarks
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import read
from tests.jobs.made import covered

Spans = list[tuple[float, float]]
KEPT = Path(__file__).parents[2] / "benchmarks/results/2026-11-26-2xh100-jobs"
ONE_GPU = KEPT.parent / "2026-11-28-1gpu-two-hosts"
TRACES = sorted((Path(__file__).parents[1] / "data/two-h100-fsdp2").glob("trace-*.json.gz"))


def job_of_kept(path: Path) -> Job:
    return job_file.loads(gzip.decompress(path.read_bytes()).decode(), path.name)


@cache
def kernels_of(path: Path) -> tuple[Spans, Spans, list[list[int]]]:
    """Return when a trace computed, its NCCL kernels in the order of their launches, and which are of each step."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launched = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"].startswith("cuda_")}
    kernels = [event for event in events if event["cat"] == "kernel"]
    nccl = [kernel for kernel in kernels if kernel["name"].startswith("nccl")]
    computed = [
        (kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels if not kernel["name"].startswith("nccl")
    ]
    sent = sorted((launched[one["args"]["correlation"]], one["ts"], one["ts"] + one["dur"]) for one in nccl)
    steps = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith("ProfilerStep#"))
    own = [[at for at, (moment, *_) in enumerate(sent) if low <= moment < high] for low, high in steps]
    return computed, [(start, end) for _, start, end in sent], own


def exposed_of_steps(path: Path) -> list[float]:
    """Return the exposed ms of each step, from its first NCCL kernel to the next one's."""
    computed, sent, steps = kernels_of(path)
    firsts = [min(sent[at][0] for at in own) for own in steps]
    return [(covered(sent + computed, *pair) - covered(computed, *pair)) / 1e3 for pair in pairwise(firsts)]


def exposed_waiting_of_steps(path: Path, other: Path) -> list[float]:
    """Return the ms of each step in which a kernel waits for the other rank, and nothing that counts before it runs."""
    (computed, sent, steps), (_, theirs, _) = kernels_of(path), kernels_of(other)
    waits = []
    for own in steps[:-1]:
        total = 0.0
        for start, end, moving in ((*sent[at], theirs[at][1] - theirs[at][0]) for at in own):
            hides = [one for one in computed if one[0] < end and one[1] > start]
            hides += [one for one in sent if one[0] < start]
            until = max(start, end - moving)
            total += covered([*hides, (start, until)], start, end) - covered(hides, start, end)
        waits.append(total / 1e3)
    return waits


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of(read(TRACES))


@pytest.mark.parametrize("rank", [0, 1])
def test_exposed_communication_is_the_median_of_steps_that_differ(job: Job, rank: int) -> None:
    overview = report(job)
    assert overview is not None
    row = next(one for one in overview.gpu if one.rank == rank)
    every = exposed_of_steps(TRACES[rank])
    assert max(every[1:]) > 4 * min(every[1:])
    kept = [float(np.median(every[warm:])) for warm in (1, 2, 3)]
    assert min(kept) * 0.9 <= row.exposed * 1e3 <= max(kept) * 1.1
    parts = (row.compute, row.exposed, row.copies, row.idle)
    assert sum(part or 0.0 for part in parts) == pytest.approx(row.step)
    waits = exposed_waiting_of_steps(TRACES[rank], TRACES[1 - rank])
    usual = [float(np.median(waits[warm:])) for warm in (1, 2, 3)]
    assert row.exposed_waiting is not None
    assert min(usual) * 0.9 - 1e-3 <= row.exposed_waiting * 1e3 <= max(usual) * 1.1 + 1e-3
    assert 0 <= row.exposed_waiting <= row.exposed


def test_a_calls_exposed_time_is_waiting_and_transfer(job: Job) -> None:
    for rank in (0, 1):
        overview = report(job, rank)
        assert overview is not None
        for row in overview.rows:
            assert row.exposed is not None
            assert row.exposed_waiting is not None
            assert 0 <= row.exposed_waiting <= row.exposed
            if rank:  # it is the late one: nobody lets it wait
                assert row.exposed_waiting < 0.1 * row.exposed


@pytest.mark.parametrize(("name", "calls"), [("ddp", 4), ("fsdp2", 36)])
def test_a_given_length_cuts_two_ranks_at_the_same_call(name: str, calls: int) -> None:
    """Four micro-batches of FSDP2 look alike: it begins where a loss comes between steps, on both ranks."""
    marked, plain = (job_of_kept(ONE_GPU / f"{name}-{which}-job.json.gz") for which in ("marks", "plain"))
    named = steps.find(plain, calls)
    for marks, given in zip(marked.ranks, named.ranks, strict=True):
        assert marks.step is not None
        assert given.step is not None
        assert (given.before_step, given.step.repetitions) == (marks.before_step, marks.step.repetitions)
    assert {group.whole for group in matched(named)} == {True}


def test_a_page_calls_nothing_unknown_that_it_has() -> None:
    kept = KEPT / "fsdp2-marks-imported-job.json.gz"
    overview = report(job_of_kept(kept))
    assert overview is not None
    assert not [line for line in remarks(overview) if "kernel times" in line]
