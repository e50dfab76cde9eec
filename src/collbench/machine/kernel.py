"""What the kernel shows in files: GPUs on PCI, network cards, the memory of this process, its container, NUMA nodes."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import socket
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations

from collbench.model.errors import MachineError
from collbench.model.run import Device, NetworkPort, Path
from collbench.model.units import number_ranges

_ROOT = pathlib.Path("/")


def read(file: pathlib.Path) -> str:
    """Return a file's text, or "" if the kernel does not offer it."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return what is in a folder, nothing if the kernel does not offer it."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def kernel_bus_id(pci_bus_id: str) -> str:
    """Return the kernel's name of a PCI device, 0000:06:00.0 of NVML's 00000000:06:00.0. Raises ValueError."""
    domain, _, rest = pci_bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


# Any display or 3D controller of NVIDIA's [PCI IDs: vendor 10de; class codes 0300, 0302].
_VENDOR, _CLASSES = "0x10de", ("0x0300", "0x0302")


def gpus_on_pci(root: pathlib.Path) -> int | None:
    """Return how many NVIDIA GPUs the kernel has on PCI; None if it shows no PCI bus."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return None
    return sum(
        read(device / "vendor").strip() == _VENDOR and read(device / "class").startswith(_CLASSES)
        for device in folder.iterdir()
    )


def has_gpu_files(root: pathlib.Path = _ROOT) -> bool:
    """Return whether this process sees device files of NVIDIA GPUs; a container sees those that it was given."""
    files = {file.name for file in entries(root / "dev")}
    return "nvidiactl" in files and any(re.fullmatch(r"nvidia\d+", name) for name in files)


# The cgroups of this process.


def available_bytes(root: pathlib.Path = _ROOT) -> int:
    """Return the bytes that can be allocated before the machine or a cgroup limit runs out; 0 if unknown.

    `root` holds proc/ and sys/.
    """
    # MemAvailable is the kernel's own estimate (in kB) of what can be had without swapping.
    free = _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    return max(0, min([free, *_left(root)]))


def _left(root: pathlib.Path) -> Iterator[int]:
    """Yield limit − use of each memory cgroup that has a limit; inactive page cache counts as free."""
    for unified, folder in cgroup_folders(root, "memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        if not unified:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None:
            yield limit - used + _fields(folder / "memory.stat").get(names[2], 0)


def cgroup_folders(root: pathlib.Path, controller: str) -> Iterator[tuple[bool, pathlib.Path]]:
    """Yield the folders of this process's cgroups and of their parents, whose limits bind as well.

    Each with True if it is of cgroups version 2, which have one tree for all controllers.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        unified = controllers == ""
        if unified or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("" if unified else controller)
            leaf = mount / name.strip("/")
            for folder in (leaf, *leaf.parents):
                if folder == mount or mount in folder.parents:
                    yield unified, folder


def _number(file: pathlib.Path) -> int | None:
    """Return the file's number; None if it is absent or says "max"."""
    text = read(file).strip()
    return int(text) if text.isdigit() else None


