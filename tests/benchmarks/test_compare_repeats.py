"""benchmarks/compare_repeats.py: which recorded runs are repeats, and what it says of them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.run import Run
from collbench.runfile import run_file
from tests.analysis.runs import copies, scaled

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "compare_repeats.py"
KEPT = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200-judging" / "compare-repeats.txt"


def repeated(seed: int, *, quick: bool = False, **environment: str) -> Run:
    run = copies(seed=seed)
    words = ("pairs", "--output", f"{seed}.json")
    settings = replace(run.settings, command=words, quick=quick, environment=environment)
    return replace(run, started=f"2026-01-02T03:04:{seed:02}Z", settings=settings)


def told(folder: Path) -> tuple[int, dict[str, list[str]]]:
    """Return the exit status and the table's rows by their first two cells."""
    done = subprocess.run([sys.executable, SCRIPT, "--results", folder], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    return done.returncode, {" ".join(line[:2]).strip(): line[2:] for line in lines if len(line) == 9}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two repeats, one of them in an archive; and what is none: disturbed, of other words, with a variable."""
    run_file.save(repeated(1), tmp_path / "one.json")
    run_file.save(repeated(2), tmp_path / "two.json")
    with tarfile.open(tmp_path / "raw.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "two.json", "raw/two.json")
    (tmp_path / "two.json").unlink()
    run_file.save(scaled(repeated(3), 2), tmp_path / "busy.json")
    run_file.save(scaled(repeated(4, quick=True), 2), tmp_path / "quick.json")
    run_file.save(scaled(repeated(5, NCCL_P2P_DISABLE="1"), 2), tmp_path / "staged.json")
    (tmp_path / "other.json").write_text('{"format": "something else"}', encoding="utf-8")
    return tmp_path


def test_repeats_agree_and_a_planted_slow_link_is_found(folder: Path) -> None:
    status, rows = told(folder)
    assert status == 0
    row = ["2", "72", "100%", "0 cells, 0 comparisons", "6 of 6", "6 of 6", "0 of 6"]
    assert rows == {"pairs 4": row, "all": row}


def test_a_repeat_that_is_slower_is_counted_and_misses_the_bar(folder: Path) -> None:
    run_file.save(scaled(repeated(3), 2), folder / "three.json")
    status, rows = told(folder)
    assert status == 1
    # Two of the three couples, forth and back: 36 cells each, and seven groups: six places and a work.
    assert rows["all"][3] == f"{4 * (36 + 7)} cells, 4 comparisons"


def test_the_page_shows_the_table_that_was_kept() -> None:
    page = (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8")
    kept = [[cell.strip() for cell in line.strip("|").split("|")] for line in KEPT.read_text().splitlines()[2:9]]
    assert [row[0] for row in kept] == ["copies"] * 2 + ["one collective"] * 2 + ["pairs"] * 2 + ["all"]
    for command, devices, comparisons, cells, same, false, found, _, elsewhere in kept:
        gpus = f" {devices} " if devices else " "
        last = [false.partition(" ")[0], found, elsewhere.partition(" ")[0]]
        assert f"| {command} |{gpus}| {comparisons} | {cells} | {same} | {' | '.join(last)} |\n" in page
