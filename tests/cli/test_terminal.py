"""Pages and progress in terminals, pipes and narrow windows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.operations import Operation, Work
from collbench.model.run import InterferenceCheck, Run, SkipKind, Skipped
from collbench.runfile import run_file
from tests.builders import gpus, measured, run_of
from tests.cli.program import Program, collbench, environment, save_run, saved_in
from tests.native.fakes import Fakes
from tests.report.pages import pairs_run

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*48;5;\d+m")
_FREE = 2306 * 2**20


def on_terminal(
    command: list[str], environ: dict[str, str], cwd: Path, *, columns: int = 80, stdout: Path | None = None
) -> str:
    """Run a command with a terminal as stderr, and as stdout unless that is a file; return the terminal's text."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "COLORTERM")}
    out = slave if stdout is None else os.open(stdout, os.O_WRONLY | os.O_CREAT)
    running = subprocess.Popen(
        command, cwd=cwd, env=environ | {"TERM": "xterm-256color"}, stdin=slave, stdout=out, stderr=slave
    )
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:
        pass  # how Linux reports that the last writer has closed the terminal
    finally:
        running.wait()
        os.close(master)
    assert running.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")


def colourful() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NO_COLOR"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a saved run of four GPUs."""
    save_run(tmp_path / "run.json", gpus(4))
    return tmp_path


def test_a_page_is_coloured_in_a_terminal_and_the_same_text_without(program: Program, saved: Path) -> None:
    shown = on_terminal(collbench("show", "run.json"), colourful(), saved, columns=200)
    assert COLOUR.search(shown)
    plain = [line for line in ANSI.sub("", shown).splitlines() if not line.startswith("shade: ")]
    assert " ".join(plain).split() == program("show", "run.json").out.split()  # which has no colours, so no legend


def test_a_narrow_terminal_loses_nothing_but_colours_by_no_color(program: Program, tmp_path: Path) -> None:
    columns = 60
    run_file.save(pairs_run(4), tmp_path / "run.json")
    wide = program("show", "run.json", "-v").out
    narrow = on_terminal(
        collbench("show", "run.json", "-v"), colourful() | {"NO_COLOR": "1"}, tmp_path, columns=columns
    )
    narrow = re.sub(r"\x1b\[\d*m", "", narrow)  # NO_COLOR leaves bold
    assert set(wide.split()) == set(narrow.split())
    rows = [line for line in narrow.splitlines() if re.match(r"tier |\d+ +GPU", line)]
    assert len(rows) > 7  # so wide a table comes in parts
    titles = [line for line in narrow.splitlines() if line.startswith("pairs by ")]
    assert len(titles) == 1
    assert max(map(len, [*rows, *titles])) <= columns


