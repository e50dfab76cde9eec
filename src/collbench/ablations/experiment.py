"""One ablation from its first run to its last: the runs in turn, each kept in the file once it has ended."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collbench.ablations.ablation import (
    Ablation,
    AllReduce,
    Arm,
    Measure,
    Rounding,
    TrainingRun,
    dumps,
    format_seconds,
    in_turn,
    judge,
    measure_of,
    run_value,
    step_value,
    stop_of,
    warm_up,
)
from collbench.ablations.child import Reader, last_lines, run_child, usual_rounding
from collbench.judge.stats import summarize
from collbench.model.errors import BackendError, UsageError
from collbench.model.run import capabilities
from collbench.model.units import amount
from collbench.runfile import atomic_write, run_file

_DOING = "save the ablation as"


def check_writable(path: Path, *, force: bool = False) -> None:
    """Raise RunFileError if an ablation could not be saved at `path`, or if a file exists there."""
    atomic_write.check(path, _DOING, force=force)


def collbench(*arguments: str) -> list[str]:
    """Return the command that starts this very collbench as a child. -P: a script's folder may hold a collbench.py."""
    return [sys.executable, "-P", "-m", "collbench", *arguments]


# From a scalar over DDP's first bucket of 1 MiB to its usual ones together.
_SIZES = (8, 2**20, 64 * 2**20, 256 * 2**20)
_UNITS = {Measure.STEP: " a step", Measure.TRAIN_RUNTIME: " of training", Measure.PROCESS: " in all"}

_INSTEAD = {
    Measure.TRAIN_RUNTIME: "the measure is train_runtime, which Hugging Face's Trainer prints",
    Measure.PROCESS: "the measure is the time of the whole process, its start included; print lines like "
    "step_time=22.4ms, or write --step-pattern",
}


