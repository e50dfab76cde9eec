"""The torchrun command for the chosen devices, and the one exec that replaces collbench by it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from collbench.errors import MachineError, UsageError
from collbench.launch.arguments import TrainArguments
from collbench.launch.options import RENDEZVOUS
from collbench.model import Device

# Each of these says what a rank binds to, or starts it in a way that leaves pin.py no process of its own.
_UNPINNABLE = ("--run-path", "--virtual-local-rank", "--numa-binding")


def command(
    arguments: TrainArguments,
    devices: Sequence[Device],
    inherited: Mapping[str, str],
    *,
    backend: str,
    python: str,
    bind: bool = False,
) -> list[str]:
    """Return the words that start training with local rank r on `devices[r]`. Raises UsageError.

    It is `python -m torch.distributed.run`, not the torchrun on PATH, which may belong to another installation than
    the one whose torch and NCCL were measured. -P keeps the working directory out of torchrun's own imports, as in
    the torchrun script. `inherited` is read for torchrun's PET_* defaults and PYTHON_EXEC. `bind` lets torchrun bind
    each rank to the CPUs of its GPU's NUMA node.
    """
    _check_process_count(arguments, len(devices))
    words = [python, "-P", "-m", "torch.distributed.run"]
    if not _names_rendezvous(arguments, inherited):
        words.append("--standalone")
    if not arguments.has("--nproc-per-node"):
        words += ["--nproc-per-node", str(len(devices))]
    if bind:
        words += ["--numa-binding", "node"]
    if backend == "host":
        program = _pinned(arguments, devices, python, inherited.get("PYTHON_EXEC", python))
        return [*words, *_options(arguments, without=("--module", "--no-python")), "--no-python", "--", *program]
    return [*words, *_options(arguments), "--", *_escaped(arguments.program, arguments.has("--no-python"))]


def _check_process_count(arguments: TrainArguments, count: int) -> None:
    for option in arguments.torchrun_options:
        if option.name == "--nproc-per-node" and option.value != str(count):
            raise UsageError(
                f"--nproc-per-node {option.value} contradicts the number of chosen devices, {count}: "
                "leave it out, collbench sets it"
            )


def _names_rendezvous(arguments: TrainArguments, inherited: Mapping[str, str]) -> bool:
    """Return whether the user says how nodes meet: --standalone would override it without a word."""
    names = (*RENDEZVOUS, "--standalone")
    variables = (f"PET_{name[2:].replace('-', '_').upper()}" for name in names)
    return arguments.has(*names) or any(variable in inherited for variable in variables)


def _options(arguments: TrainArguments, without: tuple[str, ...] = ()) -> list[str]:
    return [token for option in arguments.torchrun_options if option.name not in without for token in option.tokens]


def _escaped(program: Sequence[str], is_executable: bool) -> list[str]:
    """Return the program's words as torchrun hands them on unchanged.

    It expands ${local_rank} and $$ in every word but the executable [torch 2.13, elastic/utils/api.py, macros].
    With `--` before them its argparse keeps the script's `--` and does not call `--r` an ambiguous abbreviation.
    """
    first = program[:1] if is_executable else ()
    return [*first, *(word.replace("$", "$$") for word in program[len(first) :])]


def _pinned(arguments: TrainArguments, devices: Sequence[Device], python: str, worker_python: str) -> list[str]:
    for option in arguments.torchrun_options:
        if option.name in _UNPINNABLE:
            raise UsageError(f"{option.name} cannot be used on the host backend, which pins ranks: leave it out")
    program = list(arguments.program)
    if not arguments.has("--no-python"):
        program = [worker_python, "-u", *(["-m"] if arguments.has("--module") else []), *program]
    cores = ",".join(str(device.index) for device in devices)
    pin = [python, "-P", "-m", "collbench.launch.pin", "--cores", cores, "--"]
    return _escaped([*pin, *program], is_executable=True)


def check_script(arguments: TrainArguments) -> None:
    """Raise UsageError if Python cannot run the script. Modules and --no-python programs are left to torchrun."""
    script = Path(arguments.program[0])
    if arguments.has("--module", "--no-python"):
        return
    if not script.exists():
        raise UsageError(
            f"script '{script}' does not exist in {Path.cwd()}: check its path, and that it is the first word "
            "after torchrun's options"
        )
    if script.is_dir() and not (script / "__main__.py").exists():
        raise UsageError(f"script '{script}' is a folder without __main__.py: name the file to train with")


def find_torch() -> str:
    """Return where torch is installed, without importing it (2-4 s). Raises MachineError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MachineError(
            f"cannot start training: torch is not installed for {sys.executable}: run '{sys.executable} -m pip "
            "install torch', or start collbench from the environment that has it"
        )
    return spec.origin


def cannot_bind() -> str:
    """Return why torchrun here cannot bind ranks to NUMA nodes, as a clause; "" where it can.

    Reads the version that torch was installed with: importing it takes 2-4 s.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch's version is unknown"
    if not _knows_binding(version):
        return f"torch {version} cannot, 2.9 can"
    # [torch 2.13, torch/numa/binding.py, _raise_if_binding_invalid]: without it the ranks do not start.
    return "" if shutil.which("numactl") else "torchrun needs the command numactl for it"


def _knows_binding(version: str) -> bool:
    """Return whether this torch's torchrun has --numa-binding: since 2.9 [pytorch#149334, July 2025]."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (2, 9)


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
