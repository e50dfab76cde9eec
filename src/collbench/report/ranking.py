"""Which links differ: the page of `collbench pairs`, and the page and the JSON of `show --ranking`."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from collbench.choose.choice import Choice
from collbench.choose.fitness import left_out
from collbench.choose.select import choose_each, evidence, too_small
from collbench.judge.diagnose import Diagnosis
from collbench.judge.stats import MIN_TRIALS
from collbench.judge.tiers import (
    RankedLink,
    Ranking,
    Relation,
    kind_of,
    labels_of,
    rank_pairs,
    verdict_of,
    wrong_sets,
)
from collbench.model import units
from collbench.model.operations import Operation, Work
from collbench.model.run import Run, capabilities, ordinary, registrations, tags
from collbench.model.units import abridged, amount, figure, format_approximate_size, format_size, sentence, span
from collbench.report import sentences
from collbench.report.frame import alarm, ending, failures, header, headline, not_judged, origin, sim, troubled
from collbench.report.layout import Figures, Lines, Page, Part, Table, both, listed, prose, short, table, whole
from collbench.report.matrix import at_largest, heat_map, legend, render_bandwidths, undecided, unit_of, value
from collbench.report.topology import render_labels
from collbench.report.verdicts import contradicted, contradiction, found_json, normal_line, p2p_line
from collbench.runfile.codec import picked, plain

if TYPE_CHECKING:
    from collbench.judge.summary import RankedWork

# The page of `collbench pairs` and `check`: labels, bandwidths, ranking, recommendation.

# (most, best, worst): a table of more than `most` pairs shows so many of the best and of the worst.
_PAIR_ROWS, _FEW_PAIR_ROWS = (28, 16, 8), (8, 5, 2)


def pairs_page(diagnosis: Diagnosis) -> Page:
    """Yield the page's blocks, top to bottom."""
    every, run = diagnosis.run, ordinary(diagnosis.run)
    ranking = evidence(run)
    if ranking is not None:
        yield Lines("\n".join(recommended(run, [*choose_each(run)])))
        yield from p2p_line(diagnosis)
        # Below a fault that no figure sees, nothing may read "normal".
        if diagnosis.below or not contradiction(diagnosis):
            yield from normal_line(diagnosis)
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
    if len(registrations(every)) > 1:
        from collbench.report.collectives import fastest_memory  # late: few runs need it

        yield from both("tables", *fastest_memory(every))
    yield from ending(every)


def recommended(run: Run, chosen: Iterable[Choice]) -> list[str]:
    """Return a line for each set that was chosen, with its reason, and for each device that was left out."""
    lines = [
        f"best {len(choice.members):<3} {tags(choice.members, run.devices)}: {choice.explained(run.devices)}"
        for choice in chosen
    ]
    lines = [f"{line}{sim(run, ' (sim)')}" for line in lines]
    if not lines and (ranking := evidence(run)) is not None and too_small(run, ranking):
        at = f"the largest size measured on enough pairs is {format_size(ranking.size_bytes)}"
        lines = [f"best     none: {at}, which says nothing of bandwidth"]
    return lines + [f"left out {run.devices[left.member].tag}: {left.reason}" for left in left_out(run)]


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
    shown = [operation for operation in sizes if operation.is_copy][:1] + [
        operation for operation in sizes if operation.is_collective
    ][:1]
    return {operation: sizes[operation] for operation in shown}


def rankings_of_pairs(run: Run, deciding: Ranking) -> list[Ranking]:
    """Return the ranking by which devices are chosen, then those of other operations at their largest size on pairs."""
    others = (rank_pairs(run, *on) for on in _on_pairs(run).items() if on[0] is not deciding.operation)
    return [deciding, *filter(None, others)]


