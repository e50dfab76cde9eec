"""In a working directory that was deleted, each command works, or ends with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Program

SIM = "--backend sim --fabric nvlink-pairs-2x2 --quick --sizes 1M"
GONE = "collbench: the working directory was deleted: change to another one, with 'cd'\n"


@pytest.fixture
def deleted_directory(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a directory, after `program` did, and delete it."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "gone").rmdir()


@pytest.mark.usefixtures("deleted_directory")
@pytest.mark.parametrize(
    "line",
    [
        "runs", "show", "show x.json", "show --ranking", "topo", "compare a b", "select 2",
        "report x.json", "export --format csv x.json", "predict --params 124M x.json",
        "replay x.json", "train --auto-select 2 t.py", "ablate --auto-select 2 --without p2p -- t.py",
        "record -- true", "import x", f"pairs {SIM}", f"allreduce {SIM} -o r.json",
        "nodes --backend sim --fabric-cluster thin-32", "pairs --backend host --quick",
        "overlap allreduce --backend host",
    ],
)  # fmt: skip
def test_each_command_works_or_says_one_line(program: Program, line: str) -> None:
    output = program(*line.split())
    assert output.status in {0, 1, 2}
    assert output.err.count("\n") <= 1
    assert output.status == 0 or output.err.startswith("collbench: ")


@pytest.mark.usefixtures("deleted_directory")
@pytest.mark.parametrize("line", ["compare a b", "train --auto-select 2 t.py", "pairs --backend host --quick"])
def test_what_needs_its_path_says_that_it_was_deleted(program: Program, line: str) -> None:
    output = program(*line.split())
    assert (output.status, output.out, output.err) == (1, "", GONE)