def test_the_list_of_runs_fits_a_narrow_terminal(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    save_run(saved_in(Path.cwd()), gpus(4))
    wide = program("runs").out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = program("runs").out
    assert set(narrow.split()) == set(wide.split())
    table, files = narrow.split("files ")
    assert len(wide.splitlines()[0]) > max(map(len, table.splitlines()))
    assert max(map(len, table.splitlines())) <= 60, files


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_no_column_of_many_pairs_is_left_out_without_a_word(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbose: tuple[str, ...]
) -> None:
    run_file.save(pairs_run(8), tmp_path / "run.json")
    wide = program("show", "run.json", *verbose).out
    heads = next(line for line in wide.splitlines() if line.startswith("tier"))
    monkeypatch.setenv("COLUMNS", "24")
    narrow = program("show", "run.json", *verbose).out
    shown = [line for line in narrow.splitlines() if line.startswith("tier")]
    hidden = " ".join(narrow.partition("\nhidden ")[2].partition(":")[0].split())
    for head in re.split(r" {2,}", heads):
        assert any(re.search(rf"\b{head}\b", line) for line in shown) or head in hidden.split(", "), head
    assert any("allreduce" in line for line in shown)
    assert any("vs best" in line for line in shown)


def slow_pairs(count: int) -> Run:
    """A run whose page has long lines of every kind: skipped works, tie-breaks, unlike pairs of many devices."""
    run = pairs_run(count, lambda a, b: 300.0 if (a + b) % 2 else 40.0)
    links = [(a, b) for a in range(count) for b in range(count) if a < b]
    run.skipped = [Skipped(SkipKind.NO_PEERS, Work(Operation.SM_WRITE), link) for link in links]
    check = InterferenceCheck(Operation.CE_WRITE, (0, 1), "SYS", 10.0, 5.5, 0.55, 0.02, trusted=False, size_bytes=2**26)
    run.interference_checks = [check, replace(check, members=(0, 2), ratio=0.38)]
    run.phases = {"timed": 167.9, "warm-up": 10.0, "interference check": 9.4, "trials": 163.7}
    return run


@pytest.mark.parametrize(
    ("args", "count"),
    [
        (("show", "--ranking", "run.json"), 8),
        (("check", "run.json"), 8),
        (("show", "run.json", "--ranking", "--operation", "ce-write"), 12),
        (("select", "7", "run.json", "--any-machine"), 12),
        (("compare", "run.json", "again.json"), 8),
    ],
)
def test_80_columns_are_enough(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], count: int
) -> None:
    for name in {"run.json", "again.json"}.intersection(args):
        run_file.save(slow_pairs(count), tmp_path / name)
    monkeypatch.setenv("COLUMNS", "80")  # commands stay in one piece
    shown = program(*args).out
    assert [line for line in shown.splitlines() if len(line) > 80 and not line.startswith("  check     ")] == []


def test_a_pipe_obeys_columns_if_they_are_set(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a terminal of that size shows it; what is no number of columns is no size."""
    run_file.save(slow_pairs(8), tmp_path / "run.json")
    args = ("show", "run.json", "-v")
    usual = program(*args).out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = program(*args).out
    assert max(map(len, usual.splitlines())) > 100
    assert max(map(len, narrow.splitlines())) <= 80
    for nothing in ("0", "wide"):
        monkeypatch.setenv("COLUMNS", nothing)
        assert program(*args).out == usual


def test_a_progress_bar_is_drawn_on_a_terminal_and_gone_at_the_end(fakes: Fakes, tmp_path: Path) -> None:
    environ = fakes.environment(memory=2**32, free=_FREE) | environment(fakes)
    command = collbench("allreduce", "--sizes", "1K", "--output", "run.json")
    shown = on_terminal(command, environ, tmp_path, stdout=tmp_path / "out")
    assert "measuring allreduce" in shown
    assert "100%" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K")  # the line is cleared
    out = (tmp_path / "out").read_text(encoding="utf-8")
    assert "\x1b" not in out
    assert "measuring" not in out
    assert out.endswith("\nsaved     run.json\n")


def test_a_terminal_without_these_characters_shows_question_marks(saved: Path) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "iso8859-5"}
    done = subprocess.run(collbench("show", "run.json"), cwd=saved, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b": 4 ? NVIDIA H200" in done.stdout


def test_a_terminal_that_knows_no_escape_sequences_gets_whole_cells(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich assumes that a dumb terminal has 80 columns, and would shorten what is in wider tables."""
    halves = [measured(Operation.ALLREDUCE, ranks, 300.0) for ranks in (range(8), range(8, 16))]
    run_file.save(run_of(gpus(16), halves, command=("allreduce",)), tmp_path / "run.json")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = program("show", "run.json").out
    row = next(line for line in shown.splitlines() if line.startswith("GPU8, GPU9"))
    assert len(row) > 80
    assert row.endswith("GPU15  3579.14      525.00  525.00-525.00")  # 2^30 B at 300e9 B/s; busbw × 2(8-1)/8
    assert "…" not in shown
