"""Facts about this machine's GPUs and the paths between them, as the driver's management library tells them.

GPUs are numbered as nvidia-smi does (PCI order), whatever CUDA_VISIBLE_DEVICES says. A MIG-enabled GPU is
reported as the whole GPU that it is part of.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from collbench.errors import MachineError
from collbench.machine import health, nvlink, paths
from collbench.machine.cpulist import format_cpus
from collbench.machine.health import Glance
from collbench.machine.query import Query
from collbench.model import Device, Health, Path

_SYSFS = pathlib.Path("/sys/bus/pci/devices")
_BITS = 64
_MASK_WORDS = 64  # 4096 CPUs or NUMA nodes: beyond any machine of today, and NVML zeroes what it does not use
_SCOPE_NODE = 0

# nvmlGpuVirtualizationMode_t in nvidia-smi's words
_VIRTUALIZATION = ("none", "pass-through", "vGPU", "host vGPU", "host vSGA")


class Nvml:
    """An open NVML. Use as a context manager; raises MachineError on entry where there is no driver.

    `lib` stands in for the module pynvml and `sysfs` for the kernel's PCI devices; both are there for tests.
    """

    def __init__(self, lib: Any | None = None, sysfs: pathlib.Path = _SYSFS) -> None:
        self._query = Query(lib if lib is not None else _import_binding())
        self._sysfs = sysfs

    def __enter__(self) -> Self:
        lib = self._query.lib
        try:
            lib.nvmlInit()
        except lib.NVMLError_LibraryNotFound as error:
            raise MachineError(
                "no NVIDIA driver: libnvidia-ml.so.1 cannot be opened; install the driver, or do without a GPU: "
                "--backend host to measure, topo --from FILE to read a saved label matrix"
            ) from error
        except lib.NVMLError as error:
            raise MachineError(
                f"no NVIDIA driver: libnvidia-ml.so.1 is there, but nvmlInit failed: {error}; "
                "see what nvidia-smi says (module not loaded, or library and module of different versions)"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._query.ask("nvmlShutdown")

    def devices(self) -> tuple[Device, ...]:
        """Return every GPU that this process may use, in nvidia-smi's order. Raises MachineError for a lost one."""
        count = self._query.integer("nvmlDeviceGetCount") or 0
        found = ((index, self._handle(index)) for index in range(count))
        return tuple(self._device(index, handle) for index, handle in found if handle is not None)

    def paths(self, devices: Sequence[Device]) -> tuple[Path, ...]:
        """Return the path between each unordered pair of positions (i < j) in `devices`, theory in GB/s."""
        sides = [paths.side(self._query, self._handle_of(device), device) for device in devices]
        pairs = itertools.combinations(range(len(sides)), 2)
        return tuple(paths.between(self._query, (i, j), sides[i], sides[j]) for i, j in pairs)

    def health(self, device: Device) -> Health:
        """Return the state of one GPU now; units in model.Health, None where NVML does not tell."""
        return health.read(self._query, self._handle_of(device))

    def memory_used(self, device: Device) -> int | None:
        """Return the bytes in use on one GPU now, None where NVML does not tell."""
        return health.memory_used(self._query, self._handle_of(device))

    def glance(self, device: Device) -> Glance:
        """Return what of one GPU's state is worth watching while measuring: °C, throttle reasons, process ids."""
        return health.glance(self._query, self._handle_of(device))

    def processes(self, device: Device) -> frozenset[int] | None:
        """Return the ids of the compute processes on one GPU, ours among them; None where NVML does not tell."""
        return health.processes(self._query, self._handle_of(device))

    def in_mig_mode(self, device: Device) -> bool:
        """Return whether a GPU is cut into MIG instances now."""
        modes = self._query.ask("nvmlDeviceGetMigMode", self._handle_of(device))  # current and pending
        return modes is not None and modes[0] == 1

    def driver_version(self) -> str:
        """Return the driver's version, such as "580.159.04"."""
        return self._query.text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str:
        """Return the newest CUDA that the driver supports, such as "13.0"; "" where it does not tell."""
        version = self._query.integer("nvmlSystemGetCudaDriverVersion_v2")
        return "" if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def virtualization(self) -> str:
        """Return how the first GPU is virtualized ("none", "pass-through", "vGPU", …); "" where not told."""
        handle = next((self._handle_of(device) for device in self.devices()), None)
        mode = None if handle is None else self._query.integer("nvmlDeviceGetVirtualizationMode", handle)
        return _VIRTUALIZATION[mode] if mode is not None and mode < len(_VIRTUALIZATION) else ""

    def _handle(self, index: int) -> object | None:
        """Return NVML's handle by index; None for a GPU that this user or container may not touch."""
        lib = self._query.lib
        try:
            handle: object = lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError_NoPermission:
            return None
        except lib.NVMLError as error:
            raise MachineError(f"GPU {index} does not answer NVML: {error}; reset it or reboot the machine") from error
        return handle

    def _handle_of(self, device: Device) -> object:
        handle = self._query.ask("nvmlDeviceGetHandleByUUID", device.uuid)
        if handle is None:
            raise MachineError(f"GPU {device.index} ({device.uuid}) is not on this machine: see nvidia-smi -L")
        return handle

    def _device(self, index: int, handle: object) -> Device:
        pci_id = nvlink.bus_id(self._query.ask("nvmlDeviceGetPciInfo", handle))
        return Device(
            index=index,
            uuid=self._query.text("nvmlDeviceGetUUID", handle),
            name=self._query.text("nvmlDeviceGetName", handle),
            pci_bus_id=pci_id,
            memory_bytes=getattr(self._query.ask("nvmlDeviceGetMemoryInfo", handle), "total", 0),
            numa_node=self._numa_node(handle, pci_id),
            cpu_affinity=format_cpus(_set_bits(self._query.ask("nvmlDeviceGetCpuAffinity", handle, _MASK_WORDS))),
            pcie_generation=self._query.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=self._query.integer("nvmlDeviceGetMaxPcieLinkWidth", handle),
        )

    def _numa_node(self, handle: object, pci_id: str) -> int | None:
        """Return the *host's* node next to the GPU.

        nvmlDeviceGetNumaNodeId would give the node of the GPU's own memory, which only coherent machines have.
        """
        nodes = _set_bits(self._query.ask("nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, _SCOPE_NODE))
        return nodes[0] if len(nodes) == 1 else _sysfs_numa_node(self._sysfs, pci_id)


def _import_binding() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MachineError("cannot read GPU facts: nvidia-ml-py is missing; pip install nvidia-ml-py") from error
    return pynvml


def _set_bits(mask: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of the set bits in NVML's mask of 64-bit words; empty where it gave none."""
    words = enumerate(mask or ())
    return tuple(word * _BITS + bit for word, value in words for bit in range(_BITS) if value >> bit & 1)


def _sysfs_numa_node(sysfs: pathlib.Path, pci_id: str) -> int | None:
    """Return the kernel's NUMA node of a PCI device; it writes -1 (here None) where the firmware does not say."""
    domain, _, rest = pci_id.partition(":")
    try:
        node = int((sysfs / f"{int(domain, 16):04x}:{rest.lower()}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
