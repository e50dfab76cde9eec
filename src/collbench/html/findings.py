"""What a run means, for the page: the three answers of its first screen, verdicts, choices, tiers and fits.

Every answer is `affinity`'s; here are only the words around it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from collbench.affinity.choice import Choice
from collbench.affinity.choose import choose, evidence
from collbench.affinity.fitness import left_out
from collbench.affinity.fits import Bounded, Fit, Unfitted
from collbench.affinity.summary import RankedWork
from collbench.affinity.tiers import Ranking, Relation, Standing
from collbench.affinity.verdicts import Kind, Severity, Verdict, coverage
from collbench.errors import UsageError
from collbench.html.families import Family, families
from collbench.model import Run
from collbench.report import verdicts
from collbench.report.health import health_lines
from collbench.report.outcome import headline
from collbench.report.ranking import name
from collbench.stats import summarize
from collbench.units import figure, fixed, format_approximate_size, format_size

_MIB = 2**20
# More rows hide what matters; the map shows α, β and n½ of every place.
_MOST_FITS = 64
_MOST_NAMES = 24  # of a tier
_SEVERITIES = {
    Severity.HARD: "hard",
    Severity.CONTRADICTION: "warn",
    Severity.FAILURE: "hard",
    Severity.INFO: "info",
}
# What a verdict's limit is where it is not the theory of a path (docs/check.md).
_LIMITS = {Kind.COLLECTIVE_CONTRADICTION: "what the links carry", Kind.CONTENTION: "alone"}
_FAULTS = (Severity.HARD, Severity.CONTRADICTION, Severity.FAILURE)


def answers(run: Run, judged: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the first screen: which devices, how fast, is anything wrong. Each has a short answer and some lines."""
    ranking = evidence(run)
    return [_which(run, ranking), _how_fast(run, ranking), _is_anything_wrong(run, judged)]


