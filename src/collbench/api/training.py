"""A training job: on which devices it runs and why, and how torchrun starts it: options, command, environment."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from collbench.api import SILENT, Notices, by_run
from collbench.api.selecting import ChoiceRequest
from collbench.choose.choice import FEW_SETS, against
from collbench.choose.fitness import left_out
from collbench.judge.outcome import outcome
from collbench.machine import device_names
from collbench.machine.launchers import SlurmStep, find_launch, find_step
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.errors import MachineError, NotTrusted, UsageError
from collbench.model.run import Device, capabilities, device_sets

# Torchrun's options: where the script begins depends on which of them take a value. The table is kept by hand because
# asking its parser means importing torch (2-4 s); a test compares it with that parser.

# [torch 2.13, torch/distributed/run.py, get_args_parser]
TORCHRUN_FLAGS = frozenset({"--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank"})
RENDEZVOUS = frozenset(
    {
        *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr"),
        *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
    }
)
TORCHRUN_VALUES = RENDEZVOUS | {
    *("--nproc-per-node", "--max-restarts", "--monitor-interval", "--start-method", "--role"),
    *("--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--logs-specs", "--event-log-handler"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
    *("--numa-binding", "--signals-to-handle", "--shutdown-timeout"),
}
SHORT = {"--module": "-m", "--redirects": "-r", "--tee": "-t"}


@dataclass(frozen=True, slots=True)
class Script:
    """A script with all that follows it, and torchrun's options by long name with dashes; None is a flag's value."""

    program: tuple[str, ...]
    torchrun: Mapping[str, str | None] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Return whether one of these options was given."""
        return not self.torchrun.keys().isdisjoint(names)

    @property
    def options(self) -> tuple[str, ...]:
        """The options as torchrun reads them."""
        return tuple(word for name, value in self.torchrun.items() for word in (name, value) if word is not None)


# Collbench's own options that training scripts hardly ever have; many have a --backend or --devices.
_RARELY_A_SCRIPTS = ("--auto-select", "--allow-busy", "--exclude", "--max-age", "--run-file")


def passed_on(program: Sequence[str]) -> str:
    """Return the line about collbench's options after the script, which the script gets; "" without any."""
    names = {word.partition("=")[0] for word in program[1:]}
    misplaced = [name for name in _RARELY_A_SCRIPTS if name in names]
    if not misplaced:
        return ""
    them = "it" if len(misplaced) == 1 else "them"
    return (
        f"{', '.join(misplaced)} passed to {program[0]}: put {them} before the script if collbench should read {them}"
    )


def for_devices(devices: Sequence[Device], inherited: Mapping[str, str], *, backend: str) -> dict[str, str]:
    """Return the variables to change in `inherited` so that local rank r has `devices[r]`; none that already fit.

    GPUs go by UUID: CUDA's indices differ from nvidia-smi's unless CUDA_DEVICE_ORDER=PCI_BUS_ID. The host backend
    hides every GPU, so that training uses gloo; `start_command` keeps the ranks on the cores.
    """
    visible = "" if capabilities(backend).cores else ",".join(device.uuid for device in devices)
    return {} if inherited.get(device_names.NAME) == visible else {device_names.NAME: visible}


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
    start += [sys.executable, "-P", "-m", "torch.distributed.run", *rendezvous_options(script, inherited)]
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
    rendezvous_options(script, inherited)
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


# How the nodes of a job find each other: torchrun's options, the user's own or those that Slurm's variables give.

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# Whoever gives one of these has decided how the nodes meet.
_MEETING = ("--standalone", "--rdzv-endpoint", "--rdzv-backend", "--master-addr", "--master-port", "--node-rank")


def rendezvous_options(script: Script, environment: Mapping[str, str]) -> list[str]:
    """Return the torchrun options on the rendezvous that the user left to us. Raises UsageError.

    torchrun takes defaults from PET_* variables, which Kubeflow's PyTorchJob sets: they count as the user's.
    """
    _check_nnodes(script, environment)
    several = several_nodes(script, environment)
    if _meets(script, environment):
        return ["--rdzv-backend", "c10d"] if several and _lacks_backend(script, environment) else []
    step = find_step(environment) if several else None
    if step is not None:
        return _in_a_step(step, script)
    if several:
        raise UsageError(
            f"--nnodes {script.torchrun.get('--nnodes') or 'in PET_NNODES'} has no address for the nodes: add "
            "--rdzv-endpoint HOST:29500, with the same HOST on every node"
        )
    if any(_given(script, environment, name) is not None for name in RENDEZVOUS):
        return []  # --standalone would override it without a word
    _refuse_others(environment)
    return ["--standalone"]


