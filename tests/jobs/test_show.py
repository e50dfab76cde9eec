"""A recorded job in `show` and `report`: short pages, and one line for bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs import page as pages
from collbench.jobs.calls import report
from collbench.jobs.job import Group, Job, Steps, StepSource
from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.builders import gpus, run_of
from tests.cli.program import Program
from tests.jobs.made import documented_job, made_job, without_gpu_times
from tests.jobs.predict.made import curve, pairs
from tests.report.pages import shows, text

pytestmark = pytest.mark.usefixtures("loaded_program")

MIB = 2**20
LINES, COLUMNS = 50, 80
DDP = [("allreduce", 25 * MIB)] * 3 + [("allgather", 1000)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job_file.save(made_job(DDP, ranks=2, late={1: 300.0}), tmp_path / "job.json")
    points = [point for kind in (Operation.ALLREDUCE, Operation.ALLGATHER) for point in curve(kind, (0, 1), 100.0)]
    run_file.save(run_of(gpus(2), points), tmp_path / "run.json")
    return tmp_path


def test_a_run_gives_the_isolated_times_of_the_calls(program: Program, folder: Path) -> None:
    args = ("show", str(folder / "job.json"), "--run-file", str(folder / "run.json"))
    page = program(*args).out
    assert " ".join(page.split()).startswith(
        "rank 0's calls take 1.6 ms a step, alone 0.806 ms: 1.2 ms is waiting for other ranks, transfer takes 0.406 ms "
        "less than alone communication runs for"
    )
    assert re.search(r"\nlinks +of 2 × NVIDIA H200 in \w+; the job ran on \w+, which may differ\n", page)
    answer = json.loads(program(*args, "--json").out)
    assert answer["calls"][0]["alone_seconds"] == pytest.approx(5e-6 + 25 * MIB / 100e9, rel=0.05)
    assert [row["rank"] for row in answer["late"]] == [1]
    assert [row["waiting_seconds"] for row in answer["ranks"]] == pytest.approx([1.2e-3, 0.0])
    shares = [row["kernels_seconds"] / row["step_seconds"] for row in answer["ranks"]]
    assert shares == pytest.approx([0.4, 0.1])
    assert (answer["repetitions"], answer["counted_repetitions"]) == (10, 9)


def test_a_run_with_other_variables_of_nccl_is_named_in_the_first_line(program: Program, folder: Path) -> None:
    job = job_file.load(folder / "job.json")
    job_file.save(replace(job, environment={"NCCL_P2P_DISABLE": "1"}), folder / "staged.json")
    args = ("show", str(folder / "staged.json"), "--run-file", str(folder / "run.json"))
    page = program(*args).out
    assert "alone 0.806 ms (with other NCCL variables): " in " ".join(page.split())
    named = "NCCL_P2P_DISABLE: 1 in the job, not set in the runs"
    assert f"\nvariables {named}\n" in page
    assert json.loads(program(*args, "--json").out)["other_variables"] == [named]
    assert "variables" not in program("show", str(folder / "job.json"), "--run-file", str(folder / "run.json")).out


def test_what_a_comparison_lacks_is_said_first(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    job = job_file.load(Path("job.json"))
    job_file.save(without_gpu_times(job), Path("untimed.json"))
    run_file.save(run_of(gpus(2), curve(Operation.ALLREDUCE, (0, 1), 1.0, sizes=(8,))), Path("small.json"))
    for job_name, run, why in (
        ("untimed.json", "run.json", "record the job with --gpu-times"),
        ("job.json", "small.json", "the runs have none of them: measure allreduce, allgather on the job's GPUs"),
    ):
        first = " ".join(program("show", job_name, "--run-file", run).out.split())
        assert first.startswith(f"it is unknown how much longer the calls take than alone: {why}"), job_name


@pytest.mark.parametrize(
    ("what", "job"),
    [
        ("two hundred ranks", lambda: made_job(DDP, ranks=200, late={7: 300.0}, kept=2)),
        ("four thousand calls", lambda: made_job([("allreduce", 8 * (1 + at % 30)) for at in range(4_000)], kept=1)),
        ("one rank", lambda: made_job(DDP, ranks=1)),
        ("groups of no known ranks", lambda: replace(made_job(DDP, ranks=4), groups=(Group((), 4),))),
    ],
)
def test_pages_of_large_and_unusual_jobs_stay_short(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, job: Callable[[], Job]
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    job_file.save(job(), tmp_path / "job.json")
    result = program("show", str(tmp_path / "job.json"))
    assert (result.status, result.err) == (0, ""), what
    lines = result.out.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "job.json", "--rank", "9"), "--rank 9 is not one of the job's 2 ranks"),
        (("show", "job.json", "--operation", "allreduce"), "is a recorded job"),
        (("show", "run.json", "--rank", "0"), "for a recorded job"),
        (("report", "run.json", "job.json"), "a recorded job has no HTML page: 'collbench show' prints it"),
    ],
)
def test_bad_input_is_one_line(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    result = program(*args)
    assert result.status == 2
    assert message in result.line


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        (
            Steps(StepSource.FOLDED, "", 0.85, 0.999),
            "the step covers only 85% of the calls and 99% of the bytes from the first step to the last",
        ),
        (Steps(why="it may be 4 or 8 calls"), "no step is known: it may be 4 or 8 calls"),
    ],
)
def test_a_step_that_is_not_the_job_is_said_first_and_not_predicted(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps, first: str
) -> None:
    monkeypatch.chdir(folder)
    job = job_file.load(Path("job.json"))
    ranks = job.ranks if steps.source else tuple(replace(rank, step=None) for rank in job.ranks)
    job_file.save(replace(job, ranks=ranks, steps=steps), Path("part.json"))
    assert " ".join(program("show", "part.json").out.split()).startswith(first)
    predicted = program("predict", "part.json", "run.json")
    assert (predicted.status, predicted.line.startswith(first)) == (2, True)
    simulated = ("--backend", "sim", "--fabric", "titan-rtx-nv2")
    replayed = program("replay", "part.json", *simulated)
    assert (replayed.status, first in replayed.err) == ((0, True) if steps.source else (2, False))


@pytest.mark.parametrize(
    ("other", "variables", "said"),
    [(10.0, {}, True), (99.9, {}, False), (10.0, {"NCCL_P2P_DISABLE": "1"}, False)],
    ids=["slower", "as fast", "not the job's variables"],
)
def test_a_run_with_slower_links_says_what_they_would_cost(
    program: Program, folder: Path, other: float, variables: dict[str, str], said: bool
) -> None:
    run = pairs({(1, 2): other}, count=3)
    run_file.save(
        replace(run, settings=replace(run.settings, environment={"NCCL_ALGO": "Ring", **variables})),
        folder / "three.json",
    )
    job, three = str(folder / "job.json"), str(folder / "three.json")
    job_file.save(replace(job_file.load(folder / "job.json"), environment={"NCCL_ALGO": "Ring"}), folder / "set.json")
    shown = program("show", str(folder / "set.json"), "--run-file", three)
    line = next((line for line in shown.out.splitlines() if line.startswith("slower ")), "")
    assert (shown.status, bool(line)) == (0, said)
    if said:
        predicted = json.loads(program("predict", job, three, "--devices", "1,2", "--json").out)["longer_seconds"]
        assert predicted[1] > 1e-3
        assert f"on GPU1, GPU2, the slowest links in the runs, a step takes {1e3 * predicted[1]:.3g} ms longer" in line
        answer = json.loads(program("show", job, "--run-file", three, "--json").out)
        assert answer["slower"] == {"gpus": ["GPU1", "GPU2"], "longer_seconds": predicted}


def test_the_documented_page_is_what_is_printed() -> None:
    found = report(documented_job(), None, {0: 48 * MIB * 0.75 / 343.0e9, 1: 96 * MIB * 0.75 / 352.8e9})
    assert found is not None
    compared = ("allgather.json", "reducescatter.json", "allreduce.json")
    page = pages.page(replace(found, compared_with=compared, compared_simulated=True))
    shown = text(page, verbose=False, columns=90)
    for name in ("job-page.md", "slow-job.md"):
        documented = (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
        (sample,) = re.findall(r"^    2 of 3 kinds of calls .*\n(?:    .*\n|\n(?=    ))+", documented, re.MULTILINE)
        assert shows(sample, shown), name
