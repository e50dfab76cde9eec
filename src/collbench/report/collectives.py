"""The pages of collectives: time and bandwidths by size, kinds of memory, single launches, small all-reduces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Any

from rich.text import Text

from collbench.judge.diagnose import Diagnosis
from collbench.judge.outcome import without_idle
from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import (
    ALLREDUCES_A_LAYER,
    TOKEN_BYTES,
    TOKEN_HIDDEN,
    SmallAllreduces,
    Winner,
    by_communicator,
    published,
    ranges,
    side_by_side,
    small_allreduces,
    winners,
)
from collbench.judge.stats import summarize
from collbench.judge.tails import PERCENTILES, RankTails, Tails, fewest_launches, tails
from collbench.judge.tiers import rank_pairs
from collbench.model.operations import Operation, Registration, Variant, imbalance
from collbench.model.run import DataPoint, Measurement, Run, capabilities, ordinary, registrations, tags
from collbench.model.units import DTYPE_BYTES, counted, format_size, grouped, micro, span
from collbench.report import sentences
from collbench.report.frame import ending, header, sim
from collbench.report.layout import Block, Lines, Page, Part, Table, both, listed, short, table, whole
from collbench.report.matrix import at_largest, rates_line
from collbench.report.verdicts import normal_line
from collbench.runfile.codec import picked

# On the short page: rows of a table, and the columns that it lacks, so that its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(diagnosis: Diagnosis) -> Page:
    """Yield the page's blocks, a table for each communicator; the short page compares several at the largest size."""
    run = without_idle(diagnosis.run)
    for largest in at_largest(ordinary(run).measured()).values():
        yield rates_line(run, largest)
    yield from whole("header", Lines(header(run)))
    groups = by_communicator(run)
    few, impossible_points, kinds = len(groups) <= 1, by_point(run), registrations(run)
    if any(measurement.samples for measurement in run.measurements):
        yield from both("notes", *normal_line(diagnosis))
    if not few:
        yield from short(*_communicators(ordinary(run)))
    for (operation, devices), measurements in sorted(groups.items()):
        head = Lines(f"\n{_title(run, measurements, kinds)}")
        every = _table(run, measurements, impossible_points)
        compared = compared_memory(run, operation, devices) if len(kinds) > 1 else []
        if compared:
            yield from both("tables", head, *compared)
            yield from whole("tables", Text(), every)
            continue
        yield from whole("tables", head, every)
        if few:
            # The largest size, and below it every second, third, … size, so that all rows fit.
            sizes = sorted({measurement.point.size_bytes for measurement in measurements}, reverse=True)
            step = ceil(len(measurements) / _FEW_ROWS)
            kept = sizes[::step]
            spaced = [measurement for measurement in measurements if measurement.point.size_bytes in kept]
            yield from short(head, _table(run, spaced, impossible_points).without(_ONLY_WHOLE))
            if step > 1:
                yield from short(Text(f"one size of {step}; --verbose shows all {len(sizes)}"))
    for operation in sorted({operation for operation, _ in groups}):
        yield from whole("tables", Text(_legend(run, operation)))
    if run.latencies:
        yield from _all_launches(run)
    yield from ending(run)


def _communicators(run: Run) -> Iterator[Part]:
    """Yield the rates at the largest size: of pairs a ranking and a matrix, of larger communicators a table."""
    pairs, others = (
        at_largest(measurement for measurement in run.measured() if (len(measurement.point.members) == 2) is of_pairs)
        for of_pairs in (True, False)
    )
    for operation in dict.fromkeys(m.point.operation for m in run.measurements):
        if operation in pairs and (ranking := rank_pairs(run, operation, pairs[operation][0].point.size_bytes)):
            from collbench.report.ranking import ranked_pairs  # late: few runs have several communicators

            yield from ranked_pairs(run, ranking)
        if operation in others:
            yield Text(f"\n{sim(run)}{operation} at {format_size(others[operation][0].point.size_bytes)}")
            rows = []
            for measurement in others[operation]:
                time, _, _, busbw, interval, _ = _point_figures(measurement)
                rows.append((tags(measurement.point.members, run.devices), time, busbw, interval))
            yield from listed(table("devices", "time µs", "busbw GB/s", "95% interval", rows=rows), _FEW_ROWS)


