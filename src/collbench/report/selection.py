"""The page of `collbench select`: the chosen devices, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.choose.choice import FEW_SETS, Selection
from collbench.model.operations import Operation
from collbench.model.units import (
    DELTA,
    TELLING_BYTES,
    abridged,
    amount,
    capped,
    columns,
    figure,
    filled,
    fixed,
    format_size,
    named,
    span,
    verb,
)

# On the short page.
_FEW_FINALISTS, _FEW_LEFT_OUT = 4, 8


def explanation(selection: Selection, width: int | None = None, *, verbose: bool = True) -> str:
    """Return the page as text: the devices, then the evidence, one line per fact.

    Lines, and tables that are wider, are wrapped to `width` columns, None for a pipe. The short page, not `verbose`,
    has the first finalists and the first devices that were left out.
    """
    origin = selection.origin
    where = f" ({selection.devices[0].name})" if selection.devices and selection.devices[0].name else ""
    where += f" on {origin.machine}" if origin.machine else ""
    if origin.simulated:
        where = f" of the simulated machine {origin.fabric} (sim)"
    lines = []
    if selection.failed:
        what = "IMPOSSIBLE" if selection.impossible else "FAILED"
        lines.append(f"{what}: the set includes {abridged(selection.failed, FEW_SETS, '; ')}{_sim(selection)}")
    if origin.interrupted:
        lines.append(f"INTERRUPTED: {origin.interrupted}: another set may be better{_sim(selection)}")
    lines.append(", ".join(device.tag for device in selection.devices) + where)
    if selection.contradiction:
        lines.append(f"check     {selection.contradiction}")
    lines += _lines(selection, width, verbose=verbose)
    return "\n".join(line if width is None or line.startswith("  ") else named(line, width) for line in lines)


def _lines(selection: Selection, width: int | None, *, verbose: bool) -> Iterator[str]:
    origin = selection.origin
    yield f"why       {selection.reason}{_sim(selection)}"
    if selection.predicted is not None:
        # The operation that measured the pairs, with its size if it is small.
        name = "all-reduce busbw" if origin.operation in (None, Operation.ALLREDUCE) else str(origin.operation)
        size_bytes = origin.measured_bytes or TELLING_BYTES
        at = f" at {format_size(size_bytes)}" if size_bytes < TELLING_BYTES else ""
        rates = f"{_range(selection.predicted)} GB/s over {selection.predicted_how}"
        yield f"predicted {name}{at} {rates}{_sim(selection)}"
    yield from _published(selection)
    if len(selection.finalists) > 1:
        yield from _finalists(selection, width, verbose=verbose)
    if selection.gain is not None:
        low, middle, high = (f"{(value - 1) * 100:+.1f}" for value in selection.gain)
        over = next(
            (", ".join(finalist.devices) for finalist in selection.finalists if finalist.first), "the first ones"
        )
        yield f"gain      {middle}% over {over} (95%: {low} to {high}%){_sim(selection)}"
    if selection.decided_by:
        yield f"decided   by {selection.decided_by}"
    if selection.heuristic:
        yield "search    heuristic: not every set was evaluated"
    left_out = [f"left out  {excluded.device}: {excluded.reason}" for excluded in selection.left_out]
    yield from left_out if verbose else capped(left_out, _FEW_LEFT_OUT, "left out  {} more: --verbose shows them")
    yield f"evidence  {origin.source}"
    if origin.verification:
        yield f"measured  finalists saved at {origin.verification}"


def _published(selection: Selection) -> Iterator[str]:
    """Yield the reference figures: a label has an order, and a rate only with the GPU's name."""
    if not selection.estimated or len(selection.devices) < 2:
        return
    names = " and ".join(sorted({device.name for device in selection.devices}))
    for published in selection.published:
        (low, high), (normal, most) = published.gbs, published.band
        rates = f"at least {fixed(low)} GB/s" if high is None else f"{span((low, high), fixed, '–')} GB/s"
        band = "" if most is None else f"band {figure(normal)} to {figure(most)}, "
        rates += f" ({band}{amount(published.origins, 'source')})"
        state = f", NVLS {published.nvls}" if published.nvls else ""
        where = f"{published.machine}, {len(selection.devices)} ranks{state} ({'; '.join(published.sources)})"
        yield f"reference all-reduce busbw {rates} at {format_size(published.size_bytes)}: {where}"
    if not selection.published:
        whose = f" for {len(selection.devices)} × {names} with such links" if names else ""
        advice = "" if names else "; --gpu NAME shows what such GPUs reach"
        yield f"reference none{whose}: labels have an order, not a rate{advice}"


