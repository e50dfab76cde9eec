"""`collbench topo`: what the machine's own labels say, live or from a saved file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from collbench.backends import opening
from collbench.cli.terminal import echo, say
from collbench.errors import MachineError, UsageError
from collbench.machine import nvidia_smi, selection
from collbench.machine.nvml import Nvml
from collbench.model import Device
from collbench.model import Path as LinkPath
from collbench.report.topology import explain_pair, render_topology


@click.command(short_help="Print the labels of all paths, or explain one pair.")
@click.argument("pair", nargs=-1, metavar="[GPU GPU]")
@click.option("--from", "file", metavar="FILE", help="Read saved 'nvidia-smi topo -m' text instead of this machine.")
def topo(pair: tuple[str, ...], file: str | None) -> None:
    """Print the label matrix with its legend, CPU and NUMA affinity, and the theoretical rate of each label.

    Given two GPUs, explain the path between them in one sentence. Labels are what the driver says of the paths, not
    what they carry: 'collbench pairs' measures that.

    \b
    Examples:
      collbench topo
      collbench topo 0 1
      collbench topo --from topo.txt
    """
    if len(pair) not in (0, 2):
        raise UsageError(
            f"topo explains two devices or shows all, and {len(pair)} was given: write 'collbench topo 0 1'"
        )
    devices, paths = _facts(file)
    if pair:
        chosen = selection.select(devices, ",".join(pair))
        echo(explain_pair(devices, _between(devices, paths, chosen)))
    else:
        echo(render_topology(devices, paths), end="")


def _facts(file: str | None) -> tuple[tuple[Device, ...], tuple[LinkPath, ...]]:
    if file is not None:
        return nvidia_smi.facts(nvidia_smi.read_topology(Path(file)))
    with Nvml() as nvml:
        devices = _in_sight(nvml.devices())
        return devices, nvml.paths(devices)


def _in_sight(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, and say on stderr if it hides any. Raises MachineError."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return devices  # CUDA need not be asked: NVML alone gives the labels
    left = opening.present_devices("cuda")
    if not left:
        raise MachineError(f"CUDA_VISIBLE_DEVICES='{visible}' hides every GPU: unset it to see them")
    if len(left) < len(devices):
        say(f"{len(left)} of {len(devices)} GPUs: CUDA_VISIBLE_DEVICES hides the others")
    return left


def _between(devices: tuple[Device, ...], paths: tuple[LinkPath, ...], chosen: tuple[Device, ...]) -> LinkPath:
    wanted = {devices.index(device) for device in chosen}
    return next(path for path in paths if set(path.devices) == wanted)
