"""The pages of the measuring commands: pairs, copies, latency, collectives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import ceil

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.analysis.physics import Impossible, by_point
from collbench.analysis.problem import left_out
from collbench.analysis.registration import kinds_of, ordinary, ranges, winners
from collbench.analysis.select import choose_each, evidence
from collbench.analysis.stats import half_width, summarize, trial_seconds
from collbench.analysis.summary import HostShare, host_shares, share_of_all
from collbench.analysis.tiers import Ranking, rank_pairs
from collbench.model.capabilities import capabilities
from collbench.model.dtypes import DTYPE_BYTES
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import CommandKind, DataPoint, Measurement, Run
from collbench.model.skew import imbalance
from collbench.model.units import figure, format_size, sentence
from collbench.output import sentences
from collbench.output.text.frame import alarm, ending, header, sim
from collbench.output.text.layout import Block, Lines, Page, Summary, both, legend, more, only, short, table, whole
from collbench.output.text.matrix import pair_matrix, render_bandwidths, render_matrix
from collbench.output.text.registration import comparison
from collbench.output.text.registration import sentence as memory_sentence
from collbench.output.text.topology import render_labels, render_topology

# What the pages share.


def _normal(run: Run) -> Iterator[RenderableType]:
    """Yield a line that says whether the rates are normal for such a machine, as far as reference figures know."""
    from collbench.analysis.references import judge, load  # late: few pages need them
    from collbench.output.text.comparison import normality

    yield Lines(f"rates     {normality(judge(run, load()))}{sim(run, ' (sim)')}")


def _operations(measurements: Collection[Measurement]) -> list[Operation]:
    """Return the operations present, in the order of the model."""
    present = {measurement.point.operation for measurement in measurements}
    return [operation for operation in Operation if operation in present]


def _at_largest(measurements: Sequence[Measurement], operation: Operation) -> list[Measurement]:
    these = [measurement for measurement in measurements if measurement.point.operation is operation]
    largest = max(measurement.point.size_bytes for measurement in these)
    return [measurement for measurement in these if measurement.point.size_bytes == largest]


def _least_to_most(values: Sequence[float], unit: str = "") -> list[str]:
    return [f"{figure(value)}{unit}" for value in (min(values), float(np.median(values)), max(values))]


def _rate(measurement: Measurement) -> str:
    return figure(summarize(measurement).busbw)


# The page of `collbench copies`: for each pattern and kind of copy, the rates of every link or device.

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
# More nodes, with intervals, would break 80 columns.
_NODES_WITH_INTERVALS = 4
_COPIES_LEGEND = """\
ce: copy engine; sm: a kernel's loads and stores; write: the source issues it;
read: the destination does; ±: half of the median's 95 % interval"""


def copies_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: matrices of links and pairs, tables of devices; on the short page a row for each."""
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
    """Yield the short page's table, the range of each pattern and kind of copy, and the matrix of the first kind."""
    rows = table("copy", "size", "lowest GB/s", "median GB/s", "highest GB/s", keys=2)
    for variant in (*_MATRICES, *_TABLES):
        measurements = [m for m in run.measured(variant) if m.point.operation.is_copy]
        for operation in _operations(measurements):
            largest = _at_largest(measurements, operation)
            rates = _least_to_most([summarize(one).busbw for one in largest])
            rows.add_row(str(Work(operation, variant)), format_size(largest[0].point.size_bytes), *rates)
    if rows.row_count:
        yield from both("notes", *_normal(run))
        yield from short(
            *_host_lines(run, host_shares(run)), Text(f"{sim(run)}copies, least to most of all links or devices"), rows
        )
    plain = [m for m in run.measured() if m.point.operation.is_copy and len(m.point.members) == 2]
    for operation in _operations(plain)[:1]:
        size_bytes = _at_largest(plain, operation)[0].point.size_bytes
        yield from short(Text(), render_bandwidths(run, operation, size_bytes), legend())


