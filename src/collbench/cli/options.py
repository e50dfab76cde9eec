"""Options that several commands share, parsed once, and the request that they make."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from collbench.backends import opening
from collbench.cli import effort, resuming
from collbench.cli.terminal import say
from collbench.dtypes import DTYPE_BYTES, REDOPS, parse_dtype
from collbench.errors import UsageError
from collbench.launch.arguments import BACKENDS, check_backend
from collbench.planning import Request
from collbench.units import parse_sizes
from collbench.world.environment import find_place

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
    type=click.Choice(opening.NAMES),
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
# On collective commands -o is the reduction, as nccl-tests' users type it.
long_output = click.option("--output", metavar="FILE", type=_FILE, help=_SAVE)
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
    help="Order the visits by this seed.  [default: a random one, which is printed]",
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


def measuring(*own: Command, saves: Command = output, sized: Command | None = sizes) -> Callable[[Command], Command]:
    """Return the options of every command that measures, with the command's own after the sizes."""
    first = (devices,) if sized is None else (devices, sized)
    add_options = apply(*first, *own, *effort.OPTIONS, backend, fabric, saves, force, resuming.OPTION, nccl, seed)
    return lambda function: add_options(resuming.resumable(function))


def make_request(command: str, given: Mapping[str, Any]) -> tuple[Request, Path | None]:
    """Return what the shared options ask for, and the file that they name to save it; what to time is the command's.

    Auto falling back to the host backend is said on stderr. Raises UsageError.
    """
    wanted = None if given.get("sizes") is None else parse_sizes(given["sizes"])
    element = parse_dtype(given.get("dtype") or "float32")
    quick, precision, budget = effort.parse(given)
    _check_fabric(given["backend"], given.get("fabric"))
    name, reason = opening.resolve(given["backend"])
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
        command=given.get("command") or (command, *sys.argv[2:]),
        precision=precision,
        budget_seconds=budget,
        quick=quick,
        resume=given["resume"] is not None,
        force=given["force"],
        fabric=given.get("fabric"),
    )
    return request, given["resume"] or given["output"]


def _check_fabric(backend_name: str, given: str | None) -> None:
    """Raise UsageError for a fabric without the sim backend, no or a wrong fabric with it, and several processes."""
    if backend_name != "sim":
        if given is not None:
            raise UsageError(f"--fabric {given} is a machine to simulate: add --backend sim, or leave it out")
        return
    opening.simulated(given)
    if find_place(os.environ) is not None:
        raise UsageError("--backend sim simulates all GPUs in one process: start it without torchrun, srun or mpirun")


def _checked_seed(given: int | None) -> int:
    """Return the seed, or where none is given a random one that fits on a line. Raises UsageError."""
    if given is None:
        return random.SystemRandom().randrange(10**6)
    if given < 0:
        raise UsageError(f"--seed {given} is negative: write a whole number from 0")
    return given
