"""The page of `collbench pairs` and `check`: labels, bandwidths, ranking, recommendation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from collbench.choose.problem import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.registration import kinds_of, ordinary
from collbench.judge.tiers import Members, Ranking, kind_of, rank_pairs
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Run, tags
from collbench.model.units import amount, figure, format_size, sentence, span
from collbench.report import choice_text
from collbench.report.text.frame import device_names, ending, header, sim
from collbench.report.text.layout import Block, Lines, Summary, both, legend, short, whole
from collbench.report.text.ranking import render_bandwidths, unit_of, value, value_of
from collbench.report.text.reference import below, normal_line
from collbench.report.text.topology import render_labels
from collbench.report.text.verdicts import contradiction

# (most, best, worst): a table of more than `most` pairs shows so many of the best and of the worst.
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
        mark = sim(run, " (sim)")
        lines = [
            f"best {len(one.members):<3} {tags(one.members, run.devices)}: {choice_text.reason(one, run.devices)}{mark}"
            for one in choose_each(run)
        ]
        lines += [f"left out {run.devices[one.member].tag}: {choice_text.left_out(one)}" for one in left_out(run)]
        recommended = "\n".join(lines)
        # Below a fault that no figure sees, nothing may read "normal".
        normal = [] if contradiction(run) and not below(run) else [*normal_line(run)]
        yield from short(Lines(recommended), *normal, *ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, _ROWS), Lines(f"\n{recommended}"))
        yield from whole("notes", *normal)
    else:
        for operation in _shown(run)[:1]:
            yield from short(render_bandwidths(run, operation, _largest(run, operation)), legend())
    if len(kinds_of(every)) > 1:
        from collbench.report.text.registration import fastest_memory  # late: few runs compare kinds of memory

        yield from both("tables", *fastest_memory(every))
    yield from ending(every)


def ranked_pairs(run: Run, ranking: Ranking) -> Iterator[RenderableType]:
    """Yield a short page's table of pairs and its matrix."""
    yield Text()
    yield from _pairs(run, ranking, _SHORT_ROWS)
    if len(run.devices) > 2:
        yield Text()
        yield render_bandwidths(run, ranking.operation, ranking.size_bytes)
        yield legend()


def _on_pairs(run: Run) -> list[Operation]:
    """Return the operations measured on pairs."""
    return operations_of([measurement for measurement in run.measured() if len(measurement.point.members) == 2])


def _shown(run: Run) -> list[Operation]:
    """Return the operations whose matrices are printed: the first copy and the first collective."""
    measured = _on_pairs(run)
    copies = [operation for operation in measured if operation.is_copy]
    collectives = [operation for operation in measured if operation.is_collective]
    return copies[:1] + collectives[:1]


def _largest(run: Run, operation: Operation) -> int:
    return max(m.point.size_bytes for m in run.measured() if m.point.operation is operation)


def _pairs(run: Run, ranking: Ranking, rows: tuple[int, int, int]) -> Iterator[RenderableType]:
    """Yield the table of pairs, best first; `rows` says how many it shows, as _ROWS does."""
    size = format_size(ranking.size_bytes)
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    title = f"{ranking.operation} at {size}, {unit} (95% interval; up to {ranking.delta:.1%} is a tie)"
    yield Text(f"{sim(run)}pairs by {title}")
    operations = [ranking.operation, *(one for one in _on_pairs(run) if one is not ranking.operation)]
    spare = [operation.value for operation in reversed(operations) if operation not in _shown(run)]
    pairs_table = Summary(spare, "widen the terminal, or run collbench show RUN.JSON --operation OP")
    # The interval and the comparison are those of the operation that ranks: a folded table keeps them beside it.
    heads = ["tier", "pair", "label", ranking.operation, "interval", "vs best", *operations[1:]]
    for head in heads:
        pairs_table.add_column(head, justify="right" if head in ("interval", *operations) else "left")
    others = (rank_pairs(run, operation, _largest(run, operation)) for operation in operations[1:])
    figures = [
        {one.pair: value(one.seconds, one.gbs, unit) for one in each.standings} if each else {} for each in others
    ]
    last = -1
    for index in _rows(ranking, rows):
        standing, hidden = ranking.standings[index], ranking.standings[last + 1 : index]
        if hidden:
            whole_tiers = {one.tier for one in hidden} - {standing.tier, ranking.standings[last].tier}
            of_tiers = f" of {amount(len(whole_tiers), 'tier')}" if whole_tiers else ""
            pairs_table.add_row("…", f"{len(hidden)} more{of_tiers}")
        last = index
        middle = value(standing.seconds, standing.gbs, unit)
        # A time is the longer, the lower the rate.
        ends = sorted(value(standing.seconds * standing.gbs / gbs, gbs, unit) for gbs in standing.interval or ())
        pairs_table.add_row(
            str(standing.tier),
            tags(standing.pair, run.devices, "-"),
            standing.label,
            f"{middle:.1f}",
            "-".join(f"{end:.1f}" for end in ends) or "-",
            standing.relation.value,
            *(f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in figures),
        )
    yield pairs_table
    yield Text(sentence(choice_text.tiers(ranking)))


def _rows(ranking: Ranking, rows: tuple[int, int, int]) -> list[int]:
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
    said = f"{work}, {_sets(run, work, sets)}: {rates}{busbw}"
    return Lines(f"{said} at {format_size(size_bytes)}{where}{sim(run, ' (sim)')}")


def _sets(run: Run, work: Work, sets: Sequence[Members]) -> str:
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
