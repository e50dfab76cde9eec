"""The torchrun command for the chosen devices, and the one exec that replaces collbench by it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from collbench.launch import rendezvous
from collbench.launch.arguments import TrainArguments
from collbench.model.capabilities import capabilities
from collbench.model.errors import MachineError, UsageError
from collbench.model.printable import one_line
from collbench.model.run import Device


def for_devices(devices: Sequence[Device], inherited: Mapping[str, str], *, backend: str) -> dict[str, str]:
    """Return the variables to change in `inherited` so that local rank r has `devices[r]`; none that already fit.

    GPUs go by UUID: CUDA's indices differ from nvidia-smi's unless CUDA_DEVICE_ORDER=PCI_BUS_ID. The host backend
    hides every GPU, so that training uses gloo; its cores are pinned by `launch.rank_start`, not by the environment.
    """
    visible = "" if capabilities(backend).cores else ",".join(device.uuid for device in devices)
    variables = {"CUDA_VISIBLE_DEVICES": visible}
    return {name: value for name, value in variables.items() if inherited.get(name) != value}


# torchrun inside an Apptainer image: the command around it, and what must be passed into the image.


# Where an image sees the folder of collbench.launch, whose small programs stand between torchrun and a rank.
SHIMS = "/collbench-launch"
# Apptainer hands the environment on unless a site or APPTAINER_CLEANENV says otherwise: these must get inside anyway,
# unchanged. Without the first three a job could use NVLink multicast that its user had forbidden.
_MUST_REACH = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "TORCH_DISABLE_SHARE_RDZV_", "PET_")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def wrap(
    command: Sequence[str], image: str, environment: Mapping[str, str], *, apptainer: str, shims: str
) -> list[str]:
    """Return `command` as one that runs in the image with the GPUs' driver (--nv), on the devices of `environment`.

    `shims` is the folder here that the image sees, read-only, at SHIMS; "" for none. One --env for each variable: only
    so may its value hold commas [apptainer 1.1, PR 413].
    """
    inside = {name: environment[name] for name in sorted(environment) if name.startswith(_MUST_REACH)}
    inside[_VISIBLE] = environment.get(_VISIBLE, "")
    exec_command = [apptainer, "exec", "--nv"]
    for name, value in inside.items():
        exec_command += ["--env", f"{name}={value}"]
    return [*exec_command, *(["--bind", f"{shims}:{SHIMS}:ro"] if shims else []), image, *command]


# How `collbench train` reports its choice: one line on stderr, and the command that --dry-run prints.


QUICK_PROBE = "quick probe"


def saved_run(started: str, path: str) -> str:
    """Return the text that names a saved run as a choice's source; `started` is `Run.started`, in its time zone."""
    try:
        when = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:  # another machine's file, whose age was not checked
        when = f"'{started}'"
    return f"run of {when}, saved at {one_line(path)}"


def choice(
    devices: Sequence[Device], reason: str, source: str, *, backend: str, among: str = "", binding: str = ""
) -> str:
    """Return the line that says which devices train, why (`reason`), and on what evidence (`source`).

    `among` is a clause on what limited the choice and `binding` one on NUMA nodes, "" for none.
    """
    if capabilities(backend).cores:
        device_text = ", ".join(f"core {device.index}" for device in devices) + " (host backend)"
    else:
        names = ", ".join(f"GPU{device.index}" for device in devices)
        device_text = f"{names} ({', '.join(device.uuid for device in devices)})"
    clauses = [f"{reason}, {among}" if among else reason, f" ({source})", f"; {binding}" if binding else ""]
    return f"using {device_text}: {''.join(clauses)}"


def against(used: Sequence[tuple[Device, str]]) -> str:
    """Return devices with what is wrong with each: "GPU1 (busy: 1 other process), GPU3 (faulty: …)"."""
    return ", ".join(f"{device.tag} ({why})" for device, why in used)