def _finalists(selection: Selection, width: int | None, *, verbose: bool) -> Iterator[str]:
    """Yield a row for each finalist, its predicted and its measured rate; below its set where the table is too wide."""
    size = f" at {format_size(selection.origin.size_bytes)}" if selection.origin.size_bytes else ""
    yield "finalists by labels" if selection.estimated else f"finalists all-reduce busbw{size}, GB/s{_sim(selection)}"
    chosen = {device.tag for device in selection.devices}
    # All may tie: the measured rate orders them, then the predicted one.
    shown = sorted(
        selection.finalists,
        key=lambda finalist: (finalist.measured[1] if finalist.measured else 0.0, sum(finalist.predicted or ())),
        reverse=True,
    )
    if not verbose:  # the chosen one in any case
        later = [finalist for finalist in shown[_FEW_FINALISTS:] if set(finalist.devices) == chosen]
        shown = [*shown[: _FEW_FINALISTS - len(later)], *later]
    measured, predicted = any(finalist.measured for finalist in shown), any(finalist.predicted for finalist in shown)
    rows = [("set", "predicted" if predicted else "", "measured (95%)" if measured else "", "")]
    for finalist in shown:
        rate = "-" if measured else ""
        if finalist.measured:
            low, middle, high = finalist.measured
            rate = f"{fixed(middle)} ({_range((low, high))})"
        notes = [f"the first {len(finalist.devices)}"] if finalist.first else []
        if finalist.measured and finalist.predicted and (missed := _missed(finalist.predicted, finalist.measured)):
            notes.append(f"{missed} its prediction")
        if finalist.unmeasured and not finalist.measured:
            pairs, are = amount(finalist.unmeasured, "unmeasured pair"), verb(finalist.unmeasured, "is", "are")
            notes.append(f"if {pairs} {are} as fast as any")
        rows.append(
            (
                ", ".join(finalist.devices),
                _range(finalist.predicted) if finalist.predicted else "-" if predicted else "",
                rate,
                ", ".join(notes),
            )
        )
    lines = columns(rows)
    if width is None or max(map(len, lines)) + 2 <= width:
        yield from (f"  {line}" for line in lines)
    else:
        head, *below = rows
        for devices, *cells, note in below:
            rates = [f"{name} {cell}" for name, cell in zip(head[1:], cells, strict=False) if cell not in ("", "-")]
            yield filled(devices, width, "  ", "  ")
            yield filled("; ".join([*rates, *filter(None, [note])]), width, "    ", "    ")
    if len(shown) < len(selection.finalists):
        yield f"  and {len(selection.finalists) - len(shown)} more: --verbose shows them"


def _missed(predicted: tuple[float, float], measured: tuple[float, float, float]) -> str:
    """Return how a measured rate misses its prediction by more than δ and its noise, "" if it does not."""
    if measured[2] < predicted[0] * (1 - DELTA):
        return "below"
    return "above" if measured[0] > predicted[1] * (1 + DELTA) else ""


def _sim(selection: Selection) -> str:
    """Return the mark of every simulated figure, "" for a real machine."""
    return " (sim)" if selection.origin.simulated else ""


def _range(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"up to {fixed(high)}" if low == 0 < high else span(interval, fixed, "–")
