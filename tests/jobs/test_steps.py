"""The step of a job: found where the record shows it, not claimed elsewhere, and never another one."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collbench.jobs import job_file, recorded, steps, streams
from collbench.jobs.calls import matched, step_seconds
from collbench.jobs.job import Call, Job, Phase, Position, Sample, Steps, StepSource
from tests.jobs import scenarios
from tests.jobs.made import made_job
from tests.native.recorded import play


def recorded_job(made: scenarios.Job, folder: Path, calls_per_step: int | None = None) -> Job:
    """Return what the plugin records of a made-up job."""
    for rank in range(2):
        environment = {"COLLBENCH_RECORD_GPU_TIMES": "1"} if made.gpu else {}
        done = play(made.script(rank), folder, 5, **environment)
        assert not done.returncode, done.stderr
    parsed = [streams.parse(path.read_bytes()) for path in sorted(folder.glob("*.stream"))]
    return recorded.merge(parsed, marks=streams.marks(folder.iterdir()), calls_per_step=calls_per_step).job


@cache
def on_the_host(name: str, seed: int) -> tuple[scenarios.Job, Job]:
    """Return a scenario and what is recorded of it without GPU times: several tests look for steps in the same one."""
    made = scenarios.Job((scenarios.SCENARIOS | scenarios.CROSSINGS)[name], seed)
    with TemporaryDirectory() as folder:
        return made, recorded_job(made, Path(folder))


def verdict(made: scenarios.Job, job: Job) -> tuple[str, str]:
    """Return "right", "not found" or "wrong", and why."""
    if job.steps.source is None:
        return "not found", job.steps.why
    for rank, truth in zip(job.ranks, made.ranks, strict=True):
        assert rank.step is not None
        found = [(call.operation, call.group) for call in job.called(rank.step)]
        groups = {name: number for number, name in enumerate(dict.fromkeys(one.name for one in job.groups))}
        names = ("world", "tp", "dp")
        found = [(operation, groups[job.groups[group].name]) for operation, group in found]
        # An exchange of equal parts is one all-to-all.
        wanted = [(operation, groups.get(names[group], -1)) for operation, group in truth.usual]
        if not _alike(found, wanted):
            return "wrong", f"rank {rank.rank}: {len(found)} calls, not {len(wanted)}"
        if not 0.5 * made.steps <= rank.step.repetitions <= made.steps + 2:  # what it misses, the coverage says
            return "wrong", f"rank {rank.rank}: {rank.step.repetitions} steps, not {made.steps}"
    first = job.ranks[0].step
    assert first is not None
    seconds = step_seconds(first) or 0.0
    if abs(seconds - made.seconds()) > 0.1 * made.seconds():
        return "wrong", f"{seconds} s, not {made.seconds()}"
    return "right", ""


def _alike(found: list[tuple[str, int]], wanted: list[tuple[str, int]]) -> bool:
    """True if a step has these calls in this order; a recorder's repetition may begin anywhere in it."""
    messages = {"send", "recv", "alltoall"}
    if any(operation in messages for operation, _ in found) and len(found) != len(wanted):
        found = [one for one in found if one[0] not in messages]
        wanted = [one for one in wanted if one[0] not in messages]
    return len(found) == len(wanted) and any(found[at:] + found[:at] == wanted for at in range(max(1, len(found))))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *product(scenarios.SCENARIOS, ["host"]),
        *product(("accumulation, norm", "evaluation", "tp", "pipeline"), ["gpu"]),
        *product(("evaluation", "pipeline"), ["marks"]),
    ],
)
def test_a_scenarios_step_is_right_or_not_claimed(name: str, way: str, tmp_path: Path) -> None:
    if way == "host":
        made, job = on_the_host(name, 0)
    else:
        made = scenarios.Job(scenarios.SCENARIOS[name], int(way == "gpu"), gpu=way == "gpu", marks=way == "marks")
        job = recorded_job(made, tmp_path)
    judged, why = verdict(made, job)
    assert judged != "wrong", why
    assert judged == "right" or way != "marks", why


