"""Native exceptions as collbench's, with what was attempted, on what, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from collbench import _native
from collbench.backends.protocol import Step
from collbench.errors import DataCorruption, FailureKind, MachineError, PeerLost, StepFailed
from collbench.model import Device
from collbench.operations import Variant
from collbench.units import format_size

_REMOTE_ERROR = 6  # ncclRemoteError [nccl.h]: "remote process exited or there was a network error"


@contextmanager
def explained(
    doing: str, devices: Sequence[Device] = (), step: Step | None = None, ours: Sequence[Device] = ()
) -> Iterator[None]:
    """Turn native exceptions into collbench's. What a GPU, NCCL or the kernel refuses costs the step: StepFailed.

    `devices` are those that the step names, `ours` those that this process has opened: the failing one is named.
    """
    where = ""
    if step is not None:
        where = " on " + ", ".join("-".join(devices[m].tag for m in group) for group in step.groups)
    try:
        yield
    except _native.DataError as error:
        if step is None:
            raise DataCorruption(str(error)) from error
        raise DataCorruption(_describe_wrong(error, devices, step), _place(error, step)) from error
    except _native.LibraryError as error:
        raise MachineError(str(error)) from error
    except (_native.CudaError, _native.NcclError, _native.HangError, _native.PolicyError) as error:
        failed = PeerLost if isinstance(error, _native.NcclError) and error.code == _REMOTE_ERROR else StepFailed
        kind = FailureKind.HANG if isinstance(error, _native.HangError) else FailureKind.ERROR
        at = f" on {ours[error.position].tag}" if 0 <= error.position < len(ours) else ""
        raise failed(f"{doing}{where} failed{at}: {error}", kind) from error


def _place(error: _native.DataError, step: Step) -> tuple[int, ...]:
    """Return the positions that wrong data was between; of a collective the rank that found it comes first."""
    group = step.groups[error.group]
    if not step.operation.is_collective:
        return group
    finder = group[error.rank]
    return (finder, *(member for member in group if member != finder))


def _describe_wrong(error: _native.DataError, devices: Sequence[Device], step: Step) -> str:
    names = [devices[member].tag for member in step.groups[error.group]]
    if step.operation.is_collective:
        where = f"{names[error.rank]} among {', '.join(names)}"
    elif step.variant is Variant.HOST:
        where = f"link between {names[0]} and host memory"
    else:
        where = f"link {names[0]} → {', '.join(names[1:])}"
    return (
        f"wrong data: {step.work} of {format_size(step.size_bytes)}, {where}: {error.wrong} wrong, the first at "
        f"byte {error.offset}: expected {error.expected:g}, found {error.found:g}. Do not train over this link; "
        "IOMMU or ACS settings are the usual cause"
    )
