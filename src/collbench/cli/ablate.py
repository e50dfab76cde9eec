"""`collbench ablate`: train the same script with and without something, in turn, and compare the times."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, say, show_page
from collbench.cli.train import ScriptCommand, train
from collbench.launch import torchrun
from collbench.launch.arguments import AblateArguments, split_ablation
from collbench.model.errors import Interrupted
from collbench.model.printable import one_line

if TYPE_CHECKING:
    from collbench.launch.experiment import Reporter

# A line that changes more often cannot be read.
_SECONDS_BETWEEN_LINES = 0.2


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
    """The command `ablate`, which takes `train`'s arguments, too."""

    def read(self, arguments: list[str]) -> AblateArguments | None:
        """Return what was asked, None for the help. Raises UsageError."""
        asked = split_ablation(arguments)
        return None if asked.train.help else asked

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options in the help; for a shell also those of `train` and torchrun."""
        params = super().get_params(ctx)
        if not ctx.resilient_parsing:
            return params
        own = {param.opts[-1] for param in params}
        return [*params, *(param for param in train.params if param.opts[-1] not in own)]


# Only for --help and for shells, as in `train`.
_options_in_help = options.apply(
    click.option(
        "--without",
        metavar="WHAT",
        help="Second arm: without p2p, nvlink, shm or ib (several with commas), or with NCCL_NAME=VALUE.",
    ),
    click.option("--against", metavar="LIST", help="Second arm: on these devices, the same number: indices or UUIDs."),
    click.option(
        "--precision",
        metavar="SHARE",
        help="Train until half of the ratio's 95% interval is at most this share of it.  [default: 3%]",
    ),
    click.option("--budget", metavar="TIME", help="Start no repeat that would end after this time.  [default: 3min]"),
    click.option("--repeats", metavar="N", help="Train each arm N times instead, 2 or more."),
    click.option("--skip", metavar="N", help="Drop a run's first N steps.  [default: a tenth, at least three]"),
    click.option("--step-pattern", metavar="REGEX", help="Read step times with this; name its group s, ms or us."),
    click.option("--no-allreduce", is_flag=True, help="Do not measure both arms' all-reduce first."),
    click.option("--seed", metavar="N", help="Even or odd selects which arm runs first.  [default: random]"),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=options.FILE_NAME,
        help="Save the runs in this file.  [default: a new file in the state folder]",
    ),
    options.force,
    click.option("--json", is_flag=True, help="Print the file's content instead of the page."),
    click.option("--verbose", is_flag=True, help="Also print the script's output on stderr."),
)


@click.command(
    cls=_Ablate,
    options_metavar="--without WHAT (--auto-select K | --devices LIST) [OPTIONS] [TRAIN OPTIONS] -- SCRIPT [ARGS]...",
    epilog="The options of 'collbench train' and of torchrun apply to every run: see 'collbench train --help'.",
)
@_options_in_help
def ablate(arguments: AblateArguments) -> None:
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

    try:
        prepared = ablating.prepare(arguments, _reporter(verbose=arguments.verbose), NOTICES)
        if arguments.train.dry_run:
            for arm in prepared.ablation.arms:
                echo(torchrun.shell_line(arm.environment, experiment.collbench(*prepared.train_arguments(arm))))
            return
        ablation = ablating.perform(prepared, NOTICES, allreduce=arguments.allreduce)
    except Interrupted:
        raise  # its text says more
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was trained") from error
    if arguments.json:
        echo(dumps(ablation), end="")
        say(f"saved {prepared.path}")
        return
    from collbench.report.text.ablation import page  # late: rich's tables

    show_page([*page(ablation), f"\nsaved     {one_line(str(prepared.path))}"])
