"""Whether `collbench train` lets torchrun bind ranks to NUMA nodes, and the half line that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.launch import torchrun
from collbench.launch.arguments import TrainArguments
from collbench.machine import numa
from collbench.model import Run


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to bind, and the words for stderr, "" for none."""

    bind: bool = False
    words: str = ""


def decide(arguments: TrainArguments, run: Run | None, members: Sequence[int]) -> Decision:
    """Return whether the chosen `members` of a run on this machine's GPUs are bound to their NUMA nodes.

    They are where host copies find each one's own node the fastest. Nothing is said where the user decides, where the
    run does not compare nodes, or where nodes tie.
    """
    if run is None or run.backend != "cuda" or arguments.has("--numa-binding"):
        return Decision()
    from collbench.affinity.binding import bindings  # late: numpy
    from collbench.report.binding import numactl

    found = [one for one in bindings(run) if one.member in members]
    wrong = [one for one in found if one.agrees is False]
    if wrong:
        return Decision(words=f"not bound to NUMA nodes, as {wrong[0].text}: {numactl(wrong[0])} suits it")
    if len(found) < len(members) or not all(one.agrees for one in found):
        return Decision()
    nodes = {run.devices[one.member].pci_bus_id: one.best[0] for one in found}
    image = "the torchrun of an image may be too old for it" if arguments.container is not None else ""
    reason = image or torchrun.cannot_bind() or _forbidden(nodes)
    if reason:
        return Decision(words=f"not bound to the NUMA nodes that host copies prefer: {reason}")
    return Decision(True, "bound to their NUMA nodes, whose memory they reach fastest (--numa-binding node)")


def _forbidden(nodes: dict[str, int]) -> str:
    """Return why torchrun would not bind to these nodes (by PCI bus id), "" where it would: else ranks do not start."""
    usable = numa.usable_nodes()
    for pci_bus_id, node in nodes.items():
        if node not in usable:
            return f"this process may not use node {node}"
        if numa.node_of(pci_bus_id) != node:
            return f"the kernel does not say that {pci_bus_id} is on node {node}, and torchrun asks it"
    return ""