def _pairs(run: Run, ranking: Ranking, rows: tuple[int, int, int]) -> Iterator[Part]:
    """Yield the table of pairs, best first; `rows` says how many it shows, as _PAIR_ROWS does."""
    size = format_size(ranking.size_bytes)
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    title = f"{ranking.operation} at {size}, {unit} (95% interval; up to {ranking.delta:.1%} is a tie)"
    yield prose(f"{sim(run)}pairs by {title}")
    others = {operation: size for operation, size in _mapped(run).items() if operation is not ranking.operation}
    rankings = [rank_pairs(run, operation, size_bytes) for operation, size_bytes in others.items()]
    figures = [
        {standing.pair: value(standing.seconds, standing.gbs, unit) for standing in each.standings} if each else {}
        for each in rankings
    ]
    last, shown = -1, list[dict[str, str]]()
    for index in _kept_rows(ranking, rows):
        standing, hidden = ranking.standings[index], ranking.standings[last + 1 : index]
        if hidden:
            whole_tiers = {standing.tier for standing in hidden} - {standing.tier, ranking.standings[last].tier}
            of_tiers = f" of {amount(len(whole_tiers), 'tier')}" if whole_tiers else ""
            shown.append({"tier": "…", "pair": f"{len(hidden)} more{of_tiers}"})
        last = index
        middle = value(standing.seconds, standing.gbs, unit)
        # A time is the longer, the lower the rate.
        ends = sorted(value(standing.seconds * standing.gbs / gbs, gbs, unit) for gbs in standing.interval or ())
        # The interval and the comparison are those of the operation that ranks.
        row: dict[str, str] = {
            "tier": str(standing.tier),
            "pair": tags(standing.pair, run.devices, "-"),
            "label": standing.label,
            ranking.operation: f"{middle:.1f}",
            "interval": "-".join(f"{end:.1f}" for end in ends) or "-",
            "vs best": standing.relation.value,
        }
        rates = (f"{values[standing.pair]:.1f}" if standing.pair in values else "-" for values in figures)
        shown.append(row | dict(zip(others, rates, strict=True)))
    cells = [row.values() for row in shown]
    yield table(*shown[-1], rows=cells, left=("tier", "pair", "label", "vs best"))
    yield Text(sentence(verdict_of(ranking)))
    yield from undecided(standing.relation for standing in ranking.standings)


def _kept_rows(ranking: Ranking, rows: tuple[int, int, int]) -> list[int]:
    """Return which rows a table of pairs shows: all, or the best, the worst, and the best of each tier between them.

    If there are more tiers between them than the table may have rows, the first ones are shown.
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


# The page and the JSON of `collbench show --ranking`: tiers, verdicts, heat maps and fits of a run.

_NAMES_WIDE = 36  # columns for names, so that a tier's row fits 80
_FEW_NAMES = 6  # on the short page
_MAX_NAMES = 16  # of a tier; more hide what matters, and the JSON has them all
_MAX_FITS = 28
# On the short page.
_MAX_RANKINGS, _MAX_TIERS = 14, 4
_FIGURES = ("size_bytes", "delta", "noise", "spread", "trials", "tiers", "one_tier", "all_tied")  # in JSON
_JOINTS = {"link": "→", "pair": "-", "device": ""}
RELATIONS_LEGEND = """\
tied, different: compared with the best, by the 90% and the simultaneous 95%
interval of the difference (99% below five trials); undecided: neither;
failed: something on it failed, whatever its rate; impossible: nothing failed,
but a rate is above the hardware's limit"""
_FITS_LEGEND = """\
latency, bandwidth: of time = latency + size / bandwidth, with 95% intervals;
n½: the size that reaches half of the bandwidth; misfit: the largest distance
of a size from this line"""


def page(diagnosis: Diagnosis, works: Sequence[RankedWork], name: str = "RUN.JSON") -> Page:
    """Yield the page's blocks: the verdict of the first collective, else of the first copy; each work's tiers, verdict
    and heat map, then the fits, then what is missing. First comes what contradicts the labels; `name` is the run's in a
    command line.

    The short page has a row for each work and size, and the tiers and the heat map of a single one.
    """
    run = diagnosis.run
    yield from alarm(run)
    yield from contradicted(diagnosis, name)
    if not any(ranked.judged for ranked in works):
        few = f"no operation has the {MIN_TRIALS} trials needed to estimate noise on all of its devices"
        yield not_judged(f"{few}: measure it again")
    rankings = [ranking for ranked in works for ranking in ranked.rankings]
    shown = next(
        (ranking for ranking in rankings if ranking.operation.is_collective), rankings[0] if rankings else None
    )
    if shown:
        yield Text(f"{shown.work} at {format_size(shown.size_bytes)}: {verdict_of(shown)}{sim(run, ' (sim)')}")
    yield from whole("header", Lines(header(run)))
    if shown:
        yield from short(*_overview(run, rankings, shown))
    for ranking in rankings:
        yield from whole("tiers", *_section(run, ranking))
    for ranked in works:
        yield from whole("fits", *_fits(run, ranked))
    if rankings:
        yield from whole("tiers", legend("\n"), Text(f"\n{RELATIONS_LEGEND}"))
    if any(ranked.fits for ranked in works):
        yield from whole("fits", Text(_FITS_LEGEND))
    lines = [*(line for ranked in works for line in _lacks(run, ranked)), *_no_fits(works), *failures(run)]
    if lines:
        yield from whole("notes", Lines("\n" + "\n".join(lines)))
    yield from short(Lines("\n" + "\n".join([*troubled(run), origin(run)])))


