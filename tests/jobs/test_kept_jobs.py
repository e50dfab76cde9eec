"""The page of each kept job says what its calls say, by a computation that shares no code with the page."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from collbench.jobs import api, job_file, page
from tests.jobs.made import covered

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
IS_JOB = b'"format":"collbench-job"'


def files() -> Iterator[tuple[str, bytes]]:
    """Yield every kept file that may be a job, also from archives: its name, and its content."""
    for path in sorted([*RESULTS.rglob("*.json*"), *ROOT.glob("tests/data/traces/*-job.json")]):
        yield f"{path.parent.name}/{path.name}", path.read_bytes()
    for path in sorted([*RESULTS.rglob("*.tar.gz"), *RESULTS.rglob("*.tgz")]):
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None and ".json" in member.name:
                    yield f"{path.parent.name}/{path.name}/{member.name}", content.read()


@cache  # late: each process of a test run collects this file
def kept_jobs() -> dict[str, str]:
    """Return the text of every kept job by its name."""
    contents = ((name, gzip.decompress(data) if name.endswith(".gz") else data) for name, data in files())
    return {name: data.decode() for name, data in contents if IS_JOB in data[:100].replace(b" ", b"")}


def test_every_kept_job_has_the_figures_of_its_calls() -> None:
    assert len(kept_jobs()) >= 47
    for name, text in kept_jobs().items():
        job = job_file.loads(text, name)
        shown = page.as_json(api.report(job))
        assert_figures(raw := json.loads(text), job.steps.source is not None, shown)
        assert_rows(raw, shown)


def steps_of(phase: dict[str, Any], keep: set[int]) -> list[float]:
    """Return the µs of each kept repetition, from its own beginning to that of the next kept one, by how many apart."""
    samples = {sample["repetition"]: sample for sample in phase["samples"]}
    clock = "gpu_starts" if all(sample.get("gpu_starts") for sample in phase["samples"]) else "starts"
    begins = sorted((number, samples[number][clock][0]) for number in samples if number in keep)
    return [(late - early) / (after - before) for (before, early), (after, late) in pairwise(begins)]


def assert_figures(raw: dict[str, Any], has_steps: bool, shown: dict[str, Any]) -> None:
    """Assert that figures are those of the calls."""
    for row in shown["ranks"]:
        step, kernels, waiting = (row[f"{name}_seconds"] for name in ("step", "kernels", "waiting"))
        assert waiting is None or kernels is None or 0 <= waiting <= kernels
        assert kernels is None or step is None or kernels <= step
    for call in shown["calls"]:
        assert call["transfer_seconds"] is None or call["transfer_seconds"] <= call["kernel_seconds"]
    if not has_steps:
        assert all(row["step_seconds"] is None for row in shown["ranks"])
        return
    for rank, row in zip(raw["ranks"], shown["ranks"], strict=True):
        phase = max(rank["phases"], key=lambda one: len(one["samples"]) * len(one["positions"]))
        if len(phase["positions"]) % row["calls"]:
            continue  # the recorder's repetition is another part of the job than the step
        times = len(phase["positions"]) // row["calls"]
        numbers = sorted(sample["repetition"] for sample in phase["samples"])
        keep = set(numbers[3:] if len(numbers) >= 12 else [one for one in numbers if one > 0])
        steps = [one / times for one in steps_of(phase, keep)]
        if steps:
            assert row["step_seconds"] * 1e6 == pytest.approx(median(steps), rel=0.15)
        # The last one has no end, so it is in no figure.
        timed = [one for one in phase["samples"] if one.get("gpu") and one["repetition"] in keep - {numbers[-1]}]
        if not timed or not all(all(one["gpu"]) for one in timed):
            assert row["kernels_seconds"] is None
            continue
        if all(one.get("gpu_starts") for one in timed):
            busy = [
                covered([(a, a + b) for a, b in zip(one["gpu_starts"], one["gpu"], strict=True)]) / times
                for one in timed
            ]
            assert row["kernels_seconds"] * 1e6 == pytest.approx(median(busy), rel=0.15)


def assert_rows(raw: dict[str, Any], shown: dict[str, Any]) -> None:
    """Assert that rows add up to the step, and that waiting names the late rank, by the file's own step.

    That is by medians of the sums of its kernels, and of the shortest ones.
    """
    steps = [rank.get("step") for rank in raw["ranks"]]
    if not all(steps):
        return
    kept = [{one["repetition"]: one["gpu"] for one in step["samples"] if one["step"] > 0} for step in steps]
    common = sorted(set.intersection(*map(set, kept)) - {0})
    if not all(own[number] and all(own[number]) for own in kept for number in common):
        return
    least = [[min(times) for times in zip(*(own[number] for own in kept), strict=True)] for number in common]
    for field, times in (("kernel_seconds", [kept[0][number] for number in common]), ("transfer_seconds", least)):
        whole = median(map(sum, times))
        assert sum(call["count"] * call[field] for call in shown["calls"]) * 1e6 == pytest.approx(whole, rel=0.07)
    waits = [median(sum(own[number]) - sum(low) for number, low in zip(common, least, strict=True)) for own in kept]
    for rank in shown["late"]:
        often = rank["last_share"]  # of the calls; in the others this rank waits, too
        assert waits[rank["rank"]] <= max(1.0, max(0.06, (1 - often) / often) * max(waits))
        assert rank["waits_seconds_per_step"] * 1e6 == pytest.approx(max(waits), rel=0.02)
