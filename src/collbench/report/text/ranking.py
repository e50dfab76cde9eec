"""The page and the JSON of `collbench show --ranking`: tiers, verdicts, heat maps and fits of a run."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from collbench.judge.stats import FEWEST_TRIALS
from collbench.judge.summary import Bounded, Fit, RankedWork, Unfitted, is_judged
from collbench.judge.tiers import Missing, RankedLink, Ranking, Relation, kind_of, verdict_of, wrong_sets
from collbench.model.operations import Work
from collbench.model.run import Run, tags
from collbench.model.units import abridged, amount, figure, format_approximate_size, format_size, sentence, span
from collbench.report import sentences
from collbench.report.text.frame import alarm, failures, header, headline, not_judged, origin, sim, troubled
from collbench.report.text.layout import Lines, Page, Part, Table, listed, short, table, whole
from collbench.report.text.matrix import heat_map, legend, undecided, unit_of, value
from collbench.runfile.codec import picked, plain

_NAMES_WIDE = 36  # columns for names, so that a tier's row fits 80
_FEW_NAMES = 6  # on the short page
_MOST_NAMES = 16  # of a tier; more hide what matters, and the JSON has them all
_MOST_FITS = 28
# On the short page.
_MOST_RANKINGS, _MOST_TIERS = 14, 4
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


def page(run: Run, works: Sequence[RankedWork]) -> Page:
    """Yield the page's blocks: the verdict of the first collective, else of the first copy; each work's tiers, verdict
    and heat map, then the fits, then what is missing.

    The short page has a row for each work and size, and the tiers and the heat map of a single one.
    """
    yield from alarm(run)
    if not is_judged(works):
        few = f"no operation has the {FEWEST_TRIALS} trials needed to estimate noise on all of its devices"
        yield not_judged(f"{few}: measure it again")
    rankings = [ranking for ranked in works for ranking in ranked.rankings]
    shown = next((one for one in rankings if one.operation.is_collective), rankings[0] if rankings else None)
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
    if any(isinstance(fit, Fit) for ranked in works for fit in ranked.fits):
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
        figures = [value(one.seconds, one.gbs, unit) for one in ranking.standings]
        ends = sorted((min(figures), max(figures)), reverse=unit == "GB/s")
        best, worst = (f"{figure(end)} {unit}" for end in ends)
        size = format_size(ranking.size_bytes)
        rows.append((str(ranking.work), size, best, worst, str(ranking.tiers), _matters(ranking)))
    heads = (what, "size", "best", "worst", "tiers", answer)
    yield from listed(table(*heads, rows=rows, left=(what, answer), keys=2), _MOST_RANKINGS)
    yield from undecided(matters for *_, matters in rows[:_MOST_RANKINGS])
    yield from _section(run, shown, _MOST_TIERS)
    if _is_mapped(run, shown):
        yield legend()


def _matters(ranking: Ranking) -> str:
    """Return in a few words whether the choice of devices matters."""
    failed = "".join(f"; {count}" for count in wrong_sets(ranking))
    if ranking.trials < FEWEST_TRIALS:
        return f"too few trials{failed}"
    return f"{'no: all tie' if ranking.all_tied else 'undecided' if ranking.one_tier else 'yes'}{failed}"


def as_json(run: Run, ranked_works: Sequence[RankedWork]) -> dict[str, Any]:
    """Return the summary in JSON's own types: GB/s, seconds, bytes and ratios; members are positions in `devices`."""
    works = [
        {
            **picked(ranked.work, "operation", "variant", "numa_node"),
            "kind": kind_of(ranked.work),
            "rankings": [figures_json(ranking) for ranking in ranked.rankings],
            "fits": [plain(fit) for fit in ranked.fits if isinstance(fit, Fit)],
            "unfitted": [
                picked(fit, "members", "label") | {"reason": fit.why}
                for fit in ranked.fits
                if isinstance(fit, Unfitted)
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
        "backend": run.backend,
        "fabric": run.machine.fabric,
        "hostname": run.machine.hostname,
        "started": run.started,
        "failed": headline(run),
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
    if trials < FEWEST_TRIALS:
        shown = f"Nothing is significant: some have {trials} of the {FEWEST_TRIALS} trials needed to estimate noise."
    else:
        least = f"{ranking.delta + ranking.noise:.1%}"
        shown = f"Differences above {least} are significant at typical noise ({trials} trials or more)."
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
    rows, tiers = table(*heads, left={*heads} - {unit}, keys=1), defaultdict[int, list[RankedLink]](list)
    for standing in ranking.standings:
        tiers[standing.tier].append(standing)
    for tier, standings in tiers.items():
        if most is not None and most <= tier < len(tiers):
            if tier == most:
                rows.add_row("…", "", "", f"{len(tiers) - most} more tiers")
            continue
        figures = [value(standing.seconds, standing.gbs, unit) for standing in standings]
        names = "\n".join(_names(run, ranking, standings, _MOST_NAMES if most is None else _FEW_NAMES))
        labels = ", ".join(dict.fromkeys(standing.label for standing in standings))
        counts = Counter(standing.relation for standing in standings)
        relations = [f"{counts[one]} {one}" if len(counts) > 1 else one.value for one in Relation if counts[one]]
        rates = span(figure(min(figures)), figure(max(figures)))
        rows.add_row(str(tier), rates, labels, names, ", ".join(relations))
    return rows


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
    fitted = [fit for fit in ranked.fits if isinstance(fit, Fit)]
    if not fitted:
        return
    sizes = span(str(min(fit.sizes for fit in fitted)), str(max(fit.sizes for fit in fitted)))
    yield Text(f"\n{title(run, ranked.work)}: latency and bandwidth over {sizes} sizes")
    kind = kind_of(ranked.work)
    heads = (kind, "label", "latency µs", "bandwidth GB/s", "n½", "misfit")
    rows = []
    for fit in fitted:
        half = format_approximate_size(round(fit.half_bytes[1]))
        figures = (_bounded(fit.latency_us), _bounded(fit.gbs), half, f"{fit.misfit:.0%}")
        rows.append((name(run, ranked.work, fit.members), fit.label, *figures))
    yield from listed(table(*heads, rows=rows, left=heads[:2]), _MOST_FITS, ": --json has them all")


def _bounded(values: Bounded) -> str:
    low, middle, high = values
    return f"{figure(middle)} [{figure(low)}, {figure(high)}]"


def _lacks(run: Run, ranked: RankedWork) -> Iterator[str]:
    """Yield a line for each size and reason for which a work lacks data points."""
    for size, count in ranked.incomplete:
        sets = amount(count, kind_of(ranked.work))
        yield f"missing   {ranked.work} at {format_size(size)} is not ranked: it was measured on {sets} only"
    failed = {
        (m.point.size_bytes, m.point.members) for m in run.measurements if m.failure and m.point.work == ranked.work
    }
    groups: dict[tuple[int, str], list[Missing]] = defaultdict(list)
    for lack in ranked.missing:
        if (lack.size_bytes, lack.members) in failed:
            continue  # the page lists failures separately
        groups[lack.size_bytes, sentences.absence(lack.absence, run)].append(lack)
    for (size, reason), lacks in groups.items():
        names = abridged([name(run, ranked.work, lack.members) for lack in lacks], _MOST_NAMES)
        yield f"missing   {ranked.work} at {format_size(size)} on {names}: {reason}"


def _no_fits(every: Iterable[RankedWork]) -> Iterator[str]:
    """Yield a line for each reason why links have no fit, with their works."""
    works: dict[str, Counter[Work]] = defaultdict(Counter)
    for ranked in every:
        for fit in ranked.fits:
            if isinstance(fit, Unfitted):
                works[fit.why][ranked.work] += 1
    for reason, counts in works.items():
        names = ", ".join(f"{work} on {amount(count, kind_of(work))}" for work, count in counts.items())
        yield f"no fit    {reason}: {names}"
