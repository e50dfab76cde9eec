"""Whether NCCL may let the NVSwitch reduce (NVLS), in words: it decides what an all-reduce can reach."""

from __future__ import annotations

from collbench.model import Run

_SWITCH = "NCCL_NVLS_ENABLE"


def nvls(run: Run) -> str:
    """Return what is known of NVLS, "" without NCCL or where nothing is: off, not supported, possible, or chosen."""
    setting = run.settings.environment.get(_SWITCH)
    if not run.machine.nccl:
        return ""
    if setting == "0":
        return f"NVLS off ({_SWITCH}=0)"
    if run.machine.multicast is False:
        return "NVLS not supported by these GPUs"
    used = sum(found.algorithm.startswith("NVLS") for found in run.chosen)
    if run.chosen:
        return f"NVLS {'chosen for ' + str(used) if used else 'not chosen for any'} of {len(run.chosen)} messages"
    if run.machine.multicast is None:
        return f"{_SWITCH}={setting}" if setting else ""
    asked = f" ({_SWITCH}={setting})" if setting else ""
    return f"NVLS possible{asked}: the GPUs support multicast, NCCL decides"
