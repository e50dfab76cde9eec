"""NVML's data about this machine: GPUs, their health, NVLinks, and the paths between GPUs."""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from collbench.machine import kernel, theory
from collbench.machine.kernel import format_cpus, kernel_bus_id
from collbench.machine.labels import PEER_STATES, UNKNOWN
from collbench.model.errors import MachineError, NoDriver
from collbench.model.run import Device, Health, Path, PeerReadWrite, PeerStatus

# nvmlValueType_t → the member of the value union that holds it [nvml.h, r580]
_UNION_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# Spare entries behind those that are asked for: r580's library writes behind the last of NVLink's error counters, seen
# on 4 × H200 (580.159.04) with blocks of memory that end at a guard page; without, one run in some hundreds ended with
# "free(): invalid next size" [benchmarks/README.md].
_ROOM = 128


class Query:
    """Asks an NVML binding (the module pynvml, or a double of it), about one GPU where it has a handle.

    "Not supported" is an everyday answer (virtual machines, MIG, GeForce), so it never raises here. Untyped outside,
    typed from here on.
    """

    def __init__(self, lib: Any, handle: object | None = None) -> None:
        self.lib, self.handle = lib, handle

    def of(self, handle: object) -> Query:
        """Return the same for one GPU: its handle is then the first argument of each call."""
        return Query(self.lib, handle)

    def ask(self, function: str, *args: object) -> Any | None:
        """Return what the named function answers, None if it is missing or not supported."""
        call = getattr(self.lib, function, None)
        if call is None:
            return None
        try:
            return call(*args) if self.handle is None else call(self.handle, *args)
        except (self.lib.NVMLError, self.lib.NVMLLibraryMismatchError):
            return None

    def integer(self, function: str, *args: object) -> int | None:
        """Return an integer answer, None if there is none."""
        return cast("int | None", self.ask(function, *args))

    def text(self, function: str, *args: object) -> str:
        """Return a text answer, "" if there is none. Old bindings answer in bytes."""
        answer = self.ask(function, *args)
        return answer.decode() if isinstance(answer, bytes) else str(answer or "")

    def field(self, field_id: int) -> int | None:
        """Return the integer value of one NVML field, None if not supported."""
        return self.fields([(field_id, 0)])[0]

    def fields(self, wanted: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the values of several (field, NVLink number), by one call: each takes 0.7 ms on an H200."""
        values = self._field_values(wanted) if wanted else None
        return [None] * len(wanted) if values is None else [_integer(value) for value in values]

    def _field_values(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Any] | None:
        """Return the binding's structures; the library is called by hand, as the binding would leave it no room."""
        library = getattr(self.lib, "nvmlLib", None)
        if library is None:  # not the module pynvml
            return self.ask("nvmlDeviceGetFieldValues", list(wanted))
        values = (self.lib.c_nvmlFieldValue_t * (len(wanted) + _ROOM))()
        for value, (field_id, scope) in zip(values, wanted, strict=False):
            value.fieldId, value.scopeId = field_id, scope
        try:
            refused = library.nvmlDeviceGetFieldValues(self.handle, ctypes.c_int(len(wanted)), values)
        except AttributeError:  # a library older than the call
            return None
        return None if refused else values[: len(wanted)]


def _integer(value: Any) -> int | None:
    union_field = _UNION_MEMBER.get(value.valueType) if value.nvmlReturn == 0 else None
    return None if union_field is None else int(getattr(value.value, union_field))


# Where a GPU's NVLinks end, how many join two GPUs, how fast one is, and what went wrong on them.

# nvml.h of r580; the binding's own names differ between releases.
_MAX_LINKS = 36
_FIELD_LINK_COUNT = 91
_FIELD_LINE_RATE_COMMON = 90
_FIELD_LINE_RATE = 164
_DEVICE_GPU, _DEVICE_SWITCH = 0, 2
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3
_FIELD_REPLAY, _FIELD_RECOVERY, _FIELD_CRC = 161, 162, 163
# What an NVSwitch that a virtual machine may not see gives as its PCI id [H200x4].
_HIDDEN_REMOTE = "FFFFFFFF:FF:FF.0"


def active_links(gpu: Query) -> tuple[int, ...]:
    """Return the numbers of the links that are up; empty for a GPU without NVLink."""
    count = gpu.field(_FIELD_LINK_COUNT)
    links = range(_MAX_LINKS if count is None else count)
    return tuple(link for link in links if gpu.ask("nvmlDeviceGetNvLinkState", link) == 1)


def ends(gpu: Query, links: Sequence[int]) -> tuple[Mapping[str, int], int]:
    """Return how many of one GPU's given active links end at each neighbor's PCI bus id, and how many at a switch."""
    neighbours: Counter[str] = Counter()
    switch = 0
    for link in links:
        remote = bus_id(gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
        kind = gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind == _DEVICE_SWITCH or remote == _HIDDEN_REMOTE:
            switch += 1
        elif kind in (_DEVICE_GPU, None) and remote:
            neighbours[remote] += 1
    return neighbours, switch


def line_rate(gpu: Query, links: Sequence[int]) -> int | None:
    """Return the slowest of the given links' line rate in MB/s as NVML reports it; None if it does not."""
    rates = gpu.fields([(_FIELD_LINE_RATE, link) for link in links])
    known_rates = [rate for rate in rates if rate]
    return min(known_rates) if known_rates else gpu.field(_FIELD_LINE_RATE_COMMON) or None


def bus_id(pci_info: object | None) -> str:
    """Return a PCI id as nvidia-smi writes it ("00000000:00:06.0"), "" if NVML gave none."""
    value = getattr(pci_info, "busId", "")
    return (value.decode() if isinstance(value, bytes) else str(value)).upper()


def replays(gpu: Query, links: Sequence[int]) -> int | None:
    """Return replayed packets summed over the given links since driver load; None if not counted."""
    return _sum_counters(gpu, links, (_FIELD_REPLAY,), (_REPLAY,))


def errors(gpu: Query, links: Sequence[int]) -> int | None:
    """Return CRC errors and recoveries summed over the given links since driver load; None if not counted."""
    return _sum_counters(gpu, links, (_FIELD_RECOVERY, _FIELD_CRC), (_RECOVERY, _CRC_FLIT, _CRC_DATA))


def _sum_counters(gpu: Query, links: Sequence[int], fields: tuple[int, ...], counters: tuple[int, ...]) -> int | None:
    """Sum over links by field (Hopper and newer), else by the older call, which newer drivers drop."""
    by_field = gpu.fields([(field, link) for link in links for field in fields])
    known_counts = [count for count in by_field if count is not None]
    if not known_counts:
        older = (gpu.integer("nvmlDeviceGetNvLinkErrorCounter", link, c) for link in links for c in counters)
        known_counts = [count for count in older if count is not None]
    return sum(known_counts) if known_counts else None


# The path between two GPUs, as NVML reports it: NVLinks, PCIe ancestor, peer access, and the limit they set.

# nvmlGpuTopologyLevel_t → label [nvml.h, r580]. INTERNAL (both GPUs on one board) is a single bridge: PIX.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PCapsIndex_t. Not taken from nvidia-ml-py, where a stray comma makes READ the tuple (0,).
_PEER_READ, _PEER_WRITE = 0, 1


@dataclass(frozen=True, slots=True)
class Side:
    """One GPU's end of its paths, asked once: NVML's calls are slow and pairs are many."""

    gpu: Query
    pci_bus_id: str
    neighbours: Mapping[str, int]  # its active NVLinks by the PCI bus id at which they end
    switched: int  # those that end at a switch
    line_mbps: int | None
    capability: tuple[int, int] | None
    slot: theory.Theory | None


def side(gpu: Query, device: Device) -> Side:
    """Return one GPU's end of its paths. The slot's *maximum* counts: an idle GPU lowers its generation."""
    links = active_links(gpu)
    neighbours, switched = ends(gpu, links)
    generation = gpu.integer("nvmlDeviceGetMaxPcieLinkGeneration")
    width = gpu.integer("nvmlDeviceGetMaxPcieLinkWidth")
    return Side(
        gpu=gpu,
        pci_bus_id=device.pci_bus_id,
        neighbours=neighbours,
        switched=switched,
        line_mbps=line_rate(gpu, links),
        capability=gpu.ask("nvmlDeviceGetCudaComputeCapability"),
        slot=theory.pcie(generation, width),
    )


def joining(first: Side, second: Side) -> tuple[int, bool]:
    """Return the links between two GPUs and whether they pass a switch; both sides must be up to count."""
    direct = min(first.neighbours.get(second.pci_bus_id, 0), second.neighbours.get(first.pci_bus_id, 0))
    if direct:
        return direct, False
    switched = min(first.switched, second.switched)
    return switched, switched > 0


def between(positions: tuple[int, int], first: Side, second: Side) -> Path:
    """Return the path between two GPUs; `theory_gbs` is the slower end's one-way limit in GB/s."""
    links, through_switch = joining(first, second)
    level = first.gpu.integer("nvmlDeviceGetTopologyCommonAncestor", second.gpu.handle)
    ancestor = None if level is None else _ANCESTORS.get(level)
    if links:
        limit = theory.slowest(
            theory.nvlink(links, capability=end.capability, line_mbps=end.line_mbps, through_switch=through_switch)
            for end in (first, second)
        )
    else:
        limit = theory.slowest(end.slot for end in (first, second))
    # Whether the first reads and writes the second's memory, and why not.
    access = PeerReadWrite(
        *(peer_status(first.gpu, second.gpu, capability) for capability in (_PEER_READ, _PEER_WRITE))
    )
    return Path(
        devices=positions,
        label=f"NV{links}" if links else ancestor or UNKNOWN,
        ancestor=ancestor,
        nvlinks=links,
        theory_gbs=limit.gbs if limit else None,
        theory_source=limit.source if limit else "",
        peer_access=access if access.statuses else None,
    )


def peer_status(first: Query, second: Query, capability: int) -> PeerStatus | None:
    """Return whether a GPU can do this with the other's memory, by nvmlGpuP2PCapsIndex_t; None if not reported."""
    code = first.integer("nvmlDeviceGetP2PStatus", second.handle, capability)
    if code is None:
        return None
    return [*PEER_STATES][code] if 0 <= code < len(PEER_STATES) else PeerStatus.UNKNOWN


# One GPU's state at this moment: clocks, heat, power, throttling, errors, and other processes on it.

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


@dataclass(frozen=True, slots=True)
class Glance:
    """What may change while measuring, and is quick to ask: °C, throttle reasons, compute processes.

    `processes` are ids as NVML gives them (in a container they may be the host's), None if it does not.
    """

    temperature: int | None = None
    throttle: tuple[str, ...] = ()
    processes: frozenset[int] | None = None


def _throttle(gpu: Query) -> tuple[str, ...]:
    bits = gpu.integer("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # the name before r535
        bits = gpu.integer("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return tuple(reason for bit, reason in _THROTTLE_REASONS.items() if bits & bit)


# The open library: GPUs, and the paths between them.

_SYSFS = pathlib.Path("/sys/bus/pci/devices")
_BITS = 64
_MASK_WORDS = 64  # 4096 CPUs or NUMA nodes: beyond any machine of today, and NVML zeroes what it does not use
_SCOPE_NODE = 0

# nvmlGpuVirtualizationMode_t in nvidia-smi's words
_VIRTUALIZATION = ("none", "pass-through", "vGPU", "host vGPU", "host vSGA")


class Nvml:
    """An open NVML. Use as a context manager; raises MachineError on entry where there is no driver.

    GPUs are numbered as nvidia-smi does (PCI order), whatever CUDA_VISIBLE_DEVICES says. A MIG-enabled GPU is reported
    as the whole GPU that it is part of.

    `lib` replaces the module pynvml and `sysfs` the folder of the kernel's PCI devices, for tests.
    """

    def __init__(self, lib: Any | None = None, sysfs: pathlib.Path = _SYSFS) -> None:
        self._query = Query(lib if lib is not None else import_binding())
        self._sysfs = sysfs

    def __enter__(self) -> Self:
        lib = self._query.lib
        try:
            lib.nvmlInit()
        except lib.NVMLError_LibraryNotFound as error:
            container = kernel.container_kind(pathlib.Path("/"), os.environ)
            raise NoDriver(
                "no NVIDIA driver: libnvidia-ml.so.1 cannot be opened",
                f"{kernel.container_fix(container, 'install the driver')}, or use no GPU: "
                "--backend host to measure, topo --topology FILE to read a saved label matrix",
            ) from error
        except lib.NVMLError as error:
            raise MachineError(
                f"no NVIDIA driver: libnvidia-ml.so.1 is there, but nvmlInit failed: {error}",
                "check the output of nvidia-smi (module not loaded, or library and module of different versions)",
            ) from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._query.ask("nvmlShutdown")

    def devices(self) -> tuple[Device, ...]:
        """Return every GPU that this process may use, in nvidia-smi's order. Raises MachineError for a lost one."""
        count = self._query.integer("nvmlDeviceGetCount") or 0
        handles = ((index, self._handle(index)) for index in range(count))
        return tuple(self._device(index, self._query.of(handle)) for index, handle in handles if handle is not None)

    def gpu(self, device: Device) -> Query:
        """Return what asks about one GPU. Raises MachineError for one that is not here."""
        handle = self._query.ask("nvmlDeviceGetHandleByUUID", device.uuid)
        if handle is None:
            raise MachineError(f"GPU {device.index} ({device.uuid}) is not on this machine: see nvidia-smi -L")
        return self._query.of(handle)

    def paths(self, devices: Sequence[Device]) -> tuple[Path, ...]:
        """Return the path between each unordered pair of positions (i < j) in `devices`, theory in GB/s."""
        sides = [side(self.gpu(device), device) for device in devices]
        pairs = itertools.combinations(range(len(sides)), 2)
        return tuple(between((i, j), sides[i], sides[j]) for i, j in pairs)

    def health(self, device: Device) -> Health:
        """Return the state of one GPU now; a field that NVML does not support on it is None."""
        gpu, pids = self.gpu(device), self.processes(device)
        links, milliwatts = active_links(gpu), gpu.integer("nvmlDeviceGetPowerUsage")
        return Health(
            sm_clock=gpu.integer("nvmlDeviceGetClockInfo", _CLOCK_SM),
            memory_clock=gpu.integer("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            temperature=gpu.integer("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            power=None if milliwatts is None else milliwatts / 1000,
            throttle=_throttle(gpu),
            utilization=getattr(gpu.ask("nvmlDeviceGetUtilizationRates"), "gpu", None),
            memory_used=self.memory_used(device),
            nvlink_replays=replays(gpu, links),
            nvlink_errors=errors(gpu, links),
            ecc_errors=gpu.integer("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            # Processes other than this one: right only before collbench opens the GPU. In a container NVML may give
            # host ids, and a context of ours counts as another: health.Occupants distinguishes them.
            processes=None if pids is None else len(pids - {os.getpid()}),
            pcie_generation=gpu.integer("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=gpu.integer("nvmlDeviceGetCurrPcieLinkWidth"),
        )

    def memory_used(self, device: Device) -> int | None:
        """Return the bytes in use on one GPU now, None if NVML does not report them.

        Version 1 of the call counts the driver's own reserve too, so version 2 goes first.
        """
        gpu = self.gpu(device)
        version = getattr(gpu.lib, "nvmlMemory_v2", None)
        memory = None if version is None else gpu.ask("nvmlDeviceGetMemoryInfo", version)
        return getattr(memory or gpu.ask("nvmlDeviceGetMemoryInfo"), "used", None)

    def glance(self, device: Device) -> Glance:
        """Return the part of a GPU's state that is watched while measuring: °C, throttle reasons, process ids."""
        gpu = self.gpu(device)
        return Glance(gpu.integer("nvmlDeviceGetTemperature", _TEMPERATURE_GPU), _throttle(gpu), self.processes(device))

    def processes(self, device: Device) -> frozenset[int] | None:
        """Return the ids of the compute processes on one GPU, ours among them; None if NVML does not report them."""
        running = self.gpu(device).ask("nvmlDeviceGetComputeRunningProcesses")
        return None if running is None else frozenset(process.pid for process in running)

    def in_mig_mode(self, device: Device) -> bool:
        """Return whether a GPU is cut into MIG instances now."""
        modes = self.gpu(device).ask("nvmlDeviceGetMigMode")  # current and pending
        return modes is not None and modes[0] == 1

    def driver_version(self) -> str:
        """Return the driver's version, such as "580.159.04"."""
        return self._query.text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str:
        """Return the newest CUDA that the driver supports, such as "13.0"; "" if it does not report one."""
        version = self._query.integer("nvmlSystemGetCudaDriverVersion_v2")
        return "" if version is None else format_cuda_version(version)

    def virtualization(self) -> str:
        """Return how the first GPU is virtualized ("none", "pass-through", "vGPU", …); "" if not reported."""
        first = next((self.gpu(device) for device in self.devices()), None)
        mode = None if first is None else first.integer("nvmlDeviceGetVirtualizationMode")
        return _VIRTUALIZATION[mode] if mode is not None and mode < len(_VIRTUALIZATION) else ""

    def _handle(self, index: int) -> object | None:
        """Return NVML's handle by index; None for a GPU that this user or container may not touch."""
        lib = self._query.lib
        try:
            handle: object = lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError_NoPermission:
            return None
        except lib.NVMLError as error:
            raise MachineError(
                f"GPU {index} does not answer NVML: {error}", "reset it or reboot the machine"
            ) from error
        return handle

    def _device(self, index: int, gpu: Query) -> Device:
        pci_id = bus_id(gpu.ask("nvmlDeviceGetPciInfo"))
        return Device(
            index=index,
            uuid=gpu.text("nvmlDeviceGetUUID"),
            name=gpu.text("nvmlDeviceGetName"),
            pci_bus_id=pci_id,
            memory_bytes=getattr(gpu.ask("nvmlDeviceGetMemoryInfo"), "total", 0),
            numa_node=self._numa_node(gpu, pci_id),
            cpu_affinity=format_cpus(_set_bits(gpu.ask("nvmlDeviceGetCpuAffinity", _MASK_WORDS))),
            pcie_generation=gpu.integer("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width=gpu.integer("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def _numa_node(self, gpu: Query, pci_id: str) -> int | None:
        """Return the *host's* node next to the GPU.

        nvmlDeviceGetNumaNodeId would give the node of the GPU's own memory, which only coherent machines have.
        """
        nodes = _set_bits(gpu.ask("nvmlDeviceGetMemoryAffinity", _MASK_WORDS, _SCOPE_NODE))
        return nodes[0] if len(nodes) == 1 else _sysfs_numa_node(self._sysfs, pci_id)


def import_binding() -> Any:
    """Return the module pynvml. Raises MachineError."""
    try:
        import pynvml
    except ImportError as error:
        raise MachineError("cannot read GPU facts: nvidia-ml-py is missing", "pip install nvidia-ml-py") from error
    return pynvml


def format_cuda_version(number: int) -> str:
    """Return CUDA's number of a version as people write it: 13000 is "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _set_bits(mask: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of the set bits in NVML's mask of 64-bit words; empty if it gave none."""
    words = enumerate(mask or ())
    return tuple(index * _BITS + bit for index, value in words for bit in range(_BITS) if value >> bit & 1)


def _sysfs_numa_node(sysfs: pathlib.Path, pci_id: str) -> int | None:
    """Return the kernel's NUMA node of a PCI device; it writes -1 (here None) where the firmware does not say."""
    try:
        node = int((sysfs / kernel_bus_id(pci_id) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
