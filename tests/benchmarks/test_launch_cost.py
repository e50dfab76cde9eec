"""benchmarks/launch_cost.py: the difference to torchrun by hand, and its phases on simulated GPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import launch_cost
from benchmarks.launch_cost import PROBED, SAVED, TORCHRUN, FinalistRequest
from collbench.backends import factory
from tests.builders import gpus, pair_run
from tests.cli.program import environment, fake_gpus, save_run
from tests.native.fakes import Fakes, build

RUN = replace(pair_run(4, lambda *_: 300.0), devices=gpus(4))


def lines(monkeypatch: pytest.MonkeyPatch, saved: list[float], probed: list[float], backend: str = "cuda") -> list[str]:
    """Return the report on three rounds in which torchrun takes 2, 3 and 10 s, and `train` that and so much more."""
    monkeypatch.setattr(launch_cost, "phases", lambda _sitting: ["  phases"])
    plain = [2.0, 3.0, 10.0]
    times = {TORCHRUN: plain}
    for arm, added in ((SAVED, saved), (PROBED, probed)):
        times[arm] = [wall + more for wall, more in zip(plain, added, strict=True)]
    return list(launch_cost.report(FinalistRequest(Path(), backend, 2), RUN, times))


@pytest.mark.parametrize(
    ("title", "saved", "probed", "ends"),
    [
        ("both below", [0.4, 0.5, 0.1], [3.0, 4.0, 9.0],
         ("0.40  0.10–0.50    0.5 met", "4.00  3.00–9.00    4.0 met")),
        ("both above", [0.6, 0.9, 0.1], [4.1, 5.0, 2.0],
         ("0.60  0.10–0.90    0.5 missed", "4.10  2.00–5.00    4.0 missed")),
    ],
)  # fmt: skip
def test_what_is_added_is_each_rounds_own_difference(
    monkeypatch: pytest.MonkeyPatch, title: str, saved: list[float], probed: list[float], ends: tuple[str, str]
) -> None:
    """Of walls the medians would differ by other figures: rounds differ by more than what is added."""
    said = lines(monkeypatch, saved, probed)
    assert next(line for line in said if line.startswith(SAVED)).endswith(ends[0]), title
    assert next(line for line in said if line.startswith(PROBED)).endswith(ends[1])
    assert next(line for line in said if line.startswith(TORCHRUN)).split() == ["torchrun", "3.00", "2.00–10.00"]
    assert said[-1] == "  phases"
    assert "4 × NVIDIA H200, backend cuda" in said[0]


def test_cores_are_not_held_to_the_bars_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines(monkeypatch, [0.4, 0.5, 0.1], [9.0, 9.0, 9.0], "host")
    assert any(line.startswith("note      the bars are for GPUs") for line in said)
    assert [line[-11:] for line in said if "train, " in line] == ["0.5 on GPUs", "4.0 on GPUs"]
    assert not [line for line in said if line.endswith(("met", "missed"))]


def test_every_round_has_every_arm_once_in_turn_and_the_first_round_only_warms_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed: list[str] = []

    def seconds(_sitting: FinalistRequest, words: list[str]) -> float:
        arm = TORCHRUN if "torch.distributed.run" in words else PROBED if "--fresh" in words else SAVED
        typed.append(arm)
        if arm == PROBED:
            (tmp_path / "collbench" / "runs" / f"2026112{len(typed)}T000000Z-cuda-probe-n0-1.json").touch()
        return float(len(typed))

    monkeypatch.setattr(FinalistRequest, "seconds", seconds)
    save_run(tmp_path / "collbench" / "runs" / "20261121T000000Z-cuda-pairs.json", gpus(4))
    times = launch_cost.measure(FinalistRequest(tmp_path, "cuda", 2), 2)
    arms = [TORCHRUN, SAVED, PROBED]
    assert typed == [*arms, *arms[1:], arms[0], arms[2], *arms[:2]]
    assert times == {TORCHRUN: [6.0, 8.0], SAVED: [4.0, 9.0], PROBED: [5.0, 7.0]}
    assert len(list((tmp_path / "collbench" / "runs").iterdir())) == 1  # no probe is left to choose from


def test_a_command_that_fails_ends_the_sitting_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)-c print\(1/0\) failed \(1\): .*ZeroDivisionError"):
        FinalistRequest(tmp_path, "cuda", 2).seconds([sys.executable, "-c", "print(1/0)"])


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """Simulated GPUs that have everything."""
    return build(tmp_path_factory.mktemp("fakes"))


def test_the_phases_are_those_of_a_launch(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (fakes.environment(gpus=4) | environment(fakes, tmp_path)).items():
        monkeypatch.setenv(name, value)
    save_run(tmp_path / "collbench" / "runs" / "20261121T000000Z-cuda-pairs.json", fake_gpus())
    phases = [line[:36].strip() for line in launch_cost.phases(FinalistRequest(tmp_path, "cuda", 2))]
    assert phases == [
        "start Python", "import the command line", "look at the machine (NVML once)", "ask NCCL its version",
        "read the run file", "import numpy and the choice", "choose",
    ]  # fmt: skip


def test_where_there_is_no_gpu_the_line_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(factory, "resolve", lambda _name: ("host", "no GPU here"))
    with pytest.raises(RuntimeError, match="no GPU here: write --backend host"):
        launch_cost.sit(tmp_path, "auto", None)
