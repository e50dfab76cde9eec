"""One fault for each kind of verdict (docs/method/verdicts.md), injected into a healthy fabric at random devices.

A FaultKind is what is wrong with a machine; the kinds here are the verdicts that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from collbench.machine import theory
from collbench.model.errors import UsageError
from collbench.model.run import Path, PeerStatus
from collbench.sim.fabrics import Fabric, Fault, FaultKind, ReportedPath
from collbench.sim.network import Medium, Network, network_of, paths, slots_limit

Members = tuple[int, ...]
FaultyFabric = tuple[Fabric, Members]  # and the GPUs that a verdict should name

# docs/method/verdicts.md 5: below 0.70 of the links' rate a link is degraded; at PCIe's rate it may not be in use.
_DEGRADED, _ABOVE_PCIE = 0.68, 1.1
# Faster than PCIe can be by more than the 5% that a hidden NVLink shows.
_FASTER_THAN_PCIE = 1.15
# A lower tier and more than 10% less, yet above 0.70 of theory where a healthy link reaches 0.88 [H200x4].
_SLOW_FACTOR = 0.82
_SLOW_ROW_FACTOR = 0.85  # what a slow GPU must do to each of its links to count as a slow row
# Of theory. Without NVLinks in the labels a pair might have a hidden one, so the rate must exceed that of all NVLinks.
_IMPOSSIBLE_FACTOR = 1.25
_BEYOND_ALL_GBS = 1200.0
_LOAD_FACTOR, _MIN_RATE_RATIO = 0.6, 0.8


def kinds() -> tuple[str, ...]:
    """Return the kinds that `with_fault` knows: those of docs/check.md, in lower case with dashes."""
    return tuple(_MAKERS)


def possible(fabric: Fabric) -> tuple[str, ...]:
    """Return the kinds of fault that can be injected into this fabric."""
    possible_kinds = []
    for kind in _MAKERS:
        try:
            with_fault(fabric, kind, np.random.default_rng(0))
        except UsageError:
            continue
        possible_kinds.append(kind)
    return tuple(possible_kinds)


def with_fault(fabric: Fabric, kind: str, rng: np.random.Generator) -> FaultyFabric:
    """Return the fabric with one fault of this kind, and the GPUs that a verdict should name.

    Raises UsageError if the fabric cannot have it, such as an NVLink's fault without NVLinks.
    """
    name = kind.lower().replace("_", "-")
    if name not in _MAKERS:
        raise UsageError(f"fault '{kind}' is unknown: choose from {', '.join(_MAKERS)}")
    return _MAKERS[name](fabric, rng)


def _faulty(fabric: Fabric, fault: Fault) -> FaultyFabric:
    return replace(fabric, faults=(*fabric.faults, fault)), fault.devices or tuple(range(len(fabric.gpus)))


def _random_pair(fabric: Fabric, rng: np.random.Generator, fits: Callable[[Path, Network], bool], what: str) -> Members:
    """Return a random pair that fits. Raises UsageError."""
    network = network_of(fabric)
    pairs = [path.devices for path in paths(fabric) if fits(path, network)]
    return _one_of(pairs, rng, f"fabric {fabric.name} has no {what}")


def _one_of(members: Sequence[Members], rng: np.random.Generator, why: str) -> Members:
    if not members:
        raise UsageError(f"{why}: use another fabric or another fault")
    return members[int(rng.integers(len(members)))]


def _either_direction(pair: Members, rng: np.random.Generator) -> Members:
    return pair if rng.random() < 0.5 else pair[::-1]


def _any(_path: Path, _network: Network) -> bool:
    return True


def _on_nvlink(path: Path, _network: Network) -> bool:
    return path.nvlinks > 0


def _reachable(path: Path, network: Network) -> bool:
    return network.reaches(*path.devices)


def _over_pcie(path: Path, network: Network) -> bool:
    return network.direct[path.devices].medium is Medium.PCIE


def _path(fabric: Fabric, pair: Members) -> Path:
    return next(path for path in paths(fabric) if path.devices == pair)


def _isolated_gbs(network: Network, path: Path) -> float:
    """Return what a copy between two GPUs gets by itself, GB/s."""
    return network.alone_gbs(network.direct[path.devices])


def _slots_gbs(fabric: Fabric, path: Path) -> float:
    """Return what the slower slot of a pair can do in theory, GB/s; 0 if that is not known."""
    limit = slots_limit(fabric, *path.devices)
    return limit.gbs if limit else 0.0


def _has_equals(path: Path, network: Network) -> bool:
    """Return whether two other pairs or more have the same label and peer access: an outlier needs a class."""
    alike = [other for other in paths(network.fabric) if other.label == path.label]
    return len(alike) > 2 and _reachable(path, network)


def _data_corrupt(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    pair = _either_direction(_random_pair(fabric, rng, _reachable, "pair with peer access"), rng)
    offset = int(rng.integers(2**20))
    return _faulty(fabric, Fault(FaultKind.CORRUPT_LINK, pair, one_way=True, offset=offset))


def _hang(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    return _faulty(
        fabric, Fault(FaultKind.HANGING_LINK, _random_pair(fabric, rng, _reachable, "pair with peer access"))
    )


def _nv_degraded(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """The rate lies between what PCIe could carry and 0.70 of theory."""

    def fits(path: Path, _network: Network) -> bool:
        return path.nvlinks > 0 and _ABOVE_PCIE * _slots_gbs(fabric, path) < _DEGRADED * (path.theory_gbs or 0.0)

    pair = _random_pair(fabric, rng, fits, "NVLink that is degraded before it is as slow as PCIe")
    path, network = _path(fabric, pair), network_of(fabric)
    target = max((path.theory_gbs or 0.0) * 0.6, _ABOVE_PCIE * _slots_gbs(fabric, path))
    return _faulty(fabric, Fault(FaultKind.SLOW_LINK, pair, factor=target / _isolated_gbs(network, path)))


def _nv_not_used(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    return _faulty(fabric, Fault(FaultKind.NVLINK_UNUSED, _random_pair(fabric, rng, _on_nvlink, "NVLink")))


def _linkcount_mismatch(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """One link is down where there are several: a GPU's at a switch, a bundle's between two GPUs."""
    bundles = [bundle.gpus for bundle in fabric.bundles if bundle.links > 1]
    ports = [(gpu,) for switch in fabric.switches if switch.links > 1 for gpu in switch.gpus]
    pair = _one_of([*bundles, *ports], rng, f"fabric {fabric.name} has no bundle of NVLinks")
    return _faulty(fabric, Fault(FaultKind.LINKS_DOWN, pair, links=1))


def _hidden_nvlink(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    def fits(path: Path, network: Network) -> bool:
        return path.nvlinks > 0 and _isolated_gbs(network, path) > _FASTER_THAN_PCIE * _slots_gbs(fabric, path)

    return _faulty(fabric, Fault(FaultKind.HIDDEN_NVLINK, _random_pair(fabric, rng, fits, "NVLink faster than PCIe")))


def _impossible(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """The clock is so wrong on one pair that its rate exceeds the path's limit."""
    pair = _random_pair(fabric, rng, _reachable, "pair with peer access")
    path = _path(fabric, pair)
    limit = (path.theory_gbs or 0.0) * _IMPOSSIBLE_FACTOR if path.nvlinks else _BEYOND_ALL_GBS
    return _faulty(fabric, Fault(FaultKind.MISTIMED, pair, factor=limit / _isolated_gbs(network_of(fabric), path)))