def _shares(run: Run) -> Iterator[RenderableType]:
    """Yield concurrent host copies, one table for each NUMA node of the memory: GB/s and the share of isolated ones."""
    shares = host_shares(run)
    for node in dict.fromkeys(one.work.numa_node for one in shares):
        here = [one for one in shares if one.work.numa_node == node]
        variants = [variant for variant in _SHARES if any(one.work.variant is variant for one in here)]
        size = format_size(max(one.size_bytes for one in here))
        yield Text(f"\nhost at {size}, concurrently{_host_memory(run, node)}: GB/s one way, % of isolated")
        rows = table("device", "copy", "isolated", *map(_SHARES.__getitem__, variants), left=("device", "copy"))
        for device, operation in dict.fromkeys((one.device, one.work.operation) for one in here):
            by_variant = {
                one.work.variant: one for one in here if (one.device, one.work.operation) == (device, operation)
            }
            isolated = next(iter(by_variant.values())).isolated_gbs
            cells = [_cell(by_variant.get(variant)) for variant in variants]
            rows.add_row(run.devices[device].tag, operation, "-" if isolated is None else figure(isolated), *cells)
        yield rows
    yield from _host_lines(run, shares)


def _host_memory(run: Run, node: int | None) -> str:
    """Return the NUMA node of host memory, if chosen; in copies on all devices None means each one's own node."""
    chosen = {measurement.point.numa_node for measurement in run.measured(Variant.HOST)} - {None}
    if node is not None:
        return f" on NUMA node {node}"
    return " on own NUMA nodes" if chosen else ""


def _cell(one: HostShare | None) -> str:
    if one is None:
        return "-"
    return figure(one.gbs) if one.share is None else f"{figure(one.gbs)} {one.share:4.0%}"


def _host_lines(run: Run, shares: Sequence[HostShare]) -> Iterator[RenderableType]:
    """Yield what all devices at once keep of isolated host copies, by copy engine: a line for each NUMA node."""
    for node in dict.fromkeys(one.work.numa_node for one in shares if one.work.variant.at_once):
        parts: list[str] = []
        for variant in (Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS):
            kept = [
                f"{name} {share:.0%}"
                for name, operation in (("h2d", Operation.H2D_CE), ("d2h", Operation.D2H_CE))
                if (share := share_of_all(shares, Work(operation, variant, node))) is not None
            ]
            parts += [f"{'both ways ' * variant.opposed}{', '.join(kept)}"] if kept else []
        if parts:
            where = f"all {len(run.devices)} at once{_host_memory(run, node)}"
            yield Lines(f"host      {where}: {'; '.join(parts)} of isolated{sim(run, ' (sim)')}")


def _matrices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield each kind of copy on links or pairs, below it the range in GB/s and the widest interval."""
    for operation in _operations(measurements):
        largest = _at_largest(measurements, operation)
        low, middle, high = _least_to_most([summarize(one).busbw for one in largest])
        half = max(half_width(trial_seconds(one)) for one in largest)
        within = f"each ±{half:.1%} at most" if np.isfinite(half) else "too few trials for intervals"
        yield Text()
        yield render_bandwidths(run, operation, largest[0].point.size_bytes, variant)
        yield Text(f"{low} to {high}, median {middle}; {within}")
    yield legend()


def _devices(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    size = format_size(max(measurement.point.size_bytes for measurement in measurements))
    yield Text(f"\n{variant} at {size}, GB/s ({_TABLES[variant]})")
    operations = _operations(measurements)
    columns = [{m.point.members[0]: _with_interval(m) for m in _at_largest(measurements, one)} for one in operations]
    rows = table("device", *operations)
    for position, device in enumerate(run.devices):
        rows.add_row(device.tag, *(values.get(position, "-") for values in columns))
    yield rows


def _nodes(run: Run, variant: Variant, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield copies to and from the memory of each NUMA node: a row for each device and kind of copy."""
    size = format_size(max(measurement.point.size_bytes for measurement in measurements))
    yield Text(f"\n{variant} at {size} by NUMA node of the pinned memory, GB/s (h2d: from it, d2h: to it)")
    nodes = sorted(
        {measurement.point.numa_node for measurement in measurements}, key=lambda node: -1 if node is None else node
    )
    heads = ("anywhere" if node is None else f"node {node}" for node in nodes)
    rows, operations = table("device", "copy", *heads, left=("device", "copy")), _operations(measurements)
    printed = _with_interval if len(nodes) <= _NODES_WITH_INTERVALS else _rate
    figures = {
        (m.point.members[0], m.point.work): printed(m) for op in operations for m in _at_largest(measurements, op)
    }
    for position, device in enumerate(run.devices):
        for operation in operations:
            works = (Work(operation, variant, node) for node in nodes)
            rows.add_row(device.tag, operation.value, *(figures.get((position, work), "-") for work in works))
    yield rows


