"""The cells of a run as the page's maps and curves have them: one series for each work and kind of place.

A series is a table of sizes × places for each of its figures, and what is to be said of each cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from collbench.affinity.estimates import Members, labels_of
from collbench.affinity.fits import Fit, Unfitted
from collbench.affinity.summary import RankedWork
from collbench.affinity.tiers import Ranking, rank_links
from collbench.html.families import Family, families, short
from collbench.html.figures import figures, fitted
from collbench.machine.impossible import Impossible, by_cell
from collbench.model import Cell, Device, Measurement, Run, StopReason
from collbench.operations import Variant
from collbench.report.curves import limits_of
from collbench.report.notes import place
from collbench.units import format_size

_DIRECTED = {
    "link": "row sends to column",
    "pair": "one figure for both directions",
    "device": "each device",
    "group": "each set of devices",
}
_STOPS = {
    StopReason.BUDGET: "not yet precise when the time was up",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.FAILED: "given up",
}


def series(run: Run, works: Iterable[RankedWork]) -> list[dict[str, Any]]:
    """Return the run's series as JSON's own types, with the fits that `rank` has of them."""
    fits = {ranked.work: ranked.fits for ranked in works}
    there = (family for family in families(run) if any(found.samples for found in family.cells.values()))
    return [_series(family, fits.get(family.work, ()) if family.ranked else ()) for family in there]


def _series(family: Family, fits: Sequence[Fit | Unfitted]) -> dict[str, Any]:
    labels = labels_of(family.run, family.places) if family.kind in ("link", "pair") else {}
    limits = limits_of(family.run, family.work, family.places)
    rankings = [_ranking(family, size) for size in family.sizes]
    notes, beaten = _Words(), by_cell(family.run)
    return {
        "name": family.name,
        "kind": family.kind,
        "about": _DIRECTED[family.kind],
        "collective": family.work.operation.is_collective,
        "sizes": family.sizes,
        "size_names": [format_size(size) for size in family.sizes],
        "places": [list(members) for members in family.places],
        "names": [place(family.run.devices, family.work, members) for members in family.places],
        "labels": [labels.get(members, "") for members in family.places],
        "theory": [short(limits.get(members)) for members in family.places],
        "ways": "both ways together" if family.work.variant is Variant.BOTH_WAYS else "one way",
        "figures": [*figures(family, limits), *fitted(family, fits)],
        "tiers": [_tiers(family, ranking) for ranking in rankings],
        "verdicts": ["" if ranking is None else ranking.verdict for ranking in rankings],
        "notes": [
            [notes.place(_note(family, beaten, size, members)) for members in family.places] for size in family.sizes
        ],
        "words": notes.words,
        "failed": [
            [at for at, members in enumerate(family.places) if _given_up(family, size, members)]
            for size in family.sizes
        ],
        "chosen": [_chosen(family, size) for size in family.sizes],
    }


def _ranking(family: Family, size: int) -> Ranking | None:
    """Return the tiers of a family's places at one size; `affinity` is given these cells alone, as it looks at all."""
    if not family.ranked:
        return None
    cells = [found for (at, _), found in family.cells.items() if at == size]
    return rank_links(replace(family.run, measurements=[*cells, *broken(family.run, cells)]), family.work, size)


def broken(run: Run, besides: Sequence[Measurement]) -> list[Measurement]:
    """Return the other cells in which something failed or was wrong, without their samples: whoever ranks must know."""
    bad = [found for found in run.measurements if found.failure or found.wrong]
    known = {found.cell for found in besides} if bad else set()
    return [replace(found, samples=[]) for found in bad if found.cell not in known]


def _tiers(family: Family, ranking: Ranking | None) -> list[list[Any]]:
    """Return [tier, relation to the best] of each place at one size; nothing where there are no tiers."""
    if ranking is None:
        return []
    standings = {standing.members: standing for standing in ranking.standings}
    found = (standings.get(members) for members in family.places)
    return [[one.tier, one.relation.value[0]] if one else [] for one in found]


class _Words:
    """Texts that many cells share, each kept once; the first is "", for a cell with nothing to say."""

    def __init__(self) -> None:
        self.words = [""]

    def place(self, text: str) -> int:
        """Return the text's place in `words`."""
        if text not in self.words:
            self.words.append(text)
        return self.words.index(text)


def _note(family: Family, beaten: Mapping[Cell, Impossible], size: int, members: Members) -> str:
    """Return what a reader should know of one cell beside its figures; `beaten` are the impossible ones."""
    found = family.cells.get((size, members))
    if found is None:
        return ""
    one = beaten.get(found.cell)
    told = f"impossible: {one.rate_gbs:.1f} GB/s where at most {one.capacity.gbs:.1f} can be" if one else ""
    return "; ".join(dict.fromkeys([told] * bool(told) + list(_remarks(found, family.run.devices))))


def _given_up(family: Family, size: int, members: Members) -> bool:
    found = family.cells.get((size, members))
    return found is not None and bool(found.failure) and not found.samples


def _remarks(found: Measurement, devices: Sequence[Device]) -> Iterable[str]:
    if found.failure:
        yield f"failed: {found.failure}"
    if found.wrong:
        yield f"{found.wrong} wrong elements"
    if found.stop in _STOPS:
        yield _STOPS[found.stop]
    if any(sample.concurrent for sample in found.samples):
        yield "timed while others were busy, too"
    yield from sorted({flag.words(devices) for sample in found.samples for flag in sample.flags})


def _chosen(family: Family, size: int) -> str:
    """Return what NCCL said that it chose for this message, "" where it was not asked."""
    if not family.work.operation.is_collective:
        return ""
    wanted = (family.work.operation, len(family.places[0]), size)
    told = (found for found in family.run.chosen if (found.operation, found.ranks, found.size_bytes) == wanted)
    return "; ".join(f"{found.algorithm}/{found.protocol}, {found.channels} channels" for found in told)
