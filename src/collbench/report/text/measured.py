"""The page of a run, as the command that measured it printed it: pairs, collectives, copies, latency; its sections."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median

import numpy as np
from rich.text import Text

from collbench.choose.choice import Choice
from collbench.choose.problem import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.outcome import timed_points
from collbench.judge.physics import Impossible, by_point
from collbench.judge.registration import Winner, kinds_of, ordinary, ranges, side_by_side, winners
from collbench.judge.stats import half_width, summarize
from collbench.judge.summary import HostShare, host_shares, share_of_all
from collbench.judge.tier_words import verdict_of
from collbench.judge.tiers import Members, Ranking, kind_of, rank_pairs
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import CommandKind, DataPoint, Measurement, Run, tags
from collbench.model.skew import imbalance
from collbench.model.units import DTYPE_BYTES, amount, figure, format_size, sentence, span
from collbench.report import sections
from collbench.report.text.frame import ALARM, alarm, device_names, ending, header, headline, sim
from collbench.report.text.layout import Block, Lines, Page, Part, Table, both, legend, listed, short, table, whole
from collbench.report.text.ranking import render_bandwidths, unit_of, value, value_of
from collbench.report.text.reference import below, normal_line
from collbench.report.text.topology import render_labels
from collbench.report.text.verdicts import contradiction

# The page of `collbench pairs` and `check`: labels, bandwidths, ranking, recommendation.


# (most, best, worst): a table of more than `most` pairs shows so many of the best and of the worst.
_PAIR_ROWS, _FEW_PAIR_ROWS = (28, 16, 8), (8, 5, 2)


def pairs_page(run: Run) -> Page:
    """Yield the page's blocks, top to bottom."""
    yield from whole("header", Lines(header(run)))
    every, run = run, ordinary(run)
    source = "from NUMA nodes" if capabilities(run.backend).cores else "as nvidia-smi topo -m names them"
    yield from whole("labels", Text(f"\nlabels ({source})\n{render_labels(run.devices, run.paths)}"))
    for operation in _mapped(run):
        yield from whole("matrices", Text(), render_bandwidths(run, operation, _largest(run, operation)))
    if _on_pairs(run):
        yield from whole("matrices", legend())
    ranking = evidence(run)
    if ranking is not None:
        lines = "\n".join(recommended(run, [*choose_each(run)]))
        # Below a fault that no figure sees, nothing may read "normal".
        normal = [] if contradiction(run) and not below(run) else [*normal_line(run)]
        yield from short(Lines(lines), *normal, *ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, _PAIR_ROWS), Lines(f"\n{lines}"))
        yield from whole("notes", *normal)
    else:
        for operation in _mapped(run)[:1]:
            yield from short(render_bandwidths(run, operation, _largest(run, operation)), legend())
    if len(kinds_of(every)) > 1:
        yield from both("tables", *_fastest_memory(every))
    yield from ending(every)


def recommended(run: Run, chosen: Iterable[Choice]) -> list[str]:
    """Return a line for each set that was chosen, with its reason, and for each device that was left out."""
    lines = [f"best {len(one.members):<3} {tags(one.members, run.devices)}: {one.why(run.devices)}" for one in chosen]
    lines = [f"{line}{sim(run, ' (sim)')}" for line in lines]
    return lines + [f"left out {run.devices[one.member].tag}: {one.reason}" for one in left_out(run)]


def ranked_pairs(run: Run, ranking: Ranking) -> Iterator[Part]:
    """Yield a short page's table of pairs and its matrix."""
    yield Text()
    yield from _pairs(run, ranking, _FEW_PAIR_ROWS)
    if len(run.devices) > 2:
        yield Text()
        yield render_bandwidths(run, ranking.operation, ranking.size_bytes)
        yield legend()


def _on_pairs(run: Run) -> list[Operation]:
    """Return the operations measured on pairs."""
    return operations_of([measurement for measurement in run.measured() if len(measurement.point.members) == 2])


def _mapped(run: Run) -> list[Operation]:
    """Return the operations whose matrices are printed: the first copy and the first collective."""
    operations = _on_pairs(run)
    return [one for one in operations if one.is_copy][:1] + [one for one in operations if one.is_collective][:1]


def _largest(run: Run, operation: Operation) -> int:
    return max(m.point.size_bytes for m in run.measured() if m.point.operation is operation)


