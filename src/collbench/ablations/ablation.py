"""An ablation: a training job in two arms, their times, the ratio with its interval, and the file that holds them."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median, stdev

from collbench.model.errors import UsageError, did_you_mean
from collbench.model.values import Amount, Ordinal, Positive
from collbench.runfile.codec import FileFormat, build, plain


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that suits it, four digits: "22.41 ms", "101.2 s", "5.7 µs"."""
    scale, unit = _unit(seconds)
    return f"{_digits(seconds * scale)} {unit}"


def format_range(low: float, high: float) -> str:
    """Return two times in one unit, that of the first: "22.31–22.52 ms"."""
    scale, unit = _unit(low)
    return f"{_digits(low * scale)}–{_digits(high * scale)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 1e-3:
        return 1e6, "µs"
    return (1e3, "ms") if seconds < 1 else (1.0, "s")


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:#.4g}".removesuffix(".")


# The nouns of an ablation: two arms, the runs of each, and what they came to. The file holds exactly these.
#
# docs/ablate.md and docs/ablation.schema.json describe the fields.


# How well the ratio is to be known unless somebody asks for more.
PRECISION = 0.03
# A GPU that works for a smaller share of a step waits for its host: launches of kernels always leave gaps of some
# percent.
_BUSY = 0.9


class Measure(StrEnum):
    """What a run's value is read from, the nearest to a training step first."""

    STEP = "step"
    TRAIN_RUNTIME = "train_runtime"
    PROCESS = "process"


class Stop(StrEnum):
    """Why no more was trained: as often as asked, precise enough, out of time, or the host bounds both arms."""

    REPEATS = "repeats"
    PRECISE = "precise"
    BUDGET = "budget"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The all-reduce of an arm at one message size: busbw in GB/s, and the time of one in seconds."""

    size_bytes: Ordinal
    busbw_gbs: float
    seconds: Positive


@dataclass(frozen=True, slots=True)
class Rounding:
    """By how much printed times may be off: half a unit in their usual last digit, in seconds; 0 where not known."""

    step: Amount = 0.0
    train_runtime: Amount = 0.0
    gpu: Amount = 0.0


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One run of the script. `order` counts all runs of the ablation as they were made, from 0.

    `step_seconds` are all step times that were printed, the warm-up's too; `gpu_seconds` the GPU's own time of each
    step, where the script prints it; `train_runtime` Hugging Face's, in seconds; `wall_seconds` from the start of
    `collbench train` to its end.
    """

    repeat: int
    order: int
    status: int
    wall_seconds: Positive
    step_seconds: tuple[Positive, ...] = ()
    train_runtime: Positive | None = None
    gpu_seconds: tuple[Positive, ...] = ()
    rounding: Rounding = Rounding()


@dataclass(slots=True)
class Arm:
    """One way to run the script: variables that differ from the inherited ones, and devices by index and identity.

    `without` is what only this arm lacks ("p2p", "shm"), if that is the only difference; else empty.
    """

    name: str
    environment: dict[str, str]
    devices: tuple[int, ...]
    uuids: tuple[str, ...] = ()
    allreduce: tuple[AllReduce, ...] = ()
    runs: list[TrainingRun] = field(default_factory=list)
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm's runs took, in seconds: their geometric mean, and its 95% interval."""

    seconds: Positive
    interval: tuple[Positive, Positive]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The change's time over that of the arm as it is, and its 95% interval."""

    middle: Positive
    low: Positive
    high: Positive


@dataclass(frozen=True, slots=True)
class GpuResult:
    """The GPU's own time of a step: of both arms, their ratio, and its share of each arm's step, with its interval."""

    arms: tuple[ArmResult, ArmResult]
    ratio: Ratio
    shares: tuple[Ratio, Ratio]

    @property
    def host_bound(self) -> tuple[bool, bool]:
        """For each arm, whether the GPU significantly waits for the host: links cannot shorten that part of a step."""
        first, second = (share.high < _BUSY for share in self.shares)
        return first, second


@dataclass(frozen=True, slots=True)
class StepSpread:
    """How much runs differ, as shares of their value: `between` runs of an arm, and by their steps `within` each.

    `within` is the standard error that a run's median has from its own steps; None if no steps were printed.
    """

    between: Amount
    within: Amount | None


