"""Facts about the GPUs, from NVML alone: no CUDA context is made, nothing is changed."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from collbench.doctor.facts import Driver, Gpu
from collbench.errors import MachineError
from collbench.machine import health, nvlink
from collbench.machine.numa import read
from collbench.machine.nvml import Nvml
from collbench.machine.query import Query
from collbench.model import Device

# Any display or 3D controller of NVIDIA's [PCI IDs: vendor 10de; class codes 0300, 0302].
_VENDOR, _CLASSES = "0x10de", ("0x0300", "0x0302")
_UNCORRECTED, _VOLATILE = 1, 0  # as machine/health.py has them [nvml.h, r580]


def driver(root: pathlib.Path, binding: Callable[[], Any]) -> Driver:
    """Return what NVML says, or in `error` why it says nothing. `binding` gives the module pynvml; `root` holds sys/.

    A GPU that was lost makes the whole of NVML's word an error: its fix comes first.
    """
    tool = shutil.which("nvidia-smi") or ""
    on_the_bus = _count_on_the_bus(root)
    try:
        lib = binding()
        with Nvml(lib, root / "sys/bus/pci/devices") as nvml:
            devices = nvml.devices()
            return Driver(
                version=nvml.driver_version(),
                cuda=nvml.cuda_version(),
                gpus=tuple(_gpu(Query(lib), device) for device in devices),
                paths=nvml.paths(devices),
                virtualization=nvml.virtualization(),
                on_the_bus=on_the_bus,
                nvidia_smi=tool,
            )
    except MachineError as error:
        return Driver(error=str(error), on_the_bus=on_the_bus, nvidia_smi=tool)


def binding() -> Any:
    """Return the module pynvml. Raises MachineError."""
    try:
        import pynvml
    except ImportError as error:
        raise MachineError("cannot read GPU facts: nvidia-ml-py is missing; pip install nvidia-ml-py") from error
    return pynvml


def _gpu(query: Query, device: Device) -> Gpu:
    handle = query.ask("nvmlDeviceGetHandleByUUID", device.uuid)
    if handle is None:
        return Gpu(device)
    glance = health.glance(query, handle)
    rows = query.ask("nvmlDeviceGetRemappedRows", handle)  # Ampere and newer; before, pages are retired
    pending = rows[2] if rows else query.integer("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    mig = query.ask("nvmlDeviceGetMigMode", handle)
    return Gpu(
        device=device,
        compute_mode=query.integer("nvmlDeviceGetComputeMode", handle),
        persistence=_flag(query.integer("nvmlDeviceGetPersistenceMode", handle)),
        mig=_flag(mig[0] if mig else None),
        ecc_errors=query.integer("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        repair_pending=_flag(pending),
        repair_failed=_flag(rows[3] if rows else None),
        fabric_state=_fabric_state(query, handle),
        links_up=len(nvlink.active_links(query, handle)),
        processes=None if glance.processes is None else len(glance.processes),
        memory_used=health.memory_used(query, handle),
        temperature=glance.temperature,
        throttle=glance.throttle,
    )


def _flag(number: int | None) -> bool | None:
    return None if number is None else bool(number)


def _fabric_state(query: Query, handle: object) -> int | None:
    """Return nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed [nvml.h, r580]."""
    structure = getattr(query.lib, "c_nvmlGpuFabricInfo_t", None)
    if structure is None:
        return None
    info = structure()
    # byref: the binding hands on what it gets, and a structure by value ends the process [nvidia-ml-py 13, 4 × H200].
    told = query.ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
    return None if told is None else int(info.state)


def _count_on_the_bus(root: pathlib.Path) -> int | None:
    """Return how many NVIDIA GPUs the kernel has on PCI; None where it shows no PCI bus."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return None
    return sum(
        read(device / "vendor").strip() == _VENDOR and read(device / "class").startswith(_CLASSES)
        for device in folder.iterdir()
    )
