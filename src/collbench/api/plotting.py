"""Figures of saved runs: heat maps and curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from collbench.api.runs import check_size, find_works
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.printable import one_line
from collbench.model.units import format_size
from collbench.report.plot.figure import Named, Picture
from collbench.report.sections import section
from collbench.runfile import run_file


def draw(kind: str, files: Sequence[Path], operations: Sequence[str], size: int | None) -> Picture:
    """Draw a figure of this kind, at `size` in bytes, of what `operations` name in saved runs.

    Without `operations` it draws each run's first collective, else its first copy; without `size` the largest size, or
    all sizes as curves. Raises UsageError for what a run lacks or the kind cannot show, and RunFileError.
    """
    runs = _load(files)
    for path, named in runs:
        measured_by = section(named.run)
        if measured_by is not None:
            raise UsageError(
                f"{path} holds {measured_by.HELD}, of which there is no figure: 'collbench show' has tables"
            )
    if kind == "heatmap":
        return _heatmap(runs, operations, size)
    from collbench.report.plot import curves

    return curves.draw([(named, work) for path, named in runs for work in _works(kind, named, path, operations, size)])


def _load(paths: Sequence[Path]) -> list[tuple[Path, Named]]:
    """Return the runs, each called by its file's name, by its path where two have the same."""
    stems = Counter(path.stem for path in dict.fromkeys(paths))
    names = {path: path.stem if stems[path.stem] == 1 else str(path) for path in paths}
    return [(path, Named(one_line(name), run_file.load(path))) for path, name in names.items()]


def _heatmap(runs: list[tuple[Path, Named]], operations: Sequence[str], size: int | None) -> Picture:
    """Draw one work of one run. Raises UsageError for more of either, and where it has no links or pairs."""
    from collbench.judge.tiers import rank_links
    from collbench.report.families import families
    from collbench.report.plot import heatmap

    if len(runs) > 1 or len(operations) > 1:
        what = f"{len(runs)} runs" if len(runs) > 1 else f"{len(operations)} operations"
        raise UsageError(f"--kind heatmap draws one operation of one run, {what} were given: draw each to its own file")
    path, named = runs[0]
    work = _works("heatmap", named, path, operations, size)[0]
    full_sizes = [family.full_size for family in families(named.run, work) if family.ranked and family.curves]
    ranking = rank_links(named.run, work, size or full_sizes[0]) if full_sizes else None
    if ranking is None or ranking.kind == "device":
        at = f" at {format_size(size)}" if size else ""
        raise UsageError(f"{path} has no {work}{at} on links or pairs, which a heat map needs: try --kind curves")
    return heatmap.draw(named, ranking)


def _works(kind: str, named: Named, path: Path, operations: Sequence[str], size: int | None) -> list[Work]:
    """Return the works that were asked for, else the run's first collective or copy. Raises UsageError."""
    works = [work for typed in operations for work in find_works(named.run, typed, path)]
    works = list(dict.fromkeys(works or _default(kind, named, path)))
    if kind == "curves" and any(work.operation is Operation.CHASE for work in works):
        raise UsageError(f"{path}: a pointer chase has no bandwidth over size: draw it with --kind heatmap")
    return works if size is None else check_size(named.run, works, size, path)


def _default(kind: str, named: Named, path: Path) -> list[Work]:
    from collbench.report.families import works_of

    works = [work for work in works_of(named.run) if kind == "heatmap" or work.operation is not Operation.CHASE]
    collectives = [work for work in works if work.operation.is_collective]
    if not works:
        raise UsageError(f"{path} holds nothing that was measured to the end: measure again")
    return (collectives or works)[:1]
