"""From a request to a plan: what a backend measures, in which rounds, with how many messages a batch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

from collbench import __version__
from collbench.measurement.backends.protocol import Backend, OpenDevices, Opened, Step
from collbench.model.errors import UsageError
from collbench.model.operations import (
    Endpoints,
    InPlace,
    Operation,
    Registration,
    Variant,
    Work,
    whole_blocks,
    whole_size,
)
from collbench.model.run import (
    Asked,
    CommandKind,
    DataPoint,
    Device,
    Layout,
    Members,
    Pair,
    Run,
    Settings,
    SkipKind,
    Skipped,
    capabilities,
)
from collbench.model.units import format_approximate_size, format_size, grouped, whole_elements


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When data points have enough trials, and how long their batches are.

    Every data point gets `screening` trials, those on which the choice of devices rests `deciding` ones. An unsettled
    data point then gets more until all have taken `budget_seconds`; it is settled at `precision`, None: at ±1% or ±3%
    (method/measuring.md 15). A batch of copies moves at least `batch_bytes`, and up to `longest_batch_bytes` if few
    data points leave time for it at about `rate` in B/s. Warming up a work ends after `warm_seconds`, but not before
    its first step. `around_faults`: wrong data and hangs cost the data points of their devices alone.
    """

    screening: int
    deciding: int
    budget_seconds: float
    batch_bytes: int
    longest_batch_bytes: int
    rate: float
    warm_seconds: float = math.inf
    precision: float | None = None
    around_faults: bool = False


# docs/method/measuring.md 15: three trials screen, at least five publish a tier; with seven the medians of six pairs on
# 4 × H200 stay within the 2% of a tie. Batches: on GPUs 128 MiB takes 0.34 ms at 400 GB/s, long against the event
# clock's 0.5 µs; cores are fifty times slower. The start and the end of a batch, in which nothing is copied, are 1%
# (copy engine) to 3% (kernels) of 128 MiB, and 0.3% of 1 GiB. nvbandwidth moves 16 messages: with as many, 8 GiB at
# 512 MiB, kernels' reads agree with it within 0.05%; with four they are 0.2% slower [2 × H200]. A simulated machine
# is measured as a real one, by its own clock.
_GPUS = StoppingRule(
    screening=3, deciding=7, budget_seconds=2.3, batch_bytes=128 * 2**20, longest_batch_bytes=16 * 2**30, rate=3e11
)
# Cores never settle to 1%: without an end their warm-up took 16 s, in which Ctrl-C finds nothing to save.
_CORES = StoppingRule(
    screening=3,
    deciding=7,
    budget_seconds=8.0,
    batch_bytes=4 * 2**20,
    longest_batch_bytes=4 * 2**20,
    rate=5e9,
    warm_seconds=0.5,
)


def default_stopping_rule(backend: str) -> StoppingRule:
    """Return the default rule on a backend's devices."""
    return _CORES if capabilities(backend).cores else _GPUS


# How many messages a batch holds: enough for the clock, few enough for many batches.

# docs/method/measuring.md 6: the queue behind a blocking kernel stays shallow. 20 is also nccl-tests' default (-n).
_MAX_MESSAGES = 20
# Copies that last microseconds: their launches cost more than the copies, so a batch holds a few less.
_MAX_SMALL, _SMALL_BELOW = 16, 2**20
# Where other copies cover a batch, as many messages again follow it (csrc/copies.hpp).
_MAX_COVERED = 14
# Their batches, and those of other copies with host memory and of local copies, have lengths of their own: a host link
# is ten times slower than an NVLink and a GPU's memory five times faster. 256 MiB take 4.9 ms at 55 GB/s (PCIe gen 5),
# 8 GiB take 4 ms at 2,080 GB/s, as nvbandwidth's 16 × 512 MiB do [2 × H200]; a batch's start and end are 10 µs.
_COVERED_BATCH_BYTES, _HOST_BATCH_BYTES, _LOCAL_BATCH_BYTES = 256 * 2**20, 512 * 2**20, 8 * 2**30
# Accesses of a pointer chase: 248 on each of an H200's 132 multiprocessors, 28 ms. Going from one multiprocessor to the
# next takes about as long as one access.
_CHASE_ACCESSES = 32768
# A chain of collectives ends when its last rank does, later than the root of a broadcast: in a chain of 2 × 64 MiB on
# 4 × H200 that drain was 15% of the time. So chains are longer than batches of copies, and those of many ranks, whose
# pipeline drains longer, hold four at least. A pair's largest messages take milliseconds each: one is enough.
_CHAIN_BATCHES = 2
_MIN_OF_MANY_RANKS = 4
_LONGEST_CHAIN = 32  # what the engine captures (collective_layout.cpp); a longer one shows no more
_SINGLE_FROM = 512 * 2**20


