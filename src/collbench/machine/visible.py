"""Which GPUs CUDA_VISIBLE_DEVICES leaves to a process, by CUDA's documented rules: starting CUDA to ask takes 0.5 s.

[CUDA C++ Programming Guide, "CUDA Environment Variables"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.model import Device

NAME = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"  # nvidia-smi's order, too
_UUID = re.compile(r"GPU-[0-9a-f-]*")
_INDEX = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Seen:
    """The GPUs that a list leaves, in its own order, and what is wrong with the list ("" where nothing is).

    `certain` is False where the guide does not say, so that only CUDA can tell: then `devices` are nvidia-smi's
    reading of the words before that.
    """

    devices: tuple[Device, ...]
    problem: str = ""
    certain: bool = True


def visible(devices: Sequence[Device], setting: str | None, order: str | None) -> tuple[Device, ...] | None:
    """Return those of all `devices` that CUDA shows, in the order of `devices`; None where only CUDA can tell.

    Arguments as `read`'s. Raises UsageError for MIG devices.
    """
    mig = next((word for word in _words(setting or "") if word.startswith("MIG-")), None)
    if mig is not None:
        raise UsageError(
            f"{NAME} names the MIG device {mig}: MIG devices cannot talk P2P, and collbench chooses whole GPUs: "
            "name those, or unset it"
        )
    seen = read(devices, setting, order)
    return tuple(device for device in devices if device in seen.devices) if seen.certain else None


def read(devices: Sequence[Device], setting: str | None, order: str | None) -> Seen:
    """Return what the variable leaves of all `devices`, which are in nvidia-smi's order.

    `setting` and `order` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset. What the guide does not say
    is not certain: indices among unlike GPUs, which CUDA numbers by its own guess of their speed, and words that mix
    forms.
    """
    if setting is None:
        return Seen(tuple(devices))
    words = _words(setting)
    if words in ([""], ["-1"]):
        return Seen(())
    by_uuid = words[0].startswith("GPU-")
    alike = by_uuid or order == _BY_BUS or len({device.name for device in devices}) < 2
    return _read(devices, words, by_uuid=by_uuid, alike=alike)


def _read(devices: Sequence[Device], words: Sequence[str], *, by_uuid: bool, alike: bool) -> Seen:
    found: list[Device] = []
    for word in words:
        if word.startswith("MIG-"):
            return Seen(tuple(found), f"'{word}' is a part of a GPU (MIG), and collbench measures whole ones")
        if not (_UUID if by_uuid else _INDEX).fullmatch(word) and (by_uuid or _may_mean_one(word)):
            return Seen(tuple(found), f"'{word}' is {'no UUID' if by_uuid else 'no index'}", certain=False)
        named = _named(devices, word)
        if len(named) != 1:
            why = f"'{word}' {'fits several GPUs' if named else 'names no GPU here'}, and CUDA reads no further"
            return Seen(tuple(found), why, certain=alike or not found)
        if named[0] in found:  # torch.cuda counts so, too
            return Seen((), f"'{word}' names {named[0].tag} again, and CUDA then shows no GPU at all")
        found += named
    return Seen(tuple(found), certain=alike)


def _words(setting: str) -> list[str]:
    return [word.strip() for word in setting.split(",")]


def _may_mean_one(word: str) -> bool:
    """True for what may be an index after all, or a UUID behind one; "", "-1" and "NoDevFiles" end the list."""
    return word[:1].isdigit() or word.startswith("GPU-")


def _named(devices: Sequence[Device], word: str) -> list[Device]:
    """Return the devices that an index means, or a UUID or its beginning."""
    if _INDEX.fullmatch(word):
        return list(devices[int(word) : int(word) + 1])
    return [device for device in devices if _UUID.fullmatch(word) and device.uuid.startswith(word)]
