"""A job under the NCCL profiler plugin: its environment, its run, and its exit status."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import collbench
from collbench.model.errors import MachineError, UsageError
from collbench.model.printable import one_line

FOLDER = "COLLBENCH_RECORD_FOLDER"
_GPU_TIMES = "COLLBENCH_RECORD_GPU_TIMES"
_PLUGIN = "NCCL_PROFILER_PLUGIN"
# NCCL 2.24 to 2.26 cut the name of a plugin after 254 characters [plugin_open.cc, MAX_STR_LEN].
_LONGEST = 254
# What ends a program from outside. The terminal sends Ctrl-C to the job itself, a scheduler sends SIGTERM to us alone.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FROM_KERNEL = 128  # siginfo's SI_KERNEL: the terminal's driver sent it, to every process in the foreground

INSTEAD = "trace the job with torch.profiler and read the traces with 'collbench import'"


def plugin() -> Path:
    """Return the plugin's file. Raises MachineError if the package was built without it."""
    path = Path(collbench.__file__).parent / "_profiler.so"
    if not path.is_file():
        raise MachineError(f"cannot record: {path} is missing", "install collbench again, from a wheel or its sources")
    return path


def environment(
    inherited: Mapping[str, str], plugin_file: Path, folder: Path, *, gpu_times: bool = False
) -> dict[str, str]:
    """Return what to change in `inherited` for the job. Raises UsageError if NCCL would load another plugin."""
    taken = inherited.get(_PLUGIN, "")
    if taken and taken != str(plugin_file):
        raise UsageError(
            f"cannot record: NCCL_PROFILER_PLUGIN is '{one_line(taken)}', and NCCL loads only one plugin",
            f"unset it for this job, or {INSTEAD}",
        )
    file = plugin_file
    if len(str(file)) > _LONGEST:
        file = folder / "profiler.so"
        if not file.exists():
            file.symlink_to(plugin_file)
    variables = {"NCCL_PROFILER_PLUGIN": str(file), FOLDER: str(folder)}
    if gpu_times or _GPU_TIMES in inherited:  # what an outer record asked for is not this one's
        variables[_GPU_TIMES] = str(int(gpu_times))
    return variables


def check(command: Sequence[str]) -> None:
    """Raise UsageError if the job's program is missing, before creating anything for it."""
    if shutil.which(command[0]) is None:
        why = f"cannot be executed: chmod +x {command[0]}" if Path(command[0]).is_file() else "does not exist"
        raise UsageError(f"program '{one_line(command[0])}' {why}: check its path")


def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a job to its end and return its exit status, of a signal 128 + its number as a shell has it.

    Its input and output are ours. Signals that would end us go to the job, and we continue until it ends.
    """
    early: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        early.append(number)

    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, keep) for number in heeded}  # the job gets SIG_DFL for these, by exec
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            job = subprocess.Popen(command, env={**os.environ, **variables})
        except OSError as error:
            raise UsageError(f"cannot start '{one_line(command[0])}': {error.strerror}") from error
        signal.pthread_sigmask(signal.SIG_BLOCK, (*heeded, signal.SIGCHLD))
        for number in early:
            if number != signal.SIGINT:
                job.send_signal(number)
        while job.poll() is None:
            came = signal.sigwaitinfo((*heeded, signal.SIGCHLD))
            if came.si_signo != signal.SIGCHLD and came.si_code != _FROM_KERNEL:
                job.send_signal(came.si_signo)
    finally:
        while signal.sigtimedwait((*heeded, signal.SIGCHLD), 0) is not None:
            pass  # what came while the job ended was meant for it
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - job.returncode if job.returncode < 0 else job.returncode