def _overview(run: Run, rankings: Sequence[Ranking], shown: Ranking) -> Iterator[Part]:
    """Yield a row for each ranking, then the tiers of the one whose verdict is shown first."""
    what, answer = f"{sim(run)}operation", "does it matter"
    rows = []
    for ranking in rankings:
        unit = unit_of(run, ranking.work, ranking.size_bytes)
        figures = [value(standing.seconds, standing.gbs, unit) for standing in ranking.standings]
        ends = sorted((min(figures), max(figures)), reverse=unit == "GB/s")
        best, worst = (f"{figure(end)} {unit}" for end in ends)
        size = format_size(ranking.size_bytes)
        rows.append((str(ranking.work), size, best, worst, str(ranking.tiers), _matters(ranking)))
    heads = (what, "size", "best", "worst", "tiers", answer)
    yield from listed(table(*heads, rows=rows, left=(what, answer), keys=2), _MAX_RANKINGS)
    yield from undecided(matters for *_, matters in rows[:_MAX_RANKINGS])
    yield from _section(run, shown, _MAX_TIERS)
    if _is_mapped(run, shown):
        yield legend()


def _matters(ranking: Ranking) -> str:
    """Return in a few words whether the choice of devices matters."""
    failed = "".join(f"; {count}" for count in wrong_sets(ranking))
    if ranking.trials < MIN_TRIALS:
        return f"too few trials{failed}"
    return f"{'no: all tie' if ranking.all_tied else 'undecided' if ranking.one_tier else 'yes'}{failed}"


def as_json(diagnosis: Diagnosis, ranked_works: Sequence[RankedWork]) -> dict[str, Any]:
    """Return the summary in JSON's own types: GB/s, seconds, bytes and ratios; members are positions in `devices`."""
    run = diagnosis.run
    works = [
        {
            **picked(ranked.work, "operation", "variant", "numa_node"),
            "kind": kind_of(ranked.work),
            "rankings": [figures_json(ranking) for ranking in ranked.rankings],
            "fits": plain(ranked.fits),
            "unfitted": [
                {"members": plain(members), "label": label, "reason": ranked.unfitted[members]}
                for members, label in labels_of(run, ranked.unfitted).items()
            ],
            "missing": [
                picked(lack, "size_bytes", "members") | {"reason": sentences.absence(lack.absence, run)}
                for lack in ranked.missing
            ],
            "incomplete": [{"size_bytes": size, "device_sets": count} for size, count in ranked.incomplete],
        }
        for ranked in ranked_works
    ]
    return {
        **picked(run.machine, "fabric", "hostname"),
        **picked(run, "started"),
        "failed": headline(run),
        "contradiction": contradiction(diagnosis),
        "verdicts": found_json(run, diagnosis.verdicts),
        "devices": [device.tag for device in run.devices],
        "works": works,
    }


def figures_json(ranking: Ranking) -> dict[str, Any]:
    """Return one ranking in JSON's own types."""
    verdict = {"verdict": verdict_of(ranking), "standings": plain(ranking.standings)}
    return picked(ranking, *_FIGURES) | verdict


def _section(run: Run, ranking: Ranking, most_tiers: int | None = None) -> Iterator[Part]:
    """Yield a work at one size: tiers, verdict, resolution, heat map."""
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    yield Text(f"\n{title(run, ranking.work)} at {format_size(ranking.size_bytes)}, {unit}")
    yield tiers_table(run, ranking, most_tiers).without(["label"])
    yield Text(sentence(verdict_of(ranking)))
    yield from resolution(ranking)
    if _is_mapped(run, ranking):
        yield heat_map(run, ranking)


def _is_mapped(run: Run, ranking: Ranking) -> bool:
    return ranking.kind != "device" and len(run.devices) > 2


def resolution(ranking: Ranking) -> Iterator[Text]:
    """Yield which differences are significant; nothing where there is one standing."""
    trials = ranking.trials  # of the data point that has the fewest
    if trials < MIN_TRIALS:
        shown = f"Nothing is significant: some have {trials} of the {MIN_TRIALS} trials needed to estimate noise."
    else:
        shown = (
            f"Differences above {ranking.significant:.1%} are significant at typical noise ({trials} trials or more)."
        )
    if len(ranking.standings) > 1:
        yield Text(shown)


def title(run: Run, work: Work) -> str:
    """Return a work's name and how to read its tables, with the mark of simulated figures."""
    kind = {"device": "by device", "pair": "by pair", "link": "row sends to column"}[kind_of(work)]
    return f"{sim(run)}{work} ({kind})"


