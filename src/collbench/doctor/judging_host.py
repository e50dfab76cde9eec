"""What the operating system's limits mean for processes that share memory, pin it and spin on cores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collbench.doctor.facts import Facts, Folder, Gpu, Host
from collbench.doctor.findings import Finding, Group, Level, tags
from collbench.machine import labels
from collbench.machine.cpulist import format_cpus, parse_cpus
from collbench.units import fixed, format_approximate_size

_MIB = 2**20
# What NVIDIA starts containers with [NCCL user guide, troubleshooting, "Shared memory"]; docker's default is 64 MiB.
_ENOUGH_SHM = 1024 * _MIB
# NCCL's segments are 4 to 10 MiB each, and a rank has two at least [the same page: 4194660 bytes; NCCL_BUFFSIZE].
_LEAST_SHM_A_GPU = 8 * _MIB
# From here on NCCL shares host memory by CUDA's calls, and /dev/shm holds little [NCCL 2.30.7, src/misc/cudawrap.cc].
_CUMEM_CUDA = (12, 6)
# The usual default. A rank opens sockets to its neighbours, files of shared memory, libraries, data.
_FEW_FILES = 1024
# A run of all sizes on 8 GPUs is a file of 10 MB; several, and the journal beside them.
_LITTLE_ROOM = 100 * _MIB
# Two messages of 64 MiB a core and what torch takes in each of eight processes.
_LITTLE_MEMORY = 4096 * _MIB
_TRANSLATED = ("DMA", "DMA-FQ")  # an IOMMU group's type in the kernel's words; "identity" passes addresses through


def judge(facts: Facts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge the host around the process; `gpus` are those in sight, none on the host backend."""
    host = facts.host
    found = [_place(facts), _shm(facts, len(gpus)), *_limits(host), *_cores(facts, gpus), *_memory(facts)]
    if gpus:
        found += [*_near(host, gpus), *_peer_traffic(facts, gpus), *_network(host)]
    return [*found, _runs(facts.runs)]


def _place(facts: Facts) -> Finding:
    host = facts.host
    passed = facts.driver.virtualization
    virtual = host.hypervisor or passed not in ("", "none")
    maker = f" ({host.hypervisor})" if host.hypervisor else ""
    words = [host.system, f"{host.container} container" if host.container else ""]
    words.append(f"virtual machine{maker}" if virtual else "")
    words.append(f"GPU {passed}" if passed not in ("", "none") else "")
    return Finding(Group.HOST, "system", Level.OK, ", ".join(filter(None, words)))


def _shm(facts: Facts, gpus: int) -> Finding:
    name, found = "shared memory", facts.host.shm
    fix = "docker run --shm-size=1g (or --ipc=host); elsewhere: sudo mount -o remount,size=8G /dev/shm"
    if found is None:
        told = "no /dev/shm that can be read: processes on one host share memory there"
        return Finding(Group.HOST, name, Level.FAIL, told, "mount a tmpfs on /dev/shm")
    told = f"{format_approximate_size(found.free)} free of {format_approximate_size(found.total)} in /dev/shm"
    if found.free < _LEAST_SHM_A_GPU * max(gpus, 1):
        return Finding(Group.HOST, name, Level.FAIL, f"{told}: NCCL and torch's data loaders cannot start", fix)
    if found.free < _ENOUGH_SHM:
        since = _by_cuda(facts)
        why = "NCCL needs little there with this driver, torch's data loaders more" if since else "NCCL may need 1 GiB"
        return Finding(Group.HOST, name, Level.WARN, f"{told}: {why}", fix)
    return Finding(Group.HOST, name, Level.OK, told)


def _by_cuda(facts: Facts) -> bool:
    """Return whether NCCL shares host memory through CUDA rather than through /dev/shm."""
    version = tuple(int(part) for part in facts.driver.cuda.split(".") if part.isdigit())
    return version >= _CUMEM_CUDA and facts.environment.get("NCCL_CUMEM_HOST_ENABLE") != "0"


