"""`collbench select K --job job.json`: finalists replayed in turn, what the page says, what fails and is refused."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import collbench
from collbench.api import SILENT, by_run, selecting
from collbench.choose.freshness import Here
from collbench.jobs import job_file
from collbench.jobs.choice import ForJob
from collbench.jobs.finalists import JobScorer
from collbench.jobs.job import Job
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay import simulated
from collbench.jobs.replay import worlds as backend
from collbench.jobs.replay.api import Replaying
from collbench.jobs.replay.protocol import ReplayArm, ReplayLoad, ReplayOpened, ReplayTimes
from collbench.jobs.replay.results import replays_of
from collbench.jobs.replay.schedule import Schedule, schedule_of
from collbench.machine import numa
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Choice, Present
from collbench.model.errors import BackendError, Cause, Failure, FailureKind, UsageError
from collbench.model.run import CommandKind, Health, Machine, Run
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, list_only, save_run, saved_in
from tests.jobs.replay.made import data_parallel, job_of, pipeline, without_rank
from tests.sim import random_fabrics
from tests.sim.made import fabric_text

pytestmark = pytest.mark.usefixtures("loaded_program", "loaded_torch")

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
SIM = ("--backend", "sim", "--fabric", "dgx-1v")
HANG = Failure(FailureKind.HANG, Cause.NO_ANSWER, (2,), seconds=60.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, also for saved runs, with a job of two ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job_file.save(data_parallel(2, (2**26, 2**24)), tmp_path / "job.json")
    return tmp_path


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation gives the same numbers each time."""
    for module in (by_run, replaying):
        monkeypatch.setattr(module, "new_seed", lambda: 1)


# --- a simulated machine ------------------------------------------------------------------------------------------


def test_the_document_shows_what_is_printed(program: Program, folder: Path) -> None:
    (shown,) = re.findall(r"^    \$ (collbench select .*)\n((?:    .*\n)+)", PAGE, re.MULTILINE)
    result = program(*shown[0].split()[1:])
    assert result.out == "".join(line.removeprefix("    ") for line in shown[1].splitlines(keepends=True))
    assert result.err == "collbench: replaying job.json on 5 sets, in turn\n"
    assert not (folder / "state").exists()  # a simulation is not kept, as without --job


def test_the_json_has_all_of_it(program: Program, folder: Path) -> None:
    answer = json.loads(program("select", "2", "--job", "job.json", *SIM, "--json").out)
    job = answer["job"]
    assert (job["job"], job["ranks"], job["trials"], job["possible"]) == ("job.json", 2, 8, 28)
    assert job["sets"][0]["standing"] == "best"
    assert {entry["standing"] for entry in job["sets"]} <= {"best", "tied", "undecided", "slower"}
    assert [entry["devices"] for entry in job["sets"] if entry["first"]] == [["GPU0", "GPU1"]]
    for entry in job["sets"]:
        low, middle, high = entry["communication"]
        assert 0 < low <= middle <= high
    assert [f"GPU{entry['index']}" for entry in answer["devices"]] in [entry["devices"] for entry in job["sets"]]
    assert json.loads(program("select", "2", *SIM, "--json").out)["job"] is None


def test_a_set_of_all_devices_is_not_replayed(program: Program, folder: Path) -> None:
    result = program("select", "8", "--job", "job.json", *SIM)
    assert result.status == 0
    assert "job.json is not replayed: there is no other candidate set of 8" in result.err
    assert "why       all 8 devices" in result.out


def test_equal_devices_tie_for_the_job_too(program: Program, folder: Path) -> None:
    job_file.save(data_parallel(4, (2**26,)), folder / "four.json")
    result = program("select", "4", "--job", "four.json", "--backend", "sim", "--fabric", "dgx-1v")
    assert result.status == 0
    assert "finalists 2 of 70 sets" in result.out


