"""From a backend's name to an open backend with the facts about its machine. Nothing is substituted silently."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from collbench.backends.protocol import Backend
from collbench.errors import MachineError
from collbench.machine import cores, selection
from collbench.machine.nvml import Nvml
from collbench.model import Device, Health, Machine, Path

NAMES = ("auto", "cuda", "host")


@dataclass(frozen=True, slots=True)
class Opened:
    """An open backend and what is known of its machine. `health` reads the devices' state now, by position.

    `close` releases all of it.
    """

    backend: Backend
    machine: Machine
    paths: tuple[Path, ...]
    health: Callable[[], tuple[Health, ...]]
    close: Callable[[], None]


def resolve(name: str) -> tuple[str, str | None]:
    """Return the backend that `name` stands for, and where auto finds no GPU the reason to tell the user."""
    if name != "auto":
        return name, None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return "host", "CUDA_VISIBLE_DEVICES hides every GPU from this process"
    try:
        with Nvml() as nvml:
            if nvml.devices():
                return "cuda", None
            reason = "the NVIDIA driver shows no GPU to this process"
    except MachineError as error:
        reason = str(error).split(";")[0]
    return "host", reason


def present_devices(name: str) -> tuple[Device, ...]:
    """Return the devices that the backend may use here, in nvidia-smi's order; CUDA_VISIBLE_DEVICES is obeyed."""
    if name == "host":
        return cores.devices()
    with Nvml() as nvml:
        return _visible(nvml)


def open_backend(name: str, wanted: str | None, nccl_path: str | None, *, collectives: bool) -> Opened:
    """Open the cuda or host backend on the devices that `wanted` names. Raises UsageError, MachineError."""
    return _open_host(wanted) if name == "host" else _open_cuda(wanted, nccl_path, collectives=collectives)


def driver_version() -> str:
    """Return the NVIDIA driver's version. Raises MachineError without one."""
    with Nvml() as nvml:
        return nvml.driver_version()


def nccl_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the NCCL_* variables that are set, and no others: they decide what NCCL does, the rest is private."""
    return {name: value for name, value in environment.items() if name.startswith("NCCL_")}


def _here() -> Machine:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Machine(hostname=socket.gethostname(), system=system, cpu=cores.cpu_model())


def _chosen(present: tuple[Device, ...], wanted: str | None) -> tuple[Device, ...]:
    devices = selection.select(present, wanted)
    selection.at_least_two(devices)
    return devices


def _visible(nvml: Nvml) -> tuple[Device, ...]:
    from collbench.backends.cuda import list_gpus

    visible = {gpu.uuid for gpu in list_gpus()}
    return tuple(device for device in nvml.devices() if device.uuid in visible)


def _open_host(wanted: str | None) -> Opened:
    from collbench.backends.host import HostBackend

    devices = _chosen(cores.devices(), wanted)
    backend = HostBackend(devices)
    return Opened(backend, _here(), cores.paths(devices), health=tuple, close=backend.close)


def _open_cuda(wanted: str | None, nccl_path: str | None, *, collectives: bool) -> Opened:
    # Late: the host backend and --help need neither the extension nor a driver.
    from collbench.backends.cuda import CudaBackend
    from collbench.backends.nccl_library import find_nccl, format_version

    with ExitStack() as stack:
        nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
        devices = _chosen(_visible(nvml), wanted)
        nccl = find_nccl(nccl_path) if collectives else None
        backend = CudaBackend(devices, nccl)
        stack.callback(backend.close)
        machine = replace(
            _here(),
            driver=nvml.driver_version(),
            cuda=nvml.cuda_version(),
            nccl=format_version(nccl.version) if nccl else "",
            nccl_path=nccl.path if nccl else "",
            kernel_image=backend.kernel_image,
            virtualization=nvml.virtualization(),
        )
        paths = nvml.paths(devices)
        return Opened(
            backend,
            machine,
            paths,
            health=lambda: tuple(nvml.health(device) for device in devices),
            close=stack.pop_all().close,
        )
