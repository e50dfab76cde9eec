"""The lines below every page's figures: how far they were measured, what is missing, and what to distrust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from collbench.machine.labels import is_pcie
from collbench.model import NCCL_START, Audit, Device, Run, StopReason
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


def notes(run: Run, *, health: bool = True) -> list[str]:
    """Return the lines, each said once, those about the devices' health only where that is asked for."""
    lines = [*_stopped(run), *_verified(run), *_time(run), *_failures(run), *_audit(run)]
    lines += ["chosen    algorithms as NCCL told in a separate process with NCCL_DEBUG=INFO"] if run.chosen else []
    lines += [f"health    {line}" for line in (health_lines(run) if health else ())]
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


def _verified(run: Run) -> Iterator[str]:
    """Yield the share of the bytes that were compared where they arrived, and what was compared least."""
    bytes_of: dict[tuple[Work, int], tuple[int, int]] = {}  # verified, moved
    for found in run.measurements:
        for sample in found.samples:
            if sample.moved_bytes and sample.verified_bytes is not None:
                key = (found.cell.work, found.cell.size_bytes)
                verified, moved = bytes_of.get(key, (0, 0))
                bytes_of[key] = (verified + sample.verified_bytes, moved + sample.moved_bytes)
    if not bytes_of:
        return
    verified, moved = (sum(column) for column in zip(*bytes_of.values(), strict=True))
    work, size = min(bytes_of, key=lambda key: bytes_of[key][0] / bytes_of[key][1])
    least = _share(*bytes_of[work, size])
    more = f"; of {work} at {format_size(size)} {least}" if verified < moved and len(bytes_of) > 1 else ""
    yield f"verified  {_share(verified, moved)} of the bytes moved{more}"


def _share(part: int, whole: int) -> str:
    """Return the percentage cut off, so that only all of it is 100 %."""
    tenths = part * 1000 // whole
    return "all" if part == whole else "none" if part == 0 else f"{tenths / 10:.1f}%" if tenths else "less than 0.1%"


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
    apart: dict[tuple[str, Work], list[Audit]] = {}
    for found in run.audits:
        if not found.trusted:
            apart.setdefault((found.label, Work(found.operation, found.variant)), []).append(found)
    for (label, work), audits in apart.items():
        yield f"audit     {work} on {label} pairs{_at(audits)} was timed alone: {_speed(audits)}"
    if any(is_pcie(label) for label, _ in apart):
        yield "audit     PCIe paths share wires, so all of them were timed alone"


def _at(audits: Sequence[Audit]) -> str:
    sizes = sorted({found.size_bytes for found in audits if found.size_bytes is not None})
    return f" at {', '.join(map(format_size, sizes))}" if sizes else ""


def _speed(audits: Sequence[Audit]) -> str:
    """Say how fast pairs were beside others, and what was allowed: as spans where several pairs were compared."""
    ratios, deltas = [found.ratio for found in audits], [found.delta for found in audits]
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    allowed = f"±{max(deltas):.1%}"
    return f"beside others at {low if low == high else f'{low} to {high}'} of its own speed ({allowed} was allowed)"
