"""`collbench train`: choose devices by measurement, then become torchrun on them; `ablate`: train with and without."""

from __future__ import annotations

import difflib
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from collbench.api.keywords import MOST_COUNT
from collbench.api.training import TrainRequest, prepare
from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, say, show_page
from collbench.launch import torchrun
from collbench.launch.torchrun import SHORT, TORCHRUN_FLAGS, TORCHRUN_VALUES, Script, passed_on
from collbench.model.capabilities import is_simulated
from collbench.model.errors import Interrupted, UsageError
from collbench.model.printable import one_line
from collbench.model.units import parse_budget, parse_precision

if TYPE_CHECKING:
    from collbench.launch.experiment import Reporter

# argparse takes "-1" for a value and "-x" for an option; so does torchrun, and so do we.
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


class _Script(click.Argument):
    """The script with all that follows it, as it is; shells complete a file."""

    def __init__(self) -> None:
        super().__init__(["program"], nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return that files follow."""
        return [CompletionItem(incomplete, type="file")]


class ScriptCommand(click.Command):
    """A command that starts a script: ours and torchrun's options stand before its first other word, or before `--`.

    The help has the command's own options, not torchrun's nor the `unlisted`.
    """

    allow_interspersed_args = False

    def __init__(self, *arguments: Any, unlisted: Sequence[click.Parameter] = (), **settings: Any) -> None:
        self.listed = settings["params"]
        torchruns = map(_torchrun_option, sorted(TORCHRUN_FLAGS | TORCHRUN_VALUES))
        settings["params"] = [*self.listed, *unlisted, *torchruns, _Script()]
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
        near = sorted(word for word in names if word.startswith(name))
        near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.8)  # at 0.6, --lr would be --run-file
        meant = f"write {' or '.join(near)} in full, or " if near else ""
        return UsageError(
            f"option '{name}' is neither collbench's nor torchrun's (as of torch 2.13): "
            f"{meant}put the script's own options after the script"
        )


def _looks_like_an_option(value: object) -> bool:
    word = value if isinstance(value, str) and value != "-" else ""
    return word.startswith("-") and _NEGATIVE_NUMBER.fullmatch(word) is None


def train_request(values: Mapping[str, Any]) -> TrainRequest:
    """Return what the options of `train` ask for, by name. Raises UsageError, RunFileError."""
    job = values["job"]
    if job is not None:
        from collbench.api.file_kinds import job_scorer  # late: few choices are for a job

        job = job_scorer(job)
    alike = ("backend", "devices", "exclude", "allow_busy", "max_age", "fresh", "nccl")
    return TrainRequest(
        count=values["auto_select"] or 0,
        run=values["run_file"],
        scorer=job,
        script=Script(values["program"], values.get("torchrun", {})),
        **{name: values[name] for name in alike},
    )


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
    click.option("--auto-select", metavar="K", type=options.COUNT, help="Choose the best K devices."),
    click.option("--devices", metavar="LIST", help="Use these devices instead: nvidia-smi indices or UUIDs."),
    options.exclude,
    options.job,
    options.allow_busy,
    click.option(
        "--run-file",
        metavar="FILE",
        type=options.FILE_NAME,
        help="Choose from this run file, not from the newest saved run that fits.",
    ),
    options.max_age,
    options.fresh,
    click.option(
        "--backend",
        metavar="NAME",
        type=_Backend([name for name in options.BACKEND_NAMES if not is_simulated(name)]),
        default="auto",
        show_default=True,
        help="cuda (GPUs), host (CPU cores, gloo), or auto: GPUs, never CPU cores.",
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
        echo(torchrun.shell_line(launch.changes, launch.command))
        return
    torchrun.execute(launch.command, {**os.environ, **launch.changes})


# `collbench ablate`: train the same script with and without something, in turn, and compare the times.

# A line that changes more often cannot be read.
_SECONDS_BETWEEN_LINES = 0.2
_FROM_ZERO = click.IntRange(0, MOST_COUNT)


def _reporter(*, verbose: bool) -> Reporter:
    """Return what prints an experiment's notices on stderr; with `verbose`, also the script's own output."""
    from collbench.launch.experiment import Reporter  # late: numpy

    live = _Live(drawing=sys.stderr.isatty() and not verbose)

    def show(lines: Sequence[str]) -> None:
        for line in () if verbose else lines:  # seen already
            echo(line, err=True)

    def watch(data: bytes) -> None:
        if verbose:
            with suppress(OSError):  # nobody reads it
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()

    return Reporter(say=live.say, show=show, watch=watch, step=live.step)


class _Live:
    """One line in a terminal that says how far a run is, and gives way to notices."""

    def __init__(self, *, drawing: bool) -> None:
        self._drawing, self._last = drawing, 0.0

    def step(self, text: str) -> None:
        """Redraw the line, unless the last one was drawn a moment ago."""
        now = time.monotonic()
        if self._drawing and now - self._last > _SECONDS_BETWEEN_LINES:
            self._last = now
            click.echo(f"\r\x1b[2K{one_line(text)}", err=True, nl=False)

    def say(self, text: str) -> None:
        """Print a notice in place of the line."""
        if self._drawing and self._last:
            click.echo("\r\x1b[2K", err=True, nl=False)
        say(text)


class _Ablate(ScriptCommand):
    """The command `ablate`, which takes `train`'s options, too."""

    def check(self, ctx: click.Context, *, behind_dashes: bool) -> None:
        """Raise UsageError without a script, devices or a second arm."""
        program = ctx.params["program"]
        if not program:
            raise UsageError(f"no script to train: write {_EXAMPLE}")
        if not behind_dashes and program[0].endswith(".json"):
            raise UsageError(
                f"{program[0]} is no script: a recorded job is compared with collbench replay {program[0]}"
            )
        if not ctx.params["without"] and ctx.params["against"] is None:
            behind = next((word for word in program if word.partition("=")[0] in ("--without", "--against")), None)
            if behind is not None:
                raise UsageError(f"{behind} stands behind the script, so it is the script's: write {_EXAMPLE}")
            raise UsageError(f"nothing to compare with: write --without p2p, or --against 2,3, as in {_EXAMPLE}")
        super().check(ctx, behind_dashes=behind_dashes)


_EXAMPLE = "collbench ablate --auto-select 2 --without p2p -- train.py"
_own_options = options.apply(
    click.option(
        "--without",
        metavar="WHAT",
        multiple=True,
        help="Second arm: without p2p, nvlink, shm or ib (several with commas), or with NCCL_NAME=VALUE.",
    ),
    click.option("--against", metavar="LIST", help="Second arm: on these devices, the same number: indices or UUIDs."),
    click.option(
        "--precision",
        metavar="SHARE",
        callback=options.parsed(parse_precision),
        help="Train until half of the ratio's 95% interval is at most this share of it.  [default: 3%]",
    ),
    click.option(
        "--budget",
        metavar="TIME",
        callback=options.parsed(parse_budget),
        help="Start no repeat that would end after this time.  [default: 3min]",
    ),
    click.option(
        "--repeats",
        metavar="N",
        type=click.IntRange(2, MOST_COUNT),
        help="Train each arm N times instead, 2 or more.",
    ),
    click.option(
        "--skip", metavar="N", type=_FROM_ZERO, help="Drop a run's first N steps.  [default: a tenth, at least three]"
    ),
    click.option("--step-pattern", metavar="REGEX", help="Read step times with this; name its group s, ms or us."),
    click.option(
        "--no-allreduce",
        "allreduce",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Do not measure both arms' all-reduce first.",
    ),
    click.option(
        "--seed", metavar="N", type=_FROM_ZERO, help="Even or odd selects which arm runs first.  [default: random]"
    ),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=options.FILE,
        help="Save the runs in this file.  [default: a new file in the state folder]",
    ),
    options.force,
    click.option("--json", "as_json", is_flag=True, help="Print the file's content instead of the page."),
    click.option("-v", "--verbose", is_flag=True, help="Also print the script's output on stderr."),
)


