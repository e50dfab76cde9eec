"""From facts about a machine to findings (ok, warn, fail or unknown) with their fixes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from collbench.machine import labels
from collbench.machine.doctor.facts import Driver, Facts, Folder, Gpu, Host, Software
from collbench.machine.doctor.nccl_variables import meaning
from collbench.machine.health import HOT_C, holds_back
from collbench.machine.network_affinity import NetworkAffinity
from collbench.machine.network_ports import down, slower
from collbench.machine.numa import format_cpus, parse_cpus
from collbench.machine.visible_devices import NAME, ORDER, read
from collbench.model.capabilities import capabilities
from collbench.model.run import Device, NetworkPort, Path, PeerStatus
from collbench.model.units import fixed, format_approximate_size

# A finding of the doctor: ok, warn, fail or unknown, and the fix. Pure.


class Level(StrEnum):
    """How a fact affects a run: no effect, a cost in speed or certainty, a failure, or not reported."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Group(StrEnum):
    """What a finding is about; the report's sections, in its order."""

    GPUS = "GPUs"
    LINKS = "links"
    LIBRARIES = "libraries"
    HOST = "host"
    VARIABLES = "variables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was found, in a sentence that nothing reads, and what to do about it.

    `fix` is one command or sentence, "" if nothing is to be done. `devices` are the GPUs that it is about, by
    nvidia-smi's indices; () for all of them, and for none.
    """

    group: Group
    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


def tags(gpus: Collection[Gpu], among: Collection[Gpu] = ()) -> str:
    """Return the GPUs' names as "GPU0, GPU2", or "all 8 GPUs" where these are all of many."""
    if len(gpus) == len(among) > 2:
        return f"all {len(gpus)} GPUs"
    return ", ".join(gpu.device.tag for gpu in gpus)


def numbers(gpus: Collection[Gpu]) -> tuple[int, ...]:
    """Return the GPUs' numbers, as nvidia-smi counts them."""
    return tuple(gpu.device.index for gpu in gpus)


def indices(gpus: Collection[Gpu]) -> str:
    """Return the GPUs' numbers as `nvidia-smi -i` takes them: "0,2"."""
    return ",".join(map(str, numbers(gpus)))


# What the driver's facts mean: its version, which GPUs are in sight, their modes and health. Pure.


# Reads the shipped PTX, ISA 7.8 [CONTRIBUTING.md, "The PTX"].
OLDEST_DRIVER = 520
# nvmlComputeMode_t and nvmlGpuFabricState_t [nvml.h, r580]
_PROHIBITED = 2  # 0 is the default, 1 and 3 let one process in
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_GPUS_FOR_CONTAINERS = {
    "docker": "start the container with its GPUs: docker run --gpus all …",
    "podman": "start the container with its GPUs: podman run --device nvidia.com/gpu=all …",
    "apptainer": "start the container with its GPUs: apptainer exec --nv …",
    "singularity": "start the container with its GPUs: singularity exec --nv …",
    "kubernetes": "request GPUs in the pod's spec: resources.limits nvidia.com/gpu",
}
_INSTALL = "install the NVIDIA driver"
_WITHOUT = "or use no GPU: collbench doctor --backend host"


def judge_driver(facts: Facts) -> list[Finding]:
    """Judge the driver, its version, and how many GPUs it shows."""
    driver = facts.driver
    if driver.error:
        instead = f"{_GPUS_FOR_CONTAINERS.get(facts.host.container, _INSTALL)}; {_WITHOUT}"
        return [
            Finding(
                Group.GPUS,
                "driver",
                Level.FAIL,
                driver.error,
                instead if driver.missing else driver.advice,
            )
        ]
    return [_version(driver), *_tool(driver), _count(facts)]


def judge_visibility(facts: Facts) -> list[Finding]:
    """Judge what CUDA_VISIBLE_DEVICES leaves; no finding where it is not set and there are GPUs enough."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    setting = facts.environment.get(NAME)
    seen = read(devices, setting, facts.environment.get(ORDER))
    name, unset = NAME, f"unset {NAME}, or write indices or UUIDs of nvidia-smi -L"
    left = ", ".join(device.tag for device in seen.devices) or "no GPU"
    why = f": {seen.problem}" if seen.problem else ""
    findings = []
    if seen.problem and not seen.certain:
        findings.append(Finding(Group.GPUS, name, Level.WARN, f"only CUDA knows which GPUs remain visible{why}", unset))
    elif not seen.devices:
        findings.append(Finding(Group.GPUS, name, Level.FAIL, f"hides every GPU{why}", unset))
    elif seen.problem:
        findings.append(Finding(Group.GPUS, name, Level.WARN, f"leaves {left}{why}", unset))
    elif len(seen.devices) < 2:
        text = f"leaves only {left}: no pair to measure" if setting is not None else "one GPU: no pair to measure"
        findings.append(
            Finding(Group.GPUS, name if setting is not None else "pairs", Level.WARN, text, "use two or more")
        )
    elif setting is not None:
        findings.append(Finding(Group.GPUS, name, Level.OK, f"leaves {left}, {len(seen.devices)} of {len(devices)}"))
    return [*findings, *_order(facts)]


def judge_health(gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge the modes and the state of the visible GPUs, one line for each kind of problem."""
    return [*_modes(gpus), *_gpu_memory(gpus), *_fabric(gpus), *_now(gpus)]