def shell_line(changes: Mapping[str, str], command: Sequence[str]) -> str:
    """Return changes and command as one line that does the same when pasted into a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
    return " ".join([*assignments, shlex.join(command)])


# Each of these says what a rank binds to, or starts it in a way that leaves rank_start.py no process of its own.
_UNPINNABLE = ("--run-path", "--virtual-local-rank", "--numa-binding")
_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Inside:
    """Where torchrun runs: its Python, that Python's options, and the folder in which it sees collbench.launch."""

    python: str
    options: tuple[str, ...]
    shims: str


def here() -> Inside:
    """Return this very Python. -P keeps the working directory out of torchrun's own imports, as its script does."""
    return Inside(sys.executable, ("-P",), _FOLDER)


def inside_image() -> Inside:
    """Return an image's own Python, which may be older than 3.11 and not know -P."""
    return Inside("python3", (), SHIMS)


def start_command(
    arguments: TrainArguments,
    devices: Sequence[Device],
    inherited: Mapping[str, str],
    *,
    backend: str,
    inside: Inside,
    bind: bool = False,
) -> list[str]:
    """Return the command that starts training with local rank r on `devices[r]`. Raises UsageError.

    It is `python -m torch.distributed.run`, not the torchrun on PATH, which may belong to another installation than the
    one whose torch and NCCL were measured. `inherited` is read for torchrun's PET_* defaults, for PYTHON_EXEC and for
    Slurm's variables. `bind` lets torchrun bind each rank to the CPUs of its GPU's NUMA node.
    """
    _check_process_count(arguments, len(devices))
    start = [inside.python, *inside.options, "-m", "torch.distributed.run", *rendezvous.options(arguments, inherited)]
    if not arguments.has("--nproc-per-node"):
        start += ["--nproc-per-node", str(len(devices))]
    if bind:
        start += ["--numa-binding", "node"]
    start_options = _rank_start_options(arguments, devices, inherited, backend)
    if not start_options:
        return [*start, *_options(arguments), "--", *_escaped(arguments.program, arguments.has("--no-python"))]
    program = _behind_rank_start(start_options, arguments, inherited, inside)
    rest = _options(arguments, without=("--module", "--no-python"))
    return [*start, *rest, "--no-python", "--", *_escaped(program, is_executable=True)]


def _check_process_count(arguments: TrainArguments, count: int) -> None:
    for option in arguments.torchrun_options:
        if option.name == "--nproc-per-node" and option.value != str(count):
            raise UsageError(
                f"--nproc-per-node {option.value} contradicts the number of chosen devices, {count}: "
                "leave it out, collbench sets it"
            )


def _options(arguments: TrainArguments, without: tuple[str, ...] = ()) -> list[str]:
    return [token for option in arguments.torchrun_options if option.name not in without for token in option.tokens]


def _escaped(program: Sequence[str], is_executable: bool) -> list[str]:
    """Return the program's arguments as torchrun hands them on unchanged.

    It expands ${local_rank} and $$ in every argument but the executable [torch 2.13, elastic/utils/api.py, macros].
    With `--` before them its argparse keeps the script's `--` and does not call `--r` an ambiguous abbreviation.
    """
    first = program[:1] if is_executable else ()
    return [*first, *(argument.replace("$", "$$") for argument in program[len(first) :])]


def _rank_start_options(
    arguments: TrainArguments, devices: Sequence[Device], inherited: Mapping[str, str], backend: str
) -> list[str]:
    """Return rank_start.py's options for each rank; none if the rank needs nothing before its program.

    --run-path leaves no process for them: then nodes are not compared.
    """
    options = []
    if capabilities(backend).cores:
        _refuse_unpinnable(arguments)
        options.append(f"--cores={','.join(str(device.index) for device in devices)}")
    if rendezvous.several_nodes(arguments, inherited) and not arguments.has("--run-path"):
        options.append("--compare-nodes")
    return options


