"""The PCIe tree of a fabric: what lies above each GPU, and the label that nvidia-smi would give a pair."""

from __future__ import annotations

from collections.abc import Mapping

from collbench.fabric.model import Bridge, Fabric, HostBridge


class Tree:
    """Where each GPU hangs. `above(gpu)` are its bridges from the slot upwards, `root(gpu)` its host bridge."""

    def __init__(self, fabric: Fabric) -> None:
        self._bridges: Mapping[str, Bridge] = {bridge.name: bridge for bridge in fabric.bridges}
        self._roots: Mapping[str, HostBridge] = {root.name: root for root in fabric.host_bridges}
        self._above = tuple(self._chain(gpu.bridge) for gpu in fabric.gpus)

    def above(self, gpu: int) -> tuple[Bridge, ...]:
        """Return the bridges between a GPU and its host bridge, the nearest first."""
        return self._above[gpu][0]

    def root(self, gpu: int) -> HostBridge:
        """Return the host bridge above a GPU."""
        return self._above[gpu][1]

    def meeting(self, a: int, b: int) -> Bridge | None:
        """Return the lowest bridge above both GPUs, None where only a host bridge or the sockets join them."""
        names = {bridge.name for bridge in self.above(b)}
        return next((bridge for bridge in self.above(a) if bridge.name in names), None)

    def label(self, a: int, b: int) -> str:
        """Return the PCIe label of a pair, with the meaning that nvidia-smi's legend gives it."""
        met = self.meeting(a, b)
        if met is not None:
            return "PIX" if self.above(a)[0] == self.above(b)[0] == met else "PXB"
        if self.root(a).name == self.root(b).name:
            return "PHB"
        return "NODE" if self.root(a).numa_node == self.root(b).numa_node else "SYS"

    def _chain(self, name: str) -> tuple[tuple[Bridge, ...], HostBridge]:
        chain = []
        while name in self._bridges:
            chain.append(self._bridges[name])
            name = self._bridges[name].parent
        return tuple(chain), self._roots[name]
