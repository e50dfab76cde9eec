"""Which GPUs CUDA_VISIBLE_DEVICES leaves, by CUDA's rules and without asking CUDA: that would start the driver. Pure.

[CUDA C++ programming guide, "CUDA environment variables"]: the list is read up to the first entry that names no
device; a UUID may be shortened as long as it is unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.model import Device


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that are left, in CUDA's order, and what is wrong with the list ("" where nothing is)."""

    devices: tuple[Device, ...]
    problem: str = ""


def visible(devices: Sequence[Device], text: str | None) -> Visible:
    """Return what a value of CUDA_VISIBLE_DEVICES leaves of these devices; None is an unset variable."""
    if text is None:
        return Visible(tuple(devices))
    chosen: list[Device] = []
    words = [word.strip() for word in text.split(",")]
    if words in ([""], ["-1"]):
        return Visible(())
    for word in words:
        if word.startswith("MIG-"):
            return Visible(tuple(chosen), f"'{word}' is a part of a GPU (MIG), and collbench measures whole ones")
        found = _named(devices, word)
        if len(found) != 1:
            why = "names no GPU here" if not found else "fits several GPUs"
            return Visible(tuple(chosen), f"'{word}' {why}, and CUDA reads no further")
        if found[0] in chosen:
            return Visible((), f"'{word}' names {found[0].tag} again, and CUDA then shows no GPU at all")
        chosen.append(found[0])
    return Visible(tuple(chosen))


def _named(devices: Sequence[Device], word: str) -> list[Device]:
    """Return the devices that one entry means: an index, or the beginning of a UUID."""
    if word.isascii() and word.isdigit():
        return [device for position, device in enumerate(devices) if position == int(word)]
    return [device for device in devices if word and device.uuid.lower().startswith(word.lower())]
