"""Parts of versus_peers.py that compare run-to-run change and wall time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import median

from .bench import Bench, pairs_name
from .outputs import LINK_CASES
from .runs import RunFile
from .table import NO_BAR, Table, at_most

_SMALL, _SMALL_BAR = 64 * 2**10, 0.02
_LARGE, _LARGE_BAR = 2**20, 0.003
_WALL_BAR_SECONDS, _WALL_GPUS, _FACTOR_BAR = 5.0, 4, 10.0
_ALL_SIZES = ("-b", "8", "-e", "1G", "-f", "2")
_PAIRS_SIZES = ("-b", "16", "-e", "1G", "-f", "4")  # 14 sizes, as `collbench pairs` has by default


def repeat(bench: Bench) -> Table:
    """Compare run-to-run change, with two repeats or more. On 4 GPUs a repeat takes a `collbench pairs` and 3 s."""
    runs, peer_runs = [], []
    for number in range(max(2, bench.repeats)):
        runs.append(bench.pairs(number))
        peer_runs.append(bench.run_nccl_tests(f"nccl-tests-repeat-{number}", "all_reduce", (0, 1), *_ALL_SIZES))
    table = Table(
        "Run-to-run change",
        "|t2 / t1 - 1| of a data point's time in two successive runs (collbench: the median trial; nccl-tests: its one "
        "figure), over all points and couples of successive runs. Small: up to 64K, bar 2% on the median; large: "
        "from 1M, 0.3%.",
        ("what", "sizes", "changes", "median", "worst", "bar", "verdict"),
    )
    seconds_by_operation = [_by_operation(run) for run in runs if run]
    _add_changes(table, "collbench, all data points", [_all_operations(run) for run in seconds_by_operation], True)
    for operation in dict.fromkeys(name for run in seconds_by_operation for name in run):
        _add_changes(table, f"collbench {operation}", [run.get(operation, {}) for run in seconds_by_operation], False)
    _add_changes(
        table,
        "nccl-tests allreduce, GPUs 0, 1",
        [{(size,): t for size, t in peer_run.items()} for peer_run in peer_runs if peer_run],
        False,
    )
    return table


def _all_operations(run: Mapping[str, Mapping[tuple[int, ...], float]]) -> dict[tuple[int, ...], float]:
    """Return seconds of every data point by (size, index of the operation, *members); device times, no launch loops."""
    names = [name for name in run if not name.endswith("launch loop")]
    return {(key[0], index, *key[1:]): t for index, name in enumerate(names) for key, t in run[name].items()}


def _by_operation(run: RunFile) -> dict[str, dict[tuple[int, ...], float]]:
    """Return seconds by operation and by (size, *members); the launch loop is an operation of its own."""
    seconds: dict[str, dict[tuple[int, ...], float]] = {}
    for (operation, members, size), times in run.points.items():
        seconds.setdefault(operation, {})[size, *members] = times.seconds
        if times.launch_seconds is not None:
            seconds.setdefault(f"{operation} launch loop", {})[size, *members] = times.launch_seconds
    return seconds


def _add_changes(table: Table, what: str, runs: Sequence[Mapping[tuple[int, ...], float]], judged: bool) -> None:
    for sizes, low, high, bar in (("small", 0, _SMALL, _SMALL_BAR), ("large", _LARGE, 2**62, _LARGE_BAR)):
        changes = [change for size, change in _changes(runs) if low <= size <= high]
        if not changes:
            continue
        # A data point has one launch loop, so there is no median to hold to a bar.
        is_judged = judged and not what.endswith("launch loop")
        table.rows.append(
            (
                what,
                sizes,
                str(len(changes)),
                f"{median(changes):.2%}",
                f"{max(changes):.2%}",
                f"{bar:.1%}" if is_judged else "none",
                at_most(median(changes), bar) if is_judged else NO_BAR,
            )
        )


def _changes(runs: Sequence[Mapping[tuple[int, ...], float]]) -> Iterator[tuple[int, float]]:
    """Yield size and relative change of every data point that two successive runs both measured."""
    for first, second in pairwise(runs):
        for key in first.keys() & second.keys():
            yield key[0], abs(second[key] / first[key] - 1)


def wall(bench: Bench) -> Table:
    """Compare wall time with the peers', which cover no more. They run once: 55 s on 4 GPUs."""
    bench.run_nvbandwidth("nvbandwidth-wall", list(LINK_CASES.values()), 512, bench.all_gpus)
    names = ["nvbandwidth-wall"]
    for pair in combinations(bench.all_gpus, 2):
        for program in ("all_reduce", "broadcast"):
            names.append(f"nccl-tests-wall-{program}-{pair[0]}-{pair[1]}")
            # nccl-tests' defaults except for the sizes, as a person would type it.
            bench.run_nccl_tests(names[-1], program, pair, *_PAIRS_SIZES, flags=("-g", "1"))
    measured = [number for number in range(bench.repeats) if bench.pairs(number)]
    table = Table(
        "Wall time, start to prompt",
        f"collbench pairs: its defaults, median of {len(measured)} after one that is thrown away. Peers: nvbandwidth's "
        "four matrices between GPUs at one size (512M) and nccl-tests' all-reduce and broadcast at 14 sizes, "
        f"16 B … 1G, of each pair, one after another, once; {len(names)} commands.",
        ("what", "seconds", "bar", "verdict"),
    )
    failed = [name for name in names if any(line.startswith(f"{name}:") for line in bench.failures)]
    peer_seconds = sum(bench.walls[name] for name in names)
    table.rows.append((f"peers{f', {len(failed)} failed' if failed else ''}", f"{peer_seconds:.2f}", "none", NO_BAR))
    if measured:
        walls = [bench.walls[pairs_name(bench.all_gpus, number)] for number in measured]
        table.rows.extend(_wall_rows(walls, peer_seconds, len(bench.devices), not failed))
    return table


