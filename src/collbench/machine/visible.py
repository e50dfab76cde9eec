"""Which GPUs CUDA_VISIBLE_DEVICES leaves to a process, by CUDA's documented rules: starting CUDA to ask takes 0.5 s.

[CUDA C++ Programming Guide, "CUDA Environment Variables"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.model import Device

NAME = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"  # nvidia-smi's order, too
_UUID = re.compile(r"GPU-[0-9a-f-]*")
_INDEX = re.compile(r"[0-9]{1,9}")


def visible(devices: Sequence[Device], setting: str | None, order: str | None) -> tuple[Device, ...] | None:
    """Return those of all `devices` that CUDA shows, in the order of `devices`; None where only CUDA can tell.

    `setting` and `order` are the two variables, None where unset; `devices` are in nvidia-smi's order. What the guide
    does not say is left to CUDA: indices among unlike GPUs, which it numbers by its own guess of their speed, and
    words that mix forms. Raises UsageError for MIG devices.
    """
    if setting is None:
        return tuple(devices)
    words = [word.strip() for word in setting.split(",")]
    mig = next((word for word in words if word.startswith("MIG-")), None)
    if mig is not None:
        raise UsageError(
            f"{NAME} names the MIG device {mig}: MIG devices cannot talk P2P, and collbench chooses whole GPUs: "
            "name those, or unset it"
        )
    if words[0].startswith("GPU-"):
        found = _by_uuid(devices, words)
    else:
        alike = order == _BY_BUS or len({device.name for device in devices}) < 2
        found = _by_index(devices, words, alike=alike)
    return None if found is None else tuple(device for device in devices if device in found)


def _by_uuid(devices: Sequence[Device], words: Sequence[str]) -> list[Device] | None:
    found: list[Device] = []
    for word in words:
        if not _UUID.fullmatch(word):
            return None
        named = [device for device in devices if device.uuid.startswith(word)]
        if len(named) != 1:
            break  # the first that is invalid ends the list
        if named[0] in found:
            return []
        found += named
    return found


def _by_index(devices: Sequence[Device], words: Sequence[str], *, alike: bool) -> list[Device] | None:
    found: list[Device] = []
    for word in words:
        if not word[:1].isdigit():
            return found if not word.startswith("GPU-") else None  # "", "-1", "NoDevFiles": what follows is hidden
        if not _INDEX.fullmatch(word) or not alike:
            return None
        if int(word) >= len(devices):
            break
        if devices[int(word)] in found:
            return []  # as CUDA does with one that is named twice; torch.cuda counts so, too
        found.append(devices[int(word)])
    return found