def _which(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    out = [f"left out {line}" for line in left(run)]
    chosen = [] if ranking is None else [*_powers_of_two(run, len(run.devices) - len(out))]
    if not chosen:
        why = "the run holds no pair" if ranking is None else "no two devices that were measured together are fit"
        return _answer("Which devices", "nothing to choose", [why, *out], "warn" if out else "")
    if all(one.tied or len(one.members) == len(run.devices) for one in chosen):
        short, lines = "any of them", [chosen[0].reason]
    else:
        short = _tags(run, chosen[0].members)
        lines = [f"the best {len(chosen[0].members)}: {chosen[0].reason}"]
        lines += [f"best {len(one.members)}: {_tags(run, one.members)}" for one in chosen[1:]]
    return _answer("Which devices", short, [*lines, *out], "warn" if out else "")


def _powers_of_two(run: Run, count: int) -> Iterator[Choice]:
    """Yield the choices of 2, 4, 8, … devices, as far as there are any."""
    k = 2
    with suppress(UsageError):  # those that are left share no pair
        while k <= count:
            yield choose(run, k)
            k *= 2


def _how_fast(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    if ranking is None:
        return _fastest_of_the_rest(run)
    best, worst = ranking.standings[0], ranking.standings[-1]
    what = f"{ranking.operation} at {format_size(ranking.size_bytes)} on each of {len(ranking.standings)} pairs"
    quantity = "bus bandwidth" if ranking.operation.is_collective else "slower direction"
    lines = [f"{what}, {quantity}", f"best {name(run, ranking.work, best.members)}: {_rate(best)}", ranking.verdict]
    return _answer("How fast", f"{_range([worst.gbs, best.gbs])} GB/s", lines)


def _fastest_of_the_rest(run: Run) -> dict[str, Any]:
    """Return the answer for a run without pairs: its first work at its largest size."""
    family = next((f for f in families(run) if any(found.samples for found in f.cells.values())), None)
    if family is None:
        return _answer("How fast", "nothing measured", [])
    size = max(size for (size, _), found in family.cells.items() if found.samples)
    found = [found for (at, _), found in family.cells.items() if at == size and found.samples]
    return _answer("How fast", _values(family, [summarize(one) for one in found]), [f"{family.name} at {_size(size)}"])


def _values(family: Family, summaries: Sequence[Any]) -> str:
    if family.work.operation.value == "chase":
        return f"{_range([one.seconds * 1e9 for one in summaries])} ns"
    return f"{_range([one.busbw for one in summaries])} GB/s"


def _is_anything_wrong(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    counts = Counter(verdict.severity for verdict in judged)
    counts[Severity.HARD] += counts[Severity.FAILURE]
    failed, covered = headline(run), coverage(run)
    told = [
        f"{counts[severity]} {word}{'s' if counts[severity] > 1 else ''}"
        for severity, word in ((Severity.HARD, "failure"), (Severity.CONTRADICTION, "contradiction"))
        if counts[severity]
    ]
    lines = [failed] * bool(failed)
    lines += [f"{verdict.kind}: {verdict.what}" for verdict in judged if verdict.severity in _FAULTS][:2]
    lines += [verdicts.conclusion(covered, judged).rstrip(".")] if not told else []
    lines += health_lines(run)[:2]
    unfit = [run.devices[one.member].tag for one in left_out(run)]
    told += [f"{', '.join(unfit)} not fit"] if unfit else []
    state = "hard" if counts[Severity.HARD] or failed else "warn" if told or not covered.judged else "ok"
    if not run.complete:
        lines.append("the run was interrupted: some of it is missing")
        state = "warn" if state == "ok" else state
    return _answer(
        "Is anything wrong", " and ".join(told) or ("nothing found" if covered.judged else "not judged"), lines, state
    )


def _answer(question: str, short: str, lines: Sequence[str], state: str = "") -> dict[str, Any]:
    return {"question": question, "short": short, "lines": list(lines), "state": state}


def told_verdicts(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    """Return the verdicts in the words of `collbench check`, and what the run does not allow to judge."""
    data = json.loads(verdicts.dumps(run, judged))
    found = []
    for verdict, one in zip(judged, data["verdicts"], strict=True):
        measured = one["measured_gbs"]
        rates = [(_LIMITS.get(verdict.kind, "theory"), one["theory_gbs"])]
        lines = [(title, f"{fixed(gbs)} GB/s") for title, gbs in rates if gbs is not None]
        if measured:
            span = f"{figure(measured['mid'])} GB/s ({figure(measured['lo'])}–{figure(measured['hi'])})"
            lines.append(("measured", span + ("" if verdict.confirmed else "; not confirmed alone")))
        lines.append(("cause", verdict.cause))
        lines += [("explains", ", ".join(verdict.explains))] if verdict.explains else []
        keys = {key: one[key] for key in ("kind", "what", "command", "label", "devices")}
        found.append({**keys, "state": _SEVERITIES[verdict.severity], "lines": lines})
    conclusion = verdicts.conclusion(coverage(run), judged)
    return {"found": found, "not_judged": data["not_judged"], "conclusion": conclusion}


def choices(run: Run) -> list[dict[str, Any]]:
    """Return for k = 1 … n what `collbench select` would choose from this run, and why, or why it would refuse."""
    return [_choice(run, k) for k in range(1, len(run.devices) + 1)]


def _choice(run: Run, k: int) -> dict[str, Any]:
    try:
        chosen = choose(run, k)
    except UsageError as error:
        return {"k": k, "devices": "–", "predicted": "", "reason": str(error), "decided_by": "", "finalists": []}
    return {
        "k": k,
        "devices": _tags(run, chosen.members),
        "predicted": str(chosen.band) if chosen.band else "",
        "reason": chosen.reason + (" (heuristic)" if chosen.heuristic else ""),
        "decided_by": chosen.decided_by,
        "finalists": [
            {
                "devices": _tags(run, one.members),
                "predicted": f"{one.band} ({one.band.basis})",
                "note": f"the first {k}" if one.default else "",
            }
            for one in chosen.finalists
        ],
    }


def left(run: Run) -> list[str]:
    """Return a line for each device that no choice takes."""
    return [f"{run.devices[one.member].tag}: {one.reason}" for one in left_out(run)]


def ranked(run: Run, works: Iterable[RankedWork]) -> list[dict[str, Any]]:
    """Return each work's tiers at a large and a small size, and its fits, as `collbench rank` prints them."""
    return [
        {
            "work": str(work.work),
            "rankings": [_ranking(run, ranking) for ranking in work.rankings],
            "fits": [_fit(run, work, fit) for fit in islice(_fits(work), _MOST_FITS)],
            "more_fits": max(0, len([*_fits(work)]) - _MOST_FITS),
            "unfitted": _unfitted(work),
        }
        for work in works
    ]


def _ranking(run: Run, ranking: Ranking) -> dict[str, Any]:
    small = ranking.size_bytes < _MIB
    tiers: dict[int, list[Standing]] = defaultdict(list)
    for standing in ranking.standings:
        tiers[standing.tier].append(standing)
    return {
        "size": format_size(ranking.size_bytes),
        "unit": "µs" if small else "GB/s",
        "kind": ranking.kind,
        "verdict": ranking.verdict,
        "tiers": [
            {
                "tier": tier,
                "range": _range([s.seconds * 1e6 if small else s.gbs for s in standings]),
                "count": len(standings),
                "names": _names(run, ranking, standings),
                "labels": ", ".join(dict.fromkeys(standing.label for standing in standings)),
                "relation": _relations(standings),
            }
            for tier, standings in tiers.items()
        ],
    }


def _names(run: Run, ranking: Ranking, standings: Sequence[Standing]) -> str:
    if len(standings) == len(ranking.standings) > 1:
        return f"all {len(standings)}"
    names = [name(run, ranking.work, standing.members) for standing in standings[:_MOST_NAMES]]
    more = len(standings) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _relations(standings: Sequence[Standing]) -> str:
    counts = Counter(standing.relation for standing in standings)
    if len(counts) == 1:
        return standings[0].relation.value
    return ", ".join(f"{counts[word]} {word}" for word in Relation if counts[word])


def _fits(work: RankedWork) -> Iterator[Fit]:
    return (fit for fit in work.fits if isinstance(fit, Fit))


def _fit(run: Run, work: RankedWork, fit: Fit) -> dict[str, Any]:
    return {
        "name": name(run, work.work, fit.members),
        "label": fit.label,
        "latency": _bounded(fit.latency_us),
        "gbs": _bounded(fit.gbs),
        "half": format_approximate_size(round(fit.half_bytes[1])),
        "misfit": f"{fit.misfit:.0%}",
    }


def _unfitted(work: RankedWork) -> list[str]:
    reasons = Counter(fit.reason for fit in work.fits if isinstance(fit, Unfitted))
    return [f"{count} without a fit: {reason}" for reason, count in reasons.items()]


def _bounded(values: Bounded) -> str:
    low, middle, high = values
    return f"{figure(middle)} [{figure(low)}, {figure(high)}]"


def _rate(standing: Standing) -> str:
    if standing.interval is None:
        return f"{figure(standing.gbs)} GB/s"
    return f"{figure(standing.gbs)} GB/s (95 %: {figure(standing.interval[0])}–{figure(standing.interval[1])})"


def _range(values: Sequence[float]) -> str:
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low}–{high}"


def _tags(run: Run, members: Sequence[int]) -> str:
    return ", ".join(run.devices[member].tag for member in members)


def _size(size_bytes: int) -> str:
    return format_size(size_bytes)
