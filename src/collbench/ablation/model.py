"""The nouns of an ablation: two arms, the runs of each, and what they came to. The file holds exactly these.

docs/ablate.md and docs/ablation.schema.json describe the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Measure(StrEnum):
    """What a run's value is read from, the nearest to a training step first."""

    STEP = "step"
    TRAIN_RUNTIME = "train_runtime"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The all-reduce of an arm at one message size: busbw in GB/s, and the time of one in seconds."""

    size_bytes: int
    busbw_gbs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One run of the script. `order` counts all runs of the ablation as they were made, from 0.

    `step_seconds` are all step times that were printed, the warm-up's too; `train_runtime` Hugging Face's, in seconds;
    `wall_seconds` from the start of `collbench train` to its end.
    """

    repeat: int
    order: int
    status: int
    wall_seconds: float
    step_seconds: tuple[float, ...] = ()
    train_runtime: float | None = None


@dataclass(slots=True)
class Arm:
    """One way to run the script: variables that differ from the inherited ones, and devices by index and identity.

    `without` is what this arm alone lacks ("p2p", "shm"), where nothing else tells it from the other; else empty.
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
    """What an arm's runs took, in seconds: their geometric mean, and its 95 % interval."""

    seconds: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The change's time over that of the arm as it is, and its 95 % interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came out, of both arms in their order."""

    arms: tuple[ArmResult, ArmResult]
    ratio: Ratio


@dataclass(slots=True)
class Ablation:
    """One comparison of two arms, the unchanged one first. `result` is None until every repeat of both is there.

    `environment` holds the NCCL_* variables that both arms inherited; `skip` the steps dropped at the start of a run,
    None for the default; `gpus` the devices' names in the first arm's order.
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
    result: Result | None = None

    @property
    def made(self) -> list[TrainingRun]:
        """All runs of both arms, in the order made."""
        return sorted((run for arm in self.arms for run in arm.runs), key=lambda run: run.order)
