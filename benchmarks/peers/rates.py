"""Parts of versus_peers.py that compare rates: collectives with nccl-tests, copies with nvbandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .bench import Bench, Members
from .outputs import HOST_CASES, LINK_CASES
from .runs import RunFile
from .table import NO_BAR, Table, interval, not_slower, size_name, within

PROGRAMS = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "alltoall",
    "sendrecv": "sendrecv",
}
_MEBIBYTE = 2**20
LARGE, LARGE_BAR, SMALL_BAR = 16 * _MEBIBYTE, 0.01, 0.05
_COPY_BAR = 0.005
_HOST_BAR = 0.01
_HOST_PATTERNS = "host,host-both-ways,host-all,host-all-both-ways,local"
HEADER = ("what", "peer", "collbench", "ratio (min–max)", "bar", "verdict")
# Up to 1 GiB, also with graphs: nccl-tests' buffers are as large as its largest message, and with -e 16M they stay in
# the GPUs' L2 (60 MB), where send/recv is twice as fast. -c 1, because with -c 0 its buffers hold no data.
PEER_SIZES = ("-b", "64K", "-e", "1G", "-f", "4", "-c", "1")

Pairs = list[tuple[float, float]]  # seconds of the peer and of collbench, one for each repeat


def collectives(bench: Bench) -> Table:
    """Compare six collectives on GPUs 0, 1 and on all. Takes about 8 s for each operation, set and repeat."""
    seconds: dict[tuple[str, int, int, str], Pairs] = {}
    for repeat in range(bench.repeats):
        for operation in PROGRAMS:
            for members in bench.sets():
                for key, pair in _collective(bench, operation, members, repeat).items():
                    seconds.setdefault(key, []).append(pair)
    table = Table(
        f"Collectives, 64K … 1G, {bench.repeats} repeats",
        "Microseconds, medians of the repeats. `launch`: collbench's launch loop over plain nccl-tests -t n -g 1, both "
        "the mean of ranks. `graph`: collbench's graph replay (slowest rank) over nccl-tests -G 5 (mean of ranks). "
        "Ratio: rate of collbench over the peer's, median (smallest–largest) of the repeats.",
        HEADER,
    )
    for (operation, ranks, size, kind), pairs in sorted(seconds.items(), key=_sort_key):
        table.rows.append(table_row(f"{operation}, {ranks} ranks, {size_name(size)}, {kind}", size, pairs))
    return table


def table_row(what: str, size: int, pairs: Pairs) -> tuple[str, ...]:
    """Return the row, with HEADER's columns, of a data point of `size` bytes with its bar."""
    ratios = [peer / collbench for peer, collbench in pairs]
    bar = LARGE_BAR if size >= LARGE else SMALL_BAR
    return (
        what,
        f"{median(peer for peer, _ in pairs) * 1e6:.2f}",
        f"{median(collbench for _, collbench in pairs) * 1e6:.2f}",
        interval(ratios),
        f"±{bar:.0%}",
        within(ratios, bar),
    )


def _sort_key(item: tuple[tuple[str, int, int, str], Pairs]) -> tuple[int, int, str, int]:
    operation, ranks, size, kind = item[0]
    return list(PROGRAMS).index(operation), ranks, kind, size


def _collective(
    bench: Bench, operation: str, members: Members, repeat: int
) -> dict[tuple[str, int, int, str], tuple[float, float]]:
    """Run nccl-tests, collbench, nccl-tests with graphs; return (peer, collbench) seconds by data point and kind."""
    name, program, ranks = f"{operation}-{len(members)}-ranks-{repeat}", PROGRAMS[operation], len(members)
    plain = bench.run_nccl_tests(f"nccl-tests-{name}", program, members, *PEER_SIZES)
    run = bench.run_collbench(f"collbench-{name}", operation, members, "--sizes", "64K:1G:4")
    # -G 5 captures the 20 calls of -n in one graph and replays it 5 times [nccl-tests common.cu:707-773].
    graph = bench.run_nccl_tests(f"nccl-tests-graph-{name}", program, members, *PEER_SIZES, "-G", "5")
    pairs = {}
    for (point, members_of_point, size), times in (run.points if run else {}).items():
        if (point, len(members_of_point)) != (operation, ranks):
            continue
        if graph and size in graph:
            pairs[operation, ranks, size, "graph"] = graph[size], times.seconds
        if times.launch_seconds and plain and size in plain:
            pairs[operation, ranks, size, "launch"] = plain[size], times.launch_seconds
    return pairs