@dataclass(frozen=True, slots=True)
class ArmsResult:
    """What came out, of both arms in their order.

    `needed` is how many repeats would make the ratio precise to `Ablation.precision`, None if it is precise, or if that
    would take too many; `gpu` is None if a script does not print the GPU's time. `rounding` is the part of half the
    ratio's interval that the printed digits leave, as a share: more repeats do not narrow it.
    """

    arms: tuple[ArmResult, ArmResult]
    ratio: Ratio
    gpu: GpuResult | None = None
    spread: StepSpread | None = None
    needed: int | None = None
    rounding: Amount = 0.0


@dataclass(slots=True)
class Ablation:
    """One comparison of two arms, the unchanged one first. `result` is None until every repeat of both is there.

    `environment` holds the NCCL_* variables that both arms inherited; `skip` the steps dropped at the start of a run,
    None for the default; `gpus` the devices' names in the first arm's order. `repeats` are those asked for; where
    `budget_seconds` is given those made so far, until the ratio is known to ± `precision` or the time is spent. `stop`
    says why no more was trained.
    """

    collbench: str
    started: str
    hostname: str
    gpus: tuple[str, ...]
    command: tuple[str, ...]
    measure: Measure
    arms: tuple[Arm, Arm]
    backend: str = "cuda"
    environment: dict[str, str] = field(default_factory=dict)
    repeats: int = 3
    seed: int = 0
    skip: int | None = None
    step_pattern: str | None = None
    result: ArmsResult | None = None
    precision: float = PRECISION
    budget_seconds: float | None = None
    stop: Stop | None = None

    @property
    def made(self) -> list[TrainingRun]:
        """All runs of both arms, in the order made."""
        return sorted((run for arm in self.arms for run in arm.runs), key=lambda run: run.order)


# The two arms: what --without changes, what they are called, and in which order they run.


# The user asks for exactly these by name, and they reach only the children of one arm. NCCL controls P2P as a whole:
# CUDA decides over which link it runs, so NVLink cannot be turned off by itself [nccl-tests#250, nccl#1358].
SWITCHES: dict[str, dict[str, str]] = {
    "p2p": {"NCCL_P2P_DISABLE": "1"},
    "nvlink": {"NCCL_P2P_DISABLE": "1"},
    "shm": {"NCCL_SHM_DISABLE": "1"},
    "ib": {"NCCL_IB_DISABLE": "1"},
}
NVLINK_NOTE = (
    "NCCL cannot turn off only NVLink: --without nvlink sets NCCL_P2P_DISABLE=1, which turns off P2P over PCIe as well"
)
_GIVEN = re.compile(r"(NCCL_[A-Z0-9_]+)=(.*)", re.DOTALL)
# NVLink multicast: on shared hosts a mistake with it stops every GPU, so its switches are the user's own to set.
_NEVER = frozenset({"NCCL_NVLS_ENABLE"})


@dataclass(frozen=True, slots=True)
class ArmChange:
    """What the second arm changes: named switches and given variables; `environment` has both."""

    switches: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def without(self) -> tuple[str, ...]:
        """What the second arm lacks, if it changes nothing else."""
        return () if self.given else self.switches

    @property
    def names(self) -> tuple[str, str]:
        """What the two arms are called."""
        if not self.given:
            what = " and ".join(self.switches)
            return f"with {what}", f"without {what}"
        without = [f"without {switch}" for switch in self.switches]
        return "as is", " and ".join([*without, *(f"with {variable}" for variable in self.given)])


def parse_change(texts: Sequence[str]) -> ArmChange:
    """Return what all --without options request: names separated by commas, and NCCL_NAME=VALUE at the end.

    A value may hold commas, as NCCL_PROTO=LL,LL128 does: it reaches to the end of its --without. Raises UsageError.
    """
    switches: dict[str, None] = {}
    given: dict[str, str] = {}
    for text in texts:
        listed, variable = _divided(text)
        switches |= dict.fromkeys(listed)
        given |= [variable] if variable else []
    environment = {name: value for switch in switches for name, value in SWITCHES[switch].items()}
    for name, value in given.items():
        if environment.get(name, value) != value:
            raise UsageError(f"--without sets {name} twice, to {environment[name]} and to {value}: use only one")
    return ArmChange(tuple(switches), tuple(f"{name}={value}" for name, value in given.items()), environment | given)


