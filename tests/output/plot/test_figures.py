"""The committed figures are what the program draws now from the committed runs; a file is the same bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import collbench
from tests.output.plot.pictures import read

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "docs" / "figures"
RUN = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    suffixes = ("svg", "png", "pdf")
    for seed in ("1", "2"):
        words = [["collbench", "plot", str(RUN), "--kind", "heatmap", "-o", f"{seed}.{suffix}"] for suffix in suffixes]
        code = f"import sys\nfrom collbench.cli import main\nfor sys.argv in {words!r}:\n    assert main() == 0"
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    for suffix in suffixes:
        assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes(), suffix
