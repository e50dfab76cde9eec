"""How work fails, and how data is wrong: as values with kinds, causes, devices and figures, and as exceptions.

The text of an exception says what was tried, on what, and what to do next. `cli` is the one place that prints them: one
line on stderr, then `exit_code`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Self

from collbench.model.operations import Work
from collbench.model.values import Count, Ordinal, Whole


class FailureKind(StrEnum):
    """How a step failed. Decisions use the kind, never the text of an error.

    HANG: it did not end in its time; CRASH: its process died; ERROR: CUDA, NCCL or the kernel refused it; UNTRIED: it
    was not started, as too many before it had failed; BUSY: its process could hardly run, as others had the cores.
    """

    HANG = "hang"
    CRASH = "crash"
    ERROR = "error"
    UNTRIED = "untried"
    BUSY = "busy"


class Cause(StrEnum):
    """What happened. Beside each cause stand the fields of Failure that it fills."""

    REFUSED = "refused"  # by CUDA, NCCL or the kernel: work, size_bytes, groups, devices, detail
    NOT_OPENED = "GPUs not opened"  # devices, detail
    NO_BUFFERS = "no buffers"  # devices, detail
    NO_COMMUNICATOR = "no NCCL communicator"  # devices, detail
    NO_ANSWER = "no answer"  # of a worker process, which was killed: devices, seconds, detail
    STARVED = "no core"  # no answer of a worker process that was killed, and that had waited for a core: seconds
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
    count: Ordinal | None = None  # of wrong elements, of a copy bytes
    offset: Count | None = None  # of the first of them, in bytes
    expected: float | None = None  # there
    found: float | None = None  # None beside an expected value: NaN or an infinity, which JSON lacks

    def __post_init__(self) -> None:
        """Replace values that no file can hold."""
        for name in ("expected", "found"):
            if not math.isfinite(getattr(self, name) or 0):
                object.__setattr__(self, name, None)


class ExitStatus(IntEnum):
    """Exit statuses, the same for every command. Where several apply, the highest counts.

    `sentence` is the README's. `train` returns its job's own status.
    """

    sentence: str

    def __new__(cls, value: int, sentence: str) -> Self:
        """Return a status with its sentence."""
        status = int.__new__(cls, value)
        status._value_ = value
        status.sentence = sentence
        return status

    DONE = 0, "success"
    FAILED = 1, "a measurement failed, nothing could be judged, or `doctor` found a failure"
    BAD_INPUT = 2, "bad input, or the machine lacks something needed"
    CONTRADICTION = 3, "a contradiction, a slow node, a regression, or an impossible figure"
    UNTRUSTED = 4, "wrong data or a hang"
    HUNG_UP = 129, "SIGHUP"
    INTERRUPTED = 130, "Ctrl-C"
    QUIT = 131, "SIGQUIT"
    TERMINATED = 143, "SIGTERM"


def near(word: str, known: Iterable[str], cutoff: float = 0.6, most: int = 1) -> list[str]:
    """Return which of the known words were probably meant by another, the nearest first."""
    import difflib  # late: few words are wrong

    return difflib.get_close_matches(word, [*known], n=most, cutoff=cutoff)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return which of the known words was probably meant by another, "" if none is near."""
    return next(iter(near(word, known, cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of a sentence about a word that is not known: "; did you mean 'x'?", "" if none is near."""
    meant = nearest(word, known, cutoff)
    return f"; did you mean '{meant}'?" if meant else ""


class CollbenchError(Exception):
    """Any failure that collbench explains to its user in one line: the problem, and what to do where that is apart."""

    exit_code: int = ExitStatus.BAD_INPUT

    def __init__(self, problem: str = "", advice: str = "") -> None:
        """Say what is wrong; the text is "problem; advice"."""
        super().__init__("; ".join(filter(None, (problem, advice))))
        self.problem, self.advice = problem, advice

    def reworded(self, text: str) -> Self:
        """Return the same error with another text."""
        reported = type(self)(text)
        reported.__dict__.update(self.__dict__)
        return reported


class UsageError(CollbenchError):
    """An invalid argument: a bad size, an unknown device, a missing script."""


class MachineError(CollbenchError):
    """The machine lacks what the command needs: no driver, no NCCL, too little free memory."""


class NoDriver(MachineError):
    """The NVIDIA driver's library is not here."""


class RunFileError(CollbenchError):
    """A run file that cannot be read, written, or used on this machine."""


class BackendError(CollbenchError):
    """A measurement that failed: a CUDA or NCCL call, a lost worker. A hang has a separate exit status.

    `failure` is what a run keeps of it.
    """

    def __init__(self, text: str = "", kind: FailureKind = FailureKind.ERROR, failure: Failure | None = None) -> None:
        """Say what failed, and how. A `failure` has its own kind, and gives the text if there is none."""
        super().__init__(text or (str(failure) if failure else ""))
        self.kind = (failure.kind if failure else None) or kind
        self._failure = failure
        self.exit_code = ExitStatus.UNTRUSTED if self.kind is FailureKind.HANG else ExitStatus.FAILED

    @property
    def failure(self) -> Failure:
        """How it failed; where only a text was given, that text."""
        return self._failure or Failure(self.kind, Cause.REPORTED, detail=str(self))


def failure_of(error: CollbenchError) -> Failure:
    """Return the failure that an error reports."""
    if isinstance(error, BackendError):
        return error.failure
    return Failure(FailureKind.ERROR, Cause.REPORTED, detail=str(error))


class StepFailed(BackendError):
    """One step that hung, crashed or met a sticky device error. It costs its data points; the backend can continue."""


class PeerLost(StepFailed):
    """A step that failed here because it failed on another rank, whose error has the cause."""


class NotTrusted(CollbenchError):
    """The measurement failed, so nothing is chosen, compared or started; `status` is the failure's exit status."""

    def __init__(self, text: str = "", status: int = ExitStatus.FAILED) -> None:
        """Say what failed, and how the program ends."""
        super().__init__(text)
        self.exit_code = status


class DataCorruption(CollbenchError):
    """Bytes arrived that were not sent. Never a warning: the link cannot be trusted.

    `wrong` holds the facts, which a run keeps; None if the text is all that is known. Backends raise it without a
    text: `api` adds the sentence, because it knows the devices.
    """

    exit_code = ExitStatus.UNTRUSTED

    def __init__(self, text: str = "", wrong: WrongData | None = None) -> None:
        """Keep the text and the facts; without a text the facts make a short one."""
        super().__init__(text or (f"wrong data: {wrong.work} of {wrong.size_bytes} B" if wrong else "wrong data"))
        self.wrong = wrong


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. The text says what became of the interrupted work. Handlers of CollbenchError let it pass."""

    exit_code = ExitStatus.INTERRUPTED  # 128 + SIGINT, as shells have it
