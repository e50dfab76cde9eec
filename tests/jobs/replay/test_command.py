"""`collbench replay`: a simulated machine's page and file, real gloo workers, what is refused, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Job
from collbench.jobs.replay.results import replays_of
from collbench.jobs.replay.view import answer
from collbench.runfile import run_file
from tests.cli.program import Program
from tests.cli.program import collbench as command_of
from tests.jobs.replay.made import data_parallel, job_of, pipeline

pytestmark = pytest.mark.usefixtures("loaded_program", "loaded_torch")

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs" / "run-file.schema.json").read_text(encoding="utf-8"))
SIM = ("--backend", "sim", "--fabric", "titan-rtx-nv2", "--seed", "1")
HOST = ("--backend", "host", "--seed", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, also for saved runs, with a job of two ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    saved(data_parallel(2, (2**26, 2**24)), "job.json")
    return tmp_path


def saved(job: Job, name: str) -> None:
    job_file.save(job, Path(name))


def undated(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "DATE", text)


def test_the_document_shows_what_is_printed(program: Program, folder: Path) -> None:
    shown = re.findall(r"^    \$ (collbench replay .*)\n((?:    .*\n|\n(?=    ))+)", PAGE, re.MULTILINE)
    assert shown
    for number, (command, block) in enumerate(shown):
        expected = "".join(line.removeprefix("    ") for line in block.splitlines(keepends=True))
        result = program(*command.split()[1:], "-o", f"run-{number}.json")
        assert undated(result.out.partition("\nsaved ")[0].rstrip()) == undated(expected.rstrip())


def test_a_simulated_run_repeats_by_its_seed_and_keeps_its_schema(program: Program, folder: Path) -> None:
    for name in ("a.json", "b.json"):
        assert program("replay", "job.json", *SIM, "--trials", "3", "-o", name).status == 0
    first, again = (run_file.load(folder / name) for name in ("a.json", "b.json"))
    assert replays_of(first) == replays_of(again)
    jsonschema.validate(json.loads((folder / "a.json").read_text(encoding="utf-8")), SCHEMA)
    assert first.settings.kind == "replay"
    assert first.complete


@pytest.mark.parametrize(
    ("pauses_ms", "ends"),
    [
        ((10.1, 10.0, 9.9, 10.1, 10.0, 9.9), "and at most 0.100 ms are exposed"),
        ((8.1, 8.0, 7.9, 8.1, 8.0, 7.9), "and 2.000 ms are exposed"),
        ((12.1, 12.0, 11.9, 12.1, 12.0, 11.9), "and nothing is exposed"),
    ],
)
def test_what_may_be_noise_is_said_as_its_upper_end(
    program: Program, folder: Path, pauses_ms: tuple[float, ...], ends: str
) -> None:
    """What the calls add to a step of 10 ms is a difference: with noise negative, but no time is."""
    program("replay", "job.json", *SIM, "--trials", "6", "-o", "run.json")
    run = run_file.load(folder / "run.json")
    (replay,) = replays_of(run)
    for trial, pause in enumerate(pauses_ms):
        replay.trials[trial] = replace(replay.trials[trial], step=(10e-3, 9e-3), pauses=(1e-3 * pause, 1e-3))
    assert answer(run).endswith(ends)


def test_export_and_report_know_it(program: Program, folder: Path) -> None:
    program("replay", "job.json", *SIM, "-o", "run.json")
    refused = program("export", "run.json", "--format", "prometheus")
    assert refused.status != 0
    assert "holds a replay, which prometheus has no form for" in refused.err
    assert program("report", "run.json", "-o", "page.html").status == 0
    assert "Communication of a step" in (folder / "page.html").read_text(encoding="utf-8").replace("&#39;", "'")


def test_too_few_devices_are_refused_in_one_line(program: Program, folder: Path) -> None:
    saved(data_parallel(4), "four.json")
    result = program("replay", "four.json", *SIM)
    assert (result.status, result.out, "has 4 ranks and 2 devices" in result.line) == (2, "", True)


def test_a_variable_that_makes_figures_false_is_refused_on_gpus(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as the job may have it
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in program("replay", "job.json", "--backend", "cuda").err
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    result = program("replay", "job.json", "--backend", "cuda")
    assert (result.status, "CUDA_LAUNCH_BLOCKING=1: every launch waits" in result.line) == (2, True), result.err


def test_gloo_cannot_average(program: Program, folder: Path) -> None:
    job = data_parallel()
    saved(replace(job, calls=tuple(replace(call, reduction="avg") for call in job.calls)), "avg.json")
    assert "gloo cannot reduce by avg" in program("replay", "avg.json", *HOST, "--devices", "0,1").err


def test_what_is_no_job_is_refused(program: Program, folder: Path) -> None:
    program("replay", "job.json", *SIM, "-o", "run.json")
    result = program("replay", "run.json", *SIM)
    assert (result.status, "not a collbench job" in result.line) == (2, True)


def test_facts_missing_from_the_job_are_reported(program: Program, folder: Path) -> None:
    job = data_parallel()
    saved(replace(job, calls=tuple(replace(call, reduction="") for call in job.calls)), "plain.json")
    assert "replaying sums: the recording does not have the reduction" in program("replay", "plain.json", *SIM).err


def test_a_job_without_pauses_has_a_page(program: Program, folder: Path) -> None:
    """Like imported traces: nothing was timed isolated, and a call is as long as its step."""
    saved(job_of([(0, 1)], [[(call, False) for call in data_parallel().calls]] * 2, pause=None), "bare.json")
    for trials in ("2", "4", "8"):
        result = program("replay", "bare.json", *SIM, "--trials", trials, "-o", f"{trials}.json")
        assert result.status == 0, result.err


def test_two_stages_on_gloo_are_measured_and_verified(program: Program, folder: Path) -> None:
    saved(pipeline(2**12), "stages.json")
    args = ("replay", "stages.json", *HOST, "--devices", "0,1", "--trials", "3", "-o", "run.json")
    assert program(*args).status == 0
    (replay,) = replays_of(run_file.load(folder / "run.json"))
    assert (replay.wrong, len(replay.trials), [call.operation for call in replay.calls]) == (0, 3, ["p2p"])


def test_ctrl_c_keeps_the_trials_so_far(folder: Path) -> None:
    path = folder / "run.json"
    saved(data_parallel(), "small.json")
    command = command_of("replay", "small.json", *HOST, "--devices", "0,1", "--trials", "5000", "-o", str(path))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (path.exists() and replays_of(run_file.load(path))):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "measured so far is saved" in err
    run = run_file.load(path)
    assert replays_of(run)[0].trials
    assert not run.complete


def test_the_headline_of_a_replay_on_cores_says_that_it_is_not_of_gpus(program: Program, folder: Path) -> None:
    run = run_file.load(_simulated(program))
    run_file.save(replace(run, backend="host"), Path("host.json"))
    mark = "(CPU cores with gloo, not GPUs)"
    on_cores, simulated = (program("show", name).out for name in ("host.json", "run.json"))
    assert mark in " ".join(on_cores.split("\n\n")[0].split())
    assert mark not in " ".join(simulated.split())


def _simulated(program: Program) -> Path:
    assert program("replay", "job.json", *SIM, "-o", "run.json").status == 0
    return Path("run.json")
