"""A real FSDP2 job whose ranks take turns to wait: exposed communication beside a union of kernels written here."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from collbench.jobs.calls import report
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse

TRACES = sorted((Path(__file__).parents[1] / "data/two-h100-fsdp2").glob("trace-*.json.gz"))


def length(spans: list[tuple[float, float]], low: float, high: float) -> float:
    """Return how much of the time between two moments the spans cover, µs."""
    covered, until = 0.0, low
    for start, end in sorted(spans):
        covered += max(0.0, min(end, high) - max(start, until))
        until = max(until, min(end, high))
    return covered


def exposed_of_steps(path: Path) -> list[float]:
    """Return the exposed ms of each step, from its first NCCL kernel to the next one's."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launched = {one["args"]["correlation"]: one["ts"] for one in events if one["cat"].startswith("cuda_")}
    kernels = [one for one in events if one["cat"] == "kernel"]
    nccl = [one for one in kernels if one["name"].startswith("nccl")]
    sent = [(one["ts"], one["ts"] + one["dur"]) for one in nccl]
    computed = [(one["ts"], one["ts"] + one["dur"]) for one in kernels if one not in nccl]
    steps = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith("ProfilerStep#"))
    firsts = [
        min(one["ts"] for one in nccl if low <= launched[one["args"]["correlation"]] < high) for low, high in steps
    ]
    pairs = pairwise(firsts)
    return [(length(sent + computed, *pair) - length(computed, *pair)) / 1e3 for pair in pairs]


@pytest.mark.parametrize("rank", [0, 1])
def test_exposed_communication_is_the_median_of_steps_that_differ(rank: int) -> None:
    traces = []
    for path in TRACES:
        with path.open("rb") as file:
            traces += parse(file, path.name, size=path.stat().st_size)
    job = job_of(traces)
    overview = report(job)
    assert overview is not None
    row = next(one for one in overview.gpu if one.rank == rank)
    every = exposed_of_steps(TRACES[rank])
    assert max(every[1:]) > 4 * min(every[1:])
    kept = [float(np.median(every[warm:])) for warm in (1, 2, 3)]
    assert min(kept) * 0.9 <= row.exposed * 1e3 <= max(kept) * 1.1
    parts = (row.compute, row.exposed, row.copies, row.idle)
    assert sum(part or 0.0 for part in parts) == pytest.approx(row.step)
