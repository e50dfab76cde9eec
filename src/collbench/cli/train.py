"""`collbench train`: choose devices by measurement, then become torchrun on them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from collbench.api import training
from collbench.api.keywords import fields_of
from collbench.api.training import SHORT, TORCHRUN_FLAGS, TORCHRUN_VALUES, Script, TrainRequest, passed_on, prepare
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, say
from collbench.model.errors import UsageError, near
from collbench.model.run import is_simulated

# Like argparse, and therefore torchrun, we take "-1" for a value and "-x" for an option.
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def _torchrun_option(name: str) -> click.Option:
    """Return an option that is kept for torchrun, which also takes underscores for all of its dashes."""

    def keep(context: click.Context, _option: click.Parameter, value: str | bool | None) -> None:
        if value not in (None, False):
            # A short option's value may follow an equals sign.
            kept = None if value is True else str(value).removeprefix("=" if name in SHORT else "")
            context.params.setdefault("torchrun", {})[name] = kept

    underscored = f"--{name[2:].replace('-', '_')}"
    words = {SHORT.get(name, underscored), underscored, name}
    return click.Option(
        sorted(words, reverse=True), is_flag=name in TORCHRUN_FLAGS or None, expose_value=False, callback=keep
    )


class ScriptCommand(click.Command):
    """A command that starts a script: ours and torchrun's options stand before its first other word, or before `--`.

    The help has the command's own options, not torchrun's nor the `unlisted`.
    """

    allow_interspersed_args = False

    def __init__(self, *arguments: Any, unlisted: Sequence[click.Parameter] = (), **settings: Any) -> None:
        self.listed = settings["params"]
        torchruns = map(_torchrun_option, sorted(TORCHRUN_FLAGS | TORCHRUN_VALUES))
        # All that follows the script stays as it is, and shells complete a file.
        complete = options.FILE_NAME.shell_complete
        script = click.Argument(
            ["program"], nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED, shell_complete=complete
        )
        settings["params"] = [*self.listed, *unlisted, *torchruns, script]
        super().__init__(*arguments, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options. Raises UsageError for what contradicts itself, and without a script or devices."""
        words = args.copy()
        try:
            super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._unknown(error.option_name) from None
        if ctx.resilient_parsing:
            return []
        program = ctx.params["program"]
        ours = {f"--{name}": ctx.params.get(name) for name in options.typed(ctx) if name != "program"}
        for name, value in (ours | ctx.params.get("torchrun", {})).items():
            if any(map(_looks_like_an_option, value if isinstance(value, tuple) else (value,))):
                raise UsageError(f"option '{name.replace('_', '-')}' needs a value, before the script")
        options.check_together(ctx)
        self.check(ctx, behind_dashes=words[: len(words) - len(program)][-1:] == ["--"])
        return []

    def check(self, ctx: click.Context, *, behind_dashes: bool) -> None:
        """Raise UsageError without a script or devices.

        A --dry-run after the script is refused, because a job that starts by mistake is costly.
        """
        program = ctx.params["program"]
        if not behind_dashes and "--dry-run" in program[1:]:
            raise UsageError(
                f"--dry-run after {program[0]} is the script's, and the job would start: put it before {program[0]}, "
                f"or write -- before {program[0]} to pass it on"
            )
        if not program:
            raise UsageError("no script to train: write collbench train --auto-select 2 train.py")
        if ctx.params["auto_select"] is ctx.params["devices"] is None:
            raise UsageError("no GPUs asked for: write --auto-select K, or --devices 0,3, before the script")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listed options."""
        listed = (*self.listed, *filter(None, [self.get_help_option(ctx)]))
        with formatter.section("Options"):
            formatter.write_dl([record for param in listed if (record := param.get_help_record(ctx))])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return options before the script, and nothing of ours after it."""
        return [] if ctx.params.get("program") else super().shell_complete(ctx, incomplete)

    def _unknown(self, name: str) -> UsageError:
        names = [word for param in self.params for word in param.opts if word.startswith("--") and "_" not in word]
        if name == "--fabric":
            return UsageError(
                f"--fabric simulates a machine, and {self.name} starts processes on this one: "
                "'collbench select K --backend sim --fabric NAME' says what would be chosen"
            )
        begun = sorted(word for word in names if word.startswith(name))
        likely = begun or near(name, names, cutoff=0.8)  # at 0.6, --lr would be --run-file
        meant = f"write {' or '.join(likely)} in full, or " if likely else ""
        return UsageError(
            f"option '{name}' is neither collbench's nor torchrun's (as of torch 2.13): "
            f"{meant}put the script's own options after the script"
        )


def _looks_like_an_option(value: object) -> bool:
    word = str(value) if isinstance(value, str | Path) and str(value) != "-" else ""
    return word.startswith("-") and _NEGATIVE_NUMBER.fullmatch(word) is None


def train_request(values: Mapping[str, Any]) -> TrainRequest:
    """Return what the options of `train` ask for, by name. Raises UsageError."""
    script = Script(values["program"], values.get("torchrun", {}))
    named = fields_of(TrainRequest, values)
    run = values["run_file"] and str(values["run_file"])
    return TrainRequest(count=values["auto_select"] or 0, run=run, script=script, **named)


class _Backend(click.Choice[str]):
    """The name of a backend that has devices on this machine."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises UsageError."""
        if is_simulated(value):
            raise UsageError(
                f"--backend {value} has no devices to train on: 'collbench select K --backend {value} --fabric NAME' "
                "says what would be chosen on a simulated machine"
            )
        return super().convert(value, param, ctx)


OPTIONS = (
    option("--auto-select K", "Choose the best K devices.", options.COUNT),
    option("--devices LIST", "Use these devices instead: nvidia-smi indices or UUIDs."),
    options.exclude,
    options.allow_busy,
    option("--run-file FILE", "Choose from this run file, not from the newest saved run that fits.", options.RUN),
    options.max_age,
    options.fresh,
    option(
        "--backend NAME",
        "cuda (GPUs), host (CPU cores, gloo), or auto: GPUs, never CPU cores.",
        _Backend([name for name in options.BACKEND_NAMES if not is_simulated(name)]),
        default="auto",
    ),
    options.nccl_option("The job's libnccl.so.2: use only runs that timed it."),
    option("--dry-run", "Print the environment and the command, and start nothing."),
)


@click.command(
    cls=ScriptCommand,
    options_metavar="(--auto-select K | --devices LIST) [OPTIONS] [TORCHRUN OPTIONS]",
    epilog="In the job, devices count from 0, whatever their indices on the host: use LOCAL_RANK.",
)
@options.apply(*OPTIONS)
def train(**values: Any) -> None:
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
    request = train_request(values)
    if line := passed_on(request.script.program):
        say(line)
    launch = prepare(request, NOTICES)
    for note in launch.notes:
        say(note)
    say(launch.choice)
    if values["dry_run"]:
        echo(training.shell_line(launch.changes, launch.command))
        return
    training.execute(launch.command, {**os.environ, **launch.changes})
