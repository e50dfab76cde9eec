"""What was asked for, and the plan that this machine can do of it; the rest is skipped by name and reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collbench.backends.protocol import Backend
from collbench.dtypes import DTYPE_BYTES, whole_blocks, whole_elements
from collbench.errors import UsageError
from collbench.measure.blocks import block_bytes
from collbench.measure.effort import EFFORTS, Effort
from collbench.measure.plan import Members, Plan, directed_links, side_by_side, unordered_pairs
from collbench.model import Device, SkipKind, Skipped
from collbench.operations import Operation, Variant, Work
from collbench.units import format_approximate_size, format_size

# As nccl-tests: -n 20.
_LAUNCHES = 20
_SHORTEST_BUDGET = 1.0
# A copy of this size shows what a host link carries: at 55 GB/s (PCIe gen 5) it takes 1.2 ms, its start some µs. Larger
# ones would pin as much host memory on every NUMA node for every GPU (host_memory.cpp), which everybody then lacks.
_LARGEST_ON_A_NODE = 64 * 2**20
# METHOD.md §6: finalists are compared by at least six visits each.
_VISITS_OF_SETS = 6
QUICK_SIZES = (8, 2**16, 2**20, 2**26, 2**28)  # of both tables below


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure. `sizes` None takes the backend's default; `backend` is "cuda", "host" or "sim".

    `copies` lists how raw copies run, `chase` adds the pointer chase. `collectives` run on all devices at once, on
    each pair (`pairs`), on `split` disjoint sets at the same time, or on these `sets` of equal size, which may
    overlap: each alone, all in turn, at least six visits. `alone`: no link or pair beside another one. `launches`
    times the ungraphed loop too. `iterations`, `warmup`, `precision` and `budget_seconds` None leave the choice to
    the method. `algorithms` asks NCCL afterwards what it chose, in a process of its own. `fabric` names the machine
    of the sim backend, or its file. `resume` goes on with the run that is saved, `force` replaces another file.
    """

    backend: str
    devices: str | None
    sizes: tuple[int, ...] | None
    copies: tuple[Variant, ...]
    collectives: tuple[Work, ...]
    pairs: bool
    dtype: str
    redop: str
    nccl: str | None
    seed: int
    command: tuple[str, ...]
    chase: bool = False
    split: int = 1
    root: int = 0
    launches: bool = False
    iterations: int | None = None
    warmup: int | None = None
    verify: bool = True
    precision: float | None = None
    budget_seconds: float | None = None
    quick: bool = False
    resume: bool = False
    force: bool = False
    algorithms: bool = False
    sets: tuple[Members, ...] | None = None
    alone: bool = False
    fabric: str | None = None

    def effort(self) -> Effort:
        """Return how long to measure: the backend's own effort, and what was asked for instead."""
        own = EFFORTS[self.backend]
        budget = self.budget_seconds or (_SHORTEST_BUDGET if self.quick else own.budget_seconds)
        screening = max(own.screening, _VISITS_OF_SETS) if self.sets else own.screening
        return Effort(
            screening=screening,
            deciding=screening if self.quick else max(screening, own.deciding),
            budget_seconds=budget,
            block_bytes=own.block_bytes,
            longest_block_bytes=own.longest_block_bytes,
            rate=own.rate,
            precision=self.precision,
        )


def make_plan(request: Request, backend: Backend) -> tuple[Plan, list[Skipped]]:
    """Return what can be measured of the request, and what cannot, by name. Raises UsageError if nothing can."""
    devices = backend.devices()
    sizes, skipped = _fitting(_wanted_sizes(request), backend)
    groups: dict[Work, tuple[Members, ...]] = {}
    works: dict[Work, tuple[int, ...]] = {}
    nodes, refused = _nodes(request, backend)
    skipped += refused
    for work in _copies(request, backend, nodes):
        refusals = {members: backend.can_run(work, members) for members in _places(work.variant, len(devices))}
        groups[work] = tuple(members for members, refusal in refusals.items() if refusal is None)
        works[work], large = _copy_sizes(work, sizes, backend)
        skipped += large
        skipped += [
            Skipped(f"{work} {_name(devices, members)}", refusal.reason, refusal.kind, work, members)
            for members, refusal in refusals.items()
            if refusal
        ]
    for work in request.collectives:
        groups[work] = _sets(request, len(devices))
        works[work], small = _collective_sizes(work, sizes, request.dtype, len(groups[work][0]))
        skipped += small
    kept = {work: found for work, found in groups.items() if found and works[work]}
    if not kept:
        raise UsageError(f"nothing can be measured: {skipped[0].what}: {skipped[0].reason}" if skipped else "no work")
    return Plan(
        devices=len(devices),
        groups=kept,
        sizes={work: works[work] for work in kept},
        dtype=request.dtype,
        redop=request.redop,
        block_bytes=block_bytes(kept, works, len(devices), request.effort()),
        launches=(request.iterations or _LAUNCHES) if request.launches else 0,
        root=request.root,
        together=request.split > 1,
        isolated=frozenset((work, members) for work in kept for members in _isolated(request, groups[work])),
        iterations=request.iterations,
        warmup=request.warmup,
        verify=request.verify,
    ), list(dict.fromkeys(skipped))


