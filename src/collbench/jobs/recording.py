"""A job under the NCCL profiler plugin: its environment, its run, and its exit status."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import collbench
from collbench.ablations import ended_with_us
from collbench.jobs.marks import FOLDER, STEP_RANGE
from collbench.model.errors import MachineError, UsageError
from collbench.model.values import one_line

_GPU_TIMES = "COLLBENCH_RECORD_GPU_TIMES"
_PLUGIN = "NCCL_PROFILER_PLUGIN"
_NVTX_TOOL = "NVTX_INJECTION64_PATH"
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
    inherited: Mapping[str, str],
    plugin_file: Path,
    folder: Path,
    *,
    gpu_times: bool = False,
    step_range: str | None = None,
) -> dict[str, str]:
    """Return what to change in `inherited` for the job, which writes into `folder`.

    Raises UsageError if NCCL would load another plugin, or none, or NVTX another tool.
    """
    only = {_PLUGIN: "NCCL loads only one plugin"}
    if step_range:
        only[_NVTX_TOOL] = "NVTX loads only one tool"
    for variable, why in only.items():
        taken = inherited.get(variable, "")
        if taken and taken != str(plugin_file):
            raise UsageError(
                f"cannot record: {variable} is '{one_line(taken)}', and {why}",
                f"unset it for this job, or {INSTEAD}",
            )
    if len(os.fsencode(plugin_file)) > _LONGEST:
        raise UsageError(
            f"cannot record: NCCL cuts the plugin's path after {_LONGEST} characters, and {one_line(str(plugin_file))} "
            "is longer",
            f"install collbench in a folder with a shorter path, or {INSTEAD}",
        )
    variables = {_PLUGIN: str(plugin_file), FOLDER: str(folder)}
    if gpu_times or _GPU_TIMES in inherited:  # what an outer record asked for is not this one's
        variables[_GPU_TIMES] = str(int(gpu_times))
    if step_range:
        variables |= {STEP_RANGE: step_range, _NVTX_TOOL: str(plugin_file)}
    elif STEP_RANGE in inherited:
        variables[STEP_RANGE] = ""
    return variables


def check(command: Sequence[str]) -> None:
    """Raise UsageError if the job's program is missing, before creating anything for it."""
    if shutil.which(command[0]) is None:
        why = f"cannot be executed: chmod +x {command[0]}" if Path(command[0]).is_file() else "does not exist"
        raise UsageError(f"program '{one_line(command[0])}' {why}: check its path")


@contextmanager
def signals_held() -> Iterator[set[int]]:
    """Hold back what would end this process, and give the signals that were held back before.

    What came until the end of the block is dropped: by then everything is done.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who starts us may ignore it: the kernel then keeps no job's status
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*heeded, signal.SIGCHLD))
    try:
        yield mask
    finally:
        _drop_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def signals_heeded(mask: set[int]) -> Iterator[None]:
    """Let signals end the block, except those of `mask` and SIGHUP, whose user has left and would read no message."""
    held = signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _drop_signals() -> None:
    while signal.sigtimedwait((*_ENDING, signal.SIGCHLD), 0) is not None:
        pass


def run(command: Sequence[str], variables: Mapping[str, str], mask: set[int]) -> int:
    """Run a job to its end and return its exit status, of a signal 128 + its number as a shell has it.

    Its input and output are ours. Signals are held: those that would end us go to the job, and we continue until it
    ends. `mask` are those that the job does not get. If we are killed, the job gets SIGTERM.
    """
    try:
        program = ended_with_us.with_us(command)
        job = os.posix_spawn(program[0], program, {**os.environ, **variables}, setsigmask=mask)
        while not (ended := os.waitpid(job, os.WNOHANG))[0]:
            came = signal.sigwaitinfo((*_ENDING, signal.SIGCHLD))
            if came.si_signo != signal.SIGCHLD and came.si_code != _FROM_KERNEL:
                with suppress(PermissionError):  # a job of sudo's
                    os.kill(job, came.si_signo)
    except OSError as error:
        raise UsageError(f"cannot start '{one_line(command[0])}': {error.strerror}") from error
    finally:
        _drop_signals()  # what came while the job ended was meant for it
    status = os.waitstatus_to_exitcode(ended[1])
    return 128 - status if status < 0 else status
