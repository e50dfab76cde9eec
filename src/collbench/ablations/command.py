"""`collbench ablate`: train the same script with and without something, in turn, and compare the times.

`api/runs.py` finds this module by the format of a saved ablation, for what other commands do with one.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from collbench import __version__
from collbench.ablations import ablation as ablations
from collbench.ablations import experiment as experiments
from collbench.ablations.ablation import Ablation, Arm, ArmChange, Measure, dumps, load
from collbench.ablations.child import compile_pattern
from collbench.ablations.experiment import Experiment, Reporter
from collbench.api import SILENT, Notices, training
from collbench.api.keywords import MAX_COUNT, new_seed
from collbench.api.training import TrainRequest
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, is_json, json_option, say, show_answer, show_page
from collbench.cli.train import ScriptCommand, train, train_request
from collbench.machine import device_names
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.errors import Interrupted, UsageError
from collbench.model.run import Device, capabilities
from collbench.model.units import amount, fixed, parse_budget, parse_precision
from collbench.model.values import one_line
from collbench.runfile import atomic_write, run_file

# Both arms: their devices chosen, their all-reduce measured, the script trained.

_DEFAULT_BUDGET_S = 180.0


def prepare(
    train: TrainRequest, values: Mapping[str, Any], reported: Reporter, notices: Notices = SILENT
) -> Experiment:
    """Choose the devices of both arms, as `collbench train` does, and return the experiment, ready to run.

    `values` are the options of `collbench ablate`, by name. Raises errors for what cannot be compared or started,
    before starting anything.
    """
    change = ablations.parse_change(values["without"])
    pattern = None if values["step_pattern"] is None else compile_pattern(values["step_pattern"])
    _check(train, change, notices)
    path, logs = _output_paths(values)
    present = factory.look(train.backend)
    if change.switches and capabilities(present.backend).cores:
        raise UsageError(
            f"the host backend has no {', '.join(change.switches)} to deny NCCL, so both arms would train the "
            "same way: name a variable that the script reads (--without NCCL_NAME=VALUE), or other cores (--against)"
        )
    devices = _choose(train, values["against"], present, notices)
    train_arguments = (*train.script.options, "--", *train.script.program)
    experiment = Experiment(
        ablation=_begun(train, values, change, present.backend, devices),
        reporter=reported,
        arguments=train_arguments,
        path=path,
        logs=logs,
        inherited=dict(os.environ),
        pattern=pattern,
        nccl=train.nccl,
        force=values["force"],
    )
    for names in dict.fromkeys(arm.uuids for arm in experiment.ablation.arms):
        of_arm = TrainRequest(count=0, backend=present.backend, devices=",".join(names), script=train.script)
        training.prepare(of_arm)  # refuse now what `collbench train` would refuse later
    return experiment


def perform(experiment: Experiment, notices: Notices = SILENT, *, allreduce: bool = True) -> Ablation:
    """Measure both arms' all-reduce and train. After an interruption the file keeps the results, and a notice says so.

    Raises BackendError if the script fails, UsageError if it prints no steps, and Interrupted.
    """
    experiment.logs.mkdir(mode=0o700)
    if capabilities(experiment.ablation.backend).cores:
        notices.say("the host backend trains with gloo, which ignores NCCL variables: only the script can use them")
    try:
        if allreduce:
            experiment.measure_allreduces()
        notices.say(f"{_plan(experiment.ablation)}; the script's output goes to {experiment.logs}")
        experiment.train()
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {experiment.saved()}") from error
    return experiment.ablation


def _plan(ablation: Ablation) -> str:
    """Return how often both arms will train, as a clause."""
    if ablation.budget_seconds is None:
        return f"training {2 * ablation.repeats} times"
    return (
        "training both arms in turn, three times or more, until their ratio is known to "
        f"±{fixed(100 * ablation.precision)}% or {ablation.budget_seconds:.0f} s have passed"
    )


def _check(train: TrainRequest, change: ArmChange, notices: Notices) -> None:
    """Raise UsageError for what cannot be compared here, before starting anything."""
    ablations.refuse_alike(change, os.environ)
    if training.several_nodes(train.script, os.environ):
        raise UsageError(
            f"ablate compares on one node, and {'--nnodes' if train.script.has('--nnodes') else 'PET_NNODES'} names "
            "several: run ablate on each node by itself"
        )
    training.check_options(train.script, os.environ, train.count)
    training.check_script(train.script)
    if train.count == 1:
        raise _alone("--auto-select 1")
    if "nvlink" in change.switches:
        notices.say(ablations.NVLINK_NOTE)


def _alone(what: str) -> UsageError:
    return UsageError(f"{what} is one device, and one device has no links to compare: name two or more")


def _output_paths(values: Mapping[str, Any]) -> tuple[Path, Path]:
    """Return the ablation's file, and a new folder's path for the children's output."""
    folder, name = run_file.state_folder("ablations"), run_file.new_name()
    path = values["output"] or folder / f"{name}.json"
    if not values["dry_run"]:
        try:
            atomic_write.make_private(folder)
            atomic_write.try_folder(folder)
        except OSError as error:
            why = f"cannot keep the runs' output in {folder}: {atomic_write.reason(error)}"
            raise UsageError(f"{why}; set XDG_STATE_HOME to a folder that can be written") from error
        experiments.check_writable(path, force=values["force"])
    return path, folder / f"{name}-logs"


