"""The lines below every page's figures: how far they were measured, what is missing, and what to distrust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from collbench.machine.labels import is_pcie
from collbench.model import NCCL_START, Device, Run, StopReason
from collbench.operations import Variant, Work
from collbench.report.health import health_lines
from collbench.units import format_size

_WORDS = {
    StopReason.PRECISION: "precise",
    StopReason.NOISE: "noise-stable",
    StopReason.BUDGET: "at the budget",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.FAILED: "failed",
}
# NCCL's start is told from here on: below, it was ready when the sweep was.
_TELLING_S = 0.05
# More failures than this say the same thing again; the file holds them all.
_MOST_FAILURES = 8
# On a machine with 48 links that kernels cannot use, the first ones show which.
_MOST_NAMES = 4


def notes(run: Run) -> list[str]:
    """Return the lines, each said once."""
    lines = [*_stopped(run), *_time(run), *_failures(run), *_audit(run)]
    lines += ["chosen    algorithms as NCCL told in a separate process with NCCL_DEBUG=INFO"] if run.chosen else []
    lines += [line.replace("health: ", "health    ", 1) for line in health_lines(run)]
    return list(dict.fromkeys([*lines, *_skipped(run)]))


def place(devices: tuple[Device, ...], work: Work, members: tuple[int, ...]) -> str:
    """Name the devices that a cell ran on: "GPU0 → GPU1", "GPU0 → all others", "GPU0, GPU1"."""
    tags = [devices[member].tag for member in members]
    if work.variant is Variant.ONE_TO_ALL:
        return f"{tags[0]} → all others"
    if work.variant is Variant.ALL_TO_ONE:
        return f"all others → {tags[0]}"
    if work.variant is Variant.BOTH_WAYS:
        return " ↔ ".join(tags)
    return (", " if work.operation.is_collective else " → ").join(tags)


def _stopped(run: Run) -> Iterator[str]:
    counts = Counter(found.stop for found in run.measurements)
    told = [f"{counts[reason]} {word}" for reason, word in _WORDS.items() if counts[reason]]
    if told:
        yield f"stopped   {', '.join(told)}"


def _time(run: Run) -> Iterator[str]:
    if "timed" in run.phases:
        inside = {name: seconds for name, seconds in run.phases.items() if name not in ("timed", NCCL_START)}
        around = f" ({', '.join(f'{name} {seconds:.1f} s' for name, seconds in inside.items())})" if inside else ""
        start = run.phases.get(NCCL_START, 0.0)
        around += f", after {start:.1f} s for NCCL to start" if start >= _TELLING_S else ""
        yield f"time      {run.phases['timed']:.1f} s of {run.seconds:.1f} s in timed regions{around}"


def _failures(run: Run) -> Iterator[str]:
    """Yield a line for each work, place and reason, with all its sizes."""
    failed: dict[tuple[str, str], list[str]] = {}
    for found in run.measurements:
        if found.failure:
            what = f"{found.cell.work} on {place(run.devices, found.cell.work, found.cell.members)}"
            failed.setdefault((what, found.failure), []).append(format_size(found.cell.size_bytes))
    lines = [f"failed    {what} at {', '.join(sizes)}: {reason}" for (what, reason), sizes in failed.items()]
    yield from lines[:_MOST_FAILURES]
    if len(lines) > _MOST_FAILURES:
        yield f"failed    and {len(lines) - _MOST_FAILURES} more: the run file holds them"


def _skipped(run: Run) -> Iterator[str]:
    """Yield a line for each reason, with the first of what was skipped for it."""
    reasons: dict[str, list[str]] = {}
    for skipped in run.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.what)
    for reason, found in reasons.items():
        what = list(dict.fromkeys(found))
        more = f" and {len(what) - _MOST_NAMES} more" if len(what) > _MOST_NAMES else ""
        yield f"skipped   {', '.join(what[:_MOST_NAMES])}{more}: {reason}"


def _audit(run: Run) -> Iterator[str]:
    trusted = [abs(1 - found.ratio) for found in run.audits if found.trusted]
    if trusted:
        yield (
            f"audit     pairs timed together and alone agree within {max(trusted):.1%} "
            f"({len(trusted)} comparison{'s' if len(trusted) > 1 else ''})"
        )
    for found in run.audits:
        if not found.trusted:
            yield (
                f"audit     {Work(found.operation, found.variant)} on {found.label} pairs was timed alone: "
                f"beside others it ran at {found.ratio:.2f} of its own speed (±{found.delta:.1%} was allowed)"
            )
    if any(is_pcie(found.label) for found in run.audits if not found.trusted):
        yield "audit     PCIe paths share wires, so all of them were timed alone"
