"""`collbench train`: choose devices by measurement, then become torchrun on them."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from collbench import runfile
from collbench.backends import opening
from collbench.cli import options
from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import say
from collbench.errors import BackendError, MachineError, RunFileError, UsageError
from collbench.launch import environment, freshness, reason, torchrun
from collbench.launch.arguments import TrainArguments, split
from collbench.machine import selection
from collbench.model import Device, Run

# What ranks pairs in seconds: what training runs, where it is latency and where it is bandwidth.
_PROBE = ("pairs", "--operations", "allreduce", "--sizes", "8,1M,64M")
_HOST_PROBE = ("pairs", "--operations", "copy,allreduce", "--sizes", "8,1M,16M")


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
        chosen, why, source = selection.select(present, arguments.devices), "chosen by hand", "--devices"
    else:
        chosen, why, source = _chosen(arguments, backend, present, max_age)
    changes = environment.for_devices(chosen, os.environ, backend=backend)
    command = torchrun.command(arguments, chosen, os.environ, backend=backend, python=sys.executable)
    click.echo(reason.choice(chosen, why, source, backend=backend), err=True)
    if arguments.dry_run:
        click.echo(reason.shell_line(changes, command))
        return
    torchrun.execute(command, {**os.environ, **changes})


def _backend(arguments: TrainArguments) -> str:
    name, why = opening.resolve(arguments.backend)
    if why is not None:
        raise MachineError(f"no GPU to train on: {why}; write --backend host to train on CPU cores with gloo")
    return name


def _chosen(
    arguments: TrainArguments, backend: str, present: tuple[Device, ...], max_age: timedelta
) -> tuple[tuple[Device, ...], str, str]:
    """Return the chosen devices, the reason, and the source of the evidence."""
    k = arguments.auto_select or 0
    if k > len(present):
        tags = ", ".join(device.tag for device in present) or "none"
        raise UsageError(
            f"--auto-select {k} is more than the {len(present)} that this process may use ({tags}): ask for fewer"
        )
    if k == len(present):
        return present, "all there are", "no choice to make"
    run, source = _evidence(arguments, backend, present, max_age)
    from collbench.affinity.choose import choose  # late: numpy

    choice = choose(run, k)
    return tuple(run.devices[member] for member in choice.members), choice.reason, source


def _evidence(
    arguments: TrainArguments, backend: str, present: tuple[Device, ...], max_age: timedelta
) -> tuple[Run, str]:
    """Return the run to choose from and the words for it: the named one, the newest that fits, or a probe."""
    here = _here(arguments, backend, present)
    now = datetime.now(UTC)
    if arguments.run is not None:
        run = runfile.load(Path(arguments.run))
        refusal = freshness.refusal(run, here, now, max_age)
        if refusal:
            raise RunFileError(f"{arguments.run} cannot choose devices here: {refusal}; measure again or use --fresh")
        return run, reason.saved_run(run.started, arguments.run)
    for path in () if arguments.fresh else sorted(options.runs_folder().glob("*.json"), reverse=True):
        try:
            run = runfile.load(path)
        except RunFileError:
            continue  # somebody else's file, or an older format: a probe costs seconds
        if freshness.refusal(run, here, now, max_age) is None and _ranks_pairs(run):
            return run, reason.saved_run(run.started, str(path))
    return _probe(arguments, backend), reason.QUICK_PROBE


def _ranks_pairs(run: Run) -> bool:
    """Return whether pairs were timed at a size that shows bandwidth: whoever timed 8 bytes did not mean to choose."""
    return any(
        len(found.cell.members) == 2 and found.cell.size_bytes >= freshness.TELLING_BYTES for found in run.measured()
    )


def _here(arguments: TrainArguments, backend: str, present: tuple[Device, ...]) -> freshness.Here:
    if backend == "host":
        return freshness.Here(backend, present)
    from collbench.backends.nccl_library import find_nccl, format_version

    nccl = find_nccl(arguments.nccl or os.environ.get("COLLBENCH_NCCL"))
    return freshness.Here(backend, present, opening.driver_version(), format_version(nccl.version))


def _probe(arguments: TrainArguments, backend: str) -> Run:
    """Measure in a child, so that no context, thread or affinity of ours outlives it into the job."""
    path = options.run_path(None, "probe", backend)
    words = [*(_HOST_PROBE if backend == "host" else _PROBE), "--backend", backend, "-o", str(path)]
    words += ["--nccl", arguments.nccl] if arguments.nccl else []
    say("no saved run fits: probing for a few seconds" if not arguments.fresh else "probing for a few seconds")
    command = [sys.executable, "-P", "-m", "collbench", *words]
    try:
        status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted in the probe: nothing was started") from error
    if status != 0:
        raise BackendError(f"the probe failed (exit status {status}, see above): nothing was started")
    return runfile.load(path)
