"""Sentences about flags, failures, skips and missing figures: made from typed values, only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collbench.judge.outcome import Absence, AbsenceKind, corruptions
from collbench.machine.labels import is_nvlink
from collbench.model.errors import Cause, Failure, FailureKind, WrongData
from collbench.model.operations import Registration, Variant
from collbench.model.run import Device, Flag, FlagKind, Path, Run, SkipKind, Skipped, tags
from collbench.model.units import DTYPE_BYTES, amount, fixed, format_approximate_size, format_size


def flag(flagged: Flag, devices: Sequence[Device]) -> str:
    """Return "throttled: SW thermal slowdown on GPU1", "hot: GPU1 at 86 °C", "shared: 1 other process on GPU0"."""
    names = tags(flagged.devices, devices)
    match flagged.kind:
        case FlagKind.THROTTLED:
            return f"throttled: {flagged.reason} on {names}"
        case FlagKind.HOT:
            return f"hot: {names} at {flagged.figure} °C"
        case FlagKind.SHARED:
            return f"shared: {flagged.figure} other process{'' if flagged.figure == 1 else 'es'} on {names}"
        case FlagKind.OTHER:
            return flagged.reason


# Failures and wrong data.


def failure(failed: Failure, devices: Sequence[Device]) -> str:
    """Return why a step failed: "allreduce of 1M on GPU0-GPU1 failed on GPU1: unhandled cuda error"."""
    text = _failed(failed, devices)
    if failed.kind is FailureKind.UNTRIED and failed.cause is Cause.IN_A_ROW:
        text = f"not tried, as {text}"
    if failed.rank is None:
        return text
    host = devices[failed.rank].host if failed.rank < len(devices) else ""
    return f"rank {failed.rank}{f' on {host}' if host else ''}: {text}"


_FAILED = {
    Cause.REFUSED: "{step} failed{at}: {detail}",
    Cause.NOT_OPENED: "opening the GPUs failed{at}: {detail}",
    Cause.NO_BUFFERS: "allocating buffers failed{at}: {detail}",
    Cause.NO_COMMUNICATOR: "creating NCCL communicators failed{at}: {detail}",
    Cause.NO_ANSWER: "hang: no answer{at} within {seconds} s, so the worker process was killed{said}",
    Cause.STARVED: "no answer{at} within {seconds} s; the host was busy: the worker process could hardly run{said}",
    Cause.GIVEN_UP: "{step} failed: no answer for {seconds} s: the step was given up",
    Cause.DIED: "crash: the worker process died{at} ({ending}){said}",
    Cause.ENDING: "crash: the worker process closed its pipe and is exiting",
    Cause.NO_WORKER: "could not start a new worker process: {because}",
    Cause.NCCL_START: "NCCL failed to start in {count} worker processes; last error: {because}",
    Cause.NO_WORLD: "the ranks could not reconnect: {because}",
    Cause.NOT_COVERED: "{step} failed: three times the load{at} ended before the copies that were timed beside it",
    Cause.NO_TIME: "the clock stopped or went backward: a timed batch took {seconds} s; measure again",
    Cause.IN_A_ROW: "{count} data points in a row failed; last error: {because}",
    Cause.REPORTED: "{detail}",
}


# The signals that end a process, by their numbers on Linux [signal(7)].
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


def _failed(failed: Failure, devices: Sequence[Device]) -> str:
    silent = "it wrote nothing to stderr" if failed.cause is Cause.DIED else ""
    said = failed.detail or silent
    ending = f"exit status {failed.exit_status}"
    if failed.signal is not None:
        ending = ", ".join(filter(None, (f"signal {failed.signal}", _SIGNALS.get(failed.signal))))
    size = "" if failed.size_bytes is None else f" of {format_size(failed.size_bytes)}"
    groups = ", ".join(tags(group, devices, "-") for group in failed.groups)
    return _FAILED[failed.cause].format(
        step=f"{failed.work}{size}{f' on {groups}' if groups else ''}",
        at=f" on {tags(failed.devices, devices)}" if failed.devices else "",
        detail=failed.detail,
        said=f": {said}" if said else "",
        seconds=fixed(failed.seconds or 0.0, 3),
        ending=ending,
        count=failed.count,
        because=failure(failed.because, devices) if failed.because else "",
    )


def wrong_data(wrong: WrongData, devices: Sequence[Device], paths: Iterable[Path], *, causes: bool = True) -> str:
    """Return which data was wrong, where, and what to do; with the usual causes, unless these are told elsewhere."""
    first, others = tags(wrong.members[:1], devices), tags(wrong.members[1:], devices)
    if not first:
        where = "location unknown"
    elif wrong.work.operation.is_collective:
        where = f"{first} among {tags(sorted(wrong.members), devices)}"
    elif wrong.work.variant.host_memory:
        where = f"link between {first} and host memory"
    elif wrong.work.variant is Variant.LOCAL:
        where = f"memory of {first}"
    else:
        where = f"link {first} → {others}"
    part = "byte" if wrong.work.operation.is_copy else "element"
    details = [] if wrong.count is None else [amount(wrong.count, f"wrong {part}")]
    details += [] if wrong.offset is None else [f"the first at byte {wrong.offset}"]
    values = ""
    if wrong.expected is not None:
        found = "no finite number" if wrong.found is None else fixed(wrong.found, 6)
        values = f": expected {fixed(wrong.expected, 6)}, found {found}"
    reported = f"{', '.join(details)}{values}. {_advice(wrong, devices, paths, causes=causes)}"
    return f"wrong data: {wrong.work} of {format_size(wrong.size_bytes)}, {where}: {reported}"


def _advice(wrong: WrongData, devices: Sequence[Device], paths: Iterable[Path], *, causes: bool) -> str:
    if devices and devices[0].is_core:
        return "Do not trust this machine; test its memory (memtest86+)"
    if wrong.work.variant is Variant.LOCAL:
        return "Do not train on this GPU"
    crossed = [path.label for path in paths if {*path.devices} <= {*wrong.members}]
    if not causes or (crossed and all(map(is_nvlink, crossed))):
        return "Do not use this link for training"  # an IOMMU and ACS concern PCIe
    return "Do not use this link for training; IOMMU or ACS settings are the usual cause"


# Skips and missing figures.


def skipped(skip: Skipped, run: Run) -> str:
    """Return what was skipped and why: "sm-write GPU0 → GPU1: no peer access, …"."""
    what, why = skipped_what(skip, run), skipped_reason(skip, run)
    return f"{what}: {why}" if what else why


_SKIPPED_WHAT = {
    SkipKind.NODE_LIMIT: "host copies of {sizes}",
    SkipKind.ROOM: "sizes {sizes}",
    SkipKind.WRONG_DATA: "all remaining data points",
}
_SKIPPED_WHY = {
    SkipKind.NO_PEERS: "no peer access, so a kernel cannot address the other GPU's memory",
    SkipKind.PEERS_REFUSED: "the driver refused the peer access that it had called possible: {detail}",
    SkipKind.SMALL_BLOCK: "smaller than the 16 bytes that nccl-tests needs for each of {count} ranks",
    SkipKind.SMALL_ELEMENT: "smaller than one {dtype}, which takes {width} bytes",
    SkipKind.NODE_LIMIT: (
        "{size} is the limit with the memory of each NUMA node: larger messages would use too much of it"
    ),
    SkipKind.ONE_DEVICE: "it needs two devices, and one was measured",
    SkipKind.ROOM: "the fullest device has room for messages of {limit}; {free}",
    SkipKind.CONCURRENT_ROOM: "{count} concurrent messages do not fit in a buffer of {limit}",
    SkipKind.CACHE: "only {limit} are free for a buffer, too little compared with the cache of the reading device",
    SkipKind.NUMA: "{detail}",
    SkipKind.PROCESSES: "one process times copies; here each device has its own process",
    SkipKind.OLD_NCCL: "{detail}",
    SkipKind.WRONG_DATA: "{detail}",
    SkipKind.OTHER: "{detail}",
}


def skipped_what(skip: Skipped, run: Run) -> str:
    """Return what was skipped: "sm-write GPU0 → GPU1", "sizes 8G"; "" if the reason names it."""
    sizes = ", ".join(map(format_size, skip.sizes))
    if skip.kind in _SKIPPED_WHAT:
        return _SKIPPED_WHAT[skip.kind].format(sizes=sizes)
    if skip.work is None:
        return "host copies by NUMA node" if skip.kind is SkipKind.NUMA else ""
    where = tags(skip.members, run.devices, " → ") or (f"of {sizes}" if sizes else "")
    return f"{skip.work} {where}".rstrip()


def skipped_reason(skip: Skipped, run: Run) -> str:
    """Return why it was skipped."""
    if skip.wrong is not None:
        return wrong_data(skip.wrong, run.devices, run.paths)
    dtype = run.settings.dtype
    return _SKIPPED_WHY[skip.kind].format(
        count=skip.count,
        dtype=dtype,
        width=DTYPE_BYTES.get(dtype),
        size=format_size(skip.limit_bytes or 0),
        limit=format_approximate_size(skip.limit_bytes or 0),
        free=_free(skip, run),
        detail=skip.detail,
    )


def _free(skip: Skipped, run: Run) -> str:
    if not skip.free_bytes:
        return "half of the free memory is shared among source, target and gloo's buffers"
    free = zip(run.devices, skip.free_bytes, strict=False)
    amounts = ", ".join(f"{device.tag} {format_approximate_size(free_bytes)}" for device, free_bytes in free)
    kinds = {work.registration for work in run.settings.collectives} - {Registration.NONE}
    buffers = ("three", "five", "seven")[len(kinds)]  # source, send, target; send and target of each kind
    return f"free now: {amounts}, shared by {buffers} buffers plus those of NCCL"


_ABSENT = {
    AbsenceKind.FAILED: "failed",
    AbsenceKind.SKIPPED: "skipped",
    AbsenceKind.ONE_WAY: "measured one way only",
    AbsenceKind.SMALL: "small messages only",
    AbsenceKind.NOT_MEASURED: "not measured",
}


def ending(run: Run) -> str:
    """Return what became of a run that is incomplete: nobody interrupted one that wrong data ended."""
    return "ended by wrong data" if any(corruptions(run)) else "interrupted"


def absence(absent: Absence, run: Run) -> str:
    """Return why there is no figure, as a clause."""
    if absent.failure is not None:
        return failure(absent.failure, run.devices)
    if absent.skipped is not None:
        return skipped_reason(absent.skipped, run)
    if absent.kind is AbsenceKind.NOT_REACHED:
        return f"not measured: the run was {ending(run)}"
    if absent.kind is not AbsenceKind.FEW_TRIALS:
        return _ABSENT[absent.kind]
    if absent.needed is not None:
        return f"{absent.trials} of the {absent.needed} trials needed to estimate noise"
    return f"{amount(absent.trials, 'trial')} only"
