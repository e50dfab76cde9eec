"""What two runs differ in beside their figures: each a candidate cause of what became faster or slower."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collbench.model import Device, Path, Run

# NVIDIA's container images leave it behind; it changes nothing that NCCL does.
_IDLE = {"NCCL_VERSION"}
_MACHINE = ("hostname", "driver", "cuda", "nccl", "nccl_path", "kernel_image", "system", "cpu", "virtualization")
_WORDS = {"nccl": "NCCL", "nccl_path": "NCCL library", "cuda": "CUDA", "kernel_image": "kernels"}
_MOST_LABELS = 4  # of a machine with many links the first ones show which


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same: what, and its value in the base and in the new run ("" where it has none)."""

    what: str
    base: str
    new: str


def differences(base: Run, new: Run, positions: Mapping[int, int]) -> tuple[Difference, ...]:
    """Return what differs, the likeliest causes first; `positions` are the new run's devices as the base's."""
    found = (
        *_of_machines(base, new),
        *_of_variables(base.settings.environment, new.settings.environment),
        *_of_settings(base, new),
        *_of_devices(base.devices, new.devices),
        *_of_labels(base, new, positions),
        Difference("disturbed visits", _flags(base), _flags(new)),
        Difference("cells given up", _failed(base), _failed(new)),
        Difference("complete", _yes(base.complete), _yes(new.complete)),
        Difference("collbench", base.version, new.version),
        Difference("started", base.started, new.started),
    )
    return tuple(difference for difference in found if difference.base != difference.new)


def _of_machines(base: Run, new: Run) -> Iterator[Difference]:
    for name in _MACHINE:
        yield Difference(_WORDS.get(name, name), getattr(base.machine, name), getattr(new.machine, name))
    yield Difference("multicast (NVLS)", _yes(base.machine.multicast), _yes(new.machine.multicast))
    yield Difference("simulated machine", base.machine.fabric, new.machine.fabric)


def _of_variables(base: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted({*base, *new} - _IDLE):
        yield Difference(name, base.get(name, "not set"), new.get(name, "not set"))


def _of_settings(base: Run, new: Run) -> Iterator[Difference]:
    for name in ("dtype", "redop"):
        if any(operation.is_collective for operation in base.settings.operations):
            yield Difference(name, getattr(base.settings, name), getattr(new.settings, name))
    yield Difference("processes", str(base.settings.processes), str(new.settings.processes))
    yield Difference("command", shlex.join(_asked(base)), shlex.join(_asked(new)))


def _asked(run: Run) -> list[str]:
    """Return the command line without the file that it wrote, which is another one every time."""
    words, kept = iter(run.settings.command), []
    for word in words:
        if word in ("-o", "--output"):
            next(words, None)
        elif not word.startswith(("-o=", "--output=")):
            kept.append(word)
    return kept


def _of_devices(base: Sequence[Device], new: Sequence[Device]) -> Iterator[Difference]:
    yield Difference("devices", _kinds(base), _kinds(new))


def _of_labels(base: Run, new: Run, positions: Mapping[int, int]) -> Iterator[Difference]:
    old = {frozenset(path.devices): path for path in base.paths}
    changed = []
    for path in new.paths:
        before = old.get(frozenset(positions.get(device, -1) for device in path.devices))
        if before is not None and before.label != path.label:
            changed.append((_name(base, before), before.label, path.label))
    for name, label, now in changed[:_MOST_LABELS]:
        yield Difference(f"label of {name}", label, now)
    if len(changed) > _MOST_LABELS:
        yield Difference("more labels", "", f"{len(changed) - _MOST_LABELS} others differ")


def _name(run: Run, path: Path) -> str:
    return "-".join(run.devices[device].tag for device in path.devices)


def _kinds(devices: Sequence[Device]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(device.name for device in devices).items())


def _flags(run: Run) -> str:
    """Count the visits with a flag by its kind: "12 throttled, 3 shared"."""
    kinds = Counter(
        kind
        for found in run.measurements
        for sample in found.samples
        for kind in {flag.kind.value for flag in sample.flags}
    )
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"


def _failed(run: Run) -> str:
    return str(sum(bool(found.failure) for found in run.measurements))


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[value]
