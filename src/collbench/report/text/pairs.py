"""The page of `collbench pairs` and `check`: labels, bandwidths, ranking, recommendation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from collbench.choose.choice import Choice
from collbench.choose.fitness import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.registration import kinds_of, ordinary
from collbench.judge.tiers import Ranking, rank_pairs, verdict_of
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation
from collbench.model.run import Run, tags
from collbench.model.units import amount, format_size, sentence
from collbench.report.text.frame import ending, header, sim
from collbench.report.text.layout import Figures, Lines, Page, Part, both, prose, short, table, whole
from collbench.report.text.matrix import at_largest, legend, render_bandwidths, undecided, unit_of, value
from collbench.report.text.reference import below, normal_line
from collbench.report.text.topology import render_labels
from collbench.report.text.verdicts import contradiction

# (most, best, worst): a table of more than `most` pairs shows so many of the best and of the worst.
_PAIR_ROWS, _FEW_PAIR_ROWS = (28, 16, 8), (8, 5, 2)


def pairs_page(run: Run) -> Page:
    """Yield the page's blocks, top to bottom."""
    every, run = run, ordinary(run)
    ranking = evidence(run)
    if ranking is not None:
        yield Lines("\n".join(recommended(run, [*choose_each(run)])))
        # Below a fault that no figure sees, nothing may read "normal".
        if below(run) or not contradiction(run):
            yield from normal_line(run)
    yield from whole("header", Lines(f"\n{header(every)}" if ranking else header(every)))
    source = "from NUMA nodes" if capabilities(run.backend).cores else "as nvidia-smi topo -m names them"
    yield from whole("labels", Figures(f"\nlabels ({source})\n{render_labels(run.devices, run.paths)}"))
    matrices = [[*render_bandwidths(run, operation, size)] for operation, size in _mapped(run).items()]
    for matrix in matrices:
        yield from whole("matrices", Text(), *matrix)
    if matrices:
        yield from whole("matrices", legend())
    if ranking is not None:
        yield from short(*ranked_pairs(run, ranking))
        yield from whole("tiers", Text(), *_pairs(run, ranking, _PAIR_ROWS))
    elif matrices:
        yield from short(*matrices[0], legend())
    if len(kinds_of(every)) > 1:
        from collbench.report.text.collectives import fastest_memory  # late: few runs need it

        yield from both("tables", *fastest_memory(every))
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
        yield from render_bandwidths(run, ranking.operation, ranking.size_bytes)
        yield legend()


def _on_pairs(run: Run) -> dict[Operation, int]:
    """Return the operations measured on pairs, and the largest size of each."""
    pairs = [measurement for measurement in run.measured() if len(measurement.point.members) == 2]
    return {operation: points[0].point.size_bytes for operation, points in at_largest(pairs).items()}


def _mapped(run: Run) -> dict[Operation, int]:
    """Return those that are printed: the first copy and the first collective; `show --ranking` has all."""
    sizes = _on_pairs(run)
    shown = [one for one in sizes if one.is_copy][:1] + [one for one in sizes if one.is_collective][:1]
    return {operation: sizes[operation] for operation in shown}


def rankings_of_pairs(run: Run, deciding: Ranking) -> Iterator[Ranking | None]:
    """Yield the ranking by which devices are chosen, then that of each other operation at its largest size on pairs."""
    yield deciding
    for operation, size_bytes in _on_pairs(run).items():
        if operation is not deciding.operation:
            yield rank_pairs(run, operation, size_bytes)


def _pairs(run: Run, ranking: Ranking, rows: tuple[int, int, int]) -> Iterator[Part]:
    """Yield the table of pairs, best first; `rows` says how many it shows, as _PAIR_ROWS does."""
    size = format_size(ranking.size_bytes)
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    title = f"{ranking.operation} at {size}, {unit} (95% interval; up to {ranking.delta:.1%} is a tie)"
    yield prose(f"{sim(run)}pairs by {title}")
    others = {operation: size for operation, size in _mapped(run).items() if operation is not ranking.operation}
    # The interval and the comparison are those of the operation that ranks.
    heads = ["tier", "pair", "label", ranking.operation, "interval", "vs best", *others]
    rankings = [rank_pairs(run, operation, size_bytes) for operation, size_bytes in others.items()]
    figures = [
        {one.pair: value(one.seconds, one.gbs, unit) for one in each.standings} if each else {} for each in rankings
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
    yield table(*heads, rows=shown, left=heads[:3] + heads[5:6])
    yield Text(sentence(verdict_of(ranking)))
    yield from undecided(standing.relation for standing in ranking.standings)


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
