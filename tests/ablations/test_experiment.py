"""The course of an ablation whose training script is a function: exact step times, and every failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collbench.ablations import ablation as ablations
from collbench.ablations import experiment
from collbench.ablations.ablation import Ablation, Measure
from collbench.ablations.child import Reader
from collbench.ablations.experiment import Experiment, Reporter, environment_of
from collbench.model.errors import BackendError, UsageError
from tests.ablations.made import ablation

Script = Callable[[Mapping[str, str], int], tuple[int, str]]


def prints_steps(environment: Mapping[str, str], _run: int) -> tuple[int, str]:
    length = 32 if "NCCL_P2P_DISABLE" in environment else 24
    return 0, "step_time=1s\n" * 3 + f"step_time={length}ms\n" * 4


@dataclass
class Stage:
    """A fake child process for an experiment: the script, the commands started and their environments, the messages."""

    tmp_path: Path
    script: Script = prints_steps
    started: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    output_lines: list[str] = field(default_factory=list)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        reader: Reader,
        watch: Callable[[bytes], None] = lambda _data: None,
    ) -> tuple[int, float]:
        """Stand in for child.run_child."""
        self.started.append((list(command), dict(environment)))
        status, text = self.script(environment, len(self.started))
        reader.feed(text.encode())
        watch(text.encode())
        reader.close()
        return status, 10.0 * len(self.started)

    def perform(self, pattern: str | None = None, repeats: int = 2, **changes: object) -> Ablation:
        planned = ablation([1.0] * repeats, [1.0] * repeats)
        planned.result, planned.measure, planned.seed = None, Measure.PROCESS, 0
        for arm in planned.arms:
            arm.runs = []
        for name, value in changes.items():
            setattr(planned, name, value)
        args = ("--max-restarts", "0", "--", "train.py")
        compiled = re.compile(pattern) if pattern else None
        Experiment(
            ablation=planned,
            reporter=Reporter(self.messages.append, self.output_lines.extend, lambda _data: None, lambda _text: None),
            arguments=args,
            path=self.tmp_path / "a.json",
            logs=self.tmp_path,
            inherited={"HOME": "/", "NCCL_NVLS_ENABLE": "0"},
            pattern=compiled,
        ).train()
        return planned

    @property
    def saved(self) -> Ablation:
        return ablations.load(self.tmp_path / "a.json")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(experiment, "run_child", stage.run)
    return stage


def test_both_arms_train_in_turn_on_the_same_devices_and_differ_in_one_variable(stage: Stage) -> None:
    ablated = stage.perform()
    args = ["train", "--backend", "cuda", "--devices", "GPU-a,GPU-b", "--max-restarts", "0"]
    assert [command[command.index("train") :] for command, _ in stage.started] == [
        [*args, "--log-dir", str(stage.tmp_path / f"run-{number}.torchrun"), "--", "train.py"] for number in range(1, 5)
    ]
    base = {"HOME": "/", "NCCL_NVLS_ENABLE": "0"}
    without = base | {"NCCL_P2P_DISABLE": "1"}
    assert [environment for _, environment in stage.started] == [base, without, without, base]
    assert ablated.result is not None
    assert ablated.result.ratio.middle == pytest.approx(32 / 24)
    assert [arm.seconds for arm in ablated.result.arms] == [pytest.approx(0.024), pytest.approx(0.032)]
    assert stage.messages == [
        "run 1 of 4, with p2p: 24.00 ms a step",
        "run 2 of 4, without p2p: 32.00 ms a step",
        "run 3 of 4, without p2p: 32.00 ms a step",
        "run 4 of 4, with p2p: 24.00 ms a step",
    ]
    assert stage.saved == ablated


def test_every_run_is_in_the_file_once_it_has_ended(stage: Stage) -> None:
    counts: list[int] = []

    def script(environment: Mapping[str, str], run: int) -> tuple[int, str]:
        if run > 1:
            counts.append(len(stage.saved.made))
            assert stage.saved.result is None
        return prints_steps(environment, run)

    stage.script = script
    stage.perform(repeats=3)
    assert counts == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("case", "texts", "measure", "middle"),
    [
        # Walls of 10, 20, 30, 40 s with the arms in the order 0, 1, 1, 0: √(20·30 / 10·40).
        ("nothing", ["", "", "", ""], Measure.PROCESS, 1.2247),
        ("Hugging Face's runtime", ["{'train_runtime': 5.0}"] * 4, Measure.TRAIN_RUNTIME, 1.0),
        ("nothing in the third", ["step_time=2s\n" * 4] * 2 + [""] + ["step_time=2s\n" * 4], Measure.PROCESS, 1.2247),
        ("steps in the last alone", ["", "", "", "step_time=2s\n" * 4], Measure.PROCESS, 1.2247),
    ],
)
def test_a_script_that_prints(stage: Stage, case: str, texts: list[str], measure: Measure, middle: float) -> None:
    stage.script = lambda _environment, run: (0, texts[run - 1])
    ablated = stage.perform()
    assert ablated.measure is measure, case
    assert ablated.result is not None
    assert ablated.result.ratio.middle == pytest.approx(middle, abs=1e-4), case
    assert len([line for line in stage.messages if line.startswith("no step times to compare")]) == 1, case


def test_a_failed_script_shows_its_traceback_first_and_ends_the_ablation(stage: Stage) -> None:
    def script(environment: Mapping[str, str], run: int) -> tuple[int, str]:
        return (1, "loading\nTraceback (most recent call last):\nValueError: no data\n") if run == 2 else (0, "")

    stage.script = script
    with pytest.raises(
        BackendError, match=r"run 2 of 4, without p2p: the script failed \(exit status 1, see above\)"
    ) as error:
        stage.perform()
    assert "run-2.log; 1 of 4 runs are saved as " in str(error.value)
    assert stage.output_lines == ["Traceback (most recent call last):", "ValueError: no data"]
    assert [run.status for run in stage.saved.made] == [0, 1]
    assert len(stage.started) == 2


@pytest.mark.parametrize(
    ("case", "text", "changes", "reported"),
    [
        ("too few steps", "step_time=2s\n" * 2, {}, "printed 2 step times, and the first 3 are dropped"),
        ("skipped by the user", "step_time=2s\n" * 9, {"skip": 9}, "write --skip 8 or less"),
        ("no match of the pattern", "step_time=2s\n", {"pattern": r"took (?P<ms>\d+)"}, "matches --step-pattern 'took"),
    ],
)
def test_no_step_to_count_is_one_line_after_the_first_run(
    stage: Stage, case: str, text: str, changes: dict[str, object], reported: str
) -> None:
    stage.script = lambda _environment, _run: (0, text)
    with pytest.raises(UsageError, match=re.escape(reported)) as error:
        stage.perform(**changes)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert (len(stage.started), stage.messages) == (1, []), case


def test_the_file_keeps_only_nccl_variables_of_the_environment() -> None:
    assert environment_of({"NCCL_ALGO": "Ring", "HF_TOKEN": "secret", "XNCCL_": "1"}) == {"NCCL_ALGO": "Ring"}