def _divided(text: str) -> tuple[list[str], tuple[str, str] | None]:
    """Return the names in one --without, and its variable with the value."""
    start = re.search(r"(?:^|,)\s*(?=NCCL_)", text)
    listed = text[: start.start()] if start else text
    switches = [switch.strip().lower() for switch in listed.split(",")] if listed or not start else []
    for switch in switches:
        if switch not in SWITCHES:
            meant = did_you_mean(switch, SWITCHES, cutoff=0.5)
            raise UsageError(
                f"--without '{switch}' is not one of {', '.join(SWITCHES)}, nor a variable NCCL_NAME=VALUE{meant}"
            )
    return switches, _variable(text[start.end() :]) if start else None


def _variable(text: str) -> tuple[str, str]:
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise UsageError(f"--without '{text}' sets no variable to a value: write it like --without NCCL_ALGO=Ring")
    name, value = match[1], match[2]
    if name in _NEVER:
        raise UsageError(
            f"--without {name}={value}: collbench never sets what switches NVLink multicast; to compare, train once "
            f"with {name} exported in your shell and once without"
        )
    if "\0" in value:
        raise UsageError(f"--without {name}: its value holds a zero byte, which no variable can")
    return name, value


def refuse_alike(change: ArmChange, inherited: Mapping[str, str]) -> None:
    """Raise UsageError where a variable already has the second arm's value: both arms would train alike."""
    for name, value in change.environment.items():
        if inherited.get(name, "").strip() == value and name in inherited:
            raise UsageError(
                f"{name}={value} is set already, so both arms would train the same way: unset it, or leave it out of "
                "--without"
            )


def in_turn(repeat: int, seed: int) -> tuple[int, int]:
    """Return the arms in the order of one repeat: the first alternates from the seed on.

    So a drift of the machine, as it warms up say, reaches both arms alike.
    """
    first = (seed + repeat) % 2
    return first, 1 - first


# The result of the runs: one value per run, the ratio of the arms, and its significance. Pure.


# The first tenth of a run's steps, at least three, are warm-up: allocator, lazy kernels, NCCL's connections.
_WARM_UP_STEPS, _WARM_UP_PART = 3, 10


def warm_up(steps: int, skip: int | None) -> int:
    """Return how many of a run's first steps are dropped."""
    return skip if skip is not None else max(_WARM_UP_STEPS, math.ceil(steps / _WARM_UP_PART))


def step_value(run: TrainingRun, skip: int | None) -> float | None:
    """Return a run's median step in seconds, after the warm-up; None if nothing is left."""
    kept = run.step_seconds[warm_up(len(run.step_seconds), skip) :]
    return median(kept) if kept else None


def gpu_value(run: TrainingRun, skip: int | None) -> float | None:
    """Return the median of the GPU's own time of a run's steps, in seconds; None if the script did not print it.

    The warm-up is dropped where there is a time for each step; a script may measure only some steps after it.
    """
    each = len(run.gpu_seconds) == len(run.step_seconds)
    kept = run.gpu_seconds[warm_up(len(run.gpu_seconds), skip) if each else 0 :]
    return median(kept) if kept else None


def measure_of(runs: Sequence[TrainingRun], skip: int | None) -> Measure:
    """Return the nearest to a step that every run gives, so that all are read the same way."""
    if runs and all(step_value(run, skip) is not None for run in runs):
        return Measure.STEP
    if runs and all(run.train_runtime is not None for run in runs):
        return Measure.TRAIN_RUNTIME
    return Measure.PROCESS


def run_value(run: TrainingRun, measure: Measure, skip: int | None) -> float:
    """Return what a run took, in seconds; the measure is one that it gives."""
    if measure is Measure.STEP:
        return step_value(run, skip) or math.nan
    if measure is Measure.TRAIN_RUNTIME:
        return run.train_runtime or math.nan
    return run.wall_seconds


