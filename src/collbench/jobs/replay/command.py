"""`collbench replay`, and `ablate` of a recorded job: the communication of its step, on any set of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from collbench.api.measuring import present_devices
from collbench.api.notices import Notices
from collbench.cli import options
from collbench.cli.measuring import measure_with_workers, new_file
from collbench.cli.terminal import NOTICES, show_whole
from collbench.jobs import job_file
from collbench.jobs.job import Job
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay.api import Replaying, ReplayOptions
from collbench.jobs.replay.measure import ReplayRequest
from collbench.launch import ablation as ablations
from collbench.launch.arguments import AblateJobArguments, whole_option
from collbench.machine import visible_devices
from collbench.measurement.backends import factory
from collbench.model.capabilities import BACKENDS, capabilities
from collbench.model.errors import UsageError
from collbench.model.printable import one_line
from collbench.model.run import Device
from collbench.model.units import amount


@click.command()
@click.argument("job", metavar="JOB", type=options.FILE)
@options.apply(
    click.option(
        "--devices",
        metavar="LIST",
        help="GPUs for the job's ranks, in rank order: nvidia-smi indices or UUIDs.  [default: the first GPUs]",
    ),
    click.option(
        "--without",
        type=click.Choice(replaying.WITHOUT),
        help="Replay it also with NCCL_P2P_DISABLE=1, and compare.",
    ),
    click.option(
        "--phase",
        metavar="N",
        type=options.COUNT,
        help="Replay phase N of each rank.  [default: the step]",
    ),
    click.option(
        "--trials", metavar="N", type=options.COUNT, help="How often to time the step.  [default: 8; host: 6]"
    ),
    *options.of_workers,
)
def replay(job: Path, *, without: str | None, as_json: bool, **option_values: Any) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. One process for each GPU runs torch's NCCL. The page has
    the communication time of a step and the exposed part: the step's time minus that of the pauses alone. All data is
    verified. On another number of GPUs, only calls that involve all ranks can be replayed.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3
      collbench replay job.json --without p2p
    """
    replay_options = ReplayOptions(without=() if without is None else (without,), **option_values)
    request = replaying.request_of(
        job_file.load(job), job.name, replay_options, options.command_line("replay"), NOTICES
    )
    path = replay_options.output or new_file("replay", request.backend)
    measure_with_workers(partial(Replaying, request, path, NOTICES), "collbench.jobs.replay.section", as_json=as_json)


# `collbench ablate JOB.json`: the step in two arms.

_OF_TWO_ARMS = frozenset({"--against", "--repeats", "--seed", "--output", "--json", "--verbose", "--force", "--fabric"})


def ablate(arguments: AblateJobArguments, notices: Notices) -> None:
    """Replay a job in two arms, print its page, and leave with its status."""
    own_options = arguments.own_options
    replay_options = options_of(arguments)
    if "--verbose" in own_options:
        show_whole()
    path = Path(arguments.file)
    request = _in_two_arms(job_file.load(path), one_line(path.name), replay_options, notices)
    if "--against" in own_options:
        request = _against(request, replay_options.devices, own_options["--against"])
    # A new file is named as a replay's: its run is one.
    file = replay_options.output or new_file("replay", request.backend)
    session = partial(Replaying, request, file, notices)
    measure_with_workers(session, "collbench.jobs.replay.section", as_json="--json" in own_options)


def options_of(arguments: AblateJobArguments) -> ReplayOptions:
    """Return the options of the replay. Raises UsageError for what is none of them, or cannot be compared."""
    own_options, without = arguments.own_options, arguments.without
    if arguments.program:
        raise UsageError(
            f"{arguments.file} is a recorded job, and {arguments.program[0]} is a training script: use only one"
        )
    strange = [name for name in own_options if name not in _OF_TWO_ARMS]
    strange += [option.name for option in arguments.train_options if option.name not in ("--devices", "--backend")]
    if strange:
        listed = ", ".join(dict.fromkeys(strange))
        raise UsageError(f"{arguments.file} is replayed, and nothing is trained: leave out {listed}")
    chosen = {option.name: option.value for option in arguments.train_options}
    backend = chosen.get("--backend") or "auto"
    if backend not in ("auto", *BACKENDS):
        raise UsageError(f"backend '{backend}' does not exist: write one of auto, {', '.join(BACKENDS)}")
    trials = whole_option(own_options, "--repeats", least=2, why="one trial of each arm gives no interval")
    seed = whole_option(own_options, "--seed")
    change = ablations.parse_change(without or (() if "--against" in own_options else ("p2p",)))
    if change.given:
        raise UsageError(
            f"--without {change.given[0]} needs a script: a recorded job is replayed without "
            f"{', '.join(ablations.SWITCHES)}"
        )
    return ReplayOptions(
        without=change.switches,
        trials=trials,
        devices=chosen.get("--devices"),
        backend=backend,
        fabric=own_options.get("--fabric"),
        output=Path(own_options["--output"]) if "--output" in own_options else None,
        force="--force" in own_options,
        seed=seed,
    )


def _in_two_arms(job: Job, name: str, replay_options: ReplayOptions, notices: Notices) -> ReplayRequest:
    """Return the replay of a job with all, and without what the options say. Raises UsageError."""
    without = replay_options.without
    backend, _ = factory.resolve(replay_options.backend)
    if without and not capabilities(backend).nvml:
        raise UsageError(
            f"the {backend} backend has no {', '.join(without)} to deny NCCL: compare devices with --against LIST"
        )
    if "nvlink" in without:
        notices.say(ablations.NVLINK_NOTE)
    return replaying.request_of(job, name, replay_options, options.command_line("ablate"), notices)


def _against(request: ReplayRequest, devices: str | None, against: str) -> ReplayRequest:
    """Return the request with a second arm on other devices."""
    ranks = len(request.schedule.ranks)
    present = present_devices(request.backend, request.fabric)
    first = _named(present, devices, "--devices", ranks)
    others = _named(present, against, "--against", ranks)
    if {device.uuid for device in first} == {device.uuid for device in others}:
        raise UsageError(f"--against {against} names the same devices as the other arm: both would use the same links")
    return replaying.on_sets(request, [first, others])


def _named(present: Sequence[Device], device_list: str | None, option: str, ranks: int) -> Sequence[Device]:
    """Return a device for each rank: those that an option names, or the first ones. Raises UsageError."""
    chosen = present[:ranks] if device_list is None else visible_devices.select(present, device_list)
    if len(chosen) != ranks:
        named = f"{option} names" if device_list is not None else "there are"
        raise UsageError(
            f"{named} {amount(len(chosen), 'device')}, and the step that is replayed has {amount(ranks, 'rank')}"
        )
    return chosen
