"""`collbench train`: choose devices by measurement, then become torchrun on them."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from collbench import runfile
from collbench.affinity.choose import choose
from collbench.backends import opening
from collbench.cli import options
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


@click.command(
    cls=_Train,
    options_metavar="(--auto-select K | --devices LIST) [OPTIONS] [TORCHRUN OPTIONS]",
    epilog="Inside the job devices count from 0, whatever their numbers outside: use LOCAL_RANK.",
)
def train(arguments: TrainArguments) -> None:
    """SCRIPT [ARGS]...

    Start SCRIPT by torchrun on the best K devices of this machine.

    Chooses from a saved run of this very machine (same GPUs, driver and NCCL), else from a probe of a few seconds; says
    on stderr which and why; sets CUDA_VISIBLE_DEVICES by UUID; and replaces itself by torchrun, whose exit status and
    signals are the job's. Torchrun's options pass through; everything after SCRIPT reaches it untouched.

    \b
    Examples:
      collbench train --auto-select 2 train.py --epochs 3
      collbench train --devices 0,3 --max-restarts 1 -m mypackage.train
      collbench train --auto-select 4 --dry-run train.py

    \b
    Options:
      --auto-select K     choose the best K devices
      --devices LIST      these devices instead: indices or UUIDs
      --run FILE          choose from this run file
      --max-age DURATION  oldest saved run to believe: 7d, 12h, 30m  [default: 7d]
      --fresh             measure now, whatever is saved
      --backend NAME      auto, cuda or host (CPU cores, gloo)       [default: auto]
      --nccl PATH         compare and measure with this libnccl.so.2 [env: COLLBENCH_NCCL]
      --dry-run           print the environment and the command, start nothing
    """
    torchrun.check_script(arguments)
    torchrun.find_torch()
    backend = _backend(arguments)
    present = opening.present_devices(backend)
    chosen, why, source = _by_hand(arguments, present) if arguments.devices else _chosen(arguments, backend, present)
    changes = environment.for_devices(chosen, os.environ, backend=backend)
    command = torchrun.command(arguments, chosen, os.environ, backend=backend, python=sys.executable)
    say(reason.choice(chosen, why, source, backend=backend).removeprefix("collbench: "))
    if arguments.dry_run:
        click.echo(reason.shell_line(changes, command))
        return
    torchrun.execute(command, {**os.environ, **changes})


def _backend(arguments: TrainArguments) -> str:
    name, why = opening.resolve(arguments.backend)
    if why is not None:
        raise MachineError(f"no GPU to train on: {why}; write --backend host to train on CPU cores with gloo")
    return name


def _by_hand(arguments: TrainArguments, present: tuple[Device, ...]) -> tuple[tuple[Device, ...], str, str]:
    return selection.select(present, arguments.devices), "chosen by hand", "--devices"


def _chosen(
    arguments: TrainArguments, backend: str, present: tuple[Device, ...]
) -> tuple[tuple[Device, ...], str, str]:
    """Return the chosen devices, the reason, and the source of the evidence."""
    k = arguments.auto_select or 0
    if k > len(present):
        tags = ", ".join(device.tag for device in present) or "none"
        raise UsageError(f"--auto-select {k}: this process may use {len(present)} devices ({tags})")
    if k == len(present):
        return present, "all there are", "no choice to make"
    run, source = _evidence(arguments, backend, present)
    choice = choose(run, k)
    return tuple(run.devices[member] for member in choice.members), choice.reason, source


def _evidence(arguments: TrainArguments, backend: str, present: tuple[Device, ...]) -> tuple[Run, str]:
    """Return the run to choose from and the words for it: the named one, the newest that fits, or a probe."""
    here = _here(arguments, backend, present)
    max_age, now = freshness.parse_duration(arguments.max_age), datetime.now(UTC)
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
    return any(len(found.cell.members) == 2 for found in run.measurements)


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
    status = subprocess.run(
        [sys.executable, "-P", "-m", "collbench", *words], stdout=subprocess.DEVNULL, check=False
    ).returncode
    if status != 0:
        raise BackendError(f"the probe failed (exit status {status}, see above): nothing was started")
    return runfile.load(path)