def default_sizes(backend: str) -> tuple[int, ...]:
    """Return powers of two from 8 B to 1 GiB; to 64 MiB on the host backend, whose cores would take minutes."""
    return tuple(2**exponent for exponent in range(3, 27 if backend == "host" else 31))


def survey_sizes(backend: str) -> tuple[int, ...]:
    """Return the default sizes for every link of a machine: 8 B, and every second power of two from 64 B."""
    return (8, *(4**exponent for exponent in range(3, 14 if backend == "host" else 16)))


def _wanted_sizes(request: Request) -> tuple[int, ...]:
    if request.sizes is not None:
        return request.sizes
    sizes = survey_sizes(request.backend) if request.copies else default_sizes(request.backend)
    return tuple(size for size in sizes if not request.quick or size in QUICK_SIZES)


def _nodes(request: Request, backend: Backend) -> tuple[tuple[int | None, ...], list[Skipped]]:
    """Return the NUMA nodes whose memory host copies are timed with, (None,) where there is nothing to compare.

    So, too, where this process may not say where its memory lies; that is skipped by its reason.
    """
    nodes = backend.numa_nodes() if Variant.HOST in request.copies else ()
    if len(nodes) < 2:
        return (None,), []
    refusals = (backend.can_run(Work(Operation.H2D_CE, Variant.HOST, node), (0,)) for node in nodes)
    refusal = next(filter(None, refusals), None)
    if refusal is None:
        return nodes, []
    return (None,), [Skipped("host copies by NUMA node", refusal.reason, refusal.kind)]


def _copies(request: Request, backend: Backend, nodes: tuple[int | None, ...]) -> Iterator[Work]:
    for variant in request.copies:
        operations = [operation for operation in backend.operations(variant) if operation.is_copy]
        places = nodes if variant is Variant.HOST else (None,)
        yield from (Work(operation, variant, node) for operation in operations for node in places)
    if request.chase:
        yield from (
            Work(Operation.CHASE, variant)
            for variant in (Variant.PLAIN, Variant.HOST)
            if Operation.CHASE in backend.operations(variant)
        )


def _places(variant: Variant, n: int) -> tuple[Members, ...]:
    """Return the members that a copy of this variant runs on, among n devices."""
    if variant is Variant.HOST:
        return tuple((device,) for device in range(n))
    if variant is Variant.BOTH_WAYS:
        return unordered_pairs(n)
    if variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE):
        return tuple((one, *(other for other in range(n) if other != one)) for one in range(n))
    return directed_links(n)


def _sets(request: Request, n: int) -> tuple[Members, ...]:
    """Return the communicators' members: named sets, every pair, neighbours, or all devices. Raises UsageError."""
    if request.sets is not None:
        return _checked_sets(request.sets, n)
    if request.pairs:
        return unordered_pairs(n)
    size, rest = divmod(n, request.split)
    if rest or size < 2:
        raise UsageError(f"--split {request.split} of {n} devices: each set needs as many, and at least two")
    sets = tuple(tuple(range(first, first + size)) for first in range(0, n, size))
    if request.root >= size:
        raise UsageError(f"--root {request.root} is not a rank: {size} ranks count from 0 to {size - 1}")
    return sets


def _isolated(request: Request, groups: tuple[Members, ...]) -> tuple[Members, ...]:
    """Return what never runs beside others: finalists, which share GPUs and stand for jobs that run alone."""
    return groups if request.alone else request.sets or ()


