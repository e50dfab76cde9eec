"""`collbench plot`: which figure comes out of which files, and one line for what cannot be drawn."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, permutations
from pathlib import Path

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Sample
from collbench.runfile import run_file
from tests.builders import GIB, gpus, measured, run_of
from tests.cli.program import Program
from tests.report.plot.pictures import read

MIB = 2**20
MAGIC = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-1."}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with runs of pairs, of all four GPUs, and of what has no link."""
    links = [measured(Operation.CE_WRITE, link, 390.0, size) for link in permutations(range(4), 2) for size in (8, GIB)]
    pairs = [
        measured(Operation.ALLREDUCE, pair, 300.0, size) for pair in combinations(range(4), 2) for size in (MIB, GIB)
    ]
    run_file.save(run_of(gpus(4), links + pairs), tmp_path / "pairs.json")
    every = [measured(Operation.ALLREDUCE, range(4), 200.0, size) for size in (MIB, GIB)]
    run_file.save(run_of(gpus(4), every), tmp_path / "four.json")
    sample = Sample((1e-6,), 1, concurrent=False)
    chase = [Measurement(DataPoint(Operation.CHASE, link, 8), [sample] * 3) for link in permutations(range(4), 2)]
    host = [Measurement(DataPoint(Operation.H2D_CE, (gpu,), GIB, Variant.HOST), [sample] * 3) for gpu in range(4)]
    run_file.save(run_of(gpus(4), chase + host), tmp_path / "other.json")
    run_file.save(run_of(gpus(4), []), tmp_path / "empty.json")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "files", "title", "suffix"),
    [
        *(("heatmap", ["pairs.json"], "allreduce at 1G, busbw, GB/s", suffix) for suffix in ("png", "pdf", "SVG")),
        ("curves", ["pairs.json", "four.json"], "allreduce over message size", "svg"),
    ],
)
def test_each_kind_in_each_format(
    program: Program, saved: Path, kind: str, files: list[str], title: str, suffix: str
) -> None:
    (saved / "new").mkdir()
    result = program("plot", *files, "--kind", kind, "-o", f"new/fig.{suffix}")
    assert (result.status, result.out) == (0, "")
    assert result.line == f"wrote new/fig.{suffix}: {title}"
    data = (saved / "new" / f"fig.{suffix}").read_bytes()
    assert data.startswith(MAGIC[suffix.lower()])
    assert [path.name for path in (saved / "new").iterdir()] == [f"fig.{suffix}"]


@pytest.mark.parametrize(
    ("args", "title"),
    [
        (["--operation", "ce_write"], "ce-write at 1G, GB/s"),
        (["--operation", "ce-write", "--size", "8"], "ce-write at 8 B, µs"),
        (["--size", "1M"], "allreduce at 1M, busbw, GB/s"),
    ],
)
def test_operation_and_size_choose_the_map(program: Program, saved: Path, args: list[str], title: str) -> None:
    assert program("plot", "pairs.json", "--kind", "heatmap", *args, "-o", "fig.svg").status == 0
    assert read((saved / "fig.svg").read_bytes()).title == title


def test_operations_are_overlaid(program: Program, saved: Path) -> None:
    args = ("--operation", "ce-write", "--operation", "allreduce")
    assert program("plot", "pairs.json", "--kind", "curves", *args, "-o", "fig.svg").status == 0
    texts = read((saved / "fig.svg").read_bytes()).texts
    assert {"ce-write: all links, median of 12", "allreduce: all pairs, median of 6"} <= set(texts)


def test_files_of_one_name_are_distinguished_by_their_folders(program: Program, saved: Path) -> None:
    (saved / "old").mkdir()
    (saved / "four.json").rename(saved / "old" / "pairs.json")
    assert program("plot", "pairs.json", "old/pairs.json", "--kind", "curves", "-o", "fig.svg").status == 0
    texts = read((saved / "fig.svg").read_bytes()).texts
    assert any(text.startswith("old/pairs.json: box") for text in texts)
    assert any(text.startswith("pairs.json: box") for text in texts)


# title, arguments, what the message says
REFUSED = [
    ("an unknown suffix", "pairs.json --kind heatmap -o fig.gif", "fig.gif has no suffix of a figure: name it .svg"),
    ("no suffix", "pairs.json --kind heatmap -o fig", "fig has no suffix of a figure"),
    ("a folder", "pairs.json --kind heatmap -o dir.svg", "cannot write the figure dir.svg: it is a folder"),
    ("a file as folder", "pairs.json --kind heatmap -o pairs.json/fig.svg", "a part of that path is a file"),
    ("an operation that was not measured", "pairs.json --kind heatmap --operation reduce -o fig.svg",
     "pairs.json has no operation 'reduce': it holds ce-write, allreduce"),
    ("a size that was not measured", "pairs.json --kind heatmap --size 64M -o fig.svg",
     "pairs.json has no allreduce at 64M: it holds 1M, 1G"),
    ("curves at one size", "pairs.json --kind curves --size 1G -o fig.svg", "--kind curves draws all sizes"),
    ("a map of two runs", "pairs.json four.json --kind heatmap -o fig.svg", "of one run, 2 runs were given"),
    ("a map of all at once", "four.json --kind heatmap -o fig.svg", "four.json has no allreduce on links or pairs"),
    ("a map of devices", "other.json --kind heatmap --operation h2d-ce -o fig.svg", "h2d-ce host on links or pairs"),
    ("a curve of one access", "other.json --kind curves --operation chase -o fig.svg", "chase has no bandwidth"),
    ("an empty run", "empty.json --kind heatmap -o fig.svg", "empty.json holds nothing that was measured to the end"),
]  # fmt: skip


@pytest.mark.parametrize(("title", "args", "line"), REFUSED)
def test_what_cannot_be_drawn_is_refused(program: Program, saved: Path, title: str, args: str, line: str) -> None:
    (saved / "dir.svg").mkdir()
    result = program("plot", *args.split())
    assert (result.status, result.out) == (2, "")
    assert line in result.line
    assert not (saved / "fig.svg").exists()


def test_without_matplotlib_one_line_says_how_to_get_it(
    program: Program, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = program("plot", "pairs.json", "--kind", "heatmap", "-o", "fig.svg")
    assert (result.status, result.out) == (2, "")
    assert result.line == "plot needs matplotlib, which is missing: pip install matplotlib"


@pytest.mark.parametrize("args", [["export", "--help"], ["plot", "--help"], ["show", "pairs.json"]])
def test_what_draws_or_exports_is_loaded_late(saved: Path, args: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['collbench', *{args}]; from collbench.cli import main; main(); "
        "print({'matplotlib', 'PIL', 'prometheus_client'} & set(sys.modules) or 'none', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=saved, check=True, capture_output=True, text=True)
    assert done.stderr == "none\n"


def test_the_users_own_matplotlib_settings_change_nothing(program: Program, saved: Path) -> None:
    program("plot", "pairs.json", "--kind", "curves", "-o", "plain.svg")
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "other", "axes.facecolor": "black"}):
        program("plot", "pairs.json", "--kind", "curves", "-o", "own.svg")
    assert (saved / "plain.svg").read_bytes() == (saved / "own.svg").read_bytes()