def _fields(file: pathlib.Path) -> dict[str, int]:
    """Return the first two columns of each line whose second is a number."""
    rows = (line.split() for line in read(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


# The container that this process is in, and how a container of each kind gets GPUs.

# A file or variable that a container runtime leaves, and its name; the first that fits counts.
_MARKS = {".dockerenv": "docker", "run/.containerenv": "podman"}
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "SLURM_CONTAINER": "slurm --container",
    "ENROOT_ROOTFS": "enroot",
}
_CGROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc", "containerd": "containerd"}
_GPUS = {
    "docker": "start the container with its GPUs: docker run --gpus all …",
    "podman": "start the container with its GPUs: podman run --device nvidia.com/gpu=all …",
    "apptainer": "start the container with its GPUs: apptainer exec --nv …",
    "singularity": "start the container with its GPUs: singularity exec --nv …",
    "kubernetes": "request GPUs in the pod's spec: resources.limits nvidia.com/gpu",
}


def container_kind(root: pathlib.Path, environment: Mapping[str, str]) -> str:
    """Return what kind of container this process is in, "" for none that left a mark. `root` holds proc/, run/, …"""
    for name, by_variable in _VARIABLES.items():
        if name in environment:
            return by_variable
    for mark, by_mark in _MARKS.items():
        if (root / mark).exists():
            return by_mark
    groups = read(root / "proc/1/cgroup") + read(root / "proc/self/cgroup")
    by_cgroup = next((name for marker, name in _CGROUPS.items() if marker in groups), "")
    return by_cgroup or environment.get("container", "")  # systemd's and podman's own variable


def container_fix(container: str, otherwise: str) -> str:
    """Return how a container of this kind gets GPUs, `otherwise` where we do not know one."""
    return _GPUS.get(container, otherwise)


# How many GPUs a step has on this node; every task's, however few GPUs it is bound to [srun(1)].
STEP_GPUS = "SLURM_GPUS_ON_NODE"
UNBOUND = "srun --gpu-bind=none"


def unseen_in_step(shown: int, environment: Mapping[str, str]) -> int | None:
    """Return how many GPUs its step of Slurm has beside those that the driver shows to a task; None outside of one.

    A cgroup hides from a task what it is not bound to, where cgroup.conf has ConstrainDevices [srun(1), --tres-bind].
    """
    count = environment.get(STEP_GPUS, "")
    return max(int(count) - shown, 0) if re.fullmatch(r"\d{1,4}", count, re.ASCII) else None


def withheld(shown: int, environment: Mapping[str, str], root: pathlib.Path = _ROOT) -> str:
    """Return how many GPUs the driver does not show, of PCI or of Slurm's step, and how to get them; "" for none."""
    if unseen := unseen_in_step(shown, environment):
        return f"Slurm's step has {unseen} more, which this task is not bound to: {UNBOUND}"
    more, container = (gpus_on_pci(root) or 0) - shown, container_kind(root, environment)
    kept = (
        f"PCI has {more} more, which the {container} container was not given" if container else f"PCI has {more} more"
    )
    return f"{kept}: {container_fix(container, 'see collbench doctor')}" if more > 0 else ""


# The ports of InfiniBand and RoCE cards: state and rate.

FOLDER = "sys/class/infiniband"
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
# "4: ACTIVE", "5: LinkUp" [Documentation/ABI/stable/sysfs-class-infiniband].
_NUMBERED = re.compile(r"[0-9]+: *([A-Za-z_]+)", re.ASCII)


def read_ports(root: pathlib.Path) -> tuple[NetworkPort, ...]:
    """Return the ports of all cards by name and number; `root` holds sys/. What cannot be read stays unknown."""
    cards = sorted(entries(root / FOLDER))
    return tuple(
        _port(card, number)
        for card in cards
        for number in sorted(
            int(port.name) for port in entries(card / "ports") if re.fullmatch("[0-9]{1,5}", port.name)
        )
    )


def _port(card: pathlib.Path, number: int) -> NetworkPort:
    folder = card / "ports" / str(number)
    rate = _RATE.match(read(folder / "rate"))
    return NetworkPort(
        card=card.name,
        number=number,
        state=_state_name(read(folder / "state")),
        physical_state=_state_name(read(folder / "phys_state")),
        rate_gbits=float(rate[1]) if rate and float(rate[1]) > 0 else None,
        link_layer=read(folder / "link_layer").strip(),
        model=read(card / "hca_type").strip(),
    )


def _state_name(text: str) -> str:
    match = _NUMBERED.match(text)
    return match[1] if match else ""


# The kernel's CPU lists, such as "0-3,8": read and written.


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel list such as "0-3,8"; an empty text gives none."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest kernel list of these CPUs: 0, 1, 2, 8 → "0-2,8"."""
    return number_ranges(sorted(cpus))


# The NUMA nodes of this host whose CPUs and memory this process may use.

_NODES = "sys/devices/system/node"
_MEMORY = re.compile(r"MemTotal:\s+([0-9]+) kB")
_MEMORY_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)", re.MULTILINE)


