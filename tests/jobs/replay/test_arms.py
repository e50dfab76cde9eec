"""`collbench replay` in two arms: how a change affects a recorded job's communication, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from collbench.ablations.ablation import ArmChange
from collbench.jobs import job_file
from collbench.jobs.replay.measure import ReplayOpened, ReplayRequest
from collbench.jobs.replay.results import replays_of
from collbench.measurement.backends import factory
from collbench.model.run import Machine
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program
from tests.jobs.replay.made import data_parallel, without_rank
from tests.jobs.replay.test_measure import FakeWorld as Fake

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "run-file.schema.json").read_text(encoding="utf-8"))
SIM = ("--backend", "sim", "--fabric", "dgx-1v", "--seed", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    job_file.save(data_parallel(2, (2**26, 2**24)), tmp_path / "job.json")
    return tmp_path


@pytest.mark.parametrize(
    ("title", "args", "message"),
    [
        (
            "no P2P in sim",
            ("job.json", *SIM, "--without", "p2p"),
            "no p2p to deny NCCL: leave out --without",
        ),
        ("nor on cores", ("job.json", "--backend", "host", "--without", "shm"), "host backend has no shm to deny NCCL"),
        ("a variable", ("job.json", *SIM, "--without", "NCCL_ALGO=Ring"), "NCCL_ALGO=Ring needs a script"),
        ("a cut job", ("cut.json", *SIM), "no record of rank 1"),
    ],
)
def test_bad_combinations_are_one_line(
    program: Program, folder: Path, title: str, args: tuple[str, ...], message: str
) -> None:
    job_file.save(without_rank(data_parallel(3), 1), folder / "cut.json")
    result = program("replay", *args)
    assert (result.status, result.out) == (2, ""), title
    assert message in result.line, title
    assert not (folder / "state").exists()


def play(monkeypatch: pytest.MonkeyPatch, fakes: Sequence[Fake]) -> list[ArmChange]:
    """Let these stand for two GPUs' ranks; return the list that will hold the requested arms."""
    opened_arms: list[ArmChange] = []

    def opened(request: ReplayRequest) -> ReplayOpened:
        assert request.devices == "0,1"
        opened_arms.extend(request.arms)
        machine = Machine("box", "Linux", "CPU")
        return ReplayOpened(request.backend, tuple(fakes), request.chosen(gpus(2)), 0.05, machine=machine)

    monkeypatch.setattr(factory, "resolve", lambda _: ("cuda", None))
    monkeypatch.setattr(ReplayRequest, "open", opened)
    return opened_arms


def test_how_much_longer_a_step_takes_without_p2p(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = play(monkeypatch, [Fake([]), Fake([], 3e-3)])
    args = ("--devices", "0,1", "--without", "p2p", "-o", "run.json")
    result = program("replay", "job.json", *args)
    assert result.status == 0, result.err
    assert (
        result.out.splitlines()[0]
        == "Without P2P the communication of a step of this job takes 200% longer (95% interval 200%)."
    )
    assert [dict(arm.environment) for arm in arms] == [{}, {"NCCL_P2P_DISABLE": "1"}]
    run = run_file.load(folder / "run.json")
    assert [replay.without for replay in replays_of(run)] == [(), ("p2p",)]
    jsonschema.validate(json.loads((folder / "run.json").read_text(encoding="utf-8")), SCHEMA)


def test_two_trials_say_so(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, [Fake([]), Fake([], 3e-3)])
    result = program("replay", "job.json", "--devices", "0,1", "--without", "p2p", "--trials", "2", "-o", "run.json")
    first = " ".join(result.out.splitlines()[:2])
    assert first.startswith("2 trials are too few to say what without P2P changes in the communication of a step")


def test_several_transports_are_disabled_at_once(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = play(monkeypatch, [Fake([]), Fake([], 2e-3)])
    result = program("replay", "--without", "nvlink,shm", "job.json", "--devices", "0,1", "-o", "run.json")
    assert "turns off P2P over PCIe as well" in result.err
    assert arms[1].environment == {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert "Without NVLink and SHM the communication" in result.out.splitlines()[0]
    jsonschema.validate(json.loads((folder / "run.json").read_text(encoding="utf-8")), SCHEMA)


def test_a_failed_arm_gives_no_comparison(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lame = Fake([])
    lame.fails_after = 5
    play(monkeypatch, [Fake([]), lame])
    result = program("replay", "job.json", "--devices", "0,1", "--without", "p2p", "-o", "run.json")
    assert result.status == 1
    assert "measured so far are saved" in result.err
    assert "worth" not in program("show", "run.json").out


def test_a_variable_that_is_set_already_is_refused(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, [Fake([]), Fake([])])
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    result = program("replay", "job.json", "--devices", "0,1", "--without", "p2p")
    assert (result.status, result.out) == (2, "")
    assert "NCCL_P2P_DISABLE is already set" in result.line
