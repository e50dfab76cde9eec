"""`collbench topo`: what a machine reports. Nothing is measured, and nothing that measures or plans is loaded."""

from __future__ import annotations

import click

from collbench.api import topology
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, echo_sentence, is_json, json_option, prose_width
from collbench.model.errors import UsageError
from collbench.model.units import NARROW
from collbench.report.topology import explain_pair, render_topology


@click.command()
@click.argument("pair", nargs=-1, metavar="[GPU GPU]")
@option(
    "--topology FILE", "Read saved 'nvidia-smi topo -m' text instead of this machine.", options.FILE_NAME, name="file"
)
@options.backend_of_a_machine
@options.fabric
@json_option("Print JSON: devices and paths as the run file has them.")
def topo(pair: tuple[str, ...], file: str | None, backend: str, fabric: str | None) -> None:
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
    topology_shown = topology.topo(file, backend=backend, fabric=fabric, notices=NOTICES)
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
