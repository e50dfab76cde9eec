"""One run against another, cell by cell, for the page's ratio maps: what `collbench compare` says, by its own rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from collbench.comparison.cells import unordered
from collbench.comparison.changes import Change, Verdict
from collbench.comparison.compare import Comparison
from collbench.html.families import Table, families, short
from collbench.report.comparison import group_name

# A shade begins at a ratio that is this far from 1, either way.
_STEPS = (0.02, 0.05, 0.10, 0.25)
_LETTERS = dict(zip(range(-len(_STEPS), len(_STEPS) + 1), "abcdefghi", strict=True))
_SIGNS = {Verdict.WORSE: -1, Verdict.BETTER: 1}
# What is said of each cell; the first is for a cell that only one run has.
_WORDS = {
    Verdict.SAME: "the same",
    Verdict.BETTER: "faster for certain",
    Verdict.WORSE: "slower for certain",
    Verdict.UNDECIDED: "undecided",
}
_PLACES = ["", *_WORDS]

Cells = Mapping[tuple[int, int], Change]  # by places in the lists of sizes and of places


def ratio_series(comparison: Comparison, base: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a series of ratios for each of the base's series that shares a cell with the new run."""
    found = {(change.key.work, change.key.members, change.key.size_bytes): change for change in comparison.changes}
    told = {one["name"]: one for one in base}
    made = []
    for family in families(comparison.base):
        keys = [(str(family.work), unordered(family.work, one)) for one in family.places]
        cells = {
            (row, column): found[work, members, size]
            for row, size in enumerate(family.sizes)
            for column, (work, members) in enumerate(keys)
            if (work, members, size) in found
        }
        made += [_ratios(told[family.name], cells)] if cells else []
    return made


def _ratios(base: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    rows, columns = (sorted({at[axis] for at in cells}) for axis in (0, 1))
    changes = [[cells.get((row, column)) for column in columns] for row in rows]
    return {
        **{same: base[same] for same in ("name", "kind", "about", "collective")},
        **{each: [base[each][row] for row in rows] for each in ("sizes", "size_names")},
        **{each: [base[each][column] for column in columns] for each in ("places", "names", "labels")},
        "theory": [None] * len(columns),
        "ways": "",
        "figures": [_figure(base["figures"][0]["title"], changes)],
        "tiers": [[] for _ in rows],
        "verdicts": ["" for _ in rows],
        "notes": [[0 if change is None else _PLACES.index(change.verdict) for change in row] for row in changes],
        "words": ["", *_WORDS.values()],
        "failed": [[] for _ in rows],
        "chosen": ["" for _ in rows],
    }


def _figure(title: str, changes: Sequence[Sequence[Change | None]]) -> dict[str, Any]:
    """Return speed over speed. Its intervals hold for all cells of both runs at once, so they are wide."""

    def table(end: int) -> Table:
        return [[None if change is None else short(_bounds(change)[end]) for change in row] for row in changes]

    shape = {
        "title": f"{title}: ratio",
        "unit": "×",
        "least": False,
        "by_size": True,
        "covers": "99 % interval of all at once",
    }
    shades = ["".join("-" if change is None else _LETTERS[_step(change)] for change in row) for row in changes]
    return {**shape, "value": table(1), "low": table(0), "high": table(2), "shades": shades}


def _bounds(change: Change) -> tuple[float | None, float, float | None]:
    low, high = change.interval or (None, None)
    return low, change.ratio, high


def _step(change: Change) -> int:
    """Return the shade: 0 where nothing is certain, else −4 … 4 by how far the ratio is from 1."""
    far = round(abs(change.ratio - 1), 5)  # as it is printed: 0.9 is 10 % away
    return _SIGNS.get(change.verdict, 0) * max(1, sum(far >= least for least in _STEPS))


def overview(series: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each series at its largest size the median and the ends of its ratios, and what all cells came to."""
    return [_row(found) for found in series]


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    known = [value for value in found["figures"][0]["value"][-1] if value is not None]
    counts = Counter(_PLACES[place] for row in found["notes"] for place in row if place)
    return {
        "name": found["name"],
        "size": found["size_names"][-1],
        "middle": f"{median(known):.3f}" if known else "–",
        "range": f"{min(known):.3f}–{max(known):.3f}" if known else "–",
        "counts": [counts[verdict] for verdict in Verdict],
    }


def as_a_whole(comparison: Comparison) -> list[str]:
    """Return a line for each place and each work that is faster or slower for certain over all its cells."""
    groups = [group for group in comparison.groups if group.verdict in _SIGNS]
    return [
        f"{group_name(comparison, group)}: {_WORDS[group.verdict]}, × {group.ratio:.3f} "
        f"({group.interval[0]:.3f}–{group.interval[1]:.3f}, {group.cells} cells)"
        for group in sorted(groups, key=lambda group: -abs(group.ratio - 1))
    ]