def _behind_rank_start(
    options: Sequence[str], arguments: TrainArguments, inherited: Mapping[str, str], inside: Inside
) -> list[str]:
    """Return the command of rank_start.py and of the program after it, as torchrun builds the latter.

    rank_start.py is isolated (-I, -S), so that it starts in 10 ms. torchrun's report of a failure names the first
    argument that begins with no dash [torch 2.13, distributed/launcher/api.py, _get_entrypoint_name]: an interpreter is
    therefore an option's value, and the script that argument.
    """
    code = f"-cexec(open({f'{inside.shims}/rank_start.py'!r},'rb').read())"
    start = [inside.python, "-I", "-S", code, *options]
    if arguments.has("--no-python"):
        return [*start, "--", *arguments.program]
    module = ["-m"] if arguments.has("--module") else []
    python = inherited.get("PYTHON_EXEC", inside.python)
    return [*start, f"--program={python}", "--", "-u", *module, *arguments.program]


def _refuse_unpinnable(arguments: TrainArguments) -> None:
    for option in arguments.torchrun_options:
        if option.name in _UNPINNABLE:
            raise UsageError(f"{option.name} cannot be used on the host backend, which pins ranks: leave it out")


def in_container(
    arguments: TrainArguments, command: Sequence[str], environment: Mapping[str, str], apptainer: str
) -> list[str]:
    """Return the command as it runs in the image of --container, on the devices of this whole `environment`."""
    shims = _FOLDER if any(SHIMS in argument for argument in command) else ""
    return wrap(command, arguments.container or "", environment, apptainer=apptainer, shims=shims)


def find_apptainer(image: str) -> str:
    """Return the command that runs the image. Raises MachineError without one, UsageError without the image."""
    program = next(filter(None, map(shutil.which, ("apptainer", "singularity"))), None)
    if "://" not in image and not Path(image).exists():
        raise UsageError(
            f"container image '{image}' does not exist in {Path.cwd()}: check its path, or build it with "
            "'apptainer build IMAGE.sif docker://…'"
        )
    if program is None:
        raise MachineError(
            f"cannot run {image}: neither apptainer nor singularity is on PATH: install apptainer (or load its "
            "module), or leave --container out"
        )
    return program


def check_options(arguments: TrainArguments, inherited: Mapping[str, str]) -> None:
    """Raise UsageError for torchrun options that contradict each other or K: before anything is measured."""
    rendezvous.options(arguments, inherited)
    if arguments.auto_select is not None:
        _check_process_count(arguments, arguments.auto_select)


def check_script(arguments: TrainArguments) -> None:
    """Raise UsageError if Python cannot run the script, or the program is missing. torchrun checks modules itself.

    So are images, whose files this host has not.
    """
    script = Path(arguments.program[0])
    if arguments.container is not None or arguments.has("--module"):
        return
    if arguments.has("--no-python"):
        _check_program(arguments.program[0])
        return
    if not script.exists():
        raise UsageError(
            f"script '{script}' does not exist in {Path.cwd()}: check its path, and that it is the first word "
            "after torchrun's options"
        )
    if script.is_dir() and not (script / "__main__.py").exists():
        raise UsageError(f"script '{script}' is a folder without __main__.py: name the file to train with")


def _check_program(name: str) -> None:
    """Raise UsageError if the program does not exist: torchrun would print a traceback."""
    if shutil.which(name) is None:
        why = f"cannot be executed: chmod +x {name}" if Path(name).is_file() else "does not exist: check its path"
        raise UsageError(f"program '{name}' {why}, or leave --no-python out if it is a Python script")


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
    """Return why torchrun here cannot bind ranks to NUMA nodes, as a clause; "" if it can.

    Reads the version that torch was installed with: importing it takes 2-4 s.
    """
    from importlib import metadata  # late: 10 ms

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch's version is unknown"
    if not _knows_binding(version):
        return f"torch {version} cannot bind them, 2.9 or newer can"
    # [torch 2.13, torch/numa/binding.py, _raise_if_binding_invalid]: without it the ranks do not start.
    return "" if shutil.which("numactl") else "torchrun needs the command numactl for this"


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
