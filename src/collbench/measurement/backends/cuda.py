"""The GPUs through the native extension: copies by the driver API, collectives by NCCL; errors with their fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib import resources

from collbench import _native
from collbench.machine.kernel import usable_nodes
from collbench.measurement.backends.child_process import Background
from collbench.measurement.backends.protocol import (
    LONGEST_BATCH_S,
    Backend,
    BackendFacts,
    Open,
    Step,
    Timing,
    VerifiedBytes,
)
from collbench.model.errors import (
    BackendError,
    Cause,
    DataCorruption,
    Failure,
    FailureKind,
    MachineError,
    PeerLost,
    StepFailed,
    UsageError,
    WrongData,
)
from collbench.model.operations import Endpoints, Operation, Variant, Work, format_version
from collbench.model.run import NO_PEERS, Device, RankLaunches, SkipKind, Skipped
from collbench.model.units import DTYPE_BYTES, format_size

# Native exceptions as collbench's, with what was attempted, on what, and what to do next.

_REMOTE_ERROR = 6  # ncclRemoteError [nccl.h]: "remote process exited or there was a network error"


@contextmanager
def explained(
    doing: str,
    cause: Cause,
    devices: Sequence[Device] = (),
    step: Step | None = None,
    ours: Sequence[Device] = (),
) -> Iterator[None]:
    """Translate native exceptions into collbench's. An error of a GPU, NCCL or the kernel costs the step: StepFailed.

    `cause` is the failure's. `devices` are all devices by position, `ours` the positions that this process has opened:
    the message names the failing one.
    """
    where = ""
    if step is not None:
        where = " on " + ", ".join("-".join(devices[m].tag for m in group) for group in step.groups)
    try:
        yield
    except _native.DataError as error:
        if step is None:
            raise DataCorruption(str(error)) from error
        raise DataCorruption(wrong=_wrong(error, step)) from error
    except _native.LibraryError as error:
        raise MachineError(str(error)) from error
    except (_native.CudaError, _native.NcclError, _native.HangError, _native.PolicyError) as error:
        failed = PeerLost if isinstance(error, _native.NcclError) and error.code == _REMOTE_ERROR else StepFailed
        device = ours[error.position] if 0 <= error.position < len(ours) else None
        failure = Failure(
            kind=FailureKind.HANG if isinstance(error, _native.HangError) else FailureKind.ERROR,
            cause=cause,
            devices=(devices.index(device),) if device is not None else (),
            work=step.work if step else None,
            size_bytes=step.size_bytes if step else None,
            groups=step.groups if step else (),
            detail=str(error),
        )
        at = f" on {device.tag}" if device is not None else ""
        raise failed(f"{doing}{where} failed{at}: {error}", failure=failure) from error


def _wrong(error: _native.DataError, step: Step) -> WrongData:
    members = _copying(step)[error.group]
    if step.work.operation.is_collective:
        finder = members[error.rank]
        members = (finder, *(member for member in members if member != finder))
    return WrongData(step.work, step.size_bytes, members, error.wrong, error.offset, error.expected, error.found)


# The backend.

# A native transfer's position for pinned host memory (csrc/host_memory.hpp): -1 anywhere, -2 - n on NUMA node n.
_HOST, _HOST_NODE_0 = -1, -2


# Copies that the destination issues: the GPU reads. Host memory issues none.
_PULLED = {Operation.CE_READ, Operation.SM_READ, Operation.H2D_CE, Operation.H2D_SM}
# Warm-up calls of the launch loop, as in nccl-tests (-w) [src/common.cu].
_LAUNCH_WARMUP = 5
_MIB = 2**20
# Twice the largest L2 that we know (H200: 60 MB, B200: 126 MB): no cache serves messages that rotate through it.
_SMALLEST_BUFFER = 256 * _MIB
# Where four times as much fits, there is room for more messages of a batch, and each is verified. By arithmetic, not
# measured: 0.3 ms to poison and 0.3 ms to compare at 3 TB/s, beside 2.5 ms to copy at 400 GB/s.
_ROOMY_BUFFER, _ROOMY_SHARE = 2**30, 4
# NCCL's own buffers: about 10 MiB a channel and peer, up to 32 channels [NCCL docs, NCCL_BUFFSIZE = 4 MiB, in and out].
# A GPU is in one for the world and one for each pair of its own. Where a launch loop is timed, each of those except the
# world has a second one, which also fits at the 24 channels that NCCL has on H200.
_ROOM_A_COMMUNICATOR = 512 * _MIB
_ROOM_FOR_CUDA = 256 * _MIB
_BUFFERS = 3  # source, send, target
_REGISTERED_BUFFERS = 2  # send and target again, for each kind of registration
# What csrc/gpus.cpp (buffer_for) adds to a message: for displacements and what is not measured.
_ROOM_IN_A_BUFFER = (16 + 1) * 256
_WORD = 8  # bytes that an access of the pointer chase reads


class CudaBackend(Backend):
    """Times steps on GPUs. Positions are indices of `devices`; CUDA's order is matched by UUID."""

    name = "cuda"

    def __init__(self, opening: Open, find_nccl: Callable[[], _native.Nccl] | None) -> None:
        """Open the GPUs, and meanwhile call `find_nccl`, None if no collective will be timed. Raises MachineError."""
        self._devices, world = opening.devices, opening.world
        self._ours = self._devices if world is None else (self._devices[world.position],)
        # NCCL's rank of each position.
        self._ranks = {at: rank for rank, at in enumerate(world.positions if world else range(len(self._devices)))}
        # Loading NCCL's library takes 0.1 s, in which nothing else can load: all modules are loaded before it begins.
        ordinals, ptx = _ordinals(self._ours), shipped_ptx()
        loading = Background(find_nccl) if find_nccl else None
        with explained("opening the GPUs", Cause.NOT_OPENED, self._devices, ours=self._ours):
            self._gpus = _native.Gpus(ordinals, ptx, opening.peers)
        self._peers, self._refused = self._gpus.peer_access(), self._gpus.peer_refusals()
        self._largest_cache = max(self._gpus.cache_bytes)
        membership = (world.rank, len(world.positions), world.unique_id) if world else (0, 0, b"")
        self._opening, self._alone = opening, world is None
        self._nccl = loading.result() if loading else None
        self._collectives = _native.Collectives(self._gpus, self._nccl, *membership) if self._nccl else None
        self._free = tuple(self._gpus.free_bytes())
        # Asked once for each node: later our own buffers have taken what was free.
        self._node_refusal = cache(lambda node: _native.node_memory_refusal(node, len(self._ours)))
        # Pinning takes 0.1 to 0.2 s for each of a GPU's two buffers of 256 MiB: it happens while NCCL starts. What
        # `can_run` was asked for is pinned by `reserve`; no step runs meanwhile.
        self._host_links: set[tuple[int, int]] = set()
        self._pinning: Background[None] | None = None

    def facts(self) -> BackendFacts:
        """Return what opening found. In a world, whose ranks open a GPU each, no peers are known."""
        whole = len(self._peers) == len(self._devices)
        return BackendFacts(
            self._free,
            self.capacity_bytes(),
            kernel_image="ptx",  # what the driver compiles; runs before 2026-11-22 may say "fatbin"
            nccl=format_version(self._nccl.version) if self._nccl else "",
            nccl_path=self._nccl.path if self._nccl else "",
            multicast=all(self._gpus.multicast_supported),
            peers=tuple(map(tuple, self._peers)) if whole else (),
        )

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs by position."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return what GPUs time in this variant: copies by either engine, written and read, and the pointer chase."""
        return variant.gpu_operations

    def free_bytes(self) -> tuple[int, ...]:
        """Return each GPU's free memory in bytes when the backend was opened."""
        return self._free

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that fits every GPU's buffers, beside CUDA's and NCCL's own needs."""
        communicators = len(self._ranks) if self._collectives else 0
        room = min(self._free) - _ROOM_FOR_CUDA - communicators * _ROOM_A_COMMUNICATOR
        buffers = _BUFFERS + _REGISTERED_BUFFERS * self._opening.registrations
        return max(0, room // buffers - _ROOM_IN_A_BUFFER)

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes that this process may use."""
        return usable_nodes()

    def reserve(self, largest_bytes: int) -> None:
        """Allocate the buffers for messages of up to `largest_bytes`; once, before the first step."""
        with explained(f"allocating buffers for {format_size(largest_bytes)} messages", Cause.NO_BUFFERS):
            capacity = self.capacity_bytes()
            roomy = min(_ROOMY_BUFFER, capacity // _ROOMY_SHARE)
            own = max(min(_SMALLEST_BUFFER, capacity), roomy)
            # Windows have one size on all ranks, and a message the same slot, which decides its data. Ranks in other
            # processes do not know what this GPU has room for.
            whole = max(largest_bytes, own if self._alone else _SMALLEST_BUFFER)
            # Pinning took 5 s for the 8 GiB of two H100s. So a batch of host copies has fewer slots, and fewer of its
            # messages are verified: 4 of 8 at 64 MiB.
            self._gpus.allocate(whole, max(largest_bytes, _SMALLEST_BUFFER))
        if self._host_links and largest_bytes <= _SMALLEST_BUFFER:  # else the first step would wait too long for all
            self._pinning = Background(partial(self._gpus.pin_host, sorted(self._host_links)))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        """Return why these GPUs cannot run it: a kernel needs peer access, the copy engine does not.

        Where the driver called access possible and then refused it, the copy engine would be timed through host memory
        under the name of peer access.
        """
        if work.numa_node is not None:
            refusal = self._node_refusal(work.numa_node)
            if refusal:
                return Skipped(SkipKind.NUMA, detail=refusal)
        if work.variant.host_memory and work.operation is not Operation.CHASE:
            self._host_links.update(self._transfers(work, members))
        if work.variant.endpoints is Endpoints.DEVICE or work.variant.host_memory or work.variant is Variant.STAGED:
            return None
        by_engine = work.operation.is_copy and not work.operation.by_kernel  # a pointer chase lists its reader first
        for transfer in _transfers(work, members):
            issuer, far = transfer[::-1] if work.operation in _PULLED else transfer
            if refused := self._refused.get((issuer, far)):
                return Skipped(SkipKind.PEERS_REFUSED, detail=refused)
            if not by_engine and not self._peers[issuer][far]:
                return NO_PEERS
        # From a cache, reads would not cross the link: 64 MiB in L2 were read at 3,350 GB/s on an H200.
        room = min(self.capacity_bytes(), _SMALLEST_BUFFER)
        cached = work.operation is Operation.SM_READ and room < 2 * self._largest_cache
        return Skipped(SkipKind.CACHE, limit_bytes=room) if cached else None

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Make the communicator of all ranks, and the groups' ones. Raises StepFailed."""
        if self._collectives is not None:
            with explained("making NCCL communicators", Cause.NO_COMMUNICATOR, self._devices, ours=self._ours):
                self._collectives.prepare(self._by_rank(groups))

    def time(self, step: Step) -> Timing:
        """Time a step; repeat it once if the host was late, for example stopped. Raises DataCorruption, StepFailed.

        Raises UsageError for what NCCL lacks.
        """
        if self._pinning is not None:  # the copy that needs what could not be pinned tries again, and says why
            self._pinning.stand_by(math.inf)
            self._pinning = None
        doing = f"{step.work} of {format_size(step.size_bytes)}"
        with explained(doing, Cause.REFUSED, self._devices, step, self._ours):
            try:
                return self._timed(step)
            except _native.LateError:
                if not self._alone:  # the other ranks do not repeat it
                    raise
                return self._timed(step)

    def _timed(self, step: Step) -> Timing:
        if step.work.operation.is_collective:
            return self._collective(step)
        return self._chase(step) if step.work.operation is Operation.CHASE else self._copy(step)

    def _copy(self, step: Step) -> Timing:
        operation, engines = step.work.operation, _native.Engine
        times = self._gpus.time_copies(
            _native.CopyRound(
                groups=[self._transfers(step.work, group) for group in _copying(step)],
                engine=engines.multiprocessors if operation.by_kernel else engines.copy_engine,
                pull=operation in _PULLED,
                bytes=step.size_bytes,
                iterations=step.iterations,
                batches=step.batches,
                warmup=step.warmup,
                deadline=self._opening.copies_s,
                covered=step.work.variant.covered,
            )
        )
        timed = len(step.groups)
        uncovered = (None if position < 0 else position for position in times.uncovered[:timed])
        return Timing(_by_group(times)[:timed], coverage=_coverage(times)[:timed], uncovered=tuple(uncovered))

    def _transfers(self, work: Work, members: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return a group's transfers; where no NUMA node is named, all-device copies use each GPU's own node."""
        if work.numa_node is None and work.variant.at_once:
            work = replace(work, numa_node=self._own_nodes[members[0]])
        return _transfers(work, members)

    @cached_property
    def _own_nodes(self) -> tuple[int | None, ...]:
        """Return each GPU's NUMA node; None if there is only one, it is not known, or its memory is refused."""
        nodes = usable_nodes()
        if len(nodes) < 2 or any(map(self._node_refusal, nodes)):
            nodes = ()
        return tuple(device.numa_node if device.numa_node in nodes else None for device in self._devices)

    def _chase(self, step: Step) -> Timing:
        """Time pointer chases. The end of each batch verifies all of its reads: one wrong pointer ends elsewhere."""
        seconds = self._gpus.time_chase(
            _native.ChaseRound(
                links=[transfer for group in step.groups for transfer in _transfers(step.work, group)],
                accesses=step.iterations,
                batches=step.batches,
                warmup=step.warmup,
                deadline=LONGEST_BATCH_S,
            )
        )
        read = step.iterations * (step.batches + step.warmup) * _WORD
        return Timing(tuple(map(tuple, seconds)), coverage=(VerifiedBytes(read, read),) * len(step.groups))

    def _collective(self, step: Step) -> Timing:
        """Time a collective on disjoint groups."""
        if self._collectives is None:
            raise BackendError(f"{step.work.operation} was asked for, but the backend was opened without NCCL")
        if step.dtype not in _native.Dtype.__members__:
            raise UsageError(f"NCCL has no dtype '{step.dtype}'")
        plain = [spans_hosts(self._devices, group) for group in step.groups]
        times = self._collectives.time(
            _native.CollectiveRound(
                groups=self._by_rank(step.groups),
                operation=_native.Collective.__members__[step.work.operation],
                dtype=_native.Dtype.__members__[step.dtype],
                reduction=_native.Reduction.__members__[step.redop],
                root=step.root,
                count=step.size_bytes // DTYPE_BYTES[step.dtype],
                in_place=step.work.variant is Variant.IN_PLACE,
                verify=step.verify,
                iterations=step.iterations,
                batches=step.batches,
                warmup=step.warmup,
                launch_iterations=step.launches,
                launch_warmup=_LAUNCH_WARMUP,
                deadline=LONGEST_BATCH_S,
                single_launches=step.singles,
                registration=_native.Registration.__members__[step.work.registration],
                blocks=[block // DTYPE_BYTES[step.dtype] for row in step.blocks for block in row],
                plain=plain,
            )
        )
        return Timing(
            _by_group(times),
            tuple(times.launch_seconds),
            _coverage(times),
            _singles(times, step),
            tuple(plain) if any(plain) else (),
            tuple((tuple(own[step.warmup :]),) if own else () for own in times.waits),
        )

    def _by_rank(self, groups: Sequence[tuple[int, ...]]) -> list[list[int]]:
        return [[self._ranks[member] for member in group] for group in groups]

    # No `close`: the driver takes back memory, contexts and communicators when the process ends. Destroying the
    # communicators would cost 0.5–1.0 s a round [docs/method/collectives.md 1, 4×H200] and gain nothing.


def spans_hosts(devices: Sequence[Device], group: Sequence[int]) -> bool:
    """Return whether a group's devices are of several hosts, as NCCL sees them (docs/method/collectives.md 2)."""
    return len({devices[member].host for member in group}) > 1


def list_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that CUDA shows to this process, in its order. Raises MachineError."""
    with explained("listing the GPUs", Cause.NOT_OPENED):
        return tuple(_native.list_gpus())


def shipped_ptx() -> bytes:
    """Return the device code that every installation has."""
    ptx = resources.files("collbench") / "kernels" / "kernels.ptx"
    return ptx.read_bytes() + b"\0"  # cuModuleLoadData reads a C string


def _by_group(times: _native.Times) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, times.seconds))


def _coverage(times: _native.Times) -> tuple[VerifiedBytes, ...]:
    return tuple(VerifiedBytes(part.moved, part.verified) for part in times.coverage)


def _singles(times: _native.CollectiveTimes, step: Step) -> tuple[tuple[RankLaunches, ...], ...]:
    """Return the single launches of this process's ranks, by group and in their order."""
    if not step.singles:
        return ()
    ranks: list[list[RankLaunches]] = [[] for _ in step.groups]
    for rank in sorted(times.singles, key=lambda launches: launches.rank):
        ranks[rank.group].append(
            RankLaunches(tuple(rank.arrived), tuple(rank.left), rank.cost, rank.uncertainty, rank.step)
        )
    return tuple(map(tuple, ranks))


def _ordinals(devices: Sequence[Device]) -> list[int]:
    shown = list_gpus()
    hidden = [device.tag for device in devices if device.uuid not in shown]
    if hidden:
        raise MachineError(
            f"CUDA does not show {', '.join(hidden)} to this process: check CUDA_VISIBLE_DEVICES and MIG mode"
        )
    return [shown.index(device.uuid) for device in devices]


def _copying(step: Step) -> list[tuple[int, ...]]:
    """Return the members of every group that runs: the step's, and those of the devices that it names as busy.

    The first member of a group is the device that copies.
    """
    if not step.work.variant.covered:
        return list(step.groups)
    timed = {group[0] for group in step.groups}
    busy = dict.fromkeys(device for group in step.groups for device in group if device not in timed)
    return [*step.groups, *((device, *sorted((timed | busy.keys()) - {device})) for device in busy)]


def _transfers(work: Work, members: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return a group's transfers as the extension takes them.

    With host memory they are those of the first member: each other one has a group of its own (`_copying`).
    """
    host = _HOST if work.numa_node is None else _HOST_NODE_0 - work.numa_node

    def position(end: int | None) -> int:
        return host if end is None else end

    return [(position(src), position(dst)) for src, dst in work.transfers(members)]
