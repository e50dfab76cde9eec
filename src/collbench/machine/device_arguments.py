"""Devices as arguments or variables of what starts jobs on them: a shell, docker, apptainer, srun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from collbench.model.errors import UsageError
from collbench.model.run import Device

LIST = "list"
# GPU-…, MIG-…, MIG-GPU-…/1/0; "" of saved labels.
_UUID = re.compile(r"[0-9A-Za-z/_-]*")


def device_line(layout: str, devices: Sequence[Device]) -> str:
    """Return one line, without its end, for "list" or one of ACTING. Raises UsageError for CPU cores in the latter."""
    if layout == LIST:
        return _indices(devices)
    wrong = next((device for device in devices if not _UUID.fullmatch(device.uuid)), None)
    if wrong is not None:  # a shell evaluates the answer, and a run file may be a stranger's
        raise UsageError(f"{wrong.tag} has '{wrong.uuid}', which is not a UUID: write --format text, list or json")
    if any(device.is_core for device in devices):
        raise UsageError(f"--format {layout} is for GPUs, and these are CPU cores: write --format list or json")
    return ACTING[layout](devices)


def variables(devices: Sequence[Device]) -> dict[str, str]:
    """Return what makes CUDA see these GPUs alone, in this order; {} for CPU cores.

    They name GPUs by UUID, or, if a label file has none, by index, with the order in which CUDA counts like nvidia-smi.
    """
    if any(device.is_core for device in devices):
        return {}
    names = {"CUDA_VISIBLE_DEVICES": ",".join(_names(devices))}
    return names if all(device.uuid for device in devices) else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **names}


# These act on a machine, so the devices must be that machine's.
ACTING: dict[str, Callable[[Sequence[Device]], str]] = {
    # A command for eval in sh, bash or zsh.
    "env": lambda devices: "export " + " ".join(_assignments(variables(devices))),
    # docker reads the option's value as CSV, so a list needs double quotes that a shell must leave there, hence the
    # single ones [docs.nvidia.com, container toolkit, Specialized Configurations with Docker].
    "docker": lambda devices: f"--gpus '\"device={','.join(_names(devices))}\"'",
    # One --env per variable, so that its value may hold commas [apptainer 1.1, PR 413].
    "apptainer": lambda devices: " ".join(["--nv", *(f"--env {pair}" for pair in _assignments(variables(devices)))]),
    # One task per GPU. CUDA_VISIBLE_DEVICES would not work: srun sets it anew in every step. Its map_gpu counts as
    # nvidia-smi does inside the job: among the job's GPUs where cgroups constrain devices, else among all of the node
    # [srun(1), --gpu-bind].
    "slurm": lambda devices: f"--nodes=1 --ntasks={len(devices)} --gpu-bind=map_gpu:{_indices(devices)}",
}


def _names(devices: Sequence[Device]) -> list[str]:
    return [device.uuid or str(device.index) for device in devices]


def _indices(devices: Sequence[Device]) -> str:
    return ",".join(str(device.index) for device in devices)


def _assignments(changes: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
