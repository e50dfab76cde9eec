"""Where a GPU's NVLinks end, how many join two GPUs, how fast one is, and what went wrong on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.machine.query import Query

# nvml.h of r580; the binding's own names differ between releases.
_MAX_LINKS = 36
_FIELD_LINK_COUNT = 91
_FIELD_LINE_RATE_COMMON = 90
_FIELD_LINE_RATE = 164
_DEVICE_GPU, _DEVICE_SWITCH = 0, 2
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3
_FIELD_REPLAY, _FIELD_RECOVERY, _FIELD_CRC = 161, 162, 163
# What an NVSwitch that a virtual machine may not see gives as its PCI id [H200x4].
_HIDDEN_REMOTE = "FFFFFFFF:FF:FF.0"


@dataclass(frozen=True, slots=True)
class Ends:
    """Active NVLinks of one GPU: how many end at each neighbour's PCI bus id, and how many at a switch."""

    neighbours: Mapping[str, int]
    switch: int


def active_links(query: Query, handle: object) -> tuple[int, ...]:
    """Return the numbers of the links that are up; empty for a GPU without NVLink."""
    count = query.field(handle, _FIELD_LINK_COUNT)
    links = range(_MAX_LINKS if count is None else count)
    return tuple(link for link in links if query.ask("nvmlDeviceGetNvLinkState", handle, link) == 1)


def ends(query: Query, handle: object, links: Sequence[int]) -> Ends:
    """Return where the given active links of one GPU end."""
    neighbours: Counter[str] = Counter()
    switch = 0
    for link in links:
        remote = bus_id(query.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        kind = query.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == _DEVICE_SWITCH or remote == _HIDDEN_REMOTE:
            switch += 1
        elif kind in (_DEVICE_GPU, None) and remote:
            neighbours[remote] += 1
    return Ends(neighbours, switch)


def joining(first: Ends, first_id: str, second: Ends, second_id: str) -> tuple[int, bool]:
    """Return the links between two GPUs and whether they pass a switch; both sides must be up to count."""
    direct = min(first.neighbours.get(second_id, 0), second.neighbours.get(first_id, 0))
    if direct:
        return direct, False
    switched = min(first.switch, second.switch)
    return switched, switched > 0


def line_rate(query: Query, handle: object, links: Sequence[int]) -> int | None:
    """Return the slowest of the given links' line rate in MB/s as NVML reports it; None where it does not."""
    rates = query.fields(handle, [(_FIELD_LINE_RATE, link) for link in links])
    known = [rate for rate in rates if rate]
    return min(known) if known else query.field(handle, _FIELD_LINE_RATE_COMMON) or None


def bus_id(pci_info: object | None) -> str:
    """Return a PCI id as nvidia-smi writes it ("00000000:00:06.0"), "" where NVML gave none."""
    value = getattr(pci_info, "busId", "")
    return (value.decode() if isinstance(value, bytes) else str(value)).upper()


def replays(query: Query, handle: object, links: Sequence[int]) -> int | None:
    """Return replayed packets summed over the given links since driver load; None where not counted."""
    return _sum_counters(query, handle, links, (_FIELD_REPLAY,), (_REPLAY,))


def errors(query: Query, handle: object, links: Sequence[int]) -> int | None:
    """Return CRC errors and recoveries summed over the given links since driver load; None where not counted."""
    return _sum_counters(query, handle, links, (_FIELD_RECOVERY, _FIELD_CRC), (_RECOVERY, _CRC_FLIT, _CRC_DATA))


def _sum_counters(
    query: Query, handle: object, links: Sequence[int], fields: tuple[int, ...], counters: tuple[int, ...]
) -> int | None:
    """Sum over links by field (Hopper and newer), else by the older call, which newer drivers drop."""
    by_field = query.fields(handle, [(field, link) for link in links for field in fields])
    known = [count for count in by_field if count is not None]
    if not known:
        older = (query.integer("nvmlDeviceGetNvLinkErrorCounter", handle, link, c) for link in links for c in counters)
        known = [count for count in older if count is not None]
    return sum(known) if known else None
