"""The page of `collbench pairs` and `check`: labels, bandwidths, ranking, recommendation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from collbench.analysis.problem import left_out
from collbench.analysis.registration import kinds_of, ordinary
from collbench.analysis.select import choose_each, evidence
from collbench.analysis.tiers import Ranking, rank_pairs
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run
from collbench.model.units import format_size, sentence
from collbench.output import sentences
from collbench.output.text.frame import ending, header, sim
from collbench.output.text.layout import Block, Lines, Summary, both, legend, short, whole
from collbench.output.text.matrix import render_bandwidths
from collbench.output.text.reference import normal_line
from collbench.output.text.registration import fastest_memory
from collbench.output.text.topology import render_labels

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
            f"best {len(one.members):<3} {sentences.tags(one.members, run.devices)}: "
            f"{sentences.reason(one, run.devices)}{mark}"
            for one in choose_each(run)
        ]
        lines += [f"left out {run.devices[one.member].tag}: {sentences.left_out(one)}" for one in left_out(run)]
        recommended = "\n".join(lines)
        normal = normal_line(run)
        yield from short(Lines(recommended), normal, *ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, _ROWS), Lines(f"\n{recommended}"))
        yield from whole("notes", normal)
    else:
        for operation in _shown(run)[:1]:
            yield from short(render_bandwidths(run, operation, _largest(run, operation)), legend())
    if len(kinds_of(every)) > 1:
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
    title = f"{ranking.operation} at {size}, GB/s (95 % interval; up to {ranking.delta:.1%} is a tie)"
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


def operations_of(measurements: Collection[Measurement]) -> list[Operation]:
    """Return the operations of some data points, in the order of the model."""
    present = {measurement.point.operation for measurement in measurements}
    return [operation for operation in Operation if operation in present]


def at_largest(measurements: Sequence[Measurement], operation: Operation) -> list[Measurement]:
    """Return an operation's data points of the largest size."""
    these = [measurement for measurement in measurements if measurement.point.operation is operation]
    largest = max(measurement.point.size_bytes for measurement in these)
    return [measurement for measurement in these if measurement.point.size_bytes == largest]
