"""Single launches on a page: percentiles by size, and which ranks are late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.text import Text

from collbench.judge.outcome import without_idle
from collbench.judge.tails import PERCENTILES, RankTails, Tails, fewest_launches, tails
from collbench.model.run import Run, tags
from collbench.model.units import format_size, micro
from collbench.report import sentences
from collbench.report.text.frame import sim
from collbench.report.text.layout import Block, Lines, Part, Table, both, short, table, whole

_FEW_GROUPS = 4  # communicators on a short page
_HEADS = ("size", *(f"p{percent}" for percent in PERCENTILES), "max", "interval of p50", "waited p50", "p99", "max")


def blocks(run: Run) -> Iterator[Block]:
    """Yield for each communicator of single launches a table, and which ranks are late."""
    groups = by_communicator(run)
    for index, by_size in enumerate(groups):
        shown = both if index < _FEW_GROUPS else whole
        yield from shown("tails", *single_launches(run, by_size))
    if len(groups) > _FEW_GROUPS:
        yield from short(Text(f"\nand {len(groups) - _FEW_GROUPS} more communicators: --verbose shows them"))


def single_launches(run: Run, by_size: Sequence[Tails]) -> list[Part]:
    """Return a communicator's title, its table, and what is said of its ranks."""
    late = Lines("\n" + "\n".join(lines(run, by_size)))
    return [Text(f"\n{sim(run)}{title(run, by_size)}"), percentiles(by_size), late]


def by_communicator(run: Run) -> list[list[Tails]]:
    """Return the run's single launches for each work and communicator, by size."""
    groups: dict[tuple[object, ...], list[Tails]] = defaultdict(list)
    for one in tails(run):
        groups[one.point.work, one.point.members].append(one)
    return [sorted(group, key=lambda one: one.point.size_bytes) for group in groups.values()]


def title(run: Run, by_size: Sequence[Tails]) -> str:
    """Return what was timed: "allreduce over GPU0, GPU1: 2000 single launches of each size, µs"."""
    members = tags(by_size[0].point.members, run.devices)
    counts = dict.fromkeys(str(one.count) for one in by_size)
    return f"{by_size[0].point.work} over {members}: {' or '.join(counts)} single launches of each size, µs"


def percentiles(by_size: Sequence[Tails]) -> Table:
    """Return a row for each size, in µs: percentiles of the transfer time, and of the time with waiting."""
    rows = []
    for one in by_size:
        moved, waited = one.transfer or one.waited, one.waited
        interval = moved.interval
        between = f"{micro(interval[0])}-{micro(interval[1])}" if interval else "-"
        figures = (*map(moved.at, PERCENTILES), moved.maximum), (waited.at(50), waited.at(99), waited.maximum)
        rows.append((format_size(one.point.size_bytes), *map(micro, figures[0]), between, *map(micro, figures[1])))
    return table(*_HEADS, rows=rows)


def lines(run: Run, by_size: Sequence[Tails]) -> list[str]:
    """Return which ranks are late, and which percentiles lack launches: lines of a name and a sentence."""
    texts = [f"late      {line}" for line in _late(run, by_size)]
    most = min(one.count for one in by_size)
    few = [(percent, fewest_launches(percent)) for percent in PERCENTILES if most < fewest_launches(percent)]
    if few:
        texts.append(f"too few   {', '.join(f'p{percent} needs {least} launches' for percent, least in few)}")
    return texts


def _late(run: Run, by_size: Sequence[Tails]) -> Iterator[str]:
    if any(one.transfer is None for one in by_size):
        yield "not judged: hosts have no common clock; a launch's time is the longest of its ranks' own times"
        return
    if by_size[0].point.operation.rooted:
        yield f"not judged: the ranks of {by_size[0].point.operation} finish at different times by design"
        return
    by_device: dict[int, list[tuple[Tails, RankTails]]] = defaultdict(list)
    for one in by_size:
        for rank in one.late:
            by_device[rank.member].append((one, rank))
    for device, late in by_device.items():
        yield _described(run, device, late, len(by_size))
    if not by_device:
        resolution = max(rank.arrives.resolved for one in by_size for rank in one.ranks if rank.arrives is not None)
        yield f"no rank arrives significantly later than the others; clock resolution {micro(resolution)} µs"


def _described(run: Run, device: int, late: Sequence[tuple[Tails, RankTails]], sizes: int) -> str:
    """Return which rank is late, by how much, and whether its links or its GPU's work cause it."""
    medians = [rank.arrives.median for _, rank in late if rank.arrives is not None]
    low, high = micro(min(medians)), micro(max(medians))
    by = f"{low} µs" if low == high else f"{low} to {high} µs"
    last = max(rank.last or 0.0 for _, rank in late)
    at = "" if sizes == 1 else f" at {len(late)} of {sizes} sizes"
    clauses = [
        f"{run.devices[device].tag} arrives {by} later than the others{at}, last in up to {last:.0%} of the launches"
    ]
    leaves = [rank.leaves for _, rank in late if rank.leaves is not None and rank.leaves.significant]
    if leaves:
        clauses.append(
            f"it finishes {micro(max(one.median for one in leaves))} µs later, too: the cause is its links or its speed"
        )
    else:
        clauses.append("it finishes with the others: the delay is on its GPU before the call, not on its links")
    points = {one.point for one, _ in late}
    flags = dict.fromkeys(
        sentences.flag(flag, run.devices)
        for latency in without_idle(run).latencies
        if latency.point in points
        for flag in latency.flags
        if device in flag.devices
    )
    return "; ".join([*clauses, *(f"during these launches {flag}" for flag in flags)])