def _version(driver: Driver) -> Finding:
    text = f"{driver.version}, CUDA {driver.cuda or 'unknown'}"
    branch = driver.version.partition(".")[0]
    if not branch.isdigit():
        return Finding(Group.GPUS, "driver", Level.UNKNOWN, f"version '{driver.version}' cannot be read")
    if int(branch) < OLDEST_DRIVER:
        fix = f"install driver r{OLDEST_DRIVER} or newer"
        return Finding(Group.GPUS, "driver", Level.FAIL, f"{text}: older than r{OLDEST_DRIVER}", fix)
    return Finding(Group.GPUS, "driver", Level.OK, text)


def _tool(driver: Driver) -> list[Finding]:
    if driver.nvidia_smi:
        return []
    text = "not on PATH: its labels cannot be compared with those of NVML; NVML reports everything else"
    return [Finding(Group.GPUS, "nvidia-smi", Level.OK, text)]


def _count(facts: Facts) -> Finding:
    driver = facts.driver
    kinds = Counter(gpu.device.name for gpu in driver.gpus)
    text = ", ".join(f"{count} × {name}" for name, count in kinds.items()) or "none"
    hidden = (driver.on_the_bus or 0) - len(driver.gpus)
    if not driver.gpus:
        fix = _GPUS_FOR_CONTAINERS.get(facts.host.container, "check nvidia-smi -L and the permissions of /dev/nvidia*")
        return Finding(Group.GPUS, "GPUs", Level.FAIL, "the driver shows no GPU to this process", fix)
    if hidden <= 0:
        return Finding(Group.GPUS, "GPUs", Level.OK, text)
    if facts.host.container:
        return Finding(Group.GPUS, "GPUs", Level.OK, f"{text}; {hidden} more on PCI, not given to this container")
    fix = "check dmesg | grep -i xid for a GPU that fell off the bus, and /dev/nvidia* for one without access"
    return Finding(Group.GPUS, "GPUs", Level.WARN, f"{text}; {hidden} more on PCI that the driver does not show", fix)


def _order(facts: Facts) -> list[Finding]:
    """Warn where indices mean other GPUs to CUDA than to nvidia-smi: it puts the fastest first unless asked."""
    setting = facts.environment.get(NAME, "")
    by_bus = facts.environment.get(ORDER) == "PCI_BUS_ID"
    names = {gpu.device.name for gpu in facts.driver.gpus}
    if by_bus or len(names) < 2 or not any(index.strip().isdigit() for index in setting.split(",")):
        return []
    text = "unset, and the GPUs differ: CUDA's indices may differ from those of nvidia-smi"
    return [Finding(Group.GPUS, ORDER, Level.WARN, text, f"export {ORDER}=PCI_BUS_ID")]


