"""The page of `collbench pairs` and `collbench show`: header, labels, bandwidths, ranking, recommendation."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from collbench.affinity.choose import choose, evidence
from collbench.affinity.fitness import left_out
from collbench.affinity.tiers import Ranking, rank_pairs
from collbench.model import Run
from collbench.operations import Operation
from collbench.report.blocks import Lines, Summary
from collbench.report.header import header
from collbench.report.matrix import render_bandwidths
from collbench.report.notes import notes
from collbench.report.shades import legend
from collbench.report.topology import render_matrix
from collbench.units import format_size

# Past this many pairs a table hides more than it shows: the ends say where to look.
_MOST_ROWS = 28
_HEAD_ROWS, _TAIL_ROWS = 16, 8


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks, top to bottom."""
    yield Lines(header(run))
    yield Text(f"\nlabels ({_label_source(run)})\n{render_matrix(run.devices, run.paths)}")
    for operation in _shown(run):
        yield Text()
        yield render_bandwidths(run, operation, _largest(run, operation))
    if _measured(run):
        yield legend()
    ranking = evidence(run)
    if ranking is not None:
        yield Text()
        yield from _pairs(run, ranking)
        yield Lines("\n" + "\n".join(_recommendations(run)))
    lines = notes(run)
    if lines:
        yield Lines("\n" + "\n".join(lines))


def _label_source(run: Run) -> str:
    return "from NUMA nodes" if run.backend == "host" else "as nvidia-smi topo -m names them"


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


def _pairs(run: Run, ranking: Ranking) -> Iterator[RenderableType]:
    size = format_size(ranking.size_bytes)
    yield Text(f"pairs in order of {ranking.operation} at {size} (95 % interval; ties within {ranking.delta:.1%})")
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
    for place in _places(ranking):
        table.add_row(*(("…", "more") if place is None else _row(run, ranking, place, others)))
    yield table
    yield Text(f"{ranking.verdict[0].upper()}{ranking.verdict[1:]}.")


def _places(ranking: Ranking) -> list[int | None]:
    """Return the places to print; None stands for those left out."""
    count = len(ranking.standings)
    if count <= _MOST_ROWS:
        return list(range(count))
    return [*range(_HEAD_ROWS), None, *range(count - _TAIL_ROWS, count)]


def _by_pair(run: Run, operation: Operation) -> dict[tuple[int, int], float]:
    ranking = rank_pairs(run, operation, _largest(run, operation))
    return {standing.pair: standing.gbs for standing in ranking.standings} if ranking else {}


def _row(
    run: Run, ranking: Ranking, place: int, others: dict[Operation, dict[tuple[int, int], float]]
) -> tuple[str, ...]:
    standing = ranking.standings[place]
    low, high = standing.pair
    rates = [f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in others.values()]
    interval = "-" if standing.interval is None else f"{standing.interval[0]:.1f}-{standing.interval[1]:.1f}"
    names = f"{run.devices[low].tag}-{run.devices[high].tag}"
    return str(standing.tier), names, standing.label, *rates, interval, standing.relation.value


def _recommendations(run: Run) -> Iterator[str]:
    """Yield a line for 2, 4, 8, … devices, each with the reason, and one for each device that is in no set."""
    out, sim = left_out(run), " (sim)" if run.backend == "sim" else ""
    count = 2
    while count <= len(run.devices) - len(out):
        chosen = choose(run, count)
        yield f"best {count:<3} {', '.join(run.devices[m].tag for m in chosen.members)}: {chosen.reason}{sim}"
        count *= 2
    for left in out:
        yield f"left out {run.devices[left.member].tag}: {left.reason}"
