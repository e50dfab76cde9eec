"""The pages of the measuring commands: pairs, copies, latency, collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.analysis.physics import by_cell
from collbench.analysis.problem import left_out
from collbench.analysis.select import choose, evidence
from collbench.analysis.stats import half_width, summarize, trial_seconds
from collbench.analysis.tiers import Ranking, rank_pairs
from collbench.model.capabilities import capabilities
from collbench.model.dtypes import DTYPE_BYTES
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Chosen, CommandKind, Measurement, Run
from collbench.model.units import figure, format_size
from collbench.output.text.frame import alarm, ending, header
from collbench.output.text.layout import Block, Lines, Page, Summary, both, legend, only, short, whole
from collbench.output.text.matrix import Matrix, pair_matrix, render_bandwidths, render_matrix
from collbench.output.text.topology import render_labels, render_topology

# The page of `collbench copies`: for each pattern and kind of copy, the rates of every link or device.


_MATRICES = (Variant.PLAIN, Variant.BOTH_WAYS, Variant.STAGED)
_TABLES = {
    Variant.ONE_TO_ALL: "one to all others at once: all that a device sends",
    Variant.ALL_TO_ONE: "all others to one at once: all that a device receives",
    Variant.HOST: "h2d: from pinned host memory to the device, d2h: back",
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
        found = [m for m in run.measured(variant) if m.cell.operation.is_copy]
        if found:
            several = len({measurement.cell.numa_node for measurement in found}) > 1
            tables = _nodes if several else _matrices if variant in _MATRICES else _devices
            yield from whole("matrices" if tables is _matrices else "tables", *tables(run, variant, found))
    yield from whole("tables", Text(f"\n{_COPIES_LEGEND}"))
    more = ["not here  copies both ways, one to all, all to one, staged, to devices: cores have none"]
    yield from ending(run, *more * capabilities(run.backend).cores)


def _copies_summary(run: Run) -> Iterator[Block]:
    """Yield the short page's table, the range of each pattern and kind of copy, and the matrix of the first kind."""
    table = _named_table("copy", "size", "lowest GB/s", "median GB/s", "highest GB/s")
    for variant in (*_MATRICES, *_TABLES):
        found = [m for m in run.measured(variant) if m.cell.operation.is_copy and m.samples]
        for operation in _operations(found):
            largest = _at_largest(found, operation)
            rates = [summarize(one).busbw for one in largest]
            name = str(Work(operation, variant))
            size = format_size(largest[0].cell.size_bytes)
            table.add_row(name, size, *map(figure, (min(rates), float(np.median(rates)), max(rates))))
    if table.row_count:
        yield from short(*_normal(run), Text(f"{_sim(run)}copies, least to most of all links or devices"), table)
    plain = [m for m in run.measured() if m.cell.operation.is_copy and len(m.cell.members) == 2]
    for operation in _operations(plain)[:1]:
        size_bytes = _at_largest(plain, operation)[0].cell.size_bytes
        yield from short(Text(), render_bandwidths(run, operation, size_bytes), legend())


def _sim(run: Run) -> str:
    """Return the word that no simulated figure goes without."""
    return "sim " if capabilities(run.backend).simulated else ""


def _normal(run: Run) -> Iterator[RenderableType]:
    """Yield a line that says whether the rates are normal for such a machine, as far as reference figures know."""
    from collbench.analysis.references import judge, load  # late: few pages need them
    from collbench.output.text.comparison import normality

    yield Lines(f"rates     {normality(judge(run, load()))}{' (sim)' if capabilities(run.backend).simulated else ''}")


def _named_table(*heads: str) -> Table:
    """Return a table whose first column names its rows."""
    table = Table(box=None, pad_edge=False, header_style="")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left")
    return table


