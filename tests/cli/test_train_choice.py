"""`collbench train` at launch: which GPUs are present, healthy and excluded, and what looking at them costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.api import by_run
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.run import Health, Measurement, Run
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, Result, fake_gpus, fake_uuid, list_only, on_gpus, one_line, save_run, saved_in
from tests.native.fakes import Fakes

BUSY = Health(processes=1)


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """A script to start."""
    (tmp_path / "train.py").touch()


@pytest.fixture
def saved(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A saved run of four GPUs that are only listed: 2-3 is the fastest pair, 0-1 the slowest; probing fails."""
    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(by_run, "probe", lambda _criteria, why, _notices: pytest.fail(f"probed: {why}"))
    monkeypatch.setattr(by_run, "_nccl_of_the_job", lambda _criteria: "2.28.9")
    return save_run(saved_in(tmp_path), gpus(4))


def states(**unwell: Health) -> dict[str, Health]:
    return {device.uuid: unwell.get(device.tag, Health(processes=0)) for device in gpus(4)}


def train(program: Program, *args: str) -> Result:
    return program("train", *args, "--backend", "cuda", "--dry-run", "train.py")


def choice_of(result: Result) -> str:
    assert result.status == 0, result.err
    return result.err.splitlines()[-1].removeprefix("collbench: using ").partition(" (")[0]


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "args", "environment"),
    [
        ("from a saved run", ["--auto-select", "2"], {}),
        ("of those that a scheduler leaves", ["--auto-select", "2"], {"CUDA_VISIBLE_DEVICES": "0,2,3"}),
    ],
)
def test_nvml_starts_once_and_cuda_never(
    fakes: Fakes, tmp_path: Path, case: str, args: list[str], environment: dict[str, str]
) -> None:
    save_run(saved_in(tmp_path, "mine.json"), fake_gpus())
    done = on_gpus(fakes, ["train", *args, "--dry-run", "train.py"], environment)
    assert done.code == 0, done.stderr
    assert len(done.lines("nvmlInitWithFlags")) == 1, case
    assert done.lines("cu") == [], case
    assert [line for line in done.log if line.startswith("nccl") and "Version" not in line] == []


@pytest.mark.parametrize(
    ("case", "setting"), [("indices mixed with UUIDs", f"{fake_uuid(2)},3"), ("an index and more", "2,3x")]
)
def test_cuda_decides_what_its_guide_leaves_open(fakes: Fakes, case: str, setting: str) -> None:
    args = ["train", "--devices", "2", "--dry-run", "train.py"]
    done = on_gpus(fakes, args, {"CUDA_VISIBLE_DEVICES": setting})
    assert done.code == 0, done.stderr
    assert done.lines("cuInit") != [], case


# --- healthy devices ----------------------------------------------------------------------------------------------


def test_when_all_are_wanted_a_busy_one_is_a_refusal_that_names_it(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_only(monkeypatch, gpus(4), states=states(GPU2=BUSY))
    result = train(program, "--auto-select", "4")
    assert (result.status, result.out) == (2, "")
    assert "cannot choose 4 of 4 devices: 3 are left without GPU2 (busy: 1 other process)" in result.line
    assert "--allow-busy" in result.line
    assert choice_of(train(program, "--auto-select", "4", "--allow-busy")) == "GPU0, GPU1, GPU2, GPU3"


def hung(run: Run, pair: tuple[int, int]) -> list[Measurement]:
    """Return the run's measurements with a hang on one pair."""
    failure = Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=60.0)
    return [replace(one, samples=[], failure=failure) if one.point.members == pair else one for one in run.measurements]