def iterations(work: Work, members: int, size_bytes: int, batch_bytes: int) -> int:
    """Return the messages of one batch that should move about `batch_bytes`; accesses for a pointer chase."""
    if work.operation is Operation.CHASE:
        return _CHASE_ACCESSES
    if not work.operation.is_collective:
        most = _MAX_SMALL if size_bytes < _SMALL_BELOW else _MAX_MESSAGES
        most = min(most, _MAX_COVERED) if work.variant.covered else most
        return max(1, min(most, -(-_own_batch_bytes(work, batch_bytes) // size_bytes)))
    fewest = _MIN_OF_MANY_RANKS if members > 2 else 1 if size_bytes >= _SINGLE_FROM else 2
    return max(fewest, min(_MAX_MESSAGES, -(-batch_bytes * _CHAIN_BATCHES // size_bytes)))


def _own_batch_bytes(work: Work, shared: int) -> int:
    if work.variant.covered:
        return _COVERED_BATCH_BYTES
    if work.variant.host_memory or work.variant is Variant.STAGED:
        return _HOST_BATCH_BYTES
    return _LOCAL_BATCH_BYTES if work.variant is Variant.LOCAL else shared


# How much a batch moves: as much as the time allows, because its start and end are then a smaller part.

# Verification, launches and extra trials need their share of the time too.
_SHARE = 0.45
# method/measuring.md 3: batches of one trial share what disturbs it, so more of them add little; trials are repeated.
BATCHES_A_TRIAL = 2


def batch_bytes(
    groups: Mapping[Work, Sequence[tuple[int, ...]]],
    sizes: Mapping[Work, Sequence[int]],
    devices: int,
    rule: StoppingRule,
) -> int:
    """Return the longest batch, from the rule's shortest by doubling, with which the plan's trials fit its time."""
    length = rule.batch_bytes
    while length * 2 <= rule.longest_batch_bytes:
        seconds = sum(
            _seconds(work, groups_of_work, sizes[work], devices, length * 2, rule.rate)
            for work, groups_of_work in groups.items()
            if _own_batch_bytes(work, length) == length
        )
        if seconds * rule.screening * BATCHES_A_TRIAL > _SHARE * rule.budget_seconds:
            break
        length *= 2
    return length


def _seconds(
    work: Work, groups: Sequence[tuple[int, ...]], sizes: Sequence[int], devices: int, length: int, rate: float
) -> float:
    """Return about how long one batch of every data point takes, disjoint pairs at once."""
    if work.operation is Operation.CHASE:
        return 0.0
    members = len(groups[0])
    at_once = max(1, devices // members) if members == 2 else 1
    moved = sum(size * iterations(work, members, size, length) for size in sizes)
    return moved / rate * len(groups) / at_once


# Pairs in rounds: every pair of devices once, disjoint pairs together.


def pair_rounds(n: int) -> list[list[Pair]]:
    """Return the circle method's rounds over devices 0 … n−1: n−1 rounds of n/2 pairs, or n rounds when n is odd.

    Each pair is (low, high). In an odd round one device rests.
    """
    positions: list[int | None] = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(positions) - 1):
        half = len(positions) // 2
        meetings = zip(positions[:half], reversed(positions[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in meetings if a is not None and b is not None])
        positions = [positions[0], positions[-1], *positions[1:-1]]  # all but the first rotate
    return rounds


def relabelled(rounds: Sequence[Sequence[Pair]], n: int, rng: random.Random) -> list[list[Pair]]:
    """Return the rounds with the devices renamed at random, so that other pairs run concurrently in each pass."""
    names = rng.sample(range(n), n)
    return [[(min(names[a], names[b]), max(names[a], names[b])) for a, b in pairs] for pairs in rounds]


# What to measure, as steps for a backend: every data point once a pass, disjoint groups together where that is trusted.


# From this size on no untimed batch comes before the timed ones: the backend wakes links and kernels for less time.
_SELF_WARMING = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """The data points of a sweep. `groups` are what each work runs on: directed links, pairs, single devices, or sets.

    `batch_bytes` is how much a batch moves. `launches` is how many ungraphed launches of each collective are timed in
    addition to its batches; `asked.latency` are timed one by one after the trials. `asked.iterations` and
    `asked.warmup`, if given, replace what a step would choose. `isolated` lists (work, members) that must never run
    concurrently with others.
    """

    devices: int
    groups: dict[Work, tuple[Members, ...]]
    sizes: dict[Work, tuple[int, ...]]
    batch_bytes: int
    asked: Asked
    launches: int = 0
    isolated: frozenset[tuple[Work, Members]] = frozenset()

    @property
    def together(self) -> bool:
        """Whether all groups of a collective run concurrently, as the user requested."""
        return self.asked.split > 1

    def points(self) -> Iterable[DataPoint]:
        """Return every data point, in a stable order."""
        for work, groups in self.groups.items():
            for members in groups:
                for size in self.sizes[work]:
                    yield point_of(work, members, size)

    def largest_bytes(self) -> int:
        """Return the bytes that a buffer needs: all to one has a message of each sender in the same buffer."""
        return max(side_by_side(work, self.devices) * sizes[-1] for work, sizes in self.sizes.items())

    def step(self, work: Work, groups: Sequence[Members], size: int, launches: int = 0) -> Step:
        """Return the step that measures these data points together."""
        asked = self.asked
        warmup = int(size < _SELF_WARMING) if asked.warmup is None else asked.warmup
        return Step(
            work,
            tuple(groups),
            size,
            # The launch loop makes all that the user asked for (-n).
            min(asked.iterations, _LONGEST_CHAIN)
            if asked.iterations
            else iterations(work, len(groups[0]), size, self.batch_bytes),
            BATCHES_A_TRIAL,
            warmup=warmup,
            dtype=asked.dtype,
            redop=asked.redop,
            root=asked.root,
            launches=launches,
            verify=asked.verify,
        )

    def deciding(self) -> set[DataPoint]:
        """Return the points on which the choice of devices rests: of the largest all-reduce, else the largest copy.

        Where it runs on a single pair, or for a model's layers, there is no choice.
        """
        allreduce = Work(Operation.ALLREDUCE)
        work = allreduce if allreduce in self.groups else next(iter(self.groups), None)
        if work is None or self.asked.layers or self.groups[work] == unordered_pairs(2):
            return set()
        return {point_of(work, members, self.sizes[work][-1]) for members in self.groups[work]}

    def passes(self, rng: random.Random, wanted: set[DataPoint]) -> list[Step]:
        """Return one pass: each wanted data point in exactly one step, steps in random order over the whole plan.

        Groups that the user wants concurrently stay together, even if only one of them needs another trial.
        """
        steps = []
        left = grouped((point.work, (point.size_bytes, point.members)) for point in wanted)
        for work in self.groups:
            launches = self.launches if work.operation.is_collective else 0
            inseparable = self.together and work.operation.is_collective
            sizes, of_work = self.sizes[work], set(left.get(work, ()))
            for together in self.rounds(work, rng):
                for size in sizes:
                    groups = [members for members in together if (size, members) in of_work]
                    if groups:
                        steps.append(self.step(work, together if inseparable else groups, size, launches))
        rng.shuffle(steps)
        return steps

    def rounds(self, work: Work, rng: random.Random) -> list[list[Members]]:
        """Return the work's groups in rounds: disjoint groups concurrently, isolated ones by themselves."""
        groups = self.groups[work]
        if (self.together and work.operation.is_collective) or work.variant.at_once:
            return [list(groups)]
        if runs_alone(work):
            return [[members] for members in groups]
        planned, isolated = set(groups), {members for members in groups if (work, members) in self.isolated}
        rounds: list[list[Members]] = []
        for pairs in relabelled(pair_rounds(self.devices), self.devices, rng):
            rounds.append([pair for pair in pairs if pair in planned])
            rounds.append([(b, a) for a, b in pairs if (b, a) in planned])
        rounds.extend([members] for members in groups if len(members) != 2)
        parts: list[list[Members]] = []
        for together in rounds:
            parts += [[members] for members in together if members in isolated]
            rest = [members for members in together if members not in isolated]
            parts += [rest] if rest else []
        return parts


def point_of(work: Work, members: Members, size_bytes: int) -> DataPoint:
    """Return the data point of a work on these members."""
    return DataPoint(work.operation, members, size_bytes, work.variant, work.numa_node, work.registration, work.skew)


def runs_alone(work: Work) -> bool:
    """Return whether a work's groups share resources, so that no two of them may run concurrently."""
    return work.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE, Variant.STAGED) or work.variant.host_memory


def side_by_side(work: Work, devices: int) -> int:
    """Return how many messages one buffer holds at a time, if a work runs on all devices."""
    return devices - 1 if work.variant is Variant.ALL_TO_ONE else 1


def directed_links(devices: int) -> tuple[Members, ...]:
    """Return every (src, dst) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(devices) if a != b)


def unordered_pairs(devices: int) -> tuple[Members, ...]:
    """Return every (low, high) of `devices` positions."""
    return tuple((a, b) for a in range(devices) for b in range(a + 1, devices))


# The request, and the part of it that this machine can measure; the rest is skipped by name and reason.

# The default of nccl-tests, -n 20.
_LAUNCHES = 20
_SHORTEST_BUDGET = 1.0
# A copy of this size shows what a host link carries: at 55 GB/s (PCIe gen 5) it takes 1.2 ms, its start some µs. Larger
# ones would pin as much host memory on every NUMA node for every GPU (host_memory.cpp), which other programs then lack.
_LARGEST_ON_A_NODE = 64 * 2**20
# docs/method/choosing.md 5: finalists are compared by at least six trials each.
_TRIALS_OF_SETS = 6
QUICK_SIZES = (8, 2**16, 2**20, 2**26, 2**28)  # of both tables below


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Asked):
    """What to measure. `sizes` None means the backend's default; `backend` is "cuda", "host" or "sim".

    `collectives` run on all devices, on each pair (`pairs`), on `split` disjoint sets concurrently, or on these `sets`
    of equal size, which may overlap: each isolated, in turn, at least six trials. With `layers` they run on the first
    2, 4, 8, … devices, and on all. `fabric` is the name or file of the sim backend's machine, `nccl` a library. `force`
    overwrites another file.
    `around_faults`: measuring goes on after wrong data and hangs, without the devices where they came.
    """

    dtype: str = "float32"
    redop: str = "sum"
    seed: int = 0
    command: tuple[str, ...] = ()
    backend: str
    devices: str | None = None
    sizes: tuple[int, ...] | None = None
    pairs: bool = False
    sets: tuple[Members, ...] | None = None
    nccl: str | None = None
    fabric: str | None = None
    force: bool = False
    around_faults: bool = False

    @property
    def fewest_devices(self) -> int:
        """How many devices it needs: one is enough for its host link and memory, if the backend copies with these."""
        if capabilities(self.backend).cores:
            return 2
        with_one = self.kind == CommandKind.COPIES and any(v.endpoints is Endpoints.DEVICE for v in self.copies)
        with_one |= self.kind == CommandKind.CHECK or (self.kind == CommandKind.LATENCY and not self.layers)
        return 1 if with_one else 2

    def on_one_device(self) -> Request:
        """Return what it asks of a single device: the host link and the memory in place of links to others."""
        if self.kind == CommandKind.LATENCY:
            return replace(self, copies=(Variant.HOST, Variant.LOCAL), collectives=(), launches=False)
        return replace(self, copies=(Variant.HOST,), collectives=()) if self.kind == CommandKind.CHECK else self

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """The kinds of registered memory that the collectives need."""
        kinds = {work.registration for work in self.collectives}
        return tuple(registration for registration in Registration if registration in kinds - {Registration.NONE})

    def supported_by(self, nccl: str) -> tuple[Request, list[Skipped]]:
        """Return the request without kinds of memory that this version of NCCL lacks ("" for no NCCL), and these.

        Raises UsageError for a kind that was asked for by name; `layers` need not have every kind.
        """
        why = {work: work.registration.lacking(nccl) if nccl else "" for work in self.collectives}
        skipped = [Skipped(SkipKind.OLD_NCCL, work, detail=f"it {reason}") for work, reason in why.items() if reason]
        if skipped and not self.layers:
            work, reason = next((work, reason) for work, reason in why.items() if reason)
            raise UsageError(
                f"--registration {work.registration} {reason}: leave it out, or name a newer library with --nccl PATH"
            )
        return replace(self, collectives=tuple(work for work, reason in why.items() if not reason)), skipped

    def stopping_rule(self) -> StoppingRule:
        """Return how long to measure: the backend's own rule, and what was asked for instead."""
        own = default_stopping_rule(self.backend)
        budget = self.budget_seconds or (_SHORTEST_BUDGET if self.quick else own.budget_seconds)
        screening = max(own.screening, _TRIALS_OF_SETS) if self.sets else own.screening
        return replace(
            own,
            screening=screening,
            deciding=screening if self.quick else max(screening, own.deciding),
            budget_seconds=budget,
            precision=self.precision,
            around_faults=self.around_faults,
        )


def device_words(wanted: str | None) -> tuple[str, ...]:
    """Return the words of --devices as a run's settings keep them; () if all devices were asked for."""
    return tuple(word.strip() for word in wanted.split(",")) if wanted else ()


def settings_of(
    request: Request,
    operations: tuple[Operation, ...],
    sizes: tuple[int, ...],
    trials: int,
    opened: Opened,
) -> Settings:
    """Return the settings that a run stores of its request and plan, on what was opened."""
    return Settings(
        operations=operations,
        sizes=sizes,
        trials=trials,
        environment=dict(opened.environment),
        processes=opened.processes,
        launcher=opened.launcher,
        devices=device_words(request.devices),
        requested_sizes=request.sizes,
        layout=_layout(request),
        sets=request.sets or (),
        fabric=request.fabric or "",
        **{field.name: getattr(request, field.name) for field in fields(Asked)},
    )


def _layout(request: Request) -> Layout:
    if request.sets is not None:
        return Layout.SETS
    if request.pairs:
        return Layout.PAIRS
    return Layout.SPLIT if request.split > 1 else Layout.ALL


def check_registrations(request: Request) -> None:
    """Raise UsageError if the request's backend has no NCCL to register memory with."""
    row = capabilities(request.backend)
    if request.registrations and not (row.nccl or row.simulated):
        raise UsageError(f"the {row.name} backend registers no memory: leave out --registration")


def make_plan(request: Request, backend: Backend) -> tuple[Plan, list[Skipped]]:
    """Return the plan of what can be measured, and what is skipped, by name. Raises UsageError if nothing can be."""
    devices = backend.devices()
    if len(devices) == 1:
        request = request.on_one_device()
    skipped: list[Skipped] = []
    sizes = _fitting(request.sizes or _own_sizes(request), backend, skipped)
    groups: dict[Work, tuple[Members, ...]] = {}
    works: dict[Work, tuple[int, ...]] = {}
    nodes = _nodes(request, backend, skipped)
    for work in _copies(request, backend, nodes):
        if len(devices) == 1 and work.variant.endpoints is not Endpoints.DEVICE:
            skipped.append(Skipped(SkipKind.ONE_DEVICE, work))
            continue
        works[work] = _copy_sizes(work, sizes, backend, skipped, on_nodes=work.variant.host_memory and len(nodes) > 1)
        refusals = {members: backend.can_run(work, members) for members in _device_sets(work.variant, len(devices))}
        groups[work] = tuple(members for members, refusal in refusals.items() if refusal is None)
        for members, refusal in refusals.items():
            if refusal:
                of_sizes = works[work] if refusal.kind is SkipKind.PEERS_REFUSED else ()
                skipped.append(replace(refusal, work=work, members=members, sizes=of_sizes))
    if request.latency and capabilities(request.backend).cores:
        raise UsageError(f"the {request.backend} backend cannot time single launches: leave out --latency")
    for work in request.collectives:
        if work.variant is Variant.IN_PLACE and work.operation.collective.in_place is InPlace.NONE:
            raise UsageError(f"{work.operation} cannot run in place: leave out --in-place")
        groups[work] = _sets(request, len(devices))
        works[work] = _collective_sizes(work, sizes, request.dtype, len(groups[work][0]), skipped)
    kept = {work: groups_of_work for work, groups_of_work in groups.items() if groups_of_work and works[work]}
    if not kept:
        raise UsageError(f"nothing can be measured{f': {skipped[0]}' if skipped else ''}")
    return Plan(
        devices=len(devices),
        groups=kept,
        sizes={work: works[work] for work in kept},
        batch_bytes=batch_bytes(kept, works, len(devices), request.stopping_rule()),
        asked=request,
        launches=(request.iterations or _LAUNCHES) if request.launches else 0,
        # Finalists share GPUs, and represent jobs that run alone.
        isolated=frozenset(
            (work, members) for work in kept for members in (groups[work] if request.isolated else request.sets or ())
        ),
    ), list(dict.fromkeys(skipped))


def _own_sizes(request: Request) -> tuple[int, ...]:
    """Return the sizes for a request that names none."""
    if own := {size for work in request.collectives if work.skew and (size := work.skew.own_bytes)}:
        return tuple(sorted(own))  # a matrix as it stands
    default = default_sizes(request.backend, of_links=bool(request.copies))
    return tuple(size for size in default if not request.quick or size in QUICK_SIZES)


def default_sizes(backend: str, *, of_links: bool = False) -> tuple[int, ...]:
    """Return powers of two from 8 B to 1 GiB; to 64 MiB on the host backend, whose cores would take minutes.

    For every link of a machine, `of_links`, these are 8 B, and every second power of two from 64 B.
    """
    sizes = (8, *(4**exponent for exponent in range(3, 30))) if of_links else (2**exponent for exponent in range(3, 60))
    largest = capabilities(backend).largest_bytes
    return tuple(size for size in sizes if size <= largest)


def _nodes(request: Request, backend: Backend, skipped: list[Skipped]) -> tuple[int | None, ...]:
    """Return the NUMA nodes whose memory host copies are timed with, (None,) if there is nothing to compare.

    Also (None,) if the memory of one cannot be chosen; that is skipped with its reason.
    """
    nodes = backend.numa_nodes() if any(variant.host_memory for variant in request.copies) else ()
    if len(nodes) < 2:
        return (None,)
    refusals = (backend.can_run(Work(Operation.H2D_CE, Variant.HOST, node), (0,)) for node in nodes)
    refusal = next(filter(None, refusals), None)
    if refusal is None:
        return nodes
    skipped.append(refusal)
    return (None,)


def _copies(request: Request, backend: Backend, nodes: tuple[int | None, ...]) -> Iterator[Work]:
    for variant in request.copies:
        operations = [operation for operation in backend.operations(variant) if operation.is_copy]
        there: tuple[int | None, ...] = nodes if variant.host_memory else (None,)
        if len(there) > 1 and variant.at_once:
            there = (None, *there)  # None: each device's own node
        yield from (Work(operation, variant, node) for operation in operations for node in there)
    if request.chase:
        yield from (
            Work(Operation.CHASE, variant)
            for variant in (Variant.PLAIN, Variant.HOST)
            if Operation.CHASE in backend.operations(variant)
        )


def _device_sets(variant: Variant, n: int) -> tuple[Members, ...]:
    """Return the members that a copy of this variant runs on, among n devices."""
    if variant.endpoints is Endpoints.DEVICE:
        return tuple((device,) for device in range(n))
    if variant.endpoints is Endpoints.PAIR:
        return unordered_pairs(n)
    if variant.endpoints is Endpoints.DEVICE_AND_OTHERS:
        return tuple((device, *(other for other in range(n) if other != device)) for device in range(n))
    return directed_links(n)


def _sets(request: Request, n: int) -> tuple[Members, ...]:
    """Return the communicators' members: named sets, every pair, neighbors, or all devices. Raises UsageError."""
    if request.sets is not None:
        return request.sets
    if request.layers:
        counts = {*(2**exponent for exponent in range(1, n.bit_length())), n}
        return tuple(tuple(range(count)) for count in sorted(counts))
    if request.pairs:
        return unordered_pairs(n)
    size, rest = divmod(n, request.split)
    if rest or size < 2:
        raise UsageError(f"--split {request.split} of {n} devices: equal sets of two or more devices are needed")
    sets = tuple(tuple(range(first, first + size)) for first in range(0, n, size))
    if request.root >= size:
        raise UsageError(f"--root {request.root} is not a rank: {size} ranks count from 0 to {size - 1}")
    return sets


def _collective_sizes(
    work: Work, sizes: tuple[int, ...], dtype: str, world_size: int, skipped: list[Skipped]
) -> tuple[int, ...]:
    """Return the sizes in whole elements and blocks, distinct and ascending; those too small for any are skipped."""
    left = Skipped(SkipKind.SMALL_BLOCK, work, count=world_size)
    if work.operation.irregular:
        try:
            rounded = {size: whole_size(work.skew, world_size, size) for size in sizes}
        except ValueError as error:
            raise UsageError(f"--skew: {error}") from error
    elif work.operation.shares:
        rounded = {size: whole_blocks(size, world_size) for size in sizes}
    else:
        rounded = {size: whole_elements(size, dtype) for size in sizes}
        left = Skipped(SkipKind.SMALL_ELEMENT, work)
    if small := tuple(size for size, fit in rounded.items() if fit == 0):
        skipped.append(replace(left, sizes=small))
    return tuple(sorted(set(rounded.values()) - {0}))


def _copy_sizes(
    work: Work, sizes: tuple[int, ...], backend: Backend, skipped: list[Skipped], *, on_nodes: bool
) -> tuple[int, ...]:
    """Return the sizes that a copy or pointer chase is timed with.

    `on_nodes`: its host memory lies on a NUMA node of our choice.
    """
    if work.operation is Operation.CHASE:
        return (8,)
    if on_nodes:
        limit = Skipped(SkipKind.NODE_LIMIT, limit_bytes=_LARGEST_ON_A_NODE)
        return _up_to(_LARGEST_ON_A_NODE, sizes, limit, skipped) or (_LARGEST_ON_A_NODE,)
    messages, room = side_by_side(work, len(backend.devices())), backend.capacity_bytes()  # in one buffer
    limit = Skipped(SkipKind.CONCURRENT_ROOM, work, limit_bytes=room, count=messages)
    return _up_to(room // messages, sizes, limit, skipped)


def _fitting(sizes: tuple[int, ...], backend: Backend, skipped: list[Skipped]) -> tuple[int, ...]:
    """Return the sizes that every device has room for. Raises UsageError if none is."""
    capacity = backend.capacity_bytes()
    free = backend.free_bytes()
    limit = Skipped(SkipKind.ROOM, limit_bytes=capacity, free_bytes=free)
    fitting = _up_to(capacity, sizes, limit, skipped)
    if not fitting:
        devices = zip(backend.devices(), free, strict=True) if free else ()
        amounts = [f"{device.tag} {format_approximate_size(amount)}" for device, amount in devices]
        now = f"free now: {', '.join(amounts)}" if free else "the devices share half of the free memory"
        raise UsageError(
            f"size {format_size(sizes[0])} does not fit: the fullest device has room for messages of "
            f"{format_approximate_size(capacity)}; {now}"
        )
    return fitting


def _up_to(most: int, sizes: tuple[int, ...], limit: Skipped, skipped: list[Skipped]) -> tuple[int, ...]:
    """Return the sizes that are no larger; what sets the `limit` is skipped with the others."""
    if large := tuple(size for size in sizes if size > most):
        skipped.append(replace(limit, sizes=large))
    return tuple(size for size in sizes if size <= most)


# The run that begins with a plan.


def empty_run(request: Request, opened: Opened, plan: Plan, skipped: list[Skipped]) -> Run:
    """Return the run of a request before its first trial: the machine and the settings."""
    if request.layers:  # the numbers of ranks depend on the devices
        request = replace(request, sets=next(iter(plan.groups.values())))
    settings = settings_of(
        request,
        operations=tuple(dict.fromkeys(work.operation for work in plan.groups)),
        sizes=tuple(sorted({size for sizes in plan.sizes.values() for size in sizes})),
        trials=request.stopping_rule().screening,
        opened=opened,
    )
    return replace(begun_run(opened, settings), skipped=skipped)


def begun_run(opened: Opened, settings: Settings) -> Run:
    """Return a run that starts now on the opened devices, without measurements."""
    run = new_run(opened.backend.name, opened.backend.devices(), opened, settings)
    run.ports_before = opened.ports() or ()
    return run


def read_ports_after(run: Run, opened: Opened) -> None:
    """Store the final counters of the network cards' ports. Raises BackendError."""
    ports = opened.ports()
    run.ports_after, run.ports_after_read = ports or (), ports is not None


def new_run(backend: str, devices: tuple[Device, ...], opened: OpenDevices, settings: Settings) -> Run:
    """Return a run that starts now on these devices, without measurements."""
    return Run(
        backend=backend,
        version=__version__,
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=opened.machine,
        devices=devices,
        paths=opened.paths,
        settings=settings,
        health_before=opened.health(),
    )