@pytest.mark.parametrize(
    ("features", "seed", "gpu"),
    [
        (("tp", "norm", "warm-up"), 77200, False),  # a forward and a backward pass of equal blocks, then a norm
        (("fsdp", "accumulation", "norm"), 95000, False),  # every second micro-batch ends in a norm, at an equal pause
        (("ddp", "norm", "loss"), 0, False),  # ten steps between two losses
        (("ddp", "norm", "loss"), 0, True),
        (("tp", "accumulation", "warm-up"), 91001, True),  # too few repetitions of a step of 256 calls are kept whole
    ],
)
def test_parts_of_a_step_that_look_like_one_are_not_claimed(
    features: tuple[str, ...], seed: int, gpu: bool, tmp_path: Path
) -> None:
    made = scenarios.Job(features, seed, gpu=gpu)
    assert verdict(made, recorded_job(made, tmp_path))[0] == "not found"


def test_marks_of_one_rank_alone_do_not_cut_the_job_and_the_reason_says_so(tmp_path: Path) -> None:
    made = scenarios.Job(("tp",), 0, marks=True)
    made.ranks[1].lines = [line for line in made.ranks[1].lines if line != "mark"]
    job = recorded_job(made, tmp_path)
    assert job.steps.source is None
    assert job.steps.why.startswith("only 1 of 2 ranks mark it, and ")


@pytest.mark.parametrize("marks", [True, False])
def test_a_killed_ranks_steps_are_matched_with_those_of_the_others(marks: bool, tmp_path: Path) -> None:
    made = scenarios.Job(("tp-dp", "warm-up"), 3, gpu=True, marks=marks)
    lines = made.ranks[1].lines
    calls = [at for at, line in enumerate(lines) if line.startswith("call")]
    del lines[calls[-9] :]
    job = recorded_job(made, tmp_path)
    (before,) = {rank.before_step for rank in job.ranks}
    assert before == 4 or not marks  # a broadcast, and the warm-up's
    assert {group.whole for group in matched(job)} >= {True}


def test_a_program_marks_its_steps_where_it_is_recorded_and_nothing_elsewhere(tmp_path: Path) -> None:
    program = "import collbench, os\nfor _ in range(3): collbench.step()\nprint(os.uname().nodename, os.getpid())"
    for folder, ranges in (("", ""), (str(tmp_path), "iteration"), (str(tmp_path), "")):  # NVTX ranges mark instead
        variables = {**os.environ, "COLLBENCH_RECORD_FOLDER": folder, "COLLBENCH_RECORD_STEP_RANGE": ranges}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path)
    host, process = done.stdout.split()
    ((who, times),) = streams.marks(tmp_path.iterdir()).items()
    assert who == (host, int(process))
    assert len(times) == 3
    assert times == sorted(times)


def test_a_length_that_is_given_cuts_a_job_that_could_be_anything(tmp_path: Path) -> None:
    made = scenarios.Job(("fsdp", "accumulation"), 0)
    calls = len(made.ranks[0].usual)
    job = recorded_job(made, tmp_path, calls)
    assert job.steps.source is StepSource.GIVEN
    assert all(rank.step is not None and len(rank.step.positions) == calls for rank in job.ranks)
    assert recorded_job(made, tmp_path, 10**6).steps.source is None


