"""One GPU's state at this moment: clocks, heat, power, throttling, errors, and who else is on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from collbench.machine import nvlink
from collbench.machine.limits import THROTTLE_REASONS
from collbench.machine.query import Query
from collbench.model import Health

# nvml.h of r580
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_UNCORRECTED, _VOLATILE = 1, 0


@dataclass(frozen=True, slots=True)
class Glance:
    """What may change while measuring and what it takes little time to ask: °C, throttle reasons, compute processes.

    `processes` are ids as NVML gives them (in a container they may be the host's), None where it does not.
    """

    temperature: int | None = None
    throttle: tuple[str, ...] = ()
    processes: frozenset[int] | None = None


def glance(query: Query, handle: object) -> Glance:
    """Return one GPU's temperature in °C, throttle reasons and compute processes now; None where not told."""
    return Glance(
        temperature=query.integer("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
        throttle=_throttle(query, handle),
        processes=processes(query, handle),
    )


def processes(query: Query, handle: object) -> frozenset[int] | None:
    """Return the ids of the compute processes on one GPU, ours among them; None where NVML does not tell."""
    found = query.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if found is None else frozenset(process.pid for process in found)


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
        memory_used=memory_used(query, handle),
        nvlink_replays=nvlink.replays(query, handle, links),
        nvlink_errors=nvlink.errors(query, handle, links),
        ecc_errors=query.integer("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        processes=_other_processes(query, handle),
        pcie_generation=query.integer("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=query.integer("nvmlDeviceGetCurrPcieLinkWidth", handle),
    )


def _throttle(query: Query, handle: object) -> tuple[str, ...]:
    bits = query.integer("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # the name before r535
        bits = query.integer("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit)


def memory_used(query: Query, handle: object) -> int | None:
    """Return bytes in use. Version 1 of the call counts the driver's own reserve too, so version 2 goes first."""
    version = getattr(query.lib, "nvmlMemory_v2", None)
    memory = None if version is None else query.ask("nvmlDeviceGetMemoryInfo", handle, version)
    return getattr(memory or query.ask("nvmlDeviceGetMemoryInfo", handle), "used", None)


def _other_processes(query: Query, handle: object) -> int | None:
    """Return how many compute processes but this one hold the GPU: right only before anybody opens it for us.

    In a container NVML may give host ids, so a context of ours counts as another: `watch.Occupants` tells them apart.
    """
    found = processes(query, handle)
    return None if found is None else len(found - {os.getpid()})