def rankings_of_pairs(run: Run, deciding: Ranking) -> Iterator[Ranking | None]:
    """Yield the ranking by which devices are chosen, then that of each other operation at its largest size on pairs."""
    yield deciding
    of_pairs = [measurement for measurement in run.measured() if len(measurement.point.members) == 2]
    for operation in operations_of(of_pairs):
        if operation is not deciding.operation:
            yield rank_pairs(run, operation, at_largest(of_pairs, operation)[0].point.size_bytes)


def _pairs(run: Run, ranking: Ranking, rows: tuple[int, int, int]) -> Iterator[Part]:
    """Yield the table of pairs, best first; `rows` says how many it shows, as _PAIR_ROWS does."""
    size = format_size(ranking.size_bytes)
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    title = f"{ranking.operation} at {size}, {unit} (95% interval; up to {ranking.delta:.1%} is a tie)"
    yield Text(f"{sim(run)}pairs by {title}")
    operations = [ranking.operation, *(one for one in _on_pairs(run) if one is not ranking.operation)]
    spare = [operation.value for operation in reversed(operations) if operation not in _mapped(run)]
    # The interval and the comparison are those of the operation that ranks: a folded table keeps them beside it.
    heads = ["tier", "pair", "label", ranking.operation, "interval", "vs best", *operations[1:]]
    _, *others = rankings_of_pairs(run, ranking)
    figures = [
        {one.pair: value(one.seconds, one.gbs, unit) for one in each.standings} if each else {} for each in others
    ]
    last, shown = -1, list[tuple[str, ...]]()
    for index in _kept_rows(ranking, rows):
        standing, hidden = ranking.standings[index], ranking.standings[last + 1 : index]
        if hidden:
            whole_tiers = {one.tier for one in hidden} - {standing.tier, ranking.standings[last].tier}
            of_tiers = f" of {amount(len(whole_tiers), 'tier')}" if whole_tiers else ""
            shown.append(("…", f"{len(hidden)} more{of_tiers}"))
        last = index
        middle = value(standing.seconds, standing.gbs, unit)
        # A time is the longer, the lower the rate.
        ends = sorted(value(standing.seconds * standing.gbs / gbs, gbs, unit) for gbs in standing.interval or ())
        interval, relation = "-".join(f"{end:.1f}" for end in ends) or "-", standing.relation.value
        rates = (f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in figures)
        pair = tags(standing.pair, run.devices, "-")
        shown.append((str(standing.tier), pair, standing.label, f"{middle:.1f}", interval, relation, *rates))
    elsewhere, left = "widen the terminal, or run collbench show RUN.JSON --ranking", heads[:3] + heads[5:6]
    yield table(*heads, rows=shown, left=left, spare=spare, elsewhere=elsewhere)
    yield Text(sentence(verdict_of(ranking)))


def _kept_rows(ranking: Ranking, rows: tuple[int, int, int]) -> list[int]:
    """Return which rows a table of pairs shows: all, or the best, the worst, and the best of each tier between them.

    Of more tiers between them than the table may have rows, the first ones are shown.
    """
    most, best, worst = rows
    tiers = [standing.tier for standing in ranking.standings]
    count = len(tiers)
    if count <= most:
        return list(range(count))
    between = sorted({tiers.index(tier) for tier in tiers[best : count - worst]} - {*range(best)})
    kept = {*range(best), *between[:most], *range(count - worst, count)}
    # A row alone takes no more room than the line that counts it.
    return [index for index in range(count) if index in kept or {index - 1, index + 1} <= kept]


def rates_line(run: Run, measurements: Sequence[Measurement]) -> Lines:
    """Return one operation's rate at its largest size: "allreduce, 8 GPUs: 362.4 GB/s busbw at 1G".

    Of several sets of devices it has the range, and names the slowest. Small messages have a time instead.
    """
    largest = at_largest(measurements, measurements[0].point.operation)
    work, size_bytes = largest[0].point.work, largest[0].point.size_bytes
    unit = unit_of(run, work, size_bytes)
    figures = sorted((value_of(one, unit), one.point.members) for one in largest)
    (least, first), (most, last) = figures[0], figures[-1]
    rates = f"{span(figure(least), figure(most))} {unit}"
    busbw = " busbw" if work.operation.is_collective and unit == "GB/s" else ""
    slowest = device_names(run.devices, work, first if unit == "GB/s" else last)
    sets = [*dict.fromkeys(one.point.members for one in largest)]  # host copies of one GPU may be on several nodes
    where = f", slowest on {slowest}" if least < most and len(sets) > 1 else ""
    said = f"{work}, {_counted_sets(run, work, sets)}: {rates}{busbw}"
    return Lines(f"{said} at {format_size(size_bytes)}{where}{sim(run, ' (sim)')}")


