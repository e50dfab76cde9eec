"""Runs that no machine makes on request: every kind of line that a page may have, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product

from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import (
    DataPoint,
    Health,
    InterferenceCheck,
    Latency,
    Measurement,
    RankLaunches,
    Run,
    Sample,
    SkipKind,
    Skipped,
    StopReason,
)
from tests.builders import GIB, gpus, hot, in_words, left_out, measured, pair_run, run_of, shared, throttled
from tests.judge.runs import recorded

KIB, MIB = 2**10, 2**20
FOUR = (0, 1, 2, 3)


def _as(variant: Variant, measurement: Measurement, node: int | None = None) -> Measurement:
    return replace(measurement, point=replace(measurement.point, variant=variant, numa_node=node))


def _failed(operation: Operation, devices: tuple[int, ...], size: int, words: str) -> Measurement:
    return Measurement(DataPoint(operation, devices, size), [], StopReason.FAILED, failure=in_words(words))


def collective() -> Run:
    """All-reduces in place and not, of which one was disturbed, one failed and one was not verified."""
    points = [
        _as(variant, measured(Operation.ALLREDUCE, FOUR, gbs, size))
        for size, gbs in ((8, 0.001), (MIB, 55.0), (64 * MIB, 200.0))
        for variant in (Variant.IN_PLACE, Variant.PLAIN)
    ]
    points[2].samples[2] = replace(points[2].samples[2], flags=(throttled(1, "SW thermal slowdown"), shared(0)))
    points[5].wrong = None
    points.append(_failed(Operation.ALLREDUCE, FOUR, GIB, "hang: no answer in 5 s"))
    run = run_of(gpus(4), points, command=("allreduce", "--in-place"))
    run.skipped = [left_out("collectives of 1 bytes: smaller than one float32")]
    return run


def few_trials() -> Run:
    """A reduction to the second of two GPUs, interrupted after two trials: no launch loop, and no interval."""
    run = run_of(gpus(4), [measured(Operation.REDUCE, (2, 3), 200.0, MIB, trials=2)], command=("reduce",))
    run.settings = replace(run.settings, root=1, redop="max", dtype="bfloat16")
    run.complete = False
    return run


def in_place() -> Run:
    """An all-to-all, whose data cannot be verified in place."""
    points = [
        _as(variant, measured(Operation.ALLTOALL, FOUR, 200.0, MIB)) for variant in (Variant.PLAIN, Variant.IN_PLACE)
    ]
    return run_of(gpus(4), points, command=("alltoall",))


def host_copies() -> Run:
    """Copies with host memory, one way, both ways and all at once; and a link in too few trials."""
    points = [_as(Variant.HOST, measured(Operation.H2D_CE, (gpu,), gbs)) for gpu, gbs in ((0, 50.0), (1, 40.0))]
    points += [_as(Variant.HOST, measured(Operation.D2H_CE, (gpu,), 50.0)) for gpu in (0, 1)]
    points += [_as(Variant.HOST_BOTH_WAYS, measured(Operation.H2D_CE, (0,), 45.0))]
    for operation, gbs in ((Operation.H2D_CE, 30.0), (Operation.D2H_CE, 25.0)):
        points += [_as(Variant.HOST_ALL, measured(operation, devices, gbs)) for devices in ((0, 1), (1, 0))]
    points.append(measured(Operation.CE_WRITE, (0, 1), 0.25, MIB, trials=2))
    return run_of(gpus(2), points, command=("copies",))


def numa_nodes(count: int) -> Run:
    """Host copies with the memory of so many NUMA nodes, of which GPU0 did not reach the last one."""
    points = [
        _as(Variant.HOST, measured(operation, (gpu,), 55.0 if gpu % 2 == node % 2 else 38.0, MIB), node)
        for operation in (Operation.H2D_CE, Operation.D2H_CE)
        for gpu in (0, 1)
        for node in range(count)
        if (gpu, node) != (0, count - 1)
    ]
    return run_of(gpus(2), points, command=("copies",))


def cores(command: str) -> Run:
    """Copies between CPU cores, which lack most patterns and a pointer chase."""
    points = [measured(Operation.CPU_WRITE, (0, 1), 1.5, 8), measured(Operation.ALLREDUCE, (0, 1), 0.00002, 8)]
    devices = [replace(gpu, uuid=f"CPU-{gpu.index}", name="AMD EPYC") for gpu in gpus(2)]
    return run_of(devices, points, backend="host", command=(command,))


def disturbed() -> Run:
    """Copies from GPU0 to five others, each of which was disturbed in its own way."""
    well = Health(1980, 3201, 41, 90.5, (), 0, 5, nvlink_replays=7, nvlink_errors=0, ecc_errors=0, processes=0)
    changes: list[tuple[dict[str, object], dict[str, object]]] = [
        ({}, {"temperature": 78}),
        ({"throttle": ("SW power cap",)}, {}),
        ({}, {"throttle": ("SW power cap",)}),
        ({"nvlink_errors": 1, "ecc_errors": 3}, {"nvlink_errors": 5, "ecc_errors": 5}),
        ({}, {"nvlink_replays": 9}),
        ({"processes": 1}, {"processes": 2}),
        ({"processes": 1}, {"processes": 1}),
    ]
    points = [measured(Operation.CE_WRITE, (0, other), 100.0, trials=4) for other in range(1, 7)]
    slowed = throttled(2, "SW power cap")
    flags = ((), (slowed, hot(1, 84)), (slowed, hot(1, 86)), (shared(6),))
    points[1].samples = [replace(sample, flags=said) for sample, said in zip(points[1].samples, flags, strict=True)]
    run = run_of(gpus(7), points, command=("copies",))
    run.health_before = tuple(replace(well, **before) for before, _ in changes)  # type: ignore[arg-type]
    run.health_after = tuple(replace(well, **after) for _, after in changes)  # type: ignore[arg-type]
    return run


def notes() -> Run:
    """Links that failed, were left out, were measured alone, or came to no end; and where the time went."""
    points = [measured(Operation.CE_WRITE, (0, other), 300.0, MIB) for other in range(1, 8)]
    points[0].stop, points[1].stop = StopReason.BUDGET, StopReason.NOISE
    shares = ((8 * MIB, 8 * MIB), (MIB, 8 * MIB))
    points[2].samples = [replace(points[2].samples[0], verified_bytes=part, moved_bytes=all_) for part, all_ in shares]
    points += [_failed(Operation.CE_WRITE, (1, 0), size, "crash: signal 11") for size in (8, MIB)]
    points += [_failed(Operation.CE_WRITE, (2, other), 8, "hang") for other in range(3, 16)]
    run = run_of(gpus(16), points)
    run.skipped = [Skipped(SkipKind.NO_PEERS, Work(Operation.SM_READ), (0, peer)) for peer in range(1, 8)]
    run.skipped += [left_out("sizes 2G: the fullest device has room for 1 GiB")] * 2
    alone = InterferenceCheck(Operation.CE_WRITE, (0, 1), "SYS", 10.0, 5.5, 0.55, 0.02, trusted=False)
    both = replace(alone, variant=Variant.BOTH_WAYS, size_bytes=64 * MIB)
    agree = replace(alone, ratio=0.988, trusted=True)
    run.interference_checks = [
        alone,
        replace(agree, label="NV2"),
        replace(agree, operation=Operation.SM_WRITE),
        both,
        replace(both, members=(2, 3), ratio=0.38, delta=0.023),
    ]
    run.seconds = 2.64
    run.phases = {"NCCL start": 0.64, "warm-up": 0.32, "interference check": 0.41, "trials": 1.9, "timed": 1.38}
    run.machine = replace(run.machine, virtualization="pass-through")
    run.settings = replace(
        run.settings, environment={"NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring", "NCCL_VERSION": "2"}
    )
    return run


def tiers() -> Run:
    """The pairs of sixteen GPUs in four tiers, one of a single pair."""
    place = {pair: number for number, pair in enumerate(combinations(range(16), 2))}
    rates = [
        300.0 if pair < 40 else 200.0 if pair < 90 else 150.0 if pair == 90 else 1000.0 / 11 for pair in range(120)
    ]
    return pair_run(16, lambda a, b: rates[place[a, b]])


def all_unlike() -> Run:
    """Pairs of seventeen GPUs, too many to search all sets, each pair in a tier of its own."""
    place = {pair: number for number, pair in enumerate(combinations(range(17), 2))}
    return pair_run(17, lambda a, b: 3000.0 * 0.97 ** place[a, b])


def undecided() -> Run:
    """Pairs in too few trials, of GPUs of two models."""
    run = pair_run(3, lambda a, b: 240.0 if (a, b) == (1, 2) else 300.0, trials=2)
    return replace(run, devices=(*gpus(2, "NVIDIA A100"), gpus(3)[2]))


def lacking() -> Run:
    """Pairs of which one failed and one alone was measured at the largest size; none has sizes enough for a fit."""
    points = [measured(Operation.ALLREDUCE, pair, 300.0, MIB) for pair in ((0, 1), (0, 2))]
    points += [measured(Operation.ALLREDUCE, (0, 1), 300.0), _failed(Operation.ALLREDUCE, (1, 2), MIB, "hang")]
    return run_of(gpus(3), points)


def late() -> Run:
    """Single launches of six communicators, to which GPU1 comes 50 µs late; one launch takes ten times the others'."""
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0)], command=("allreduce",))
    left = tuple([59_000] * 399 + [131_000])
    ranks = tuple(RankLaunches((came,) * 400, left, 1_000, 600, 32) for came in (0, 50_000))
    for operation in (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER):
        for devices in ((0, 1), (1, 0)):
            point = replace(run.measurements[0].point, operation=operation, members=devices)
            flags = (throttled(1),) if operation is Operation.ALLREDUCE else ()
            common = operation is not Operation.ALLGATHER  # hosts without a common clock are not compared
            run.latencies.append(Latency(point, ranks, common, flags=flags))
    return run


