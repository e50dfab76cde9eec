"""`collbench export`: each format to standard output or a file, and what is refused in one line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.builders import gpus, measured, run_of
from tests.cli.program import Program
from tests.report.hostile import hostile_run

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"
TEXTS = ("csv", "markdown", "json", "prometheus")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "run.json"
    run_file.save(hostile_run(), path)
    return str(path)


@pytest.mark.parametrize("output_format", [*TEXTS, "nccl-tests"])
def test_a_file_holds_what_standard_output_would(program: Program, saved: str, output_format: str) -> None:
    printed = program("export", saved, "--format", output_format)
    assert (printed.status, printed.err) == (0, "")
    Path("out").mkdir()
    result = program("export", saved, "--format", output_format, "-o", "out/export")
    assert (result.status, result.out, result.err) == (0, "", "collbench: wrote out/export\n")
    assert Path("out/export").read_text(encoding="utf-8") == printed.out


READERS = re.findall(r"`(pandas\.read_\w+\(f[^`]*\))`", (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8"))


def _literal(node: ast.expr) -> object:
    """Return the value of True, or of {"cuda": str}."""
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): str for key in node.keys if key is not None}
    return ast.literal_eval(node)


@pytest.mark.parametrize("line", READERS)
def test_the_pages_line_of_pandas_reads_every_figure_of_a_recorded_run(program: Program, line: str) -> None:
    """Its page, pairs.txt, shows 396.1 GB/s from GPU0 to GPU3 at 1G; CUDA 13.0 and NCCL 2.28.9 are no numbers."""
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    reader = ast.unparse(call.func).removeprefix("pandas.")
    options = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    import pandas as pd  # type: ignore[import-untyped]

    output_format = reader.removeprefix("read_")
    assert program("export", str(RECORDED), "--format", output_format, "-o", "run").status == 0
    frame = getattr(pd, reader)("run", **options)
    link = frame[(frame.operation == "ce-write") & (frame.source == "GPU0") & (frame.destination == "GPU3")]
    assert (len(frame), len(link), link.busbw_gbs[link.size_bytes == 2**30].item()) == (
        840,
        14,
        pytest.approx(396.1, abs=0.05),
    )
    assert (set(frame.cuda), set(frame.nccl), set(frame.complete)) == ({"13.0"}, {"2.28.9"}, {True})
    seconds = json.loads(program("export", str(RECORDED), "--format", "json").out)
    assert [*frame.seconds] == [record["seconds"] for record in seconds]


@pytest.mark.parametrize(
    ("title", "args", "reported"),
    [
        ("into a folder", ("RUN", "--format", "csv", "-o", "."), "cannot write the export to .: it is a folder"),
        (
            "below a file",
            ("RUN", "--format", "csv", "-o", "text.json/x.csv"),
            "choose another place with --output FILE",
        ),
        ("copies alone as nccl-tests", ("COPIES", "--format", "nccl-tests"), "nccl-tests"),
        ("nothing measured", ("EMPTY", "--format", "csv"), "nothing was measured"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    program: Program, saved: str, tmp_path: Path, title: str, args: tuple[str, ...], reported: str
) -> None:
    Path("text.json").write_text("no run", encoding="utf-8")
    run_file.save(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]), tmp_path / "copies.json")
    run_file.save(run_of(gpus(2), []), tmp_path / "empty.json")
    files = {"RUN": saved, "COPIES": "copies.json", "EMPTY": "empty.json"}
    result = program("export", *(files.get(word, word) for word in args))
    assert (result.status, result.out) == (2, "")
    assert reported in result.line