def _counted_sets(run: Run, work: Work, sets: Sequence[Members]) -> str:
    """Return on what a work was measured: "8 GPUs", "28 pairs", "2 sets of 4 GPUs"."""
    device = "core" if run.devices[0].is_core else "GPU"
    sizes = {len(members) for members in sets}
    if sizes <= {1, 2} and len(sets) > 1:
        kind = kind_of(work)
        return amount(len(sets), device if kind == "device" else kind)
    each = amount(max(sizes), device)
    return each if len(sets) == 1 else f"{len(sets)} sets of {each}"


def operations_of(measurements: Collection[Measurement]) -> list[Operation]:
    """Return the operations of some data points, in the order of the model."""
    present = {measurement.point.operation for measurement in measurements}
    return [operation for operation in Operation if operation in present]


def at_largest(measurements: Sequence[Measurement], operation: Operation) -> list[Measurement]:
    """Return an operation's data points of the largest size."""
    these = [measurement for measurement in measurements if measurement.point.operation is operation]
    largest = max(measurement.point.size_bytes for measurement in these)
    return [measurement for measurement in these if measurement.point.size_bytes == largest]


# The page of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose.


# On the short page: rows of a table, and the columns that it lacks, so that its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(run: Run) -> Page:
    """Yield the page's blocks, a table for each communicator; the short page compares several at the largest size."""
    for operation in operations_of(run.measured()):
        of_operation = [one for one in ordinary(run).measured() if one.point.operation is operation]
        yield from short(rates_line(run, of_operation))
    yield from whole("header", Lines(header(run)))
    groups = sorted(dict.fromkeys((m.point.operation, m.point.members) for m in run.measurements))
    few, impossible_points, kinds = len(groups) <= 1, by_point(run), kinds_of(run)
    if any(measurement.samples for measurement in run.measurements):
        yield from both("notes", *normal_line(run))
    if not few:
        yield from short(*_communicators(ordinary(run)))
    for operation, devices in groups:
        measurements = [m for m in run.measurements if (m.point.operation, m.point.members) == (operation, devices)]
        head = Lines(f"\n{_title(run, operation, devices, measurements, kinds)}")
        compared = _compared_memory(run, operation, devices) if len(kinds) > 1 else []
        if compared:
            yield from both("tables", head, *compared)
            yield from whole("tables", Text(), _table(run, measurements, impossible_points))
            continue
        yield from whole("tables", head, _table(run, measurements, impossible_points))
        if few:
            # The largest size, and below it every second, third, … size, so that all rows fit.
            sizes = sorted({measurement.point.size_bytes for measurement in measurements}, reverse=True)
            every = ceil(len(measurements) / _FEW_ROWS)
            kept = sizes[::every]
            spaced = [measurement for measurement in measurements if measurement.point.size_bytes in kept]
            left_out = [Text(f"one size of {every}; --verbose shows all {len(sizes)}")] if every > 1 else []
            yield from short(head, _table(run, spaced, impossible_points, without=_ONLY_WHOLE), *left_out)
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield from whole("tables", Text(_columns_legend(run, operation)))
    if run.latencies:
        from collbench.report.text.tails import blocks as single_launches  # late: few runs need it

        yield from single_launches(run)
    yield from ending(run)


def _communicators(run: Run) -> Iterator[Part]:
    """Yield the rates at the largest size: of pairs a ranking and a matrix, of larger communicators a table."""
    for operation in dict.fromkeys(m.point.operation for m in run.measurements):
        measurements = [m for m in run.measured() if m.point.operation is operation]
        pairs = [m for m in measurements if len(m.point.members) == 2]
        if pairs and (ranking := rank_pairs(run, operation, max(m.point.size_bytes for m in pairs))):
            yield from ranked_pairs(run, ranking)
        if others := [m for m in measurements if len(m.point.members) != 2]:
            largest = at_largest(others, operation)
            yield Text(f"\n{sim(run)}{operation} at {format_size(largest[0].point.size_bytes)}")
            figures = [(tags(one.point.members, run.devices), point_figures(one)) for one in largest]
            rows = [(name, shown["time µs"], shown["busbw"], shown["interval"]) for name, shown in figures]
            yield from listed(table("devices", "time µs", "busbw GB/s", "95% interval", rows=rows), _FEW_ROWS)


