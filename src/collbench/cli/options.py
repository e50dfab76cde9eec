"""Options that several commands share, parsed once, and the request that they make."""

from __future__ import annotations

import functools
import os
import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collbench.backends import factory
from collbench.bench.plan import Request, requested
from collbench.cli.terminal import say, verbose_option
from collbench.distributed.launchers import find_place
from collbench.launch.arguments import BACKENDS, check_backend
from collbench.model.capabilities import SIM
from collbench.model.dtypes import DTYPE_BYTES, REDOPS, parse_dtype
from collbench.model.errors import UsageError
from collbench.model.run import CommandKind, Run, StopReason
from collbench.model.units import parse_sizes
from collbench.runfile import run_file

# Precisions and durations as people type them.


# Nine digits on each side of the point: no larger number is meant, and float() stays exact enough.
_PRECISION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(%?)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s|min)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
# Half an interval as wide as the median itself says nothing.
_COARSEST = 1.0


def parse_precision(text: str) -> float:
    """Return the ratio that `text` names: "1%", "0.5%" or "0.01". Raises UsageError."""
    match = _PRECISION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--precision '{text}' is not a share of the median: write 1%, 0.5% or 0.01")
    ratio = float(match[1]) / (100 if match[2] else 1)
    if not 0 < ratio < _COARSEST:
        raise UsageError(f"--precision {text} lies outside 0 to 100 %: write 1%, 0.5% or 0.01")
    return ratio


def parse_budget(text: str) -> float:
    """Return the seconds that `text` names: "10s", "500ms" or "2min". Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--budget '{text}' is not a number and a unit: write 10s, 500ms or 2min")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds == 0:
        raise UsageError(f"--budget {text} is no time at all: write 10s, 500ms or 2min")
    return seconds


# How long to measure, as options of every command that measures.


# Generous: twenty times what a sweep of four GPUs takes without it, and nobody watches longer without having asked.
_SECONDS_FOR_PRECISION = 60.0

OPTIONS = (
    click.option(
        "--precision",
        metavar="SHARE",
        help="Repeat each point until half its 95 % interval is within this share of its median: 1%, 0.5% or 0.01; "
        "for 60 s at most, or as --budget says.  [default: 1% from 1M on, 3% below]",
    ),
    click.option(
        "--budget",
        metavar="TIME",
        help="Stop what has not converged after this time: 10s, 500ms or 2min. Each point gets three trials.  "
        "[default: 2.3s; host: 8s]",
    ),
    click.option("--quick", is_flag=True, help="A first look in about a second: few sizes, three trials a data point."),
)


def parse(given: Mapping[str, Any]) -> tuple[bool, float | None, float | None]:
    """Return whether a first look is enough, the precision as a ratio, and the budget in seconds. Raises UsageError."""
    for other in ("precision", "budget"):
        if given["quick"] and given[other] is not None:
            raise UsageError(f"--quick and --{other} both say how long to measure: leave one out")
    precision = None if given["precision"] is None else parse_precision(given["precision"])
    budget = None if given["budget"] is None else parse_budget(given["budget"])
    return given["quick"], precision, _SECONDS_FOR_PRECISION if precision and budget is None else budget


# --resume FILE: go on with a run under the options that it was started with.
#
# What is measured comes from the file, as values. The file may be a stranger's, so it names no file to be loaded, read
# or written: these, and how the run is shown, are said again.


OPTION = click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Finish this interrupted run: its options and its file, and nothing is measured twice.",
)

# Options that may stand beside --resume: they name files, or say how to show the run.
_SAID_AGAIN = ("nccl", "fabric", "output_file", "topology", "p2p", "layout", "as_json", "expect", "verbose")


def resumable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command's function that with --resume refuses the options that the file answers: UsageError."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        if given["resume"] is not None:
            _check_options(click.get_current_context(), given["resume"])
        return function(**given)

    return command


def nothing_left(run: Run) -> bool:
    """Return whether every cell of a run was measured: it came to its end, and none failed on the way."""
    return run.complete and not any(found.stop is StopReason.FAILED for found in run.measurements)


def _check_options(context: click.Context, file: Path) -> None:
    others = [
        param.opts[-1]
        for param in context.command.params
        if param.name not in ("resume", *_SAID_AGAIN)
        and context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    ]
    if others:
        raise UsageError(f"--resume takes all options from {file}: leave out {', '.join(others)}")


def _resumed(command: str, given: Mapping[str, Any]) -> Request:
    """Return what the run in the file asked for. Raises UsageError where another command did, and RunFileError."""
    file = given["resume"]
    run = run_file.load(file)
    name = run.settings.command_name
    if not name:
        raise UsageError(f"{file} was measured by no command of collbench: its options cannot be taken from it")
    if name != command:
        raise UsageError(f"{file} was measured by 'collbench {name}': write 'collbench {name} --resume {file}'")
    request = requested(run, given["nccl"], given["fabric"] or _shipped(run.settings.fabric, file))
    _check_fabric(request.backend, request.fabric)
    name, reason = factory.resolve(request.backend)
    if reason is not None:
        say(f"measuring CPU cores (host backend): {reason}")
    return replace(request, backend=name)


def _shipped(fabric: str, file: Path) -> str | None:
    """Return the recorded fabric if it is a shipped one, None for none. Raises UsageError for a file."""
    from collbench.sim.fabrics import names  # late: other backends need none

    if fabric and fabric not in names():
        raise UsageError(f"{file} was measured on the machine in {fabric}: add --fabric {fabric} to have it read")
    return fabric or None


# Options that several commands share, parsed once, and the request that they make.


Command = Callable[..., Any]

devices = click.option(
    "--devices", metavar="LIST", help="Measure only these GPUs: nvidia-smi indices or UUIDs.  [default: all]"
)


def sizes_option(default: str) -> Command:
    """Return the option --sizes with the words that tell its default."""
    what = "Message sizes: MIN:MAX (doubling), MIN:MAX:FACTOR, one size, or a list of these."
    return click.option("--sizes", metavar="SIZES", help=f"{what}  [default: {default}]")


sizes = sizes_option("8:1G; host: 8:64M")
# Every link of a machine has many cells: a curve in steps of four, so that they take seconds.
survey_sizes = sizes_option("8,64:1G:4; host: 8,64:64M:4")
backend = click.option(
    "--backend",
    metavar="NAME",
    type=click.Choice(factory.NAMES),
    default="auto",
    show_default=True,
    help="cuda (GPUs), host (CPU cores), sim (a machine that is only simulated), or auto: cuda where a GPU answers, "
    "else host.",
)


class _BackendHere(click.Choice[str]):
    """A backend with devices on this machine; who writes sim is told what to do instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises UsageError."""
        check_backend(value)
        return super().convert(value, param, ctx)


# What acts on this machine: CPU cores are taken only by name, for nobody who wants GPUs is served by them.
backend_of_this_machine = click.option(
    "--backend",
    metavar="NAME",
    type=_BackendHere(BACKENDS),
    default="auto",
    show_default=True,
    help="cuda (GPUs), host (CPU cores), or auto: GPUs, never cores.",
)
fabric = click.option(
    "--fabric", metavar="NAME|FILE", help="With --backend sim: the machine to simulate (docs/fabric-file.md)."
)
_SAVE = "Save the run here.  [default: a new file in $XDG_STATE_HOME/collbench/runs]"
_FILE = click.Path(path_type=Path)
output = click.option("-o", "--output", metavar="FILE", type=_FILE, help=_SAVE)
force = click.option("--force", is_flag=True, help="Replace a file that exists.")
nccl = click.option(
    "--nccl",
    metavar="PATH",
    envvar="COLLBENCH_NCCL",
    show_envvar=True,
    help="Time this libnccl.so.2 instead of torch's or the system's.",
)
seed = click.option(
    "--seed",
    metavar="N",
    type=int,
    callback=lambda _ctx, _option, value: _checked_seed(value),
    help="Order the trials by this seed.  [default: a random one, which is printed]",
)
dtype = click.option(
    "--dtype",
    default="float32",
    show_default=True,
    metavar="TYPE",
    help=f"Element type of collectives: {', '.join(DTYPE_BYTES)}.",
)
redop = click.option(
    "--op",
    "redop",
    metavar="OP",
    type=click.Choice(REDOPS),
    default="sum",
    show_default=True,
    help=f"Reduction: {', '.join(REDOPS)}.",
)


def apply(*options: Command) -> Callable[[Command], Command]:
    """Return a decorator that adds these options, in this order, to a command's help."""

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def measuring(*own: Command, sized: Command | None = sizes) -> Callable[[Command], Command]:
    """Return the options of every command that measures, with the command's own after the sizes."""
    first = (devices,) if sized is None else (devices, sized)
    add_options = apply(*first, *own, *OPTIONS, backend, fabric, output, force, OPTION, nccl, seed, verbose_option)
    return lambda function: add_options(resumable(function))


