"""`collbench doctor` on simulated GPUs, without GPUs, and with a hostile environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.program import Program, on_gpus
from tests.native.fakes import Fakes

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "doctor.schema.json").read_text(encoding="utf-8"))


def test_it_loads_nothing_that_measures() -> None:
    names = "{'collbench.measurement.plan', 'collbench.api.measuring'}"
    code = f"import sys, collbench.preflight.command; print({names} & set(sys.modules) or 'none')"
    started = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert started.stdout == "none\n"


def findings(text: str) -> dict[str, dict[str, Any]]:
    """Return the findings of valid JSON by name."""
    answer = json.loads(text)
    jsonschema.validate(answer, SCHEMA)
    return {finding["name"]: finding for finding in answer["findings"]}


def levels(text: str) -> dict[str, str]:
    """Return the level of each finding by name."""
    return {name: finding["level"] for name, finding in findings(text).items()}


def test_four_gpus_are_examined_without_a_context(fakes: Fakes) -> None:
    done = on_gpus(fakes, ["doctor", "--json"])
    reported = findings(done.stdout)
    assert reported["driver"]["text"] == "580.159.04, CUDA 13.0"
    assert reported["GPUs"]["text"] == "4 × Fake GPU (sim)"
    assert reported["labels"]["text"] == "6 pairs: 6 × NV18"
    assert str(fakes.nccl) in reported["NCCL"]["text"]
    assert not done.lines("+")  # neither a context nor anything else was made
    assert not done.lines("cuInit")


@pytest.mark.parametrize(
    ("settings", "extra", "name", "level", "text"),
    [
        ({"driver": "470.82.01"}, {}, "driver", "fail", "older than r520"),
        ({}, {"COLLBENCH_NCCL": "/nowhere/libnccl.so.2"}, "NCCL", "fail", "/nowhere/libnccl.so.2"),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "warn", "only GPU1"),
        ({"ecc": 3}, {}, "memory", "warn", "3 on GPU0"),
    ],
)
def test_a_fault_is_reported(
    fakes: Fakes, settings: dict[str, object], extra: dict[str, str], name: str, level: str, text: str
) -> None:  # fmt: skip
    done = on_gpus(fakes, ["doctor", "--json"], extra, **settings)
    finding = findings(done.stdout)[name]
    assert (finding["level"], text in finding["text"], done.stderr) == (level, True, ""), finding
    assert level == "fail" or done.code == (1 if "fail" in levels(done.stdout).values() else 0)
    assert level != "fail" or done.code == 1


def test_without_a_gpu_the_driver_fails_with_advice(program: Program) -> None:
    result = program("doctor")
    if "no NVIDIA driver" not in result.out:
        pytest.skip("this machine has a driver")
    assert (result.status, result.err) == (1, "")
    assert "collbench doctor --backend host" in " ".join(result.out.split())
    assert "Traceback" not in result.out


def test_cores_are_examined_for_themselves(program: Program) -> None:
    result = program("doctor", "--backend", "host", "--json")
    reported = findings(result.out)
    assert (result.status, result.err) == (0 if "fail" not in levels(result.out).values() else 1, "")
    assert {"torch", "CPUs", "memory", "shared memory"} <= set(reported)
    assert not {"driver", "NCCL", "IOMMU"} & set(reported)


def test_what_is_set_around_it_stays_text(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", "\x1b[2J[bold]\u202e\nok     all is well")
    monkeypatch.setenv("NCCL_\x1b[31mX", "1")
    result = program("doctor", "--backend", "host")
    assert "\x1b" not in result.out
    assert "\u202e" not in result.out
    assert r"\u001b[2J[bold]\u202e\nok" in result.out
    assert not [line for line in result.out.splitlines() if line.startswith("ok")]
    assert r"NCCL_\u001b[31mX" in result.out


def test_bytes_that_are_no_text_are_reported_as_such(fakes: Fakes) -> None:
    undecodable = b"\xff\xfe".decode("utf-8", "surrogateescape")
    for args in (["doctor", "--backend", "host"], ["doctor", "--backend", "host", "--json"]):
        done = on_gpus(fakes, args, {"NCCL_TOPO_FILE": undecodable})
        assert r"\udcff\udcfe" in done.stdout
        assert done.stderr == ""
