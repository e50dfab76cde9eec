"""One ablation from its first run to its last: the runs in turn, each kept in the file once it has ended."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any

from collbench.analysis.stats import summarize
from collbench.launch.ablation import (
    SWITCHES,
    Ablation,
    AllReduce,
    Arm,
    Measure,
    Reader,
    TrainingRun,
    format_seconds,
    in_turn,
    judge,
    last_lines,
    measure_of,
    run_value,
    step_value,
    stop_of,
    warm_up,
)
from collbench.machine import lifeline
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, UsageError
from collbench.model.units import amount
from collbench.runfile import atomic_write, run_file
from collbench.runfile.codec import FileFormat, build, plain

# Ablation ↔ versioned JSON, written whole or not at all. docs/ablate.md describes the format.


_FORMAT = FileFormat("collbench-ablation", 1, "ablation", again="train again")
_REFUSAL = ("save the ablation as", "--output")


def save(ablation: Ablation, path: Path) -> None:
    """Write the ablation atomically: after a crash the file is old or complete. Raises RunFileError, Taken."""
    atomic_write.write(dumps(ablation), path, *_REFUSAL)


def own_file(path: Path, warn: Callable[[str], None], *, force: bool = False) -> atomic_write.OwnFile:
    """Return a file to write an ablation to again and again."""
    return atomic_write.OwnFile(path, _REFUSAL, warn, force=force)


def check_writable(path: Path, *, force: bool = False) -> None:
    """Raise RunFileError if an ablation could not be saved at `path`, or if a file exists there."""
    atomic_write.check(path, *_REFUSAL, force=force)


def load(path: Path) -> Ablation:
    """Read an ablation file. Raises RunFileError: what is wrong, and where."""
    return loads(_FORMAT.read(path), str(path))


def dumps(ablation: Ablation) -> str:
    """Return the ablation as JSON text, ending in a line break."""
    data = {**_FORMAT.head, **plain(ablation)}
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def loads(text: str, name: str) -> Ablation:
    """Return the ablation in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    return _FORMAT.loads(text, name, _build)


def _build(fields: dict[str, Any]) -> Ablation:
    ablation: Ablation = build(Ablation, fields, "ablation")
    if not any("without" in arm for arm in fields["arms"]):
        ablation.arms[1].without = _variable_named(ablation.arms[1].name)
    _check_meaning(ablation)
    return ablation


def _variable_named(name: str) -> tuple[str, ...]:
    """Return what an arm lacks, as files before `without` say it: in its name alone."""
    switches = name.removeprefix("without ").split(" and ")
    return tuple(switches) if name.startswith("without ") and set(switches) <= set(SWITCHES) else ()


def _check_meaning(ablation: Ablation) -> None:
    """Raise ValueError for times and sizes that cannot be, before they are compared."""
    times: list[tuple[str, Any]] = []
    for number, arm in enumerate(ablation.arms):
        where = f"ablation.arms[{number}]"
        times += [(f"{where}.allreduce", figure) for one in arm.allreduce for figure in (one.seconds, one.size_bytes)]
        times += [
            (f"{where}.runs", figure)
            for run in arm.runs
            for figure in (*run.step_seconds, *run.gpu_seconds, run.wall_seconds)
        ]
        times += [(f"{where}.runs", run.train_runtime) for run in arm.runs if run.train_runtime is not None]
    if ablation.result is not None:
        ratio = ablation.result.ratio
        times += [("ablation.result.ratio", one) for one in (ratio.low, ratio.middle, ratio.high)]
        times += [("ablation.result.arms", one) for arm in ablation.result.arms for one in (arm.seconds, *arm.interval)]
        if (gpu := ablation.result.gpu) is not None:
            ratios = (gpu.ratio, *gpu.shares)
            times += [("ablation.result.gpu", one) for made in ratios for one in (made.low, made.middle, made.high)]
            times += [("ablation.result.gpu", one) for arm in gpu.arms for one in (arm.seconds, *arm.interval)]
        if (spread := ablation.result.spread) is not None:
            figures = (spread.between, spread.within or 0.0)
            if not all(0 <= figure < math.inf for figure in figures):
                raise ValueError("ablation.result.spread is negative or not finite")
    for where, figure in times:
        if not 0 < figure < math.inf:
            raise ValueError(f"{where} has a time or a size that is not positive and finite")


