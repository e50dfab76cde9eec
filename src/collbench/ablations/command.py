"""`collbench ablate`: train the same script with and without something, in turn, and compare the times.

`api/runs.py` finds this module by the format of a saved ablation, for what other commands do with one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from collbench import torchrun
from collbench.ablations import api, experiment
from collbench.ablations.ablation import dumps, load
from collbench.ablations.experiment import Reporter
from collbench.api.keywords import MAX_COUNT, new_seed
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, is_json, json_option, say, show_answer, show_page
from collbench.cli.train import ScriptCommand, train, train_request
from collbench.model.errors import Interrupted, UsageError
from collbench.model.units import parse_budget, parse_precision
from collbench.model.values import one_line

# A line that changes more often cannot be read.
_SECONDS_BETWEEN_LINES = 0.2
_FROM_ZERO = click.IntRange(0, MAX_COUNT)


def _reporter(*, verbose: bool) -> Reporter:
    """Return what prints an experiment's notices on stderr; with `verbose`, also the script's own output."""
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


@click.command(
    cls=_Ablate,
    unlisted=train.listed,
    options_metavar="(--without WHAT | --against LIST) (--auto-select K | --devices LIST) [OPTIONS] [TRAIN OPTIONS] --",
    epilog="The options of 'collbench train' and of torchrun apply to every run: see 'collbench train --help'.",
)
@options.apply(
    option(
        "--without WHAT",
        "Second arm: without p2p, nvlink, shm or ib (several with commas), or with NCCL_NAME=VALUE.",
        multiple=True,
    ),
    option("--against LIST", "Second arm: on these devices, the same number: indices or UUIDs."),
    option(
        "--precision SHARE",
        "Train until half of the ratio's 95% interval is at most this share of it.  [default: 3%]",
        parse_precision,
    ),
    option("--budget TIME", "Start no repeat that would end after this time.  [default: 3min]", parse_budget),
    option("--repeats N", "Train each arm N times instead, 2 or more.", click.IntRange(2, MAX_COUNT)),
    option("--skip N", "Drop a run's first N steps.  [default: a tenth, at least three]", _FROM_ZERO),
    option("--step-pattern REGEX", "Read step times with this; name its group s, ms or us."),
    option(
        "--no-allreduce",
        "Do not measure both arms' all-reduce first.",
        name="allreduce",
        flag_value=False,
        default=True,
    ),
    option("--seed N", "Even or odd selects which arm runs first.  [default: random]", _FROM_ZERO, default=new_seed),
    option(
        "-o, --output FILE", "Save the runs in this file.  [default: a new file in the state folder]", options.OUTPUT
    ),
    options.force,
    json_option("Print the file's content instead of the page."),
    option("-v, --verbose", "Also print the script's output on stderr."),
)
def ablate(*, verbose: bool, **values: Any) -> None:
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
    try:
        prepared = api.prepare(train_request(values), values, _reporter(verbose=verbose), NOTICES)
        if values["dry_run"]:
            for arm in prepared.ablation.arms:
                echo(torchrun.shell_line(arm.environment, experiment.collbench(*prepared.train_arguments(arm))))
            return
        ablation = api.perform(prepared, NOTICES, allreduce=values["allreduce"])
    except Interrupted:
        raise  # its text says more
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was trained") from error
    if is_json():
        echo(dumps(ablation), end="")
        say(f"saved {prepared.path}")
        return
    from collbench.ablations.page import page  # late: rich's tables

    show_page(page(ablation))
    echo(f"\nsaved     {one_line(str(prepared.path))}")


# What other commands do with a saved ablation.

NAME, CALL, OPTIONS = "a saved ablation", "json.load(open({!r}))", ()


def show(file: Path) -> None:
    """Print the page that `collbench ablate` printed, or its JSON."""
    from collbench.ablations.page import page  # late: rich's tables

    ablation = load(file)
    show_answer(page(ablation), lambda: dumps(ablation))


def export(file: Path, layout: str) -> str:
    """Raise UsageError: no format of export is for an ablation."""
    raise UsageError(f"{one_line(str(file))} is {NAME}, and --format {layout} is for a run: the file is JSON already")


def html(_files: Sequence[Path]) -> str:
    """Raise UsageError: an ablation has no page in HTML."""
    raise UsageError(f"{NAME} has no HTML page: 'collbench show' prints it")
