"""Which device of one run is which of another: by UUID where it is the same GPU, else by its place in the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.model import Device, Run


@dataclass(frozen=True, slots=True)
class Match:
    """What stands for what: `positions` are the new run's positions, each with its position in the base.

    `by_uuid` counts those that are the very same device; the others were matched by their order in the list. `told`
    says so in one line. A device without a counterpart is in no pair.
    """

    positions: dict[int, int]
    by_uuid: int
    told: str


def match_devices(base: Run, new: Run) -> Match:
    """Return the devices of two runs as counterparts of each other."""
    places = {device.uuid: place for place, device in enumerate(base.devices)}
    same = {place: places[device.uuid] for place, device in enumerate(new.devices) if device.uuid in places}
    taken = set(same.values())
    left = [place for place in range(len(base.devices)) if place not in taken]
    rest = [place for place in range(len(new.devices)) if place not in same]
    by_order = dict(zip(rest, left, strict=False))
    return Match(same | by_order, len(same), _told(base.devices, new.devices, same, by_order))


def _told(base: Sequence[Device], new: Sequence[Device], same: dict[int, int], by_order: dict[int, int]) -> str:
    if not by_order:
        extra = _unmatched(base, new, same)
        return f"matched by UUID{f'; {extra}' if extra else ''}"
    tags = [(base[old].tag, new[place].tag) for place, old in by_order.items()]
    telling = same or any(old != now for old, now in tags)
    pairs = f": {', '.join(f'{old} = {now}' for old, now in tags)}" if telling else ""
    extra = _unmatched(base, new, same | by_order)
    others = "other devices, matched" if not same else f"{len(same)} matched by UUID, the others"
    return f"{others} by their order{pairs}{f'; {extra}' if extra else ''}"


def _unmatched(base: Sequence[Device], new: Sequence[Device], matched: dict[int, int]) -> str:
    gone = [device.tag for place, device in enumerate(base) if place not in matched.values()]
    come = [device.tag for place, device in enumerate(new) if place not in matched]
    words = [f"only in the base: {', '.join(gone)}"] if gone else []
    return "; ".join(words + ([f"only in the new run: {', '.join(come)}"] if come else []))