def tiers_table(run: Run, ranking: Ranking, most: int | None = None) -> Table:
    """Return a row for each tier; of more than `most` only the first ones and the last, each with one line of names."""
    unit = unit_of(run, ranking.work, ranking.size_bytes)
    heads = ("tier", unit, "label", f"{ranking.kind}s", "vs best")
    rows, tiers = list[tuple[str, ...]](), units.grouped((standing.tier, standing) for standing in ranking.standings)
    for tier, standings in tiers.items():
        if most is not None and most <= tier < len(tiers):
            if tier == most:
                rows.append(("…", "", "", f"{len(tiers) - most} more tiers"))
            continue
        figures = [value(standing.seconds, standing.gbs, unit) for standing in standings]
        names = "\n".join(_names(run, ranking, standings, _MAX_NAMES if most is None else _FEW_NAMES))
        labels = ", ".join(dict.fromkeys(standing.label for standing in standings))
        counts = Counter(standing.relation for standing in standings)
        relations = [f"{counts[kind]} {kind}" if len(counts) > 1 else kind.value for kind in Relation if counts[kind]]
        rates = span(figures, figure)
        rows.append((str(tier), rates, labels, names, ", ".join(relations)))
    return table(*heads, rows=rows, left={*heads} - {unit})


def _names(run: Run, ranking: Ranking, standings: Sequence[RankedLink], most: int) -> list[str]:
    """Return the names of a tier's members in lines: at most `most` of them, and how many more there are."""
    if len(standings) == len(ranking.standings) > 1:
        return [f"all {len(standings)}"]
    names = [name(run, ranking.work, standing.members) for standing in standings[:most]]
    lines = textwrap.wrap(", ".join(names), _NAMES_WIDE, break_on_hyphens=False)
    if len(standings) > most:
        lines.append(f"and {len(standings) - most} more")
    return lines


def name(run: Run, work: Work, positions: Sequence[int]) -> str:
    """Return what a link, pair or device is called: "GPU0→GPU1", "GPU0-GPU1", "GPU0"."""
    return tags(positions, run.devices, _JOINTS[kind_of(work)])


def _fits(run: Run, ranked: RankedWork) -> Iterator[Part]:
    """Yield a title and a table of a work's fits; nothing without one."""
    if not ranked.fits:
        return
    sizes = span([fit.sizes for fit in ranked.fits], str)
    yield Text(f"\n{title(run, ranked.work)}: latency and bandwidth over {sizes} sizes")
    kind = kind_of(ranked.work)
    heads = (kind, "label", "latency µs", "bandwidth GB/s", "n½", "misfit")
    rows = []
    for fit in ranked.fits:
        bounded = [
            f"{figure(middle)} [{figure(low)}, {figure(high)}]" for low, middle, high in (fit.latency_us, fit.gbs)
        ]
        half = format_approximate_size(round(fit.half_bytes[1]))
        rows.append((name(run, ranked.work, fit.members), fit.label, *bounded, half, f"{fit.misfit:.0%}"))
    yield from listed(table(*heads, rows=rows, left=heads[:2]), _MAX_FITS, ": --json has them all")


def _lacks(run: Run, ranked: RankedWork) -> Iterator[str]:
    """Yield a line for each size and reason for which a work lacks data points."""
    for size, count in ranked.incomplete:
        sets = amount(count, kind_of(ranked.work))
        yield f"missing   {ranked.work} at {format_size(size)} is not ranked: it was measured on {sets} only"
    failed = {
        (m.point.size_bytes, m.point.members) for m in run.measurements if m.failure and m.point.work == ranked.work
    }
    # The page lists failures separately.
    missing = [lack for lack in ranked.missing if (lack.size_bytes, lack.members) not in failed]
    groups = units.grouped(((lack.size_bytes, sentences.absence(lack.absence, run)), lack.members) for lack in missing)
    for (size, reason), sets_of_devices in groups.items():
        names = abridged([name(run, ranked.work, members) for members in sets_of_devices], _MAX_NAMES)
        yield f"missing   {ranked.work} at {format_size(size)} on {names}: {reason}"


def _no_fits(every: Iterable[RankedWork]) -> Iterator[str]:
    """Yield a line for each reason why links have no fit, with their works."""
    works: dict[str, Counter[Work]] = defaultdict(Counter)
    for ranked in every:
        for why in ranked.unfitted.values():
            works[why][ranked.work] += 1
    for reason, counts in works.items():
        names = ", ".join(f"{work} on {amount(count, kind_of(work))}" for work, count in counts.items())
        yield f"no fit    {reason}: {names}"