# One child of an ablation: started, its output read and logged as it comes, timed, and ended with us.


# Torchrun gives its workers 30 s to end before it kills them [torch 2.13, elastic agent, shutdown]; we, it a bit more.
_GRACE_SECONDS = 40.0
# A grandchild that outlives the job may hold its output open; later output is not of the job's steps.
_AFTERMATH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status (negative: the signal), and the seconds from its start to its end."""

    status: int
    wall_seconds: float


class _Output:
    """Reads a child's output on a thread of its own, because the main one waits for the child and for signals."""

    def __init__(self, pipe: IO[bytes], log: IO[bytes], reader: Reader, watch: Callable[[bytes], None]) -> None:
        self._pipe, self._log, self._reader, self._watch = pipe, log, reader, watch
        self._thread = Thread(target=self._follow, name="output", daemon=True)
        self._over = False
        self.failure: OSError | None = None
        self._thread.start()

    def _follow(self) -> None:
        while data := os.read(self._pipe.fileno(), 65536):
            if self._over:
                return
            self._reader.feed(data)
            try:
                self._log.write(data)
                self._watch(data)
            except OSError as error:  # a full disk; reading continues, else the job would stand still
                self.failure = self.failure or error

    def end(self) -> None:
        """Take what is left, from a child that has ended."""
        self._thread.join(_AFTERMATH_SECONDS)
        self._over = True
        self._reader.close()
        if not self._thread.is_alive():
            self._pipe.close()


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    reader: Reader,
    watch: Callable[[bytes], None] = lambda _data: None,
) -> Ended:
    """Run a command to its end, its stdout and stderr going to the log, the reader, and `watch`.

    KeyboardInterrupt (Ctrl-C, SIGTERM) ends the child first, which has a process group of its own: torchrun must get
    one signal, for a second one would interrupt it while it ends its workers. It gets SIGTERM, too, when this process
    is killed. Raises BackendError.
    """
    try:
        with log.open("wb", buffering=0) as file:
            return _run(command, environment, file, reader, watch)
    except OSError as error:
        raise BackendError(f"cannot run '{command[0]}' with its output in {log}: {error.strerror}") from error


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes],
    reader: Reader,
    watch: Callable[[bytes], None],
) -> Ended:
    begun = time.monotonic()
    child = subprocess.Popen(
        lifeline.with_us(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert child.stdout is not None  # noqa: S101 - asked for above
    output = _Output(child.stdout, log, reader, watch)
    try:
        status = child.wait()
        seconds = time.monotonic() - begun
    except BaseException:
        _end(child)
        raise
    finally:
        output.end()
    if output.failure is not None:
        raise output.failure
    return Ended(status, seconds)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, and after a while, or at a second Ctrl-C, make it."""
    try:
        child.send_signal(signal.SIGTERM)
        child.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What every run of an experiment shares.

    `arguments` are what follows `collbench train --devices …`, `logs` the folder for the children's output, `inherited`
    the environment that both arms start from, `nccl` the library to time all-reduces with. `force`: an older file at
    `path` gives way.
    """

    arguments: tuple[str, ...]
    path: Path
    logs: Path
    inherited: Mapping[str, str]
    pattern: re.Pattern[str] | None = None
    nccl: str | None = None
    force: bool = False


class Experiment:
    """Fills an ablation with runs. Whatever ends it early, the runs that had ended are in its file."""

    def __init__(
        self, ablation: Ablation, plan: Plan, reporter: Reporter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ablation, self._plan, self._reporter, self._clock = ablation, plan, reporter, clock
        self._file = own_file(plan.path, reporter.say, force=plan.force)

    def measure_allreduces(self) -> None:
        """Time the all-reduce of both arms, each in its own environment. Raises BackendError."""
        self._reporter.say("measuring the all-reduce of both, a few seconds each")
        for number, arm in enumerate(self.ablation.arms):
            saved = self._plan.logs / f"allreduce-{number}.json"
            sizes = ",".join(map(str, sizes_on(self.ablation.backend)))
            arguments = ["allreduce", *self._devices(arm), "--sizes", sizes, "--quick", "--output", str(saved)]
            arguments += ["--nccl", self._plan.nccl] if self._plan.nccl else []
            reader = Reader()
            ended = run_child(collbench(*arguments), self._environment(arm), saved.with_suffix(".log"), reader)
            if ended.status != 0:
                self._reporter.show(last_lines(reader.tail))
                raise BackendError(
                    f"cannot measure the all-reduce {arm.name} ({_status(ended.status)}, see above): nothing was "
                    "trained; --no-allreduce goes on without it"
                )
            arm.allreduce = _allreduce(saved)

    def train(self) -> None:
        """Make the runs, in order. Raises BackendError for a script that fails, UsageError for one without steps."""
        ablation, begin, repeat = self.ablation, self._clock(), 0
        while ablation.stop is None:
            for arm in in_turn(repeat, ablation.seed):
                self._train(len(ablation.made), repeat, ablation.arms[arm])
            repeat += 1
            if self._total is None:
                ablation.repeats = repeat
            ablation.result = judge(ablation)
            ablation.stop = stop_of(ablation, self._clock() - begin)
            self._file.write(dumps(ablation))

    @property
    def _total(self) -> int | None:
        """How many runs there will be; None if that depends on how they come out."""
        return 2 * self.ablation.repeats if self.ablation.budget_seconds is None else None

    def train_arguments(self, arm: Arm) -> list[str]:
        """Return the arguments with which collbench trains an arm, without its environment."""
        return ["train", *self._devices(arm), *self._plan.arguments]

    def _with_folder(self, command: list[str], folder: Path) -> list[str]:
        """Return the command with a folder for what torchrun leaves in TMPDIR else, unless the user gave it one.

        An image sees only its own folders.
        """
        options = command[: command.index("--")]
        if any(option.partition("=")[0] in ("--log-dir", "--log_dir", "--container") for option in options):
            return command
        return [*options, "--log-dir", str(folder), *command[len(options) :]]

    def _train(self, order: int, repeat: int, arm: Arm) -> None:
        reader = Reader(self._plan.pattern)
        of = "" if self._total is None else f" of {self._total}"
        run_title = f"run {order + 1}{of}, {arm.name}"
        log = self._plan.logs / f"run-{order + 1}.log"

        def watch(data: bytes) -> None:
            self._reporter.watch(data)
            if reader.steps:
                self._reporter.step(f"{run_title}: step {len(reader.steps)}, {format_seconds(reader.steps[-1])}")

        torchrun_folder = log.with_suffix(".torchrun")
        command = self._with_folder(collbench(*self.train_arguments(arm)), torchrun_folder)
        try:
            ended = run_child(command, self._environment(arm), log, reader, watch)
        finally:
            shutil.rmtree(torchrun_folder, ignore_errors=True)
        run = TrainingRun(
            repeat,
            order,
            ended.status,
            ended.wall_seconds,
            tuple(reader.steps),
            reader.train_runtime,
            tuple(reader.gpu),
        )
        arm.runs.append(run)
        before, self.ablation.measure = self.ablation.measure, measure_of(self.ablation.made, self.ablation.skip)
        self._file.write(dumps(self.ablation))
        if ended.status != 0:
            self._reporter.show(last_lines(reader.tail))
            raise BackendError(
                f"{run_title}: the script failed ({_status(ended.status)}, see above); "
                f"its output is {log}{self._saved()}"
            )
        self._check_steps(run, run_title, log)
        if self.ablation.measure is not before or not order:
            self._note_measure()
        measure = measure_of([run], self.ablation.skip)
        self._reporter.say(
            f"{run_title}: {format_seconds(run_value(run, measure, self.ablation.skip))}{_UNITS[measure]}"
        )

    def _note_measure(self) -> None:
        """Say by what all runs so far are compared, where it is not by their steps."""
        if self.ablation.measure is not Measure.STEP:
            self._reporter.say(f"no step times to compare in the script's output: {_INSTEAD[self.ablation.measure]}")

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
        if self._plan.pattern is not None:
            raise UsageError(
                f"{run_title}: no line of the script's output, which is in {log}, matches --step-pattern "
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
        if self._total is None:
            return f"{amount(good, 'run')} saved as {self.path}"
        return f"{good} of {self._total} runs are saved as {self.path}"

    @property
    def path(self) -> Path:
        """Where the ablation is saved."""
        return self._file.path

    @property
    def logs(self) -> Path:
        """The folder for the children's output."""
        return self._plan.logs


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