def _limits(host: Host) -> Iterable[Finding]:
    name, cards = "locked memory", ", ".join(host.network_cards)
    if host.memlock is None:
        yield Finding(Group.HOST, name, Level.UNKNOWN, "the limit cannot be read")
    elif host.memlock < 0 or not cards:
        told = "unlimited" if host.memlock < 0 else format_approximate_size(host.memlock)
        more = "" if host.memlock < 0 else "; it binds InfiniBand and RoCE only, and there is no such card"
        yield Finding(Group.HOST, name, Level.OK, f"{told}{more}")
    else:
        told = f"{format_approximate_size(host.memlock)}: {cards} cannot register NCCL's buffers"
        fix = "docker run --ulimit memlock=-1; elsewhere: memlock unlimited in /etc/security/limits.conf"
        yield Finding(Group.HOST, name, Level.WARN, told, fix)
    if host.open_files is None:
        yield Finding(Group.HOST, "open files", Level.UNKNOWN, "the limit cannot be read")
    elif 0 <= host.open_files < _FEW_FILES:
        told = f"{host.open_files} a process: sockets, shared memory and data may need more"
        yield Finding(Group.HOST, "open files", Level.WARN, told, f"ulimit -n {_FEW_FILES * 64}")
    else:
        told = "unlimited" if host.open_files < 0 else f"{host.open_files} a process"
        yield Finding(Group.HOST, "open files", Level.OK, told)


