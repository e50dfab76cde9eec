"""Whether NCCL used NVLink SHARP (NVLS) in a run: it decides what an all-reduce can reach."""

from __future__ import annotations

from enum import StrEnum

from collbench.model import Run

_SWITCH = "NCCL_NVLS_ENABLE"


class Nvls(StrEnum):
    """What a run tells of it. Where it is possible, NCCL was free to use it."""

    ON = "on"
    OFF = "off"
    POSSIBLE = "possible"
    UNKNOWN = "unknown"


def nvls(run: Run) -> Nvls:
    """Return what a run tells: NCCL's own words first, then the variable, then what the GPUs can do."""
    if any(found.algorithm.startswith("NVLS") for found in run.chosen):
        return Nvls.ON
    if run.chosen or run.settings.environment.get(_SWITCH) == "0" or run.machine.multicast is False:
        return Nvls.OFF
    return Nvls.UNKNOWN if run.machine.multicast is None else Nvls.POSSIBLE