def _with_interval(measurement: Measurement) -> str:
    half = half_width(trial_seconds(measurement))
    return f"{_rate(measurement)} ±{half:.1%}" if np.isfinite(half) else _rate(measurement)


# The page of `collbench latency`: one access, one small copy, one small all-reduce.

_CHASE = "pointer chase, ns an access (row reads column's memory; host: pinned memory)"
_TIME_LEGEND = "time: one all-reduce on the device, the slowest rank, median"
_LAUNCH_LEGEND = """; launch: one call
of an ungraphed loop, as in a training step"""


# What the answer on the short page calls the works.
_LATENCIES = {
    Operation.ALLREDUCE: "all-reduce",
    Operation.CE_WRITE: "copy",
    Operation.CPU_WRITE: "copy",
    Operation.SM_WRITE: "copy by kernel",
    Operation.CHASE: "access",
}


def latency_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: two kinds of matrices and a table of pairs; on the short page a row for each."""
    yield from whole("header", Lines(header(run)))
    yield from short(*_latency_summary(run))
    matrices = [*_chase(run), *_copies(run)]
    if matrices:
        yield from both("matrices", matrices[0])
        yield from short(legend())
        yield from whole("matrices", *matrices[1:], legend())
    yield from whole("tables", *_allreduce(run))
    lacks = "skipped   pointer chase: not on CPU cores; their small copies run back to back, and so overlap"
    yield from ending(run, *([lacks] if capabilities(run.backend).cores else []))


def _latency_summary(run: Run) -> Iterator[RenderableType]:
    """Yield a line with the median of each kind of latency, and a table of their ranges."""
    medians: dict[str, str] = {}
    rows = table(f"{sim(run)}latency", "size", "lowest", "median", "highest", keys=2)
    works = dict.fromkeys(measurement.point.work for measurement in run.measurements if measurement.samples)
    for work in sorted(works, key=lambda work: (list(Operation).index(work.operation), work.variant is Variant.HOST)):
        measurements = [m for m in run.measured(work.variant) if m.point.work == work]
        smallest = min(m.point.size_bytes for m in measurements)
        scale, unit = (1e9, " ns") if work.operation is Operation.CHASE else (1e6, " µs")
        times = [summarize(m).seconds * scale for m in measurements if m.point.size_bytes == smallest]
        figures = _least_to_most(times, unit)
        rows.add_row(str(work), format_size(smallest), *figures)
        medians[str(work)] = figures[1]
    if rows.row_count:
        answer = ", ".join(f"{name} {medians[work]}" for work, name in _LATENCIES.items() if work in medians)
        yield Lines(f"latency   {answer or next(iter(medians.values()))} (medians{sim(run, ', sim')})\n")
        yield rows


def _chase(run: Run) -> Iterator[RenderableType]:
    matrix = pair_matrix(run, Work(Operation.CHASE), 8, lambda measurement: summarize(measurement).seconds * 1e9)
    host = np.full((len(run.devices), 1), np.nan)
    for measurement in run.measured(Variant.HOST):
        if measurement.point.operation is Operation.CHASE:
            host[measurement.point.members[0], 0] = summarize(measurement).seconds * 1e9
    every = np.hstack((matrix, host))
    if np.isfinite(every).any():
        yield Text(f"\n{_CHASE}\n").append_text(render_matrix(run, every, extra=("host",), best_is_least=True))


def _copies(run: Run) -> Iterator[RenderableType]:
    for operation in Operation:
        sizes = [m.point.size_bytes for m in run.measured() if m.point.operation is operation]
        if operation.is_copy and sizes:
            matrix = pair_matrix(
                run, Work(operation), min(sizes), lambda measurement: summarize(measurement).seconds * 1e6
            )
            text = Text(f"\n{operation} of {format_size(min(sizes))}, µs (row sends to column)\n")
            yield text.append_text(render_matrix(run, matrix, best_is_least=True))


def _allreduce(run: Run) -> Iterator[RenderableType]:
    measurements = [m for m in run.measured() if m.point.operation is Operation.ALLREDUCE]
    if not measurements:
        return
    yield Text(f"\nallreduce of {format_size(measurements[0].point.size_bytes)} on each pair")
    launches = any(summarize(measurement).launch_seconds for measurement in measurements)
    heads = ("time µs", "launch µs") if launches else ("time µs",)
    rows = table("pair", *heads)
    for measurement in sorted(measurements, key=lambda m: m.point.members):
        name = sentences.tags(measurement.point.members, run.devices, "-")
        rows.add_row(name, *map(_figures(measurement).__getitem__, heads))
    yield rows
    yield Text(f"{_TIME_LEGEND}{_LAUNCH_LEGEND if launches else ''}")


# The tables of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose.

# A short page has so many rows of a table, and not these columns: its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, one table for each communicator; of many the short page compares the largest size."""
    yield from whole("header", Lines(header(run)))
    groups = sorted(dict.fromkeys((m.point.operation, m.point.members) for m in run.measurements))
    few, impossible_points, kinds = len(groups) <= 1, by_point(run), kinds_of(run)
    if any(measurement.samples for measurement in run.measurements):
        yield from both("notes", *_normal(run))
    if not few:
        yield from short(*_communicators(ordinary(run)))
    for operation, devices in groups:
        measurements = [m for m in run.measurements if (m.point.operation, m.point.members) == (operation, devices)]
        head = Lines(f"\n{_title(run, operation, devices, measurements, kinds)}")
        compared = _by_memory(run, operation, devices) if len(kinds) > 1 else []
        if compared:
            yield from both("tables", head, *compared)
            yield from whole("tables", Text(), _table(run, measurements, impossible_points))
            continue
        yield from whole("tables", head, _table(run, measurements, impossible_points))
        if few:
            # The largest size, and below it as many as fit at even steps.
            sizes = sorted({measurement.point.size_bytes for measurement in measurements}, reverse=True)
            kept = sizes[:: ceil(len(measurements) / _FEW_ROWS)]
            spaced = [measurement for measurement in measurements if measurement.point.size_bytes in kept]
            yield from short(head, _table(run, spaced, impossible_points, without=_ONLY_WHOLE))
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield from whole("tables", Text(_legend(run, operation)))
    if run.latencies:
        from collbench.output.text.tails import blocks as single_launches  # late: few runs need it

        yield from single_launches(run)
    yield from ending(run)


