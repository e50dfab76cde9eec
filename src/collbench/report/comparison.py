"""The page of `collbench compare`: what differs beside the figures, what became worse or better, counts, a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.comparison.changes import Change, Verdict
from collbench.comparison.compare import Comparison
from collbench.comparison.groups import Group, Kind
from collbench.model import Run
from collbench.outcome import outcome
from collbench.report.outcome import alarm, not_judged
from collbench.units import figure, fixed, format_size

_MIB = 2**20
_MOST_ROWS = 20  # of a verdict; more say the same thing again, and the JSON has them all
_MOST_NAMES = 6
_STYLES = {Verdict.WORSE: "bold red", Verdict.BETTER: "bold green"}
_LEGEND = """\
new/base: of bandwidth, with an interval that holds for all of them at once
(99 %). worse, better: beyond δ (2 %, below 1M 6 %, and what a run keeps to
itself) for certain; same: within δ by 90 %; undecided: neither"""


def page(comparison: Comparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    """Yield the page's blocks; `names` are the two files'."""
    yield from alarms(comparison)
    yield from body(comparison, names)


def body(comparison: Comparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    """Yield the page without its alarms."""
    yield Text("\n".join(head(comparison, names)))
    for verdict in (Verdict.WORSE, Verdict.BETTER):
        yield from _groups(comparison, verdict)
        yield from _cells(comparison, verdict)
    yield Text(f"\n{_LEGEND}\n")
    yield Text("\n".join(_counts(comparison)))
    yield Text(conclusion(comparison), style=_STYLES[Verdict.WORSE] if comparison.regressions else "")


def alarms(comparison: Comparison) -> Iterator[Text]:
    """Yield what comes before all else: what failed in the new run, and what could not be compared."""
    yield from alarm(comparison.new)
    if not comparison.judged:
        yield not_judged("no cell has the three visits in both runs that tell noise: measure both without an interrupt")
    elif comparison.lost:
        cells = f"{len(comparison.lost)} of {len(comparison.lost) + len(comparison.changes)} cells of the base"
        yield not_judged(f"{cells} are missing in the new run: measure it anew, or finish it with --resume")


def head(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines that say which runs these are, and what differs between them: the candidate causes."""
    base, new = comparison.base, comparison.new
    if base.backend == "sim":
        yield "backend   sim: SIMULATED machines, nothing below was measured on a GPU"
    else:
        yield f"backend   {base.backend}"
    for word, run, name in (("base", base, names[0]), ("new", new, names[1])):
        where = run.machine.fabric or run.machine.hostname
        yield f"{word:<9} {name}: {where}, {run.started}"
    yield f"devices   {comparison.match.told}"
    for difference in comparison.differences:
        yield f"differs   {difference.what}: {difference.base or 'none'} → {difference.new or 'none'}"


