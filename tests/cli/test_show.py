"""`collbench show`: its terminal and pipe, how operations may be spelled, and what is refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from collbench.api.runs import find_works
from collbench.model.operations import Operation, Variant
from collbench.runfile import run_file
from tests.builders import GIB, gpus, measured, run_of
from tests.cli.program import Program

MIB = 2**20


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """All-reduces of pairs, out of place and in place, and a copy both ways; at 1 MiB and 1 GiB."""
    measurements = [
        measured(Operation.ALLREDUCE, pair, 200.0, size) for pair in combinations(range(3), 2) for size in (MIB, GIB)
    ]
    in_place = measured(Operation.ALLREDUCE, (0, 1), 210.0)
    both_ways = measured(Operation.CE_WRITE, (0, 1), 390.0)
    for other, variant in ((in_place, Variant.IN_PLACE), (both_ways, Variant.BOTH_WAYS)):
        object.__setattr__(other.point, "variant", variant)
    run_file.save(run_of(gpus(3), [*measurements, in_place, both_ways]), tmp_path / "run.json")
    return "run.json"


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("allreduce", ["allreduce"]),
        ("All-Reduce", ["allreduce"]),
        ("all_reduce in-place", ["allreduce in-place"]),
        ("ce_write", ["ce-write both-ways"]),  # all that there is of it
    ],
)
def test_spellings_of_an_operation(saved: str, tmp_path: Path, typed: str, names: list[str]) -> None:
    path = tmp_path / saved
    assert [*map(str, find_works(run_file.load(path), typed, path))] == names


def test_what_a_run_lacks_is_refused_with_what_it_holds(program: Program, saved: str, tmp_path: Path) -> None:
    run_file.save(run_of(gpus(2), []), tmp_path / "empty.json")
    for args, line in (
        ((saved, "--operation", "alltoall"), "it holds allreduce, allreduce in-place, ce-write both-ways"),
        ((saved, "--operation", "allreduce", "--size", "64M"), "run.json has no allreduce at 64M: it holds 1M, 1G"),
        (("empty.json", "--operation", "allreduce"), "it holds nothing that was measured"),
    ):
        result = program("plot", *args, "--kind", "heatmap", "-o", "map.svg")
        assert (result.status, result.out) == (2, "")
        assert line in result.line


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("moe-0.kineto.json.gz", "a trace of torch.profiler"),
        ("moe-1.fr", "a dump of torch's Flight Recorder"),
        ("public/et-1.0.1-dlrm-0.json.gz", "an execution trace of torch's ExecutionTraceObserver"),
    ],
)
def test_a_trace_of_another_tool_is_named_with_the_command_that_imports_it(
    program: Program, name: str, title: str
) -> None:
    file = Path(__file__).parents[1] / "data" / "traces" / name
    for options in ([], ["--ranking"]):
        result = program("show", str(file), *options)
        assert (result.status, result.out) == (2, "")
        assert f"{file} is {title}, not a run: convert it with 'collbench import {file}'" in result.line


def test_a_file_of_nothing_known_does_not_name_import(program: Program, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"nodes": 3}', encoding="utf-8")
    assert "import" not in program("show", "notes.json").line
