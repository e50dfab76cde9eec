"""Which of the machine's devices the user means by --devices."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.model import Device


def select(devices: Sequence[Device], text: str | None) -> tuple[Device, ...]:
    """Return the devices that a comma list of indices or UUIDs names, in its order; all of them for None.

    A UUID may be shortened as in CUDA_VISIBLE_DEVICES. Raises UsageError.
    """
    if text is None:
        return tuple(devices)
    chosen: list[Device] = []
    for word in text.split(","):
        device = _find(devices, word.strip())
        if device in chosen:
            raise UsageError(f"--devices names {device.tag} twice: '{text}'")
        chosen.append(device)
    return tuple(chosen)


def at_least_two(devices: Sequence[Device]) -> None:
    """Raise UsageError where there is no pair to measure."""
    if len(devices) < 2:
        names = ", ".join(device.tag for device in devices) or "none"
        raise UsageError(f"a pair needs two devices, and there is {len(devices)} here ({names})")


def _find(devices: Sequence[Device], word: str) -> Device:
    present = ", ".join(str(device.index) for device in devices)
    if word.isdigit():
        found = [device for device in devices if device.index == int(word)]
        if not found:
            raise UsageError(f"device {word} is not here: this process may use {present}")
        return found[0]
    found = [device for device in devices if word and device.uuid.lower().startswith(word.lower())]
    if len(found) != 1:
        why = "is no device index, and no device has such a UUID" if not found else "fits more than one UUID"
        raise UsageError(f"device '{word}' {why}: write indices ({present}) or UUIDs from 'nvidia-smi -L'")
    return found[0]
