"""What docs/replay.md says of two replays on GPUs, from the kept runs and the kept traces of torch's profiler."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from statistics import median

import pytest

from collbench.jobs.replay.results import replays_of
from collbench.jobs.replay.view import ratio, summarize
from collbench.runfile import run_file

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "benchmarks/results/2026-11-23-2xh200-replay"
DOCUMENT = " ".join((ROOT / "docs/replay.md").read_text(encoding="utf-8").split())


def kernels(name: str, rank: int) -> list[float]:
    """Return the ms of each kernel of NCCL in a kept trace, in the order of their launches."""
    with tarfile.open(KEPT / "raw.tar.gz") as files:
        file = files.extractfile(f"{name}-{rank}.kineto.json.gz")
        assert file is not None
        events = json.loads(gzip.decompress(file.read()))["traceEvents"]
    nccl = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"]]
    return [one["dur"] / 1e3 for one in sorted(nccl, key=lambda one: one["ts"])]


def job_ms(name: str, calls: int) -> float:
    """Return the communication of a step in the job: each call as long as on the rank that waited least."""
    least = [min(both) for both in zip(kernels(name, 0), kernels(name, 1), strict=True)]
    return median(sum(least[at : at + calls]) for at in range(0, len(least), calls))


@pytest.mark.parametrize(("name", "calls"), [("fsdp2", 24), ("ddp", 3)])
def test_a_replay_took_as_long_as_the_job(name: str, calls: int) -> None:
    (first, *_) = replays_of(run_file.load(KEPT / f"replay-{name}.json"))
    replayed, recorded = summarize(first).communication.value * 1e3, job_ms(name, calls)
    assert sum(call.count for call in first.calls) == calls
    assert f"took {replayed:.3f} ms in the replay and {recorded:.3f} ms in the job" in DOCUMENT


def test_without_p2p_the_replayed_calls_took_longer() -> None:
    first, without = replays_of(run_file.load(KEPT / "replay-ddp.json"))
    change = ratio(first, without)
    assert change is not None
    exposed = summarize(without).exposed.value * 1e3
    assert f"the replayed calls take {change.value:.2f} times as long, and {exposed:.1f} ms are exposed" in DOCUMENT