def make_request(command: str, given: Mapping[str, Any]) -> tuple[Request, Path | None]:
    """Return what the shared options ask for, and the file that they name to save it; what to time is the command's.

    With --resume it is the whole request of the run in that file. Auto falling back to the host backend is said on
    stderr. Raises UsageError, RunFileError.
    """
    if given["resume"] is not None:
        return _resumed(command, given), given["resume"]
    wanted = None if given.get("sizes") is None else parse_sizes(given["sizes"])
    element = parse_dtype(given.get("dtype") or "float32")
    quick, precision, budget = parse(given)
    _check_fabric(given["backend"], given.get("fabric"))
    name, reason = factory.resolve(given["backend"])
    if reason is not None:
        say(f"measuring CPU cores (host backend): {reason}")
    request = Request(
        backend=name,
        devices=given["devices"],
        sizes=wanted,
        copies=(),
        collectives=(),
        pairs=False,
        dtype=element,
        redop=given.get("redop") or "sum",
        nccl=given["nccl"],
        seed=given["seed"],
        command=(command, *sys.argv[2:]),
        precision=precision,
        budget_seconds=budget,
        quick=quick,
        force=given["force"],
        fabric=given.get("fabric"),
        kind=CommandKind.of(command),
    )
    return request, given["output"]


def _check_fabric(backend_name: str, given: str | None) -> None:
    """Raise UsageError for a fabric without the sim backend, no or a wrong fabric with it, and several processes."""
    if backend_name != SIM.name:
        if given is not None:
            raise UsageError(f"--fabric {given} is a machine to simulate: add --backend sim, or leave it out")
        return
    factory.simulated(given)
    if find_place(os.environ) is not None:
        raise UsageError("--backend sim simulates all GPUs in one process: start it without torchrun, srun or mpirun")


def _checked_seed(given: int | None) -> int:
    """Return the seed, or where none is given a random one that fits on a line. Raises UsageError."""
    if given is None:
        return random.SystemRandom().randrange(10**6)
    if given < 0:
        raise UsageError(f"--seed {given} is negative: write a whole number from 0")
    return given
