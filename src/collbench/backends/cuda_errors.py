"""Native exceptions as collbench's, with what was attempted, on what, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from collbench import _native
from collbench.backends.protocol import Step
from collbench.errors import DataCorruption, MachineError, StepFailed
from collbench.model import Device
from collbench.operations import Variant
from collbench.units import format_size


@contextmanager
def explained(doing: str, devices: Sequence[Device] = (), step: Step | None = None) -> Iterator[None]:
    """Turn native exceptions into collbench's. What a GPU, NCCL or the kernel refuses costs the step: StepFailed."""
    where = ""
    if step is not None:
        where = " on " + ", ".join("-".join(devices[m].tag for m in group) for group in step.groups)
    try:
        yield
    except _native.DataError as error:
        raise DataCorruption(_describe_wrong(error, devices, step) if step else str(error)) from error
    except _native.LibraryError as error:
        raise MachineError(str(error)) from error
    except (_native.CudaError, _native.NcclError, _native.HangError, _native.PolicyError) as error:
        raise StepFailed(f"{doing}{where} failed: {error}") from error


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
