"""`collbench train`: choose devices by measurement, then become torchrun on them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta

import click

from collbench.backends import opening
from collbench.cli import evidence, numa_binding, options
from collbench.cli.evidence import Wanted
from collbench.errors import MachineError, UsageError
from collbench.launch import environment, freshness, reason, torchrun
from collbench.launch.arguments import TrainArguments, split
from collbench.machine import selection
from collbench.model import Device, Run


class _Train(click.Command):
    """A command whose words are split by launch.arguments, because a script's own options must stay untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        arguments = split(args)
        if arguments.help:
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params["arguments"] = arguments
        return []


# For --help alone: launch.options holds the table that arguments are read by, and a test compares the two.
_options_in_help = options.apply(
    click.option("--auto-select", metavar="K", help="Choose the best K devices."),
    click.option("--devices", metavar="LIST", help="Take these devices instead: nvidia-smi indices or UUIDs."),
    click.option("--run", metavar="FILE", help="Choose from this run file, not from the newest saved run that fits."),
    click.option("--max-age", metavar="AGE", help="Oldest saved run to believe: 7d, 12h, 30m or 90s.  [default: 7d]"),
    click.option("--fresh", is_flag=True, help="Measure now, whatever is saved."),
    click.option("--backend", metavar="NAME", help="cuda (GPUs), host (CPU cores, gloo) or auto.  [default: auto]"),
    click.option(
        "--nccl",
        metavar="PATH",
        help="Compare saved runs with this libnccl.so.2, and probe with it.  [env var: COLLBENCH_NCCL]",
    ),
    click.option("--dry-run", is_flag=True, help="Print the environment and the command, and start nothing."),
)


@click.command(
    cls=_Train,
    short_help="Start a training script by torchrun on the best GPUs.",
    options_metavar="(--auto-select K | --devices LIST) [OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGS]...",
    epilog="Inside the job devices count from 0, whatever their numbers outside: use LOCAL_RANK.",
)
@_options_in_help
def train(arguments: TrainArguments) -> None:
    """Start SCRIPT by torchrun on the best K devices of this machine.

    Chooses from a saved run of this very machine (same GPUs, driver and NCCL), else from a probe of a few seconds; says
    on stderr which devices and why; sets CUDA_VISIBLE_DEVICES by UUID; and replaces itself by torchrun, whose exit
    status and signals are the job's. Torchrun's options pass through; everything after SCRIPT reaches it untouched.

    \b
    Examples:
      collbench train --auto-select 2 train.py --epochs 3
      collbench train --devices 0,3 --max-restarts 1 -m mypackage.train
      collbench train --auto-select 4 --dry-run train.py
    """
    torchrun.check_script(arguments)
    torchrun.find_torch()
    max_age = freshness.parse_duration(arguments.max_age)
    backend = _backend(arguments)
    present = opening.present_devices(backend)
    if arguments.devices is not None:
        chosen = _Chosen(selection.select(present, arguments.devices), "chosen by hand", "--devices")
    else:
        chosen = _choose(arguments, backend, present, max_age)
    devices, binding = chosen.devices, numa_binding.decide(arguments, chosen.run, chosen.members)
    changes = environment.for_devices(devices, os.environ, backend=backend)
    command = torchrun.command(
        arguments, devices, os.environ, backend=backend, python=sys.executable, bind=binding.bind
    )
    line = reason.choice(devices, chosen.why, chosen.source, backend=backend, binding=binding.words)
    click.echo(line, err=True)
    if arguments.dry_run:
        click.echo(reason.shell_line(changes, command))
        return
    torchrun.execute(command, {**os.environ, **changes})


def _backend(arguments: TrainArguments) -> str:
    name, why = opening.resolve(arguments.backend)
    if why is not None:
        raise MachineError(f"no GPU to train on: {why}; write --backend host to train on CPU cores with gloo")
    return name


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Devices, why, the evidence in words; and where there is some, the run, whose positions `members` are."""

    devices: tuple[Device, ...]
    why: str
    source: str
    run: Run | None = None
    members: tuple[int, ...] = ()


def _choose(arguments: TrainArguments, backend: str, present: tuple[Device, ...], max_age: timedelta) -> _Chosen:
    k = arguments.auto_select or 0
    if k > len(present):
        tags = ", ".join(device.tag for device in present) or "none"
        raise UsageError(
            f"--auto-select {k} is more than the {len(present)} that this process may use ({tags}): ask for fewer"
        )
    if k == len(present):
        return _Chosen(present, "all there are", "no choice to make")
    wanted = Wanted(backend, arguments.run, max_age, arguments.fresh, arguments.nccl, "nothing was started")
    found = evidence.find(wanted, present)
    from collbench.affinity.choose import choose  # late: numpy

    choice = choose(found.as_now(), k)
    devices = tuple(found.run.devices[member] for member in choice.members)
    return _Chosen(devices, choice.reason, found.source, found.run, choice.members)
