"""`collbench show`: its terminal and pipe, how operations may be spelled, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Program


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