def _matrices(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    for operation in _operations(found):
        largest = _at_largest(found, operation)
        yield Text()
        yield render_bandwidths(run, operation, largest[0].cell.size_bytes, variant)
        yield Text(_spread(largest))
    if found:
        yield legend()


def _spread(largest: Sequence[Measurement]) -> str:
    """Return the range of the figures above in GB/s, and the widest interval."""
    rates = [summarize(found).busbw for found in largest]
    span = f"{figure(min(rates))} to {figure(max(rates))}, median {figure(float(np.median(rates)))}"
    return f"{span}; {_within(max(half_width(trial_seconds(found)) for found in largest))}"


def _within(half: float) -> str:
    return f"each ±{half:.1%} at most" if np.isfinite(half) else "too few trials for intervals"


def _devices(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    size = format_size(max(measurement.cell.size_bytes for measurement in found))
    yield Text(f"\n{variant} at {size}, GB/s ({_TABLES[variant]})")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("device")
    columns = {}
    for operation in _operations(found):
        table.add_column(operation.value, justify="right")
        columns[operation] = {m.cell.members[0]: _figure(m) for m in _at_largest(found, operation)}
    for position, device in enumerate(run.devices):
        table.add_row(device.tag, *(values.get(position, "-") for values in columns.values()))
    yield table


def _nodes(run: Run, variant: Variant, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    """Yield copies to and from the memory of each NUMA node: a row for each device and kind of copy."""
    size = format_size(max(measurement.cell.size_bytes for measurement in found))
    yield Text(f"\n{variant} at {size} by NUMA node of the pinned memory, GB/s (h2d: from it, d2h: to it)")
    nodes = sorted({measurement.cell.numa_node for measurement in found}, key=lambda node: -1 if node is None else node)
    table = Table(box=None, pad_edge=False, header_style="")
    for head in ("device", "copy"):
        table.add_column(head)
    for node in nodes:
        table.add_column("anywhere" if node is None else f"node {node}", justify="right")
    printed = _figure if len(nodes) <= _NODES_WITH_INTERVALS else _rate
    figures = {
        (m.cell.members[0], m.cell.work): printed(m) for op in _operations(found) for m in _at_largest(found, op)
    }
    for position, device in enumerate(run.devices):
        for operation in _operations(found):
            works = (Work(operation, variant, node) for node in nodes)
            table.add_row(device.tag, operation.value, *(figures.get((position, work), "-") for work in works))
    yield table


def _figure(measurement: Measurement) -> str:
    half = half_width(trial_seconds(measurement))
    return f"{_rate(measurement)} ±{half:.1%}" if np.isfinite(half) else _rate(measurement)


def _rate(measurement: Measurement) -> str:
    return figure(summarize(measurement).busbw)


def _operations(found: Sequence[Measurement]) -> list[Operation]:
    """Return the operations present, in the order of the model."""
    present = {measurement.cell.operation for measurement in found}
    return [operation for operation in Operation if operation in present]


def _at_largest(found: Sequence[Measurement], operation: Operation) -> list[Measurement]:
    these = [measurement for measurement in found if measurement.cell.operation is operation]
    largest = max(measurement.cell.size_bytes for measurement in these)
    return [measurement for measurement in these if measurement.cell.size_bytes == largest]


# The page of `collbench latency`: one access, one small copy, one small all-reduce.


_CHASE = "pointer chase, ns an access (row reads column's memory; host: pinned memory)"
_TIME_LEGEND = "time: one all-reduce on the device, the slowest rank, median"
_LAUNCH_LEGEND = """; launch: one call
of an ungraphed loop, as a training step makes it"""


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
    chase, copies = list(_chase(run)), list(_copies(run))
    first = (chase or copies)[:1]
    yield from both("matrices", *first)
    if first:
        yield from short(legend())
    yield from whole("matrices", *(chase + copies)[1:])
    if first:
        yield from whole("matrices", legend())
    yield from whole("tables", *_allreduce(run))
    more = ["not here  pointer chase: cores have none; their small copies run back to back, so overlap"]
    yield from ending(run, *more * capabilities(run.backend).cores)


def _latency_summary(run: Run) -> Iterator[RenderableType]:
    """Yield a line with the median of each kind of latency, and a table of their ranges."""
    medians: dict[str, str] = {}
    table = _named_table(f"{_sim(run)}latency", "size", "lowest", "median", "highest")
    works = dict.fromkeys(found.cell.work for found in run.measurements if found.samples)
    for work in sorted(works, key=lambda work: (list(Operation).index(work.operation), work.variant is Variant.HOST)):
        found = [m for m in run.measured(work.variant) if m.cell.work == work and m.samples]
        smallest = min(m.cell.size_bytes for m in found)
        times = [summarize(m).seconds for m in found if m.cell.size_bytes == smallest]
        scale, unit = (1e9, "ns") if work.operation is Operation.CHASE else (1e6, "µs")
        figures = [f"{figure(time * scale)} {unit}" for time in (min(times), float(np.median(times)), max(times))]
        table.add_row(str(work), format_size(smallest), *figures)
        medians[str(work)] = figures[1]
    if table.row_count:
        answer = ", ".join(f"{name} {medians[work]}" for work, name in _LATENCIES.items() if work in medians)
        yield Lines(f"latency   {answer or next(iter(medians.values()))} (medians{', sim' * bool(_sim(run))})\n")
        yield table


def _chase(run: Run) -> Iterator[RenderableType]:
    chase = Work(Operation.CHASE)
    matrix = pair_matrix(run, chase, 8, lambda found: summarize(found).seconds * 1e9)
    host = _host_memory(run)
    if np.isfinite(matrix).any() or np.isfinite(host).any():
        both = np.hstack((matrix, host))
        yield Text(f"\n{_CHASE}\n").append_text(render_matrix(run, both, extra=("host",), best_is_least=True))


def _host_memory(run: Run) -> Matrix:
    """Return each device's ns an access of host memory, shape (devices, 1)."""
    column = np.full((len(run.devices), 1), np.nan)
    for found in run.measured(Variant.HOST):
        if found.cell.operation is Operation.CHASE:
            column[found.cell.members[0], 0] = summarize(found).seconds * 1e9
    return column


def _copies(run: Run) -> Iterator[RenderableType]:
    for operation in Operation:
        sizes = [m.cell.size_bytes for m in run.measured() if m.cell.operation is operation]
        if operation.is_copy and sizes:
            matrix = pair_matrix(run, Work(operation), min(sizes), lambda found: summarize(found).seconds * 1e6)
            text = Text(f"\n{operation} of {format_size(min(sizes))}, µs (row sends to column)\n")
            yield text.append_text(render_matrix(run, matrix, best_is_least=True))


def _allreduce(run: Run) -> Iterator[RenderableType]:
    found = [m for m in run.measured() if m.cell.operation is Operation.ALLREDUCE]
    if not found:
        return
    yield Text(f"\nallreduce of {format_size(found[0].cell.size_bytes)} on each pair")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("pair")
    launches = any(summarize(measurement).launch_seconds for measurement in found)
    for head in ("time µs", *(["launch µs"] if launches else [])):
        table.add_column(head, justify="right")
    for measurement in sorted(found, key=lambda m: m.cell.members):
        summary = summarize(measurement)
        launch = f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-"
        name = "-".join(run.devices[member].tag for member in measurement.cell.members)
        table.add_row(name, f"{summary.seconds * 1e6:.2f}", *([launch] if launches else []))
    yield table
    yield Text(f"{_TIME_LEGEND}{_LAUNCH_LEGEND if launches else ''}")


# The tables of the collective commands: time, bandwidths, the interval of busbw, and what NCCL chose.


# A short page has so many rows of a table, and not these columns: its lines fit a terminal of 80.
_FEW_ROWS = 28
_ONLY_WHOLE = ("count", "launch µs", "wrong")


def collectives_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, one table for each communicator; of many the short page compares the largest size."""
    yield from whole("header", Lines(header(run)))
    groups = sorted(dict.fromkeys((m.cell.operation, m.cell.members) for m in run.measurements))
    few = len(groups) <= 1
    if any(measurement.samples for measurement in run.measurements):
        yield from short(*_normal(run))
    if not few:
        yield from short(*_communicators(run))
    for operation, members in groups:
        found = [m for m in run.measurements if (m.cell.operation, m.cell.members) == (operation, members)]
        head = Lines(f"\n{_title(run, operation, members, found)}")
        yield from whole("tables", head, _table(run, found))
        if few:
            yield from short(head, _table(run, _spaced(found), without=_ONLY_WHOLE))
    for operation in dict.fromkeys(operation for operation, _ in groups):
        yield from whole("tables", Text(_legend(run, operation)))
    yield from ending(run)


def _spaced(found: Sequence[Measurement]) -> list[Measurement]:
    """Return what fits on a short page: the largest size, and below it as many as fit at even steps."""
    sizes = sorted({measurement.cell.size_bytes for measurement in found}, reverse=True)
    kept = sizes[:: ceil(len(found) / _FEW_ROWS)]
    return [measurement for measurement in found if measurement.cell.size_bytes in kept]


def _communicators(run: Run) -> Iterator[RenderableType]:
    """Yield what the communicators reach at the largest size: pairs as a ranking and a matrix, sets as a table."""
    for operation in dict.fromkeys(m.cell.operation for m in run.measurements):
        found = [m for m in run.measured() if m.cell.operation is operation]
        pairs = [m for m in found if len(m.cell.members) == 2]
        if pairs:
            ranking = rank_pairs(run, operation, max(m.cell.size_bytes for m in pairs))
            if ranking is not None:
                yield from _ranked_pairs(run, ranking)
        if len(pairs) < len(found):
            yield from _sets(run, operation, [m for m in found if len(m.cell.members) != 2])


def _sets(run: Run, operation: Operation, found: Sequence[Measurement]) -> Iterator[RenderableType]:
    largest = _at_largest(found, operation)
    yield Text(f"\n{_sim(run)}{operation} at {format_size(largest[0].cell.size_bytes)}")
    table = _named_table("devices", "time µs", "busbw GB/s", "95 % interval")
    for measurement in largest[:_FEW_ROWS]:
        figures = _figures(measurement)
        name = ", ".join(run.devices[member].tag for member in measurement.cell.members)
        table.add_row(name, figures["time µs"], figures["busbw"], figures["interval"])
    yield table
    if len(largest) > _FEW_ROWS:
        yield Text(f"and {len(largest) - _FEW_ROWS} more")


def _title(run: Run, operation: Operation, members: tuple[int, ...], found: Sequence[Measurement]) -> str:
    settings = [run.settings.dtype]
    settings += [run.settings.redop] * operation.reduces
    settings += [f"root {run.settings.root} ({run.devices[members[run.settings.root]].tag})"] * operation.rooted
    if any(sample.concurrent for measurement in found for sample in measurement.samples):
        settings.append("other sets busy at the same time")
    tags = ", ".join(run.devices[member].tag for member in members)
    return f"{operation} over {tags} ({len(members)} ranks): {', '.join(settings)}"


def _legend(run: Run, operation: Operation) -> str:
    """Explain the columns in lines of at most 80 characters."""
    launches = any(s.launch_seconds is not None for m in run.measurements for s in m.samples)
    lines = ["time: one collective on the device, the slowest rank, median;"]
    if launches:
        lines = [
            "time: one collective on the device, the slowest rank, median; launch: one call",
            "of an ungraphed loop, as a training step makes it;",
        ]
    if operation.shares:
        lines.append("size: all ranks' blocks together, count: elements of one block;")
    lines.append(f"busbw = algbw × {operation.collective.busbw.formula}; interval: 95 % of busbw, GB/s;")
    lines.append("wrong: elements that failed verification")
    return "\n".join(lines)


def _table(run: Run, measurements: Sequence[Measurement], without: Sequence[str] = ()) -> Table:
    columns = _columns(run, sorted(measurements, key=_row_order))
    columns = {head: values for head, values in columns.items() if head not in without}
    table = Table(box=None, pad_edge=False, header_style="")
    for head, values in columns.items():
        if head in ("size", "wrong") or any(value not in ("", "-") for value in values):
            table.add_column(head, justify="left" if head in ("in place", "flags") else "right")
    kept = [columns[str(column.header)] for column in table.columns]
    for row in zip(*kept, strict=True):
        table.add_row(*row)
    return table


def _row_order(measurement: Measurement) -> tuple[int, bool]:
    return measurement.cell.size_bytes, measurement.cell.variant is Variant.IN_PLACE


def _columns(run: Run, points: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the texts of each column; those without a single figure are left out of the table."""
    beaten = by_cell(run)
    flags = (_flags(found, impossible=found.cell in beaten) for found in points)
    rows = [
        {**_identity(run, found), **_figures(found), **_choice(run, found), "flags": flagged}
        for found, flagged in zip(points, flags, strict=True)
    ]
    return {head: [row[head] for row in rows] for head in rows[0]}


def _identity(run: Run, measurement: Measurement) -> dict[str, str]:
    cell = measurement.cell
    blocks = len(cell.members) if cell.operation.shares else 1
    return {
        "size": format_size(cell.size_bytes),
        "in place": "yes" if cell.variant is Variant.IN_PLACE else "",
        "count": str(cell.size_bytes // DTYPE_BYTES[run.settings.dtype] // blocks),
    }


def _figures(measurement: Measurement) -> dict[str, str]:
    if not measurement.samples:
        return dict.fromkeys(("time µs", "launch µs", "algbw", "busbw", "interval", "wrong"), "-")
    summary = summarize(measurement)
    unchecked = not measurement.cell.work.verifiable
    return {
        "time µs": f"{summary.seconds * 1e6:.2f}",
        "launch µs": f"{summary.launch_seconds * 1e6:.2f}" if summary.launch_seconds else "-",
        "algbw": f"{summary.algbw:.2f}",
        "busbw": f"{summary.busbw:.2f}",
        "interval": "-" if summary.interval is None else f"{summary.interval[0]:.2f}-{summary.interval[1]:.2f}",
        "wrong": "-" if measurement.wrong is None or unchecked else str(measurement.wrong),
    }


def _choice(run: Run, measurement: Measurement) -> dict[str, str]:
    """Return what NCCL reported that it chose for this message."""
    cell = measurement.cell
    wanted = (cell.operation, len(cell.members), cell.size_bytes)
    found = (one for one in run.chosen if (one.operation, one.ranks, one.size_bytes) == wanted)
    chosen: Chosen | None = next(found, None)
    if chosen is None:
        return dict.fromkeys(("algo", "proto", "ch"), "-")
    return {"algo": chosen.algorithm, "proto": chosen.protocol, "ch": str(chosen.channels)}


def _flags(measurement: Measurement, *, impossible: bool) -> str:
    """Return what was wrong in a word each: "failed", "throttled, shared"; the page's notes say more."""
    kinds = ["impossible"] * impossible + [flag.kind.value for sample in measurement.samples for flag in sample.flags]
    return ", ".join(dict.fromkeys((["failed"] if measurement.failure else []) + kinds))


# The page of `collbench pairs` and `collbench show`: header, labels, bandwidths, ranking, recommendation.


# Of more pairs than this the table shows the best and the worst.
_MOST_ROWS = 28
_HEAD_ROWS, _TAIL_ROWS = 16, 8
# The same on the short page.
_SHORT_ROWS = 8
_SHORT_HEAD, _SHORT_TAIL = 5, 2


def pairs_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, top to bottom."""
    yield from whole("header", Lines(header(run)))
    labels = f"\nlabels ({_label_source(run)})\n{render_labels(run.devices, run.paths)}"
    yield from whole("labels", Text(labels))
    for operation in _shown(run):
        yield from whole("matrices", Text(), render_bandwidths(run, operation, _largest(run, operation)))
    if _measured(run):
        yield from whole("matrices", legend())
    ranking = evidence(run)
    if ranking is not None:
        recommended = "\n".join(_recommendations(run))
        yield from short(Lines(recommended), *_normal(run), *_ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, None), Lines(f"\n{recommended}"))
    else:
        for operation in _shown(run)[:1]:
            yield from short(render_bandwidths(run, operation, _largest(run, operation)), legend())
    yield from ending(run)


def _ranked_pairs(run: Run, ranking: Ranking) -> Iterator[RenderableType]:
    """Yield a short page's table of pairs and its matrix."""
    yield Text()
    yield from _pairs(run, ranking, _SHORT_ROWS)
    if len(run.devices) > 2:
        yield Text()
        yield render_bandwidths(run, ranking.operation, ranking.size_bytes)
        yield legend()


def _label_source(run: Run) -> str:
    return "from NUMA nodes" if capabilities(run.backend).cores else "as nvidia-smi topo -m names them"


def _measured(run: Run) -> list[Operation]:
    """Return the operations measured on pairs, in the order of the model."""
    present = {m.cell.operation for m in run.measured() if len(m.cell.members) == 2}
    return [operation for operation in Operation if operation in present]


def _shown(run: Run) -> list[Operation]:
    """Return the operations whose matrices are printed: the first copy and the first collective."""
    measured = _measured(run)
    copies = [operation for operation in measured if operation.is_copy]
    collectives = [operation for operation in measured if operation.is_collective]
    return copies[:1] + collectives[:1]


def _largest(run: Run, operation: Operation) -> int:
    return max(m.cell.size_bytes for m in run.measured() if m.cell.operation is operation)


def _pairs(run: Run, ranking: Ranking, few: int | None) -> Iterator[RenderableType]:
    """Yield the table of pairs, best first; of more than `few` the ends."""
    size = format_size(ranking.size_bytes)
    title = f"{ranking.operation} at {size}, GB/s (95 % interval; ties within {ranking.delta:.1%})"
    yield Text(f"{_sim(run)}pairs by {title}")
    columns = _measured(run)
    spare = [operation.value for operation in reversed(columns) if operation not in _shown(run)]
    table = Summary(spare, "collbench show RUN.JSON --operation OP, or a wider terminal, has them")
    for title in ("tier", "pair", "label"):
        table.add_column(title)
    for operation in columns:
        table.add_column(operation.value, justify="right")
    table.add_column("interval", justify="right")
    table.add_column("vs best")
    others = {operation: _by_pair(run, operation) for operation in columns}
    for index in _indices(len(ranking.standings), few):
        table.add_row(*(("…", "more") if index is None else _row(run, ranking, index, others)))
    yield table
    yield Text(f"{ranking.verdict[0].upper()}{ranking.verdict[1:]}.")


def _indices(count: int, few: int | None) -> list[int | None]:
    """Return the indices of the pairs to print; None stands for those left out."""
    most, head, tail = (few, _SHORT_HEAD, _SHORT_TAIL) if few else (_MOST_ROWS, _HEAD_ROWS, _TAIL_ROWS)
    if count <= most:
        return list(range(count))
    return [*range(head), None, *range(count - tail, count)]


def _by_pair(run: Run, operation: Operation) -> dict[tuple[int, int], float]:
    ranking = rank_pairs(run, operation, _largest(run, operation))
    return {standing.pair: standing.gbs for standing in ranking.standings} if ranking else {}


def _row(
    run: Run, ranking: Ranking, index: int, others: dict[Operation, dict[tuple[int, int], float]]
) -> tuple[str, ...]:
    standing = ranking.standings[index]
    low, high = standing.pair
    rates = [f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in others.values()]
    interval = "-" if standing.interval is None else f"{standing.interval[0]:.1f}-{standing.interval[1]:.1f}"
    names = f"{run.devices[low].tag}-{run.devices[high].tag}"
    return str(standing.tier), names, standing.label, *rates, interval, standing.relation.value


def _recommendations(run: Run) -> Iterator[str]:
    """Yield a line for 2, 4, 8, … devices, each with the reason, and one for each device that is in no set."""
    out, sim = left_out(run), " (sim)" if capabilities(run.backend).simulated else ""
    count = 2
    while count <= len(run.devices) - len(out):
        chosen = choose(run, count)
        yield f"best {count:<3} {', '.join(run.devices[m].tag for m in chosen.members)}: {chosen.reason}{sim}"
        count *= 2
    for left in out:
        yield f"left out {run.devices[left.member].tag}: {left.reason}"


# The page that belongs to a run: the one that the command which measured it printed.


_PAGES = {
    CommandKind.PAIRS: pairs_page,
    CommandKind.CHECK: pairs_page,
    CommandKind.COPIES: copies_page,
    CommandKind.LATENCY: latency_page,
}


def page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    drawn = _PAGES.get(run.settings.kind, collectives_page)
    if drawn is collectives_page and not all(found.cell.operation.is_collective for found in run.measurements):
        drawn = pairs_page  # no command measures that, but a file may hold it
    yield from drawn(run)


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
    found = list(only(pages.get(wanted, lambda: page(run))(), wanted))
    yield from alarm(run)
    yield from found or [Text(f"no {wanted}: this run has none")]
