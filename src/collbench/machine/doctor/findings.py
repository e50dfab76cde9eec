"""The findings of the doctor's report: a level, what was found, and its fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from collbench.machine.doctor.facts import Gpu


class Level(StrEnum):
    """How a fact affects a run: no effect, a cost in speed or certainty, a failure, or not reported."""

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
    """One line of the report: what was found, in a sentence that nothing reads, and what to do about it.

    `fix` is one command or sentence, "" if nothing is to be done. `devices` are the GPUs that it is about, by
    nvidia-smi's indices; () for all of them, and for none.
    """

    group: Group
    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


# The exit status if any finding fails; warnings leave it at 0.
FAILED = 1


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 0 if nothing fails, else FAILED."""
    return FAILED if any(finding.level is Level.FAIL for finding in findings) else 0


class Line(NamedTuple):
    """A finding without its group: all lines that one function judges are of the same group."""

    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


Lines = Iterator[Line]


def line(level: Level, name: str, text: str, fix: str = "", gpus: Collection[Gpu] = ()) -> Line:
    """Return a line about these GPUs; the functions below fix its level."""
    return Line(name, level, text, fix, tuple(gpu.device.index for gpu in gpus))


ok = partial(line, Level.OK)
warn = partial(line, Level.WARN)
fail = partial(line, Level.FAIL)
unknown = partial(line, Level.UNKNOWN)


def tags(gpus: Collection[Gpu], among: Collection[Gpu] = ()) -> str:
    """Return the GPUs' names as "GPU0, GPU2", or "all 8 GPUs" where these are all of many."""
    if len(gpus) == len(among) > 2:
        return f"all {len(gpus)} GPUs"
    return ", ".join(gpu.device.tag for gpu in gpus)


def nvidia_smi(gpus: Collection[Gpu], options: str) -> str:
    """Return the command that changes these GPUs."""
    return f"sudo nvidia-smi -i {','.join(str(gpu.device.index) for gpu in gpus)} {options}"
