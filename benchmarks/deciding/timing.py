"""How long a choice takes: eight of sixteen devices exactly, eight of 1,024 by the heuristic search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from collbench.analysis.search import search
from collbench.analysis.select import choose
from collbench.analysis.wiring import Wiring, wiring
from collbench.model.run import Device, Path
from collbench.sim import fabrics
from collbench.sim.fabrics import Bundle, Fabric, Fault, FaultKind
from tests.sim import random_fabrics

from .bench import Asked, Part, Row, drawn_seed, measured, noisy, pair_rates, rng_of

_PART = 6
_N, _K, _MANY = 16, 8, 1024
EXACT_BAR_S, HEURISTIC_BAR_S = 1.0, 2.0
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """How long one choice took."""

    machine: str
    gpus: int
    k: int
    seconds: float


def run(asked: Asked) -> Part:
    """Return the slowest of three times for each kind of machine, in seconds of this process."""
    exact = [_exact(name, rng_of(asked.seed, _PART, index)) for index, name in enumerate(MACHINES)]
    slowest = max(exact, key=lambda t: t.seconds)
    wired = wide(rng_of(asked.seed, _PART, len(exact)))
    many = Trial("128 switches of eight", _MANY, _K, seconds(lambda: search(wired, _K, 0.02)))
    words = f"{slowest.seconds:.2f} s ({slowest.machine})"
    rows = [
        Row("k=8 of 16, exact, the slowest of five kinds of machines", words, "≤ 1 s", slowest.seconds <= EXACT_BAR_S),
        Row("k=8 of 1,024, heuristic search", f"{many.seconds:.2f} s", "≤ 2 s", many.seconds <= HEURISTIC_BAR_S),
    ]
    return Part(rows, [*exact, many], ["processor time, the slowest of three"])


def _exact(name: str, rng: np.random.Generator) -> Trial:
    one = measured(noisy(MACHINES[name](rng), rng), pair_rates(), drawn_seed(rng))
    return Trial(name, _N, _K, seconds(lambda: choose(one, _K)))


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of the slowest of three calls, in seconds."""
    found = []
    for _ in range(_REPEATS):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return round(max(found), 3)


def _of_kind(wanted: Callable[[Fabric], bool], rng: np.random.Generator) -> Fabric:
    while True:
        fabric = random_fabrics.make(rng)
        if len(fabric.gpus) == _N and wanted(fabric):
            return replace(fabric, faults=())


def switched(rng: np.random.Generator) -> Fabric:
    return _of_kind(lambda fabric: bool(fabric.switches), rng)


def with_a_slow_gpu(rng: np.random.Generator) -> Fabric:
    return replace(switched(rng), faults=(Fault(FaultKind.SLOW_GPU, (3,), factor=0.8),))


def slotted(rng: np.random.Generator) -> Fabric:
    return _of_kind(lambda fabric: not fabric.switches and not fabric.bundles and len(fabric.bridges) > 1, rng)


def bridged(rng: np.random.Generator) -> Fabric:
    pairs = tuple(Bundle((a, a + 1), 4, 13.2) for a in range(0, _N, 2))
    return _nvlinked(slotted(rng), pairs, 14062)


def meshed(rng: np.random.Generator) -> Fabric:
    """Return two hybrid cube meshes side by side, and one link between each two that correspond."""
    cube = [(bundle.gpus, bundle.links) for bundle in fabrics.load("dgx-1v").bundles]
    both = [((a + 8 * half, b + 8 * half), links) for half in (0, 1) for (a, b), links in cube]
    between = [((a, a + 8), 1) for a in range(8)]
    return _nvlinked(slotted(rng), tuple(Bundle(pair, links, 24.2) for pair, links in (*both, *between)), 25781)


def _nvlinked(fabric: Fabric, bundles: tuple[Bundle, ...], line: int) -> Fabric:
    gpus = tuple(replace(gpu, name="Tesla V100", nvlink_line_mbps=line) for gpu in fabric.gpus)
    return replace(fabric, gpus=gpus, bundles=bundles)


MACHINES: dict[str, Callable[[np.random.Generator], Fabric]] = {
    "NVSwitch, all tied": switched,
    "NVSwitch with a slow GPU": with_a_slow_gpu,
    "PCIe": slotted,
    "bridged pairs": bridged,
    "mesh of two cubes": meshed,
}


def wide(rng: np.random.Generator) -> Wiring:
    """Return the wiring of 1,024 GPUs: switches of eight, slower between them, all rates with 2 % noise."""
    devices = [Device(i, f"SIM-{i}", "NVIDIA H200", f"{i:08X}:00:00.0", host=f"node{i // 8}") for i in range(_MANY)]
    near = np.equal.outer(np.arange(_MANY) // 8, np.arange(_MANY) // 8)
    rates = np.where(near, 300.0, 45.0) * np.exp(0.02 * rng.standard_normal((_MANY, _MANY)))
    rates = np.minimum(rates, rates.T)
    np.fill_diagonal(rates, 0.0)
    paths = {
        (a, b): Path((a, b), "NV18" if near[a, b] else "SYS", "SYS", 18 if near[a, b] else 0)
        for a, b in combinations(range(_MANY), 2)
    }
    return wiring(devices, paths, rates)
