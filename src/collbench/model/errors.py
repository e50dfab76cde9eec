"""What can go wrong, as exceptions whose text says what was tried, on what, and what to do next; and exit statuses.

`cli` is the one place that prints them: one line on stderr, then `exit_code`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from collbench.model.failures import Cause, Failure, FailureKind, WrongData


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
    text: `api` adds the sentence, for it knows the devices.
    """

    exit_code = ExitStatus.UNTRUSTED

    def __init__(self, text: str = "", wrong: WrongData | None = None) -> None:
        """Keep the text and the facts; without a text the facts make a short one."""
        super().__init__(text or (f"wrong data: {wrong.work} of {wrong.size_bytes} B" if wrong else "wrong data"))
        self.wrong = wrong


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. The text says what became of the interrupted work. Handlers of CollbenchError let it pass."""

    exit_code = ExitStatus.INTERRUPTED  # 128 + SIGINT, as shells have it