def _cores(facts: Facts, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    host = facts.host
    count = len(host.cpus)
    told = f"{count} in reach: {format_cpus(host.cpus)}"
    fix = "widen the cgroup's cpuset, taskset's mask, or the CPUs that the job asks for (srun --cpus-per-task)"
    needed = len(gpus) if facts.backend == "cuda" else 2
    if count < needed and facts.backend == "host":
        yield Finding(Group.HOST, "CPUs", Level.FAIL, f"{told}; the host backend needs two", fix)
    elif count < needed:
        yield Finding(
            Group.HOST, "CPUs", Level.WARN, f"{told}, for {needed} GPUs: ranks wait for each other's core", fix
        )
    else:
        yield Finding(Group.HOST, "CPUs", Level.OK, told)
    if host.cpu_quota is not None:
        level = Level.WARN if host.cpu_quota < max(needed, 1) else Level.OK
        told = (
            f"a cgroup allows {fixed(host.cpu_quota)} CPUs' worth of time: a rank that spins on it is stopped at times"
        )
        quota_fix = "docker run without --cpus; Kubernetes: raise or drop the CPU limit" if level is Level.WARN else ""
        yield Finding(Group.HOST, "CPU quota", level, told, quota_fix)


def _memory(facts: Facts) -> Iterable[Finding]:
    if facts.backend != "host":
        return
    available = facts.host.memory_available
    told = f"{format_approximate_size(available)} available" if available else "available memory is unknown"
    if 0 < available < _LITTLE_MEMORY:
        yield Finding(Group.HOST, "memory", Level.WARN, f"{told}: large messages may not fit", "--sizes 8:16M")
    else:
        yield Finding(Group.HOST, "memory", Level.OK if available else Level.UNKNOWN, told)


def _near(host: Host, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    """Judge whether this process may use the CPUs and the memory beside its GPUs."""
    known = [gpu for gpu in gpus if gpu.device.cpu_affinity]
    far = [gpu for gpu in known if not set(parse_cpus(gpu.device.cpu_affinity)) & set(host.cpus)]
    nodes = [gpu for gpu in gpus if gpu.device.numa_node is not None]
    without = [gpu for gpu in nodes if host.memory_nodes and gpu.device.numa_node not in host.memory_nodes]
    if far:
        each = ", ".join(f"{gpu.device.tag} ({gpu.device.cpu_affinity})" for gpu in far)
        fix = "widen the cgroup's cpuset or taskset's mask to these CPUs; Slurm: --gpu-bind=closest"
        yield Finding(Group.HOST, "NUMA", Level.WARN, f"no CPU in reach is near {each}", fix)
    elif without:
        told = f"no memory in reach of the node beside {tags(without, gpus)}"
        yield Finding(Group.HOST, "NUMA", Level.WARN, told, "widen the cgroup's cpuset.mems")
    elif known:
        told = "CPUs near every GPU are in reach"
        yield Finding(Group.HOST, "NUMA", Level.OK, told)
    else:
        yield Finding(Group.HOST, "NUMA", Level.UNKNOWN, "neither driver nor kernel says which CPUs are near the GPUs")


def _peer_traffic(facts: Facts, gpus: Sequence[Gpu]) -> Iterable[Finding]:
    """Judge what may turn peer copies over PCIe: translation by the IOMMU, and bridges that redirect (ACS)."""
    slots = {gpu.device.index: facts.host.slots.get(gpu.device.index) for gpu in gpus}
    known = {index: slot for index, slot in slots.items() if slot is not None}
    over_pcie = any(labels.is_pcie(path.label) for path in facts.driver.paths)
    level = Level.WARN if over_pcie or facts.host.network_cards else Level.OK
    whom = "" if level is Level.WARN else "; no pair talks over PCIe and there is no network card that could"
    translated = [gpu for gpu in gpus if (slot := known.get(gpu.device.index)) and slot.iommu_type in _TRANSLATED]
    if translated:
        told = f"translates addresses of {tags(translated, gpus)}: peer copies over PCIe may go through the CPU{whom}"
        fix = "boot with iommu=pt, or turn VT-d or AMD-Vi off in the firmware" if level is Level.WARN else ""
        yield Finding(Group.HOST, "IOMMU", level, told, fix)
    else:
        words = {None: "not seen", False: "off", True: "on, and passes the GPUs' addresses through"}
        yield Finding(Group.HOST, "IOMMU", Level.OK, words[facts.host.iommu])
    turning = sorted({bridge for slot in known.values() for bridge in slot.redirecting})
    if turning:
        told = f"bridges send peer traffic up to the CPU: {', '.join(turning)}{whom}"
        fix = f"sudo setpci -s {turning[0]} ECAP_ACS+0x6.w=0000, for each, on bare metal; or off in the firmware"
        yield Finding(Group.HOST, "ACS", level, told, fix if level is Level.WARN else "")
    elif any(slot.unreadable for slot in known.values()):
        yield Finding(Group.HOST, "ACS", Level.UNKNOWN, "only root may read it", "sudo $(which collbench) doctor")
    else:
        yield Finding(Group.HOST, "ACS", Level.OK, "no bridge above the GPUs redirects peer traffic")


def _network(host: Host) -> Iterable[Finding]:
    """Judge GPU direct transfers of network cards; without a card there is nothing to say."""
    if not host.network_cards:
        return
    cards = ", ".join(host.network_cards)
    if host.peermem or host.open_modules:
        way = "nvidia_peermem" if host.peermem else "dma-buf of the open kernel modules"
        yield Finding(Group.HOST, "GPU direct", Level.OK, f"{cards} by {way}")
    else:
        told = f"{cards} cannot reach GPU memory: neither nvidia_peermem nor the driver's open modules are loaded"
        yield Finding(Group.HOST, "GPU direct", Level.WARN, told, "sudo modprobe nvidia-peermem")


def _runs(folder: Folder) -> Finding:
    name, fix = "saved runs", "name a file with --output, or another folder with XDG_STATE_HOME"
    if folder.error:
        return Finding(Group.HOST, name, Level.WARN, folder.error, fix)
    if not folder.writable:
        return Finding(Group.HOST, name, Level.WARN, f"{folder.path} cannot be written", fix)
    if folder.space is None:
        return Finding(Group.HOST, name, Level.UNKNOWN, f"{folder.path}: its room is unknown")
    told = f"{format_approximate_size(folder.space.free)} free for {folder.path}"
    level = Level.WARN if folder.space.free < _LITTLE_ROOM else Level.OK
    return Finding(Group.HOST, name, level, told, fix if level is Level.WARN else "")