def _by_memory(run: Run, operation: Operation, devices: tuple[int, ...]) -> list[RenderableType]:
    """Return the comparison of kinds of memory, out of place and in place; nothing if there is only one kind."""
    comparisons: list[RenderableType] = []
    for variant in (Variant.PLAIN, Variant.IN_PLACE):
        parts = list(comparison(run, operation, devices, variant, sim(run, " (sim)")))
        comparisons += [Text(f"\n{operation} {variant}")] * bool(comparisons and parts) + parts
    return comparisons


def _communicators(run: Run) -> Iterator[RenderableType]:
    """Yield what the communicators reach at the largest size: pairs as a ranking and a matrix, sets as a table."""
    for operation in dict.fromkeys(m.point.operation for m in run.measurements):
        measurements = [m for m in run.measured() if m.point.operation is operation]
        pairs = [m for m in measurements if len(m.point.members) == 2]
        if pairs:
            ranking = rank_pairs(run, operation, max(m.point.size_bytes for m in pairs))
            if ranking is not None:
                yield from _ranked_pairs(run, ranking)
        if len(pairs) < len(measurements):
            yield from _sets(run, operation, [m for m in measurements if len(m.point.members) != 2])


def _sets(run: Run, operation: Operation, measurements: Sequence[Measurement]) -> Iterator[RenderableType]:
    largest = _at_largest(measurements, operation)
    yield Text(f"\n{sim(run)}{operation} at {format_size(largest[0].point.size_bytes)}")
    rows = table("devices", "time µs", "busbw GB/s", "95 % interval")
    for measurement in largest[:_FEW_ROWS]:
        figures = _figures(measurement)
        name = sentences.tags(measurement.point.members, run.devices)
        rows.add_row(name, figures["time µs"], figures["busbw"], figures["interval"])
    yield rows
    yield from more(len(largest) - _FEW_ROWS)


