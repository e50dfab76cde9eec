"""Which memory is fastest for a collective: ordinary, or registered with NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from collbench.judge.registration import Winner, ranges, side_by_side, winners
from collbench.judge.stats import summarize
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Run, tags
from collbench.model.units import format_size, micro
from collbench.report.text.frame import sim
from collbench.report.text.layout import Lines, Part, table


def compared_memory(run: Run, operation: Operation, devices: tuple[int, ...]) -> list[Part]:
    """Return the comparison of kinds of memory, out of place and in place; nothing if there is only one kind."""
    out_of_place, in_place = (
        list(_of_variant(run, operation, devices, variant)) for variant in (Variant.PLAIN, Variant.IN_PLACE)
    )
    between = [Text(f"\n{operation} {Variant.IN_PLACE}")] if out_of_place and in_place else []
    return [*out_of_place, *between, *in_place]


def _of_variant(run: Run, operation: Operation, devices: tuple[int, ...], variant: Variant) -> Iterator[Part]:
    """Yield which memory is fastest at which sizes, and a table of sizes by kind."""
    by_size = winners(run, operation, devices, variant)
    if not by_size:
        return
    mark = sim(run, " (sim)")
    yield Lines("\n".join(f"memory    {line}{mark}" for line in map(winner_words, ranges(by_size))))
    sizes = side_by_side(run, operation, devices, variant)
    kinds = [kind for kind in Registration if any(kind in by_kind for by_kind in sizes.values())]
    heads, rows = (*(f"{kind} µs" for kind in kinds), *(f"{kind} GB/s" for kind in kinds), "fastest"), []
    fastest = {one.size_bytes: one.fastest for one in by_size}
    for size, by_kind in sizes.items():
        summaries = [summarize(by_kind[kind]) if kind in by_kind else None for kind in kinds]
        times = [micro(None if one is None else one.seconds) for one in summaries]
        rates = ["-" if one is None else f"{one.busbw:.2f}" for one in summaries]
        names = fastest.get(size, ())
        rows.append((format_size(size), *times, *rates, "tie" if len(names) == len(kinds) else ", ".join(names)))
    yield Text()
    yield table("size", *heads, rows=rows)


def fastest_memory(run: Run) -> Iterator[Part]:
    """Yield for each collective and pair which memory is fastest at which sizes."""
    measurements = [measurement for measurement in run.measured() if measurement.point.operation.is_collective]
    for operation, devices in dict.fromkeys((one.point.operation, one.point.members) for one in measurements):
        where = f"{operation} on {tags(devices, run.devices, '-')}"
        same = ranges(winners(run, operation, devices, Variant.PLAIN))
        yield Lines("\n".join(f"memory    {where}: {winner_words(one)}{sim(run, ' (sim)')}" for one in same))


def winner_words(same: Sequence[Winner], names: Mapping[Registration, str] | None = None) -> str:
    """Return which memory wins or ties at these sizes: "window wins from 256K to 8M, 1.44x at 2M (1.41-1.47)".

    `names` are what to call the kinds of memory instead.
    """
    called = names or {kind: kind.value for kind in Registration}
    first, last = format_size(same[0].size_bytes), format_size(same[-1].size_bytes)
    where = f"at {first}" if len(same) == 1 else f"from {first} to {last}"
    fastest = ", ".join(called[kind] for kind in same[0].fastest)
    text = f"{fastest} {'wins' if len(same[0].fastest) == 1 else 'tie'} {where}"
    gains = [(one.gain, one.size_bytes) for one in same if one.gain]
    if not gains:
        return text
    gain, size = max(gains, key=lambda pair: pair[0].ratio)
    if gain.interval is None:
        return text
    over = "" if gain.kind is Registration.NONE else f" over {called[gain.kind]}"
    low, high = gain.interval
    return f"{text}, {gain.ratio:.2f}x{over} at {format_size(size)} ({low:.2f}-{high:.2f})"
