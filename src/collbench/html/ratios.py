"""One run against another, cell by cell: how much faster the second is, with bounds, for the page's ratio maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from collbench.affinity.estimates import tolerance
from collbench.html.families import Table
from collbench.model import Run

_FASTER, _SLOWER = 1, -1
# A shade begins at a ratio that is this far from 1, either way.
_STEPS = (0.02, 0.05, 0.10, 0.25)
_LETTERS = dict(zip(range(-len(_STEPS), len(_STEPS) + 1), "abcdefghi", strict=True))


def matched(base: Run, other: Run) -> tuple[dict[int, int], str]:
    """Return which position of `other` is which of `base`, and by what: UUIDs, or names where GPUs are others."""
    places = {device.uuid: at for at, device in enumerate(base.devices)}
    known = {at: places[device.uuid] for at, device in enumerate(other.devices) if device.uuid in places}
    if known:
        return known, "the same devices, by UUID"
    names = {device.tag: at for at, device in enumerate(base.devices)}
    return (
        {at: names[device.tag] for at, device in enumerate(other.devices) if device.tag in names},
        "different devices, matched by their index",
    )


def ratio_series(
    base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], places: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return a series of ratios for each series that both runs have, at their common sizes and places."""
    theirs = {found["name"]: found for found in base}
    both = ((theirs[found["name"]], found) for found in other if found["name"] in theirs)
    made = (_ratios(mine, found, places) for mine, found in both if mine["kind"] == found["kind"])
    return [found for found in made if found is not None]


def _ratios(base: Mapping[str, Any], other: Mapping[str, Any], places: Mapping[int, int]) -> dict[str, Any] | None:
    sizes = [size for size in other["sizes"] if size in base["sizes"]]
    ordered = {tuple(_sorted(base, members)): at for at, members in enumerate(base["places"])}
    pairs = []  # of columns: base's, other's
    for column, members in enumerate(other["places"]):
        if all(member in places for member in members):
            home = ordered.get(tuple(_sorted(other, [places[member] for member in members])))
            pairs += [] if home is None else [(home, column)]
    if not sizes or not pairs:
        return None
    rows = [(base["sizes"].index(size), other["sizes"].index(size)) for size in sizes]
    figure = _figure(base["figures"][0], other["figures"][0], rows, pairs)
    steps = [[_step(figure, at, column, size) for column in range(len(pairs))] for at, size in enumerate(sizes)]
    figure["shades"] = ["".join(_LETTERS[step] for step in row) for row in steps]
    return {
        "name": other["name"],
        "kind": other["kind"],
        "about": other["about"],
        "collective": other["collective"],
        "sizes": sizes,
        "size_names": [other["size_names"][row] for _, row in rows],
        "places": [base["places"][home] for home, _ in pairs],
        "names": [base["names"][home] for home, _ in pairs],
        "labels": [base["labels"][home] for home, _ in pairs],
        "theory": [None] * len(pairs),
        "figures": [figure],
        "tiers": [[] for _ in sizes],
        "verdicts": ["" for _ in sizes],
        "notes": [[0] * len(pairs) for _ in sizes],
        "words": [""],
        "chosen": ["" for _ in sizes],
        "steps": steps,
    }


def _sorted(series: Mapping[str, Any], members: Sequence[int]) -> list[int]:
    """Return members so that equal places are equal: only a link's order means something."""
    if series["kind"] == "link":
        return list(members)
    return [members[0], *sorted(members[1:])] if series["kind"] == "device" else sorted(members)


def _figure(
    base: Mapping[str, Any], other: Mapping[str, Any], rows: Sequence[tuple[int, int]], pairs: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return speed over speed; of its interval the quotients of opposite ends, which covers at 90 % or more."""

    def table(mine: str, theirs: str) -> Table:
        return [[_over(base[mine][a][c], other[theirs][b][d], least=other["least"]) for c, d in pairs] for a, b in rows]

    low, high = table("high", "low"), table("low", "high")
    if other["least"]:
        low, high = high, low
    shape = {"title": f"{other['title']}: ratio", "unit": "×", "least": False, "by_size": True}
    return {**shape, "value": table("value", "value"), "low": low, "high": high}


def _over(base: float | None, other: float | None, *, least: bool) -> float | None:
    if not base or not other:
        return None
    return float(f"{(base / other if least else other / base):.5g}")


def _step(figure: Mapping[str, Any], row: int, column: int, size_bytes: int) -> int:
    """Return the shade of a ratio: 0 where its interval does not leave 1 ± δ, else −4 … 4 by how far it is from 1."""
    value, low, high = (_at(figure, key, row, column) for key in ("value", "low", "high"))
    sure = _surely(low, high, tolerance(size_bytes)) if value is not None else 0
    far = round(abs((value or 1.0) - 1), 5)  # as the ratio is: 0.9 is 10 % away
    return sure * max(1, sum(bool(far >= least) for least in _STEPS))


def _at(figure: Mapping[str, Any], key: str, row: int, column: int) -> float | None:
    found: float | None = figure[key][row][column]
    return found


def _surely(low: float | None, high: float | None, delta: float) -> int:
    if low is None or high is None:
        return 0
    return _FASTER if low > 1 + delta else _SLOWER if high < 1 - delta else 0


def overview(series: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each series at its largest size the median and the ends of its ratios, and how many surely differ."""
    return [_row(found) for found in series]


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    known = [value for value in found["figures"][0]["value"][-1] if value is not None]
    steps = [step for row in found["steps"] for step in row]
    middle = f"{median(known):.3f}" if known else "–"
    return {
        "name": found["name"],
        "size": found["size_names"][-1],
        "middle": middle,
        "range": f"{min(known):.3f}–{max(known):.3f}" if known else "–",
        "faster": sum(step > 0 for step in steps),
        "slower": sum(step < 0 for step in steps),
        "cells": len(steps),
    }