def _title(
    run: Run,
    operation: Operation,
    devices: tuple[int, ...],
    measurements: Sequence[Measurement],
    kinds: Sequence[Registration],
) -> str:
    settings = [run.settings.dtype]
    settings += [run.settings.redop] * operation.reduces
    settings += [
        _sizes_of_blocks(max((one.point for one in measurements), key=lambda one: one.size_bytes))
    ] * operation.irregular
    settings += [f"memory registered as {kind}" for kind in kinds if (kind,) == kinds != (Registration.NONE,)]
    settings += [f"root {run.settings.root} ({run.devices[devices[run.settings.root]].tag})"] * operation.rooted
    if any(sample.concurrent for measurement in measurements for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    tags = sentences.tags(devices, run.devices)
    return f"{operation} over {tags} ({len(devices)} ranks): {', '.join(settings)}"


def _sizes_of_blocks(point: DataPoint) -> str:
    """Return how uneven a data point's blocks are: "zipf:1.2:7, busiest rank 2.43 × the mean"."""
    if point.skew is None:
        return "uniform"
    return f"{point.skew}, busiest rank {imbalance(point.blocks):.2f} × the mean"


def _legend(run: Run, operation: Operation) -> str:
    """Explain the columns in lines of at most 80 characters."""
    launches = any(s.launch_seconds is not None for m in run.measurements for s in m.samples)
    lines = ["time: one collective on the device, the slowest rank, median;"]
    if launches:
        lines = [f"{lines[0]} launch: one call", "of an ungraphed loop, as in a training step;"]
    if any(s.plain for m in run.measurements for s in m.samples):
        lines.append("between hosts, time is of plain launches, not of CUDA graph replays;")
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block;")
    if operation.irregular:
        lines.append("size: bytes of the busiest rank, the more of sent and received;")
    lines.append(f"busbw = algbw × {operation.collective.busbw.formula}; interval: 95 % of busbw, GB/s;")
    lines.append("wrong: elements that failed verification")
    return "\n".join(lines)


def _table(
    run: Run,
    measurements: Sequence[Measurement],
    impossible_points: Mapping[DataPoint, Impossible],
    without: Sequence[str] = (),
) -> Table:
    """Return the table of one communicator, but for columns without a single figure."""
    memory = list(Registration)
    ordered = sorted(
        measurements,
        key=lambda m: (m.point.size_bytes, m.point.variant is Variant.IN_PLACE, memory.index(m.point.registration)),
    )
    several = kinds_of(run) if len({measurement.point.registration for measurement in ordered}) > 1 else ()
    rows = [
        _columns(run, measurement, several, impossible=measurement.point in impossible_points)
        for measurement in ordered
    ]
    filled = {head for row in rows for head, text in row.items() if text not in ("", "-")} | {"size", "wrong"}
    heads = [head for head in rows[0] if head in filled and head not in without]
    keys = sum(head in ("size", "in place", "memory") for head in heads)
    shown = ("busbw GB/s" if head == "busbw" else head for head in heads)
    points_table = table(*shown, left=("in place", "memory", "flags"), keys=keys)
    for row in rows:
        points_table.add_row(*(row[head] for head in heads))
    return points_table


def _columns(run: Run, measurement: Measurement, kinds: Sequence[Registration], *, impossible: bool) -> dict[str, str]:
    """Return a data point's text in each column; its flags are a word each, of which the page's notes say more."""
    point = measurement.point
    blocks = len(point.members) if point.operation.shares else 1
    wanted = (point.operation, len(point.members), point.size_bytes)
    asked = run.chosen if point.registration in kinds[:1] or not kinds else ()  # of several kinds the first
    chosen = next((one for one in asked if (one.operation, one.ranks, one.size_bytes) == wanted), None)
    flags = ["failed"] * bool(measurement.failure) + ["impossible"] * impossible
    flags += [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    return {
        "size": format_size(point.size_bytes),
        "in place": "yes" if point.variant is Variant.IN_PLACE else "",
        "memory": point.registration.value if kinds else "",
        "count": str(point.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks),
        **_figures(measurement),
        "algo": chosen.algorithm if chosen else "-",
        "proto": chosen.protocol if chosen else "-",
        "ch": str(chosen.channels) if chosen else "-",
        "flags": ", ".join(dict.fromkeys(flags)),
    }


def _figures(measurement: Measurement) -> dict[str, str]:
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


# The page of `collbench pairs` and `collbench show`: header, labels, bandwidths, ranking, recommendation.

# Of more pairs than the first number the table shows the best and the worst; on the whole page and on the short one.
_ROWS, _SHORT_ROWS = (28, 16, 8), (8, 5, 2)


def pairs_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, top to bottom."""
    yield from whole("header", Lines(header(run)))
    every, run = run, ordinary(run)
    source = "from NUMA nodes" if capabilities(run.backend).cores else "as nvidia-smi topo -m names them"
    yield from whole("labels", Text(f"\nlabels ({source})\n{render_labels(run.devices, run.paths)}"))
    for operation in _shown(run):
        yield from whole("matrices", Text(), render_bandwidths(run, operation, _largest(run, operation)))
    if _on_pairs(run):
        yield from whole("matrices", legend())
    ranking = evidence(run)
    if ranking is not None:
        recommended = "\n".join(_recommendations(run))
        normal = list(_normal(run))
        yield from short(Lines(recommended), *normal, *_ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, _ROWS), Lines(f"\n{recommended}"))
        yield from whole("notes", *normal)
    else:
        for operation in _shown(run)[:1]:
            yield from short(render_bandwidths(run, operation, _largest(run, operation)), legend())
    if len(kinds_of(every)) > 1:
        yield from both("tables", *_memory(every))
    yield from ending(every)


def _memory(run: Run) -> Iterator[RenderableType]:
    """Yield for each collective and pair which memory is fastest."""
    measurements = [measurement for measurement in run.measured() if measurement.point.operation.is_collective]
    for operation, devices in dict.fromkeys((one.point.operation, one.point.members) for one in measurements):
        where = f"{operation} on {sentences.tags(devices, run.devices, '-')}"
        same = ranges(winners(run, operation, devices, Variant.PLAIN))
        yield Lines("\n".join(f"memory    {where}: {memory_sentence(one)}{sim(run, ' (sim)')}" for one in same))


def _ranked_pairs(run: Run, ranking: Ranking) -> Iterator[RenderableType]:
    """Yield a short page's table of pairs and its matrix."""
    yield Text()
    yield from _pairs(run, ranking, _SHORT_ROWS)
    if len(run.devices) > 2:
        yield Text()
        yield render_bandwidths(run, ranking.operation, ranking.size_bytes)
        yield legend()


def _on_pairs(run: Run) -> list[Operation]:
    """Return the operations measured on pairs."""
    return _operations([measurement for measurement in run.measured() if len(measurement.point.members) == 2])


def _shown(run: Run) -> list[Operation]:
    """Return the operations whose matrices are printed: the first copy and the first collective."""
    measured = _on_pairs(run)
    copies = [operation for operation in measured if operation.is_copy]
    collectives = [operation for operation in measured if operation.is_collective]
    return copies[:1] + collectives[:1]


def _largest(run: Run, operation: Operation) -> int:
    return max(m.point.size_bytes for m in run.measured() if m.point.operation is operation)


def _pairs(run: Run, ranking: Ranking, rows: tuple[int, int, int]) -> Iterator[RenderableType]:
    """Yield the table of pairs, best first; of more than the first of `rows` that many of the best and of the worst."""
    size = format_size(ranking.size_bytes)
    title = f"{ranking.operation} at {size}, GB/s (95 % interval; ties within {ranking.delta:.1%})"
    yield Text(f"{sim(run)}pairs by {title}")
    operations = _on_pairs(run)
    spare = [operation.value for operation in reversed(operations) if operation not in _shown(run)]
    pairs_table = Summary(spare, "widen the terminal, or run collbench show RUN.JSON --operation OP")
    for head in ("tier", "pair", "label"):
        pairs_table.add_column(head)
    for head in (*operations, "interval"):
        pairs_table.add_column(head, justify="right")
    pairs_table.add_column("vs best")
    rankings = (rank_pairs(run, operation, _largest(run, operation)) for operation in operations)
    rates = [{one.pair: one.gbs for one in each.standings} if each else {} for each in rankings]
    most, best, worst = rows
    gap = len(ranking.standings) > most
    for index, standing in enumerate(ranking.standings):
        if gap and index == best:
            pairs_table.add_row("…", "more")
        if gap and best <= index < len(ranking.standings) - worst:
            continue
        names = sentences.tags(standing.pair, run.devices, "-")
        figures = [f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in rates]
        interval = "-" if standing.interval is None else f"{standing.interval[0]:.1f}-{standing.interval[1]:.1f}"
        pairs_table.add_row(str(standing.tier), names, standing.label, *figures, interval, standing.relation.value)
    yield pairs_table
    yield Text(sentence(sentences.tiers(ranking)))


def _recommendations(run: Run) -> Iterator[str]:
    """Yield a line for 2, 4, 8, … devices, each with the reason, and one for each device that is in no set."""
    for chosen in choose_each(run):
        tags = sentences.tags(chosen.members, run.devices)
        yield f"best {len(chosen.members):<3} {tags}: {sentences.reason(chosen, run.devices)}{sim(run, ' (sim)')}"
    for excluded in left_out(run):
        yield f"left out {run.devices[excluded.member].tag}: {sentences.left_out(excluded)}"


# The page that belongs to a run: the one that the command which measured it printed.


def _overlap_page(run: Run) -> Page:
    from collbench.output.text.overlap import overlap_page  # late: no other run needs it

    return overlap_page(run)


def _replay_page(run: Run) -> Page:
    from collbench.output.text.replay import replay_page  # late: no other run needs it

    return replay_page(run)


_PAGES: dict[CommandKind, Callable[[Run], Page]] = {
    CommandKind.PAIRS: pairs_page,
    CommandKind.CHECK: pairs_page,
    CommandKind.COPIES: copies_page,
    CommandKind.LATENCY: latency_page,
    CommandKind.OVERLAP: _overlap_page,
    CommandKind.REPLAY: _replay_page,
}


def page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    page_of_kind = _PAGES.get(run.settings.kind, collectives_page)
    if page_of_kind is collectives_page and not all(
        measurement.point.operation.is_collective for measurement in run.measurements
    ):
        page_of_kind = pairs_page  # no command measures that, but a file may hold it
    yield from page_of_kind(run)


# What --section shows of any run, whichever command measured it.


def section(run: Run, wanted: str) -> Iterator[RenderableType]:
    """Yield one of layout.SECTIONS of a run, or a line that it has none of these."""
    from collbench.analysis.diagnose import judge  # late: few pages need them
    from collbench.analysis.summary import rank_summary
    from collbench.output.text import ranking, verdicts

    pages: dict[str, Callable[[], Page]] = {
        "tiers": lambda: ranking.page(run, rank_summary(run)),
        "fits": lambda: ranking.page(run, rank_summary(run)),
        "verdicts": lambda: verdicts.page(run, judge(run)),
        "labels": lambda: [Block("labels", Text(render_topology(run.devices, run.paths).rstrip("\n")))],
    }
    parts = list(only(pages.get(wanted, lambda: page(run))(), wanted))
    yield from alarm(run)
    if wanted != "header" and capabilities(run.backend).simulated:
        yield Text(f"sim: SIMULATED machine '{run.machine.fabric}', nothing here was measured on a GPU")
    yield from parts or [Text(f"this run has no {wanted}")]
