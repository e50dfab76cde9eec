"""What flags, skips, failures and missing figures are called in text: each sentence is made here, and read nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.analysis.diagnose import CheckKind, NotDone, Verdict
from collbench.analysis.diagnose.readings import COLLECTIVE_BYTES, COPY_BYTES
from collbench.analysis.outcome import Absence, AbsenceKind
from collbench.model.dtypes import DTYPE_BYTES
from collbench.model.failures import Cause, Failure, FailureKind, WrongData
from collbench.model.operations import Variant
from collbench.model.run import Device, Flag, FlagKind, Run, SkipKind, Skipped
from collbench.model.units import fixed, format_approximate_size, format_size

_MOST_NAMES = 4


def flag(found: Flag, devices: Sequence[Device]) -> str:
    """Return "throttled: SW thermal slowdown on GPU1", "hot: GPU1 at 86 °C", "shared: 1 other process on GPU0"."""
    tags = _tags(found.devices, devices)
    match found.kind:
        case FlagKind.THROTTLED:
            return f"throttled: {found.reason} on {tags}"
        case FlagKind.HOT:
            return f"hot: {tags} at {found.figure} °C"
        case FlagKind.SHARED:
            return f"shared: {found.figure} other process{'' if found.figure == 1 else 'es'} on {tags}"
        case FlagKind.OTHER:
            return found.reason


# Failures and wrong data.


def failure(found: Failure, devices: Sequence[Device]) -> str:
    """Return why a step failed: "allreduce of 1M on GPU0-GPU1 failed on GPU1: unhandled cuda error"."""
    text = _failed(found, devices)
    if found.kind is FailureKind.UNTRIED and found.cause is Cause.IN_A_ROW:
        text = f"not tried, as {text}"
    if found.rank is None:
        return text
    host = devices[found.rank].host if found.rank < len(devices) else ""
    return f"rank {found.rank}{f' on {host}' if host else ''}: {text}"


_FAILED = {
    Cause.REFUSED: "{step} failed{at}: {detail}",
    Cause.NOT_OPENED: "opening the GPUs failed{at}: {detail}",
    Cause.NO_BUFFERS: "allocating buffers failed{at}: {detail}",
    Cause.NO_COMMUNICATOR: "making NCCL communicators failed{at}: {detail}",
    Cause.NO_ANSWER: "hang: no answer{at} within {seconds} s, so the worker process was killed{said}",
    Cause.GIVEN_UP: "{step} failed: no answer for {seconds} s: the step was given up",
    Cause.DIED: "crash: the worker process died{at} ({ending}){said}",
    Cause.ENDING: "crash: the worker process closed its pipe, and is ending",
    Cause.NO_WORKER: "no new worker could be opened: {because}",
    Cause.NCCL_START: "NCCL did not start in {count} workers; the last time: {because}",
    Cause.NO_WORLD: "the ranks could not join again: {because}",
    Cause.NO_TIME: "the clock stood still or ran back: a timed batch took {seconds} s; measure again",
    Cause.IN_A_ROW: "{count} data points in a row failed; the last: {because}",
    Cause.REPORTED: "{detail}",
}


# Those that end a process by themselves or are sent to do so, by their numbers on Linux [signal(7)].
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def _failed(found: Failure, devices: Sequence[Device]) -> str:
    silent = "it wrote nothing to stderr" if found.cause is Cause.DIED else ""
    said = found.detail or silent
    return _FAILED[found.cause].format(
        step=_step(found, devices),
        at=f" on {_tags(found.devices, devices)}" if found.devices else "",
        detail=found.detail,
        said=f": {said}" if said else "",
        seconds=fixed(found.seconds or 0.0, 3),
        ending=_ending(found),
        count=found.count,
        because=failure(found.because, devices) if found.because else "",
    )


def _ending(found: Failure) -> str:
    if found.signal is None:
        return f"exit status {found.exit_status}"
    return ", ".join(filter(None, (f"signal {found.signal}", _SIGNALS.get(found.signal))))


def _step(found: Failure, devices: Sequence[Device]) -> str:
    size = "" if found.size_bytes is None else f" of {format_size(found.size_bytes)}"
    groups = ", ".join("-".join(devices[member].tag for member in group) for group in found.groups)
    return f"{found.work}{size}{f' on {groups}' if groups else ''}"


def wrong_data(found: WrongData, devices: Sequence[Device]) -> str:
    """Return which data was wrong, where, and what to do."""
    names = [devices[member].tag for member in found.members]
    if found.work.operation.is_collective:
        where = f"{names[0]} among {', '.join(devices[member].tag for member in sorted(found.members))}"
    elif found.work.variant is Variant.HOST:
        where = f"link between {names[0]} and host memory"
    else:
        where = f"link {names[0]} → {', '.join(names[1:])}"
    count = [] if found.count is None else [f"{found.count} wrong"]
    first = [] if found.offset is None else [f"the first at byte {found.offset}"]
    values = ""
    if found.expected is not None and found.found is not None:
        values = f": expected {fixed(found.expected, 6)}, found {fixed(found.found, 6)}"
    advice = "Do not train over this link; IOMMU or ACS settings are the usual cause"
    if devices and devices[0].is_core:
        advice = "Do not trust this machine; test its memory (memtest86+)"
    reported = f"{', '.join([*count, *first])}{values}"
    return f"wrong data: {found.work} of {format_size(found.size_bytes)}, {where}: {reported}. {advice}"


# What was not measured.


def skipped(left: Skipped, run: Run) -> str:
    """Return what was skipped and why: "sm-write GPU0 → GPU1: no peer access, …"."""
    what, why = skipped_what(left, run), skipped_reason(left, run)
    return f"{what}: {why}" if what else why


_SKIPPED_WHAT = {
    SkipKind.NODE_LIMIT: "host copies of {sizes}",
    SkipKind.ROOM: "sizes {sizes}",
    SkipKind.ALGORITHMS: "algorithms, protocols and channels",
    SkipKind.WRONG_DATA: "all that was left",
}
_SKIPPED_WHY = {
    SkipKind.NO_PEERS: "no peer access, so a kernel cannot address the other GPU's memory",
    SkipKind.SMALL_BLOCK: "smaller than 16 bytes for each of {count} ranks, as nccl-tests cuts blocks",
    SkipKind.SMALL_ELEMENT: "smaller than one {dtype}, which takes {width} bytes",
    SkipKind.NODE_LIMIT: (
        "{size} is the most with the memory of each NUMA node, which larger messages would take too much of"
    ),
    SkipKind.ROOM: "the fullest device has room for messages of {limit}; {free}",
    SkipKind.CONCURRENT_ROOM: "{count} messages at once do not fit the {limit} of a buffer",
    SkipKind.CACHE: "the {limit} that are free for a buffer are too few against the reader's cache",
    SkipKind.NUMA: "{detail}",
    SkipKind.PROCESSES: "copies are timed by one process, not by one for each device",
    SkipKind.ALGORITHMS: "{detail}",
    SkipKind.WRONG_DATA: "{detail}",
    SkipKind.OTHER: "{detail}",
}


def skipped_what(left: Skipped, run: Run) -> str:
    """Return what was skipped: "sm-write GPU0 → GPU1", "sizes 8G"; "" where the reason says it."""
    sizes = ", ".join(map(format_size, left.sizes))
    if left.kind in _SKIPPED_WHAT:
        return _SKIPPED_WHAT[left.kind].format(sizes=sizes)
    if left.work is None:
        return "host copies by NUMA node" if left.kind is SkipKind.NUMA else ""
    return f"{left.work} {' → '.join(run.devices[member].tag for member in left.members) or f'of {sizes}'}"


def skipped_reason(left: Skipped, run: Run) -> str:
    """Return why it was skipped."""
    if left.wrong is not None:
        return wrong_data(left.wrong, run.devices)
    dtype = run.settings.dtype
    silent = "nothing here tells of these operations" if left.kind is SkipKind.ALGORITHMS else ""
    return _SKIPPED_WHY[left.kind].format(
        count=left.count,
        dtype=dtype,
        width=DTYPE_BYTES.get(dtype),
        size=format_size(left.limit_bytes or 0),
        limit=format_approximate_size(left.limit_bytes or 0),
        free=_free(left, run),
        detail=left.detail or silent,
    )


def _free(left: Skipped, run: Run) -> str:
    if not left.free_bytes:
        return "half of the free memory is shared among source, target and gloo's buffers"
    names = (device.tag for device in run.devices)
    free = zip(names, left.free_bytes, strict=False)
    amounts = ", ".join(f"{tag} {format_approximate_size(amount)}" for tag, amount in free)
    return f"free now: {amounts}, shared by three buffers beside NCCL's own"


def reason_alone(left: Skipped) -> Skipped:
    """Return what is equal for all that was skipped for the same reason."""
    return replace(left, work=None, members=(), sizes=())


_ABSENT = {
    AbsenceKind.FAILED: "failed",
    AbsenceKind.SKIPPED: "skipped",
    AbsenceKind.ONE_WAY: "measured one way only",
    AbsenceKind.SMALL: "small messages only",
    AbsenceKind.NOT_REACHED: "not reached: the run was interrupted",
    AbsenceKind.NOT_MEASURED: "not measured",
}


def absence(found: Absence, run: Run) -> str:
    """Return why there is no figure, as a clause."""
    if found.failure is not None:
        return failure(found.failure, run.devices)
    if found.skipped is not None:
        return skipped_reason(found.skipped, run)
    if found.kind is not AbsenceKind.FEW_TRIALS:
        return _ABSENT[found.kind]
    if found.needed is not None:
        return f"{found.trials} of the {found.needed} trials that the noise needs"
    return f"{found.trials} trial{'s' if found.trials > 1 else ''} only"


# What was not judged, and what a verdict rests on.


_NOT_DONE = {
    CheckKind.LINKS: "{work} at {size} on {links}: {why}",
    CheckKind.COPIES: f"links against their limits: no copy of {format_size(COPY_BYTES)} or more was measured on them",
    CheckKind.LIMITS: "{labels} links against a limit: their slots or NVLinks are unknown",
    CheckKind.STAGING: "peer access against staging: no staged copies (collbench copies --patterns one-way,staged)",
    CheckKind.COLLECTIVES: (
        f"NCCL against the links: no collective of {format_size(COLLECTIVE_BYTES)} or more was measured"
    ),
    CheckKind.PAIRS: "NCCL pair by pair: no all-reduce was measured on pairs",
    CheckKind.LABELS: "the labels against {sources}: not in this run",
    CheckKind.PCIE: "PCIe under load: its generation and width were not read",
}


def not_done(check: NotDone, run: Run) -> str:
    """Return which check could not be made, and what would make it possible."""
    left = len(check.links) - _MOST_NAMES
    names = ", ".join(" → ".join(run.devices[end].tag for end in link) for link in check.links[:_MOST_NAMES])
    return _NOT_DONE[check.kind].format(
        work=check.work,
        size=format_size(check.size_bytes),
        links=f"{names}{f' and {left} more' if left > 0 else ''}",
        why=absence(check.absence, run) if check.absence else "",
        labels=", ".join(check.labels),
        sources=", ".join(check.sources),
    )


def what(verdict: Verdict, run: Run) -> str:
    """Return what a verdict says, with the failure or the wrong data that it rests on."""
    if verdict.failure is not None:
        return f"{verdict.what} {failure(verdict.failure, run.devices).rstrip('.')}."
    if verdict.skipped is not None:
        return f"{verdict.what} {skipped_reason(verdict.skipped, run).rstrip('.')}."
    return verdict.what


def _tags(positions: Sequence[int], devices: Sequence[Device]) -> str:
    return ", ".join(devices[position].tag for position in positions)