def conclusion(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    limit = f"{fixed(100 * comparison.fail_below, 6)} %"
    if not comparison.changes:
        return "The runs have no cell in common: nothing was compared."
    if comparison.regressions:
        return f"Regression: slower for certain by more than {limit} (--fail-below)."
    if _any(comparison, Verdict.WORSE):
        return f"Something is slower for certain, none of it for certain by more than {limit} (--fail-below)."
    if not comparison.judged:
        return "Nothing is certain: no cell has the three visits in both runs that tell noise."
    if comparison.lost or outcome(comparison.new).places:
        return "Nothing that was measured in both runs is slower for certain."
    return "Nothing is slower for certain."


def _any(comparison: Comparison, verdict: Verdict) -> bool:
    return any(one.verdict is verdict for one in comparison.groups) or comparison.count(verdict) > 0


def _groups(comparison: Comparison, verdict: Verdict) -> Iterator[RenderableType]:
    found = [group for group in comparison.groups if group.verdict is verdict]
    if not found:
        return
    yield Text(f"\n{_simulated(comparison)}{verdict.value} as a whole", style=_STYLES[verdict])
    table = _table("what", "cells", "new/base", "interval")
    for group in sorted(found, key=lambda group: -abs(1 - group.ratio))[:_MOST_ROWS]:
        table.add_row(group_name(comparison, group), str(group.cells), *_ratio(group.ratio, group.interval))
    yield table
    yield from _more(len(found))


def group_name(comparison: Comparison, group: Group) -> str:
    """Name what a group's cells share: the place, or the work and its size."""
    if group.kind is Kind.PLACE:
        return f"{_place(comparison.base, group.members)}: all that runs there"
    return f"{group.work} at {format_size(group.size_bytes)}: everywhere"


def _cells(comparison: Comparison, verdict: Verdict) -> Iterator[RenderableType]:
    found = [change for change in comparison.changes if change.verdict is verdict]
    if not found:
        return
    rows = _rows(comparison, found)
    yield Text(f"\n{_simulated(comparison)}{verdict.value}", style=_STYLES[verdict])
    table = _table("where", "cells", "at", "base", "new", "new/base", "interval")
    for name, ours in rows[:_MOST_ROWS]:
        shown = max(ours, key=lambda change: change.key.size_bytes)
        ratio = _ratio(shown.ratio, shown.interval)
        table.add_row(name, str(len(ours)), format_size(shown.key.size_bytes), *_both(shown), *ratio)
    yield table
    yield from _more(len(rows))


def _rows(comparison: Comparison, found: Sequence[Change]) -> list[tuple[str, list[Change]]]:
    """Return a row for each work and place, one for all places of a work where all are alike; strongest first."""
    works: dict[tuple[str, int], set[tuple[int, ...]]] = defaultdict(set)
    for change in comparison.changes:
        works[change.key.work, len(change.key.members)].add(change.key.members)
    places: dict[tuple[str, tuple[int, ...]], list[Change]] = defaultdict(list)
    for change in found:
        places[change.key.work, change.key.members].append(change)
    rows: dict[str, list[Change]] = defaultdict(list)
    for (work, members), ours in places.items():
        every = works[work, len(members)]
        whole = len(every) > 2 and all((work, other) in places for other in every)
        name = f"{work} on all {len(every)}" if whole else f"{work} {_place(comparison.base, members, work)}"
        rows[name] += ours
    return sorted(rows.items(), key=lambda row: -max(abs(1 - change.ratio) for change in row[1]))


def _place(run: Run, members: Sequence[int], work: str = "") -> str:
    tags = [run.devices[member].tag for member in members]
    if len(tags) > _MOST_NAMES:
        return f"{tags[0]} … {tags[-1]} ({len(tags)} devices)"
    return ("→" if "-write" in work or "-read" in work else "-").join(tags)


def _both(change: Change) -> tuple[str, str]:
    """Return the figure in both runs: GB/s, of small messages the time."""
    if change.key.size_bytes < _MIB:
        return f"{figure(change.base_seconds * 1e6)} µs", f"{figure(change.new_seconds * 1e6)} µs"
    return f"{figure(change.base_gbs)} GB/s", f"{figure(change.new_gbs)} GB/s"


def _ratio(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    bounds = "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}"
    return f"{ratio:.3f}", bounds


def _counts(comparison: Comparison) -> Iterator[str]:
    counts = ", ".join(f"{comparison.count(verdict)} {verdict.value}" for verdict in Verdict)
    yield f"cells     {len(comparison.changes)} in both: {counts}"
    few = sum(change.interval is None for change in comparison.changes)
    if few:
        yield f"few       {few} cells have fewer than three visits in a run: they tell no noise, so they are undecided"
    for word, run, keys in (
        ("base", comparison.base, comparison.only_base),
        ("new", comparison.new, comparison.only_new),
    ):
        if keys:
            works = sorted({key.work for key in keys})
            sizes = sorted({key.size_bytes for key in keys})
            span = format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
            name = f"{word} run ({run.started})"
            yield f"missing   {len(keys)} cells only in the {name}: {', '.join(works)}; {span}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if place == 0 else "right")
    return table


def _more(count: int) -> Iterator[RenderableType]:
    if count > _MOST_ROWS:
        yield Text(f"and {count - _MOST_ROWS} more: --json has them all")


def _simulated(comparison: Comparison) -> str:
    return "sim: " if comparison.base.backend == "sim" else ""
