"""One ablation from its first run to its last: the runs in turn, each kept in the file once it has ended."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench import runfile
from collbench.ablation import file, running
from collbench.ablation.arms import sequence
from collbench.ablation.model import Ablation, AllReduce, Arm, Measure, TrainingRun
from collbench.ablation.result import judge, measure_of, step_value, value, warm_up
from collbench.ablation.running import collbench
from collbench.ablation.steps import Reader, last_words
from collbench.ablation.words import format_seconds
from collbench.errors import BackendError, UsageError
from collbench.stats import summarize

# From a scalar over DDP's first bucket of 1 MiB to its usual ones together.
ALLREDUCE_SIZES = {"cuda": "8,1M,64M,256M", "host": "8,1M,64M"}
_UNITS = {Measure.STEP: " a step", Measure.TRAIN_RUNTIME: " of training", Measure.PROCESS: " in all"}

_INSTEAD = {
    Measure.TRAIN_RUNTIME: "what counts is train_runtime, which Hugging Face's Trainer prints",
    Measure.PROCESS: "what counts is the time of the whole process, its start included; print lines like "
    "step_time=22.4ms, or write --step-pattern",
}


@dataclass(frozen=True, slots=True)
class Told:
    """Whom an experiment speaks to: notices, a script's last words, its output as it comes, and steps as they come."""

    say: Callable[[str], None]
    show: Callable[[Sequence[str]], None]
    watch: Callable[[bytes], None]
    step: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every run of an experiment shares.

    `words` are what follows `collbench train --devices …`, `logs` the folder for the children's output, `inherited` the
    environment that both arms start from, `nccl` the library to time all-reduces with. `force`: an older file at `path`
    gives way.
    """

    words: tuple[str, ...]
    path: Path
    logs: Path
    inherited: Mapping[str, str]
    pattern: re.Pattern[str] | None = None
    nccl: str | None = None
    force: bool = False


class Experiment:
    """Fills an ablation with runs. Whatever ends it early, the runs that had ended are in its file."""

    def __init__(self, ablation: Ablation, plan: Plan, told: Told) -> None:
        self.ablation, self._plan, self._told = ablation, plan, told
        self._total = 2 * ablation.repeats
        self._file = file.own(plan.path, told.say, force=plan.force)

    def measure_allreduces(self) -> None:
        """Time the all-reduce of both arms, each in its own environment. Raises BackendError."""
        self._told.say("measuring the all-reduce of both, a few seconds each")
        for number, arm in enumerate(self.ablation.arms):
            saved = self._plan.logs / f"allreduce-{number}.json"
            sizes = ALLREDUCE_SIZES[self.ablation.backend]
            words = ["allreduce", *self._devices(arm), "--sizes", sizes, "--quick", "--output", str(saved)]
            words += ["--nccl", self._plan.nccl] if self._plan.nccl else []
            reader = Reader()
            ended = running.run(collbench(*words), self._environment(arm), saved.with_suffix(".log"), reader)
            if ended.status != 0:
                self._told.show(last_words(reader.tail))
                raise BackendError(
                    f"cannot measure the all-reduce {arm.name} ({_status(ended.status)}, see above): nothing was "
                    "trained; --no-allreduce goes on without it"
                )
            arm.allreduce = _allreduce(saved)

    def train(self) -> None:
        """Make every run, in order. Raises BackendError for a script that fails, UsageError for one without steps."""
        for order, (repeat, number) in enumerate(sequence(self.ablation.repeats, self.ablation.seed)):
            self._train(order, repeat, self.ablation.arms[number])
        self.ablation.result = judge(self.ablation)
        self._file.write(file.dumps(self.ablation))

    def train_words(self, arm: Arm) -> list[str]:
        """Return the command that trains an arm, without its environment."""
        return collbench("train", *self._devices(arm), *self._plan.words)

    def _with_folder(self, words: list[str], folder: Path) -> list[str]:
        """Return the command with a folder for what torchrun leaves in TMPDIR else, unless the user gave it one.

        An image sees only its own folders.
        """
        options = words[: words.index("--")]
        if any(option.partition("=")[0] in ("--log-dir", "--log_dir", "--container") for option in options):
            return words
        return [*options, "--log-dir", str(folder), *words[len(options) :]]

    def _train(self, order: int, repeat: int, arm: Arm) -> None:
        reader = Reader(self._plan.pattern)
        which = f"run {order + 1} of {self._total}, {arm.name}"
        log = self._plan.logs / f"run-{order + 1}.log"

        def watch(data: bytes) -> None:
            self._told.watch(data)
            if reader.steps:
                self._told.step(f"{which}: step {len(reader.steps)}, {format_seconds(reader.steps[-1])}")

        left = log.with_suffix(".torchrun")
        words = self._with_folder(self.train_words(arm), left)
        try:
            ended = running.run(words, self._environment(arm), log, reader, watch)
        finally:
            shutil.rmtree(left, ignore_errors=True)
        run = TrainingRun(repeat, order, ended.status, ended.wall_seconds, tuple(reader.steps), reader.train_runtime)
        arm.runs.append(run)
        before, self.ablation.measure = self.ablation.measure, measure_of(self.ablation.made, self.ablation.skip)
        self._file.write(file.dumps(self.ablation))
        if ended.status != 0:
            self._told.show(last_words(reader.tail))
            raise BackendError(
                f"{which}: the script failed ({_status(ended.status)}, see above); its output is {log}{self._saved()}"
            )
        self._check_steps(run, which, log)
        if self.ablation.measure is not before or not order:
            self._note_measure()
        own = measure_of([run], self.ablation.skip)
        self._told.say(f"{which}: {format_seconds(value(run, own, self.ablation.skip))}{_UNITS[own]}")

    def _note_measure(self) -> None:
        """Say by what all runs so far are compared, where it is not by their steps."""
        if self.ablation.measure is not Measure.STEP:
            self._told.say(f"no step times to compare in the script's output: {_INSTEAD[self.ablation.measure]}")

    def _check_steps(self, run: TrainingRun, which: str, log: Path) -> None:
        """Raise UsageError where steps were asked for, or printed, and none is left to count."""
        if step_value(run, self.ablation.skip) is not None:
            return
        printed = len(run.step_seconds)
        if printed and run.train_runtime is None:
            dropped = warm_up(printed, self.ablation.skip)
            raise UsageError(
                f"{which}: the script printed {printed} step times, and the first {dropped} are dropped as warm-up: "
                f"train more steps, or write --skip {printed - 1} or less{self._saved()}"
            )
        if self._plan.pattern is not None:
            raise UsageError(
                f"{which}: no line of the script's output, which is in {log}, matches --step-pattern "
                f"'{self._plan.pattern.pattern}': correct it, or leave it out to time the whole process"
            )

    def _devices(self, arm: Arm) -> list[str]:
        return ["--backend", self.ablation.backend, "--devices", ",".join(arm.uuids)]

    def _environment(self, arm: Arm) -> dict[str, str]:
        return {**self._plan.inherited, **arm.environment}

    def _saved(self) -> str:
        return f"; {self.saved()}" if len(self.ablation.made) > 1 else ""

    def saved(self) -> str:
        """Return what became of the runs so far, as a clause."""
        good = sum(run.status == 0 for run in self.ablation.made)
        if not self.ablation.made:
            return "no run has ended, nothing is saved"
        return f"{good} of {self._total} runs are saved as {self.path}"

    @property
    def path(self) -> Path:
        """Where the ablation is saved."""
        return self._file.path


def environment_of(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the NCCL_* variables that both arms inherit; those alone, never the whole environment."""
    return {name: inherited[name] for name in sorted(inherited) if name.startswith("NCCL_")}


def _allreduce(saved: Path) -> tuple[AllReduce, ...]:
    run = runfile.load(saved)
    found = sorted((one for one in run.measured()), key=lambda one: one.cell.size_bytes)
    summaries = [(one.cell.size_bytes, summarize(one)) for one in found]
    return tuple(AllReduce(size, summary.busbw, summary.seconds) for size, summary in summaries)


def _status(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