@dataclass(frozen=True, slots=True)
class Reporter:
    """Receives an experiment's notices, a failed script's last lines, its output, and its steps as they come."""

    say: Callable[[str], None]
    show: Callable[[Sequence[str]], None]
    watch: Callable[[bytes], None]
    step: Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Experiment:
    """Fills an ablation with runs. Whatever ends it early, the runs that had ended are in its file, `path`.

    `arguments` are what follows `collbench train --devices …`, `logs` the folder for the children's output, `inherited`
    the environment that both arms start from, `nccl` the library to time all-reduces with. `force`: replace an older
    file.
    """

    ablation: Ablation
    reporter: Reporter
    arguments: tuple[str, ...]
    path: Path
    logs: Path
    inherited: Mapping[str, str]
    pattern: re.Pattern[str] | None = None
    nccl: str | None = None
    force: bool = False
    clock: Callable[[], float] = time.monotonic
    _file: atomic_write.OwnFile = field(init=False)

    def __post_init__(self) -> None:
        self._file = atomic_write.OwnFile(self.path, _DOING, self.reporter.say, force=self.force)

    def measure_allreduces(self) -> None:
        """Time the all-reduce of both arms, each in its own environment. Raises BackendError."""
        self.reporter.say("measuring the all-reduce of both, a few seconds each")
        for number, arm in enumerate(self.ablation.arms):
            saved = self.logs / f"allreduce-{number}.json"
            sizes = ",".join(map(str, sizes_on(self.ablation.backend)))
            arguments = ["allreduce", *self._devices(arm), "--sizes", sizes, "--quick", "--output", str(saved)]
            arguments += ["--nccl", self.nccl] if self.nccl else []
            reader = Reader()
            status, _ = run_child(collbench(*arguments), self._environment(arm), saved.with_suffix(".log"), reader)
            if status != 0:
                self.reporter.show(last_lines(reader.tail))
                raise BackendError(
                    f"cannot measure the all-reduce {arm.name} ({_status(status)}, see above): nothing was "
                    "trained; --no-allreduce goes on without it"
                )
            arm.allreduce = _allreduce(saved)

    def train(self) -> None:
        """Make the runs, in order. Raises BackendError for a script that fails, UsageError for one without steps."""
        ablation, begin, repeat = self.ablation, self.clock(), 0
        while ablation.stop is None:
            for arm in in_turn(repeat, ablation.seed):
                self._train(len(ablation.made), repeat, ablation.arms[arm])
            repeat += 1
            if self._total is None:
                ablation.repeats = repeat
            ablation.result = judge(ablation)
            ablation.stop = stop_of(ablation, self.clock() - begin)
            self._file.write(dumps(ablation))

    @property
    def _total(self) -> int | None:
        """How many runs there will be; None if that depends on how they come out."""
        return 2 * self.ablation.repeats if self.ablation.budget_seconds is None else None

    def train_arguments(self, arm: Arm) -> list[str]:
        """Return the arguments with which collbench trains an arm, without its environment."""
        return ["train", *self._devices(arm), *self.arguments]

    def _with_folder(self, command: list[str], folder: Path) -> list[str]:
        """Return the command with a folder for what torchrun leaves in TMPDIR else, unless the user gave it one."""
        options = command[: command.index("--")]
        if any(option.partition("=")[0] in ("--log-dir", "--log_dir") for option in options):
            return command
        return [*options, "--log-dir", str(folder), *command[len(options) :]]

    def _train(self, order: int, repeat: int, arm: Arm) -> None:
        reader = Reader(self.pattern)
        of = "" if self._total is None else f" of {self._total}"
        run_title = f"run {order + 1}{of}, {arm.name}"
        log = self.logs / f"run-{order + 1}.log"

        def watch(data: bytes) -> None:
            self.reporter.watch(data)
            if reader.steps:
                self.reporter.step(f"{run_title}: step {len(reader.steps)}, {format_seconds(reader.steps[-1])}")

        torchrun_folder = log.with_suffix(".torchrun")
        command = self._with_folder(collbench(*self.train_arguments(arm)), torchrun_folder)
        try:
            status, wall_seconds = run_child(command, self._environment(arm), log, reader, watch)
        finally:
            shutil.rmtree(torchrun_folder, ignore_errors=True)
        run = TrainingRun(
            repeat,
            order,
            status,
            wall_seconds,
            tuple(map(float, reader.steps)),
            None if reader.train_runtime is None else float(reader.train_runtime),
            tuple(map(float, reader.gpu)),
            Rounding(
                usual_rounding(reader.steps),
                0.0 if reader.train_runtime is None else reader.train_runtime.rounding,
                usual_rounding(reader.gpu),
            ),
        )
        arm.runs.append(run)
        before, self.ablation.measure = self.ablation.measure, measure_of(self.ablation.made, self.ablation.skip)
        self._file.write(dumps(self.ablation))
        if status != 0:
            self.reporter.show(last_lines(reader.tail))
            raise BackendError(
                f"{run_title}: the script failed ({_status(status)}, see above); its output is {log}{self._saved()}"
            )
        self._check_steps(run, run_title, log)
        if self.ablation.measure is not before or not order:
            self._note_measure()
        measure = measure_of([run], self.ablation.skip)
        self.reporter.say(
            f"{run_title}: {format_seconds(run_value(run, measure, self.ablation.skip))}{_UNITS[measure]}"
        )

    def _note_measure(self) -> None:
        """Say by what all runs so far are compared, where it is not by their steps."""
        if self.ablation.measure is not Measure.STEP:
            self.reporter.say(f"no step times to compare in the script's output: {_INSTEAD[self.ablation.measure]}")

    def _check_steps(self, run: TrainingRun, run_title: str, log: Path) -> None:
        """Raise UsageError where steps were asked for, or printed, and none is left to count."""
        if step_value(run, self.ablation.skip) is not None:
            return
        printed = len(run.step_seconds)
        if printed and run.train_runtime is None:
            dropped = warm_up(printed, self.ablation.skip)
            raise UsageError(
                f"{run_title}: the script printed {printed} step times, and the first {dropped} are dropped as "
                f"warm-up: train more steps, or write --skip {printed - 1} or less{self._saved()}"
            )
        if self.pattern is not None:
            raise UsageError(
                f"{run_title}: no line of the script's output, which is in {log}, matches --step-pattern "
                f"'{self.pattern.pattern}': correct it, or leave it out to time the whole process"
            )

    def _devices(self, arm: Arm) -> list[str]:
        return ["--backend", self.ablation.backend, "--devices", ",".join(arm.uuids)]

    def _environment(self, arm: Arm) -> dict[str, str]:
        return {**self.inherited, **arm.environment}

    def _saved(self) -> str:
        return f"; {self.saved()}" if len(self.ablation.made) > 1 else ""

    def saved(self) -> str:
        """Return what became of the runs so far, as a clause."""
        good = sum(run.status == 0 for run in self.ablation.made)
        if not self.ablation.made:
            return "no run has ended, nothing is saved"
        if self._total is None:
            return f"{amount(good, 'run')} saved as {self.path}"
        return f"{good} of {self._total} runs are saved as {self.path}"


def sizes_on(backend: str) -> tuple[int, ...]:
    """Return the sizes in bytes at which both arms' all-reduce is timed: those that the backend measures by default."""
    return tuple(size for size in _SIZES if size <= capabilities(backend).largest_bytes)


def environment_of(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the NCCL_* variables that both arms inherit; those alone, never the whole environment."""
    return {name: inherited[name] for name in sorted(inherited) if name.startswith("NCCL_")}


def _allreduce(saved: Path) -> tuple[AllReduce, ...]:
    run = run_file.load(saved)
    measurements = sorted(run.measured(), key=lambda measurement: measurement.point.size_bytes)
    summaries = [(measurement.point.size_bytes, summarize(measurement)) for measurement in measurements]
    return tuple(AllReduce(size, summary.busbw, summary.seconds) for size, summary in summaries)


def _status(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
