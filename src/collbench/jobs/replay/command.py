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
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay.api import Replaying, ReplayOptions
from collbench.jobs.replay.measure import ReplayRequest
from collbench.launch import ablation as ablations
from collbench.launch.arguments import AblateArguments
from collbench.machine import visible_devices
from collbench.measurement.backends import factory
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Registration
from collbench.model.printable import one_line
from collbench.model.run import Device, Pauses
from collbench.model.units import amount


@click.command(short_help="Time the communication of a recorded job's step.")
@click.argument("job", metavar="JOB", type=options.FILE)
@options.apply(
    click.option(
        "--devices",
        metavar="LIST",
        help="GPUs for the job's ranks, in rank order: nvidia-smi indices or UUIDs.  [default: the first GPUs]",
    ),
    click.option(
        "--compute",
        type=click.Choice([one.value for one in Pauses]),
        default=Pauses.NONE.value,
        show_default=True,
        help="recorded: run matrix products in the recorded pauses; none: stay idle.",
    ),
    click.option(
        "--without",
        type=click.Choice(replaying.WITHOUT),
        help="Replay it also with NCCL_P2P_DISABLE=1, and compare.",
    ),
    click.option(
        "--registration",
        type=click.Choice([one.value for one in Registration]),
        default=Registration.NONE.value,
        show_default=True,
        help="Registered memory, as for collectives.",
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
def replay(
    job: Path, *, compute: str, registration: str, without: str | None, as_json: bool, **option_values: Any
) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. One process for each GPU runs torch's NCCL. The page has
    the communication time of a step and the exposed part: the step's time minus that of the pauses alone. All data is
    verified. On another number of GPUs, only calls that involve all ranks can be replayed.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3 --compute recorded
      collbench replay job.json --without p2p
    """
    lacking = () if without is None else (without,)
    replay_options = ReplayOptions(
        pauses=Pauses(compute), registration=Registration(registration), without=lacking, **option_values
    )
    request = replaying.request_of(
        job_file.load(job), job.name, replay_options, options.command_line("replay"), NOTICES
    )
    path = replay_options.output or new_file("replay", request.backend)
    measure_with_workers(partial(Replaying, request, path, NOTICES), "collbench.jobs.replay.section", as_json=as_json)


# `collbench ablate JOB.json`: the step in two arms.


def ablate(arguments: AblateArguments, notices: Notices) -> None:
    """Replay a job in two arms, print its page, and leave with its status."""
    if arguments.verbose:
        show_whole()
    request = _request_of(arguments, notices)
    # A new file is named as a replay's: its run is one.
    file = new_file("replay", request.backend) if arguments.output is None else Path(arguments.output)
    session = partial(Replaying, request, file, notices)
    measure_with_workers(session, "collbench.jobs.replay.section", as_json=arguments.json)


def _request_of(arguments: AblateArguments, notices: Notices) -> ReplayRequest:
    """Return the replay in two arms of a job. Raises UsageError for what cannot be compared."""
    assert arguments.job is not None  # noqa: S101  # else nobody calls it
    path = Path(arguments.job)
    job = job_file.load(path)
    change = ablations.parse_change(arguments.without)
    if change.given:
        raise UsageError(
            f"--without {change.given[0]} needs a script: a recorded job is replayed without "
            f"{', '.join(ablations.SWITCHES)}"
        )
    replay_options = ReplayOptions(
        pauses=Pauses(arguments.compute),
        without=change.switches,
        trials=arguments.repeats,
        devices=arguments.train.devices,
        backend=arguments.train.backend,
        fabric=arguments.fabric,
        force=arguments.force,
        seed=arguments.seed,
    )
    backend, _ = factory.resolve(replay_options.backend)
    if change.switches and not capabilities(backend).nvml:
        raise UsageError(
            f"the {backend} backend has no {', '.join(change.switches)} to deny NCCL: "
            "compare devices with --against LIST"
        )
    if "nvlink" in change.switches:
        notices.say(ablations.NVLINK_NOTE)
    command = options.command_line("ablate")
    request = replaying.request_of(job, one_line(path.name), replay_options, command, notices)
    return request if arguments.against is None else _against(request, arguments, arguments.against)


def _against(request: ReplayRequest, arguments: AblateArguments, against: str) -> ReplayRequest:
    """Return the request with a second arm on other devices."""
    ranks = len(request.schedule.ranks)
    present = present_devices(request.backend, request.fabric)
    first = _named(present, arguments.train.devices, "--devices", ranks)
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
