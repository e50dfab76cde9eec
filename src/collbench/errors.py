"""What can go wrong, as exceptions whose text says what was tried, on what, and what to do next.

`cli` is the one place that prints them: one line on stderr, then `exit_code`.
"""

from __future__ import annotations


class CollbenchError(Exception):
    """Any failure that collbench explains to its user in one line."""

    exit_code = 2


class UsageError(CollbenchError):
    """An argument that cannot mean anything here: a bad size, an unknown device, a missing script."""


class MachineError(CollbenchError):
    """The machine lacks what the command needs: no driver, no NCCL, too little free memory."""


class RunFileError(CollbenchError):
    """A run file that cannot be read, written, or used on this machine."""


class BackendError(CollbenchError):
    """A measurement that failed on the way: a CUDA or NCCL call, a lost worker."""

    exit_code = 1


class StepFailed(BackendError):
    """One step that hung, crashed or met a sticky device error. It costs its cells; the backend can go on."""


class DataCorruption(CollbenchError):
    """Bytes arrived that were not sent. Never a warning: the link cannot be trusted."""

    exit_code = 4
