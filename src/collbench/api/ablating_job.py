"""A recorded job's step with and without something, replayed in turn: what `collbench ablate job.json` asks for."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.api import replaying
from collbench.api.notices import SILENT, Notices
from collbench.api.replaying import ReplayOptions
from collbench.backends import factory
from collbench.bench.replay import ReplayRequest
from collbench.launch import ablation
from collbench.launch.arguments import AblateArguments
from collbench.machine import visible_devices
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.job import Job
from collbench.model.run import Device, Pauses
from collbench.model.units import amount


def request_of(
    arguments: AblateArguments, job: Job, name: str, words: Sequence[str], notices: Notices = SILENT
) -> ReplayRequest:
    """Return the replay in two arms of a job, called `name`. Raises UsageError for what cannot be compared."""
    change = ablation.parse_change(arguments.without)
    if change.given:
        raise UsageError(
            f"--without {change.given[0]} needs a script: a recorded job is replayed without "
            f"{', '.join(ablation.SWITCHES)}"
        )
    asked = ReplayOptions(
        pauses=Pauses(arguments.compute),
        without=change.words,
        trials=arguments.repeats,
        devices=arguments.train.devices,
        backend=arguments.train.backend,
        fabric=arguments.fabric,
        force=arguments.force,
        seed=arguments.seed,
    )
    backend, _ = factory.resolve(asked.backend)
    if change.words and not capabilities(backend).nvml:
        raise UsageError(
            f"the {backend} backend has no {', '.join(change.words)} that NCCL could go without: compare devices with "
            "--against LIST"
        )
    if "nvlink" in change.words:
        notices.say(ablation.NVLINK_NOTE)
    request = replaying.request_of(job, name, asked, words, notices)
    return request if arguments.against is None else _against(request, arguments, arguments.against)


def _against(request: ReplayRequest, arguments: AblateArguments, against: str) -> ReplayRequest:
    """Return the request with its second arm on other devices."""
    ranks = len(request.schedule.ranks)
    present = _present(request)
    first = _named(present, arguments.train.devices, "--devices", ranks)
    others = _named(present, against, "--against", ranks)
    if {device.uuid for device in first} == {device.uuid for device in others}:
        raise UsageError(f"--against {against} names the devices of the other arm: both would send alike")
    return replaying.on_sets(request, [first, others])


def _present(request: ReplayRequest) -> tuple[Device, ...]:
    if capabilities(request.backend).simulated:
        return factory.simulated_devices(request.fabric)
    return factory.present_devices(request.backend)


def _named(present: Sequence[Device], words: str | None, option: str, ranks: int) -> Sequence[Device]:
    """Return a device for each rank, those that an option names, or the first ones. Raises UsageError."""
    found = present[:ranks] if words is None else visible_devices.select(present, words)
    if len(found) != ranks:
        named = f"{option} names" if words is not None else "there are"
        raise UsageError(
            f"{named} {amount(len(found), 'device')}, and the step that is replayed has {amount(ranks, 'rank')}"
        )
    return found
