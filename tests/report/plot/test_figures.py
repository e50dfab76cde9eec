"""The committed figures are what the program draws now from the committed runs; a file is the same bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.cli import main
from tests.cli.program import collbench
from tests.report.plot.pictures import read

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "docs" / "figures"
RUN = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, loaded_program: None) -> Path:
    """The figures, made now by the script that made the committed ones."""
    folder = tmp_path_factory.mktemp("figures")
    program = folder / "collbench"
    program.write_text(f'#!/bin/sh\nexec {" ".join(collbench())} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = ROOT / "benchmarks" / "figures.sh"
    subprocess.run([script, folder], env={**os.environ, "COLLBENCH": str(program)}, check=True, capture_output=True)
    return folder


def test_the_script_makes_every_committed_figure_and_no_other(made: Path) -> None:
    assert {path.name for path in made.glob("*.svg")} == {path.name for path in FIGURES.glob("*.svg")}


@pytest.mark.parametrize("name", ["h200x4-ce-write.svg", "h200x4-curves.svg"])
def test_a_committed_figure_is_what_its_run_gives(made: Path, name: str) -> None:
    """Words and parts to the letter; shapes within half a point, for fonts are measured a little differently."""
    now, then = read((made / name).read_bytes()), read((FIGURES / name).read_bytes())
    assert (now.title, now.description, now.texts, now.tips) == (then.title, then.description, then.texts, then.tips)
    assert [style for style, _ in now.shapes] == [style for style, _ in then.shapes]
    for (_, drawn), (_, committed) in zip(now.shapes, then.shapes, strict=True):
        assert drawn == pytest.approx(committed, abs=0.5)


def test_another_process_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order its sets have."""
    suffixes = ("svg", "png", "pdf")
    arguments = [
        ["collbench", "plot", str(RUN), "--kind", "heatmap", "-o", str(tmp_path / f"there.{suffix}")]
        for suffix in suffixes
    ]
    code = f"import sys\nfrom collbench.cli import main\nfor sys.argv in {arguments!r}:\n    assert main() == 0"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "1"}) as other:
        for suffix, one in zip(suffixes, arguments, strict=True):
            monkeypatch.setattr(sys, "argv", [*one[:-1], str(tmp_path / f"here.{suffix}")])
            assert main() == 0
    assert other.returncode == 0
    for suffix in suffixes:
        assert (tmp_path / f"here.{suffix}").read_bytes() == (tmp_path / f"there.{suffix}").read_bytes(), suffix
