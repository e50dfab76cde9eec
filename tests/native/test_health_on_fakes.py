"""Health problems of simulated GPUs while they are measured: flagged in the trial, saved, and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collbench.model.run import Flag
from collbench.report import sentences
from collbench.runfile.codec import build
from tests.builders import gpus
from tests.cli.program import on_gpus
from tests.native.fakes import Fakes, Outcome


def _measure(fakes: Fakes, tmp_path: Path, **settings: object) -> tuple[Outcome, dict[str, Any]]:
    """Copy between two GPUs; their health is read before the first trial, and then by the watch."""
    arguments = ("pairs", "--backend", "cuda", "--sizes", "1K", "-v", "-o", "run.json")
    done = on_gpus(fakes, arguments, gpus=2, ill_from=2, **settings)
    first = done.stdout.splitlines()[0]
    wrong = "another process was on GPU" in first or first.startswith(("GPU_ERRORS", "THROTTLED"))
    assert done.code == (3 if wrong else 0), done.stderr
    return done, json.loads((tmp_path / "run.json").read_text())


def _flags(run: dict[str, Any]) -> set[str]:
    flags = (
        flag for measurement in run["measurements"] for sample in measurement["samples"] for flag in sample["flags"]
    )
    return {sentences.flag(build(Flag, flag, "flag"), gpus(2)) for flag in flags}


@pytest.mark.parametrize(
    ("title", "settings", "flag"),
    [
        # nvml.h: nvmlClocksEventReasonSwThermalSlowdown is 0x20, SwPowerCap 0x4.
        ("a GPU gets too hot", {"throttle": "0,1=32"}, "throttled: SW thermal slowdown on GPU1"),
        ("somebody starts a job", {"visitor": "0,0=4242", "worker": 90001}, "shared: 1 other process on GPU0"),
    ],
)
def test_every_trial_during_a_health_problem_is_flagged_and_it_is_on_the_page(
    fakes: Fakes, tmp_path: Path, title: str, settings: dict[str, object], flag: str
) -> None:
    done, run = _measure(fakes, tmp_path, **settings)

    assert _flags(run) == {flag}, title
    trials = sum(len(measurement["samples"]) for measurement in run["measurements"])
    assert f"{flag} in {trials} of {trials} trials" in done.stdout, title


def test_gpu_errors_during_a_run_are_reported_with_their_gpu(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _measure(fakes, tmp_path, ecc="0,1=2", nvlink_errors="0,0=5")

    assert [state["ecc_errors"] for state in run["health_before"] + run["health_after"]] == [0, 0, 0, 2]
    assert "GPU_ERRORS GPU0: 5 new NVLink errors" in done.stdout
    assert "2 new ECC errors on GPU1" in done.stdout
    assert "5 new NVLink errors on GPU0" in done.stdout
    assert _flags(run) == set()


def test_an_nvml_that_stops_answering_costs_no_trial(fakes: Fakes, tmp_path: Path) -> None:
    # nvml.h: NVML_ERROR_GPU_IS_LOST is 15. Each of two GPUs is read once before, so the third reading is the watch's.
    _, run = _measure(fakes, tmp_path, fail="nvmlDeviceGetTemperature:15:3")

    assert run["complete"] is True
    assert _flags(run) == set()