def judge(ablation: Ablation) -> ArmsResult | None:
    """Return the result of the repeats that both arms have: all that were asked for, or two and more; None before.

    Seconds are geometric means, so that their quotient is the ratio. The ratio's interval comes from the repeats' own
    ratios: what changed between repeats reached both arms, and cancels.
    """
    least = ablation.repeats if ablation.budget_seconds is None else 2
    runs = _whole_repeats(ablation)
    if len(runs) < max(2, least):
        return None
    measure, skip = ablation.measure, ablation.skip
    first, second = ([math.log(run_value(pair[arm], measure, skip)) for pair in runs] for arm in (0, 1))
    differences = [after - before for before, after in zip(first, second, strict=True)]
    rounding = [max(_rounding(pair[arm], measure, skip) for pair in runs) for arm in (0, 1)]
    level = _level(ablation)
    ratio = _ratio(differences, level, sum(rounding))
    wanted = math.log1p(ablation.precision) - sum(rounding)
    return ArmsResult(
        (_arm(first, rounding[0]), _arm(second, rounding[1])),
        ratio,
        _gpu_result(runs, ablation),
        StepSpread(math.sqrt(fmean((stdev(first) ** 2, stdev(second) ** 2))), _within(runs, ablation)),
        None if precise(ratio, ablation.precision) else _needed(stdev(differences), wanted, level),
        math.expm1(sum(rounding)),
    )


def _rounding(run: TrainingRun, measure: Measure, skip: int | None) -> float:
    """Return by how much the logarithm of a run's value may be off, as the script printed so few digits."""
    if measure is Measure.PROCESS:
        return 0.0  # not printed: measured
    rounding = run.rounding.step if measure is Measure.STEP else run.rounding.train_runtime
    return _log_error(run_value(run, measure, skip), rounding)


def _log_error(seconds: float, rounding: float) -> float:
    """Return the larger error of the logarithm of a value that may be off by `rounding`: below it, as it is concave."""
    return -math.log1p(-min(rounding / seconds, _MAX_ROUNDING))


def precise(ratio: Ratio, precision: float) -> bool:
    """True if a ratio is known to ± `precision` of itself."""
    return ratio.high <= ratio.middle * (1 + precision)


def _whole_repeats(ablation: Ablation) -> list[tuple[TrainingRun, TrainingRun]]:
    """Return both arms' good runs of each repeat that has both, in the order of the repeats."""
    first, second = ({run.repeat: run for run in arm.runs if run.status == 0} for arm in ablation.arms)
    return [(first[repeat], second[repeat]) for repeat in sorted(first.keys() & second.keys())]


def _gpu_result(runs: Sequence[tuple[TrainingRun, TrainingRun]], ablation: Ablation) -> GpuResult | None:
    """Return the result by the GPU's own times; None unless every run has them in addition to its steps."""
    if ablation.measure is not Measure.STEP:
        return None
    gpu_logs: list[list[float]] = [[], []]
    shares: list[list[float]] = [[], []]
    errors, share_errors = [0.0, 0.0], [0.0, 0.0]
    for pair in runs:
        for arm, run in enumerate(pair):
            worked, step = gpu_value(run, ablation.skip), step_value(run, ablation.skip)
            if worked is None or step is None:
                return None
            gpu_logs[arm].append(math.log(worked))
            shares[arm].append(math.log(worked / step))
            error = _log_error(worked, run.rounding.gpu)
            errors[arm] = max(errors[arm], error)
            share_errors[arm] = max(share_errors[arm], error + _log_error(step, run.rounding.step))
    level = _level(ablation)
    ratio = _ratio([after - before for before, after in zip(*gpu_logs, strict=True)], level, sum(errors))
    first, second = (_ratio(share, level, error) for share, error in zip(shares, share_errors, strict=True))
    return GpuResult((_arm(gpu_logs[0], errors[0]), _arm(gpu_logs[1], errors[1])), ratio, (first, second))


def _within(runs: Sequence[tuple[TrainingRun, TrainingRun]], ablation: Ablation) -> float | None:
    """Return the standard error of a run's median by its own steps, as a share, typical of the runs."""
    if ablation.measure is not Measure.STEP:
        return None
    all_runs = (training_run for pair in runs for training_run in pair)
    errors = [_median_error(run.step_seconds[warm_up(len(run.step_seconds), ablation.skip) :]) for run in all_runs]
    known = [error for error in errors if error is not None]
    return median(known) if known else None