def usable_nodes(root: pathlib.Path = _ROOT, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the nodes, ascending, that have memory and CPUs which this process may use; none if none is reported.

    `allowed` defaults to this process's CPU mask, which already obeys cgroup cpusets and taskset; `root` holds sys/ and
    proc/. Nodes without CPUs (slower memory, or a GPU's own) are left out: no rank can run there.
    """
    reach = os.sched_getaffinity(0) if allowed is None else allowed
    status = _MEMORY_ALLOWED.search(read(root / "proc/self/status"))
    nodes = cpus_by_node(root, reach)
    permitted = parse_cpus(status[1]) if status else tuple(nodes)  # the kernel writes both lists alike
    memory_kb = {node: _MEMORY.search(read(root / f"{_NODES}/node{node}/meminfo")) for node in nodes}
    return tuple(node for node, match in memory_kb.items() if node in permitted and match and int(match[1]) > 0)


def cpus_by_node(root: pathlib.Path, reach: Collection[int]) -> dict[int, list[int]]:
    """Return the CPUs of each node that lie in `reach`, ascending; nodes without any are left out."""
    nodes: dict[int, list[int]] = {}
    for folder in (root / _NODES).glob("node[0-9]*"):
        cpus = sorted(set(parse_cpus(read(folder / "cpulist"))) & set(reach))
        if cpus:
            nodes[int(folder.name.removeprefix("node"))] = cpus
    return dict(sorted(nodes.items()))


# The CPU cores that are the devices of the host backend, and what the NUMA layout says of the paths between them.

# Pairs grow with the square of the devices: 8 give 28 pairs, as many as a DGX has, within `make pairs`' 30 s.
MAX_DEVICES = 8

# An arbitrary constant (uuid4, drawn once): it keeps our uuid5 names apart from everybody else's.
_NAMESPACE = uuid.UUID("6d2f0c1e-8f0b-4b43-9a53-2f7c9be1a0d4")


def core_devices(root: pathlib.Path = _ROOT, allowed: Collection[int] | None = None) -> tuple[Device, ...]:
    """Return two to eight cores as devices: one per NUMA node, else one per physical core, else all.

    `allowed` defaults to this process's affinity mask, which already obeys cgroup cpusets and taskset.
    `root` holds sys/, proc/ and etc/. Raises MachineError if fewer than two cores are in reach.
    """
    reach = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if len(reach) < 2:
        named = ", ".join(map(str, reach)) or "none"
        raise MachineError(
            f"the host backend copies between CPU cores and needs two, but this process may use {len(reach)} "
            f"(core: {named}): widen its taskset mask or the container's CPU set"
        )
    nodes = cpus_by_node(root, reach)
    if len(nodes) > 1:
        # The interconnect between NUMA nodes is the slowest link of a host: one core of each node shows it.
        chosen = {_physical_cores(root, cores)[0]: format_cpus(cores) for cores in nodes.values()}
    else:
        physical = _physical_cores(root, reach)
        chosen = {core: str(core) for core in (physical if len(physical) >= 2 else reach)}
    return tuple(replace(core_device(core, root), cpu_affinity=chosen[core]) for core in _spread(sorted(chosen)))


def core_device(core: int, root: pathlib.Path = _ROOT) -> Device:
    """Return one core as a device, with itself as its affinity."""
    nodes = cpus_by_node(root, [core])
    return Device(
        index=core,
        uuid=_uuid(root, core),
        name=cpu_model(root),
        numa_node=next(iter(nodes), None),
        cpu_affinity=str(core),
    )


def core_paths(chosen: Collection[Device]) -> tuple[Path, ...]:
    """Return the path of every pair of positions: NODE within a NUMA node, SYS between two. No theory is known.

    The words are nvidia-smi's. Cores of a kernel that knows no NUMA nodes all count as one node.
    """
    nodes = [core.numa_node for core in chosen]
    pairs = combinations(range(len(nodes)), 2)
    return tuple(Path(devices=(i, j), label="NODE" if nodes[i] == nodes[j] else "SYS") for i, j in pairs)


def _physical_cores(root: pathlib.Path, cores: Collection[int]) -> list[int]:
    """Return the lowest usable hyper-thread of each physical core: two siblings share one path to memory."""
    seen: set[int] = set()
    firsts = []
    for core in cores:
        if core not in seen:
            firsts.append(core)
            siblings = read(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
            seen.update(parse_cpus(siblings))
    return firsts


def _spread(cores: list[int]) -> list[int]:
    """Return at most MAX_DEVICES of `cores`, evenly spaced.

    Neighbors share a cache slice or a die, so the first eight would show one corner of the machine.
    """
    count = min(len(cores), MAX_DEVICES)
    return [cores[i * len(cores) // count] for i in range(count)]


def _uuid(root: pathlib.Path, core: int) -> str:
    machine = read(root / "etc/machine-id").strip() or socket.gethostname()
    return f"CPU-{uuid.uuid5(_NAMESPACE, f'{machine}/{core}')}"


@cache
def cpu_model(root: pathlib.Path = _ROOT) -> str:
    """Return the kernel's model name; ARM kernels print none, so there it is the architecture."""
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()
