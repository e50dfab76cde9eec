"""`--registration` from the command line to NCCL, and back into the run file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.native.fakes import Fakes, Outcome

_MIB = 2**20


def _collbench(
    fakes: Fakes, tmp_path: Path, *arguments: str, program: tuple[str, ...] = ("-m", "collbench"), **settings: object
) -> tuple[Outcome, dict[str, Any]]:
    command = [sys.executable, *program, *arguments, "--backend", "cuda", "--output", "run.json"]
    environment = {"COLLBENCH_NCCL": str(fakes.nccl), "NO_COLOR": "1"}
    machine = {"gpus": 2, "memory": 4096 * _MIB, "free": 1290 * _MIB} | settings
    done = fakes.run(command, environment, **machine)
    file = tmp_path / "run.json"
    return done, json.loads(file.read_text()) if file.exists() else {}


def test_all_three_kinds_are_measured_verified_and_saved(fakes: Fakes, tmp_path: Path) -> None:
    arguments = ("allreduce", "--sizes", "1K,16K", "--registration", "all")
    done, run = _collbench(fakes, tmp_path, *arguments)

    assert done.code == 0, done.stderr
    counts = Counter(measurement["point"]["registration"] for measurement in run["measurements"])
    assert counts == {"none": 2, "buffer": 2, "window": 2}
    samples = [sample for measurement in run["measurements"] for sample in measurement["samples"]]
    assert all(sample["launch_seconds"] > 0 and sample["verified_bytes"] > 0 for sample in samples)
    assert [work["registration"] for work in run["settings"]["collectives"]] == ["none", "buffer", "window"]
    assert "memory    none, buffer, window tie from 1K to 16K" in done.stdout
    # Both buffers with both communicators of both ranks.
    assert len(done.lines("+registered ")) == len(done.lines("+window ")) == 2 * 2 * 2


# The program with one small size, as of 1 MiB the fakes would add up numbers for minutes, and with patience: fake
# GPUs need the host's cores, which on a busy host take longer for a step than a hang on real ones.
_ONE_SIZE = """
from collbench.cli import timing
from collbench.measurement.backends import isolated
timing._SMALL = "128"
object.__setattr__(isolated._TIMEOUTS, "floor_s", 60.0)
from collbench.cli import entry
entry()
"""


@pytest.mark.parametrize(
    ("version", "kinds", "left_out"),
    [
        (22809, ["none", "buffer", "window"], []),
        (
            21801,
            ["none"],
            [f"allreduce {kind}: it needs NCCL 2.{minor}" for kind, minor in (("buffer", 19), ("window", 27))],
        ),
    ],
)
def test_small_allreduces_leave_out_the_kinds_that_nccl_lacks(
    fakes: Fakes, tmp_path: Path, version: int, kinds: list[str], left_out: list[str]
) -> None:
    done, run = _collbench(fakes, tmp_path, "latency", "--collectives", program=("-c", _ONE_SIZE), nccl=version)

    assert done.code == 0, done.stderr
    counts = Counter(measurement["point"]["registration"] for measurement in run["measurements"])
    assert counts == dict.fromkeys(kinds, 1)
    assert {len(latency["ranks"][0]["arrived"]) for latency in run["latencies"]} == {400}
    assert (len(run["latencies"]), run["settings"]["dtype"]) == (len(kinds), "bfloat16")
    assert "2 ranks in a CUDA graph, µs\n" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("skipped")]
    assert len(lines) == len(left_out)
    assert all(f"skipped   {reason}" in line for reason, line in zip(left_out, lines, strict=True))
    # What the file holds of them is enough to print the page again.
    environment = {"NO_COLOR": "1"}
    shown = fakes.run([sys.executable, "-m", "collbench", "show", "run.json"], environment)
    assert shown.stdout.strip() == done.stdout.partition("\nsaved")[0].strip()


def test_small_allreduces_run_on_the_first_two_and_all_devices(fakes: Fakes, tmp_path: Path) -> None:
    machine = {"gpus": 3, "free": (272 + 3 * 512) * _MIB}
    done, run = _collbench(fakes, tmp_path, "latency", "--collectives", program=("-c", _ONE_SIZE), **machine)

    assert done.code == 0, done.stderr
    sets = [[0, 1], [0, 1, 2]]
    assert (run["settings"]["layout"], run["settings"]["sets"]) == ("sets", sets)
    points = [(one["point"]["members"], one["point"]["registration"]) for one in run["measurements"]]
    assert sorted(points) == sorted((members, kind) for members in sets for kind in ("none", "buffer", "window"))
    assert all(one["wrong"] == 0 for one in run["measurements"])
    launched = [(len(one["ranks"]), len(one["ranks"][0]["left"])) for one in run["latencies"]]
    assert sorted(launched) == [(2, 400)] * 3 + [(3, 400)] * 3
