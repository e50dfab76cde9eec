"""`collbench ablate`: train the same script with and without something, in turn, and say what it is worth."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collbench.api import training
from collbench.backends import factory
from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, say, show_page, tell
from collbench.cli.train import interrupted, told
from collbench.distributed.launchers import find_place
from collbench.launch import ablation as launch_ablation
from collbench.launch import experiment as launch_experiment
from collbench.launch import rendezvous, torchrun
from collbench.launch.ablation import Ablation, Arm, Change, Measure
from collbench.launch.arguments import AblateArguments, split, split_ablation
from collbench.machine import visible_devices
from collbench.model.capabilities import capabilities
from collbench.model.errors import Interrupted, UsageError
from collbench.model.printable import one_line
from collbench.model.run import Device
from collbench.runfile import atomic_write, saved_runs

if TYPE_CHECKING:
    from collbench.launch.experiment import Experiment, Plan


class _Ablate(click.Command):
    """A command whose words are split by ablation.arguments, because a script's own options must stay untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        arguments = split_ablation(args)
        if arguments.train.help:
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params["arguments"] = arguments
        return []


# For --help alone: ablation.arguments holds the names that are read, and a test compares the two.
_options_in_help = options.apply(
    click.option(
        "--without",
        metavar="WHAT",
        help="Train without p2p, nvlink, shm or ib (several with commas), or with NCCL_NAME=VALUE.",
    ),
    click.option("--against", metavar="LIST", help="Train on these devices instead, as many: indices or UUIDs."),
    click.option("--repeats", metavar="N", help="How often each is trained, 2 or more.  [default: 3]"),
    click.option(
        "--skip", metavar="N", help="Drop a run's first N steps.  [default: a tenth of them, and three at least]"
    ),
    click.option("--step-pattern", metavar="REGEX", help="Read step times by this, whose group is named s, ms or us."),
    click.option("--no-allreduce", is_flag=True, help="Do not measure both arms' all-reduce first."),
    click.option("--seed", metavar="N", help="Which arm begins: even or odd.  [default: a random one]"),
    click.option(
        "-o", "--output", metavar="FILE", help="Save the runs here.  [default: a new file in the state folder]"
    ),
    options.force,
    click.option("--json", is_flag=True, help="Print the file's content instead of the page."),
    click.option("--verbose", is_flag=True, help="Pass the script's output through, on stderr."),
)


@click.command(
    cls=_Ablate,
    short_help="Show what P2P is worth to your training job.",
    options_metavar="--without WHAT (--auto-select K | --devices LIST) [OPTIONS] [TRAIN OPTIONS] -- SCRIPT [ARGS]...",
    epilog="The options of 'collbench train', torchrun's too, reach every run: see 'collbench train --help'.",
)
@_options_in_help
def ablate(arguments: AblateArguments) -> None:
    """Train SCRIPT several times as it is and several times with one thing changed, in turn, on the same devices.

    Reads step times from lines like "step_time=22.4ms", else Hugging Face's train_runtime, else times the whole
    process; prints both arms, their ratio with its 95 % interval, and their all-reduce (docs/ablate.md).

    \b
    Examples:
      collbench ablate --auto-select 2 --without p2p -- train.py --epochs 1
      collbench ablate --devices 0,1 --without p2p,shm --repeats 5 -- train.py
      collbench ablate --devices 0,1 --without NCCL_ALGO=Ring -- train.py
      collbench ablate --devices 0,1 --against 2,3 -- train.py
    """
    change = launch_ablation.parse_change(arguments.without)
    pattern = None if arguments.step_pattern is None else launch_ablation.compile_pattern(arguments.step_pattern)
    _check(arguments, change)
    path, logs = _places(arguments)
    with interrupted("nothing was trained"):
        cast = _cast(arguments)
        from collbench.launch.experiment import Experiment, Plan  # late: numpy

        ablation = _prepared(arguments, change, cast)
        words = (*arguments.passed, *cast.binding, "--", *arguments.train.program)
        plan = Plan(words, path, logs, dict(os.environ), pattern, arguments.train.nccl, arguments.force)
        experiment = Experiment(ablation, plan, told(verbose=arguments.verbose))
        for _train, *rest in dict.fromkeys(tuple(experiment.train_words(arm)) for arm in ablation.arms):
            training.prepare(split(rest))  # what `collbench train` would refuse, it refuses at once
        if arguments.train.dry_run:
            for arm in ablation.arms:
                echo(torchrun.shell_line(arm.environment, launch_experiment.collbench(*experiment.train_words(arm))))
            return
        _make(experiment, plan, allreduce=arguments.allreduce)
    _show(ablation, experiment.path, as_json=arguments.json)


def _check(arguments: AblateArguments, change: Change) -> None:
    """Raise UsageError for what cannot be compared here, before anything is started."""
    launch_ablation.refuse_alike(change, os.environ)
    if find_place(os.environ) is not None:
        raise UsageError(
            "ablate starts torchrun itself, many times: run it by itself, without torchrun, srun or mpirun"
        )
    if rendezvous.several_nodes(arguments.train, os.environ):
        raise UsageError(
            f"ablate compares on one node, and {'--nnodes' if arguments.train.has('--nnodes') else 'PET_NNODES'} names "
            "several, which would have to keep step in every run: compare each node's own wires by itself"
        )
    torchrun.check_options(arguments.train, os.environ)
    torchrun.check_script(arguments.train)
    if arguments.train.auto_select == 1:
        raise _alone("--auto-select 1")
    if "nvlink" in change.words:
        say(launch_ablation.NVLINK_NOTE)


