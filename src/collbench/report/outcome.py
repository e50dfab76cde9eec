"""The first line of a page: what failed and where, or that nothing was judged."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from collbench.model import Run
from collbench.outcome import Trouble, TroubleKind, named, outcome

_MOST_PLACES = 3  # worst first; the page's notes and the file have the others
_ALARM = "bold red"


def headline(run: Run) -> str:
    """Return what failed and where, the worst first: "FAILED: GPU2-GPU3: 140 data points, hang"; "" for nothing."""
    troubles = outcome(run).troubles
    if not troubles:
        return ""
    head = "IMPOSSIBLE" if troubles[0].kind is TroubleKind.IMPOSSIBLE else "FAILED"
    return f"{head}: {places(run)}"


def places(run: Run) -> str:
    """Return the headline without its first word, which parsers of nccl-tests' text search for."""
    troubles = outcome(run).troubles
    told = "; ".join(_told(run, trouble) for trouble in troubles[:_MOST_PLACES])
    left = len(troubles) - _MOST_PLACES
    more = f"; and {left} more" if left > 0 else ""
    return f"{told}{more}{' (sim)' if run.backend == 'sim' else ''}"


def alarm(run: Run) -> Iterator[Text]:
    """Yield the headline as a page's first block, nothing where all is well."""
    if told := headline(run):
        yield Text(told, style=_ALARM)


def not_judged(why: str) -> Text:
    """Return the first block of a page that can say nothing; `why` ends with what to run."""
    return Text(f"not judged: {why}", style=_ALARM)


def _told(run: Run, trouble: Trouble) -> str:
    points = f"{trouble.count} data point{'' if trouble.count == 1 else 's'}"
    how = f"{trouble.figure:.0f} GB/s" if trouble.figure is not None else trouble.kind.value
    return f"{named(run, [trouble.devices])}: {points}, {how}"
