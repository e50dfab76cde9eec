"""A fault for each kind of verdict: it affects the named devices only, as method/verdicts.md defines the verdict."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from collbench.model.errors import UsageError
from collbench.model.run import Path, PeerStatus
from collbench.sim import fabrics, labels
from collbench.sim.fabrics import Fabric, FaultKind
from collbench.sim.network import Transfer
from tests.sim import faults, random_fabrics
from tests.sim.made import allreduce_busbw, copy_rates

KINDS = [
    *("data-corrupt", "hang", "nv-degraded", "nv-not-used", "linkcount-mismatch", "hidden-nvlink", "impossible"),
    *("order-inversion", "intra-label-outlier", "asymmetry", "p2p-slower-than-staged", "p2p-cap-mismatch"),
    *("pcie-degraded", "contention", "collective-contradiction", "virtual-flat"),
]
MACHINES = [*(fabrics.load(name) for name in fabrics.names())]
MACHINES += [random_fabrics.make(np.random.default_rng(seed)) for seed in range(12)]
Members = tuple[int, ...]


def rate(fabric: Fabric, a: int, b: int, *, staged: bool = False) -> float:
    return copy_rates(fabric, [Transfer(a, b, staged=staged)])[0]


def path(fabric: Fabric, members: Members) -> Path:
    return next(path for path in labels.paths(fabric) if set(path.devices) == set(members))


def pcie(fabric: Fabric) -> float:
    return {3: 15.75, 4: 31.5, 5: 63.0}[fabric.gpus[0].pcie_generation]


def degraded(_before: Fabric, after: Fabric, where: Members) -> bool:
    theory = path(after, where).theory_gbs or 0.0
    return pcie(after) < rate(after, *where) < 0.70 * theory


def not_used(_before: Fabric, after: Fabric, where: Members) -> bool:
    return path(after, where).nvlinks > 0 and rate(after, *where) <= pcie(after)


def miscounted(_before: Fabric, after: Fabric, where: Members) -> bool:
    wrong = {p.devices for p in labels.paths(after) if p.label != p.tool_label}
    return bool(wrong) and all(set(where) & set(pair) for pair in wrong)


def hidden(before: Fabric, after: Fabric, where: Members) -> bool:
    return path(after, where).nvlinks == 0 and rate(after, *where) == rate(before, *where) > 1.05 * pcie(after)


def inverted(_before: Fabric, after: Fabric, where: Members) -> bool:
    inside = [rate(after, a, b) for a in where for b in where if a != b and path(after, (a, b)).label in ("PIX", "PXB")]
    longer = [rate(after, *p.devices) for p in labels.paths(after) if p.label in ("PHB", "NODE", "SYS")]
    return min(inside) < 0.9 * max(longer)


def lower_than_its_like(before: Fabric, after: Fabric, where: Members) -> bool:
    a = where[0]
    others = [where[1]] if len(where) == 2 else [gpu for gpu in range(len(after.gpus)) if gpu != a]
    return all(rate(after, a, b) <= 0.85 * rate(before, a, b) for b in others)


def lopsided(_before: Fabric, after: Fabric, where: Members) -> bool:
    return rate(after, *where) < 0.9 * rate(after, *where[::-1])


def slower_than_staged(_before: Fabric, after: Fabric, where: Members) -> bool:
    return rate(after, *where) < 0.7 * rate(after, *where, staged=True)


def disagreeing(_before: Fabric, after: Fabric, where: Members) -> bool:
    reported = path(after, where)
    smi = set(reported.tool_peer_access)
    return str(reported.peer_access) == "OK" and (smi != {PeerStatus.OK} or reported.cuda_peers is False)


def below_the_maximum(_before: Fabric, after: Fabric, where: Members) -> bool:
    health, device = labels.health(after)[where[0]], labels.devices(after)[where[0]]
    now, most = (health.pcie_generation, health.pcie_width), (device.pcie_generation, device.pcie_width)
    return now != most and all(a is not None and b is not None and a <= b for a, b in zip(now, most, strict=True))


def disturbed(_before: Fabric, after: Fabric, where: Members) -> bool:
    if after.faults_of(FaultKind.BOTTLENECK):
        return copy_rates(after, [Transfer(0, 1), Transfer(2, 3)])[0] < 0.7 * rate(after, 0, 1)
    return all(labels.health(after)[gpu].processes == 1 for gpu in where)


def contradicting(before: Fabric, after: Fabric, where: Members) -> bool:
    pairs = [p.devices for p in labels.paths(after) if p.nvlinks] or [p.devices for p in labels.paths(after)]
    copies_agree = all(rate(after, *pair) == rate(before, *pair) for pair in pairs)
    return copies_agree and all(allreduce_busbw(after, p) < 0.5 * allreduce_busbw(before, p) for p in pairs)


def flat(_before: Fabric, after: Fabric, where: Members) -> bool:
    path_labels = {(p.label, p.tool_label, p.nvlinks) for p in labels.paths(after)}
    nodes = {device.numa_node for device in labels.devices(after)}
    return path_labels == {("PHB", "PHB", 0)} and nodes == {None} and after.virtualization == "pass-through"


SHOWS: dict[str, Callable[[Fabric, Fabric, Members], bool]] = {
    "data-corrupt": lambda _b, after, where: after.faults_of(FaultKind.CORRUPT_LINK)[0].devices == where,
    "hang": lambda _b, after, where: after.faults_of(FaultKind.HANGING_LINK)[0].devices == where,
    "nv-degraded": degraded,
    "nv-not-used": not_used,
    "linkcount-mismatch": miscounted,
    "hidden-nvlink": hidden,
    "impossible": lambda _b, after, where: after.faults_of(FaultKind.MISTIMED)[0].factor > 1.02,
    "order-inversion": inverted,
    "intra-label-outlier": lower_than_its_like,
    "asymmetry": lopsided,
    "p2p-slower-than-staged": slower_than_staged,
    "p2p-cap-mismatch": disagreeing,
    "pcie-degraded": below_the_maximum,
    "contention": disturbed,
    "collective-contradiction": contradicting,
    "virtual-flat": flat,
}


def healthy(fabric: Fabric) -> Fabric:
    return replace(fabric, faults=())


def test_the_kinds_are_methods() -> None:
    assert list(faults.kinds()) == KINDS == list(SHOWS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_shows_as_it_is_defined(kind: str) -> None:
    shown = 0
    for fabric in map(healthy, MACHINES):
        for seed in range(3):
            try:
                after, where = faults.with_fault(fabric, kind, np.random.default_rng(seed))
            except UsageError:
                assert kind not in faults.possible(fabric)
                continue
            assert SHOWS[kind](fabric, after, where), (kind, fabric.name, where)
            assert kind in FAULT_ITSELF or not SHOWS[kind](fabric, fabric, where), (kind, fabric.name, where)
            shown += 1
    assert shown > 5


# What is read from the fault itself, which a healthy fabric lacks.
FAULT_ITSELF = ("data-corrupt", "hang", "impossible")


def test_every_machine_has_a_place_for_some_faults_and_every_fault_has_one() -> None:
    assert min(len(faults.possible(healthy(fabric))) for fabric in MACHINES) >= 4
    assert {kind for fabric in MACHINES for kind in faults.possible(healthy(fabric))} == set(KINDS)