def _checked_sets(sets: tuple[Members, ...], n: int) -> tuple[Members, ...]:
    """Return the sets. Raises UsageError where one has no two distinct devices, or another size than the first."""
    for members in sets:
        if not 2 <= len(set(members)) == len(members) == len(sets[0]) or not set(members) <= set(range(n)):
            raise UsageError(f"cannot compare the sets {sets}: each needs as many of the {n} devices, and at least two")
    return sets


def _collective_sizes(
    work: Work, sizes: tuple[int, ...], dtype: str, world_size: int
) -> tuple[tuple[int, ...], list[Skipped]]:
    """Return the sizes in whole elements and blocks, distinct and ascending, and those too small for any."""
    if work.operation.shares:
        rounded = {size: whole_blocks(size, world_size) for size in sizes}
        reason = f"smaller than 16 bytes for each of {world_size} ranks, as nccl-tests cuts blocks"
    else:
        rounded = {size: whole_elements(size, dtype) for size in sizes}
        reason = f"smaller than one {dtype}, which takes {DTYPE_BYTES[dtype]} bytes"
    small = ", ".join(format_size(size) for size, fit in rounded.items() if fit == 0)
    return tuple(sorted(set(rounded.values()) - {0})), [
        Skipped(f"{work} of {small}", reason, SkipKind.SIZE)
    ] if small else []


def _copy_sizes(work: Work, sizes: tuple[int, ...], backend: Backend) -> tuple[tuple[int, ...], list[Skipped]]:
    """Return the sizes that a copy or pointer chase is timed with, and those that it is not."""
    if work.operation is Operation.CHASE:
        return (8,), []
    if work.numa_node is None:
        return _side_by_side(work, sizes, backend)
    large = ", ".join(format_size(size) for size in sizes if size > _LARGEST_ON_A_NODE)
    if not large:
        return sizes, []
    most = format_size(_LARGEST_ON_A_NODE)
    fitting = tuple(size for size in sizes if size <= _LARGEST_ON_A_NODE) or (_LARGEST_ON_A_NODE,)
    reason = f"{most} is the most with the memory of each NUMA node, which larger messages would take too much of"
    return fitting, [Skipped(f"host copies of {large}", reason, SkipKind.SIZE)]


def _side_by_side(work: Work, sizes: tuple[int, ...], backend: Backend) -> tuple[tuple[int, ...], list[Skipped]]:
    """Return the sizes of which as many messages fit as lie in one buffer at a time."""
    messages = side_by_side(work, len(backend.devices()))
    fitting = tuple(size for size in sizes if size * messages <= backend.capacity_bytes())
    if fitting == sizes:
        return sizes, []
    large = ", ".join(format_size(size) for size in sizes if size not in fitting)
    room = format_approximate_size(backend.capacity_bytes())
    reason = f"{messages} messages at once do not fit the {room} of a buffer"
    return fitting, [Skipped(f"{work} of {large}", reason, SkipKind.ROOM)]


def _name(devices: tuple[Device, ...], members: Members) -> str:
    return " → ".join(devices[member].tag for member in members)


def _fitting(sizes: tuple[int, ...], backend: Backend) -> tuple[tuple[int, ...], list[Skipped]]:
    """Return the sizes that every device has room for; the others are skipped by name. Raises UsageError."""
    capacity = backend.capacity_bytes()
    fitting = tuple(size for size in sizes if size <= capacity)
    room = f"the fullest device has room for messages of {format_approximate_size(capacity)}"
    if not fitting:
        raise UsageError(f"size {format_size(sizes[0])} does not fit: {room}; {_free(backend)}")
    too_large = ", ".join(format_size(size) for size in sizes if size > capacity)
    reason = f"{room}; {_free(backend)}"
    return fitting, [Skipped(f"sizes {too_large}", reason, SkipKind.ROOM)] if too_large else []


def _free(backend: Backend) -> str:
    free = backend.free_bytes()
    if not free:
        return "half of the free memory is shared among source, target and gloo's buffers"
    names = (device.tag for device in backend.devices())
    amounts = ", ".join(f"{tag} {format_approximate_size(amount)}" for tag, amount in zip(names, free, strict=True))
    return f"free now: {amounts}, shared by three buffers beside NCCL's own"
