"""`collbench train`: choose devices by measurement, then become torchrun on them."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from collbench.api.training import prepare
from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, say
from collbench.launch import torchrun
from collbench.launch.arguments import (
    BACKENDS,
    SHORT,
    TORCHRUN_FLAGS,
    TORCHRUN_VALUES,
    TrainArguments,
    passed_on,
    split,
)


class ScriptCommand(click.Command):
    """A command that starts a script. launch.arguments reads its arguments: the script's own must stay untouched.

    click parses them only for a shell that completes the line, and then with torchrun's options, so that their values
    are not mistaken for the script.
    """

    allow_interspersed_args = False

    def read(self, arguments: list[str]) -> object | None:
        """Return what was asked, None for the help. Raises UsageError."""
        train_arguments = split(arguments)
        return None if train_arguments.help else train_arguments

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        arguments = self.read(args)
        if arguments is None:
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params["arguments"] = arguments
        return []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options in the help; for a shell also torchrun's, and the script."""
        params = super().get_params(ctx)
        if not ctx.resilient_parsing:
            return params
        short = {name: letter for letter, name in SHORT.items()}
        torchrun_options = [
            click.Option([*([short[name]] if name in short else []), name], is_flag=name in TORCHRUN_FLAGS)
            for name in sorted(TORCHRUN_FLAGS | TORCHRUN_VALUES)
        ]
        return [*params, *torchrun_options, click.Argument(["script"], nargs=-1, type=click.Path())]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return options before the script, and nothing of ours after it."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


# Only for --help and for shells: launch.arguments has the table by which arguments are read; a test compares the two.
_options_in_help = options.apply(
    click.option("--auto-select", metavar="K", help="Choose the best K devices."),
    click.option("--devices", metavar="LIST", help="Use these devices instead: nvidia-smi indices or UUIDs."),
    click.option("--exclude", metavar="LIST", help="Never choose these: nvidia-smi indices or UUIDs."),
    click.option("--job", metavar="JOB", help="Replay this recorded job on the best sets, and choose among them."),
    click.option("--allow-busy", is_flag=True, help="Do not exclude busy or throttled GPUs; exclude only faulty ones."),
    click.option(
        "--run-file",
        metavar="FILE",
        type=options.FILE_NAME,
        help="Choose from this run file, not from the newest saved run that fits.",
    ),
    click.option(
        "--max-age", metavar="AGE", help="Ignore saved runs that are older: 7d, 12h, 30m or 90s.  [default: 7d]"
    ),
    click.option("--fresh", is_flag=True, help="Measure now, even if a saved run fits."),
    click.option(
        "--backend",
        metavar="NAME",
        type=click.Choice(BACKENDS),
        help="cuda (GPUs), host (CPU cores, gloo), or auto: GPUs, never CPU cores.  [default: auto]",
    ),
    click.option(
        "--nccl",
        metavar="PATH",
        type=options.FILE_NAME,
        help="The job's libnccl.so.2: use only runs that timed it.  [env var: COLLBENCH_NCCL]",
    ),
    click.option("--dry-run", is_flag=True, help="Print the environment and the command, and start nothing."),
)


@click.command(
    cls=ScriptCommand,
    options_metavar="(--auto-select K | --devices LIST) [OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGS]...",
    epilog="In the job, devices count from 0, whatever their indices on the host: use LOCAL_RANK.",
)
@_options_in_help
def train(arguments: TrainArguments) -> None:
    """Start SCRIPT with torchrun on the best K devices of this machine.

    Train chooses from a saved run of this machine (same GPUs, driver and NCCL), else from a probe of a few seconds. It
    says on stderr which devices it chose and why, sets CUDA_VISIBLE_DEVICES by UUID, and replaces itself with torchrun:
    exit status and signals are torchrun's. Torchrun's options pass through; everything after SCRIPT goes to SCRIPT.

    \b
    Examples:
      collbench train --auto-select 2 train.py --epochs 3
      collbench train --devices 0,3 --max-restarts 1 -m mypackage.train
      collbench train --auto-select 4 --nnodes 2 --rdzv-endpoint n0:29500 train.py
      srun --ntasks-per-node 1 collbench train --auto-select 4 train.py
    """
    if line := passed_on(arguments.program):
        say(line)
    launch = prepare(arguments, NOTICES)
    for note in launch.notes:
        say(note)
    say(launch.choice)
    if arguments.dry_run:
        echo(torchrun.shell_line(launch.changes, launch.command))
        return
    torchrun.execute(launch.command, {**os.environ, **launch.changes})
