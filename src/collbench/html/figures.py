"""The figures of a family's cells as the page shows them, each with its 95 % interval and shade.

All of them are computed here, by `stats` and `affinity`; the page's script only looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collbench.affinity.estimates import Members
from collbench.affinity.fits import Fit, Unfitted
from collbench.html.families import NOTHING, Bounds, Family, short
from collbench.model import Measurement
from collbench.operations import Operation
from collbench.stats import Summary, median_interval, summarize, trial_seconds

# How bright a share of the best is: steeper at the top, where a slow link shows. It has no steps, so that figures that
# are nearly the same look nearly the same.
_BRIGHT = ((0.0, 0.25, 0.50, 0.75, 0.90, 0.95, 0.98, 1.0), (0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 23.0, 24.0))

_COVERS = "95 % interval"  # of the median


def figures(family: Family, limits: Mapping[Members, float]) -> list[dict[str, Any]]:
    """Return bandwidth, time, share of theory and launch time, as far as the work has them; `limits` in GB/s."""
    if family.work.operation is Operation.CHASE:
        return [_bounded(family, "time", "ns an access", lambda found: _times(found, 1e9), least=True)]
    quantity = "bus bandwidth (busbw)" if family.work.operation.is_collective else "bandwidth"
    figures = [
        _bounded(family, quantity, "GB/s", _rates),
        _bounded(family, "time", "µs", lambda found: _times(found, 1e6), least=True),
    ]
    if family.work.operation.is_copy and limits:
        figures.append(_bounded(family, "share of theory", "%", lambda found: _share(limits, found)))
    if any(sample.launch_seconds is not None for found in family.cells.values() for sample in found.samples):
        figures.append(_bounded(family, "time of an ungraphed launch", "µs", _launch, least=True))
    return figures


def _bounded(
    family: Family, title: str, unit: str, bounds: Callable[[Measurement], Bounds], *, least: bool = False
) -> dict[str, Any]:
    """Return a figure with the ends of its interval; `least`: the smallest is the best."""
    low, value, high = family.tables(bounds)
    shape = {"title": title, "unit": unit, "least": least, "by_size": True, "covers": _COVERS}
    return {**shape, "value": value, "low": low, "high": high, "shades": [_shades(row, least=least) for row in value]}


def _shades(row: Sequence[float | None], *, least: bool) -> str:
    """Return a letter for each place, Y for the best shade to A for the worst, "-" where there is no figure."""
    known = [value for value in row if value]
    best = min(known, default=0.0) if least else max(known, default=0.0)
    shares = ((best / value if least else value / best) if value else None for value in row)
    return "".join("-" if share is None else _letter(share) for share in shares)


def _letter(share: float) -> str:
    return chr(ord("A") + round(float(np.interp(share, *_BRIGHT))))


def _rates(found: Measurement) -> Bounds:
    summary: Summary = summarize(found)
    low, high = summary.interval or (None, None)
    return low, summary.busbw, high


def _times(found: Measurement, scale: float) -> Bounds:
    low, high = median_interval(trial_seconds(found)) or (None, None)
    return _scaled((low, summarize(found).seconds, high), scale)


def _share(limits: Mapping[Members, float], found: Measurement) -> Bounds:
    limit = limits.get(found.cell.members)
    return _scaled(_rates(found), 100 / limit) if limit else NOTHING


def _launch(found: Measurement) -> Bounds:
    seconds = summarize(found).launch_seconds
    return NOTHING if seconds is None else (None, seconds * 1e6, None)


def _scaled(bounds: Bounds, scale: float) -> Bounds:
    low, middle, high = (None if value is None else value * scale for value in bounds)
    return low, middle, high


def fitted(family: Family, fits: Sequence[Fit | Unfitted]) -> list[dict[str, Any]]:
    """Return α, β and n½ of each place, which hold over all sizes; nothing where no place has them."""
    known = {fit.members: fit for fit in fits if isinstance(fit, Fit)}
    if not known or family.work.operation is Operation.CHASE:
        return []
    found = [known.get(members) for members in family.places]
    alphas = [fit.latency_us if fit else NOTHING for fit in found]
    betas = [fit.gbs if fit else NOTHING for fit in found]
    halves = [fit.half_bytes if fit else NOTHING for fit in found]
    return [
        _over_sizes("α: latency, fitted over all sizes", "µs", alphas, least=True),
        _over_sizes("β: bandwidth, fitted over all sizes", "GB/s", betas),
        _over_sizes("n½: size that reaches half of β", "bytes", halves, least=True),
    ]


def _over_sizes(title: str, unit: str, bounds: Sequence[Bounds], *, least: bool = False) -> dict[str, Any]:
    low, value, high = ([[short(some[end]) for some in bounds]] for end in range(3))
    shape = {"title": title, "unit": unit, "least": least, "by_size": False, "covers": _COVERS}
    return {**shape, "value": value, "low": low, "high": high, "shades": [_shades(value[0], least=least)]}
