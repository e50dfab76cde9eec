"""`collbench doctor` as people run it: on simulated GPUs, without any, with hostile words around."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.program import Program, on_gpus
from tests.native.fakes import Fakes

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "doctor.schema.json").read_text(encoding="utf-8"))


def findings(text: str) -> dict[str, dict[str, Any]]:
    """Return the findings of valid JSON by name."""
    answer = json.loads(text)
    jsonschema.validate(answer, SCHEMA)
    return {finding["name"]: finding for finding in answer["findings"]}


def levels(text: str) -> dict[str, str]:
    """Return the level of each finding by name."""
    return {name: finding["level"] for name, finding in findings(text).items()}


def test_four_gpus_are_examined_without_a_context(fakes: Fakes, tmp_path: Path) -> None:
    done = on_gpus(fakes, tmp_path, ["doctor", "--json"])
    found = findings(done.stdout)
    assert found["driver"]["text"] == "580.159.04, CUDA 13.0"
    assert found["GPUs"]["text"] == "4 × Fake GPU (sim)"
    assert found["labels"]["text"] == "6 pairs: 6 × NV18"
    assert str(fakes.nccl) in found["NCCL"]["text"]
    assert not done.lines("+")  # neither a context nor anything else was made
    assert not done.lines("cuInit")


@pytest.mark.parametrize(
    ("settings", "extra", "name", "level", "says"),
    [
        ({"driver": "470.82.01"}, {}, "driver", "fail", "older than r520"),
        ({"nccl": 21705}, {}, "NCCL", "fail", "2.17.5"),
        ({}, {"COLLBENCH_NCCL": "/nowhere/libnccl.so.2"}, "NCCL", "fail", "/nowhere/libnccl.so.2"),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "warn", "only GPU1"),
        ({}, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES", "fail", "every GPU"),
        ({"no_peer": 1}, {}, "peer access", "warn", "TNS"),
        ({}, {"NCCL_P2P_DISABLED": "1"}, "NCCL_P2P_DISABLED", "warn", "no NCCL"),
        ({"ecc": 3}, {}, "memory", "warn", "3 on GPU0"),
    ],
)
def test_what_is_amiss_is_found(
    fakes: Fakes, tmp_path: Path, settings: dict[str, object], extra: dict[str, str], name: str, level: str, says: str
) -> None:  # fmt: skip
    done = on_gpus(fakes, tmp_path, ["doctor", "--json"], extra, **settings)
    finding = findings(done.stdout)[name]
    assert (finding["level"], says in finding["text"], done.stderr) == (level, True, ""), finding
    assert level == "fail" or done.code == (1 if "fail" in levels(done.stdout).values() else 0)
    assert level != "fail" or done.code == 1


def test_without_a_gpu_the_driver_fails_and_the_way_out_is_named(program: Program) -> None:
    said = program("doctor")
    if "no NVIDIA driver" not in said.out:
        pytest.skip("this machine has a driver")
    assert (said.status, said.err) == (1, "")
    assert "collbench doctor --backend host" in " ".join(said.out.split())
    assert "Traceback" not in said.out


def test_cores_are_examined_for_themselves(program: Program) -> None:
    said = program("doctor", "--backend", "host", "--json")
    found = findings(said.out)
    assert (said.status, said.err) == (0 if "fail" not in levels(said.out).values() else 1, "")
    assert {"torch", "CPUs", "memory", "shared memory", "saved runs"} <= set(found)
    assert not {"driver", "NCCL", "IOMMU"} & set(found)


def test_what_is_set_around_it_stays_text(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", "\x1b[2J[bold]\u202e\nok     all is well")
    monkeypatch.setenv("NCCL_\x1b[31mX", "1")
    said = program("doctor", "--backend", "host")
    assert "\x1b" not in said.out
    assert "\u202e" not in said.out
    assert r"\x1b[2J[bold]\u202e\nok" in said.out
    assert not [line for line in said.out.splitlines() if line.startswith("ok")]
    assert r"NCCL_\x1b[31mX" in said.out


def test_bytes_that_are_no_text_are_reported_as_such(fakes: Fakes, tmp_path: Path) -> None:
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    for words in (["doctor", "--backend", "host"], ["doctor", "--backend", "host", "--json"]):
        done = on_gpus(fakes, tmp_path, words, {"NCCL_TOPO_FILE": odd})
        assert r"\udcff\udcfe" in done.stdout
        assert done.stderr == ""


def test_a_state_folder_that_cannot_be_made_is_a_finding(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    finding = findings(program("doctor", "--backend", "host", "--json").out)["saved runs"]
    assert finding["level"] == "warn"
    assert f"{tmp_path / 'file'} is not a folder" in finding["text"]
    assert "--output" in finding["fix"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "sim"), "'sim' is not one of 'cuda', 'host'"),
        (("run.json",), "unexpected extra argument"),
        (("--jsn",), "--json"),
    ],
)
def test_bad_words_are_one_line(program: Program, words: tuple[str, ...], says: str) -> None:
    said = program("doctor", *words)
    assert said.status == 2
    assert says in said.line
