"""`topo`: the labels of a machine's paths. Nothing is measured."""

from __future__ import annotations

import os
from typing import NamedTuple

from collbench.api import SILENT, Notices, keywords
from collbench.model.capabilities import BACKENDS, CUDA, SIM, is_simulated
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import Device
from collbench.model.run import Path as LinkPath
from collbench.model.units import counted


class Topology(NamedTuple):
    """The devices of a machine, and the path of each pair of their positions; `fabric` names a simulated machine."""

    devices: tuple[Device, ...]
    paths: tuple[LinkPath, ...]
    backend: str = CUDA.name
    fabric: str = ""

    def __repr__(self) -> str:
        """Return one line, for people."""
        labels = counted(sorted(path.label for path in self.paths))
        where = f", simulated {self.fabric}" if self.fabric else ""
        return f"<Topology of {counted(device.name for device in self.devices)}{where}: {labels or 'no paths'}>"


def topo(
    file: str | os.PathLike[str] | None = None,
    *,
    backend: str = "auto",
    fabric: str | os.PathLike[str] | None = None,
    notices: Notices = SILENT,
) -> Topology:
    """Return the devices and labeled paths of this machine, of saved 'nvidia-smi topo -m' text, or of a simulation.

    "auto" takes only GPUs, those that CUDA_VISIBLE_DEVICES leaves; a notice says if it hides any. Raises Error.
    """
    backend = keywords.named("backend", backend, ("auto", *BACKENDS))
    fabric = None if fabric is None else str(keywords.path(fabric))
    if file is not None:
        file = keywords.path(file)
        if fabric is not None or backend != "auto":
            raise UsageError(f"{file} holds the labels of its machine: leave out --backend and --fabric")
        from collbench.machine import nvidia_smi  # late, as all below: each source of labels alone

        return Topology(*nvidia_smi.facts(nvidia_smi.read_topology(file)))
    if is_simulated(backend):
        from collbench.measurement.backends import factory
        from collbench.sim import network

        present = factory.simulated(fabric)
        return Topology(network.devices(present), network.paths(present), SIM.name, present.name)
    keywords.check_fabric(backend, fabric)
    if backend in BACKENDS and BACKENDS[backend].cores:
        from collbench.machine import kernel

        cores = kernel.core_devices()
        return Topology(cores, kernel.core_paths(cores), backend)
    from collbench.machine.nvml import Nvml

    with Nvml() as nvml:
        devices = _visible(nvml.devices(), notices)
        return Topology(devices, nvml.paths(devices))


def _visible(every: tuple[Device, ...], notices: Notices) -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves. Raises MachineError for none."""
    from collbench.measurement.backends import factory

    left = factory.may_use(every)
    if every and not left:
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise MachineError(f"CUDA_VISIBLE_DEVICES='{setting}' hides every GPU: unset it to see them")
    if len(left) < len(every):
        notices.say(f"{len(left)} of {len(every)} GPUs: CUDA_VISIBLE_DEVICES hides the others")
    return left
