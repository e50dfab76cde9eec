"""Facts about the operating system around the process. Every function is given the root that holds proc/, sys/, …"""

from __future__ import annotations

import os
import pathlib
import platform
import resource
import shutil
import socket
from collections.abc import Collection, Iterable, Mapping

from collbench.doctor.facts import Folder, Host, Space
from collbench.doctor.slots import slot
from collbench.machine.memory import available_bytes
from collbench.machine.numa import read, usable_nodes
from collbench.model import Device

# File or variable that a container runtime leaves, and its name; the first that fits counts.
_MARKS = {".dockerenv": "docker", "run/.containerenv": "podman"}
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "SLURM_CONTAINER": "slurm --container",
    "ENROOT_ROOTFS": "enroot",
}
_CGROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc", "containerd": "containerd"}
# Read by CUDA and torch and worth a word; NCCL's own begin with NCCL_.
READ_BY_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD", "COLLBENCH_NCCL")


def host(root: pathlib.Path, environment: Mapping[str, str], gpus: Iterable[Device]) -> Host:
    """Return the facts about this process's host; a file that cannot be read leaves its fact unknown."""
    allowed = os.sched_getaffinity(0)
    return Host(
        name=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        shm=space(root / "dev/shm"),
        memlock=limit(resource.RLIMIT_MEMLOCK),
        open_files=limit(resource.RLIMIT_NOFILE),
        cpus=tuple(sorted(allowed)),
        cpu_quota=cpu_quota(root),
        memory_nodes=usable_nodes(root, allowed),
        memory_available=available_bytes(root),
        container=container(root, environment),
        hypervisor=hypervisor(root),
        iommu=_any(root / "sys/class/iommu"),
        slots={gpu.index: slot(root, gpu.pci_bus_id) for gpu in gpus},
        network_cards=tuple(sorted(_names(root / "sys/class/infiniband"))),
        peermem=any((root / f"sys/module/{name}").is_dir() for name in ("nvidia_peermem", "nv_peer_mem")),
        open_modules="Open Kernel Module" in read(root / "proc/driver/nvidia/version"),
    )


def limit(which: int) -> int | None:
    """Return a soft limit of this process, -1 for none."""
    try:
        soft, _ = resource.getrlimit(which)
    except (OSError, ValueError):
        return None
    return -1 if soft == resource.RLIM_INFINITY else soft


def space(folder: pathlib.Path) -> Space | None:
    """Return the size of the file system that holds a folder; None where there is none."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return Space(usage.total, usage.free)


def runs_folder(path: pathlib.Path) -> Folder:
    """Return the room where runs are saved: that of the nearest folder that exists already."""
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), None)
    if existing is None or not existing.is_dir():
        return Folder(str(path), error=f"{path} cannot be made: {existing} is not a folder")
    return Folder(str(path), space(existing), os.access(existing, os.W_OK | os.X_OK))


def cpu_quota(root: pathlib.Path) -> float | None:
    """Return the CPUs' worth of time that the tightest cgroup allows this process; None where none limits it."""
    quotas = []
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            quotas += [_quota(read(folder / "cpu.max").split()) for folder in _up(root / "sys/fs/cgroup", name)]
        elif "cpu" in controllers.split(","):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            folders = _up(root / "sys/fs/cgroup/cpu", name)
            quotas += [_quota([read(folder / file).strip() for file in names]) for folder in folders]
    return min((quota for quota in quotas if quota is not None), default=None)


def container(root: pathlib.Path, environment: Mapping[str, str]) -> str:
    """Return what kind of container this process is in, "" for none that left a mark."""
    for name, kind in _VARIABLES.items():
        if name in environment:
            return kind
    for mark, kind in _MARKS.items():
        if (root / mark).exists():
            return kind
    groups = read(root / "proc/1/cgroup") + read(root / "proc/self/cgroup")
    found = next((kind for word, kind in _CGROUPS.items() if word in groups), "")
    return found or environment.get("container", "")  # systemd's and podman's own variable


def hypervisor(root: pathlib.Path) -> str:
    """Return the virtual machine's maker or kind, "" on bare metal."""
    if (root / "sys/hypervisor/type").exists():
        return read(root / "sys/hypervisor/type").strip()
    flags = next((line for line in read(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    if "hypervisor" not in flags.split():
        return ""
    words = [read(root / f"sys/class/dmi/id/{name}").strip() for name in ("sys_vendor", "product_name")]
    return " ".join(filter(None, words)) or "unknown hypervisor"


def configured(root: pathlib.Path, environment: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return (file, name, value) that NCCL takes from its files where the environment does not set the name.

    In NCCL's order: the first that sets a name wins [src/misc/param.cc, initEnvFunc; setenv without overwriting].
    """
    own = environment.get("NCCL_CONF_FILE") or (f"{environment['HOME']}/.nccl.conf" if "HOME" in environment else "")
    found: dict[str, tuple[str, str, str]] = {}
    for file in filter(None, (own, "/etc/nccl.conf")):
        path = root / file[1:] if file.startswith("/") else pathlib.Path(file)
        for line in read(path).splitlines() if path.is_file() else ():  # not of a device, which may never end
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#") and name not in environment:
                found.setdefault(name, (file, name, value))
    return tuple(found.values())


def _quota(words: Collection[str]) -> float | None:
    """Return quota / period of two numbers in µs; None for "max", -1 and what is no number."""
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _up(mount: pathlib.Path, name: str) -> list[pathlib.Path]:
    leaf = mount / name.strip("/")
    return [folder for folder in (leaf, *leaf.parents) if folder == mount or mount in folder.parents]


def _names(folder: pathlib.Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _any(folder: pathlib.Path) -> bool | None:
    """Return whether a folder has entries; None where there is no such folder."""
    try:
        return any(True for _ in folder.iterdir())
    except OSError:
        return None