@pytest.mark.parametrize(
    ("title", "job", "args", "message"),
    [
        ("a job that is cut", without_rank(data_parallel(3), 1), ("3", *SIM), "no record of rank 1 of 3"),
        ("messages on another number", pipeline(), ("4", *SIM), "has 2 ranks and cannot be replayed on 4"),
        ("groups on another number", job_of([(0, 1)], [[]] * 2), ("2", *SIM), "no known step"),
        ("one device", data_parallel(), ("1", *SIM), "one device sends nothing"),
        ("labels", data_parallel(), ("2", "--topology", "topo.txt"), "--topology and --any-machine describe another"),
        ("another machine", data_parallel(), ("2", "run.json", "--any-machine"), "another machine: use only one"),
        ("measured, too", data_parallel(), ("2", "--verify", *SIM), "--verify measures all-reduces"),
        ("not measured, too", data_parallel(), ("2", "--no-verify", *SIM), "--verify measures all-reduces"),
        ("another size", data_parallel(), ("2", "--size", "1M", *SIM), "--size is of all-reduces"),
        ("another NCCL", data_parallel(), ("2", "--nccl", "x.so", *SIM), "replays with torch's NCCL"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_before_anything_is_measured(
    program: Program, folder: Path, title: str, job: Job, args: tuple[str, ...], message: str
) -> None:
    job_file.save(job, folder / "other.json")
    result = program("select", *args, "--job", "other.json")
    assert (result.status, result.out) == (2, ""), title
    assert message in result.line, title


def test_what_is_no_job_is_refused(program: Program, folder: Path) -> None:
    (folder / "text.json").write_text("hello")
    for name in ("none.json", "text.json"):
        result = program("select", "2", "--job", name, *SIM)
        assert (result.status, result.out) == (2, "")
        assert name in result.line


def step_seconds(fabric: Path, devices: Sequence[str], job: Job) -> float:
    """Return the seconds of a step on these simulated devices only, the mean of many with another seed."""
    tags = {device.tag: number for number, device in enumerate(factory.look_simulated(str(fabric)).devices)}
    arm = ReplayArm(places=tuple(tags[tag] for tag in devices))
    (backend,) = simulated.open_replay(str(fabric), None, 77, tuple, [arm]).worlds
    backend.prepare(schedule_of(job, len(devices)))
    return fmean(backend.run(ReplayLoad(1, pauses=False), 1.0)[0].step for _ in range(40))


@pytest.mark.parametrize("seed", range(8))
def test_on_any_machine_no_finalist_beats_the_chosen_set(folder: Path, seed: int) -> None:
    random_fabric = random_fabrics.make(np.random.default_rng(seed))
    fabric = folder / "fabric.json"
    fabric.write_text(fabric_text(random_fabric))
    count = 2 + seed % 3
    job = data_parallel(count, (2**24, 2**20))
    request = selecting.SelectRequest(count=count, backend="sim", fabric=str(fabric), scorer=JobScorer(job, "job"))
    chosen = selecting.select_devices(request).selection
    shown = chosen.job
    if shown is None:  # all there are, or bandwidth rules all others out
        assert count == len(random_fabric.gpus) or (not chosen.tied and len(chosen.finalists) == 1)
        return
    assert isinstance(shown, ForJob)
    sets = [entry.devices for entry in shown.sets]
    assert tuple(device.tag for device in chosen.devices) in sets
    assert len(set(sets)) == len(sets) <= 5
    assert all(len(set(entry)) == count for entry in sets)
    assert shown.possible == math.comb(len(random_fabric.gpus) - len(chosen.left_out), count)
    truth = {entry: step_seconds(fabric, entry, job) for entry in sets}
    step_of_choice = truth[tuple(device.tag for device in chosen.devices)]
    assert step_of_choice <= 1.05 * min(truth.values())
    for entry in shown.sets:
        if entry.standing == "slower":
            assert truth[entry.devices] > min(truth.values())
        if entry.standing == "tied":
            assert truth[entry.devices] == pytest.approx(truth[sets[0]], rel=0.05)
    assert chosen.tied == (len(sets) > 1 and {entry.standing for entry in shown.sets} <= {"best", "tied"})


# --- GPUs with fake ranks -----------------------------------------------------------------------------------------


class FakeRanks:
    """Fake ranks of one set: a call takes `call` seconds; after some loads it fails or is interrupted."""

    def __init__(self, call: float, error: BaseException | None = None, after: int = 0, wrong: int = 0) -> None:
        self.call, self.error, self.left, self.wrong = call, error, after, wrong
        self.schedule: Schedule | None = None

    def prepare(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def verify(self) -> int | None:
        return self.wrong

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        del expected_s
        if self.error is not None and self.left == 0:
            raise self.error
        self.left -= 1
        assert self.schedule is not None
        own = tuple(self.call for _ in self.schedule.ranks[0])
        return tuple(ReplayTimes(sum(own), own if load.calls else ()) for _ in self.schedule.ranks)


@pytest.fixture
def saved_run(monkeypatch: pytest.MonkeyPatch, program: Program, folder: Path) -> Run:
    """Four GPUs that are only listed, with a saved run in which pair 2, 3 is fastest; nothing else may be measured."""
    monkeypatch.setattr(factory, "resolve", lambda name: ("cuda" if name == "auto" else name, None))
    monkeypatch.setattr(
        factory, "look", lambda _: Present("cuda", gpus(4), states={gpu.uuid: Health(processes=0) for gpu in gpus(4)})
    )
    monkeypatch.setattr(by_run, "here", lambda of: Here("cuda", of.candidates, "580.159.04", "2.28.9"))
    monkeypatch.setattr(by_run, "probe", lambda *_: pytest.fail("probed"))
    monkeypatch.setattr(by_run, "measure_finalists", lambda *_: pytest.fail("measured"))
    return save_run(saved_in(folder), gpus(4))


def play(monkeypatch: pytest.MonkeyPatch, ranks_of: dict[tuple[str, ...], FakeRanks]) -> None:
    """Let these fakes stand for the sets of devices, by UUID; any other set fails the test."""

    def opened(name: str, device_names: str | None, arms: Sequence[ReplayArm], chosen: Choice) -> ReplayOpened:
        uuids = (device_names or "").split(",")
        devices = chosen(tuple(device for uuid in uuids for device in gpus(4) if device.uuid == uuid))
        worlds = tuple(ranks_of[tuple(uuids[position] for position in arm.places)] for arm in arms)
        return ReplayOpened(name, worlds, devices, 0.05, machine=Machine("box", "Linux", "CPU"))

    monkeypatch.setattr(backend, "open_replay", opened)


FIRST, FAST = ("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "collbench" / "finalists").glob("*.json"))


def test_the_job_decides_against_bandwidth_and_the_run_is_kept(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {FIRST: FakeRanks(1e-3), FAST: FakeRanks(2e-3)})
    result = program("select", "2", "--job", "job.json", "--format", "list")
    assert (result.status, result.out) == (0, "0,1\n")
    assert re.search(r"GPU2, GPU3 +4\.000 +2\.000.* +slower\n", result.err)
    assert "bandwidth alone chooses GPU2, GPU3" in result.err
    (path,) = kept(folder)
    run = run_file.load(path)
    assert (run.settings.kind, run.complete) == (CommandKind.REPLAY, True)
    assert {tuple(run.devices[position].uuid for position in replay.members) for replay in replays_of(run)} == {
        FIRST,
        FAST,
    }
    shown = program("show", str(path))
    assert shown.status == 0
    assert "on GPU0, GPU1" in shown.out
    assert program("export", str(path), "--format", "csv").status == 0
    assert program("report", str(path), "-o", "page.html").status == 0
    # No later command takes it for a run of links.
    assert not list((folder / "state" / "collbench" / "runs").glob("*select*"))


def test_a_finalist_that_hangs_is_named_and_the_others_decide(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in (0, 4):
        hangs = FakeRanks(1e-3, BackendError("no answer", failure=HANG), after)
        play(monkeypatch, {FIRST: FakeRanks(3e-3), FAST: hangs})
        result = program("select", "2", "--job", "job.json")
        assert result.status == 0, result.err
        assert result.out.startswith("GPU0, GPU1 ")
        assert "the only finalist that did not fail" in result.out
        assert "failed    GPU2, GPU3: " in result.out
        assert "job.json failed on GPU2, GPU3: " in result.err
        assert "bandwidth alone chooses GPU2, GPU3" in result.out


def test_where_all_fail_nothing_is_chosen(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(
        monkeypatch,
        {gpus_of_set: FakeRanks(1e-3, BackendError("no answer", failure=HANG)) for gpus_of_set in (FIRST, FAST)},
    )
    result = program("select", "2", "--job", "job.json", "--format", "env")
    assert (result.status, result.out) == (4, "false\n")  # of a hang
    assert "cannot replay job.json on the finalists: every set failed" in result.err


def test_where_every_set_has_a_link_that_hung_nothing_is_replayed(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file.save(data_parallel(3), folder / "three.json")
    hung = [
        replace(one, samples=[], failure=HANG) if one.point.members in {(0, 1), (2, 3)} else one
        for one in saved_run.measurements
    ]
    path = saved_in(folder)
    run_file.save(replace(saved_run, measurements=hung), path, replace=True)
    play(monkeypatch, {})
    assert program("select", "3", "--job", "three.json", "--format", "env").status == 4
    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(by_run, "_nccl_of_the_job", lambda _criteria: "2.28.9")
    (folder / "train.py").touch()
    refused = program(
        "train", "--auto-select", "3", "--backend", "cuda", "--dry-run", "--job", "three.json", "train.py"
    )
    assert (refused.status, refused.out) == (4, "")
    assert "every set of 3 includes failed" in refused.line


def test_wrong_data_ends_it(program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {FIRST: FakeRanks(1e-3), FAST: FakeRanks(1e-3, wrong=3)})
    result = program("select", "2", "--job", "job.json", "--format", "env")
    assert (result.status, result.out) == (4, "false\n")
    assert "wrong data; do not trust this machine" in result.err


def test_ctrl_c_chooses_nothing_and_keeps_the_trials(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {FIRST: FakeRanks(1e-3), FAST: FakeRanks(1e-3, KeyboardInterrupt(), 7)})
    result = program("select", "2", "--job", "job.json", "--format", "env")
    assert (result.status, result.out) == (130, "false\n")
    assert "interrupted while replaying the finalists: nothing was chosen" in result.err
    (path,) = kept(folder)
    assert not run_file.load(path).complete


def test_train_starts_on_what_the_job_decides(
    program: Program, saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(by_run, "_nccl_of_the_job", lambda _criteria: "2.28.9")
    (folder / "train.py").touch()
    play(monkeypatch, {FIRST: FakeRanks(1e-3), FAST: FakeRanks(2e-3)})
    args = ("--auto-select", "2", "--backend", "cuda", "--dry-run")
    result = program("train", *args, "--job", "job.json", "train.py")
    assert result.status == 0, result.err
    assert (
        "using GPU0, GPU1 (GPU-0, GPU-1): a step of job.json communicates for 2.000 ms (measured): the sh" in result.err
    )
    assert "CUDA_VISIBLE_DEVICES=GPU-0,GPU-1" in result.out
    assert "CUDA_VISIBLE_DEVICES=GPU-2,GPU-3" in program("train", *args, "train.py").out
    job_file.save(pipeline(), folder / "stages.json")
    refused = program("train", "--auto-select", "3", *args[2:], "--job", "stages.json", "train.py")
    assert (refused.status, refused.out) == (2, "")
    assert "cannot be replayed on 3" in refused.line
    assert "use only one" in program("train", *args, "--nccl", "x.so", "--job", "job.json", "train.py").line
    assert "use only one" in program("train", "--devices", "0,1", "--job", "job.json", "train.py").line


def test_python_takes_a_job(saved_run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {FIRST: FakeRanks(1e-3), FAST: FakeRanks(2e-3)})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(selecting, "_cuda_user", lambda: "")
    job = collbench.load_job("job.json")
    chosen = collbench.select(2, job=job)
    assert [device.uuid for device in chosen.devices] == list(FIRST)
    assert isinstance(chosen.job, ForJob)
    assert chosen.job.by_bandwidth == ("GPU2", "GPU3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=r"collbench\.load_job"):
        collbench.select(2, job="job.json")
    with pytest.raises(UsageError, match="use only one"):
        collbench.select(2, job=job, size="1M")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


# --- gloo, for real -----------------------------------------------------------------------------------------------


def test_two_sets_of_cores_take_turns_and_one_that_dies_leaves_the_other(folder: Path) -> None:
    pytest.importorskip("torch")
    cores = numa.devices()
    if len(cores) < 2:
        pytest.skip("one core is one set")
    values = {"backend": "host", "fabric": None, "trials": 3, "seed": 1}
    request = replaying.request_of(data_parallel(), "job.json", values, ("select", "2"), SILENT, ranks=2)
    both = replaying.on_sets(request, [cores[:2], cores[1::-1]])
    session = Replaying(both, folder / "run.json")
    try:
        assert [replay.members for replay in replays_of(session.finish().run)] == [(0, 1), (1, 0)]
    finally:
        session.close()
    assert [(replay.wrong, len(replay.trials)) for replay in replays_of(run_file.load(folder / "run.json"))] == [
        (0, 3)
    ] * 2

    session = Replaying(both, folder / "other.json")
    worlds = session._opened.worlds
    os.kill(worlds[0].process_ids[1], signal.SIGKILL)  # type: ignore[attr-defined]
    run = session.finish().run
    failed, finished = replays_of(run)
    assert (failed.trials, len(finished.trials), finished.failure, run.complete) == ([], 3, None, True)
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.devices) == (FailureKind.CRASH, (1,))
