"""When a GPU is not well: what throttles it, how hot it is, and who else uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.model.run import Flag, FlagKind, Health

# Bits of nvmlClocksEventReasons (nvml.h, r580) in nvidia-smi's words. "Idle" (bit 0) holds nothing back: left out.
THROTTLE_REASONS = {
    0x002: "applications clocks setting",
    0x004: "SW power cap",
    0x008: "HW slowdown",
    0x010: "sync boost",
    0x020: "SW thermal slowdown",
    0x040: "HW thermal slowdown",
    0x080: "HW power brake slowdown",
    0x100: "display clock setting",
}
# Clocks that somebody set are low on purpose and steady: what is measured is what this machine gives.
_SET_BY_SOMEBODY = ("applications clocks setting", "display clock setting")

# What a process takes that opened a GPU and holds nothing on it: 526 MiB on an H200 with CUDA 13. torch opens all
# GPUs of an NVSwitch machine where it copies between two.
_CONTEXT_BYTES = 640 * 2**20
# The driver's utilization may include the end of our own earlier work; below this, no other process is working.
BUSY_PERCENT = 10

# A rule of thumb for GPUs: under 75 °C is good, over 80 is worth a warning, 84 to 90 throttles.
GOOD_C, HOT_C = 75, 80
TEMPERATURE_RULE = "under 75 °C is good, over 80 °C is hot, 84–90 °C throttles"


def only_opened(state: Health) -> bool:
    """Return whether the processes on a GPU have opened it and no more: they hold no data there and do no work."""
    if not state.processes or state.others_memory is None:
        return False
    return state.others_memory <= state.processes * _CONTEXT_BYTES and (state.utilization or 0) <= BUSY_PERCENT


def holds_back(reason: str) -> bool:
    """Return whether a throttle reason says that the GPU runs slower than it was set to."""
    return reason not in _SET_BY_SOMEBODY


def wrong(position: int, throttle: Sequence[str], temperature: int | None, others: int | None) -> Iterator[Flag]:
    """Yield what is wrong with a device: its reasons to throttle, its temperature in °C, others' processes on it."""
    where = (position,)
    yield from (Flag(FlagKind.THROTTLED, where, reason=reason) for reason in throttle if holds_back(reason))
    if temperature is not None and temperature > HOT_C:
        yield Flag(FlagKind.HOT, where, temperature)
    if others:
        yield Flag(FlagKind.SHARED, where, others)