@pytest.mark.parametrize(
    ("name", "seed"),
    [*((name, 0) for name in scenarios.SCENARIOS if name != "pipeline"), ("periodic loss × warm-up", 700)],
)
def test_a_length_is_doubted_or_called_equal_blocks_exactly_where_the_calls_show_it(name: str, seed: int) -> None:
    """Of a divisor of the step's length, that it is no block of it; of a multiple, of which blocks it consists.

    Sizes that change, evaluations, losses and norms between steps, and a warm-up contradict no right length.
    """
    made, recording = on_the_host(name, seed)
    right, block = len(made.ranks[0].usual), made.ranks[0].block
    job = steps.find(recording, right)
    assert job.steps.source is StepSource.GIVEN
    if name == "moe":  # its exchanges have other numbers of calls from step to step
        return
    assert not job.steps.reservation
    longest = next(right // parts for parts in range(2, right + 1) if not right % parts)
    for length in {1, block, longest} - {right}:
        assert bool(steps.find(job, length).steps.reservation) == bool(length % block), length
    for times in (1, 3):
        found = steps.find(job, times * right) if times > 1 else job
        if not found.steps.reservation:  # else evaluations or losses come in the midst of it
            blocks = f"{times * right} calls are {times * right // block} equal blocks of {block}: "
            said = "" if times * right == block else blocks
            assert found.steps.why.startswith((said or "with", "with")) or found.steps.why == said


def test_marks_win_over_a_length_that_they_contradict_and_the_job_says_so(tmp_path: Path) -> None:
    made = scenarios.Job(("fsdp", "accumulation"), 0, marks=True)
    right = len(made.ranks[0].usual)
    for length, why in ((right, ""), (right // 2, f"its marks say {right} calls, not {right // 2}: they count")):
        (folder := tmp_path / str(length)).mkdir()
        job = recorded_job(made, folder, length)
        assert (job.steps.source, job.steps.why) == (StepSource.MARKS, why)
        assert all(rank.step is not None and len(rank.step.positions) == right for rank in job.ranks)
        assert steps.find(job, right // 2).steps.why.startswith("its marks say")  # as in a copy of its file
        assert not steps.find(job, right).steps.why


@pytest.mark.parametrize(("around", "share"), [("broadcast", 1.0), ("allgather", 20 / 28)])
def test_what_sets_a_job_up_and_follows_its_last_step_is_not_the_steps(around: str, share: float) -> None:
    """Four calls before ten steps of two, and four after: others are no part of the steps, their own are missed."""
    made = made_job([("allgather", 4096), ("allreduce", 8192)])
    table = (*made.calls, Call("broadcast", 64, 0))
    others = Phase((Position(0 if around == "allgather" else 2, pause=1.0),) * 4)
    ranks = [replace(rank, step=None, phases=(others, *rank.phases, others)) for rank in made.ranks]
    found = steps.find(replace(made, calls=table, ranks=tuple(ranks), steps=Steps()), 2).steps
    assert found.source is StepSource.GIVEN
    assert found.calls == pytest.approx(share)
    assert bool(found.reservation) == (share < 0.9)


@pytest.mark.parametrize(("calls", "covers"), [(6, True), (4, True), (7, False), (24, False)])
def test_of_a_real_jobs_equal_calls_any_length_is_said_to_be_equal_blocks(calls: int, covers: bool) -> None:
    """DDP on two H100: six all-reduces of one size a step, and a loss after every tenth step."""
    kept = Path(__file__).parents[2] / "benchmarks/results/2026-11-26-2xh100-jobs/ddp-plain-job.json.gz"
    found = steps.find(job_file.loads(gzip.decompress(kept.read_bytes()).decode(), kept.name), calls).steps
    assert found.source is StepSource.GIVEN
    assert found.why == f"{calls} calls are {calls} equal blocks of 1: the record repeats after each"
    assert bool(found.reservation) != covers


@pytest.mark.parametrize("wrong", [-1, 1, 10**6 + 1], ids=["one less", "one more", "more than there are"])
@pytest.mark.parametrize("name", ["accumulation", "accumulation, ddp", "warm-up"])
def test_of_a_length_that_the_calls_contradict_the_job_says_first_what_repeats(name: str, wrong: int) -> None:
    made, recording = on_the_host(name, 0)
    right = len(made.ranks[0].usual)
    found = steps.find(recording, right + wrong).steps
    what = f"rank 0 sends the same calls again every {made.ranks[0].block}, not every {right + wrong}"
    assert what in found.reservation


@pytest.mark.parametrize(
    ("times", "longer", "claimed"),
    [(20, 1.35, True), (20, 1.25, False), (3, 3.0, True), (2, 3.0, False)],
    ids=["longer", "hardly longer", "three times", "twice"],
)
def test_a_step_is_claimed_after_three_times_a_pause_that_is_a_third_longer(
    times: int, longer: float, claimed: bool
) -> None:
    """Of four calls, 100 µs apart."""
    made = made_job([(operation, 4096) for operation in ("allgather", "reducescatter", "alltoall", "allreduce")])
    starts = np.cumsum([100.0 if at % 4 else 100.0 * longer for at in range(4 * times)])
    whole = Phase(tuple(Position(at % 4, pause=100.0) for at in range(4 * times)), 1, (Sample(0, tuple(starts)),))
    ranks = tuple(replace(rank, step=None, phases=(whole,)) for rank in made.ranks)
    found = steps.find(replace(made, ranks=ranks, steps=Steps()))
    assert (found.steps.source is StepSource.FOLDED) == claimed, found.steps.why
    assert not claimed or {len(rank.step.positions) for rank in found.ranks if rank.step} == {4}
