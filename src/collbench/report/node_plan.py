"""What a survey of nodes will take, as a table: an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.report.prose import WIDE, named
from collbench.units import fixed, format_size


def plan_page(
    nodes: int, gpus: int, size_bytes: int, gbs: float, phases: Sequence[tuple[str, int, float]], width: int = WIDE
) -> Iterator[RenderableType]:
    """Yield the plan of `nodes` × `gpus`; `phases` are what is done, how often, and seconds each, rounds last.

    Sentences take `width` columns.
    """
    yield Text(f"plan      {nodes:,} nodes × {gpus} GPUs = {nodes * gpus:,} GPUs; an estimate: nothing is measured")
    table = Table(box=None, pad_edge=False, header_style="")
    for title in ("phase", "times", "seconds each", "seconds"):
        table.add_column(title, justify="left" if title == "phase" else "right")
    for what, times, seconds in phases:
        table.add_row(what, f"{times}", f"{seconds:.2f}", f"{times * seconds:.1f}")
    table.add_row("total", "", "", f"{sum(times * seconds for _, times, seconds in phases):.1f}")
    yield table
    rounds = sum(times for _, times, _ in phases[1:])
    each = phases[-1][2]
    every = nodes - 1 + nodes % 2
    told = (
        f"pairs     {nodes // 2:,} a round, {rounds * (nodes // 2):,} measurements in {rounds} rounds; all "
        f"{nodes * (nodes - 1) // 2:,} pairs would take {every} rounds, {every * each:.0f} s, and one by one "
        f"{nodes * (nodes - 1) / 2 * each / 60:.0f} min",
        f"assumed   all-reduce of {format_size(size_bytes)} at {fixed(gbs)} GB/s between two nodes; 1.5 s for a "
        "round's communicators and 10 ms a rank for the world (measured: 0.65 s for both on 4 GPUs of one host)",
    )
    yield from (Text(named(line, width)) for line in told)
