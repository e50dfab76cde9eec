"""Small machines, measurements and runs for tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from collbench.measurement.plan import Request
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import (
    CommandKind,
    DataPoint,
    Device,
    Flag,
    FlagKind,
    Machine,
    Measurement,
    Path,
    PeerReadWrite,
    PeerStatus,
    Run,
    Sample,
    Settings,
    SkipKind,
    Skipped,
    StopReason,
)

GIB = 2**30
Pair = tuple[int, int]


def nvml_says(reading: str, writing: str = "") -> PeerReadWrite:
    """Return NVML's status of peer access; without `write`, writing has the status of reading."""
    return PeerReadWrite(PeerStatus(reading), PeerStatus(writing or reading))


def smi_says(there: str, back: str = "") -> tuple[PeerStatus, ...]:
    """Return the statuses that `nvidia-smi topo -p2p r` gives both directions; without `back` they are the same."""
    return PeerStatus(there), PeerStatus(back or there)


def gpus(count: int, name: str = "NVIDIA H200") -> tuple[Device, ...]:
    return tuple(
        Device(i, f"GPU-{i}", name, pci_bus_id=f"00000000:{i + 1:02X}:00.0", numa_node=0, cpu_affinity="0-63")
        for i in range(count)
    )


def paths(count: int, label: str = "NV18", but: Mapping[Pair, str] | None = None) -> tuple[Path, ...]:
    """Return every pair's path with one label, `but` for some."""
    return tuple(Path(pair, (but or {}).get(pair, label)) for pair in combinations(range(count), 2))


def throttled(position: int, reason: str = "SW power cap") -> Flag:
    return Flag(FlagKind.THROTTLED, (position,), reason=reason)


def hot(position: int, celsius: int) -> Flag:
    return Flag(FlagKind.HOT, (position,), celsius)


def shared(position: int, others: int = 1) -> Flag:
    return Flag(FlagKind.SHARED, (position,), others)


def in_words(text: str, kind: FailureKind | None = None) -> Failure:
    """Return a failure known only as text, as another rank or an older file reports it."""
    return Failure(kind, Cause.REPORTED, detail=text)


def left_out(text: str) -> Skipped:
    """Return a skip known only as text, as an older file has it."""
    return Skipped(SkipKind.OTHER, detail=text)


def measured(
    operation: Operation,
    members: Sequence[int],
    gbs: float | Iterable[float],
    size: int = GIB,
    trials: int = 5,
    launch: float | None = None,
) -> Measurement:
    """Return a measurement with algbw `gbs` in GB/s, one value for all trials or one for each; two batches a trial."""
    rates = [gbs] * trials if isinstance(gbs, float | int) else list(gbs)
    samples = [Sample((size / rate / 1e9,) * 2, 1, concurrent=False, launch_seconds=launch) for rate in rates]
    return Measurement(DataPoint(operation, tuple(members), size), samples, StopReason.PRECISION)


def noisy(gbs: float, sigma: float, seed: int, trials: int = 5) -> list[float]:
    """Return one rate a trial, log-normal around `gbs`."""
    rng = random.Random(seed)
    return [gbs * rng.lognormvariate(0, sigma) for _ in range(trials)]


def run_of(
    devices: Sequence[Device],
    measurements: Iterable[Measurement],
    links: Sequence[Path] | None = None,
    *,
    backend: str = "cuda",
    command: tuple[str, ...] = ("pairs",),
    machine: Machine | None = None,
) -> Run:
    """Return a finished run; its operations and sizes are those of the measurements."""
    taken = list(measurements)
    return Run(
        backend=backend,
        version="0.1.0",
        started="2026-01-02T03:04:05Z",
        machine=machine
        or Machine("box", "Linux 6.8 x86_64", "AMD EPYC", "580.159.04", "13.0", "2.28.9", "libnccl.so.2"),
        devices=tuple(devices),
        paths=paths(len(devices)) if links is None else tuple(links),
        settings=Settings(
            operations=tuple(dict.fromkeys(m.point.operation for m in taken)),
            sizes=tuple(sorted({m.point.size_bytes for m in taken})),
            dtype="float32",
            redop="sum",
            trials=5,
            seed=7,
            command=command,
            environment={},
            kind=CommandKind.of(command[0] if command else "pairs"),
            collectives=tuple(dict.fromkeys(m.point.work for m in taken if m.point.operation.is_collective)),
        ),
        measurements=taken,
        seconds=1.5,
        complete=True,
    )


def pair_run(
    count: int,
    rate: Callable[[int, int], float | Iterable[float]],
    links: Sequence[Path] | None = None,
    operation: Operation = Operation.ALLREDUCE,
    trials: int = 5,
) -> Run:
    """Return a run of one operation on every pair (a, b), a < b, at the rate in GB/s that `rate` gives."""
    pairs = combinations(range(count), 2)
    return run_of(gpus(count), [measured(operation, pair, rate(*pair), trials=trials) for pair in pairs], links)


ALL = Request(
    backend="cuda",
    devices=None,
    sizes=(8, 2**20),
    copies=(Variant.PLAIN,),
    collectives=(Work(Operation.ALLREDUCE), Work(Operation.BROADCAST)),
    pairs=True,
    dtype="float32",
    redop="sum",
    nccl=None,
    seed=5,
    command=("pairs", "--sizes", "8,1M"),
)
