"""Judges the host of a measurement: limits on its processes, memory and CPUs, and network cards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collbench.machine import labels
from collbench.machine.doctor.facts import Facts, Gpu, Host
from collbench.machine.doctor.findings import Level, Line, Lines, fail, line, ok, tags, unknown, warn
from collbench.machine.network_cards import down, nearest, slower
from collbench.machine.numa import format_cpus, parse_cpus
from collbench.model.capabilities import capabilities
from collbench.model.run import NetworkPort
from collbench.model.units import amount, fixed, format_approximate_size, verb

_MIB = 2**20
# What NVIDIA starts containers with [NCCL user guide, troubleshooting, "Shared memory"]; docker's default is 64 MiB.
_ENOUGH_SHM = 1024 * _MIB
# NCCL's segments are 4 to 10 MiB each, and a rank has two at least [the same page: 4194660 bytes; NCCL_BUFFSIZE].
_MIN_SHM_A_GPU = 8 * _MIB
# From here on NCCL shares host memory by CUDA's calls, and /dev/shm holds little [NCCL 2.30.7, src/misc/cudawrap.cc].
_CUMEM_CUDA = (12, 6)
# Two messages of 64 MiB a core and what torch takes in each of eight processes.
_LITTLE_MEMORY = 4096 * _MIB
_TRANSLATED = ("DMA", "DMA-FQ")  # an IOMMU group's type in the kernel's words; "identity" passes addresses through


def judge_host(facts: Facts, gpus: Sequence[Gpu]) -> Lines:
    """Judge the host around the process; `gpus` are the visible ones, none on the host backend."""
    host = facts.host
    gpu_virtualization = "" if facts.driver.virtualization == "none" else facts.driver.virtualization
    maker = f" ({host.hypervisor})" if host.hypervisor else ""
    parts = (
        host.system,
        f"{host.container} container" if host.container else "",
        f"virtual machine{maker}" if host.hypervisor or gpu_virtualization else "",
        f"GPU {gpu_virtualization}" if gpu_virtualization else "",
    )
    yield ok("system", ", ".join(filter(None, parts)))
    yield _shared_memory(facts, len(gpus))
    yield _locked_memory(host)
    yield from _cpus(facts, len(gpus))
    if capabilities(facts.backend).cores:
        yield _memory(host.memory_available)
    if gpus:
        yield _numa(host, gpus)
        yield from _peer_traffic(facts, gpus)
        yield from _gpu_direct(host)
        yield from _ports(host.network_ports)
        yield from _affinity(host.near_cards)


def _shared_memory(facts: Facts, gpus: int) -> Line:
    name, shm = "shared memory", facts.host.shm
    if shm is None:
        text = "no /dev/shm that can be read: processes on one host share memory through it"
        return fail(name, text, "mount a tmpfs on /dev/shm")
    text = f"{format_approximate_size(shm.free)} free of {format_approximate_size(shm.total)} in /dev/shm"
    fix = "docker run --shm-size=1g (or --ipc=host); elsewhere: sudo mount -o remount,size=8G /dev/shm"
    if shm.free < _MIN_SHM_A_GPU * max(gpus, 1):
        return fail(name, f"{text}: NCCL and torch's data loaders cannot start", fix)
    if shm.free < _ENOUGH_SHM:
        cuda = tuple(int(part) for part in facts.driver.cuda.split(".") if part.isdigit())
        through_cuda = cuda >= _CUMEM_CUDA and facts.environment.get("NCCL_CUMEM_HOST_ENABLE") != "0"
        little = "torch's data loaders may need more; with this driver NCCL does not"
        return warn(name, f"{text}: {little if through_cuda else 'NCCL may need 1 GiB'}", fix)
    return ok(name, text)


def _locked_memory(host: Host) -> Line:
    name = "locked memory"
    if host.memlock < 0:
        return ok(name, "unlimited")
    limit = format_approximate_size(host.memlock)
    if not host.network_cards:
        return ok(name, f"{limit}; it matters only for InfiniBand and RoCE, and there is no such card")
    text = f"{limit}: {', '.join(host.network_cards)} cannot register NCCL's buffers"
    fix = "docker run --ulimit memlock=-1; elsewhere: memlock unlimited in /etc/security/limits.conf"
    return warn(name, text, fix)


def _cpus(facts: Facts, gpus: int) -> Lines:
    """Judge how many CPUs this process may use, and how much of their time."""
    host, on_cores = facts.host, capabilities(facts.backend).cores
    text = f"{len(host.cpus)} available: {format_cpus(host.cpus)}"
    fix = "widen the cgroup's cpuset, taskset's mask, or the CPUs that the job asks for (srun --cpus-per-task)"
    needed = 2 if on_cores else gpus
    if len(host.cpus) >= needed:
        yield ok("CPUs", text)
    elif on_cores:
        yield fail("CPUs", f"{text}; the host backend needs two", fix)
    else:
        yield warn("CPUs", f"{text}, for {amount(needed, 'GPU')}: ranks wait for each other's cores", fix)
    if host.cpu_quota is not None:
        text = f"a cgroup limits CPU time to {fixed(host.cpu_quota)} CPUs: a rank that polls is paused at times"
        if host.cpu_quota < max(needed, 1):
            yield warn("CPU quota", text, "docker run without --cpus; Kubernetes: raise or drop the CPU limit")
        else:
            yield ok("CPU quota", text)


def _memory(available_bytes: int) -> Line:
    if not available_bytes:
        return unknown("memory", "available memory is unknown")
    text = f"{format_approximate_size(available_bytes)} available"
    if available_bytes < _LITTLE_MEMORY:
        return warn("memory", f"{text}: large messages may not fit", "--sizes 8:16M")
    return ok("memory", text)


def _numa(host: Host, gpus: Sequence[Gpu]) -> Line:
    """Judge whether this process may use the CPUs and the memory near its GPUs."""
    with_affinity = [gpu for gpu in gpus if gpu.device.cpu_affinity]
    far = [gpu for gpu in with_affinity if not set(parse_cpus(gpu.device.cpu_affinity)) & set(host.cpus)]
    if far:
        each = ", ".join(f"{gpu.device.tag} ({gpu.device.cpu_affinity})" for gpu in far)
        fix = "widen the cgroup's cpuset or taskset's mask to these CPUs; Slurm: --gpu-bind=closest"
        return warn("NUMA", f"no available CPU is near {each}", fix, far)
    usable = (None, *host.memory_nodes)
    without = [gpu for gpu in gpus if host.memory_nodes and gpu.device.numa_node not in usable]
    if without:
        text = f"no memory is available on the NUMA node of {tags(without, gpus)}"
        return warn("NUMA", text, "widen the cgroup's cpuset.mems", without)
    if with_affinity:
        return ok("NUMA", "CPUs near every GPU are available")
    return unknown("NUMA", "neither driver nor kernel says which CPUs are near the GPUs")


def _peer_traffic(facts: Facts, gpus: Sequence[Gpu]) -> Lines:
    """Judge what may turn peer copies over PCIe: translation by the IOMMU, and bridges that redirect (ACS)."""
    slots = {
        gpu.device.index: facts.host.slots[gpu.device.index] for gpu in gpus if gpu.device.index in facts.host.slots
    }
    matters = facts.host.network_cards or any(labels.is_pcie(path.label) for path in facts.driver.paths)
    level = Level.WARN if matters else Level.OK
    whom = "" if matters else "; no pair uses PCIe, and there is no network card that could"
    translated = [
        gpu for gpu in gpus if gpu.device.index in slots and slots[gpu.device.index].iommu_type in _TRANSLATED
    ]
    if translated:
        text = f"translates addresses of {tags(translated, gpus)}: peer copies over PCIe may go through the CPU{whom}"
        fix = "boot with iommu=pt, or turn VT-d or AMD-Vi off in the firmware"
        yield line(level, "IOMMU", text, fix if matters else "", translated)
    else:
        texts = {None: "not seen", False: "off", True: "on, and passes the GPUs' addresses through"}
        yield ok("IOMMU", texts[facts.host.iommu])
    redirecting = sorted({bridge for slot in slots.values() for bridge in slot.redirecting})
    if redirecting:
        text = f"bridges send peer traffic up to the CPU: {', '.join(redirecting)}{whom}"
        fix = f"sudo setpci -s {redirecting[0]} ECAP_ACS+0x6.w=0000, for each, on bare metal; or off in the firmware"
        yield line(level, "ACS", text, fix if matters else "")
    elif any(slot.unreadable for slot in slots.values()):
        yield unknown("ACS", "only root may read it", "sudo $(which collbench) doctor")
    else:
        yield ok("ACS", "no bridge above the GPUs redirects peer traffic")


def _gpu_direct(host: Host) -> Lines:
    """Judge GPU direct transfers of network cards; no line without a card."""
    cards = ", ".join(host.network_cards)
    if cards and (host.peermem or host.open_modules):
        yield ok(
            "GPU direct", f"{cards} by {'nvidia_peermem' if host.peermem else 'dma-buf of the open kernel modules'}"
        )
    elif cards:
        text = f"{cards} cannot reach GPU memory: neither nvidia_peermem nor the driver's open modules are loaded"
        yield warn("GPU direct", text, "sudo modprobe nvidia-peermem")


def _ports(ports: tuple[NetworkPort, ...]) -> Lines:
    """Judge the ports' state and rate; no line without a port."""
    faults = [
        f"{port.name} is {port.state}{f' ({port.physical_state})' if port.physical_state else ''}"
        for port in down(ports)
    ]
    faults += [
        f"{port.name} has {fixed(port.rate_gbits or 0.0)} Gbit/s, other ports of its kind {fixed(best)}"
        for port, best in slower(ports)
    ]
    unread = [port.name for port in ports if not port.state]
    if faults:
        fix = "check ibstat, cable, switch port, and for InfiniBand the subnet manager"
        yield warn("network ports", "; ".join(faults), fix)
    elif unread:
        yield unknown("network ports", f"the state of {', '.join(unread)} cannot be read")
    elif ports:
        yield ok("network ports", f"{len(ports)} active, none slower than another of its kind")


def _affinity(near: Mapping[int, Mapping[str, str]]) -> Lines:
    """Judge which cards are near the GPUs; no line if no nearness is known."""
    name = "network affinity"
    known = {gpu: nearest(cards) for gpu, cards in sorted(near.items()) if cards}
    far = [f"GPU{gpu}" for gpu, (_, how) in known.items() if how == "SYS"]
    if 0 < len(far) < len(known):
        gpus = f"{', '.join(far)} {verb(len(far), 'reaches', 'reach')}"
        text = f"{gpus} cards only across sockets (SYS), other GPUs have a nearer card"
        yield warn(name, text, "see 'nvidia-smi topo -m' and the slots of the cards")
    elif known:
        routes = ", ".join(f"GPU{gpu} {'/'.join(cards)} {how}" for gpu, (cards, how) in known.items())
        yield ok(name, f"nearest cards: {routes}")