def copies(bench: Bench) -> Table:
    """Compare one-way copies between GPUs: all links at 512 MiB, GPUs 0, 1 at 64 MiB and 1 GiB.

    On 4 GPUs a repeat takes about 20 s; all links at every size would triple that and show nothing new.
    """
    table = Table(
        f"Copies between GPUs, {bench.repeats} repeats",
        "GB/s, median link. Ratio of collbench over nvbandwidth, link by link: the median link's, median (smallest–"
        "largest) of the repeats. Worst link: the one whose median is farthest from 1. A link is source → destination; "
        "write: the source issues, read: the destination (nvbandwidth's own definition too). SM must not be slower: "
        "median 0.995 or more, and a repeat that reaches 1.",
        ("what", "peer", "collbench", "ratio (min–max)", "worst link", "bar", "verdict"),
    )
    for mebibytes, members in ((64, (0, 1)), (512, bench.all_gpus), (1024, (0, 1))):
        _compare_copies(bench, table, LINK_CASES, mebibytes, members)
    return table


def host(bench: Bench, mebibytes: int = 64) -> Table:
    """Compare host and local copies: isolated, in both directions, all GPUs at once.

    64 MiB messages are the most that a host of several NUMA nodes allows (method/measuring.md 11), and of 512 MiB
    nvbandwidth took a minute for each case on a machine of two H100.
    """
    table = Table(
        f"Copies between host and GPU, {bench.repeats} repeats",
        "GB/s of one direction, median GPU. Ratio as for copies between GPUs. By kernel in both directions nvbandwidth "
        "launches one kernel for both and reports half of their sum, we two and the rate of one: no bar.",
        ("what", "peer", "collbench", "ratio (min–max)", "worst GPU", "bar", "verdict"),
    )
    _compare_copies(bench, table, HOST_CASES, mebibytes, bench.all_gpus)
    return table


def _compare_copies(bench: Bench, table: Table, cases: dict[str, str], mebibytes: int, members: Members) -> None:
    """Run nvbandwidth and collbench in turn, and add a row for each operation."""
    size = mebibytes * _MEBIBYTE
    is_host = cases is HOST_CASES
    name = f"{'host' if is_host else 'link'}-copies-{mebibytes}M"
    # With the default budget the batches of 48 data points would be four messages long; nvbandwidth takes longer still.
    options = ("--patterns", _HOST_PATTERNS if is_host else "one-way", "--sizes", f"{mebibytes}M", "--budget", "10s")
    peer_rates, runs = [], []
    for repeat in range(bench.repeats):
        # -s skips nvbandwidth's data check, which takes as long as its timing and is not timed.
        peer_rates.append(
            bench.run_nvbandwidth(f"nvbandwidth-{name}-{repeat}", list(cases.values()), mebibytes, members, "-s")
        )
        runs.append(bench.run_collbench(f"collbench-{name}-{repeat}", "copies", members, *options))
    for operation, case in cases.items():
        repeats = [
            _by_members(peer.get(case, {}), run, operation, size)
            for peer, run in zip(peer_rates, runs, strict=True)
            if peer and run
        ]
        if any(repeats):
            table.rows.append(_copy_row(f"{operation} {mebibytes}M", [links for links in repeats if links], is_host))


def _by_members(
    peer: dict[Members, float], run: RunFile, operation: str, size: int
) -> dict[Members, tuple[float, float]]:
    """Return (peer, collbench) GB/s by members, where both measured them."""
    rates = {}
    for (point, members, point_size), times in run.points.items():
        if (point, point_size) == (operation, size) and members in peer:
            rates[members] = peer[members], size / times.seconds / 1e9
    return rates


def _copy_row(
    what: str, repeats: Sequence[dict[Members, tuple[float, float]]], is_host: bool
) -> tuple[str, str, str, str, str, str, str]:
    ratios = [median(ours / peer for peer, ours in links.values()) for links in repeats]
    by_link = {
        members: median(links[members][1] / links[members][0] for links in repeats if members in links)
        for members in repeats[0]
    }
    worst = max(by_link, key=lambda members: abs(by_link[members] - 1))
    is_sm = what.startswith("sm-")
    bar = None if "-sm host" in what and "both-ways" in what else _HOST_BAR if is_host else _COPY_BAR
    verdict = NO_BAR if bar is None else (not_slower if is_sm else within)(ratios, bar)
    return (
        f"{what}, {len(by_link)} {'GPUs' if is_host else 'links'}",
        f"{median(peer for links in repeats for peer, _ in links.values()):.2f}",
        f"{median(ours for links in repeats for _, ours in links.values()):.2f}",
        interval(ratios),
        f"{'→'.join(map(str, worst))}: {by_link[worst]:.4f}",
        "none" if bar is None else "not slower" if is_sm else f"±{bar:.1%}",
        verdict,
    )