def _modes(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    yield _all_or(gpus, "MIG", lambda gpu: gpu.mig, "off", _mig)
    yield _all_or(
        gpus,
        "compute mode",
        lambda gpu: None if gpu.compute_mode is None else gpu.compute_mode != 0,
        "default",
        _compute_mode,
    )
    yield _all_or(
        gpus, "persistence", lambda gpu: None if gpu.persistence is None else not gpu.persistence, "on", _cold
    )


def _gpu_memory(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    failed = [gpu for gpu in gpus if gpu.repair_failed]
    pending = [gpu for gpu in gpus if gpu.repair_pending]
    wrong = [gpu for gpu in gpus if gpu.ecc_errors]
    if failed:
        text = f"{tags(failed, gpus)} could not remap a bad memory row"
        yield Finding(Group.GPUS, "memory", Level.FAIL, text, "do not use this GPU; have it replaced", numbers(failed))
    elif pending:
        text = f"{tags(pending, gpus)} will remap a bad memory row at the next reset"
        fix = f"sudo nvidia-smi -i {indices(pending)} --gpu-reset when nothing runs there, or reboot"
        yield Finding(Group.GPUS, "memory", Level.WARN, text, fix, numbers(pending))
    elif wrong:
        each = ", ".join(f"{gpu.ecc_errors} on {gpu.device.tag}" for gpu in wrong)
        fix = f"sudo nvidia-smi -i {indices(wrong)} --gpu-reset when nothing runs there; replace the GPU if they return"
        text = f"uncorrected ECC errors since the driver started: {each}"
        yield Finding(Group.GPUS, "memory", Level.WARN, text, fix, numbers(wrong))
    elif any(gpu.ecc_errors is None for gpu in gpus):
        yield Finding(
            Group.GPUS, "memory", Level.UNKNOWN, "errors are not counted: ECC is off, or NVML does not report them"
        )
    else:
        yield Finding(Group.GPUS, "memory", Level.OK, "no uncorrected ECC errors, no row remapping pending")


def _fabric(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    waiting = [gpu for gpu in gpus if gpu.fabric_state in _FABRIC_STATES]
    if waiting:
        state = _FABRIC_STATES[waiting[0].fabric_state or 1]
        text = f"NVSwitch fabric {state} on {tags(waiting, gpus)}: CUDA cannot start (error 802)"
        fix = "sudo systemctl start nvidia-fabricmanager (same version as the driver)"
        yield Finding(Group.GPUS, "fabric", Level.FAIL, text, fix, numbers(waiting))
    elif any(gpu.fabric_state for gpu in gpus):
        yield Finding(Group.GPUS, "fabric", Level.OK, "NVSwitch fabric ready")


def _now(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    held = [gpu for gpu in gpus if any(holds_back(reason) for reason in gpu.throttle)]
    hot = [gpu for gpu in gpus if (gpu.temperature or 0) > HOT_C]
    busy = [gpu for gpu in gpus if gpu.processes]
    if held:
        each = ", ".join(f"{gpu.device.tag}: {', '.join(gpu.throttle)}" for gpu in held)
        fix = "check nvidia-smi -q -d PERFORMANCE and the cooling"
        yield Finding(Group.GPUS, "clocks", Level.WARN, f"throttled: {each}", fix, numbers(held))
    if hot:
        each = ", ".join(f"{gpu.device.tag} {gpu.temperature} °C" for gpu in hot)
        fix = "check the fans and the air flow"
        yield Finding(Group.GPUS, "temperature", Level.WARN, f"over {HOT_C} °C: {each}", fix, numbers(hot))
    if busy:
        each = ", ".join(
            f"{gpu.device.tag} ({gpu.processes}, {format_approximate_size(gpu.memory_used or 0)})" for gpu in busy
        )
        text = f"processes on {each}: they disturb measurements"
        fix = "nvidia-smi lists them; wait, or use other GPUs"
        yield Finding(Group.GPUS, "in use", Level.WARN, text, fix, numbers(busy))
    elif all(gpu.processes is not None for gpu in gpus):
        yield Finding(Group.GPUS, "in use", Level.OK, "no compute process on any of them")


def _all_or(
    gpus: Sequence[Gpu],
    name: str,
    bad: Callable[[Gpu], bool | None],
    good: str,
    problem: Callable[[Collection[Gpu], Sequence[Gpu]], Finding],
) -> Finding:
    """Return `text` of the GPUs for which `bad` holds, else that all is good, or that NVML does not report it."""
    answers = [bad(gpu) for gpu in gpus]
    if any(answers):
        return problem([gpu for gpu, answer in zip(gpus, answers, strict=True) if answer], gpus)
    if name == "MIG" and all(answer is None for answer in answers):
        return Finding(Group.GPUS, name, Level.OK, "not supported by these GPUs")
    if any(answer is None for answer in answers):
        return Finding(Group.GPUS, name, Level.UNKNOWN, "NVML does not report it")
    return Finding(Group.GPUS, name, Level.OK, good)


def _mig(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    text = f"on for {tags(bad, gpus)}: CUDA shows parts of a GPU, and NCCL has no peer access between them"
    return Finding(Group.GPUS, "MIG", Level.FAIL, text, f"sudo nvidia-smi -i {indices(bad)} -mig 0", numbers(bad))


def _compute_mode(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    fix = f"sudo nvidia-smi -i {indices(bad)} -c DEFAULT"
    prohibited = [gpu for gpu in bad if gpu.compute_mode == _PROHIBITED]
    if prohibited:
        text = f"prohibited on {tags(prohibited, gpus)}: CUDA cannot start there"
        return Finding(Group.GPUS, "compute mode", Level.FAIL, text, fix, numbers(prohibited))
    text = f"exclusive on {tags(bad, gpus)}: a second process is refused, and each rank of torch may open all GPUs"
    return Finding(Group.GPUS, "compute mode", Level.WARN, text, fix, numbers(bad))


def _cold(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    text = f"off on {tags(bad, gpus)}: the first process waits some seconds per GPU for the driver"
    fix = f"sudo nvidia-smi -i {indices(bad)} -pm 1"
    return Finding(Group.GPUS, "persistence", Level.WARN, text, fix, numbers(bad))


# What the operating system's limits mean for processes that share memory, pin it and spin on cores. Pure.


_MIB = 2**20
# What NVIDIA starts containers with [NCCL user guide, troubleshooting, "Shared memory"]; docker's default is 64 MiB.
_ENOUGH_SHM = 1024 * _MIB
# NCCL's segments are 4 to 10 MiB each, and a rank has two at least [the same page: 4194660 bytes; NCCL_BUFFSIZE].
_LEAST_SHM_A_GPU = 8 * _MIB
# From here on NCCL shares host memory by CUDA's calls, and /dev/shm holds little [NCCL 2.30.7, src/misc/cudawrap.cc].
_CUMEM_CUDA = (12, 6)
# The usual default. A rank opens sockets to its neighbours, files of shared memory, libraries, data.
_FEW_FILES = 1024
# A run of all sizes on 8 GPUs is a file of 10 MB: room for several, and for the journal.
_LITTLE_ROOM = 100 * _MIB
# Two messages of 64 MiB a core and what torch takes in each of eight processes.
_LITTLE_MEMORY = 4096 * _MIB
_TRANSLATED = ("DMA", "DMA-FQ")  # an IOMMU group's type in the kernel's words; "identity" passes addresses through


def judge_host(facts: Facts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge the host around the process; `gpus` are those in sight, none on the host backend."""
    host = facts.host
    findings = [_system(facts), _shm(facts, len(gpus)), *_limits(host), *_cores(facts, gpus), *_memory(facts)]
    if gpus:
        findings += [*_near(host, gpus), *_peer_traffic(facts, gpus), *_network(host), *_ports(host.network_ports)]
        findings += _affinity(host.network_affinity)
    return [*findings, _runs(facts.runs)]


def _system(facts: Facts) -> Finding:
    host = facts.host
    gpu_virtualization = facts.driver.virtualization
    virtual = host.hypervisor or gpu_virtualization not in ("", "none")
    maker = f" ({host.hypervisor})" if host.hypervisor else ""
    parts = [host.system, f"{host.container} container" if host.container else ""]
    parts.append(f"virtual machine{maker}" if virtual else "")
    parts.append(f"GPU {gpu_virtualization}" if gpu_virtualization not in ("", "none") else "")
    return Finding(Group.HOST, "system", Level.OK, ", ".join(filter(None, parts)))


def _shm(facts: Facts, gpus: int) -> Finding:
    name, shm = "shared memory", facts.host.shm
    fix = "docker run --shm-size=1g (or --ipc=host); elsewhere: sudo mount -o remount,size=8G /dev/shm"
    if shm is None:
        text = "no /dev/shm that can be read: processes on one host share memory through it"
        return Finding(Group.HOST, name, Level.FAIL, text, "mount a tmpfs on /dev/shm")
    text = f"{format_approximate_size(shm.free)} free of {format_approximate_size(shm.total)} in /dev/shm"
    if shm.free < _LEAST_SHM_A_GPU * max(gpus, 1):
        return Finding(Group.HOST, name, Level.FAIL, f"{text}: NCCL and torch's data loaders cannot start", fix)
    if shm.free < _ENOUGH_SHM:
        since = _by_cuda(facts)
        why = "torch's data loaders may need more; with this driver NCCL does not" if since else "NCCL may need 1 GiB"
        return Finding(Group.HOST, name, Level.WARN, f"{text}: {why}", fix)
    return Finding(Group.HOST, name, Level.OK, text)


def _by_cuda(facts: Facts) -> bool:
    """Return whether NCCL shares host memory through CUDA rather than through /dev/shm."""
    version = tuple(int(part) for part in facts.driver.cuda.split(".") if part.isdigit())
    return version >= _CUMEM_CUDA and facts.environment.get("NCCL_CUMEM_HOST_ENABLE") != "0"


def _limits(host: Host) -> Iterable[Finding]:
    name, cards = "locked memory", ", ".join(host.network_cards)
    if host.memlock is None:
        yield Finding(Group.HOST, name, Level.UNKNOWN, "the limit cannot be read")
    elif host.memlock < 0 or not cards:
        text = "unlimited" if host.memlock < 0 else format_approximate_size(host.memlock)
        more = "" if host.memlock < 0 else "; it matters only for InfiniBand and RoCE, and there is no such card"
        yield Finding(Group.HOST, name, Level.OK, f"{text}{more}")
    else:
        text = f"{format_approximate_size(host.memlock)}: {cards} cannot register NCCL's buffers"
        fix = "docker run --ulimit memlock=-1; elsewhere: memlock unlimited in /etc/security/limits.conf"
        yield Finding(Group.HOST, name, Level.WARN, text, fix)
    if host.open_files is None:
        yield Finding(Group.HOST, "open files", Level.UNKNOWN, "the limit cannot be read")
    elif 0 <= host.open_files < _FEW_FILES:
        text = f"{host.open_files} a process: sockets, shared memory and data files may need more"
        yield Finding(Group.HOST, "open files", Level.WARN, text, f"ulimit -n {_FEW_FILES * 64}")
    else:
        text = "unlimited" if host.open_files < 0 else f"{host.open_files} a process"
        yield Finding(Group.HOST, "open files", Level.OK, text)


def _cores(facts: Facts, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    host = facts.host
    count = len(host.cpus)
    text = f"{count} available: {format_cpus(host.cpus)}"
    fix = "widen the cgroup's cpuset, taskset's mask, or the CPUs that the job asks for (srun --cpus-per-task)"
    needed = 2 if capabilities(facts.backend).cores else len(gpus)
    if count < needed and capabilities(facts.backend).cores:
        yield Finding(Group.HOST, "CPUs", Level.FAIL, f"{text}; the host backend needs two", fix)
    elif count < needed:
        yield Finding(
            Group.HOST, "CPUs", Level.WARN, f"{text}, for {needed} GPUs: ranks wait for each other's cores", fix
        )
    else:
        yield Finding(Group.HOST, "CPUs", Level.OK, text)
    if host.cpu_quota is not None:
        level = Level.WARN if host.cpu_quota < max(needed, 1) else Level.OK
        text = f"a cgroup limits CPU time to {fixed(host.cpu_quota)} CPUs: a rank that polls is paused at times"
        quota_fix = "docker run without --cpus; Kubernetes: raise or drop the CPU limit" if level is Level.WARN else ""
        yield Finding(Group.HOST, "CPU quota", level, text, quota_fix)


def _memory(facts: Facts) -> Iterable[Finding]:
    if not capabilities(facts.backend).cores:
        return
    available = facts.host.memory_available
    text = f"{format_approximate_size(available)} available" if available else "available memory is unknown"
    if 0 < available < _LITTLE_MEMORY:
        yield Finding(Group.HOST, "memory", Level.WARN, f"{text}: large messages may not fit", "--sizes 8:16M")
    else:
        yield Finding(Group.HOST, "memory", Level.OK if available else Level.UNKNOWN, text)


def _near(host: Host, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    """Judge whether this process may use the CPUs and the memory near its GPUs."""
    with_affinity = [gpu for gpu in gpus if gpu.device.cpu_affinity]
    far = [gpu for gpu in with_affinity if not set(parse_cpus(gpu.device.cpu_affinity)) & set(host.cpus)]
    nodes = [gpu for gpu in gpus if gpu.device.numa_node is not None]
    without = [gpu for gpu in nodes if host.memory_nodes and gpu.device.numa_node not in host.memory_nodes]
    if far:
        each = ", ".join(f"{gpu.device.tag} ({gpu.device.cpu_affinity})" for gpu in far)
        fix = "widen the cgroup's cpuset or taskset's mask to these CPUs; Slurm: --gpu-bind=closest"
        yield Finding(Group.HOST, "NUMA", Level.WARN, f"no available CPU is near {each}", fix, numbers(far))
    elif without:
        text = f"no memory is available on the NUMA node of {tags(without, gpus)}"
        yield Finding(Group.HOST, "NUMA", Level.WARN, text, "widen the cgroup's cpuset.mems", numbers(without))
    elif with_affinity:
        text = "CPUs near every GPU are available"
        yield Finding(Group.HOST, "NUMA", Level.OK, text)
    else:
        yield Finding(Group.HOST, "NUMA", Level.UNKNOWN, "neither driver nor kernel says which CPUs are near the GPUs")


def _peer_traffic(facts: Facts, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    """Judge what may turn peer copies over PCIe: translation by the IOMMU, and bridges that redirect (ACS)."""
    slots = {gpu.device.index: facts.host.slots.get(gpu.device.index) for gpu in gpus}
    known_slots = {index: slot for index, slot in slots.items() if slot is not None}
    over_pcie = any(labels.is_pcie(path.label) for path in facts.driver.paths)
    level = Level.WARN if over_pcie or facts.host.network_cards else Level.OK
    whom = "" if level is Level.WARN else "; no pair uses PCIe, and there is no network card that could"
    translated = [gpu for gpu in gpus if (slot := known_slots.get(gpu.device.index)) and slot.iommu_type in _TRANSLATED]
    if translated:
        text = f"translates addresses of {tags(translated, gpus)}: peer copies over PCIe may go through the CPU{whom}"
        fix = "boot with iommu=pt, or turn VT-d or AMD-Vi off in the firmware" if level is Level.WARN else ""
        yield Finding(Group.HOST, "IOMMU", level, text, fix, numbers(translated))
    else:
        texts = {None: "not seen", False: "off", True: "on, and passes the GPUs' addresses through"}
        yield Finding(Group.HOST, "IOMMU", Level.OK, texts[facts.host.iommu])
    turning = sorted({bridge for slot in known_slots.values() for bridge in slot.redirecting})
    if turning:
        text = f"bridges send peer traffic up to the CPU: {', '.join(turning)}{whom}"
        fix = f"sudo setpci -s {turning[0]} ECAP_ACS+0x6.w=0000, for each, on bare metal; or off in the firmware"
        yield Finding(Group.HOST, "ACS", level, text, fix if level is Level.WARN else "")
    elif any(slot.unreadable for slot in known_slots.values()):
        yield Finding(Group.HOST, "ACS", Level.UNKNOWN, "only root may read it", "sudo $(which collbench) doctor")
    else:
        yield Finding(Group.HOST, "ACS", Level.OK, "no bridge above the GPUs redirects peer traffic")


def _network(host: Host) -> Iterable[Finding]:
    """Judge GPU direct transfers of network cards; without a card there is nothing to say."""
    if not host.network_cards:
        return
    cards = ", ".join(host.network_cards)
    if host.peermem or host.open_modules:
        route = "nvidia_peermem" if host.peermem else "dma-buf of the open kernel modules"
        yield Finding(Group.HOST, "GPU direct", Level.OK, f"{cards} by {route}")
    else:
        text = f"{cards} cannot reach GPU memory: neither nvidia_peermem nor the driver's open modules are loaded"
        yield Finding(Group.HOST, "GPU direct", Level.WARN, text, "sudo modprobe nvidia-peermem")


def _ports(ports: tuple[NetworkPort, ...]) -> Iterable[Finding]:
    """Judge the ports' state and rate; without a port there is nothing to say."""
    if not ports:
        return
    name, fix = "network ports", "check ibstat, cable, switch port, and for InfiniBand the subnet manager"
    faults = [f"{port.name} is {_state(port)}" for port in down(ports)]
    faults += [
        f"{port.name} has {fixed(port.rate_gbits or 0.0)} Gbit/s, other ports of its kind {fixed(best)}"
        for port, best in slower(ports)
    ]
    unknown = [port.name for port in ports if not port.state]
    if faults:
        yield Finding(Group.HOST, name, Level.WARN, "; ".join(faults), fix)
    elif unknown:
        yield Finding(Group.HOST, name, Level.UNKNOWN, f"the state of {', '.join(unknown)} cannot be read")
    else:
        yield Finding(Group.HOST, name, Level.OK, f"{len(ports)} active, none slower than another of its kind")


def _affinity(network_affinity: NetworkAffinity) -> Iterable[Finding]:
    """Judge which cards are near the GPUs, and whether NCCL took those; nothing if no nearness is known."""
    nearest = {gpu: network_affinity.nearest(gpu) for gpu in sorted(network_affinity.near)}
    nearest_cards = {gpu: near for gpu, near in nearest.items() if near[1]}
    if not nearest_cards:
        return
    name = "network affinity"
    wrong = [
        f"NCCL sends GPU{gpu}'s traffic over {card} ({how}), but {', '.join(better)} is nearer ({best})"
        for gpu, card, how, better, best in network_affinity.farther()
    ]
    if wrong:
        fix = "check NCCL_IB_HCA, NCCL_CROSS_NIC and NCCL_TOPO_FILE: the cards that NCCL may use, and the topology"
        yield Finding(Group.HOST, name, Level.WARN, "; ".join(wrong), fix)
        return
    if disputed := [
        f"the PCI tree has {card} {how} from GPU{gpu}, nvidia-smi {other}"
        for gpu, card, how, other in network_affinity.disputed()
    ]:
        yield Finding(Group.HOST, name, Level.WARN, "; ".join(disputed), "see 'nvidia-smi topo -m' and 'lspci -t'")
        return
    far = [gpu for gpu, (_, how) in nearest_cards.items() if how == "SYS"]
    if far and len(far) < len(nearest_cards):
        gpus = ", ".join(f"GPU{gpu}" for gpu in far)
        text = f"{gpus} reach cards only across sockets (SYS), other GPUs have a nearer card"
        yield Finding(Group.HOST, name, Level.WARN, text, "see 'nvidia-smi topo -m' and the slots of the cards")
        return
    routes = [f"GPU{gpu} {'/'.join(cards)} {how}" for gpu, (cards, how) in nearest_cards.items()]
    checked = "; NCCL uses these" if network_affinity.chosen else ""
    yield Finding(Group.HOST, name, Level.OK, f"nearest cards: {', '.join(routes)}{checked}")


def _state(port: NetworkPort) -> str:
    return f"{port.state} ({port.physical_state})" if port.physical_state else port.state


def _runs(folder: Folder) -> Finding:
    name, fix = "saved runs", "name a file with --output, or another folder with XDG_STATE_HOME"
    if folder.error:
        return Finding(Group.HOST, name, Level.WARN, folder.error, fix)
    if not folder.writable:
        return Finding(Group.HOST, name, Level.WARN, f"{folder.path} cannot be written", fix)
    if folder.space is None:
        return Finding(Group.HOST, name, Level.UNKNOWN, f"{folder.path}: its free space is unknown")
    text = f"{format_approximate_size(folder.space.free)} free for {folder.path}"
    level = Level.WARN if folder.space.free < _LITTLE_ROOM else Level.OK
    return Finding(Group.HOST, name, level, text, fix if level is Level.WARN else "")


# What the libraries' versions and places mean: NCCL, the driver's CUDA library, torch. Pure.


_UTILITY_ONLY = (
    "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility when it is started; else install the driver's libraries"
)
_TORCH = "pip install torch for your CUDA: pytorch.org has the command"


def judge_libraries(facts: Facts) -> list[Finding]:
    """Judge the libraries that a run on GPUs opens, and whether they fit each other and the driver."""
    software = facts.software
    return [*_libcuda(facts), *_nccl(software), *_same_nccl(software), *_preload(facts), _torch(facts)]


def judge_torch_for_cores(software: Software) -> list[Finding]:
    """Judge what the host backend needs: torch, for gloo."""
    if not software.torch:
        return [Finding(Group.LIBRARIES, "torch", Level.FAIL, "not installed: it includes gloo's collectives", _TORCH)]
    return [
        Finding(Group.LIBRARIES, "torch", Level.OK, f"{software.torch}: includes gloo for collectives between cores")
    ]


def _libcuda(facts: Facts) -> Iterable[Finding]:
    software = facts.software
    if software.libcuda_error:
        if facts.driver.gpus:  # without a driver its line has said so
            text = f"libcuda.so.1 cannot be opened: {software.libcuda_error}"
            yield Finding(Group.LIBRARIES, "libcuda", Level.FAIL, text, _UTILITY_ONLY)
        return
    compatible = facts.driver.cuda and facts.driver.cuda != software.libcuda
    more = f", by a compatibility library: the driver's own is {facts.driver.cuda}" if compatible else ""
    yield Finding(Group.LIBRARIES, "libcuda", Level.OK, f"CUDA {software.libcuda}{more}")


def _nccl(software: Software) -> Iterable[Finding]:
    if software.nccl_error:
        fix = software.nccl_advice or "install torch with CUDA or libnccl2, or name a file with --nccl PATH"
        yield Finding(Group.LIBRARIES, "NCCL", Level.FAIL, software.nccl_error, fix)
    else:
        yield Finding(Group.LIBRARIES, "NCCL", Level.OK, f"{software.nccl}, {software.nccl_path}")


def _same_nccl(software: Software) -> Iterable[Finding]:
    """Judge whether what is timed is what torch will load: the wheel next to it, where there is one."""
    name = "torch's NCCL"
    if not software.wheel:
        if software.torch_cuda:
            text = "no nvidia-nccl wheel next to torch: torch has NCCL built in, or loads the system's"
            fix = "compare the version with python -c 'import torch; print(torch.cuda.nccl.version())'"
            yield Finding(Group.LIBRARIES, name, Level.UNKNOWN, text, fix)
        return
    version = software.wheel_version or "of unknown version"
    if software.nccl_error or software.wheel == software.nccl_path:
        yield Finding(Group.LIBRARIES, name, Level.OK, f"{version}: what collbench times")
    elif software.wheel_version == software.nccl:
        yield Finding(Group.LIBRARIES, name, Level.OK, f"{version} at {software.wheel}: the same version")
    else:
        text = f"{version} at {software.wheel}: training loads this one, but collbench times {software.nccl}"
        fix = "unset COLLBENCH_NCCL and leave out --nccl to time torch's"
        yield Finding(Group.LIBRARIES, name, Level.WARN, text, fix)


def _preload(facts: Facts) -> Iterable[Finding]:
    preloaded = facts.environment.get("LD_PRELOAD", "")
    if "nccl" in preloaded.lower():
        text = f"LD_PRELOAD={preloaded}: every process loads this NCCL first"
        yield Finding(Group.LIBRARIES, "LD_PRELOAD", Level.WARN, text, "unset LD_PRELOAD unless it is intended")


def _torch(facts: Facts) -> Finding:
    software = facts.software
    if not software.torch:
        return Finding(Group.LIBRARIES, "torch", Level.WARN, "not installed: collbench train needs it", _TORCH)
    if not software.torch_cuda:
        text = f"{software.torch} has no CUDA: collbench can measure, but training would run on CPU cores"
        return Finding(Group.LIBRARIES, "torch", Level.WARN, text, _TORCH)
    text = f"{software.torch}, built for CUDA {software.torch_cuda}"
    ours, theirs = _major(software.libcuda or facts.driver.cuda), _major(software.torch_cuda)
    if ours is not None and theirs is not None and ours < theirs:
        # Within one major version any driver will do [CUDA compatibility guide, "minor version compatibility"].
        fix = f"install a driver for CUDA {theirs}, or torch built for CUDA {ours}"
        return Finding(Group.LIBRARIES, "torch", Level.FAIL, f"{text}; the driver has {ours}", fix)
    return Finding(Group.LIBRARIES, "torch", Level.OK, text)


def _major(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else None


# What NVML reports about the paths between GPUs, and what that means for data integrity. Pure.


def judge_links(facts: Facts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge peer access and NVLinks between the GPUs in sight."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    seen = {devices.index(gpu.device) for gpu in gpus}
    paths = [path for path in facts.driver.paths if set(path.devices) <= seen]
    if not paths:
        return []
    kinds = Counter(path.label for path in paths)
    ordered = sorted(kinds, key=labels.rank_key)
    text = ", ".join(f"{kinds[label]} × {label}" for label in ordered)
    return [
        Finding(Group.LINKS, "labels", Level.OK, f"{len(paths)} pair{'s' if len(paths) > 1 else ''}: {text}"),
        _peers(paths, devices),
        *_links_down(gpus),
    ]


def _peers(paths: Sequence[Path], devices: Sequence[Device]) -> Finding:
    refused = [path for path in paths if path.peers_denied]
    if refused and refused[0].peer_access is not None:
        pairs = ", ".join("-".join(devices[end].tag for end in path.devices) for path in refused[:4])
        more = f" and {len(refused) - 4} more" if len(refused) > 4 else ""
        first = refused[0].peer_access
        same = len(first.statuses) == 1
        explanation = labels.PEER_STATES[first.statuses[0]] if same else "the directions differ"
        text = f"refused ({first}: {explanation}) for {pairs}{more}: data goes through host memory"
        fix = "nvidia-smi topo -p2p r; needs NVLink, or GPUs, driver and chipset that allow it"
        ends = sorted({devices[end].index for path in refused for end in path.devices})
        return Finding(Group.LINKS, "peer access", Level.WARN, text, fix, tuple(ends))
    answers = [path.peer_access for path in paths]
    if any(answer is None or PeerStatus.UNKNOWN in answer.statuses for answer in answers):
        return Finding(
            Group.LINKS, "peer access", Level.UNKNOWN, "NVML does not report it; collbench pairs measures it"
        )
    return Finding(Group.LINKS, "peer access", Level.OK, "OK for every pair")


def _links_down(gpus: Sequence[Gpu]) -> list[Finding]:
    """Warn of GPUs with fewer NVLinks than others of their kind: cards without a bridge have none, and all alike."""
    most = {gpu.device.name: 0 for gpu in gpus}
    for gpu in gpus:
        most[gpu.device.name] = max(most[gpu.device.name], gpu.links_up)
    fewer = [gpu for gpu in gpus if gpu.links_up < most[gpu.device.name]]
    if fewer:
        each = ", ".join(f"{gpu.device.tag} {gpu.links_up} of {most[gpu.device.name]}" for gpu in fewer)
        fix = "nvidia-smi nvlink --status; reset the GPUs, or have the machine inspected"
        return [Finding(Group.LINKS, "NVLinks", Level.WARN, f"some are down: {each}", fix, numbers(fewer))]
    if not any(most.values()):
        return []
    counts = ", ".join(f"{count} up on each {name}" for name, count in most.items() if count)
    return [Finding(Group.LINKS, "NVLinks", Level.OK, counts)]


# What the variables that are set do here: NCCL's, in the environment and in nccl.conf, and CUDA's. Pure.


_LONGEST = 60  # characters of a value; longer values are lists or paths, which are cut


def judge_variables(facts: Facts) -> list[Finding]:
    """Judge each NCCL_* variable, from environment or file, in the order of names; collbench itself sets none."""
    ours = sorted((name, value) for name, value in facts.environment.items() if name.startswith("NCCL_"))
    findings = [_nccl_variable(name, value) for name, value in ours]
    findings += [
        _nccl_variable(name, value, source=f" (set in {file})")
        for file, name, value in sorted(facts.configured, key=lambda row: row[1])
    ]
    if not findings and capabilities(facts.backend).nccl:
        findings.append(Finding(Group.VARIABLES, "NCCL_*", Level.OK, "none is set: NCCL decides by itself"))
    return [*findings, *_cuda(facts)]


def _nccl_variable(name: str, value: str, source: str = "") -> Finding:
    shown_value = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    effect = meaning(name, value)
    shown = f"{shown_value or '(empty)'}{source}"
    if not effect.does:
        text = f"{shown}: no NCCL from 2.18 to 2.30 reads this name"
        if effect.near:
            return Finding(Group.VARIABLES, name, Level.WARN, text, f"did you mean {effect.near}?")
        return Finding(Group.VARIABLES, name, Level.UNKNOWN, f"{text}; a plugin may")
    if effect.cost:
        fix = f"unset {name} unless it is intended" if not source else "remove it from that file unless it is intended"
        return Finding(Group.VARIABLES, name, Level.WARN, f"{shown}: {effect.does}; {effect.cost}", fix)
    return Finding(Group.VARIABLES, name, Level.OK, f"{shown}: {effect.does}")


def _cuda(facts: Facts) -> Iterable[Finding]:
    if facts.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        text = "1: every launch waits for its kernel, so nothing overlaps"
        fix = "unset CUDA_LAUNCH_BLOCKING"
        yield Finding(Group.VARIABLES, "CUDA_LAUNCH_BLOCKING", Level.WARN, text, fix)


# From facts about a machine to what they mean for a run on it. Pure.


# The exit status where any line fails; warnings leave it at 0.
FAILED = 1


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order of the report."""
    findings: list[Finding] = []
    if capabilities(facts.backend).nvml:
        gpus = visible_gpus(facts)
        findings += judge_driver(facts)
        if facts.driver.gpus:
            findings += judge_visibility(facts)
            findings += judge_health(gpus)
            findings += judge_links(facts, gpus)
        findings += judge_libraries(facts)
    else:
        gpus = ()
        findings += judge_torch_for_cores(facts.software)
    findings += judge_host(facts, gpus)
    findings += judge_variables(facts)
    return tuple(findings)


def visible_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where it leaves none, for the list may be wrong."""
    gpus = facts.driver.gpus
    environment = facts.environment
    left = read([gpu.device for gpu in gpus], environment.get(NAME), environment.get(ORDER)).devices
    return tuple(gpu for gpu in gpus if gpu.device in left) or gpus


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 0 if nothing fails, else FAILED."""
    return FAILED if any(finding.level is Level.FAIL for finding in findings) else 0
