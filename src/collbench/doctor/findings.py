"""What the doctor says of one thing: ok, warn, fail or unknown, and the fix. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from collbench.doctor.facts import Gpu


class Level(StrEnum):
    """How a fact bears on a run: it is fine, it costs speed or certainty, it prevents the run, nothing told it."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Group(StrEnum):
    """What a finding is about; the report's sections, in its order."""

    GPUS = "GPUs"
    LINKS = "links"
    LIBRARIES = "libraries"
    HOST = "host"
    VARIABLES = "variables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `fix` is one command or sentence, "" where nothing is to be done."""

    group: Group
    name: str
    level: Level
    told: str
    fix: str = ""


def tags(gpus: Collection[Gpu], among: Collection[Gpu] = ()) -> str:
    """Return the GPUs' names as "GPU0, GPU2", or "all 8 GPUs" where these are all of many."""
    if len(gpus) == len(among) > 2:
        return f"all {len(gpus)} GPUs"
    return ", ".join(gpu.device.tag for gpu in gpus)


def indices(gpus: Collection[Gpu]) -> str:
    """Return the GPUs' numbers as `nvidia-smi -i` takes them: "0,2"."""
    return ",".join(str(gpu.device.index) for gpu in gpus)
