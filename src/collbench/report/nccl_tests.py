"""A run as nccl-tests prints it, for the scripts that read its text: same lines, same widths, same number formats.

Comment lines say what is ours. They avoid the words that parsers search for: "bandwidth", "out-of-place", "FAILED"
(Azure's health checks take the first line with the first of these, SuperBench the last line with the second).
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.model import Run
from collbench.report import nccl_words as words
from collbench.report.nccl_words import Half, Row, Table
from collbench.report.outcome import places

_COLUMNS = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_HALF_COLUMNS = "  {:>7}  {:>6}  {:>6}  {:>6}"
_NOT_CHECKED = "    N/A"  # one column less than a number takes, as theirs
_NOT_MEASURED = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}{_NOT_CHECKED}"
_LOOP = "the ungraphed launch loop's; nccl-tests averages one loop over ranks"
_BLOCKS = "the timed blocks' (on GPUs a graph replay between device events); nccl-tests takes the CPU's clock"


def lines(run: Run) -> list[str]:
    """Return the lines of nccl-tests' output, a whole report for each communicator. Times in µs, rates in GB/s.

    The time is the launch loop's, where the run's command has -G the graph replay's. Raises UsageError for a run
    without collectives.
    """
    failed = places(run)
    first = [f"# not to be trusted: {failed}"] if failed else []
    return first + [line for table in words.tables(run) for line in _report(run, table)]


def _report(run: Run, table: Table) -> Iterator[str]:
    yield from _origin(run, table)
    yield "# Using devices"
    for rank, member in enumerate(table.members):
        device = run.devices[member]
        yield (
            f"#  Rank {rank:2d} Group {table.group:2d} Pid {0:6d} on {words.hostname(run, device):>10} "
            f"device {device.index:2d} [{words.pci_address(device)}] {device.name}"
        )
    yield "#"
    yield from _heads()
    yield from map(_line, table.rows)
    yield from _footer(run, table)


def _origin(run: Run, table: Table) -> Iterator[str]:
    """Yield the lines above the devices: where the numbers come from and what they mean here."""
    library = f", NCCL {run.machine.nccl} {run.machine.nccl_path}" if run.machine.nccl else ""
    yield f"# collbench {run.version} in the layout of nccl-tests 2.19.6, backend {run.backend}{library}"
    yield f"# Collective test starting: {table.program}"
    asked = words.settings(run, table)
    step, kind = asked.step
    yield (
        f"# nThread {asked.threads} nGpus 1 minBytes {asked.smallest} maxBytes {asked.largest} step: {step}({kind}) "
        f"warmup iters: {asked.warmup} iters: {asked.iterations} agg iters: 1 validation: {asked.validation} "
        f"graph: {asked.graph} unalign: 0"
    )
    yield f"# measured {run.started}, seed {run.settings.seed}; Pid is not recorded"
    loops = {half.loop for row in table.rows for half in row.halves}
    for loop, meaning in ((True, _LOOP), (False, _BLOCKS)):
        if loop in loops:
            yield f"# time: the slowest rank's, median of the visits, {meaning}"
    if asked.validation:
        yield "# #wrong: in every timed block out of place, in one call in place; nccl-tests checks one call each"
    yield "#"


def _heads() -> Iterator[str]:
    yield f"{_COLUMNS.format('', '', '', '', '')}           out-of-place                       in-place          "
    half = _HALF_COLUMNS.format("time", "algbw", "busbw", "#wrong")
    yield f"{_COLUMNS.format('size', 'count', 'type', 'redop', 'root')}{half}{half} "
    half = _HALF_COLUMNS.format("(us)", "(GB/s)", "(GB/s)", "")
    yield f"{_COLUMNS.format('(B)', '(elements)', '', '', '')}{half}{half} "


def _line(row: Row) -> str:
    first = f"{row.size_bytes:12d}  {row.count:12d}  {row.dtype:>8}  {row.redop:>6}  {row.root:6d}"
    return f"{first}{_half(row.out_of_place)}{_half(row.in_place)}"


def _half(half: Half | None) -> str:
    if half is None:
        return _NOT_MEASURED
    wrong = _NOT_CHECKED if half.wrong is None else f"  {half.wrong:6g}"
    return f"  {_fit(half.microseconds, 7)}  {_fit(half.algbw, 6)}  {_fit(half.busbw, 6)}{wrong}"


def _fit(value: float, width: int) -> str:
    """Return the number with as many decimals, at most two, as its column has room for [src/util.cu, getFloatStr]."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"[:width]


def _footer(run: Run, table: Table) -> Iterator[str]:
    """Yield the summary. Its verdict is OK only where nothing is wrong, failed or missing: scripts take it for passed.

    Notes follow the figures, because what a machine says of its failure may hold the words that scripts search for.
    """
    verdict = "OK" if words.healthy(run, (table,)) else "FAILED"
    yield f"# {'Out of bounds values':<20} : {table.errors} {verdict}"
    yield f"# {'Avg bus bandwidth':<20} : {words.average_busbw((table,)):g} "
    yield from _notes(run, table)
    yield "#"
    yield f"# Collective test concluded: {table.program}"
    yield "#"
    yield ""


def _notes(run: Run, table: Table) -> Iterator[str]:
    """Yield what a reader must know of the rows: cells that failed, were measured on a troubled device, or are none."""
    yield from (f"# failed: {failure}" for failure in table.failures)
    yield from (f"# IMPOSSIBLE: {beaten}" for beaten in table.impossible)
    yield from (f"# flagged: {flag}" for flag in table.flags)
    if table.group == 0:  # what was skipped is skipped in all of them
        yield from (f"# skipped: {skipped.what}: {' '.join(skipped.reason.split())}" for skipped in run.skipped)
    if not run.complete:
        yield "# interrupted: rows are missing"
