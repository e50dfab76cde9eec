"""How work fails, and how data is wrong, as values: kinds, causes, devices, figures. `output` makes the sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from collbench.model.operations import Work
from collbench.model.ranges import Count, Ordinal, Whole


class FailureKind(StrEnum):
    """How a step failed. Decisions use the kind, never the text of an error.

    HANG: it did not end in its time; CRASH: its process died; ERROR: CUDA, NCCL or the kernel refused it; UNTRIED: it
    was not started, as too many before it had failed.
    """

    HANG = "hang"
    CRASH = "crash"
    ERROR = "error"
    UNTRIED = "untried"


class Cause(StrEnum):
    """What happened. Beside each cause stand the fields of Failure that it fills."""

    REFUSED = "refused"  # by CUDA, NCCL or the kernel: work, size_bytes, groups, devices, detail
    NOT_OPENED = "GPUs not opened"  # devices, detail
    NO_BUFFERS = "no buffers"  # devices, detail
    NO_COMMUNICATOR = "no NCCL communicator"  # devices, detail
    NO_ANSWER = "no answer"  # of a worker process, which was killed: devices, seconds, detail
    GIVEN_UP = "given up"  # a simulated step: work, size_bytes, groups, seconds
    DIED = "worker process died"  # devices, exit_status or signal, detail
    ENDING = "worker process is ending"  # it closed its pipe
    NO_WORKER = "no new worker"  # because, detail
    NCCL_START = "NCCL did not start"  # count of workers, because
    NO_WORLD = "the ranks could not join again"  # because, detail
    NOT_COVERED = "load ended first"  # beside timed copies: work, size_bytes, groups, devices whose load it was
    NO_TIME = "a batch took no time"  # seconds
    IN_A_ROW = "failures in a row"  # count, because
    REPORTED = "reported"  # detail has it all: another rank's error, or a sentence


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step failed."""

    kind: FailureKind | None  # None where it is unknown
    cause: Cause
    devices: tuple[int, ...] = ()  # positions where it failed
    rank: Count | None = None  # the process of a launch that reported it
    work: Work | None = None  # the step's, as the next two
    size_bytes: Ordinal | None = None
    groups: tuple[tuple[int, ...], ...] = ()  # positions
    seconds: float | None = None
    exit_status: Whole | None = None  # of a process that ended by itself
    signal: Ordinal | None = None  # that ended a process
    count: Ordinal | None = None
    detail: str = ""  # in the words of CUDA, NCCL, the kernel or a dying process
    because: Failure | None = None  # an earlier failure that led to this one

    def __str__(self) -> str:
        """Return "crash: worker process died (signal 9): detail": a notation, for the texts of exceptions."""
        figures = {
            "rank {}": self.rank,
            "{:g} s": self.seconds,
            "exit status {}": self.exit_status,
            "signal {}": self.signal,
            "{}": self.count,
        }
        known = ", ".join(form.format(figure) for form, figure in figures.items() if figure is not None)
        head = f"{self.cause} ({known})" if known else str(self.cause)
        kind = [str(self.kind)] if self.kind is not None else []
        return ": ".join([*kind, head, *filter(None, (self.detail, str(self.because or "")))])


def died(status: int, last_line: str, devices: tuple[int, ...] = ()) -> Failure:
    """Return the failure of a process that ended with this status, as subprocess gives it; `devices` were its own.

    `last_line` is the last that it wrote to stderr, "" for nothing.
    """
    ended, signal = (status, None) if status >= 0 else (None, -status)
    return Failure(FailureKind.CRASH, Cause.DIED, devices, exit_status=ended, signal=signal, detail=last_line)


@dataclass(frozen=True, slots=True)
class WrongData:
    """Data that arrived and was not sent, in a message of `work`. None: it was not reported."""

    work: Work
    size_bytes: Ordinal
    members: tuple[int, ...]  # positions in the order of the transfer; a collective's rank that found it comes first
    count: Ordinal | None = None  # of wrong elements
    offset: Count | None = None  # of the first of them, in bytes
    expected: float | None = None  # there
    found: float | None = None  # None beside an expected value: NaN or an infinity, which JSON lacks

    def __post_init__(self) -> None:
        """Replace values that no file can hold."""
        for name in ("expected", "found"):
            if not math.isfinite(getattr(self, name) or 0):
                object.__setattr__(self, name, None)
