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
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        where = f"'{text}' has an empty place beside a comma" if any(words) else f"'{text}' names no device"
        raise UsageError(f"{where}: write {_ways_to_name(devices)}, as in 0,2")
    chosen: list[Device] = []
    for word in words:
        device = _find(devices, word)
        if device in chosen:
            raise UsageError(f"'{text}' names {device.tag} twice: name each device once")
        chosen.append(device)
    return tuple(chosen)


def at_least_two(devices: Sequence[Device]) -> None:
    """Raise UsageError where there is no pair to measure."""
    if len(devices) < 2:
        names = ", ".join(device.tag for device in devices) or "none"
        raise UsageError(
            f"measuring needs two devices or more, and this would be {len(devices)} ({names}): name more with "
            "--devices, see what CUDA_VISIBLE_DEVICES hides, or measure CPU cores with --backend host"
        )


def _find(devices: Sequence[Device], word: str) -> Device:
    if word.isdecimal():
        found = [device for device in devices if str(device.index) == (word.lstrip("0") or "0")]
        if not found:
            raise UsageError(f"device {word} is not here: this process may use {_indices(devices)}")
        return found[0]
    found = [device for device in devices if device.uuid.lower().startswith(word.lower())]
    if len(found) != 1:
        why = "is no device index, and no device has such a UUID" if not found else "fits more than one UUID"
        raise UsageError(f"device '{word}' {why}: write {_ways_to_name(devices)}")
    return found[0]


def _indices(devices: Sequence[Device]) -> str:
    return ", ".join(str(device.index) for device in devices) or "none"


def _ways_to_name(devices: Sequence[Device]) -> str:
    if devices and devices[0].is_core:
        return f"core numbers ({_indices(devices)})"
    return f"indices ({_indices(devices)}) or UUIDs from 'nvidia-smi -L'"
