"""The page of `collbench latency --collectives`: small all-reduces by size and memory, and those of a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from collbench.judge.registration import (
    ALLREDUCES_A_LAYER,
    TOKEN_BYTES,
    TOKEN_HIDDEN,
    SmallAllreduces,
    published,
    ranges,
    small_allreduces,
)
from collbench.model.capabilities import capabilities
from collbench.model.operations import Registration
from collbench.model.run import Run, tags
from collbench.model.units import amount, counted, format_size, micro
from collbench.report.text import tails
from collbench.report.text.frame import ending, header, sim
from collbench.report.text.layout import Lines, Page, Table, both, table, whole
from collbench.report.text.registration import winner_words
from collbench.runfile.codec import picked

# As people who serve models call the kinds of memory.
_NAMES = {Registration.NONE: "ordinary", Registration.BUFFER: "registered", Registration.WINDOW: "symmetric"}
_LEGEND = """\
in a CUDA graph: the slowest rank, median; a single launch: from the last
rank's arrival to the last one's finish. registered: ncclCommRegister;
symmetric: ncclCommWindowRegister, as with vLLM's VLLM_USE_NCCL_SYMM_MEM=1 and
SGLang's --enable-symm-mem. Custom kernels, as vLLM's, are not timed here"""


def page(run: Run) -> Page:
    """Yield the page's blocks: the answers in a line each, then the times in graphs."""
    found = small_allreduces(run)
    if not found.timed:
        yield from ending(run)
        return
    mark = sim(run, " (sim)")
    yield from both("tables", *(Lines(f"{line}{mark}") for line in _answers(run, found)))
    yield from whole("header", Lines(f"\n{header(run)}"))
    how = f"µs: {run.settings.dtype}, {run.settings.redop}, over {tags(range(len(run.devices)), run.devices)}"
    yield from both("tables", Lines(f"\n{sim(run)}all-reduce in a CUDA graph, {how}"), _graphs(found))
    yield from both("tables", Text(f"\n{_LEGEND}"))
    for by_size in tails.by_communicator(run):
        yield from whole("tails", *tails.single_launches(run, by_size))
    yield from ending(run)


def _answers(run: Run, found: SmallAllreduces) -> Iterator[str]:
    """Yield a small all-reduce's times and tail, which memory wins where, a token's cost, and vLLM's published time."""
    size = TOKEN_BYTES if TOKEN_BYTES in found.sizes else found.sizes[0]
    times = {kind: one.seconds for kind, one in found.at(size).items()}
    yield f"allreduce {format_size(size)} on {amount(len(run.devices), 'GPU')}, µs: {_by_kind(times, 1e6)}"
    launched = {kind: (one.launch_at(50), one.launch_at(99)) for kind, one in found.at(size).items() if one.launches}
    if launched:
        each = (f"{_NAMES[kind]} {micro(p50)} ({micro(p99)})" for kind, (p50, p99) in launched.items())
        yield f"launched  one by one without a graph, {format_size(size)}, p50 (p99), µs: {', '.join(each)}"
    yield from (f"memory    {winner_words(same, _NAMES)}" for same in ranges(found.winners))
    calls, what = run.settings.layers * ALLREDUCES_A_LAYER, format_size(TOKEN_BYTES)
    if found.token_seconds:
        token = f"{run.settings.layers} layers × {ALLREDUCES_A_LAYER} × {what} (one token of hidden {TOKEN_HIDDEN})"
        yield f"token     {token}, ms: {_by_kind(found.token_seconds, 1e3)}"
    seconds = found.custom_seconds(TOKEN_BYTES)
    if found.custom is not None and seconds is not None:
        where = f"{found.custom.ranks} × {found.custom.machine}"
        took = f"{micro(seconds)} µs at {what}, {seconds * calls * 1e3:.2f} ms a token"
        origin = f"{published().source}, {published().license}"
        yield f"reference vLLM {found.custom.vllm} custom all-reduce, {where}: {took} (published: {origin})"
    elif not capabilities(run.backend).simulated:
        yield f"reference no published times of vLLM's custom all-reduce on {counted(one.name for one in run.devices)}"


def _by_kind(seconds: Mapping[Registration, float], scale: float) -> str:
    return ", ".join(f"{_NAMES[kind]} {time * scale:.2f}" for kind, time in seconds.items())


def _graphs(found: SmallAllreduces) -> Table:
    """Return a row for each size: the time on each kind of memory, the fastest kinds, and vLLM's published time."""
    custom = [f"vLLM {found.custom.vllm}"] if found.custom else []
    fastest = {one.size_bytes: one.fastest for one in found.winners}
    rows = []
    for size in found.sizes:
        times, names = found.at(size), fastest.get(size, ())
        cells = [micro(times[kind].seconds) if kind in times else "-" for kind in found.kinds]
        best = "tie" if len(names) == len(found.kinds) else ", ".join(map(_NAMES.__getitem__, names))
        rows.append((format_size(size), *cells, best, *(micro(found.custom_seconds(size)) for _ in custom)))
    return table("size", *map(_NAMES.__getitem__, found.kinds), "fastest", *custom, rows=rows)


def as_json(run: Run) -> dict[str, Any]:
    """Return what the page says, in JSON's own types and in seconds."""
    found = small_allreduces(run)
    custom = None
    if found.custom is not None:
        times = [{"size_bytes": size, "seconds": found.custom_seconds(size)} for size in published().sizes]
        custom = picked(found.custom, "machine", "ranks", "vllm") | {"times": times}
        custom |= picked(published(), "conditions", "source", "license")
    return {
        "times": [
            {"size_bytes": one.size_bytes, "registration": one.kind.value, "seconds": one.seconds}
            | {"launch_p50_seconds": one.launch_at(50), "launch_p99_seconds": one.launch_at(99)}
            for one in found.timed
        ],
        "fastest": [{"size_bytes": one.size_bytes, "registrations": [*one.fastest]} for one in found.winners],
        "token": {
            "layers": run.settings.layers,
            "allreduces": run.settings.layers * ALLREDUCES_A_LAYER,
            "size_bytes": TOKEN_BYTES,
            "seconds": dict(found.token_seconds),
        },
        "custom_all_reduce": custom,
    }
