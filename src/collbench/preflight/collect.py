"""Gathers the facts that `doctor` judges: in at most a second, without a CUDA context, changing nothing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import platform
import re
import resource
import shutil
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import metadata
from typing import Any

from collbench.machine import kernel, nvml
from collbench.machine.kernel import (
    FOLDER,
    available_bytes,
    cgroup_folders,
    entries,
    kernel_bus_id,
    read,
    read_ports,
    usable_nodes,
)
from collbench.machine.nccl import configured, find_nccl, wheel_library
from collbench.machine.nvml import Nvml, Query
from collbench.machine.variables import recorded
from collbench.model.errors import MachineError, NoDriver
from collbench.model.operations import format_version
from collbench.model.run import Device, capabilities
from collbench.preflight.findings import Driver, GpuState, Host, MachineFacts, Slot, Software, Space

# The PCIe path up from a GPU: its IOMMU group, and which bridges send peer traffic to the CPU (ACS).

# Extended capabilities begin at 0x100: id in 16 bits, version in 4, the next one's offset in 12 [PCIe 5.0, 7.6.3].
_FIRST_EXTENDED, _ACS = 0x100, 0x000D
# ACS control register, 6 bytes into it: P2P request redirect, P2P completion redirect, upstream forwarding
# [PCIe 5.0, 7.7.11.3]. Source validation (bit 0) redirects nothing.
_CONTROL, _REDIRECTS = 6, 0b0011100
_MAX_CAPABILITIES = 64  # a broken list may run in circles


_PCI_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # as the kernel writes it


def pci_device(root: pathlib.Path, pci_bus_id: str) -> pathlib.Path | None:
    """Return the folder of a PCI device in sysfs, below those of the bridges above it; None if it is not there."""
    try:
        return (root / "sys/bus/pci/devices" / kernel_bus_id(pci_bus_id)).resolve(strict=True)
    except (ValueError, OSError, RuntimeError):
        return None


def slot(root: pathlib.Path, pci_bus_id: str) -> Slot:
    """Return the PCIe path up from one GPU.

    Its PCI bus id is as NVML writes it ("00000000:00:06.0"); `root` holds sys/.
    """
    device = pci_device(root, pci_bus_id)
    if device is None:
        return Slot()
    registers = {bridge.name: acs_control(bridge) for bridge in device.parents if _PCI_BUS_ID.fullmatch(bridge.name)}
    return Slot(
        iommu_type=read(device / "iommu_group/type").strip(),
        redirecting=tuple(name for name, control in registers.items() if (control or 0) & _REDIRECTS),
        unreadable=sum(control is None for control in registers.values()),
    )


def acs_control(bridge: pathlib.Path) -> int | None:
    """Return a bridge's ACS control bits, 0 if it has none; None where only root may read them."""
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(config) <= _FIRST_EXTENDED:
        return None  # the kernel gives other users the first 64 bytes
    offset = _FIRST_EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if offset < _FIRST_EXTENDED or offset + 8 > len(config):
            return 0
        (head,) = struct.unpack_from("<I", config, offset)
        if head & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, offset + _CONTROL)[0])
        offset = head >> 20
    return 0


# Libraries: NCCL, the driver's CUDA library, torch. Torch is not imported: that takes seconds.

_TORCH_CUDA = re.compile(r"^cuda\b[^=\n]*= *['\"]([0-9.]+)['\"]", re.MULTILINE)
_NCCL_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([0-9.]+)\.dist-info")


def software(nccl: str | None) -> Software:
    """Return what is installed; `nccl` is the library that the user named, None if none was."""
    try:  # opened as by a measurement, but only asked for its version
        library = find_nccl(nccl)
        timed = {"nccl": format_version(library.version), "nccl_path": library.path}
    except MachineError as error:
        timed = {"nccl_error": error.problem, "nccl_advice": error.advice}
    wheel = wheel_library()
    libcuda, libcuda_error = _libcuda()
    torch, torch_cuda = torch_build()
    return Software(
        **timed,
        wheel="" if wheel is None else str(wheel),
        wheel_version=_wheel_version(wheel),
        libcuda=libcuda,
        libcuda_error=libcuda_error,
        torch=torch,
        torch_cuda=torch_cuda,
    )


def torch_build() -> tuple[str, str]:
    """Return torch's version and the CUDA that it was built with, from torch's files; "" if there is none."""
    try:
        version = metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return "", ""
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else pathlib.Path()
    match = _TORCH_CUDA.search(read(folder / "version.py"))
    return version, match[1] if match else ""