def _title(
    run: Run,
    operation: Operation,
    devices: tuple[int, ...],
    measurements: Sequence[Measurement],
    kinds: Sequence[Registration],
) -> str:
    settings = [run.settings.dtype]
    if operation.reduces:
        settings.append(run.settings.redop)
    if operation.irregular:
        largest = max((one.point for one in measurements), key=lambda point: point.size_bytes)
        uneven = f"{largest.skew}, busiest rank {imbalance(largest.blocks):.2f} × the mean"
        settings.append("uniform" if largest.skew is None else uneven)
    if len(kinds) == 1 and kinds[0] is not Registration.NONE:
        settings.append(f"memory registered as {kinds[0]}")
    if operation.rooted:
        root = run.settings.root
        settings.append(f"root {root} ({run.devices[devices[root]].tag})")
    if any(sample.concurrent for measurement in measurements for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    return f"{operation} over {tags(devices, run.devices)} ({len(devices)} ranks): {', '.join(settings)}"


def _columns_legend(run: Run, operation: Operation) -> str:
    """Return the meaning of the columns in lines of at most 80 characters."""
    samples = [sample for measurement in run.measurements for sample in measurement.samples]
    lines = ["time: one collective on the device, the slowest rank, median;"]
    if any(sample.launch_seconds is not None for sample in samples):
        lines = [f"{lines[0]} launch: one call", "of an ungraphed loop, as in a training step, the mean of the ranks;"]
    if any(sample.plain for sample in samples):
        lines.append("between hosts, time is of plain launches, not of CUDA graph replays;")
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block;")
    if operation.irregular:
        lines.append("size: bytes of the busiest rank, the more of sent and received;")
    lines.append(f"busbw = algbw × {operation.collective.busbw.formula}; interval: 95% of busbw, GB/s;")
    lines.append("wrong: elements that failed verification")
    return "\n".join(lines)


def _table(
    run: Run,
    measurements: Sequence[Measurement],
    impossible_points: Mapping[DataPoint, Impossible],
    without: Sequence[str] = (),
) -> Table:
    """Return the table of one communicator, without columns that have no figure."""
    memory = list(Registration)
    ordered = sorted(
        measurements,
        key=lambda m: (m.point.size_bytes, m.point.variant is Variant.IN_PLACE, memory.index(m.point.registration)),
    )
    several = kinds_of(run) if len({measurement.point.registration for measurement in ordered}) > 1 else ()
    rows = [
        _cells(run, measurement, several, impossible=measurement.point in impossible_points) for measurement in ordered
    ]
    filled = {head for row in rows for head, text in row.items() if text not in ("", "-")} | {"size", "wrong"}
    heads = [head for head in rows[0] if head in filled and head not in without]
    keys = sum(head in ("size", "in place", "memory") for head in heads)
    shown = ("busbw GB/s" if head == "busbw" else head for head in heads)
    cells = ([row[head] for head in heads] for row in rows)
    return table(*shown, rows=cells, left=("in place", "memory", "flags"), keys=keys)


def _cells(run: Run, measurement: Measurement, kinds: Sequence[Registration], *, impossible: bool) -> dict[str, str]:
    """Return a data point's text in each column; of a flag one word, the page's notes say more."""
    point = measurement.point
    blocks = len(point.members) if point.operation.shares else 1
    wanted = (point.operation, len(point.members), point.size_bytes, point.registration)
    chosen = next(
        (one for one in run.chosen if (one.operation, one.ranks, one.size_bytes, one.registration) == wanted), None
    )
    flags = ["failed"] if measurement.failure else []
    flags += ["impossible"] if impossible else []
    flags += [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    return {
        "size": format_size(point.size_bytes),
        "in place": "yes" if point.variant is Variant.IN_PLACE else "",
        "memory": point.registration.value if kinds else "",
        "count": str(point.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks),
        **point_figures(measurement),
        "algo": chosen.algorithm if chosen else "-",
        "proto": chosen.protocol if chosen else "-",
        "ch": str(chosen.channels or "-") if chosen else "-",
        "flags": ", ".join(dict.fromkeys(flags)),
    }


def point_figures(measurement: Measurement) -> dict[str, str]:
    """Return a data point's figures by the head of their column; all "-" where nothing was measured."""
    if not measurement.samples:
        return dict.fromkeys(("time µs", "launch µs", "algbw", "busbw", "interval", "wrong"), "-")
    summary = summarize(measurement)
    unchecked = not measurement.point.work.verifiable
    return {
        "time µs": f"{summary.seconds * 1e6:.2f}",
        "launch µs": f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-",
        "algbw": f"{summary.algbw:.2f}",
        "busbw": f"{summary.busbw:.2f}",
        "interval": "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "wrong": "-" if measurement.wrong is None or unchecked else str(measurement.wrong),
    }


# Registered memory: times side by side, and a line for each range of sizes.


def _compared_memory(run: Run, operation: Operation, devices: tuple[int, ...]) -> list[Part]:
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
    fastest = {one.size_bytes: one.fastest for one in by_size}
    for size, by_kind in sizes.items():
        summaries = [summarize(by_kind[kind]) if kind in by_kind else None for kind in kinds]
        times = ["-" if one is None else f"{one.seconds * 1e6:.2f}" for one in summaries]
        rates = ["-" if one is None else f"{one.busbw:.2f}" for one in summaries]
        names = fastest.get(size, ())
        rows.append((format_size(size), *times, *rates, "tie" if len(names) == len(kinds) else ", ".join(names)))
    yield Text()
    yield table("size", *heads, rows=rows)


def _fastest_memory(run: Run) -> Iterator[Part]:
    """Yield for each collective and pair which memory is fastest at which sizes."""
    measurements = [measurement for measurement in run.measured() if measurement.point.operation.is_collective]
    for operation, devices in dict.fromkeys((one.point.operation, one.point.members) for one in measurements):
        where = f"{operation} on {tags(devices, run.devices, '-')}"
        same = ranges(winners(run, operation, devices, Variant.PLAIN))
        yield Lines("\n".join(f"memory    {where}: {winner_words(one)}{sim(run, ' (sim)')}" for one in same))


def winner_words(same: Sequence[Winner], names: Mapping[Registration, str] | None = None) -> str:
    """Return which memory wins or ties at these sizes: "window wins from 256K to 8M, 1.44x at 2M (1.41-1.47)".

    `names` are what to call the kinds of memory instead.
    """
    called = names or {kind: kind.value for kind in Registration}
    first, last = format_size(same[0].size_bytes), format_size(same[-1].size_bytes)
    where = f"at {first}" if len(same) == 1 else f"from {first} to {last}"
    fastest = ", ".join(called[kind] for kind in same[0].fastest)
    text = f"{fastest} {'wins' if len(same[0].fastest) == 1 else 'tie'} {where}"
    gains = [(one.gain, one.size_bytes) for one in same if one.gain]
    if not gains:
        return text
    gain, size = max(gains, key=lambda pair: pair[0].ratio)
    if gain.interval is None:
        return text
    over = "" if gain.kind is Registration.NONE else f" over {called[gain.kind]}"
    low, high = gain.interval
    return f"{text}, {gain.ratio:.2f}x{over} at {format_size(size)} ({low:.2f}-{high:.2f})"


# The page of `collbench copies`: the rates of every link or device, for each pattern and kind of copy.

_MATRICES = (Variant.PLAIN, Variant.BOTH_WAYS, Variant.STAGED)
_TABLES = {
    Variant.ONE_TO_ALL: "one to all others at once: all that a device sends",
    Variant.ALL_TO_ONE: "all others to one at once: all that a device receives",
    Variant.HOST: "h2d: from pinned host memory to the device, d2h: back",
    Variant.LOCAL: "within a device's memory; each byte is read and written",
}
# The columns of the table that compares concurrent host copies with isolated ones.
_SHARES = {
    Variant.HOST_BOTH_WAYS: "both ways",
    Variant.HOST_ALL: "all at once",
    Variant.HOST_ALL_BOTH_WAYS: "all, both ways",
}
_RANGE = ("size", "lowest", "median", "highest")
_NODES_WITH_INTERVALS = 4  # with more NUMA nodes, intervals would break 80 columns
_COPIES_LEGEND = """\
ce: copy engine; sm: a kernel's loads and stores; write: the source issues it;
read: the destination does; ±: half of the median's 95% interval"""


def copies_page(run: Run) -> Page:
    """Yield the page's blocks: matrices of links and pairs, tables of devices; on the short page a row for each."""
    copies = [m for m in run.measured() or run.measurements if m.samples and m.point.operation.is_copy]
    for operation in operations_of(copies)[:1]:
        yield from short(rates_line(run, [one for one in copies if one.point.operation is operation]))
    yield from whole("header", Lines(header(run)))
    yield from _copies_summary(run)
    for variant in (*_MATRICES, *_TABLES):
        measurements = [m for m in run.measured(variant) if m.point.operation.is_copy]
        if measurements:
            several = len({measurement.point.numa_node for measurement in measurements}) > 1
            tables = _nodes if several else _matrices if variant in _MATRICES else _devices
            yield from whole("matrices" if tables is _matrices else "tables", *tables(run, variant, measurements))
    yield from whole("tables", *_shares(run))
    yield from whole("tables", Text(f"\n{_COPIES_LEGEND}"))
    lacks = "skipped   copies both ways, one to all, all to one, staged, to devices: not on CPU cores"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _copies_summary(run: Run) -> Iterator[Block]:
    """Yield the short page's table of ranges, and the matrix of the first kind of copy."""
    rows = []
    for variant in (*_MATRICES, *_TABLES):
        measurements = [m for m in run.measured(variant) if m.point.operation.is_copy]
        for operation in operations_of(measurements):
            rows.append(_range_row(run, Work(operation, variant), at_largest(measurements, operation)))
    if rows:
        yield from both("notes", *normal_line(run))
        yield from short(
            *_host_lines(run, host_shares(run)),
            Text(f"{sim(run)}copies, lowest to highest of all links or devices"),
            table("copy", *_RANGE, rows=rows, keys=2),
        )
    plain = [m for m in run.measured() if m.point.operation.is_copy and len(m.point.members) == 2]
    for operation in operations_of(plain)[:1]:
        size_bytes = at_largest(plain, operation)[0].point.size_bytes
        yield from short(Text(), render_bandwidths(run, operation, size_bytes), legend())


def _range_row(run: Run, work: Work, measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return a work's row at one size: lowest, median and highest figure in the unit that says most."""
    size_bytes = measurements[0].point.size_bytes
    unit = unit_of(run, work, size_bytes)
    figures = _least_to_most([value_of(one, unit) for one in measurements], f" {unit}")
    return (str(work), format_size(size_bytes), *figures)


def _shares(run: Run) -> Iterator[Part]:
    """Yield a table of concurrent host copies for each NUMA node: GB/s and the share of the isolated rate."""
    shares = host_shares(run)
    for node in dict.fromkeys(one.work.numa_node for one in shares):
        here = [one for one in shares if one.work.numa_node == node]
        variants = [variant for variant in _SHARES if any(one.work.variant is variant for one in here)]
        size = format_size(max(one.size_bytes for one in here))
        yield Text(f"\nhost at {size}, concurrently{_host_memory(run, node)}: GB/s one way, % of isolated")
        rows = []
        for device, operation in dict.fromkeys((one.device, one.work.operation) for one in here):
            by_variant = {
                one.work.variant: one for one in here if (one.device, one.work.operation) == (device, operation)
            }
            isolated = next(iter(by_variant.values())).isolated_gbs
            cells = [_cell(by_variant.get(variant)) for variant in variants]
            rows.append((run.devices[device].tag, operation, "-" if isolated is None else figure(isolated), *cells))
        heads = ("device", "copy", "isolated", *map(_SHARES.__getitem__, variants))
        yield table(*heads, rows=rows, left=heads[:2])
    yield from _host_lines(run, shares)


def _host_memory(run: Run, node: int | None) -> str:
    """Return the NUMA node of host memory if it was chosen; None is each device's own node."""
    chosen = {measurement.point.numa_node for measurement in run.measured(Variant.HOST)} - {None}
    if node is not None:
        return f" on NUMA node {node}"
    return " on own NUMA nodes" if chosen else ""


def _cell(one: HostShare | None) -> str:
    if one is None:
        return "-"
    return figure(one.gbs) if one.share is None else f"{figure(one.gbs)} {one.share:4.0%}"


def _host_lines(run: Run, shares: Sequence[HostShare]) -> Iterator[Part]:
    """Yield for each NUMA node the share of their isolated rate that host copies of all devices at once keep."""
    for node in dict.fromkeys(one.work.numa_node for one in shares if one.work.variant.at_once):
        parts: list[str] = []
        for variant in (Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS):
            kept = [
                f"{name} {share:.0%}"
                for name, operation in (("h2d", Operation.H2D_CE), ("d2h", Operation.D2H_CE))
                if (share := share_of_all(shares, Work(operation, variant, node))) is not None
            ]
            if kept:
                parts.append(f"{'both ways ' if variant.opposed else ''}{', '.join(kept)}")
        if parts:
            where = f"all {len(run.devices)} at once{_host_memory(run, node)}"
            yield Lines(f"host      {where}: {'; '.join(parts)} of isolated{sim(run, ' (sim)')}")


def _matrices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[Part]:
    """Yield the matrix of each kind of copy on links or pairs, its range and its widest interval."""
    for operation in operations_of(measurements):
        largest = at_largest(measurements, operation)
        size_bytes = largest[0].point.size_bytes
        unit = unit_of(run, Work(operation, variant), size_bytes)
        low, middle, high = _least_to_most([value_of(one, unit) for one in largest])
        half = max(half_width(one) for one in largest)
        within = f"each ±{half:.1%} at most" if np.isfinite(half) else "too few trials for intervals"
        yield Text()
        yield render_bandwidths(run, operation, size_bytes, variant)
        yield Text(f"{low} to {high}, median {middle}; {within}")
    yield legend()


def _devices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[Part]:
    operations = operations_of(measurements)
    size_bytes = max(measurement.point.size_bytes for measurement in measurements)
    unit = unit_of(run, Work(operations[0], variant), size_bytes)
    about = _HOST_CHASE if operations[0] is Operation.CHASE else _TABLES[variant]
    yield Text(f"\n{variant} at {format_size(size_bytes)}, {unit} ({about})")
    largest = [at_largest(measurements, operation) for operation in operations]
    columns = [{m.point.members[0]: _with_interval(m, unit) for m in points} for points in largest]
    rows = (
        (device.tag, *(values.get(position, "-") for values in columns)) for position, device in enumerate(run.devices)
    )
    yield table("device", *operations, rows=rows)


def _nodes(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[Part]:
    """Yield copies to and from the memory of each NUMA node: a row for each device and kind of copy."""
    size_bytes = max(measurement.point.size_bytes for measurement in measurements)
    unit = unit_of(run, measurements[0].point.work, size_bytes)
    size = format_size(size_bytes)
    yield Text(f"\n{variant} at {size} by NUMA node of the pinned memory, {unit} (h2d: from it, d2h: to it)")
    nodes = sorted(
        {measurement.point.numa_node for measurement in measurements}, key=lambda node: -1 if node is None else node
    )
    heads = ("device", "copy", *("anywhere" if node is None else f"node {node}" for node in nodes))
    operations = operations_of(measurements)
    printed = _with_interval if len(nodes) <= _NODES_WITH_INTERVALS else _middle
    figures = {
        (m.point.members[0], m.point.work): printed(m, unit) for op in operations for m in at_largest(measurements, op)
    }
    rows = (
        (device.tag, operation.value, *(figures.get((at, Work(operation, variant, node)), "-") for node in nodes))
        for at, device in enumerate(run.devices)
        for operation in operations
    )
    yield table(*heads, rows=rows, left=heads[:2])


def _with_interval(measurement: Measurement, unit: str) -> str:
    half, middle = half_width(measurement), _middle(measurement, unit)
    return f"{middle} ±{half:.1%}" if np.isfinite(half) else middle


def _least_to_most(values: Sequence[float], unit: str = "") -> list[str]:
    return [f"{figure(value)}{unit}" for value in (min(values), median(values), max(values))]


def _middle(measurement: Measurement, unit: str) -> str:
    return figure(value_of(measurement, unit))


# The page of `collbench latency`: one access, one small copy, one small all-reduce.

_HOST_CHASE = "accesses to pinned host memory"
_TIME_LEGEND = "time: one all-reduce on the device, the slowest rank, median"
_LAUNCH_LEGEND = """; launch: one call
of an ungraphed loop, as in a training step, the mean of the ranks"""


# The names of works in the answer of the short page.
_LATENCIES = {
    Operation.ALLREDUCE: "all-reduce",
    Operation.CE_WRITE: "copy",
    Operation.CPU_WRITE: "copy",
    Operation.SM_WRITE: "copy by kernel",
    Operation.CHASE: "access",
}


def latency_page(run: Run) -> Page:
    """Yield the page's blocks: matrices of accesses and copies, a table of pairs; the short page has a row for each."""
    yield from whole("header", Lines(header(run)))
    yield from short(*_latency_summary(run))
    chase = [one for one in run.measured() if one.point.operation is Operation.CHASE]
    copies = [one for one in run.measured() if one.point.operation.is_copy]
    for index, points in enumerate(filter(None, (chase, copies))):
        matrices = _matrices(run, Variant.PLAIN, points)
        yield from both("matrices", *matrices) if index == 0 else whole("matrices", *matrices)
    if host := run.measured(Variant.HOST):
        yield from whole("tables", *_devices(run, Variant.HOST, host))
    yield from whole("tables", *_allreduce(run))
    lacks = "skipped   pointer chase: not on CPU cores; their small copies run back to back, and so overlap"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _latency_summary(run: Run) -> Iterator[Part]:
    """Yield a line with the median of each kind of latency, and a table of their ranges."""
    rows = []
    works = dict.fromkeys(measurement.point.work for measurement in run.measurements if measurement.samples)
    for work in sorted(works, key=lambda work: (list(Operation).index(work.operation), work.variant is Variant.HOST)):
        measurements = [m for m in run.measured(work.variant) if m.point.work == work]
        smallest = min(m.point.size_bytes for m in measurements)
        rows.append(_range_row(run, work, [m for m in measurements if m.point.size_bytes == smallest]))
    medians = {row[0]: row[3] for row in rows}
    if rows:
        answer = ", ".join(f"{name} {medians[work]}" for work, name in _LATENCIES.items() if work in medians)
        yield Lines(f"latency   {answer or next(iter(medians.values()))} (medians{sim(run, ', sim')})\n")
        yield table(f"{sim(run)}latency", *_RANGE, rows=rows, keys=2)


def _allreduce(run: Run) -> Iterator[Part]:
    measurements = [m for m in run.measured() if m.point.operation is Operation.ALLREDUCE]
    if not measurements:
        return
    yield Text(f"\nallreduce of {format_size(measurements[0].point.size_bytes)} on each pair")
    launches = any(summarize(measurement).launch_seconds for measurement in measurements)
    heads = ("time µs", "launch µs") if launches else ("time µs",)
    rows = (
        (tags(measurement.point.members, run.devices, "-"), *map(point_figures(measurement).__getitem__, heads))
        for measurement in sorted(measurements, key=lambda m: m.point.members)
    )
    yield table("pair", *heads, rows=rows)
    yield Text(f"{_TIME_LEGEND}{_LAUNCH_LEGEND if launches else ''}")


# The page of any run.

_PAGES = {
    CommandKind.PAIRS: pairs_page,
    CommandKind.CHECK: pairs_page,
    CommandKind.COPIES: copies_page,
    CommandKind.LATENCY: latency_page,
}


def page(run: Run) -> Page:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    if not run.complete and not headline(run):
        _, timed = timed_points(run)
        resumable = run.measurements and run.settings.kind is not CommandKind.NODES
        goes_on = "; --resume RUN.JSON measures the others" if resumable else ""
        yield Lines(f"INTERRUPTED: {amount(timed, 'data point')} measured{goes_on}", style=ALARM)
    judged = run.settings.kind.of_links and run.settings.kind is not CommandKind.NODES  # which has verdicts of its own
    if judged and (contradicting := contradiction(run)):
        yield Lines(f"{contradicting}: 'collbench check RUN.JSON' explains it", style=ALARM)
    collectives_only = all(measurement.point.operation.is_collective for measurement in run.measurements)
    kind, measured_by = run.settings.kind, sections.section(run)
    if len(run.devices) == 1 and kind is not CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    if run.settings.layers:
        from collbench.report.text.small_allreduces import page as small_allreduces  # late: few runs need it

        yield from small_allreduces(run)
        return
    # No collective command measures copies, but a file may hold both.
    by_content = collectives_page if collectives_only else pairs_page
    yield from (measured_by.page if measured_by else _PAGES.get(kind, by_content))(run)
