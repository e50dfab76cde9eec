"""`collbench runs`, and commands that read a run where none is named."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import collbench
from collbench.model.errors import ExitStatus, FailureKind
from collbench.model.run import StopReason
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import gpus, in_words, pair_run
from tests.cli.program import Program, save_run
from tests.sim.made import faulty_file


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> Path:
    where = tmp_path / "state" / "collbench" / "runs"
    where.mkdir(parents=True, mode=0o700)
    return where


def three(folder: Path) -> list[Path]:
    """Save a failed, an interrupted and a healthy run, and a damaged file; return the runs' files, newest first.

    Of the interrupted one a pair is slow.
    """
    healthy = pair_run(4, lambda *_: 325.0).measurements
    failed = [*healthy]
    failed[0] = replace(
        failed[0], samples=[], stop=StopReason.FAILED, failure=in_words("hang: no answer", FailureKind.HANG)
    )
    files = [folder / f"2026112{day}T000000Z-cuda-pairs.json" for day in (3, 2, 1)]
    save_run(files[0], gpus(4), measurements=failed)
    save_run(files[1], gpus(3), timedelta(days=1), complete=False)
    save_run(files[2], gpus(4), timedelta(days=2), measurements=healthy)
    (folder / "20261122T120000Z-cuda-pairs.json").write_text("{", encoding="utf-8")
    return files


def test_runs_advise_the_first_that_can_be_read(program: Program, folder: Path) -> None:
    newest = three(folder)[0]
    newest.write_text("{", encoding="utf-8")
    said = program("runs").out
    number = said.splitlines()[1].split()[0]
    assert said.endswith(f"more      'collbench show {number}' shows run {number}\n")
    assert program("show", number).out


def test_runs_are_listed_newest_first_with_their_outcome(program: Program, folder: Path) -> None:
    files = three(folder)
    runs = collbench.runs()
    assert [run.path for run in runs] == files
    assert [(run.complete, run.status, len(run.devices)) for run in runs] == [
        (True, ExitStatus.UNTRUSTED, 4),
        (False, ExitStatus.CONTRADICTION, 3),
        (True, ExitStatus.DONE, 4),
    ]
    assert [run.path for run in collbench.runs(2)] == files[:2]
    result = program("runs")
    assert result.status == 0
    assert result.err.count("\n") == 1  # of what is no run
    assert "20261122T120000Z" in result.err
    rows = result.out.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["1", "3", "4"]  # the second file is no run
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "wrong data or hang",
        "interrupted, contradiction",
        "done",
    ]
    assert f"\nfiles     {folder}\n" in result.out


def test_a_run_that_wrong_data_ended_is_not_called_interrupted(program: Program, folder: Path) -> None:
    corrupt = faulty_file("titan-rtx-nv2", Fault(FaultKind.CORRUPT_LINK, (0, 1)))
    ended = program("copies", *corrupt, "--sizes", "1M")
    assert ended.status == ExitStatus.UNTRUSTED
    assert f"\nsaved     {folder}/" in ended.out
    (row,) = program("runs").out.splitlines()[1:2]
    assert row.endswith("  copies   incomplete, wrong data or hang")


def test_commands_take_a_run_by_its_number_in_the_list(program: Program, folder: Path, tmp_path: Path) -> None:
    files = three(folder)
    for command in ("show", "check", "show --ranking", "export --format csv", "report --force -o page.html"):
        result = program(*command.split(), "4")
        assert result.err.splitlines()[0] == f"collbench: the saved run {files[2]}", command
        assert result.status != 2, command
    assert str(files[0].name) in program("compare", "4", "1").out
    chosen = program("select", "2", "4", "--any-machine")
    assert (chosen.status, chosen.err) == (0, f"collbench: the saved run {files[2]}\n")
    assert f"saved at {files[2]}" in chosen.out
    third = program("show", "3")
    assert (third.status, third.out) == (0, program("show", str(files[1])).out)
    assert program("show", "5").err == "collbench: there is no saved run 5: 'collbench runs' lists 4 runs\n"
    assert program("show", "0").status == 2
    (tmp_path / "5").write_bytes(files[0].read_bytes())
    named = program("show", str(files[0])).out.replace(str(files[0]), "5")  # the page names the file
    assert program("show", "5").out == named  # a file of that name comes first


def test_a_list_that_is_not_of_all_runs_says_how_many_are_older(program: Program, folder: Path) -> None:
    files = three(folder)  # and a damaged file
    assert "\nolder     3 more runs: --limit N lists them\n" in program("runs", "--limit", "1").out
    files[0].with_name("0-oldest.json").write_text("{", encoding="utf-8")  # which no limit would list
    assert "older" not in program("runs").out
    assert "\nolder " not in program("runs").out


def test_where_nothing_is_saved(program: Program) -> None:
    assert collbench.runs() == ()
    assert program("runs").out == "there is no saved run: measure with 'collbench pairs'\n"
    assert json.loads(program("runs", "--json").out)["runs"] == []


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_no_number_is_an_error(limit: object) -> None:
    with pytest.raises(collbench.Error):
        collbench.runs(limit)  # type: ignore[arg-type]


READERS = [
    "show",
    "export --format csv",
    "report -o page.html",
    "predict --params 124M",
]


@pytest.mark.parametrize("command", READERS)
def test_without_a_file_the_newest_saved_run_is_read_and_named(program: Program, folder: Path, command: str) -> None:
    older, newer = (folder / f"2026112{day}T000000Z-cuda-pairs.json" for day in (1, 2))
    save_run(older, gpus(2))
    save_run(newer, gpus(4))
    named = program(*command.split(), str(newer))
    newest = program(*command.split(), *(["--force"] if "report" in command else []))
    assert (newest.status, newest.out) == (named.status, named.out)
    assert f"the newest saved run, {newer}" in newest.err.splitlines()[0]
