"""`collbench alltoallv` from its options to pages, files and rows, on the sim and the host backend."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.usefixtures("loaded_torch")

SIM = "alltoallv --backend sim --fabric hgx-h200 --seed 4 --sizes 64M"


def test_the_run_holds_its_skew_and_every_page_shows_it(program: Program, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "run.json"
    result = program(*SIM.split(), "--skew", "zipf:1.2:4", "--output", str(file))
    assert result.status == 0
    assert "zipf:1.2:4, busiest rank" in result.out.replace("\n", " ")
    point = json.loads(file.read_text(encoding="utf-8"))["measurements"][0]["point"]
    assert point["skew"] == {"kind": "zipf", "exponent": 1.2, "seed": 4, "matrix": []}
    (row,) = json.loads(program("export", str(file), "--format", "json").out)
    assert row["skew"] == "zipf:1.2:4"
    # 8 ranks, each sends 1/8 of all: the first of them receives 1 / sum(k^-1.2 for k to 8) of it.
    assert row["imbalance"] == pytest.approx(8 / sum(k**-1.2 for k in range(1, 9)), rel=1e-3)
    assert "zipf:1.2:4" in program("show", str(file)).out
    assert "# blocks: zipf:1.2:4;" in program("export", str(file), "--format", "nccl-tests").out


@pytest.mark.parametrize(
    ("title", "rows", "devices"),
    [
        ("the first rank is idle", "0 0 0\n0 0 65536\n0 32768 0\n", "--backend sim --fabric hgx-h200 --devices 0,1,2"),
        ("the last rank is idle", "0 65536 0\n32768 16 0\n0 0 0\n", "--backend sim --fabric hgx-h200 --devices 0,1,2"),
        ("one rank sends to itself alone", "65536 0\n0 0\n", "--backend sim --fabric hgx-h200 --devices 0,1"),
        ("one rank sends to itself alone, gloo", "65536 0\n0 0\n", "--backend host --devices 0,1 --budget 1s"),
    ],
)
def test_a_rank_that_neither_sends_nor_receives_is_measured_with_the_others(
    program: Program, tmp_path: pathlib.Path, title: str, rows: str, devices: str
) -> None:
    if "host" in devices and not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the cores 0 and 1")
    matrix, file = tmp_path / "matrix.txt", tmp_path / "run.json"
    matrix.write_text(rows)
    result = program("alltoallv", *devices.split(), "--skew", str(matrix), "--output", str(file))
    assert (result.status, "Traceback" in result.err) == (0, False), title
    (measurement,) = json.loads(file.read_text(encoding="utf-8"))["measurements"]
    assert (measurement["point"]["size_bytes"], measurement["failure"]) == (65536 + 16 * (" 16 " in rows), None), title
    assert all(seconds > 0 for sample in measurement["samples"] for seconds in sample["seconds"]), title
    assert program("show", str(file)).status == 0, title


def test_runs_of_other_skews_are_not_the_same_data_points(program: Program, tmp_path: pathlib.Path) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    for file, skew in zip(files, ("zipf:1.2", "uniform"), strict=True):
        assert program(*SIM.split(), "--skew", skew, "--output", file).status == 0
    result = program("compare", *files)
    assert result.status != 0
    assert "Traceback" not in result.err


def test_runs_of_one_skew_are_the_same_data_points_whatever_their_seeds(
    program: Program, tmp_path: pathlib.Path
) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    for number, file in enumerate(files):
        args = ("alltoallv", "--backend", "sim", "--fabric", "hgx-h200", "--sizes", "64M", "--seed", str(number))
        assert program(*args, "--skew", "zipf:1.2", "--output", file).status == 0
    assert program("compare", *files).status == 0


def test_skew_is_for_alltoallv_only(program: Program) -> None:
    assert program("alltoall", "--skew", "uniform").status == 2
