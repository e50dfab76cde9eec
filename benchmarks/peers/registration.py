"""Part of versus_peers.py that compares collectives on registered memory with nccl-tests -R 1 and -R 2."""

from __future__ import annotations

from .bench import Bench, Members
from .rates import HEADER, PEER_SIZES, PROGRAMS, Pairs, table_row
from .table import Table, size_name

_OPERATIONS = ("allreduce", "allgather", "sendrecv", "alltoall")
_KINDS = {"buffer": "1", "window": "2"}  # collbench's --registration: nccl-tests' -R
_TWO: Members = (0, 1)

Key = tuple[str, str, str, int]  # operation, kind of memory, launch or graph, bytes


def registration(bench: Bench) -> Table:
    """Compare four collectives on GPUs 0, 1, with both kinds of registered memory. About 60 s per repeat."""
    seconds: dict[Key, Pairs] = {}
    for repeat in range(bench.repeats):
        for operation in _OPERATIONS:
            for kind in _KINDS:
                for key, pair in _registered(bench, operation, kind, repeat).items():
                    seconds.setdefault(key, []).append(pair)
    table = Table(
        f"Collectives on registered memory, 2 ranks, 64K … 1G, {bench.repeats} repeats",
        "Microseconds, medians of the repeats. buffer: --registration buffer over nccl-tests -R 1; window: "
        "--registration window over -R 2. `launch` and `graph` as for collectives. Ratio: rate of collbench over the "
        "peer's, median (smallest–largest) of the repeats.",
        HEADER,
    )
    order = [(operation, kind) for operation in _OPERATIONS for kind in _KINDS]
    for (operation, kind, loop, size), pairs in sorted(
        seconds.items(), key=lambda item: (order.index(item[0][:2]), item[0][2:])
    ):
        table.rows.append(table_row(f"{operation}, {kind}, {size_name(size)}, {loop}", size, pairs))
    return table


def _registered(bench: Bench, operation: str, kind: str, repeat: int) -> dict[Key, tuple[float, float]]:
    """Run nccl-tests, collbench, nccl-tests with graphs; return (peer, collbench) seconds by key."""
    name, program = f"{operation}-{kind}-{repeat}", PROGRAMS[operation]
    flags = (*PEER_SIZES, "-R", _KINDS[kind])
    plain = bench.run_nccl_tests(f"nccl-tests-{name}", program, _TWO, *flags)
    run = bench.run_collbench(f"collbench-{name}", operation, _TWO, "--sizes", "64K:1G:4", "--registration", kind)
    graph = bench.run_nccl_tests(f"nccl-tests-graph-{name}", program, _TWO, *flags, "-G", "5")
    pairs: dict[Key, tuple[float, float]] = {}
    for (point, _, size), times in (run.points if run else {}).items():
        if point != operation:
            continue
        if graph and size in graph:
            pairs[operation, kind, "graph", size] = graph[size], times.seconds
        if times.launch_seconds and plain and size in plain:
            pairs[operation, kind, "launch", size] = plain[size], times.launch_seconds
    return pairs