def _choose(
    train: TrainRequest, against: str | None, present: Present, notices: Notices
) -> tuple[Sequence[Device], Sequence[Device]]:
    """Return the devices of both arms as `collbench train` chooses them, once, and report why.

    Raises the same errors.
    """
    chosen = training.choose(train, lambda: present, notices)
    if len(chosen.devices) < 2:
        raise _alone(f"--devices {train.devices}")
    others: Sequence[Device] = chosen.devices
    if against is not None:
        others = device_names.select(present.every, against)
        if len(others) != len(chosen.devices):
            raise UsageError(
                f"--against {against} names {amount(len(others), 'device')} and the other arm has "
                f"{len(chosen.devices)}: only the same job on as many devices can be compared"
            )
        if {device.uuid for device in others} == {device.uuid for device in chosen.devices}:
            raise UsageError(
                f"--against {against} names the same devices as the other arm: both would train the same way"
            )
    if chosen.note:
        notices.say(chosen.note)
    notices.say(chosen.line(present))
    return chosen.devices, others


def _begun(
    train: TrainRequest, values: Mapping[str, Any], change: ArmChange, backend: str, devices: Sequence[Sequence[Device]]
) -> Ablation:
    """Return the ablation before its first run."""
    names = change.names
    if values["against"] is not None:
        first, second = (", ".join(device.tag for device in of_arm) for of_arm in devices)
        names = f"on {first}", f"on {second}"
    changes: tuple[dict[str, str], dict[str, str]] = ({}, dict(change.environment))
    without = ((), change.without if values["against"] is None else ())
    arms = [
        Arm(
            name,
            environment,
            tuple(device.index for device in of_arm),
            tuple(device.uuid for device in of_arm),
            without=lacking,
        )
        for name, environment, of_arm, lacking in zip(names, changes, devices, without, strict=True)
    ]
    return Ablation(
        collbench=__version__,
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        hostname=socket.gethostname(),
        gpus=tuple(device.name for device in devices[0]),
        command=train.script.program,
        measure=Measure.PROCESS,
        arms=(arms[0], arms[1]),
        backend=backend,
        environment=experiments.environment_of(os.environ),
        repeats=values["repeats"] or 0,
        seed=values["seed"],
        skip=values["skip"],
        step_pattern=values["step_pattern"],
        precision=values["precision"] or ablations.PRECISION,
        budget_seconds=None if values["repeats"] else values["budget"] or _DEFAULT_BUDGET_S,
    )


# What the user sees meanwhile.

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
        prepared = prepare(train_request(values), values, _reporter(verbose=verbose), NOTICES)
        if values["dry_run"]:
            for arm in prepared.ablation.arms:
                echo(training.shell_line(arm.environment, experiments.collbench(*prepared.train_arguments(arm))))
            return
        ablation = perform(prepared, NOTICES, allreduce=values["allreduce"])
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


def export(file: Path, output_format: str) -> str:
    """Raise UsageError: no format of export is for an ablation."""
    raise UsageError(
        f"{one_line(str(file))} is {NAME}, and --format {output_format} is for a run: the file is JSON already"
    )
