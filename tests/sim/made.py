"""Small machines to simulate, for tests, with round rates for mental arithmetic."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collbench.cluster.simulated import Cluster
from collbench.measurement.backends.factory import open_simulated
from collbench.measurement.plan import Request, empty_run, make_plan
from collbench.measurement.sweep import Watcher, sweep, wrong_data
from collbench.model.errors import DataCorruption
from collbench.model.operations import Operation, Work
from collbench.model.run import Run
from collbench.runfile.codec import plain
from collbench.sim.collectives import truth_of
from collbench.sim.fabrics import (
    FORMAT,
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
    load,
)
from collbench.sim.network import Transfer, network_of, shared_rates
from tests.builders import ALL

SLOT = 20.0
QUIET = Noise(trial=0.0, batch=0.0)
# Every engine reaches its path's full rate.
ALL_OF_IT = Engines(1, 1, 1, 1, 1, 1, 1, 1)


def gpu(index: int, bridge: str) -> Gpu:
    return Gpu("NVIDIA Test", 2**34, f"00000000:{index + 1:02X}:00.0", bridge, SLOT, nvlink_line_mbps=25000)


def tree(bridge_of_gpu: Sequence[str], bridges: Sequence[Bridge] = ()) -> Fabric:
    """Return a fabric with one GPU below each named bridge or root; root0 and root1 belong to one NUMA node."""
    return Fabric(
        name="made",
        source="a test",
        gpus=tuple(gpu(index, bridge) for index, bridge in enumerate(bridge_of_gpu)),
        host_bridges=tuple(HostBridge(f"root{number}", node) for number, node in enumerate((0, 0, 1))),
        bridges=tuple(bridges),
        sockets=Sockets(gbs=30.0, latency_us=1.0, memory_gbs=50.0),
        engines=ALL_OF_IT,
        delays=Delays(),
        noise=QUIET,
    )


def mesh(count: int, links: dict[tuple[int, int], int]) -> Fabric:
    """Return GPUs of one root without peer access over PCIe, connected by NVLinks of 10 GB/s each."""
    bundles = tuple(Bundle(pair, number, 10.0) for pair, number in links.items())
    return replace(tree(["root0"] * count), bundles=bundles, pcie_peers=False)


def complete(count: int, links: int = 1) -> Fabric:
    return mesh(count, {(a, b): links for a in range(count) for b in range(a + 1, count)})


def faulty(fabric: Fabric, *faults: Fault) -> Fabric:
    return replace(fabric, faults=faults)


def request(**fields: object) -> Request:
    """Return the request of a small `pairs` on the sim backend."""
    small = replace(ALL, backend="sim", collectives=(Work(Operation.ALLREDUCE),), seed=1, command=("pairs",))
    return replace(small, **{"sizes": (8, 2**20, 2**26)} | fields)  # type: ignore[arg-type]  # a test names fields


def copy_rates(fabric: Fabric, transfers: Sequence[Transfer]) -> list[float]:
    """Return each transfer's GB/s while all of them run."""
    return shared_rates(network_of(fabric), transfers)


def simulate(fabric: Fabric, request: Request, seed: int) -> Run:
    """Return the run of the request on the fabric. The same seed gives the same run.

    Wrong data ends the run and is reported in `skipped`, as in a session. Raises UsageError, and BackendError where no
    data point can be measured any more.
    """
    opened = open_simulated(fabric, request.devices, seed)
    plan, skipped = make_plan(request, opened.backend)
    run = empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda: None, opened.flags, opened.clock)
    try:
        sweep(opened.backend, plan, run, request.stopping_rule(), random.Random(seed), watcher)
    except DataCorruption as error:
        run.skipped.append(wrong_data(error))
    run.health_after = opened.health()
    return run


def fabric_text(fabric: Fabric) -> str:
    """Return the text of the fabric's file."""
    return json.dumps({**FORMAT.head, **plain(fabric)})


def faulty_file(machine: str, *faults: Fault, name: str = "mine") -> tuple[str, ...]:
    """Write NAME.json, a shipped machine with these faults, here; return the options that simulate it."""
    Path(f"{name}.json").write_text(fabric_text(replace(load(machine), name=name, faults=faults)), encoding="utf-8")
    return ("--backend", "sim", "--fabric", f"{name}.json")


def cluster_text(cluster: Cluster) -> str:
    """Return the text of the cluster's file."""
    return json.dumps(plain(cluster))


def allreduce_busbw(fabric: Fabric, members: Sequence[int]) -> float:
    """Return the busbw in GB/s of a large isolated all-reduce on these GPUs."""
    return truth_of(fabric).busbw(tuple(members))
