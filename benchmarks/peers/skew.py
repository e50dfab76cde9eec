"""Part of versus_peers.py that compares alltoallv, even and uneven, with nccl-tests' alltoallv_perf."""

from __future__ import annotations

from .bench import Bench, Members
from .rates import HEADER, Pairs, table_row
from .table import Table, size_name

# Bytes that a rank sends to each rank in the uniform matrix: 64 KiB is small, 16 MiB large.
_BLOCKS = (2**16, 2**24)
_SHAPES = ("uniform", "one popular rank", "half empty")

Key = tuple[str, int, int, str]  # shape, ranks, bytes of the busiest rank, launch or graph


def skew(bench: Bench) -> Table:
    """Compare three matrices at two sizes on GPUs 0, 1 and on all. About 30 s per repeat."""
    seconds: dict[Key, Pairs] = {}
    for repeat in range(bench.repeats):
        for shape in _SHAPES:
            for members in bench.sets():
                for block in _BLOCKS:
                    for key, pair in _matrix(bench, shape, members, block, repeat).items():
                        seconds.setdefault(key, []).append(pair)
    table = Table(
        f"All-to-all-v by matrix, {bench.repeats} repeats",
        "Microseconds, medians of the repeats; size: bytes of the busiest rank. Both read one matrix. `launch` and "
        "`graph` as for collectives, but nccl-tests with -a 3, the slowest rank. Ratio: rate of collbench over the "
        "peer's, median (smallest–largest) of the repeats.",
        HEADER,
    )
    for (shape, ranks, size, loop), pairs in seconds.items():
        table.rows.append(table_row(f"{shape}, {ranks} ranks, {size_name(size)}, {loop}", size, pairs))
    return table


def matrix(shape: str, ranks: int, block: int) -> list[list[int]]:
    """Return the bytes that each rank (row) sends to each rank (column), about `block` each."""
    if shape == "one popular rank":
        return [[4 * block if target == ranks - 1 else block for target in range(ranks)] for _ in range(ranks)]
    if shape == "half empty":
        return [[block * ((source + target) % 2) for target in range(ranks)] for source in range(ranks)]
    return [[block] * ranks for _ in range(ranks)]


def _matrix(bench: Bench, shape: str, members: Members, block: int, repeat: int) -> dict[Key, tuple[float, float]]:
    """Run nccl-tests, collbench, nccl-tests with graphs; return (peer, collbench) seconds by key."""
    rows, ranks = matrix(shape, len(members), block), len(members)
    size = max(*map(sum, rows), *map(sum, zip(*rows, strict=True)))
    name = f"alltoallv-{shape.replace(' ', '-')}-{ranks}-ranks-{block}-{repeat}"
    file = bench.out / "raw" / f"{name}.matrix"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{' '.join(map(str, row))}\n" for row in rows), encoding="utf-8")
    variables = {"NCCL_TESTS_ALLTOALLV_MATRIX_FILE": str(file)}
    flags = ("-b", str(size), "-e", str(size), "-c", "1", "-a", "3")
    plain = bench.run_nccl_tests(f"nccl-tests-{name}", "alltoallv", members, *flags, variables=variables)
    run = bench.run_collbench(f"collbench-{name}", "alltoallv", members, "--skew", str(file))
    graph = bench.run_nccl_tests(
        f"nccl-tests-graph-{name}", "alltoallv", members, *flags, "-G", "5", variables=variables
    )
    pairs: dict[Key, tuple[float, float]] = {}
    for (operation, _, bytes_), times in (run.points if run else {}).items():
        if operation != "alltoallv" or bytes_ != size:
            continue
        if graph and size in graph:
            pairs[shape, ranks, size, "graph"] = graph[size], times.seconds
        if times.launch_seconds and plain and size in plain:
            pairs[shape, ranks, size, "launch"] = plain[size], times.launch_seconds
    return pairs
