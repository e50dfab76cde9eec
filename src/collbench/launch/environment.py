"""What the training job finds in its environment: which devices it sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collbench.model import Device


def for_devices(devices: Sequence[Device], inherited: Mapping[str, str], *, backend: str) -> dict[str, str]:
    """Return the variables to change in `inherited` so that local rank r has `devices[r]`; none that already fit.

    GPUs go by UUID: CUDA's indices differ from nvidia-smi's unless CUDA_DEVICE_ORDER=PCI_BUS_ID. The host backend
    hides every GPU, so that training uses gloo; its cores are pinned by `launch.pin`, not by the environment.
    """
    visible = "" if backend == "host" else ",".join(device.uuid for device in devices)
    wanted = {"CUDA_VISIBLE_DEVICES": visible}
    return {name: value for name, value in wanted.items() if inherited.get(name) != value}