@functools.lru_cache(maxsize=4096)  # each run is asked for again after each repeat
def _median_error(steps: tuple[float, ...]) -> float | None:
    """Return the standard error of independent normal values' median, as a share of it; None of fewer than two.

    Steps in a row resemble each other, so for them it is rather too small.
    """
    return math.sqrt(math.pi / 2 / len(steps)) * stdev(steps) / median(steps) if len(steps) > 1 else None


def _needed(sigma: float, wanted: float, level: float) -> int | None:
    """Return how many repeats make half the interval of differences that vary by `sigma` as narrow as `wanted`."""
    from collbench.judge.stats import student  # late: numpy

    low, high = 2, _MAX_REPEATS
    while low < high:  # the interval narrows with each repeat
        middle = (low + high) // 2
        if student(middle - 1, level) * sigma / math.sqrt(middle) <= wanted:
            high = middle
        else:
            low = middle + 1
    return low if low < _MAX_REPEATS else None


# Student's quantiles of 95% intervals. To decide after each repeat whether to go on is to stop early where the runs
# happen to agree: with 97.5% such intervals would hold 90 to 95% of true ratios, with 98.75% they hold 94.5 to 97.6%
# (sim: 20,000 ablations each of six spreads from 0.5 to 10%, three to twenty repeats;
# tests/ablations/test_deciding.py).
_LEVEL, _LOOKED_AT_LEVEL = 0.975, 0.9875
_MAX_REPEATS = 10_000
# A time that was printed as one unit is between half of it and one and a half.
_MAX_ROUNDING = 0.5


def _level(ablation: Ablation) -> float:
    return _LEVEL if ablation.budget_seconds is None else _LOOKED_AT_LEVEL


def _arm(logs: Sequence[float], rounding: float) -> ArmResult:
    mean = _ratio(logs, _LEVEL, rounding)
    return ArmResult(mean.middle, (mean.low, mean.high))


def _ratio(logs: Sequence[float], level: float, rounding: float) -> Ratio:
    """Return the geometric mean and its 95% interval of what these are logarithms of, each off by up to `rounding`.

    By Student's t, for few values of about one normal distribution: at two repeats 12.7 standard errors, at three 4.3.
    """
    from collbench.judge.stats import student  # late: numpy

    reach, middle = student(len(logs) - 1, level) * stdev(logs) / math.sqrt(len(logs)), fmean(logs)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    # All repeats may be rounded alike, so that their spread does not show it.
    return Ratio(math.exp(middle), low * math.exp(-rounding), high * math.exp(rounding))


# Whether to continue. At least three repeats: two have no spread to judge by.
MIN_REPEATS = 3


def stop_of(ablation: Ablation, spent_seconds: float) -> Stop | None:
    """Return why to stop after the repeats so far, which took `spent_seconds`; None to continue."""
    repeats_done = len(_whole_repeats(ablation))
    if ablation.budget_seconds is None:
        return Stop.REPEATS if repeats_done >= ablation.repeats else None
    result = ablation.result
    if repeats_done < MIN_REPEATS or result is None:
        return None
    if precise(result.ratio, ablation.precision):
        return Stop.PRECISE
    # A step's wall time is then the host's: however often it is measured, its noise says nothing of the links.
    if result.gpu is not None and all(result.gpu.host_bound) and precise(result.gpu.ratio, ablation.precision):
        return Stop.HOST
    return Stop.BUDGET if spent_seconds * (repeats_done + 1) / repeats_done > ablation.budget_seconds else None


# Ablation ↔ versioned JSON, written whole or not at all. docs/ablate.md describes the format.


_FORMAT = FileFormat("collbench-ablation", 1, "ablation", again="train again")


def load(path: Path) -> Ablation:
    """Read an ablation file. Raises RunFileError: what is wrong, and where."""
    return loads(_FORMAT.read(path), str(path))


def dumps(ablation: Ablation) -> str:
    """Return the ablation as JSON text, ending in a line break."""
    data = {**_FORMAT.head, **plain(ablation)}
    return json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def loads(text: str, name: str) -> Ablation:
    """Return the ablation in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    loaded: Ablation = _FORMAT.loads(text, name, lambda fields: build(Ablation, fields, "ablation"))
    return loaded