def _order_inversion(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """Peer traffic below one PCIe switch is sent up and back, so that it is slower than a path with a worse label."""
    network = network_of(fabric)
    candidates = []
    for bridge in fabric.bridges:
        under = [path.devices for path in paths(fabric) if network.tree.meeting(*path.devices) == bridge]
        slow = [pair for pair in under if network.direct[pair].medium is Medium.PCIE]
        longer_paths = [
            path for path in paths(fabric) if path.ancestor in ("PHB", "NODE", "SYS") and _over_pcie(path, network)
        ]
        if slow and longer_paths:
            worst = max(_isolated_gbs(network, path) for path in longer_paths)
            candidates.append((bridge, worst, tuple(sorted({gpu for pair in slow for gpu in pair}))))
    if not candidates:
        raise UsageError(f"fabric {fabric.name} has no PCIe switch with a longer alternative path: use another fabric")
    bridge, worst, members = candidates[int(rng.integers(len(candidates)))]
    slow_bridge = replace(bridge, peer_gbs=worst * _SLOW_FACTOR)
    return replace(
        fabric, bridges=tuple(slow_bridge if other == bridge else other for other in fabric.bridges)
    ), members


def _intra_label_outlier(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """One data point, or one GPU's whole row, is slower than the others of its label."""
    pair = _random_pair(fabric, rng, _has_equals, "three pairs of one label")
    row = Fault(FaultKind.SLOW_GPU, pair[:1], factor=_SLOW_FACTOR)
    if len(fabric.gpus) > 3 and rng.random() < 0.5 and _slows_its_row(fabric, row):
        return _faulty(fabric, row)
    return _faulty(fabric, Fault(FaultKind.SLOW_LINK, pair, factor=_SLOW_FACTOR))


def _slows_its_row(fabric: Fabric, fault: Fault) -> bool:
    """Return whether a slow GPU shows on all of its links: an uplink may be what limits some of them."""
    before, after = network_of(fabric), Network(_faulty(fabric, fault)[0])
    links = [link for link in before.direct if link[0] in fault.devices]
    rates = [(before.alone_gbs(before.direct[link]), after.alone_gbs(after.direct[link])) for link in links]
    return all(slow <= _SLOW_ROW_FACTOR * fast for fast, slow in rates)


def _asymmetry(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    pair = _either_direction(_random_pair(fabric, rng, _reachable, "pair with peer access"), rng)
    return _faulty(fabric, Fault(FaultKind.SLOW_LINK, pair, factor=_SLOW_FACTOR, one_way=True))


def _p2p_slower_than_staged(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    pair = _random_pair(fabric, rng, _over_pcie, "peer access over PCIe")
    return _faulty(fabric, Fault(FaultKind.P2P_SLOW, pair, factor=0.5))


def _p2p_cap_mismatch(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """CUDA denies peer access that NVML and nvidia-smi report, or nvidia-smi's matrix denies it where CUDA does not."""
    network = network_of(fabric)
    pair = _random_pair(fabric, rng, _reachable, "pair with peer access")
    a, b = pair
    reported = ReportedPath((a, b), tool_peer_access=PeerStatus.NS)
    if network.direct[a, b].medium is Medium.PCIE and rng.random() < 0.5:
        reported = ReportedPath((a, b), peer_access=PeerStatus.OK, tool_peer_access=PeerStatus.OK, cuda_peers=False)
    return replace(fabric, labels=(*fabric.labels, reported)), pair


def _pcie_degraded(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    gpu = int(rng.integers(len(fabric.gpus)))
    placement = fabric.gpus[gpu]
    narrow = Fault(FaultKind.PCIE_DEGRADED, (gpu,), width=max(1, placement.pcie_width // 2))
    slow = Fault(FaultKind.PCIE_DEGRADED, (gpu,), generation=placement.pcie_generation - 1)
    known = theory.pcie(placement.pcie_generation - 1, placement.pcie_width) is not None
    return _faulty(fabric, slow if known and rng.random() < 0.5 else narrow)


def _contention(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """A foreign job on one GPU or between two, or a bottleneck that shows only when pairs run concurrently."""
    network = network_of(fabric)
    routes = network.direct.values()
    isolated_gbs = [network.alone_gbs(route) for route in routes]
    # Two concurrent pairs must exceed it, and an isolated pair must not, so the pairs' rates have to be similar.
    narrow = len(fabric.gpus) > 3 and min(isolated_gbs) > _MIN_RATE_RATIO * max(isolated_gbs)
    narrow = narrow and all(route.medium is not Medium.STAGED for route in routes)
    # Longer PCIe paths have shared links: contention there contradicts no label.
    narrow = narrow and all(path.nvlinks or path.label == "PIX" for path in paths(fabric))
    where = rng.integers(3 if narrow else 2)
    if where == 0:
        return _faulty(
            fabric, Fault(FaultKind.FOREIGN_LOAD, (int(rng.integers(len(fabric.gpus))),), factor=_LOAD_FACTOR)
        )
    if where == 1:
        pair = _either_direction(_random_pair(fabric, rng, _any, "pair"), rng)
        return _faulty(fabric, Fault(FaultKind.FOREIGN_LOAD, pair, factor=_LOAD_FACTOR))
    return _faulty(fabric, Fault(FaultKind.BOTTLENECK, gbs=max(isolated_gbs) * 1.05))


def _collective_contradiction(fabric: Fabric, rng: np.random.Generator) -> FaultyFabric:
    """NCCL is reported not to use peer access, or is slow without a visible cause."""
    network = network_of(fabric)
    nvlinked = [p.devices for p in paths(fabric) if network.direct[p.devices].medium is Medium.NVLINK]
    if nvlinked and rng.random() < 0.5:
        return _faulty(fabric, Fault(FaultKind.P2P_DISABLED))
    return _faulty(fabric, Fault(FaultKind.SLOW_COLLECTIVES, factor=0.2))


def _virtual_flat(fabric: Fabric, _rng: np.random.Generator) -> FaultyFabric:
    """A virtual machine: one host bridge above all GPUs, no NUMA node reported, and no NVLink shown."""
    every = tuple(range(len(fabric.gpus)))
    flat = tuple(ReportedPath((a, b), label="PHB", ancestor="PHB", tool_label="PHB") for a, b in combinations(every, 2))
    hidden = (Fault(FaultKind.HIDDEN_NVLINK),) if fabric.bundles or fabric.switches else ()
    faults = (*fabric.faults, *hidden)
    return replace(fabric, labels=flat, faults=faults, virtualization="pass-through", numa_hidden=True), every


_MAKERS: dict[str, Callable[[Fabric, np.random.Generator], FaultyFabric]] = {
    "data-corrupt": _data_corrupt,
    "hang": _hang,
    "nv-degraded": _nv_degraded,
    "nv-not-used": _nv_not_used,
    "linkcount-mismatch": _linkcount_mismatch,
    "hidden-nvlink": _hidden_nvlink,
    "impossible": _impossible,
    "order-inversion": _order_inversion,
    "intra-label-outlier": _intra_label_outlier,
    "asymmetry": _asymmetry,
    "p2p-slower-than-staged": _p2p_slower_than_staged,
    "p2p-cap-mismatch": _p2p_cap_mismatch,
    "pcie-degraded": _pcie_degraded,
    "contention": _contention,
    "collective-contradiction": _collective_contradiction,
    "virtual-flat": _virtual_flat,
}