@pytest.mark.parametrize("count", [2, 4])
def test_where_all_are_wanted_a_link_that_hung_is_a_refusal_too(
    program: Program, saved: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    run_file.save(replace(saved, measurements=hung(saved, (0, 1))), saved_in(tmp_path), replace=True)
    list_only(monkeypatch, gpus(4)[:count], hidden=gpus(4)[count:])
    result = train(program, "--auto-select", str(count))
    assert (result.status, result.out) == (4, "")
    assert f"every set of {count} includes failed GPU0-GPU1: nothing was started" in result.line


@pytest.mark.parametrize("wanted", ["2", "4"])
def test_a_newer_run_that_does_not_fit_but_shows_a_failure_is_followed_by_a_probe(
    program: Program, saved: Run, tmp_path: Path, wanted: str
) -> None:
    newer = saved_in(tmp_path, "later.json")
    broken = hung(saved, (0, 1))
    for changes in ({"complete": False, "measurements": broken[:1]}, {"backend": "cuda", "measurements": broken}):
        other = replace(saved.machine, driver="570.1")
        run_file.save(replace(saved, machine=other, **changes), newer, replace=True)
        with pytest.raises(pytest.fail.Exception, match=r"no saved run fits: the newest's driver was 570\.1"):
            train(program, "--auto-select", wanted)
    run_file.save(replace(saved, machine=other), newer, replace=True)  # without a failure the older run counts
    assert train(program, "--auto-select", wanted).status == 0


def test_where_all_are_wanted_no_run_is_made_unless_asked(program: Program, saved: Run, tmp_path: Path) -> None:
    assert "(run of " in train(program, "--auto-select", "4").line
    saved_in(tmp_path).unlink()
    assert "(no choice to make, links not probed)" in train(program, "--auto-select", "4").line
    with pytest.raises(pytest.fail.Exception, match="probed: "):
        train(program, "--auto-select", "4", "--fresh")


def test_allow_busy_measures_anew_for_a_saved_run_does_not_say_what_others_leave(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_only(monkeypatch, gpus(4), states=states(GPU2=BUSY))
    probed: list[str] = []

    def probe(_wanted: object, why: str, _notices: object) -> by_run.SuitableRun:
        probed.append(why)
        return by_run.SuitableRun(saved, "a probe")

    monkeypatch.setattr(by_run, "probe", probe)
    assert choice_of(train(program, "--auto-select", "2", "--allow-busy")) == "GPU2, GPU3"
    assert probed == ["a saved run does not show what other processes use now: "]


def test_by_hand_a_busy_one_is_taken_and_the_line_says_so(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_only(monkeypatch, gpus(4), states=states(GPU2=BUSY))
    result = train(program, "--devices", "2,0")
    assert choice_of(result) == "GPU2, GPU0"
    assert result.err.splitlines()[0] == "collbench: used anyway: GPU2 (busy: 1 other process)"
    assert train(program, "--devices", "1,0").line.startswith("using GPU1, GPU0 ")


def test_by_hand_a_link_that_hung_is_taken_and_the_line_says_so(program: Program, saved: Run, tmp_path: Path) -> None:
    run_file.save(replace(saved, measurements=hung(saved, (0, 1))), saved_in(tmp_path), replace=True)
    result = train(program, "--devices", "1,0")
    assert choice_of(result) == "GPU1, GPU0"
    assert "used anyway: GPU0-GPU1 (failed in the run of " in result.err.splitlines()[0]
    assert "used anyway" not in train(program, "--devices", "0,2").err


# --- devices that may be chosen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        (["--auto-select", "2", "--exclude", "3"], "GPU0, GPU2"),
        (["--auto-select", "2", "--exclude", "GPU-2,0"], "GPU1, GPU3"),
    ],
)
def test_what_is_excluded_is_not_chosen(program: Program, saved: Run, args: list[str], chosen: str) -> None:
    result = train(program, *args)
    assert choice_of(result) == chosen
    assert "left out" not in result.err  # the user excluded it


def test_inside_a_schedulers_set_the_run_of_all_decides_and_the_line_says_so(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = gpus(4)
    list_only(monkeypatch, every[:3], hidden=every[3:])
    result = train(program, "--auto-select", "2")
    assert choice_of(result) == "GPU0, GPU2"  # 2-3 is faster, and 0-1 slower
    assert ", among the 3 that CUDA_VISIBLE_DEVICES shows (run of " in result.line
    list_only(monkeypatch, every[:2], hidden=every[2:])
    result = train(program, "--auto-select", "2")
    assert ": both devices, among the 2 that CUDA_VISIBLE_DEVICES shows (run of " in result.line


def test_a_mig_gpu_is_neither_chosen_nor_taken_by_hand(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = gpus(4)
    list_only(monkeypatch, every[:3], mig=every[3:])
    result = train(program, "--auto-select", "2")
    assert choice_of(result) == "GPU0, GPU2"
    assert "left out: GPU3 (in MIG mode, whose instances have no P2P)" in result.err
    refused = train(program, "--devices", "3,0")
    assert refused.status == 2
    assert "GPU3 cannot train with others: in MIG mode" in refused.line
    assert "GPU3 (in MIG mode, whose instances have no P2P)" in train(program, "--auto-select", "4").line


def test_mig_devices_of_a_scheduler_are_one_clear_line(fakes: Fakes) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "MIG-0af7651e-8b2d-5c7e-9c2d-2f1f8f1f8f1f"}
    done = on_gpus(fakes, ["train", "--auto-select", "2", "train.py"], environment)
    assert (done.code, done.stdout) == (2, "")
    assert "MIG devices cannot talk P2P" in one_line(done.stderr)


# --- devices that are gone, and requests that do not fit ----------------------------------------------------------


def test_a_gpu_that_is_gone_since_the_run_is_named(
    program: Program, saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_only(monkeypatch, gpus(4)[:3])
    with pytest.raises(pytest.fail.Exception) as probed:
        train(program, "--auto-select", "2")
    assert str(probed.value) == (
        "probed: no saved run fits: the newest was measured on GPU3 (GPU-3), which this process may not use: "
    )
    gone = "GPU3 (gone since the last run, GPU-3: see nvidia-smi -L)"
    assert f"than the 3 that may be chosen (GPU0, GPU1, GPU2; not {gone})" in (
        train(program, "--auto-select", "4").line
    )
    result = train(program, "--auto-select", "3")
    assert choice_of(result) == "GPU0, GPU1, GPU2"
    assert result.err.startswith(f"collbench: left out: {gone}\n")
