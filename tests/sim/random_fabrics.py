"""Random plausible machines, for tests of verdicts and choices: 4 to 16 GPUs, with one fault or none.

The families are those of method/verdicts.md 2 and method/choosing.md 6. Rates are drawn around what was measured of
such machines.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from collbench.sim.fabrics import (
    Bridge,
    Bundle,
    Delays,
    Engines,
    Fabric,
    Fault,
    FaultKind,
    Gpu,
    HostBridge,
    Noise,
    Sockets,
    Switch,
)

_GIB = 2**30
# Achieved GB/s of a ×16 slot by generation: about 84% of theory, as packets of 256 B leave of it.
_SLOT_GBS = {3: 12.6, 4: 26.0, 5: 53.0}
# (name, line rate in MB/s, achieved GB/s a link, PCIe generation); docs/method/verdicts.md 2 and machine/theory.py.
_SWITCHED = (("A100", 25000, 22.8, 4), ("H100", 26562, 22.0, 5), ("H200", 26562, 22.0, 5), ("B200", 53125, 43.0, 5))
_MESHED = (("V100", 25781, 24.2, 3), ("P100", 20000, 18.3, 3))
_BRIDGED = (("RTX A6000", 14062, 13.2, 4, 4), ("RTX 3090", 14062, 13.2, 4, 4), ("TITAN RTX", 25781, 24.2, 2, 3))
_SLOTTED = (("A40", 4), ("L40S", 4), ("T4", 3), ("H100 PCIe", 5))
# Six links a V100 [docs/method/choosing.md 6, DGX-1V]: a mesh gives them to its neighbors in ones and twos.
_MESH_LINKS = 6
_FAULTY = 0.35  # share of machines with one slow link or GPU


def make(rng: np.random.Generator) -> Fabric:
    """Return a random plausible machine; the same state of `rng` gives the same one."""
    families = (_nvswitch, _mesh, _bridged, _pcie_only)
    fabric = families[int(rng.integers(len(families)))](rng)
    noise = Noise(trial=float(rng.uniform(0.001, 0.02)), batch=float(rng.uniform(0.0002, 0.003)))
    number = int(rng.integers(10**6))
    fabric = replace(fabric, name=f"random-{number:06d}", noise=noise, delays=_delays(rng))
    return _with_a_slow_part(fabric, rng) if rng.random() < _FAULTY else fabric


def _nvswitch(rng: np.random.Generator) -> Fabric:
    name, line, each, generation = _SWITCHED[int(rng.integers(len(_SWITCHED)))]
    count, links = int(rng.choice((4, 8, 8, 16))), 12 if name == "A100" else 18
    shape = _tree(rng, count, generation, sockets=2, line=line, name=name)
    port = links * each * float(rng.uniform(0.97, 1.0))
    return replace(shape, switches=(Switch(tuple(range(count)), links, port),), pcie_peers=True)


def _mesh(rng: np.random.Generator) -> Fabric:
    """Return GPUs that are linked to some of the others, by one or two links each, such as hybrid cube meshes."""
    name, line, each, generation = _MESHED[int(rng.integers(len(_MESHED)))]
    count = int(rng.choice((4, 6, 8, 8, 8)))
    shape = _tree(rng, count, generation, sockets=2, line=line, name=name)
    free_links = [_MESH_LINKS if name == "V100" else 4] * count
    links: dict[tuple[int, int], int] = {}
    ring = [int(gpu) for gpu in rng.permutation(count)]
    backbone = [tuple(sorted(pair)) for pair in zip(ring, [*ring[1:], ring[0]], strict=True)]
    others = [pair for pair in combinations(range(count), 2) if pair not in backbone]
    chosen_backbone = [backbone[int(index)] for index in rng.permutation(count)][
        : count if rng.random() < 0.7 else count - 2
    ]
    for a, b in (*chosen_backbone, *(others[int(index)] for index in rng.permutation(len(others)))):
        max_links = int(rng.integers(1, 3)) if rng.random() < 0.8 else 0
        new_links = min(max_links, free_links[a], free_links[b])
        if new_links:
            links[a, b] = new_links
            free_links[a] -= new_links
            free_links[b] -= new_links
    bundles = tuple(Bundle(pair, number, each) for pair, number in sorted(links.items()))
    return replace(shape, bundles=bundles, pcie_peers=bool(rng.random() < 0.3))


def _bridged(rng: np.random.Generator) -> Fabric:
    """Return cards in pairs with an NVLink bridge on each; where the cards sit is another matter."""
    name, line, each, links, generation = _BRIDGED[int(rng.integers(len(_BRIDGED)))]
    count = int(rng.choice((4, 4, 6, 8, 8, 10)))
    shape = _tree(rng, count, generation, sockets=int(rng.integers(1, 3)), line=line, name=name)
    order = list(range(count)) if rng.random() < 0.7 else [int(gpu) for gpu in rng.permutation(count)]
    pairs = [(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=True)]
    bundles = tuple(Bundle(pair, links, each) for pair in sorted(pairs))
    return replace(shape, bundles=bundles, pcie_peers=bool(rng.random() < 0.6))


def _pcie_only(rng: np.random.Generator) -> Fabric:
    name, generation = _SLOTTED[int(rng.integers(len(_SLOTTED)))]
    count = int(rng.choice((4, 4, 5, 6, 8, 8, 10, 12, 16)))
    shape = _tree(rng, count, generation, sockets=int(rng.integers(1, 3)), line=None, name=name)
    return replace(shape, pcie_peers=bool(rng.random() < 0.8))


def _tree(
    rng: np.random.Generator, count: int, generation: int, *, sockets: int, line: int | None, name: str
) -> Fabric:
    """Return the GPUs in a PCIe tree: a root for each socket and one to four bridges below it, or none."""
    slot = _SLOT_GBS[generation] * float(rng.uniform(0.95, 1.0))
    crossing = None if rng.random() < 0.5 else slot * float(rng.uniform(0.6, 0.95))
    roots = tuple(HostBridge(f"root{node}", node, peer_gbs=crossing) for node in range(sockets))
    below = int(rng.integers(0, 5))
    uplink = slot * float(rng.choice((1.0, 1.0, 0.5)))
    bridges = tuple(
        Bridge(f"switch{node}.{number}", f"root{node}", uplink, uplink)
        for node in range(sockets)
        for number in range(below)
    )
    parents = [bridge.name for bridge in bridges] or [root.name for root in roots]
    gpus = tuple(
        Gpu(
            name=f"NVIDIA {name}",
            memory_bytes=80 * _GIB,
            pci_bus_id=f"00000000:{0x10 + 0x0B * index:02X}:00.0",
            bridge=parents[index * len(parents) // count],
            pcie_gbs=slot,
            pcie_generation=generation,
            nvlink_line_mbps=line,
        )
        for index in range(count)
    )
    return Fabric(
        name="random",
        source="random_fabrics.make: no machine of anybody's",
        gpus=gpus,
        host_bridges=roots,
        bridges=bridges,
        sockets=Sockets(gbs=slot * float(rng.uniform(0.7, 2.0)), memory_gbs=slot * float(rng.uniform(3.0, 6.0))),
        engines=_engines(rng),
    )


def _engines(rng: np.random.Generator) -> Engines:
    """Return shares near the measured ones [H200x4]; NCCL's over PCIe lie between 0.6 and 0.9 of a copy's."""
    return Engines(
        ce_read=float(rng.uniform(0.98, 1.0)),
        sm_write=float(rng.uniform(0.92, 0.98)),
        sm_read=float(rng.uniform(0.92, 0.98)),
        staged=float(rng.uniform(0.6, 0.8)),
        nccl_nvlink=float(rng.uniform(0.88, 0.95)),
        nccl_pcie=float(rng.uniform(0.6, 0.9)),
        nccl_staged=float(rng.uniform(0.4, 0.6)),
    )


def _delays(rng: np.random.Generator) -> Delays:
    factor = float(rng.uniform(0.8, 1.6))
    usual = Delays()
    return replace(usual, copy=usual.copy * factor, kernel=usual.kernel * factor, collective=usual.collective * factor)


def _with_a_slow_part(fabric: Fabric, rng: np.random.Generator) -> Fabric:
    factor, count = float(rng.uniform(0.4, 0.9)), len(fabric.gpus)
    if rng.random() < 0.3:
        fault = Fault(FaultKind.SLOW_GPU, (int(rng.integers(count)),), factor=factor)
    else:
        a, b = (int(gpu) for gpu in rng.choice(count, 2, replace=False))
        fault = Fault(FaultKind.SLOW_LINK, (a, b), factor=factor, one_way=bool(rng.random() < 0.3))
    return replace(fabric, faults=(fault,))
