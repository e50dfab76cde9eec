"""A job's trace in Perfetto's own trace_processor: every kernel on its rank's track, its parts in it, nothing lost."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collbench.jobs import perfetto
from collbench.jobs.traces.folding import job_of
from tests.browser import PATIENCE_S
from tests.cli.program import Program
from tests.jobs.test_kineto import call, event, steps, trace_of
from tests.jobs.trace_processor import TraceProcessor, trace_processor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(PATIENCE_S)
RESULTS = Path(__file__).parents[2] / "benchmarks/results"
# Kernels are slices that are in none. Those that have parts: how long both, and the transfer alone.
KERNELS = """(select slice.*, process.name as rank, thread.name as thread from slice
    join thread_track as track on track.id = slice.track_id join thread using (utid) join process using (upid)
    where depth = 0) as kernel"""
DIVIDED = KERNELS + " join slice as part on part.parent_id = kernel.id group by kernel.id order by kernel.ts"
PARTS = "group_concat(part.name order by part.ts)"
TRANSFER = "sum(iif(part.name = 'transfer', part.dur, 0))"
LOST = "stats where severity != 'info' and value > 0"


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[TraceProcessor]:
    with trace_processor(browser) as opened:
        yield opened


def kernels(job: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield each kernel in a job's file: its rank's name, operation, start and length, ns."""
    for rank in job["ranks"]:
        name = f"rank {rank['rank']} {rank['host']}".strip()
        for phase in rank["phases"]:
            operations = [job["calls"][position["call"]]["operation"] for position in phase["positions"]]
            for sample in phase["samples"]:
                starts = sample.get("gpu_starts") or sample["starts"]
                for operation, start, length in zip(operations, starts, sample["gpu"], strict=True):
                    if length > 0:
                        yield name, operation, round(1000 * start), round(1000 * length)


@pytest.mark.parametrize(
    ("name", "thread", "divided"),
    [
        ("2026-11-26-2xh100-jobs/ddp-marks-job.json.gz", "GPU: all 2", 324),
        ("2026-11-28-1gpu-two-hosts/ddp-plain-imported-job.json.gz", "GPU: default_pg", 246),
        ("2026-11-23-2xh200-recorded-jobs/calls-gpu-job.json.gz", "calls: all 2", 50),
    ],
)
def test_a_recorded_job_is_in_it_to_the_nanosecond(
    engine: TraceProcessor, program: Program, name: str, thread: str, divided: int
) -> None:
    text = gzip.decompress((RESULTS / name).read_bytes()).decode()
    Path("job.json").write_text(text, encoding="utf-8")
    assert program("export", "job.json", "--format", "perfetto", "-o", "trace.json").status == 0
    engine.open(Path("trace.json").read_text(encoding="utf-8"))
    assert engine.rows(LOST, "name", "value") == []
    shown = engine.rows(KERNELS, "rank", "substr(name, 1, instr(name, ' ') - 1)", "ts", "dur")
    assert Counter(map(tuple, shown)) == Counter(kernels(json.loads(text)))
    assert engine.rows(KERNELS, "distinct thread") == [[thread]]
    assert engine.rows("slice", "max(depth)") == [[1]]
    # A call moves as long on every rank, and one rank does not wait.
    rows = engine.rows(DIVIDED, "rank", "kernel.dur", PARTS, "sum(part.dur)", TRANSFER)
    assert len(rows) == divided
    assert [row for row in rows if row[1] != row[3] or row[2] not in {"transfer", "waiting,transfer"}] == []
    first, second = sorted({row[0] for row in rows})
    pairs = zip(*([row for row in rows if row[0] == rank] for rank in (first, second)), strict=True)
    assert all(one[4] == other[4] == min(one[1], other[1]) for one, other in pairs)


def test_made_jobs_are_in_it_as_they_were_made(engine: TraceProcessor) -> None:
    """The second rank begins 7 µs early and waits for the first; six kernels of 40 µs begin every 35 µs."""
    engine.open(perfetto.as_json(job_of([steps(), steps(7.0, rank=1)])))
    first, second = ["rank 0", "transfer", 30_000, 30_000], ["rank 1", "waiting,transfer", 37_000, 30_000]
    assert sorted(engine.rows(DIVIDED, "rank", PARTS, "kernel.dur", TRANSFER)) == [first] * 6 + [second] * 6
    events = [one for n in range(6) for one in call(n + 1, 10.0 * n, 100.0 + 35 * n, 40.0)]
    engine.open(perfetto.as_json(job_of([trace_of([*events, event("gemm", 0.0, 9.0)])])))
    assert engine.rows(LOST, "name", "value") == []
    assert engine.rows("slice group by track_id", "count(*)", "sum(dur)") == [[3, 120_000]] * 2
    # What the engine would drop, it counts.
    slices = [{"ph": "X", "name": "crossing", "ts": start, "dur": 3, "pid": 0, "tid": 1} for start in (1, 2)]
    engine.open(json.dumps({"traceEvents": slices}))
    assert engine.rows(LOST, "name", "value") == [["slice_drop_overlapping_complete_event", 1]]