def _title(run: Run, measurements: Sequence[Measurement], kinds: Sequence[Registration]) -> str:
    largest = max((measurement.point for measurement in measurements), key=lambda point: point.size_bytes)
    operation, devices, settings = largest.operation, largest.members, [run.settings.dtype]
    if operation.reduces:
        settings.append(run.settings.redop)
    if operation.irregular:
        uneven = f"{largest.skew}, busiest rank {imbalance(largest.blocks):.2f} × the mean"
        settings.append("uniform" if largest.skew is None else uneven)
    if len(kinds) == 1 and kinds[0] is not Registration.NONE:
        settings.append(f"memory registered as {kinds[0]}")
    if operation.rooted:
        root = run.settings.root
        settings.append(f"root {root} ({run.devices[devices[root]].tag})")
    if any(sample.concurrent for measurement in measurements for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    return f"{sim(run)}{operation} over {tags(devices, run.devices)} ({len(devices)} ranks): {', '.join(settings)}"


_LEGEND = """\
time: one collective on the device, the slowest rank, median; launch: one call
of an ungraphed loop, as in a training step, the mean of the ranks;
interval: 95% of busbw, GB/s; wrong: elements that failed verification"""


def _legend(run: Run, operation: Operation) -> str:
    """Return the meaning of the columns in lines of at most 80 characters."""
    lines = [_LEGEND, f"busbw = algbw × {operation.collective.busbw.formula}"]
    if any(sample.plain for measurement in run.measurements for sample in measurement.samples):
        lines.append("between hosts, time is of plain launches, not of CUDA graph replays")
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block")
    if operation.irregular:
        lines.append("size: bytes of the busiest rank, the more of sent and received")
    return "\n".join(lines)


_FIGURES = ("time µs", "launch µs", "algbw", "busbw GB/s", "interval", "wrong")


def _table(run: Run, measurements: Sequence[Measurement], impossible_points: Mapping[DataPoint, Impossible]) -> Table:
    """Return the table of one communicator, without columns that have no figure."""
    memory = list(Registration)
    ordered = sorted(
        measurements,
        key=lambda m: (m.point.size_bytes, m.point.variant is Variant.IN_PLACE, memory.index(m.point.registration)),
    )
    rows = (_cells(run, measurement, impossible=measurement.point in impossible_points) for measurement in ordered)
    heads = ("size", "in place", "memory", "count", *_FIGURES, "flags")
    every = table(
        *heads, rows=rows, left=("in place", "memory", "flags"), keys=3, optional={*heads} - {"size", "wrong"}
    )
    several = len({measurement.point.registration for measurement in ordered}) > 1
    return every if several else every.without(["memory"])


def _cells(run: Run, measurement: Measurement, *, impossible: bool) -> Iterator[str]:
    """Yield a data point's text in each column; of a flag one word, the page's notes say more."""
    point = measurement.point
    blocks = len(point.members) if point.operation.shares else 1
    flags = ["failed"] if measurement.failure else []
    flags += ["impossible"] if impossible else []
    flags += [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    yield format_size(point.size_bytes)
    yield "yes" if point.variant is Variant.IN_PLACE else ""
    yield point.registration.value
    yield str(point.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks)
    yield from _point_figures(measurement)
    yield ", ".join(dict.fromkeys(flags))


def _point_figures(measurement: Measurement) -> tuple[str, ...]:
    """Return a data point's times in µs, its rates, their interval and its wrong elements; "-" for what is unknown."""
    if not measurement.samples:
        return ("-",) * len(_FIGURES)
    summary = summarize(measurement)
    unchecked = measurement.wrong is None or not measurement.point.work.verifiable
    return (
        micro(summary.seconds),
        micro(summary.launch_seconds or None),
        f"{summary.algbw:.2f}",
        f"{summary.busbw:.2f}",
        "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "-" if unchecked else str(measurement.wrong),
    )


# Which memory is fastest for a collective: ordinary, or registered with NCCL.


def compared_memory(run: Run, operation: Operation, devices: tuple[int, ...]) -> list[Part]:
    """Return the comparison of kinds of memory, out of place and in place; nothing if there is only one kind."""
    out_of_place, in_place = (
        list(_of_variant(run, operation, devices, variant)) for variant in (Variant.PLAIN, Variant.IN_PLACE)
    )
    between = [Text(f"\n{operation} {Variant.IN_PLACE}")] if out_of_place and in_place else []
    return [*out_of_place, *between, *in_place]


def _of_variant(run: Run, operation: Operation, devices: tuple[int, ...], variant: Variant) -> Iterator[Part]:
    """Yield which memory is fastest at which sizes, and a table of sizes by kind."""
    by_size = winners(run, operation, devices, variant)
    if not by_size:
        return
    mark = sim(run, " (sim)")
    yield Lines("\n".join(f"memory    {line}{mark}" for line in map(winner_words, ranges(by_size))))
    sizes = side_by_side(run, operation, devices, variant)
    kinds = [kind for kind in Registration if any(kind in by_kind for by_kind in sizes.values())]
    heads, rows = (*(f"{kind} µs" for kind in kinds), *(f"{kind} GB/s" for kind in kinds), "fastest"), []
    fastest = {winner.size_bytes: winner.fastest for winner in by_size}
    for size, by_kind in sizes.items():
        summaries = [summarize(by_kind[kind]) if kind in by_kind else None for kind in kinds]
        times = [micro(None if summary is None else summary.seconds) for summary in summaries]
        rates = ["-" if summary is None else f"{summary.busbw:.2f}" for summary in summaries]
        names = fastest.get(size, ())
        rows.append((format_size(size), *times, *rates, "tie" if len(names) == len(kinds) else ", ".join(names)))
    yield Text()
    yield table("size", *heads, rows=rows)


def fastest_memory(run: Run) -> Iterator[Part]:
    """Yield for each collective and pair which memory is fastest at which sizes."""
    for operation, devices in by_communicator(run):
        where = f"{operation} on {tags(devices, run.devices, '-')}"
        same = ranges(winners(run, operation, devices, Variant.PLAIN))
        yield Lines("\n".join(f"memory    {where}: {winner_words(won)}{sim(run, ' (sim)')}" for won in same))


def winner_words(same: Sequence[Winner], names: Mapping[Registration, str] | None = None) -> str:
    """Return which memory wins or ties at these sizes: "window wins from 256K to 8M, 1.44x at 2M (1.41-1.47)".

    `names` are what to call the kinds of memory instead.
    """
    called = names or {kind: kind.value for kind in Registration}
    first, last = format_size(same[0].size_bytes), format_size(same[-1].size_bytes)
    where = f"at {first}" if len(same) == 1 else f"from {first} to {last}"
    fastest = ", ".join(called[kind] for kind in same[0].fastest)
    text = f"{fastest} {'wins' if len(same[0].fastest) == 1 else 'tie'} {where}"
    gains = [(winner.gain, winner.size_bytes) for winner in same if winner.gain]
    if not gains:
        return text
    gain, size = max(gains, key=lambda pair: pair[0].ratio)
    if gain.interval is None:
        return text
    over = "" if gain.kind is Registration.NONE else f" over {called[gain.kind]}"
    low, high = gain.interval
    return f"{text}, {gain.ratio:.2f}x{over} at {format_size(size)} ({low:.2f}-{high:.2f})"


# Single launches: percentiles by size, and which ranks are late.

_FEW_GROUPS = 4  # communicators on a short page


def _all_launches(run: Run) -> Iterator[Block]:
    """Yield for each communicator of single launches a table, and which ranks are late."""
    groups = launches_by_communicator(run)
    for index, by_size in enumerate(groups):
        shown = both if index < _FEW_GROUPS else whole
        yield from shown("tails", *single_launches(run, by_size))
    if len(groups) > _FEW_GROUPS:
        yield from short(Text(f"\nand {len(groups) - _FEW_GROUPS} more communicators: --verbose shows them"))


def single_launches(run: Run, by_size: Sequence[Tails]) -> list[Part]:
    """Return a communicator's title, its table, which ranks are late, and which percentiles lack launches."""
    point, counts = by_size[0].point, dict.fromkeys(str(tail.count) for tail in by_size)
    what = f"{point.work} over {tags(point.members, run.devices)}"
    title = f"{sim(run)}{what}: {' or '.join(counts)} single launches of each size, µs"
    lines = [f"late      {line}" for line in _late(run, by_size)]
    needed = {percent: fewest_launches(percent) for percent in PERCENTILES}
    most = min(tail.count for tail in by_size)
    if few := [f"p{percent} needs {least} launches" for percent, least in needed.items() if most < least]:
        lines.append(f"too few   {', '.join(few)}")
    return [Text(f"\n{title}"), _percentiles(by_size), Lines("\n" + "\n".join(lines))]


def launches_by_communicator(run: Run) -> list[list[Tails]]:
    """Return the run's single launches for each work and communicator, by size."""
    groups = grouped(((tail.point.work, tail.point.members), tail) for tail in tails(run))
    return [sorted(group, key=lambda tail: tail.point.size_bytes) for group in groups.values()]


def _percentiles(by_size: Sequence[Tails]) -> Table:
    """Return a row for each size, in µs: percentiles of the transfer time, and of the time with waiting."""
    rows = []
    for tail in by_size:
        moved, waited = tail.transfer or tail.waited, tail.waited
        interval = moved.interval
        between = f"{micro(interval[0])}-{micro(interval[1])}" if interval else "-"
        figures = (*map(moved.at, PERCENTILES), moved.maximum), (waited.at(50), waited.at(99), waited.maximum)
        rows.append((format_size(tail.point.size_bytes), *map(micro, figures[0]), between, *map(micro, figures[1])))
    heads = (*(f"p{percent}" for percent in PERCENTILES), "max", "interval of p50", "waited p50", "p99", "max")
    return table("size", *heads, rows=rows)


def _late(run: Run, by_size: Sequence[Tails]) -> Iterator[str]:
    if any(tail.transfer is None for tail in by_size):
        yield "not judged: hosts have no common clock; a launch's time is the longest of its ranks' own times"
        return
    if by_size[0].point.operation.rooted:
        yield f"not judged: the ranks of {by_size[0].point.operation} finish at different times by design"
        return
    by_device = _late_by_device(by_size)
    for device, late in by_device.items():
        yield _described(run, device, late, len(by_size))
    if not by_device:
        resolution = max(rank.arrives.resolved for tail in by_size for rank in tail.ranks if rank.arrives is not None)
        yield f"no rank arrives significantly later than the others; clock resolution {micro(resolution)} µs"


def _late_by_device(by_size: Sequence[Tails]) -> dict[int, list[tuple[Tails, RankTails]]]:
    """Return by device where its rank is late, of the launches of one communicator."""
    return grouped((rank.member, (tail, rank)) for tail in by_size for rank in tail.late)


def _described(run: Run, device: int, late: Sequence[tuple[Tails, RankTails]], sizes: int) -> str:
    """Return which rank is late, by how much, and whether its links or its GPU's work cause it."""
    medians = [rank.arrives.median for _, rank in late if rank.arrives is not None]
    by = f"{span(medians, micro)} µs"
    last = max(rank.last or 0.0 for _, rank in late)
    at = "" if sizes == 1 else f" at {len(late)} of {sizes} sizes"
    where = (
        f"{run.devices[device].tag} arrives {by} later than the others{at}, last in up to {last:.0%} of the launches"
    )
    cause = "it finishes with the others: the delay is on its GPU before the call, not on its links"
    if leaves := [rank.leaves.median for _, rank in late if rank.leaves is not None and rank.leaves.significant]:
        cause = f"it finishes {micro(max(leaves))} µs later, too: the cause is its links or its speed"
    points = {tail.point for tail, _ in late}
    flags = dict.fromkeys(
        sentences.flag(flag, run.devices)
        for latency in without_idle(run).latencies
        if latency.point in points
        for flag in latency.flags
        if device in flag.devices
    )
    return "; ".join([where, cause, *(f"during these launches {flag}" for flag in flags)])


# The page of `collbench latency --collectives`: small all-reduces by number of ranks, size and memory.

# As people who serve models call the kinds of memory.
_MEMORY = {Registration.NONE: "ordinary", Registration.BUFFER: "registered", Registration.WINDOW: "symmetric"}
_SMALL_LEGEND = """\
graph: a call in a CUDA graph, the slowest rank, median of the trials; a trial
is the mean of many calls, so percentiles are those of single launches without
a graph: from the last rank's arrival to the last one's finish. registered:
ncclCommRegister; symmetric: ncclCommWindowRegister, as with vLLM's
VLLM_USE_NCCL_SYMM_MEM=1 and SGLang's --enable-symm-mem. Custom kernels, as
vLLM's, are not timed here"""


def small_allreduces_page(run: Run) -> Page:
    """Yield the page's blocks: the answers, what a token costs by number of ranks, then the times by size."""
    every = small_allreduces(run)
    if not every:
        yield from ending(run)
        return
    mark = sim(run, " (sim)")
    yield from both("tables", *(Lines(f"{line}{mark}") for line in _small_answers(run, every)))
    launches = launches_by_communicator(run)
    yield from short(*(Lines(f"late      {line}{mark}") for line in _latest(run, launches)))
    yield from whole("header", Lines(f"\n{header(run)}"))
    size = TOKEN_BYTES if TOKEN_BYTES in every[0].sizes else every[0].sizes[0]
    everybody = tags(every[-1].members, run.devices)
    over = everybody if len(every) == 1 else f"the first {_counts(every)} of {everybody}"
    how = f"{run.settings.dtype}, {run.settings.redop}, over {over}"
    yield from both(
        "tables", Lines(f"\n{sim(run)}all-reduce of {format_size(size)}, µs: {how}"), _by_ranks(run, every, size)
    )
    if len(every) > 1:
        yield from short(Lines(f"\n{sim(run)}on the fastest memory in a CUDA graph, µs"), _fastest(every))
    shown = both if len(every) == 1 else whole
    for found in every:
        yield from shown("tables", Lines(f"\n{sim(run)}{len(found.members)} ranks in a CUDA graph, µs"), _graphs(found))
    yield from both("tables", Text(f"\n{_SMALL_LEGEND}"))
    for by_size in launches:
        yield from whole("tails", *single_launches(run, by_size))
    yield from ending(run)


def _latest(run: Run, groups: Iterable[Sequence[Tails]]) -> Iterator[str]:
    """Yield which rank is late, once for each GPU: in the largest communicator in which it is, at most sizes."""
    found: dict[int, tuple[str, tuple[int, int]]] = {}
    for by_size in groups:
        for device, late in _late_by_device(by_size).items():
            ranks = len(by_size[0].point.members)
            telling = ranks, len(late)
            if device not in found or telling > found[device][1]:
                found[device] = f"of {ranks} ranks, {_described(run, device, late, len(by_size))}", telling
    yield from (line for line, _ in found.values())


def _counts(every: Sequence[SmallAllreduces]) -> str:
    """Return the numbers of ranks: "2, 4, 8"."""
    return ", ".join(str(len(found.members)) for found in every)


def _small_answers(run: Run, every: Sequence[SmallAllreduces]) -> Iterator[str]:
    """Yield how long one all-reduce takes and those of a token, which memory wins where, and whose times are vLLM's."""
    if every[0].token_seconds:
        calls = run.settings.layers * ALLREDUCES_A_LAYER
        ranks = [(len(found.members), min(found.token_seconds.values())) for found in every]
        one = ", ".join(f"{count} ranks {micro(seconds / calls)}" for count, seconds in ranks)
        yield f"allreduce of {format_size(TOKEN_BYTES)}, fastest memory, µs: {one}"
        all_of = ", ".join(f"{count} ranks {seconds * 1e3:.2f}" for count, seconds in ranks)
        what = f"{run.settings.layers} layers × {ALLREDUCES_A_LAYER} of these (hidden {TOKEN_HIDDEN})"
        yield f"token     {what}, ms: {all_of}"
    won = grouped(("; ".join(winner_words(same, _MEMORY) for same in ranges(found.winners)), found) for found in every)
    yield from (f"memory    {_counts(alike)} ranks: {words}" for words, alike in won.items() if words)
    customs = grouped((found.custom.machine, found) for found in every if found.custom)
    for named, alike in customs.items():
        origin = f"published: {published().source}, {published().license}"
        yield f"reference vLLM's custom all-reduce, {_counts(alike)} ranks of {named}: {origin}"
    if (missing := [found for found in every if not found.custom]) and not capabilities(run.backend).simulated:
        of = counted(run.devices[member].name for member in missing[-1].members)
        yield f"reference no published times of vLLM's custom all-reduce on {of}"


def _by_ranks(run: Run, every: Sequence[SmallAllreduces], size: int) -> Table:
    """Return a row for each number of ranks and kind of memory, or vLLM's published time: one size, and a token."""
    rows, calls = [], run.settings.layers * ALLREDUCES_A_LAYER
    for found in every:
        times: list[tuple[str, float | None, float | None, float | None]] = [
            (_MEMORY[kind], call.seconds, call.launch_at(50), call.launch_at(99))
            for kind, call in found.at(size).items()
        ]
        if found.custom is not None:
            times.append((f"vLLM {found.custom.vllm}", found.custom_seconds(size), None, None))
        for number, (memory, seconds, p50, p99) in enumerate(times):
            cost = "-" if seconds is None or size != TOKEN_BYTES else f"{seconds * calls * 1e3:.2f}"
            ranks = "" if number else str(len(found.members))
            rows.append((ranks, memory, *map(micro, (seconds, p50, p99)), cost))
    heads = ("ranks", "memory", "graph", "p50", "p99", "token ms")
    return table(*heads, rows=rows, left=("memory",), keys=2, optional={*heads} - {"graph"})


def _fastest(every: Sequence[SmallAllreduces]) -> Table:
    """Return a row for each size: for each number of ranks the time on the fastest kind of memory, and its name."""
    rows = []
    for size in sorted({size for found in every for size in found.sizes}):
        cells = [format_size(size)]
        for found in every:
            seconds = [call.seconds for call in found.at(size).values()]
            cells += [micro(min(seconds, default=None)), "tie" if len(found.won(size)) > 1 else _names(found, size)]
        rows.append(cells)
    # Blanks tell columns of one name apart.
    heads = ((f"{len(found.members)} ranks", f"fastest{' ' * number}") for number, found in enumerate(every))
    return table("size", *chain.from_iterable(heads), rows=rows)


def _names(found: SmallAllreduces, size: int) -> str:
    """Return the fastest kinds of memory at a size, "tie" for all."""
    names = found.won(size)
    return "tie" if len(names) == len(found.kinds) else ", ".join(map(_MEMORY.__getitem__, names))


def _graphs(found: SmallAllreduces) -> Table:
    """Return a row for each size: the time on each kind of memory, the fastest kinds, and vLLM's published time."""
    custom = [f"vLLM {found.custom.vllm}"] if found.custom else []
    rows = []
    for size in found.sizes:
        times = found.at(size)
        cells = [micro(times[kind].seconds) if kind in times else "-" for kind in found.kinds]
        published_times = (micro(found.custom_seconds(size)) for _ in custom)
        rows.append((format_size(size), *cells, _names(found, size), *published_times))
    return table("size", *map(_MEMORY.__getitem__, found.kinds), "fastest", *custom, rows=rows)


def small_allreduces_json(run: Run) -> list[dict[str, Any]]:
    """Return for each number of ranks what the small_allreduces_page says, in JSON's own types and in seconds."""
    return [_small_json(run, found) for found in small_allreduces(run)]


def _small_json(run: Run, found: SmallAllreduces) -> dict[str, Any]:
    custom = None
    if found.custom is not None:
        times = [{"size_bytes": size, "seconds": found.custom_seconds(size)} for size in published().sizes]
        custom = picked(found.custom, "machine", "ranks", "vllm") | {"times": times}
        custom |= picked(published(), "conditions", "source", "license")
    return {
        "ranks": len(found.members),
        "devices": [run.devices[member].tag for member in found.members],
        "times": [
            {"size_bytes": timed.size_bytes, "registration": timed.kind.value, "seconds": timed.seconds}
            | {"launch_p50_seconds": timed.launch_at(50), "launch_p99_seconds": timed.launch_at(99)}
            for timed in found.timed
        ],
        "fastest": [{"size_bytes": winner.size_bytes, "registrations": [*winner.fastest]} for winner in found.winners],
        "token": {
            "layers": run.settings.layers,
            "allreduces": run.settings.layers * ALLREDUCES_A_LAYER,
            "size_bytes": TOKEN_BYTES,
            "seconds": dict(found.token_seconds),
        },
        "custom_all_reduce": custom,
    }
