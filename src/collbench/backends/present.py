"""One look at the machine before anything is chosen on it: one start of NVML (0.1 s), and none of CUDA (0.5 s)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collbench.errors import MachineError
from collbench.machine import cores
from collbench.machine.nvml import Nvml
from collbench.machine.visible import NAME, ORDER, visible
from collbench.model import Device, Health


@dataclass(frozen=True, slots=True)
class Present:
    """The devices that this process may use, in nvidia-smi's order, and what NVML says of them now.

    `hidden` are GPUs that CUDA_VISIBLE_DEVICES keeps from this process, and `mig` those in MIG mode, which are not
    among `devices`: their instances have no P2P. `states` are by UUID, of all of them, as nothing of ours is on them.
    """

    backend: str
    devices: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    mig: tuple[Device, ...] = ()
    driver: str = ""
    states: Mapping[str, Health] = field(default_factory=dict)

    @property
    def every(self) -> tuple[Device, ...]:
        """All that CUDA shows, those in MIG mode, too, in nvidia-smi's order."""
        return tuple(sorted(self.devices + self.mig, key=lambda device: device.index))

    @property
    def among(self) -> str:
        """What limits the choice, as a clause: "among the 2 that CUDA_VISIBLE_DEVICES shows"; "" for nothing."""
        return f"among the {len(self.devices) + len(self.mig)} that {NAME} shows" if self.hidden else ""


def look(name: str) -> Present:
    """Return what the backend finds here: "auto" takes GPUs alone. Raises MachineError, and UsageError for MIG."""
    if name == "host":
        return Present("host", cores.devices())
    setting = os.environ.get(NAME)
    try:
        found = _look(setting)
    except MachineError as error:
        if name == "cuda":
            raise
        raise _no_gpu(str(error).split(";")[0]) from error
    if not found.devices and not found.mig:
        hides = f"{NAME}='{setting}' hides every GPU from this process"
        raise _no_gpu(hides if setting is not None else "the NVIDIA driver shows no GPU to this process")
    return found


def may_use(nvml: Nvml) -> tuple[Device, ...]:
    """Return the GPUs that CUDA shows to this process, in nvidia-smi's order. Starts CUDA only where it must be asked.

    Raises UsageError for MIG devices, MachineError.
    """
    every = nvml.devices()
    found = visible(every, os.environ.get(NAME), os.environ.get(ORDER))
    if found is not None:
        return found
    from collbench.backends.cuda import list_gpus  # late: the extension

    shown = {gpu.uuid for gpu in list_gpus()}
    return tuple(device for device in every if device.uuid in shown)


def _look(setting: str | None) -> Present:
    with Nvml() as nvml:
        every = nvml.devices()
        seen = every if setting is None else may_use(nvml)
        mig = tuple(device for device in seen if nvml.in_mig_mode(device))
        states = {device.uuid: nvml.health(device) for device in every}
        return Present(
            backend="cuda",
            devices=tuple(device for device in seen if device not in mig),
            hidden=tuple(device for device in every if device not in seen),
            mig=mig,
            driver=nvml.driver_version(),
            states={uuid: replace(state, others_memory=state.memory_used) for uuid, state in states.items()},
        )


def _no_gpu(why: str) -> MachineError:
    return MachineError(f"no GPU to train on: {why}; write --backend host to train on CPU cores with gloo")
