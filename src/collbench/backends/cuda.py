"""The GPUs through the native extension: copies by the driver API, collectives by NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources

from collbench import _native
from collbench.backends.protocol import Step, Timing
from collbench.dtypes import DTYPE_BYTES, REDOPS
from collbench.errors import BackendError, DataCorruption, MachineError, UsageError
from collbench.model import Device, Operation
from collbench.units import format_size

# ncclDataType_t and ncclRedOp_t [nccl.h 2.18.1].
_DTYPES = {
    name: value
    for value, name in enumerate(
        ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
    )
}
_COPIES = {  # operation: (by multiprocessors, the destination pulls)
    Operation.CE_WRITE: (False, False),
    Operation.CE_READ: (False, True),
    Operation.SM_WRITE: (True, False),
    Operation.SM_READ: (True, True),
}
_MIB = 2**20
# Twice the largest L2 that we know (H200: 60 MB, B200: 126 MB): rotating through it, no message is served by a cache.
_SMALLEST_BUFFER = 256 * _MIB
# NCCL's own buffers: about 10 MiB a channel and peer, up to 32 channels [NCCL docs, NCCL_BUFFSIZE = 4 MiB, in and out].
_ROOM_A_COMMUNICATOR = 512 * _MIB
_ROOM_FOR_CUDA = 256 * _MIB
_BUFFERS = 3  # source, send, target


class CudaBackend:
    """Times steps on GPUs. Positions are places in `devices`; CUDA's own order is matched by UUID."""

    name = "cuda"

    def __init__(self, devices: Sequence[Device], nccl: _native.Nccl | None) -> None:
        """Open the GPUs; `nccl` may be None when no collective will be timed. Raises MachineError."""
        self._devices = tuple(devices)
        self._images = kernel_images()
        with _explained("opening the GPUs"):
            self._gpus = _native.Gpus(_ordinals(devices), [image for _, image in self._images])
        self._peers = self._gpus.peer_access()
        self._collectives = _native.Collectives(self._gpus, nccl) if nccl else None
        self._free = tuple(self._gpus.free_bytes())

    @property
    def kernel_image(self) -> str:
        """The kernels that the driver accepted: "fatbin" or "ptx"."""
        return self._images[self._gpus.image][0]

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs by position."""
        return self._devices

    def copy_operations(self) -> tuple[Operation, ...]:
        """Return the four copies: copy engine and multiprocessors, written and read."""
        return tuple(_COPIES)

    def free_bytes(self) -> tuple[int, ...]:
        """Return each GPU's free memory in bytes when the backend was opened."""
        return self._free

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that fits every GPU three times, beside CUDA's and NCCL's own needs."""
        communicators = len(self._devices) if self._collectives else 0
        room = min(self._free) - _ROOM_FOR_CUDA - communicators * _ROOM_A_COMMUNICATOR
        return max(0, room // _BUFFERS - 2 * 256)

    def reserve(self, largest_bytes: int) -> None:
        """Allocate the buffers for messages of up to `largest_bytes`; once, before the first step."""
        with _explained(f"allocating buffers for {format_size(largest_bytes)} messages"):
            self._gpus.allocate(max(largest_bytes, min(_SMALLEST_BUFFER, self.capacity_bytes())))

    def can_copy(self, operation: Operation, src: int, dst: int) -> str | None:
        """Return why this link cannot carry the copy: a kernel needs peer access, the copy engine does not."""
        multiprocessors, pull = _COPIES[operation]
        issuer, other = (dst, src) if pull else (src, dst)
        if multiprocessors and not self._peers[issuer][other]:
            return "no peer access, so a kernel cannot address the other GPU's memory"
        return None

    def time_copies(self, step: Step) -> Timing:
        """Time copies on disjoint links. Raises DataCorruption, BackendError."""
        multiprocessors, pull = _COPIES[step.operation]
        with _explained(f"{step.operation} of {format_size(step.size_bytes)}", self._devices, step):
            seconds = self._gpus.time_copies(
                links=list(step.groups),
                multiprocessors=multiprocessors,
                pull=pull,
                bytes=step.size_bytes,
                shift=0,
                iterations=step.iterations,
                blocks=step.blocks,
                warmup=step.warmup,
            )
        return Timing(tuple(tuple(blocks) for blocks in seconds))

    def time_collective(self, step: Step) -> Timing:
        """Time a collective on disjoint groups. Raises DataCorruption, BackendError."""
        if self._collectives is None:
            raise BackendError(f"{step.operation} was asked for, but the backend was opened without NCCL")
        if step.dtype not in _DTYPES:
            raise UsageError(f"NCCL has no dtype '{step.dtype}'")
        with _explained(f"{step.operation} of {format_size(step.size_bytes)}", self._devices, step):
            seconds, launches = self._collectives.time(
                groups=[list(group) for group in step.groups],
                broadcast=step.operation is Operation.BROADCAST,
                dtype=_DTYPES[step.dtype],
                reduction=REDOPS.index(step.redop),
                root=step.root,
                count=step.size_bytes // DTYPE_BYTES[step.dtype],
                width=DTYPE_BYTES[step.dtype],
                iterations=step.iterations,
                blocks=step.blocks,
                warmup=step.warmup,
                launch_iterations=step.iterations if step.launch_loop else 0,
            )
        return Timing(tuple(tuple(blocks) for blocks in seconds), tuple(launches))

    def close(self) -> None:
        """Do nothing: the driver takes back memory, contexts and communicators when the process ends.

        Destroying communicators here would cost 0.5–1.0 s a round [METHOD.md §3, 4×H200] and give the user nothing.
        """


def list_gpus() -> list[_native.GpuIdentity]:
    """Return the GPUs that CUDA shows to this process, in its order. Raises MachineError without a driver."""
    with _explained("listing the GPUs"):
        return _native.list_gpus()


def kernel_images() -> list[tuple[str, bytes]]:
    """Return the device code in the order to try: the fatbin if the installation built one, then the shipped PTX."""
    folder = resources.files("collbench") / "kernels"
    files = ((name, folder / f"kernels.{name}") for name in ("fatbin", "ptx"))
    # cuModuleLoadData reads PTX as a C string, so it must end in a zero byte.
    return [(name, file.read_bytes() + b"\0") for name, file in files if file.is_file()]


def _ordinals(devices: Sequence[Device]) -> list[int]:
    by_uuid = {gpu.uuid: gpu.ordinal for gpu in list_gpus()}
    hidden = [f"GPU{device.index}" for device in devices if device.uuid not in by_uuid]
    if hidden:
        raise MachineError(
            f"CUDA does not show {', '.join(hidden)} to this process: check CUDA_VISIBLE_DEVICES and MIG mode"
        )
    return [by_uuid[device.uuid] for device in devices]


@contextmanager
def _explained(doing: str, devices: Sequence[Device] = (), step: Step | None = None) -> Iterator[None]:
    """Turn native exceptions into collbench's, with what was attempted and where."""
    where = ""
    if step is not None:
        where = " on " + ", ".join("-".join(f"GPU{devices[m].index}" for m in group) for group in step.groups)
    try:
        yield
    except _native.DataError as error:
        raise DataCorruption(_describe_wrong(error, devices, step) if step else str(error)) from error
    except _native.LibraryError as error:
        raise MachineError(str(error)) from error
    except (_native.CudaError, _native.NcclError, _native.HangError) as error:
        raise BackendError(f"{doing}{where} failed: {error}") from error


def _describe_wrong(error: _native.DataError, devices: Sequence[Device], step: Step) -> str:
    group = step.groups[error.group]
    names = [f"GPU{devices[member].index}" for member in group]
    where = (
        f"link {names[0]} → {names[1]}" if step.operation.is_copy else f"{names[error.rank]} among {', '.join(names)}"
    )
    return (
        f"wrong data: {step.operation} of {format_size(step.size_bytes)}, {where}: {error.wrong} wrong, the first at "
        f"byte {error.offset}: expected {error.expected:g}, found {error.found:g}. Do not train over this link; "
        "IOMMU or ACS settings are the usual cause"
    )
