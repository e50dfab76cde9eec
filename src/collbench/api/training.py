"""A training job before its start: which devices it takes and why, and what is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from collbench import torchrun
from collbench.api import SILENT, Notices, by_run
from collbench.api.selecting import ChoiceRequest
from collbench.choose.choice import FEW_SETS, against
from collbench.choose.fitness import left_out
from collbench.judge.outcome import outcome
from collbench.machine import device_names
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.capabilities import capabilities
from collbench.model.errors import NotTrusted, UsageError
from collbench.model.run import Device, device_sets
from collbench.torchrun import Script


@dataclass(frozen=True, slots=True)
class Launch:
    """What `collbench train` starts: variables added to ours, and a command.

    `choice` is the line on the devices and why they were chosen, `notes` the lines before it.
    """

    changes: dict[str, str]
    command: list[str]
    notes: tuple[str, ...]
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest(ChoiceRequest):
    """What is asked for: a script on these `devices`, indices or UUIDs with commas, or on the best ones."""

    asked = "--auto-select"
    undone = "nothing was started"
    advice = "measure again or use --fresh"

    script: Script
    devices: str | None = None


def prepare(request: TrainRequest, notices: Notices = SILENT) -> Launch:
    """Choose devices and return what to start on them. Raises UsageError, MachineError and what `choose` raises."""
    script = request.script
    torchrun.check_options(script, os.environ, request.count)
    torchrun.check_script(script)
    torchrun.find_torch()
    with ThreadPoolExecutor(1) as pool:  # the driver answers in a tenth of a second, and numpy loads in another
        looking = pool.submit(factory.look, request.backend)
        chosen = choose(request, looking.result, notices)
    present = looking.result()
    devices = chosen.devices
    changes = torchrun.for_devices(devices, os.environ, backend=present.backend)
    changes |= torchrun.rendezvous_variables(script, os.environ)
    command = torchrun.start_command(script, devices, os.environ, backend=present.backend)
    notes = (chosen.note, torchrun.override_note(script, os.environ, len(devices)))
    return Launch(changes, command, tuple(filter(None, notes)), chosen.line(present))


# Which devices are chosen, and why the others are not.


@dataclass(frozen=True, slots=True)
class Chosen:
    """Devices, why, and the evidence as text.

    `note` is a further line, "" for none: the devices left out, or what is wrong with those chosen by hand.
    """

    devices: tuple[Device, ...]
    why: str
    source: str
    note: str = ""

    def line(self, present: Present) -> str:
        """Return the line that says which devices train, why, and on what evidence."""
        if capabilities(present.backend).cores:
            device_text = ", ".join(device.tag for device in self.devices) + " (host backend)"
        else:
            names = ", ".join(f"GPU{device.index}" for device in self.devices)
            device_text = f"{names} ({', '.join(device.uuid for device in self.devices)})"
        return f"using {device_text}: {', '.join(filter(None, (self.why, present.among)))} ({self.source})"


def choose(request: TrainRequest, look: Callable[[], Present], notices: Notices) -> Chosen:
    """Return the devices to train on: those named by hand, or the best K of those that are healthy now.

    `look` waits for what the machine has. Raises UsageError, NotTrusted if every set includes what failed, and what
    probing does.
    """
    if request.devices is None:
        import collbench.choose.select  # noqa: F401 - late: numpy, which loads while the machine is looked at

    present = look()
    if request.devices is not None:
        return _by_hand(request.devices, request.max_age, present, notices)
    found, choice, _ = by_run.chosen_by_run(request, by_run.criteria_of(request, present), notices)
    run = found.run
    cut = [(device, by_run.MIG) for device in present.mig]
    if choice.failed:
        advice = "nothing was started; --devices uses devices in spite of this"
        failed = device_sets(choice.failed, run.devices, FEW_SETS)
        what = f"{failed} with a rate above the limit" if choice.failed == choice.impossible else f"failed {failed}"
        raise NotTrusted(f"every set of {request.count} includes {what}: {advice}", outcome(run).status)
    devices = tuple(run.devices[position] for position in choice.members)
    if run.measurements:
        out = [(run.devices[exclusion.member], exclusion.reason) for exclusion in choice.left_out]
        note = _left_out(out + cut)
        return Chosen(devices, choice.explained(run.devices), found.source, note)
    why = "all that are not excluded" if request.exclude else "all available"
    return Chosen(devices, why, found.source, note=_left_out(cut + by_run.lost(present)))


def _left_out(devices: Sequence[tuple[Device, str]]) -> str:
    return f"left out: {against(devices)}" if devices else ""


def _by_hand(device_list: str, max_age: timedelta, present: Present, notices: Notices) -> Chosen:
    devices = device_names.select(present.every, device_list)
    cut = [device.tag for device in devices if device in present.mig]
    if cut:
        tags = ", ".join(cut)
        raise UsageError(f"{tags} cannot train with others: {by_run.MIG}: choose others, or turn MIG mode off")
    run = by_run.as_now(by_run.nothing_to_compare(present.backend, devices), present.states)
    wrong = against([(devices[exclusion.member], exclusion.reason) for exclusion in left_out(run)])
    failed = by_run.seen_to_fail(devices, max_age, notices) if len(devices) > 1 else ""
    anyway = ", ".join(filter(None, (wrong, failed)))
    return Chosen(devices, "chosen by hand", "--devices", note=f"used anyway: {anyway}" if anyway else "")