def small_allreduces(
    name: str = "NVIDIA H100 80GB HBM3", count: int = 2, layers: int = 80, ranks: Sequence[int] = ()
) -> Run:
    """Small all-reduces of H100, of which symmetric memory wins up to 32K, as measured once with two, rounded.

    Of several `ranks` 4 take 1.5 times as long, 8 2.5 times, and there symmetric memory wins at 1M, too. Of 400 single
    launches eight last 90 µs, the others 4 µs for each rank.
    """
    times = {
        Registration.NONE: {128: 6.04, 16 * KIB: 6.91, 32 * KIB: 7.4, 64 * KIB: 8.0, MIB: 16.0},
        Registration.BUFFER: {128: 6.04, 16 * KIB: 6.90, 32 * KIB: 7.4, 64 * KIB: 8.0, MIB: 16.0},
        Registration.WINDOW: {128: 4.03, 16 * KIB: 4.69, 32 * KIB: 5.9, 64 * KIB: 8.0, MIB: 18.0},
    }
    run = run_of(gpus(count, name), [], command=("latency", "--collectives"))
    for kind, sizes in times.items():
        for members, (size, microseconds) in product(map(range, ranks or (count,)), sizes.items()):
            point = DataPoint(Operation.ALLREDUCE, tuple(members), size, registration=kind)
            better = 0.5 if (kind, size, len(members)) == (Registration.WINDOW, MIB, 8) else 1
            longer = better * (0.5 + len(members) / 4 if ranks else 1) * 1e-6
            # Trials of one pass are compared: all kinds share its disturbance of up to 0.4%.
            seconds = [microseconds * longer * (1 + trial / 1000) for trial in range(5)]
            samples = [Sample((second,) * 2, 20, concurrent=False) for second in seconds]
            run.measurements.append(Measurement(point, samples, StopReason.PRECISION))
            launches = (RankLaunches((0,) * 400, (4_000 * len(members),) * 392 + (90_000,) * 8),) * len(members)
            run.latencies.append(Latency(point, launches))
    run.settings = replace(run.settings, layers=layers, dtype="bfloat16")
    return run


