"""`collbench compare`: the page, the JSON, the exit status, and what is refused in one line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.builders import gpus, measured, run_of
from tests.cli.program import Program
from tests.judge.runs import RESULTS, copies, recorded_text, scaled
from tests.report.pages import shows

ROOT = Path(__file__).parents[2]
PAGES = ("compare.md", "normal.md", "exchange.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)


@cache
def texts() -> dict[str, str]:
    """Return runs: a base, the same again, one slower on pair 1-3, one of CPU cores, a simulated one."""
    slow = copies(lambda a, b: 0.9 if {a, b} == {1, 3} else 1.0, seed=2)
    runs = {
        "base": copies(),
        "again": copies(seed=1),
        "slow": slow,
        "cores": replace(copies(), backend="host"),
        "other": run_of(gpus(4), [measured(Operation.SM_READ, (0, 1), 300.0)]),
        "sim": replace(copies(), backend="sim"),
        "sim2": replace(scaled(copies(), 2), backend="sim"),
    }
    return {name: run_file.dumps(run) for name, run in runs.items()}


@pytest.fixture
def files(program: Program) -> None:
    """Saved runs."""
    for name, text in texts().items():
        Path(f"{name}.json").write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("share", "status"), [("0", 3), ("5%", 3), ("0.05", 3), ("15%", 0), ("99%", 0)])
def test_the_share_that_may_be_lost(program: Program, share: str, status: int) -> None:
    result = program("compare", "-v", "base.json", "slow.json", "--fail-below", share)
    assert result.status == status
    slower = f"Slower: all of GPU1-GPU3: 9.7% slower; nothing significantly by more than {share} "
    assert status or slower in result.out


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("title", "args", "reported"),
    [
        ("nothing", "", "name the base and the new run"),
        (
            "one run alone",
            "base.json",
            "base.json is one run: name a second run to compare it with, or add --reference",
        ),
        ("the same file twice", "base.json base.json", "base.json and base.json are the same file"),
        ("the same file by another name", "base.json ./base.json", "are the same file"),
        (
            "another backend",
            "base.json cores.json",
            "the base is of the cuda backend and another run of the host backend",
        ),
        ("a simulated run", "base.json sim.json", "their figures measure different things"),
        ("nothing in common", "base.json other.json", "base.json and other.json have no data point in common"),
        (
            "nothing of the operation",
            "base.json slow.json --operation allreduce",
            "have no data point of allreduce in common",
        ),
        ("a share in words", "base.json slow.json --fail-below much", "--fail-below 'much' is not a share"),
        ("two runs for reference", "base.json slow.json --reference", "--reference judges one run, 2 were given"),
    ],
)
def test_what_cannot_be_compared_is_refused(program: Program, title: str, args: str, reported: str) -> None:
    Path("text.json").write_text("no run", encoding="utf-8")
    result = program("compare", *shlex.split(args))
    assert (result.status, result.out) == (2, "")
    assert reported in result.line


def test_reference_leaves_with_3_below_and_says_what_it_does_not_know(program: Program) -> None:
    Path("no-p2p.json").write_text(recorded_text("2026-11-21-4xh200-judging/runs.tar.gz:no-p2p.json"), encoding="utf-8")
    for options in ([], ["-v"]):
        result = program("compare", *options, "no-p2p.json", "--reference")
        first_line = result.out.splitlines()[0]
        assert (result.status, first_line) == (3, "Below normal at 1 of 3 reference figures.")
        why = result.out.splitlines()[1]
        assert why.startswith("NV_NOT_USED all 6 NV18 pairs: the environment variable NCCL_P2P_DISABLE=1 disables ")
        assert why.endswith(": 'collbench check no-p2p.json' explains it")
    reported = json.loads(program("compare", "no-p2p.json", "--reference", "--operation", "ce-read", "--json").out)
    assert (reported["exit_status"], {answer["standing"] for answer in reported["answers"]}) == (0, {"normal"})
    run_file.save(run_of(gpus(2, "NVIDIA L4"), [measured(Operation.ALLREDUCE, (0, 1), 10.0)]), Path("l4.json"))
    result = program("compare", "-v", "l4.json", "--reference")
    assert (result.status, result.out.splitlines()[-1]) == (
        1,
        "There is no reference figure for this kind of machine: 2 × NVIDIA L4, NV18.",
    )
    assert result.out.startswith(
        "not judged: there is no reference figure for this kind of machine: 2 × NVIDIA L4, NV18; compare it with"
    )


def test_reference_calls_no_copies_normal_whose_operation_beats_its_limit(program: Program) -> None:
    saved = str(RESULTS / "2026-11-21-4xh200-peers" / "copies.json")
    result = program("compare", "-v", saved, "--reference")
    assert (result.status, "normal" in result.out) == (3, False)
    assert "\nce-write at 512M on 12 links: not judged, " in result.out
    assert "; ce-write one-to-all at 512M reached 1187.1 GB/s, and the capacity of GPU3 is 450.0\n" in result.out
    reported = json.loads(program("compare", saved, "--reference", "--json").out)
    assert (reported["exit_status"], {answer["standing"] for answer in reported["answers"]}) == (3, {"not judged"})
    assert reported["answers"][0]["impossible"]["members"] == [3, 0, 1, 2]


def examples() -> list[list[str]]:
    """Return each command line that these pages show on a line of its own, except those that measure.

    test_compare_versions.py runs the latter, on simulated GPUs.
    """
    lines = re.findall(r"^    collbench (.*)$", PAGE, re.MULTILINE)
    return [shlex.split(line) for line in lines if "before.json" not in line and "after.json" not in line]


@cache
def days() -> dict[str, str]:
    """Return a run of each of four days."""
    runs = (replace(copies(seed=day), started=f"2026-03-0{day + 1}T00:00:00Z") for day in range(4))
    return dict(zip(("sunday", "monday", "tuesday", "wednesday"), map(run_file.dumps, runs), strict=True))


@pytest.fixture
def documented(program: Program) -> None:
    """The files that the pages mention, made from real runs."""
    shutil.copy(RESULTS / "2026-11-21-4xh200-peers" / "pairs.json", "run.json")
    shutil.copy(RESULTS / "2026-11-21-4xh200" / "allreduce.json", "allreduce.json")
    shutil.copy(RESULTS / "2026-11-21-4xh200-judging" / "pairs.json", "base.json")
    shutil.copy(RESULTS / "2026-11-23-1xh200-jax" / "job-gpu-times.json", "job.json")
    Path("new.json").write_text(recorded_text("2026-11-21-4xh200-judging/runs.tar.gz:no-p2p.json"), encoding="utf-8")
    for name, text in days().items():
        Path(f"{name}.json").write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize("args", examples(), ids=shlex.join)
def test_every_command_of_the_page_runs(program: Program, args: list[str]) -> None:
    result = program(*args)
    assert result.status == (3 if "new.json" in args else 0), result.err
    assert result.out or "-o" in args


@pytest.mark.usefixtures("documented")
def test_the_page_shows_what_is_printed(program: Program) -> None:
    printed = program("compare", "base.json", "new.json").out
    (sample,) = re.findall(r"^    collbench compare base.json new.json\n((?:    .*\n)+)", PAGE, re.MULTILINE)
    assert shows(sample, printed)
    ((command, shown),) = re.findall(r"^    \$ collbench (.*)\n((?:    .*\n)+?)    …$", PAGE, re.MULTILINE)
    assert program(*shlex.split(command)).out.startswith(re.sub(r"^    ", "", shown, flags=re.MULTILINE))


def test_history_is_counted_and_refused_where_it_shows_nothing(program: Program) -> None:
    for day in range(4):
        run_file.save(replace(copies(seed=day), started=f"2026-03-0{day + 1}T00:00:00Z"), Path(f"{day}.json"))
    earlier = ("--history", "1.json", "--history", "2.json")
    found = program("compare", "0.json", "3.json", *earlier)
    assert re.search(r"estimated from 3 runs$", found.out, re.MULTILINE)
    told = json.loads(program("compare", "0.json", "3.json", *earlier, "--json").out)
    assert told["history"] == 2
    assert {point["between"]["origin"] for point in told["points"]} == {"history"}
    one = program("compare", "0.json", "3.json", "--history", "1.json")
    assert (one.status, one.out) == (2, "")
    assert "one earlier run shows too little of how much runs vary: give two or more" in one.err
    assert "same file" in program("compare", "0.json", "3.json", "--history", "3.json").err
    assert "--history" in program("compare", "0.json", "--reference", "--history", "1.json").err


def test_what_is_undecided_beside_a_busy_base_is_blamed_on_that_run(program: Program) -> None:
    """The other job was on GPU0 and GPU1: every pair but GPU2-GPU3 has one of these."""
    Path("idle.json").write_text(recorded_text("2026-11-21-4xh200-judging/pairs.json"), encoding="utf-8")
    Path("busy.json").write_text(recorded_text("2026-11-21-4xh200-judging/runs.tar.gz:busy.json"), encoding="utf-8")
    first = program("compare", "busy.json", "idle.json").out.partition("\n")[0]
    assert "undecided because busy.json was disturbed: CONTENTION another process was on GPU0, GPU1 in 2292" in first
    assert first.endswith("; 5 of 6 pairs are more than 5% faster.")


def test_an_undisturbed_run_is_not_blamed(program: Program) -> None:
    """Two trials decide nothing; a slow link in one run is a fault of the machine, no disturbance of the run."""
    few = [measured(Operation.CE_WRITE, pair, 300.0, trials=2) for pair in ((0, 1), (1, 0), (0, 2), (2, 0))]
    slow = [measured(Operation.CE_WRITE, pair, 30.0, trials=2) for pair in ((0, 1), (1, 0), (0, 2), (2, 0))]
    run_file.save(run_of(gpus(4), few), Path("base.json"))
    run_file.save(run_of(gpus(4), slow), Path("new.json"))
    page = program("compare", "base.json", "new.json").out
    assert page.startswith("not judged: no data point has three trials")
    assert "\nUndecided: 4 of 4 data points; nothing is significant: no data point has three trials" in page
    assert "disturbed" not in page