def _wheel_version(wheel: pathlib.Path | None) -> str:
    """Return what pip calls the wheel that holds a library; "" if there is none, or several that would contradict.

    The folder's name says it: asking importlib.metadata would read every installed package.
    """
    packages = wheel.parents[3] if wheel else pathlib.Path()  # …/nvidia/nccl/lib/libnccl.so.2
    versions = [match[1] for folder in packages.glob("*.dist-info") if (match := _NCCL_WHEEL.fullmatch(folder.name))]
    return versions[0] if wheel and len(versions) == 1 else ""


def _libcuda() -> tuple[str, str]:
    """Return the CUDA version of libcuda.so.1, or why it cannot be opened. Opening it starts nothing."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL("libcuda.so.1")
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return "", str(error)
    return ("", f"cuDriverGetVersion: error {failed}") if failed else (nvml.format_cuda_version(version.value), "")


# GPUs, as NVML reports them.


def read_driver(root: pathlib.Path, binding: Callable[[], Any]) -> Driver:
    """Return NVML's facts, or in `error` why there are none. `binding` gives the module pynvml; `root` holds sys/.

    A GPU that was lost makes everything that NVML reports an error: its fix comes first.
    """
    tool = shutil.which("nvidia-smi") or ""
    on_the_bus = kernel.gpus_on_pci(root)
    try:
        with Nvml(binding(), root / "sys/bus/pci/devices") as opened:
            devices = opened.devices()
            return Driver(
                version=opened.driver_version(),
                cuda=opened.cuda_version(),
                gpus=tuple(_gpu(opened, device) for device in devices),
                paths=opened.paths(devices),
                virtualization=opened.virtualization(),
                on_the_bus=on_the_bus,
                nvidia_smi=tool,
            )
    except MachineError as error:
        missing = isinstance(error, NoDriver)
        return Driver(error=error.problem, advice=error.advice, missing=missing, on_the_bus=on_the_bus, nvidia_smi=tool)


def _gpu(opened: Nvml, device: Device) -> GpuState:
    asked = opened.gpu(device)
    rows = asked.ask("nvmlDeviceGetRemappedRows")  # Ampere and newer; before, pages are retired
    pending = rows[2] if rows else asked.integer("nvmlDeviceGetRetiredPagesPendingStatus")
    mig = asked.ask("nvmlDeviceGetMigMode")
    return GpuState(
        device=device,
        health=opened.health(device),
        compute_mode=asked.integer("nvmlDeviceGetComputeMode"),
        persistence=_flag(asked.integer("nvmlDeviceGetPersistenceMode")),
        mig=_flag(mig[0] if mig else None),
        repair_pending=_flag(pending),
        repair_failed=_flag(rows[3] if rows else None),
        fabric_state=_fabric_state(asked),
        links_up=len(nvml.active_links(asked)),
        bar1_bytes=getattr(asked.ask("nvmlDeviceGetBAR1MemoryInfo"), "bar1Total", None),
    )


def _flag(number: int | None) -> bool | None:
    return None if number is None else bool(number)


def _fabric_state(asked: Query) -> int | None:
    """Return nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed [nvml.h, r580]."""
    structure = getattr(asked.lib, "c_nvmlGpuFabricInfo_t", None)
    if structure is None:
        return None
    info = structure()
    # byref: the binding passes its argument on, and a structure by value ends the process [nvidia-ml-py 13, 4 × H200].
    answer = asked.ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info))
    return None if answer is None else int(info.state)


# The operating system around the process. `root` holds proc/, sys/, …

_REGISTRY = re.compile(r'^RegistryDwords: *"(.*)"$', re.MULTILINE)
# Variables that the report judges beside those that a run records.
_JUDGED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_PRELOAD", "COLLBENCH_NCCL", kernel.STEP_GPUS)


def host(root: pathlib.Path, environment: Mapping[str, str], gpus: Iterable[Device]) -> Host:
    """Return the facts about this process's host; a file that cannot be read leaves its fact unknown."""
    allowed = os.sched_getaffinity(0)
    gpus, cards = list(gpus), tuple(sorted(card.name for card in entries(root / FOLDER)))
    iommus, modules = root / "sys/class/iommu", read(root / "proc/driver/nvidia/version")
    return Host(
        name=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        shm=space(root / "dev/shm"),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        cpus=tuple(sorted(allowed)),
        cpu_quota=cpu_quota(root),
        memory_nodes=usable_nodes(root, allowed),
        memory_available=available_bytes(root),
        container=kernel.container_kind(root, environment),
        hypervisor=hypervisor(root),
        iommu=bool(entries(iommus)) if iommus.is_dir() else None,
        iommu_parameters=tuple(word for word in read(root / "proc/cmdline").split() if "iommu" in word),
        slots={gpu.index: slot(root, gpu.pci_bus_id) for gpu in gpus},
        network_cards=cards,
        near_cards=read_affinity(root, {gpu.index: gpu.pci_bus_id for gpu in gpus}, cards),
        network_ports=read_ports(root),
        peermem=any((root / f"sys/module/{name}").is_dir() for name in ("nvidia_peermem", "nv_peer_mem")),
        open_modules="Open Kernel Module" in modules if "Kernel Module" in modules else None,
        registry="".join(_REGISTRY.findall(read(root / "proc/driver/nvidia/params"))),
    )