def without_windows() -> Run:
    """The same by an NCCL that has no symmetric memory."""
    run = small_allreduces()
    run.measurements = [one for one in run.measurements if one.point.registration is not Registration.WINDOW]
    run.latencies = [latency for latency in run.latencies if latency.point.registration is not Registration.WINDOW]
    window = Work(Operation.ALLREDUCE, registration=Registration.WINDOW)
    run.skipped = [Skipped(SkipKind.OLD_NCCL, window, detail="it needs NCCL 2.27, and this is 2.26.2")]
    return run


MADE_RUNS: dict[str, Callable[[], Run]] = {
    "collective.json": collective,
    "few-trials.json": few_trials,
    "in-place.json": in_place,
    "host-copies.json": host_copies,
    "two-nodes.json": lambda: numa_nodes(2),
    "eight-nodes.json": lambda: numa_nodes(8),
    "core-copies.json": lambda: cores("copies"),
    "core-latency.json": lambda: cores("latency"),
    "disturbed.json": disturbed,
    "notes.json": notes,
    "tiers.json": tiers,
    "all-unlike.json": all_unlike,
    "undecided.json": undecided,
    "lacking.json": lacking,
    "late.json": late,
    "small-allreduces.json": small_allreduces,
    "small-allreduces-of-eight.json": lambda: small_allreduces(count=8, ranks=(2, 4, 8)),
    "without-windows.json": without_windows,
    "busy.json": lambda: recorded("2026-11-21-4xh200-judging/runs.tar.gz:busy.json"),
}
