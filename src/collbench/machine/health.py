"""One GPU's state at this moment: clocks, heat, power, throttling, errors, and who else is on it."""

from __future__ import annotations

import os

from collbench.machine import nvlink
from collbench.machine.query import Query
from collbench.model import Health

# nvml.h of r580
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_UNCORRECTED, _VOLATILE = 1, 0

# Bits of nvmlClocksEventReasons (nvml.h, r580) in nvidia-smi's words. "Idle" (bit 0) holds nothing back: left out.
_THROTTLE_REASONS = {
    0x002: "applications clocks setting",
    0x004: "SW power cap",
    0x008: "HW slowdown",
    0x010: "sync boost",
    0x020: "SW thermal slowdown",
    0x040: "HW thermal slowdown",
    0x080: "HW power brake slowdown",
    0x100: "display clock setting",
}


def read(query: Query, handle: object) -> Health:
    """Return the state of one GPU; a field that NVML does not support on it is None."""
    links = nvlink.active_links(query, handle)
    milliwatts = query.integer("nvmlDeviceGetPowerUsage", handle)
    return Health(
        sm_clock=query.integer("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        memory_clock=query.integer("nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
        temperature=query.integer("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
        power=None if milliwatts is None else milliwatts / 1000,
        throttle=_throttle(query, handle),
        utilization=getattr(query.ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
        memory_used=_memory_used(query, handle),
        nvlink_replays=nvlink.replays(query, handle, links),
        nvlink_errors=nvlink.errors(query, handle, links),
        ecc_errors=query.integer("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        processes=_other_processes(query, handle),
    )


def _throttle(query: Query, handle: object) -> tuple[str, ...]:
    bits = query.integer("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # the name before r535
        bits = query.integer("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return tuple(word for bit, word in _THROTTLE_REASONS.items() if bits & bit)


def _memory_used(query: Query, handle: object) -> int | None:
    """Return bytes in use. Version 1 of the call counts the driver's own reserve too, so version 2 goes first."""
    version = getattr(query.lib, "nvmlMemory_v2", None)
    memory = None if version is None else query.ask("nvmlDeviceGetMemoryInfo", handle, version)
    return getattr(memory or query.ask("nvmlDeviceGetMemoryInfo", handle), "used", None)


def _other_processes(query: Query, handle: object) -> int | None:
    """Return how many compute processes but this one hold the GPU.

    In a container NVML may give host ids: this process then counts as another once it has a CUDA context.
    """
    processes = query.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if processes is None else sum(process.pid != os.getpid() for process in processes)