def _wall_rows(
    walls: Sequence[float], peer_seconds: float, gpus: int, complete: bool
) -> Iterator[tuple[str, str, str, str]]:
    collbench_seconds = median(walls)
    seconds = f"{collbench_seconds:.2f} ({min(walls):.2f}–{max(walls):.2f})"
    is_judged = gpus == _WALL_GPUS  # the bar is for four GPUs; other machines have none
    bar = f"≤ {_WALL_BAR_SECONDS:.0f} s" if is_judged else "none"
    yield (
        f"collbench pairs, {gpus} GPUs",
        seconds,
        bar,
        at_most(collbench_seconds, _WALL_BAR_SECONDS) if is_judged else NO_BAR,
    )
    factor = peer_seconds / collbench_seconds
    yield (
        "peers / collbench",
        f"{factor:.1f}×",
        f"≥ {_FACTOR_BAR:.0f}×" if complete else "none: a peer failed",
        at_most(_FACTOR_BAR, factor) if complete else NO_BAR,
    )


def growth(bench: Bench) -> Table:
    """Show how the time of `collbench pairs` grows with GPUs: 2, 4, 8, … On 4 GPUs a repeat adds 3 s to `wall`'s."""
    table = Table(
        "Growth",
        "collbench pairs, defaults, medians. Wall: start to prompt; seconds: the run file's, of measuring. Timed: "
        "share of the latter inside timed regions. Growth: seconds over the first row's; it should follow the rounds, "
        "not the pairs. Where it goes: the run file's phases, of the last run.",
        ("GPUs", "pairs", "rounds", "wall", "seconds", "growth", "where it goes", "timed", "bar", "verdict"),
    )
    first = None
    for gpus in dict.fromkeys((*(k for k in (2, 4, 8, 16) if k < len(bench.devices)), len(bench.devices))):
        members = tuple(range(gpus))
        runs = [(number, run) for number in range(bench.repeats) if (run := bench.pairs(number, members))]
        if not runs:
            continue
        walls = [bench.walls[pairs_name(members, number)] for number, _ in runs]
        seconds = median(run.seconds for _, run in runs)
        first = first or seconds
        table.rows.append(_growth_row(gpus, median(walls), seconds, seconds / first, [run for _, run in runs]))
    return table


def _growth_row(
    gpus: int, wall_seconds: float, seconds: float, factor: float, runs: Sequence[RunFile]
) -> tuple[str, ...]:
    share = median(run.timed / run.seconds for run in runs)
    return (
        str(gpus),
        str(gpus * (gpus - 1) // 2),
        str(gpus - 1 + gpus % 2),  # the circle method (docs/method/measuring.md 14)
        f"{wall_seconds:.2f}",
        f"{seconds:.2f}",
        f"{factor:.2f}×",
        ", ".join(f"{name} {spent:.2f}" for name, spent in runs[-1].phases.items()) or "not recorded",
        f"{share:.0%}",
        "≥ 50%",
        at_most(0.5, share),
    )
