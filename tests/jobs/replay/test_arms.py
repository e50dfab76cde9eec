"""`collbench replay` in two arms: how a change affects a recorded job's communication, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from collbench.jobs import job_file
from collbench.jobs.replay import worlds as backend
from collbench.jobs.replay.protocol import ReplayArm, ReplayOpened
from collbench.jobs.replay.results import replays_of
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Choice
from collbench.model.run import CommandKind, Machine
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program
from tests.jobs.replay.made import data_parallel, pipeline, without_rank
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


def test_devices_against_devices(program: Program, folder: Path) -> None:
    result = program("replay", "job.json", *SIM, "--devices", "0,1", "--against", "0,3", "-o", "run.json")
    assert (result.status, result.err) == (0, "")
    first = result.out.splitlines()[0]
    assert first.startswith("On GPU0, GPU3 the communication of a step of this job takes 49.")
    assert "% less than on GPU0, GPU1 (95% interval 49." in first
    assert first.endswith(" (sim).")
    run = run_file.load(folder / "run.json")
    assert (run.settings.kind, run.complete, len(run.devices)) == (CommandKind.REPLAY, True, 3)
    assert [[run.devices[position].index for position in replay.members] for replay in replays_of(run)] == [
        [0, 1],
        [0, 3],
    ]
    assert program("show", "run.json").out == result.out.partition("\nsaved ")[0].rstrip("\n") + "\n"
    other = program("replay", "job.json", *SIM, "--devices", "0,3", "--against", "0,1", "--json")
    assert json.loads(other.out)["replays"][1]["members"] == [0, 2]


def test_equal_devices_make_no_difference_and_order_is_kept(program: Program, folder: Path) -> None:
    job_file.save(pipeline(2**22), folder / "stages.json")
    result = program("replay", "stages.json", *SIM, "--devices", "3,0", "--against", "2,1", "-o", "run.json")
    assert result.out.splitlines()[0].startswith("No difference beyond ±")
    run = run_file.load(folder / "run.json")
    assert [[run.devices[position].index for position in replay.members] for replay in replays_of(run)] == [
        [3, 0],
        [2, 1],
    ]


def test_two_trials_say_so(program: Program, folder: Path) -> None:
    args = ("--devices", "0,1", "--against", "0,3", "--trials", "2", "-o", "run.json")
    result = program("replay", "job.json", *SIM, *args)
    assert result.out.startswith(
        "2 trials are too few to say what on GPU0, GPU3 changes in the communication of a step"
    )


@pytest.mark.parametrize(
    ("title", "args", "message"),
    [
        ("two changes", ("job.json", *SIM, "--without", "p2p", "--against", "2,3"), "use only one"),
        (
            "no P2P in sim",
            ("job.json", *SIM, "--without", "p2p"),
            "no p2p to deny NCCL: compare devices",
        ),
        ("nor on cores", ("job.json", "--backend", "host", "--without", "shm"), "host backend has no shm to deny NCCL"),
        ("a variable", ("job.json", *SIM, "--without", "NCCL_ALGO=Ring"), "NCCL_ALGO=Ring needs a script"),
        ("no such word", ("job.json", *SIM, "--without", "p2q"), "did you mean p2p?"),
        ("too few others", ("job.json", *SIM, "--against", "2"), "--against names 1 device, and the step"),
        ("the same", ("job.json", *SIM, "--devices", "0,1", "--against", "1,0"), "both would use the same links"),
        ("no such device", ("job.json", *SIM, "--devices", "0,1", "--against", "1,9"), "9"),
        ("no such file", ("none.json", *SIM, "--against", "2,3"), "none.json"),
        ("a cut job", ("cut.json", *SIM, "--against", "2,3"), "no record of rank 1"),
        ("fabric alone", ("job.json", "--fabric", "dgx-1v", "--against", "2,3"), "add --backend sim"),
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


def play(monkeypatch: pytest.MonkeyPatch, fakes: Sequence[Fake]) -> list[ReplayArm]:
    """Let these stand for two GPUs' ranks; return the list that will hold the requested arms."""
    opened_arms: list[ReplayArm] = []

    def opened(
        name: str, device_names: str | None, arms: Sequence[ReplayArm], chosen: Choice, *, independent: bool
    ) -> ReplayOpened:
        assert (device_names, independent) == ("0,1", False)
        opened_arms.extend(arms)
        return ReplayOpened(name, tuple(fakes), chosen(gpus(2)), 0.05, machine=Machine("box", "Linux", "CPU"))

    monkeypatch.setattr(factory, "resolve", lambda _: ("cuda", None))
    monkeypatch.setattr(backend, "open_replay", opened)
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
    assert [dict(arm.settings) for arm in arms] == [{}, {"NCCL_P2P_DISABLE": "1"}]
    run = run_file.load(folder / "run.json")
    assert [replay.without for replay in replays_of(run)] == [(), ("p2p",)]
    jsonschema.validate(json.loads((folder / "run.json").read_text(encoding="utf-8")), SCHEMA)


def test_several_transports_are_disabled_at_once(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = play(monkeypatch, [Fake([]), Fake([], 2e-3)])
    result = program("replay", "--without", "nvlink,shm", "job.json", "--devices", "0,1", "-o", "run.json")
    assert "turns off P2P over PCIe as well" in result.err
    assert arms[1].settings == {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
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


def test_on_cores_for_real(program: Program, folder: Path) -> None:
    """Two cores are one set, whatever their order; more cores have further sets."""
    pytest.importorskip("torch")
    cores = [device.index for device in factory.present_devices("host")]
    if len(cores) < 2:
        pytest.skip("one core has no link")
    others = cores[1:3] if len(cores) > 2 else cores[::-1]
    args = ("--devices", ",".join(map(str, cores[:2])), "--against", ",".join(map(str, others)), "--trials", "3")
    result = program("replay", "job.json", "--backend", "host", *args, "-o", "run.json")
    if len(cores) == 2:
        assert "both would use the same links" in result.line
        return
    assert result.status == 0, result.err
    assert [replay.wrong for replay in replays_of(run_file.load(folder / "run.json"))] == [0, 0]
