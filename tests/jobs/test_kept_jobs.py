"""What the page says of each kept job is what its own calls say, by a computation that shares nothing with the page."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from collbench.jobs import api, job_file, page
from tests.jobs.made import covered

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("benchmarks/results/*/*job*.json*"), *ROOT.glob("tests/data/traces/*-job.json")])


def read(path: Path) -> tuple[str, dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return text, json.loads(text)


KEPT = [path for path in FILES if read(path)[1].get("format") == "collbench-job" and "format_version" in read(path)[1]]


def test_there_are_kept_jobs() -> None:
    assert len(KEPT) >= 8


def steps_of(phase: dict[str, Any], keep: set[int]) -> list[float]:
    """Return the µs of each kept repetition, from its own beginning to that of the next kept one, by how many apart."""
    samples = {sample["repetition"]: sample for sample in phase["samples"]}
    clock = "gpu_starts" if all(sample.get("gpu_starts") for sample in phase["samples"]) else "starts"
    begins = sorted((number, samples[number][clock][0]) for number in samples if number in keep)
    return [(late - early) / (after - before) for (before, early), (after, late) in pairwise(begins)]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_figures_are_those_of_the_calls(path: Path) -> None:
    text, raw = read(path)
    job = job_file.loads(text, path.name)
    shown = page.as_json(api.report(job))
    for row in shown["ranks"]:
        step, kernels, waiting = (row[f"{name}_seconds"] for name in ("step", "kernels", "waiting"))
        assert waiting is None or kernels is None or 0 <= waiting <= kernels
        assert kernels is None or step is None or kernels <= step
    for call in shown["calls"]:
        assert call["transfer_seconds"] is None or call["transfer_seconds"] <= call["kernel_seconds"]
    if job.steps.source is None:
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


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_rows_add_up_to_the_step_and_waiting_names_the_late_rank(path: Path) -> None:
    """From the file's own step: medians of the sums of its kernels, and of the shortest ones."""
    text, raw = read(path)
    steps = [rank.get("step") for rank in raw["ranks"]]
    if not all(steps):
        return
    kept = [{one["repetition"]: one["gpu"] for one in step["samples"] if one["step"] > 0} for step in steps]
    common = sorted(set.intersection(*map(set, kept)) - {0})
    if not all(own[number] and all(own[number]) for own in kept for number in common):
        return
    shown = page.as_json(api.report(job_file.loads(text, path.name)))
    least = [[min(times) for times in zip(*(own[number] for own in kept), strict=True)] for number in common]
    for field, times in (("kernel_seconds", [kept[0][number] for number in common]), ("transfer_seconds", least)):
        whole = median(map(sum, times))
        assert sum(call["count"] * call[field] for call in shown["calls"]) * 1e6 == pytest.approx(whole, rel=0.02)
    waits = [median(sum(own[number]) - sum(low) for number, low in zip(common, least, strict=True)) for own in kept]
    for rank in shown["late"]:
        assert waits[rank["rank"]] == pytest.approx(0.0, abs=1.0)
        assert rank["waits_seconds_per_step"] * 1e6 == pytest.approx(max(waits), rel=0.02)
