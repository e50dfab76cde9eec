"""The torchrun command for the chosen devices, and the one exec that replaces collbench by it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from collbench.launch import rendezvous
from collbench.launch.arguments import Script
from collbench.machine.visible_devices import NAME
from collbench.model.capabilities import capabilities
from collbench.model.errors import MachineError, UsageError
from collbench.model.printable import one_line
from collbench.model.run import Device


def for_devices(devices: Sequence[Device], inherited: Mapping[str, str], *, backend: str) -> dict[str, str]:
    """Return the variables to change in `inherited` so that local rank r has `devices[r]`; none that already fit.

    GPUs go by UUID: CUDA's indices differ from nvidia-smi's unless CUDA_DEVICE_ORDER=PCI_BUS_ID. The host backend
    hides every GPU, so that training uses gloo; `start_command` keeps the ranks on the cores.
    """
    visible = "" if capabilities(backend).cores else ",".join(device.uuid for device in devices)
    return {} if inherited.get(NAME) == visible else {NAME: visible}


# How `collbench train` reports its choice: one line on stderr, and the command that --dry-run prints.


QUICK_PROBE = "quick probe"


def saved_run(started: str, path: str) -> str:
    """Return the text that names a saved run as a choice's source; `started` is `Run.started`, in its time zone."""
    try:
        when = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:  # another machine's file, whose age was not checked
        when = f"'{started}'"
    return f"run of {when}, saved at {one_line(path)}"


def choice(devices: Sequence[Device], reason: str, source: str, *, backend: str, among: str = "") -> str:
    """Return the line that says which devices train, why (`reason`), and on what evidence (`source`).

    `among` is a clause on what limited the choice, "" for none.
    """
    if capabilities(backend).cores:
        device_text = ", ".join(f"core {device.index}" for device in devices) + " (host backend)"
    else:
        names = ", ".join(f"GPU{device.index}" for device in devices)
        device_text = f"{names} ({', '.join(device.uuid for device in devices)})"
    return f"using {device_text}: {f'{reason}, {among}' if among else reason} ({source})"


def against(used: Sequence[tuple[Device, str]]) -> str:
    """Return devices with what is wrong with each: "GPU1 (busy: 1 other process), GPU3 (faulty: …)"."""
    return ", ".join(f"{device.tag} ({why})" for device, why in used)


def shell_line(changes: Mapping[str, str], command: Sequence[str]) -> str:
    """Return changes and command as one line that does the same when pasted into a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
    return " ".join([*assignments, shlex.join(command)])


def start_command(
    script: Script,
    devices: Sequence[Device],
    inherited: Mapping[str, str],
    *,
    backend: str,
) -> list[str]:
    """Return the command that starts training with local rank r on GPU `devices[r]`, or on these cores together.

    It is `python -m torch.distributed.run`, not the torchrun on PATH, which may belong to another installation than the
    one whose torch and NCCL were measured. `inherited` is read for torchrun's PET_* defaults and for Slurm's variables.
    Raises UsageError.
    """
    _check_process_count(script, len(devices))
    start = []
    if capabilities(backend).cores:
        start += ["taskset", "-c", ",".join(str(device.index) for device in devices)]
    # -P keeps the working directory out of torchrun's own imports, as its script does.
    start += [sys.executable, "-P", "-m", "torch.distributed.run", *rendezvous.options(script, inherited)]
    if not script.has("--nproc-per-node"):
        start += ["--nproc-per-node", str(len(devices))]
    return [*start, *script.options, "--", *_escaped(script.program, is_executable=script.has("--no-python"))]


def _check_process_count(script: Script, count: int) -> None:
    typed = script.torchrun.get("--nproc-per-node", str(count))
    if typed != str(count):
        raise UsageError(
            f"--nproc-per-node {typed} contradicts the number of chosen devices, {count}: "
            "leave it out, collbench sets it"
        )


def _escaped(program: Sequence[str], is_executable: bool) -> list[str]:
    """Return the program's arguments as torchrun hands them on unchanged.

    It expands ${local_rank} and $$ in every argument but the executable [torch 2.13, elastic/utils/api.py, macros].
    With `--` before them its argparse keeps the script's `--` and does not call `--r` an ambiguous abbreviation.
    """
    first = program[:1] if is_executable else ()
    return [*first, *(argument.replace("$", "$$") for argument in program[len(first) :])]


def check_options(script: Script, inherited: Mapping[str, str], count: int) -> None:
    """Raise UsageError for torchrun options that contradict each other or K, 0 for none: before measuring."""
    rendezvous.options(script, inherited)
    if count:
        _check_process_count(script, count)


def check_script(script: Script) -> None:
    """Raise UsageError if Python cannot run the script, or the program is missing. torchrun checks modules itself."""
    path = Path(script.program[0])
    if script.has("--module"):
        return
    if script.has("--no-python"):
        if shutil.which(name := script.program[0]) is None:  # torchrun would print a traceback
            why = f"cannot be executed: chmod +x {name}" if path.is_file() else "does not exist: check its path"
            raise UsageError(f"program '{name}' {why}, or leave --no-python out if it is a Python script")
        return
    if not path.exists():
        raise UsageError(
            f"script '{path}' does not exist in {Path.cwd()}: check its path, and that it is the first word "
            "after torchrun's options"
        )
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"script '{path}' is a folder without __main__.py: name the file to train with")


def find_torch() -> str:
    """Return where torch is installed, without importing it (2-4 s). Raises MachineError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MachineError(
            f"cannot start training: torch is not installed for {sys.executable}: run '{sys.executable} -m pip "
            "install torch', or start collbench from the environment that has it"
        )
    return spec.origin


def execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by `command` with this whole environment; status and signals are then its own.

    Raises MachineError if it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        raise MachineError(
            f"cannot start '{command[0]}': {error.strerror}: check that it exists and is executable"
        ) from error
