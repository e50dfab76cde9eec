"""`collbench plot`: a figure for a paper or a page, from saved runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collbench import runfile, wholefile
from collbench.cli import options
from collbench.cli.terminal import say
from collbench.cli.works import check_size, find_works
from collbench.errors import UsageError
from collbench.operations import Operation, Work
from collbench.printable import one_line
from collbench.units import format_size, parse_size

if TYPE_CHECKING:
    from collbench.plot.figure import Picture
    from collbench.plot.words import Named

_WORDS = ("write the figure", "--output")
_KINDS = ("heatmap", "curves", "scaling")
_FILE = click.Path(path_type=Path)


@click.command(short_help="Draw a figure from saved runs.")
@click.argument("run_files", metavar="RUN.JSON...", nargs=-1, required=True, type=_FILE)
@click.option("--kind", type=click.Choice(_KINDS), required=True, help="What to draw.")
@click.option("-o", "--output", metavar="FILE", type=_FILE, required=True, help="The figure: .svg, .png or .pdf.")
@click.option(
    "--operation",
    "operations",
    metavar="OP",
    multiple=True,
    help="allreduce, ce-write, …; repeat it to overlay curves.  [default: the first collective, else the first copy]",
)
@click.option("--size", metavar="SIZE", help="Of heatmap and scaling.  [default: the largest]")
@options.force
def plot(
    run_files: tuple[Path, ...], kind: str, output: Path, operations: tuple[str, ...], size: str | None, force: bool
) -> None:
    """Draw a figure from saved runs: SVG, PNG or PDF, the same bytes each time.

    heatmap: every link or pair of one run at one size. curves: bandwidth over size with intervals and theory; more
    than 8 lines become a median for each tier; several runs are overlaid. scaling: bandwidth over the number of GPUs,
    from a run of several (--split), or one run for each number. Needs matplotlib: pip install 'collbench[plot]'.

    \b
    Examples:
      collbench plot run.json --kind heatmap -o map.svg
      collbench plot run.json --kind curves --operation ce-write -o curves.pdf
      collbench plot old.json new.json --kind curves -o both.png
      collbench plot two.json four.json --kind scaling --size 256M -o scaling.svg
    """
    from collbench.plot import figure  # late: numpy takes as long to load as the rest of the program

    suffix = output.suffix.removeprefix(".").lower()
    if suffix not in figure.SUFFIXES:
        raise UsageError(f"{output} has no suffix of a figure: name it .{', .'.join(figure.SUFFIXES)}")
    size_bytes = None if size is None else parse_size(size)
    if kind == "curves" and size is not None:
        raise UsageError(f"--kind curves draws all sizes: leave out --size {size}, or write --kind heatmap")
    wholefile.check(output, *_WORDS, force=force, sources=run_files)
    with figure.drawing():
        runs = _load(run_files)
        picture = _draw(kind, runs, operations, size_bytes)
        wholefile.write(figure.encode(picture, suffix), output, *_WORDS, force=force)
    say(f"wrote {output}: {picture.title}")


def _load(paths: tuple[Path, ...]) -> list[tuple[Path, Named]]:
    """Return the runs, each called by its file's name, by its path where two have the same."""
    from collbench.plot.words import Named

    stems = Counter(path.stem for path in dict.fromkeys(paths))
    names = {path: path.stem if stems[path.stem] == 1 else str(path) for path in paths}
    return [(path, Named(one_line(name), runfile.load(path))) for path, name in names.items()]


def _draw(kind: str, runs: list[tuple[Path, Named]], operations: tuple[str, ...], size: int | None) -> Picture:
    if kind == "heatmap":
        return _heatmap(runs, operations, size)
    from collbench.plot import curves, scaling

    shown = [(named, work) for path, named in runs for work in _works(kind, named, path, operations, size)]
    return curves.draw(shown) if kind == "curves" else scaling.draw(shown, size)


def _heatmap(runs: list[tuple[Path, Named]], operations: tuple[str, ...], size: int | None) -> Picture:
    """Draw one work of one run. Raises UsageError for more of either, and where it has no links or pairs."""
    from collbench.affinity.tiers import rank_links
    from collbench.plot import heatmap
    from collbench.report.curves import curves_of, sizes_of

    if len(runs) > 1 or len(operations) > 1:
        what = f"{len(runs)} runs" if len(runs) > 1 else f"{len(operations)} operations"
        raise UsageError(f"--kind heatmap draws one operation of one run, {what} were given: draw each to its own file")
    path, named = runs[0]
    work = _works("heatmap", named, path, operations, size)[0]
    ranking = rank_links(named.run, work, size or sizes_of(work, curves_of(named.run, work))[-1])
    if ranking is None or ranking.kind == "device":
        at = f" at {format_size(size)}" if size else ""
        raise UsageError(f"{path} has no {work}{at} on links or pairs, which a heat map needs: try --kind curves")
    return heatmap.draw(named, ranking)


def _works(kind: str, named: Named, path: Path, operations: tuple[str, ...], size: int | None) -> list[Work]:
    """Return the works that were asked for, or the run's most telling one. Raises UsageError where it has none."""
    found = [work for typed in operations for work in find_works(named.run, typed, path)]
    found = list(dict.fromkeys(found or _default(kind, named, path)))
    if kind == "curves" and any(work.operation is Operation.CHASE for work in found):
        raise UsageError(f"{path}: a pointer chase has no bandwidth over size: draw it with --kind heatmap")
    if kind == "scaling" and not all(work.operation.is_collective for work in found):
        raise UsageError(f"{path}: {found[0]} runs on links, so it has no number of GPUs: scaling needs a collective")
    return found if size is None else check_size(named.run, found, size, path)


def _default(kind: str, named: Named, path: Path) -> list[Work]:
    from collbench.report.curves import works_of

    works = [work for work in works_of(named.run) if kind == "heatmap" or work.operation is not Operation.CHASE]
    collectives = [work for work in works if work.operation.is_collective]
    if not collectives and kind == "scaling":
        raise UsageError(f"{path} has no collective, which --kind scaling needs: measure with 'collbench allreduce'")
    if not works:
        raise UsageError(f"{path} holds nothing that was measured to the end: measure again")
    return (collectives or works)[:1]
