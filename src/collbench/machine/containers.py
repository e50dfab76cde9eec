"""The kind of container that this process is in, and how a container of each kind gets GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from collbench.machine.kernel import read

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
_GPUS = {
    "docker": "start the container with its GPUs: docker run --gpus all …",
    "podman": "start the container with its GPUs: podman run --device nvidia.com/gpu=all …",
    "apptainer": "start the container with its GPUs: apptainer exec --nv …",
    "singularity": "start the container with its GPUs: singularity exec --nv …",
    "kubernetes": "request GPUs in the pod's spec: resources.limits nvidia.com/gpu",
}


def kind(root: Path, environment: Mapping[str, str]) -> str:
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


def fix(container: str, otherwise: str) -> str:
    """Return how a container of this kind gets GPUs, `otherwise` where we do not know one."""
    return _GPUS.get(container, otherwise)
