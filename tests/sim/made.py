"""Small machines to simulate, for tests: round rates, so that a reader divides them in the head."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from collbench.backends.factory import open_simulated
from collbench.bench.plan import Request, make_plan
from collbench.bench.session import empty_run, wrong_data
from collbench.bench.sweep import Watcher, sweep
from collbench.model.errors import DataCorruption
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.runfile.codec import plain
from collbench.sim.cluster import Cluster
from collbench.sim.collectives import truth_of
from collbench.sim.fabrics import (
    FORMAT,
    VERSION,
    Bridge,
    Bundle,
    Delays,
    Engines,
    Fabric,
    Fault,
    Gpu,
    HostBridge,
    Noise,
    Sockets,
)
from collbench.sim.network import Transfer, network_of, shared_rates

SLOT = 20.0
QUIET = Noise(trial=0.0, batch=0.0)
# Every engine gets all of its path, so that a rate is the path's.
ALL_OF_IT = Engines(1, 1, 1, 1, 1, 1, 1, 1)


def gpu(index: int, bridge: str) -> Gpu:
    return Gpu("NVIDIA Test", 2**34, f"00000000:{index + 1:02X}:00.0", bridge, SLOT, nvlink_line_mbps=25000)


def tree(places: Sequence[str], bridges: Sequence[Bridge] = (), nodes: Sequence[int] = (0, 0, 1)) -> Fabric:
    """Return GPUs on the named places; the roots root0, root1, … belong to these NUMA nodes."""
    return Fabric(
        name="made",
        source="a test",
        gpus=tuple(gpu(index, place) for index, place in enumerate(places)),
        host_bridges=tuple(HostBridge(f"root{number}", node) for number, node in enumerate(nodes)),
        bridges=tuple(bridges),
        sockets=Sockets(gbs=30.0, latency_us=1.0, memory_gbs=50.0),
        engines=ALL_OF_IT,
        delays=Delays(),
        noise=QUIET,
    )


def mesh(count: int, links: dict[tuple[int, int], int], gbs: float = 10.0) -> Fabric:
    """Return GPUs of one root without peer access over PCIe, joined by NVLinks of `gbs` each."""
    bundles = tuple(Bundle(pair, number, gbs) for pair, number in links.items())
    return replace(tree(["root0"] * count), bundles=bundles, pcie_peers=False)


def complete(count: int, links: int = 1) -> Fabric:
    return mesh(count, {(a, b): links for a in range(count) for b in range(a + 1, count)})


def faulty(fabric: Fabric, *faults: Fault) -> Fabric:
    return replace(fabric, faults=faults)


def request(**given: object) -> Request:
    """Return a small `pairs` on the sim backend."""
    asked: dict[str, object] = {
        "backend": "sim",
        "devices": None,
        "sizes": (8, 2**20, 2**26),
        "copies": (Variant.PLAIN,),
        "collectives": (Work(Operation.ALLREDUCE),),
        "pairs": True,
        "dtype": "float32",
        "redop": "sum",
        "nccl": None,
        "seed": 1,
        "command": ("pairs",),
    }
    return Request(**{**asked, **given})  # type: ignore[arg-type]  # a test names fields


def copy_rates(fabric: Fabric, transfers: Sequence[Transfer]) -> list[float]:
    """Return each transfer's GB/s while all of them run."""
    return shared_rates(network_of(fabric), transfers)


def simulate(fabric: Fabric, request: Request, seed: int) -> Run:
    """Return the run that the request would give on the fabric; of its settings only `devices` names GPUs of it.

    The same seed gives the same run. Wrong data ends it, and is reported in `skipped`, as a session does it. Raises
    UsageError, and BackendError where nothing works any more.
    """
    opened = open_simulated(fabric, request.devices, seed)
    plan, skipped = make_plan(request, opened.backend)
    run = empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda _found: None, opened.flags, opened.clock)
    try:
        sweep(opened.backend, plan, run, request.stopping_rule(), random.Random(seed), watcher)
    except DataCorruption as error:
        run.skipped.append(wrong_data(error))
    run.health_after = opened.health()
    return run


def fabric_text(fabric: Fabric) -> str:
    """Return the fabric as its file's text."""
    return json.dumps({"format": FORMAT, "format_version": VERSION, **plain(fabric)})


def cluster_text(cluster: Cluster) -> str:
    """Return the cluster as its file's text."""
    return json.dumps(plain(cluster))


def allreduce_busbw(fabric: Fabric, members: Sequence[int]) -> float:
    """Return the busbw in GB/s of a large all-reduce on these GPUs, alone."""
    return truth_of(fabric).busbw(tuple(members))
