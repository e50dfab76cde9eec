"""What the kernel shows in files: GPUs on PCI, network cards, how much memory this process may use, its container."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping

from collbench.model.run import NetworkPort

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