def space(folder: pathlib.Path) -> Space | None:
    """Return the size of the file system that holds a folder; None if there is none."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return Space(usage.total, usage.free)


def hypervisor(root: pathlib.Path) -> str:
    """Return the virtual machine's maker or kind, "" on bare metal."""
    if (root / "sys/hypervisor/type").exists():
        return read(root / "sys/hypervisor/type").strip()
    flags = next((line for line in read(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    if "hypervisor" not in flags.split():
        return ""
    names = [read(root / f"sys/class/dmi/id/{name}").strip() for name in ("sys_vendor", "product_name")]
    return " ".join(filter(None, names)) or "unknown hypervisor"


def cpu_quota(root: pathlib.Path) -> float | None:
    """Return the CPUs' worth of time that the tightest cgroup allows this process; None if none limits it."""
    quotas = []
    for unified, folder in cgroup_folders(root, "cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = read(folder / "cpu.max").split() if unified else [read(folder / file).strip() for file in files]
        quotas.append(_quota(texts))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(texts: Collection[str]) -> float | None:
    """Return quota / period of two numbers in µs; None for "max", -1 and what is no number."""
    try:
        quota, period = (int(text) for text in texts)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def read_affinity(root: pathlib.Path, bus_ids: Mapping[int, str], cards: Iterable[str]) -> dict[int, dict[str, str]]:
    """Return how near cards are to GPUs, in nvidia-smi's words; what is unknown is left out.

    GPUs are given by index with their PCI bus ids as NVML has them; `root` holds sys/.
    """
    folders = {card: _resolved(root / FOLDER / card / "device") for card in cards}
    near: dict[int, dict[str, str]] = {}
    for gpu, bus_id in bus_ids.items():
        gpu_folder = pci_device(root, bus_id)
        distances = {
            card: _nearness(gpu_folder, folder)
            for card, folder in folders.items()
            if gpu_folder is not None and folder is not None
        }
        near[gpu] = {card: how for card, how in distances.items() if how}
    return near


def _resolved(path: pathlib.Path) -> pathlib.Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _nearness(first: pathlib.Path, second: pathlib.Path) -> str:
    """Return how near two PCI devices are by their resolved folders in sysfs, in nvidia-smi's words; "" if unknown."""
    bus_paths = [[part for part in path.parts if _PCI_BUS_ID.fullmatch(part)] for path in (first, second)]
    shared = 0
    for mine, theirs in zip(*bus_paths, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared and shared < min(map(len, bus_paths)):
        # Bridges between each device and the bridge that both are under: one level is the same switch.
        return "PIX" if max(len(bus_path) - shared - 1 for bus_path in bus_paths) <= 1 else "PXB"
    bridges = [
        next((part for part in path.parts if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)), "")
        for path in (first, second)
    ]
    if bridges[0] and bridges[0] == bridges[1]:
        return "PHB"
    nodes = [read(path / "numa_node").strip() for path in (first, second)]
    if not all(re.fullmatch("[0-9]+", node, re.ASCII) for node in nodes):
        return ""  # -1: firmware does not say
    return "NODE" if nodes[0] == nodes[1] else "SYS"


def examine(
    backend: str,
    environment: Mapping[str, str],
    nccl: str | None = None,
    root: pathlib.Path = pathlib.Path("/"),
    binding: Callable[[], Any] = nvml.import_binding,
) -> MachineFacts:
    """Return the facts for the cuda or the host backend; `root` and `binding` (the module pynvml) are for tests."""
    can = capabilities(backend)
    driver = read_driver(root, binding) if can.nvml else Driver()
    if can.nccl:
        libraries = software(nccl)
    else:
        version, cuda = torch_build()
        libraries = Software(torch=version, torch_cuda=cuda)
    return MachineFacts(
        backend=backend,
        host=host(root, environment, [gpu.device for gpu in driver.gpus]),
        driver=driver,
        software=libraries,
        environment=recorded(environment, torch=True)
        | {name: environment[name] for name in _JUDGED if name in environment},
        configured=configured(root, environment) if can.nccl else (),
    )