@click.command(
    cls=_Ablate,
    unlisted=train.listed,
    options_metavar="(--without WHAT | --against LIST) (--auto-select K | --devices LIST) [OPTIONS] [TRAIN OPTIONS] --",
    epilog="The options of 'collbench train' and of torchrun apply to every run: see 'collbench train --help'.",
)
@_own_options
def ablate(*, as_json: bool, verbose: bool, dry_run: bool, **values: Any) -> None:
    """Train SCRIPT several times unchanged and several times with one change, in turn, on the same devices.

    Step times are read from lines like "step_time=22.4ms", else from Hugging Face's train_runtime; else the whole
    process is timed. "gpu_time=18.2ms", the GPU's own time of a step, shows whether the host bounds it. The page has
    both arms, their ratio with its 95% interval, and their all-reduce (docs/ablate.md).

    'collbench replay' compares the communication of a recorded job likewise, in seconds and without its script.

    \b
    Examples:
      collbench ablate --auto-select 2 --without p2p -- train.py --epochs 1
      collbench ablate --devices 0,1 --without p2p,shm --repeats 5 -- train.py
      collbench ablate --devices 0,1 --without NCCL_ALGO=Ring -- train.py
      collbench ablate --devices 0,1 --against 2,3 -- train.py
    """
    from collbench.api import ablating  # late: numpy
    from collbench.launch import experiment
    from collbench.launch.ablation import dumps

    asked = ablating.AblateOptions(**{field.name: values[field.name] for field in fields(ablating.AblateOptions)})
    try:
        prepared = ablating.prepare(train_request(values), asked, _reporter(verbose=verbose), NOTICES, dry_run=dry_run)
        if dry_run:
            for arm in prepared.ablation.arms:
                echo(torchrun.shell_line(arm.environment, experiment.collbench(*prepared.train_arguments(arm))))
            return
        ablation = ablating.perform(prepared, NOTICES, allreduce=asked.allreduce)
    except Interrupted:
        raise  # its text says more
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was trained") from error
    if as_json:
        echo(dumps(ablation), end="")
        say(f"saved {prepared.path}")
        return
    from collbench.report.text.ablation import page  # late: rich's tables

    show_page(page(ablation))
    echo(f"\nsaved     {one_line(str(prepared.path))}")
