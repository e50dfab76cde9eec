"""Single launches for the HTML page: a table of percentiles and a histogram of each size, for each communicator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log1p
from typing import Any

from collbench.analysis.tails import Tails, histogram, tails
from collbench.model.run import Run
from collbench.model.units import format_size
from collbench.output.text.frame import sim
from collbench.output.text.layout import NAME_WIDE
from collbench.output.text.tails import HEADS, figures, lines, micro, title

# Of more communicators than these the page shows the first: all pairs of eight GPUs are 28.
_MOST_GROUPS = 8
_BINS, _BAR, _HIGH, _TEXT = 32, 18, 120, 20  # bins; pixels of a bar's width, of the picture, of its ticks
_TICKS_EVERY = 8


def content(run: Run) -> Iterator[dict[str, Any]]:
    """Yield each communicator's part, the largest size's histogram first; nothing without single launches."""
    groups: dict[tuple[object, ...], list[Tails]] = defaultdict(list)
    for one in tails(run):
        groups[one.point.work, one.point.members].append(one)
    for by_size in list(groups.values())[:_MOST_GROUPS]:
        by_size.sort(key=lambda one: one.point.size_bytes)
        yield {
            "title": f"{sim(run)}{title(run, by_size)}",
            "lines": [line[NAME_WIDE:] for line in lines(run, by_size)],
            "heads": HEADS,
            "rows": list(figures(by_size)),
            "histograms": [_picture(one, sim(run)) for one in reversed(by_size)],
        }


def _picture(one: Tails, prefix: str) -> dict[str, Any]:
    """Return bars by place and size in pixels, with the picture's title after `prefix`.

    Heights are logarithmic, so that one launch of thousands is seen.
    """
    edges, counts = histogram(one.transfer_seconds or one.waited_seconds, _BINS)
    unit = _HIGH / log1p(max(counts))
    bars = []
    for index, count in enumerate(counts):
        height = round(log1p(count) * unit, 1)
        between = f"{micro(edges[index])} to {micro(edges[index + 1])} µs: {count}"
        bars.append(
            {"x": index * _BAR, "y": round(_HIGH - height, 1), "width": _BAR - 1, "height": height, "title": between}
        )
    ticks = [{"x": _TEXT + index * _BAR, "text": micro(edges[index])} for index in range(0, _BINS, _TICKS_EVERY)]
    size = format_size(one.point.size_bytes)
    return {
        "title": f"{prefix}{one.count} launches of {size} by duration in µs; the height is logarithmic",
        "width": _BINS * _BAR,
        "height": _HIGH + _TEXT,
        "bars": bars,
        "ticks": ticks,
    }