def _alone(what: str) -> UsageError:
    return UsageError(f"{what} is one device, which needs no wires: name two or more to compare with and without")


def _places(arguments: AblateArguments) -> tuple[Path, Path]:
    """Return the ablation's file, and a new folder's path for the children's output."""
    folder, name = saved_runs.state_folder(saved_runs.ABLATIONS), saved_runs.new_name()
    path = folder / f"{name}.json" if arguments.output is None else Path(arguments.output)
    if not arguments.train.dry_run:
        try:
            atomic_write.make_private(folder)
            atomic_write.try_folder(folder)
        except OSError as error:
            why = f"cannot keep the runs' output in {folder}: {atomic_write.reason(error)}"
            raise UsageError(f"{why}; set XDG_STATE_HOME to a folder that can be written") from error
        launch_experiment.check_writable(path, force=arguments.force)
    return path, folder / f"{name}-logs"


@dataclass(frozen=True, slots=True)
class _Cast:
    """The devices of both arms, chosen once, and torchrun's options that came of the choice."""

    backend: str
    devices: Sequence[Device]
    others: Sequence[Device]
    binding: tuple[str, ...]


def _cast(arguments: AblateArguments) -> _Cast:
    """Return the devices of both arms as `collbench train` chooses them, and say why. Raises what that raises."""
    train = arguments.train
    found = factory.look(train.backend)
    chosen = training.choose(train, lambda: found, NOTICES)
    if len(chosen.devices) < 2:
        raise _alone(f"--devices {train.devices}")
    others: Sequence[Device] = chosen.devices
    if arguments.against is not None:
        others = _others(arguments.against, chosen.devices, found.every)
    binding = training.decide(train, chosen.run, chosen.members)
    if chosen.note:
        say(chosen.note)
    of, among = found.backend, found.among
    line = torchrun.choice(chosen.devices, chosen.why, chosen.source, backend=of, among=among, binding=binding.words)
    tell(line)
    return _Cast(of, chosen.devices, others, ("--numa-binding", "node") if binding.bind else ())


def _others(words: str, devices: Sequence[Device], every: Sequence[Device]) -> Sequence[Device]:
    """Return the devices that --against names. Raises UsageError where they cannot be compared with the first ones."""
    others = visible_devices.select(every, words)
    if len(others) != len(devices):
        raise UsageError(
            f"--against {words} names {len(others)} devices and the other arm has {len(devices)}: only the same job "
            "on as many devices can be compared"
        )
    if {device.uuid for device in others} == {device.uuid for device in devices}:
        raise UsageError(f"--against {words} names the devices of the other arm: both would train alike")
    return others


def _prepared(arguments: AblateArguments, change: Change, cast: _Cast) -> Ablation:
    """Return the ablation before its first run."""
    from collbench.launch.experiment import environment_of  # late: numpy

    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    names = change.names if arguments.against is None else (_on(cast.devices), _on(cast.others))
    changes: tuple[dict[str, str], dict[str, str]] = ({}, dict(change.environment))
    without = ((), change.without if arguments.against is None else ())
    both = [
        Arm(
            name,
            environment,
            tuple(one.index for one in chosen),
            tuple(one.uuid for one in chosen),
            without=lacking,
        )
        for name, environment, chosen, lacking in zip(names, changes, (cast.devices, cast.others), without, strict=True)
    ]
    return Ablation(
        collbench=version("collbench"),
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        hostname=socket.gethostname(),
        gpus=tuple(device.name for device in cast.devices),
        command=arguments.train.program,
        measure=Measure.PROCESS,
        arms=(both[0], both[1]),
        backend=cast.backend,
        environment=environment_of(os.environ),
        repeats=arguments.repeats,
        seed=seed,
        skip=arguments.skip,
        step_pattern=arguments.step_pattern,
    )


def _on(devices: Sequence[Device]) -> str:
    return f"on {', '.join(device.tag for device in devices)}"


def _make(experiment: Experiment, plan: Plan, *, allreduce: bool) -> None:
    """Measure and train. What an interruption leaves is in the file, and said."""
    plan.logs.mkdir(mode=0o700)
    if capabilities(experiment.ablation.backend).cores:
        say("the host backend trains with gloo, which heeds no NCCL variable: only the script itself can")
    try:
        if allreduce:
            experiment.measure_allreduces()
        say(f"training {2 * experiment.ablation.repeats} times; the script's output goes to {plan.logs}")
        experiment.train()
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {experiment.saved()}") from error


def _show(ablation: Ablation, path: Path, *, as_json: bool) -> None:
    if as_json:
        echo(launch_experiment.dumps(ablation), end="")
        say(f"saved {path}")
        return
    from collbench.output.text.ablation import page  # late: rich's tables

    show_page([*page(ablation), f"\nsaved     {one_line(str(path))}"])