def several_nodes(script: Script, environment: Mapping[str, str]) -> bool:
    """Return whether ranks may run on more than this node: --nnodes "4", "1:4", PET_NNODES, or a step of Slurm's."""
    given = _given(script, environment, "--nnodes")
    if given:
        return given.rpartition(":")[2].strip() != "1"
    return not _meets(script, environment) and find_step(environment) is not None


def rendezvous_variables(script: Script, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to set so that a node that was lost can come back; {} where none can, or where it is set already.

    After a restart torchrun's first node does not announce the address of its shared store, and a node that is new
    waits 60 s for it and fails [torch 2.13, elastic/rendezvous/dynamic_rendezvous.py, next_rendezvous].
    """
    fewest, _, most = (_given(script, environment, "--nnodes") or "").partition(":")
    restarts = (_given(script, environment, "--max-restarts") or "0") != "0" or most not in ("", fewest)
    if not restarts or not several_nodes(script, environment) or _OWN_STORE in environment:
        return {}
    return {_OWN_STORE: "1"}


def override_note(script: Script, environment: Mapping[str, str], count: int) -> str:
    """Return a clause if PET_NPROC_PER_NODE is not `count`, the number of ranks here; else ""."""
    per_node = environment.get("PET_NPROC_PER_NODE", "")
    if not re.fullmatch("[0-9]{1,9}", per_node) or int(per_node) == count or script.has("--nproc-per-node"):
        return ""
    return f"PET_NPROC_PER_NODE={per_node} is overridden by the {count} chosen here"


def _check_nnodes(script: Script, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a number of nodes with which torchrun would print a traceback."""
    given = _given(script, environment, "--nnodes") or "1"
    numbers = re.fullmatch(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?", given.strip())
    if numbers is None or int(numbers[1]) > int(numbers[2] or numbers[1]):
        name = "--nnodes" if script.has("--nnodes") else "PET_NNODES"
        raise UsageError(f"{name} '{given}' is not a number of nodes: write 4, or 1:4 for an elastic job")


def _in_a_step(step: SlurmStep, script: Script) -> list[str]:
    """Return the options for Slurm's step of one task a node. The first node is the host; is_host tells torchrun so."""
    given = script.torchrun.get("--nnodes")
    if given is not None and given.rpartition(":")[2] != str(step.nodes):
        raise UsageError(f"--nnodes {given} contradicts srun, which starts {step.nodes} nodes: leave it out")
    added = [] if given is not None else ["--nnodes", str(step.nodes)]
    added += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{step.host}:{step.port}"]
    added += [] if script.has("--rdzv-id") else ["--rdzv-id", step.name]
    return added + ([] if script.has("--rdzv-conf") else ["--rdzv-conf", f"is_host={int(step.node == 0)}"])


def _refuse_others(environment: Mapping[str, str]) -> None:
    """Raise UsageError where a launcher started this once on each of several nodes: each would train for itself."""
    launch = find_launch(environment)
    if launch is not None and launch.local_size < launch.world_size:
        raise UsageError(
            f"{launch.launcher} started this on {launch.world_size // launch.local_size} nodes, which do not know "
            "of each other: add --nnodes N --rdzv-endpoint HOST:29500, or --standalone"
        )


def _lacks_backend(script: Script, environment: Mapping[str, str]) -> bool:
    """Torchrun's default, static, needs a number for every node, which the same arguments on each node do not give."""
    static = ("--rdzv-backend", "--node-rank", "--master-addr")
    endpoint = _given(script, environment, "--rdzv-endpoint")
    return endpoint is not None and not any(_given(script, environment, name) for name in static)


def _meets(script: Script, environment: Mapping[str, str]) -> bool:
    return any(script.has(name) or _given(script, environment, name) is not None for name in _MEETING)


def _given(script: Script, environment: Mapping[str, str], name: str) -> str | None:
    """Return an option's value, else that of the variable that torchrun reads for it."""
    variable = f"PET_{name[2:].replace('-', '_').upper()}"
    return script.torchrun[name] if script.has(name) else environment.get(variable)


# Which devices are chosen, why, and what is started on them.


@dataclass(frozen=True, slots=True)
class Launch:
    """What `collbench train` starts: variables added to ours, and a command.

    `choice` is the line on the devices and why they were chosen, `notes` the lines before it.
    """

    changes: dict[str, str]
    command: list[str]
    notes: tuple[str, ...]
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest(ChoiceRequest):
    """What is asked for: a script on these `devices`, indices or UUIDs with commas, or on the best ones."""

    asked = "--auto-select"
    undone = "nothing was started"
    advice = "measure again or use --fresh"

    script: Script
    devices: str | None = None


def prepare(request: TrainRequest, notices: Notices = SILENT) -> Launch:
    """Choose devices and return what to start on them. Raises UsageError, MachineError and what `choose` raises."""
    script = request.script
    check_options(script, os.environ, request.count)
    check_script(script)
    find_torch()
    with ThreadPoolExecutor(1) as pool:  # the driver answers in a tenth of a second, and numpy loads in another
        looking = pool.submit(factory.look, request.backend)
        chosen = choose(request, looking.result, notices)
    present = looking.result()
    devices = chosen.devices
    changes = for_devices(devices, os.environ, backend=present.backend)
    changes |= rendezvous_variables(script, os.environ)
    command = start_command(script, devices, os.environ, backend=present.backend)
    notes = (chosen.note, override_note(script, os.environ, len(devices)))
    return Launch(changes, command, tuple(filter(None, notes)), chosen.line(present))


# Which devices are chosen, and why the others are not.


@dataclass(frozen=True, slots=True)
class Chosen:
    """Devices, why, and the evidence as text.

    `note` is a further line, "" for none: the devices left out, or what is wrong with those chosen by hand.
    """

    devices: tuple[Device, ...]
    why: str
    source: str
    note: str = ""

    def line(self, present: Present) -> str:
        """Return the line that says which devices train, why, and on what evidence."""
        if capabilities(present.backend).cores:
            device_text = ", ".join(device.tag for device in self.devices) + " (host backend)"
        else:
            names = ", ".join(f"GPU{device.index}" for device in self.devices)
            device_text = f"{names} ({', '.join(device.uuid for device in self.devices)})"
        return f"using {device_text}: {', '.join(filter(None, (self.why, present.among)))} ({self.source})"


def choose(request: TrainRequest, look: Callable[[], Present], notices: Notices) -> Chosen:
    """Return the devices to train on: those named by hand, or the best K of those that are healthy now.

    `look` waits for what the machine has. Raises UsageError, NotTrusted if every set includes what failed, and what
    probing does.
    """
    if request.devices is None:
        import collbench.choose.select  # noqa: F401 - late: numpy, which loads while the machine is looked at

    present = look()
    if request.devices is not None:
        return _by_hand(request.devices, request.max_age, present, notices)
    found, choice, _ = by_run.chosen_by_run(request, by_run.criteria_of(request, present), notices)
    run = found.run
    cut = [(device, by_run.MIG) for device in present.mig]
    if choice.failed:
        advice = "nothing was started; --devices uses devices in spite of this"
        failed = device_sets(choice.failed, run.devices, FEW_SETS)
        what = f"{failed} with a rate above the limit" if choice.failed == choice.impossible else f"failed {failed}"
        raise NotTrusted(f"every set of {request.count} includes {what}: {advice}", outcome(run).status)
    devices = tuple(run.devices[position] for position in choice.members)
    if run.measurements:
        out = [(run.devices[exclusion.member], exclusion.reason) for exclusion in choice.left_out]
        note = _left_out(out + cut)
        return Chosen(devices, choice.explained(run.devices), found.source, note)
    why = "all that are not excluded" if request.exclude else "all available"
    return Chosen(devices, why, found.source, note=_left_out(cut + by_run.lost(present)))


def _left_out(devices: Sequence[tuple[Device, str]]) -> str:
    return f"left out: {against(devices)}" if devices else ""


def _by_hand(device_list: str, max_age: timedelta, present: Present, notices: Notices) -> Chosen:
    devices = device_names.select(present.every, device_list)
    cut = [device.tag for device in devices if device in present.mig]
    if cut:
        tags = ", ".join(cut)
        raise UsageError(f"{tags} cannot train with others: {by_run.MIG}: choose others, or turn MIG mode off")
    run = by_run.as_now(by_run.nothing_to_compare(present.backend, devices), present.states)
    wrong = against([(devices[exclusion.member], exclusion.reason) for exclusion in left_out(run)])
    failed = by_run.seen_to_fail(devices, max_age, notices) if len(devices) > 1 else ""
    anyway = ", ".join(filter(None, (wrong, failed)))
    return Chosen(devices, "chosen by hand", "--devices", note=f"used anyway: {anyway}" if anyway else "")
