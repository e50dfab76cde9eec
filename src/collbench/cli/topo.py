"""The labels of a machine's paths, by Python's `topo` and by `collbench topo`, which load nothing that measures."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from collbench.api import SILENT, Notices, keywords
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, echo_sentence, is_json, json_option, prose_width
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import BACKENDS, CUDA, SIM, Device, is_simulated
from collbench.model.run import Path as LinkPath
from collbench.model.units import NARROW, counted
from collbench.report.topology import explain_pair, render_topology


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


@click.command("topo")
@click.argument("pair", nargs=-1, metavar="[GPU GPU]")
@option(
    "--topology FILE", "Read saved 'nvidia-smi topo -m' text instead of this machine.", options.FILE_NAME, name="file"
)
@options.backend_of_a_machine
@options.fabric
@json_option("Print JSON: devices and paths as the run file has them.")
def command(pair: tuple[str, ...], file: str | None, backend: str, fabric: str | None) -> None:
    """Print the label matrix with its legend, CPU and NUMA affinity, and the theoretical rate of each label.

    With two GPUs it explains the path between them in one sentence. A label is the kind of path that the driver
    reports, not a bandwidth: 'collbench pairs' measures bandwidth.

    \b
    Examples:
      collbench topo
      collbench topo 0 1
      collbench topo --topology topo.txt
      collbench topo --backend sim --fabric dgx-1v
    """
    if len(pair) not in (0, 2):
        raise UsageError(
            f"topo explains two devices or shows all, but {len(pair)} was given: write 'collbench topo 0 1'"
        )
    topology_shown = topo(file, backend=backend, fabric=fabric, notices=NOTICES)
    paths = topology_shown.paths
    if pair:
        from collbench.machine import device_names  # late, as the next: most calls show all labels

        wanted = {
            topology_shown.devices.index(device)
            for device in device_names.select(topology_shown.devices, ",".join(pair))
        }
        paths = tuple(path for path in paths if set(path.devices) == wanted)
    if is_json():
        from collbench.runfile.codec import document, plain

        body = {"fabric": topology_shown.fabric, "devices": plain(topology_shown.devices), "paths": plain(paths)}
        echo(document("topology", body, topology_shown.backend), end="")
        return
    if topology_shown.fabric:
        echo(f"the simulated machine {topology_shown.fabric} (sim)")
    if pair:
        echo_sentence(explain_pair(topology_shown.devices, paths[0]))
    else:
        echo(render_topology(topology_shown.devices, paths, min(NARROW, prose_width())), end="")


COMMANDS = {"topo": command}  # the Python call has its name
