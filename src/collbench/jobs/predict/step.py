"""The transfers of each strategy in a training step, and their overlap with compute and host (docs/method.md 12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import accumulate
from math import inf

from collbench.jobs.predict.networks import Network, Unit
from collbench.model.errors import UsageError
from collbench.model.operations import Operation

# How gradients are combined into messages during backward, as in PyTorch's DDP.

# The first bucket is small, so that communication starts early [torch.distributed._DEFAULT_FIRST_BUCKET_BYTES].
FIRST_BUCKET_BYTES = 2**20
# DDP(bucket_cap_mb=25).
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are sent together: bytes, and the share of backward after which the last of them is ready."""

    size_bytes: int
    ready: float


def buckets(network: Network, gradient_bytes: int, cap_bytes: int) -> tuple[Bucket, ...]:
    """Return the buckets in the order of backward, `gradient_bytes` a parameter.

    A bucket is closed by the gradient that reaches the cap, and may be larger: a tensor is never cut
    [torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size].
    """
    all_buckets: list[Bucket] = []
    waiting, done, limit = 0, 0.0, min(FIRST_BUCKET_BYTES, cap_bytes)
    for parameters, ready in gradients(network):
        waiting, done = waiting + parameters * gradient_bytes, ready
        if waiting >= limit:
            all_buckets.append(Bucket(waiting, done))
            waiting, limit = 0, cap_bytes
    if waiting:
        all_buckets.append(Bucket(waiting, done))
    return tuple(all_buckets)


def gradients(network: Network) -> Iterator[tuple[int, float]]:
    """Yield the parameters of each tensor and the share of backward after which its gradient is complete."""
    total, done = sum(unit.work for unit in network.units), 0.0
    for unit in reversed(network.units):
        before = 0
        for tensor in reversed(unit.tensors):
            before += tensor  # the share of its backward that lies before each: as its parameters
            yield tensor, min((done + before / unit.parameters * unit.work) / total, 1.0)
        done += unit.work


# How long a step takes if host, compute and communication run concurrently, each in its own order.

_HALVINGS = 60  # of an interval that began as wide as the step: below its last bit
_ROUNDING = 1e-12  # of a step: the same sum in another order


@dataclass(frozen=True, slots=True)
class Contention:
    """How many times as long each takes while both run, at least 1: the transfers, in order, and compute.

    One factor of compute holds for all transfers of a step. Otherwise a longer transfer could make a step shorter, if
    it slowed compute down less than the next one (docs/method.md 12.1).
    """

    transfers: tuple[float, ...]
    compute: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A step's seconds, the seconds of overlap with transfers in it, and the compute time lost to overlap."""

    step: float
    overlapped: float
    slowed: float


def step_seconds(
    transfers: Sequence[Transfer],
    seconds: Sequence[float],
    compute: float,
    host: Host | None = None,
    contention: Contention | None = None,
) -> float:
    """Return how long a step of `compute` seconds takes with these transfers, as `schedule` has it."""
    return schedule(transfers, seconds, compute, host, contention).step


def schedule(
    transfers: Sequence[Transfer],
    seconds: Sequence[float],
    compute: float,
    host: Host | None = None,
    contention: Contention | None = None,
) -> Schedule:
    """Return the timing of a step with these compute seconds and transfers (isolated seconds).

    Communication runs one transfer at a time, in order, none before compute has reached its `ready`; compute stops at a
    transfer's `needed` until it has ended. `ready` never falls along the order. With a `host`, compute reaches no
    position before the host has launched it, and otherwise runs at the GPU's speed; the host never waits. While a
    transfer and compute run at the same time, both are slower by `contention`, None for no slowdown.
    """
    return _Lanes(transfers, seconds, compute, host, contention or Contention((1.0,) * len(transfers), 1.0)).run()


def compute_of(
    step: float,
    transfers: Sequence[Transfer],
    seconds: Sequence[float],
    host: Host | None = None,
    contention: Contention | None = None,
) -> float | None:
    """Return the compute seconds of a step that was measured with these transfers inside; None if it cannot be.

    With a `host` they are never fewer than the GPU's own.
    """
    low, high = host.gpu_seconds if host else 0.0, step
    most = step * (1 + _ROUNDING)
    if step_seconds(transfers, seconds, low, host, contention) > most:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        longer = step_seconds(transfers, seconds, middle, host, contention) > most
        low, high = (low, middle) if longer else (middle, high)
    return low


@dataclass(frozen=True, slots=True)
class _Pace:
    """What compute does next: it waits, or it goes to `goal` in `seconds`, of which the GPU is `busy` for a share."""

    seconds: float
    goal: float | None = None
    busy: float = 0.0
    at_hosts_pace: bool = False


class _Lanes:
    """The simulation of a step from event to event: a transfer ends, compute reaches a position, the host a knot.

    Between two events compute and communication each have a constant speed. If the host holds the GPU, the GPU works a
    share of the time, and transfers are slowed in that share.
    """

    def __init__(
        self,
        transfers: Sequence[Transfer],
        seconds: Sequence[float],
        compute: float,
        host: Host | None,
        contention: Contention,
    ) -> None:
        self._transfers, self._seconds, self._contention = transfers, seconds, contention
        self._gpu = host.gpu_seconds if host else compute
        launching = host.seconds(compute) if host else 0.0
        self._launched = [(position, share * launching) for position, share in host.knots] if host else []
        self._last_launch = launching
        # Where compute stops while this transfer or a later one has not ended: nearest first.
        self._stops = [*accumulate((t.needed for t in reversed(transfers)), min)][::-1]
        self._clock = self._position = self._overlapped = self._slowed = 0.0
        self._current = self._knot = 0
        self._left: float | None = None  # of the transfer that runs, its seconds alone
        self._at_hosts_pace = False

    def run(self) -> Schedule:
        """Go through the step."""
        while True:
            self._begin_transfer()
            while self._knot < len(self._launched) and self._launched[self._knot][0] <= self._position:
                self._knot += 1
            if self._current == len(self._transfers) and self._position >= 1.0:
                return Schedule(max(self._clock, self._last_launch), self._overlapped, self._slowed)
            self._advance()

    def _begin_transfer(self) -> None:
        if self._left is not None or self._current == len(self._transfers):
            return
        transfer = self._transfers[self._current]
        if transfer.after_optimizer:
            ready = self._position >= 1.0 and self._clock >= self._last_launch
        else:
            ready = self._position >= self._ready(transfer)
        if ready:
            self._left = self._seconds[self._current]

    def _ready(self, transfer: Transfer) -> float:
        """Return where a transfer may start: sums of shares may differ in the last bit from where compute stops."""
        return min(transfer.ready, self._stops[self._current])

    def _advance(self) -> None:
        """Go on to the next event."""
        pace, left = self._pace(), self._left
        factor = self._contention.transfers[self._current] if left is not None else 1.0
        rate = 1.0 - pace.busy + pace.busy / factor  # of what a transfer gets done alone
        ends = inf if left is None else left / rate
        passed = min(ends, pace.seconds)
        if passed == inf:  # all that is left is sent after the optimizer, which the host has not launched yet
            self._clock = max(self._clock, self._last_launch)
            return
        self._clock += passed
        if left is not None and pace.busy:
            self._overlapped += passed * pace.busy
            self._slowed += passed * pace.busy * (1 - 1 / self._contention.compute)
        if ends <= pace.seconds:
            self._left, self._current = None, self._current + 1
        elif left is not None:
            self._left = left - rate * passed
        if pace.seconds <= ends:
            self._position = self._position if pace.goal is None else pace.goal
            self._at_hosts_pace = pace.at_hosts_pace
        elif pace.goal is not None:
            self._position += (pace.goal - self._position) * (passed / pace.seconds)
            self._at_hosts_pace &= pace.busy < 1.0

    def _pace(self) -> _Pace:
        """Return what compute does until the next event."""
        stop = self._stops[self._current] if self._current < len(self._transfers) else 1.0
        if self._position >= min(stop, 1.0):
            self._at_hosts_pace = False
            return _Pace(inf)
        goal = min(stop, 1.0)
        if self._left is None and self._current < len(self._transfers):
            ready = self._ready(self._transfers[self._current])
            goal = min(goal, ready) if ready > self._position else goal
        each = self._gpu * (self._contention.compute if self._left is not None else 1.0)  # seconds of the whole step
        if not self._launched or self._knot == len(self._launched):
            return _Pace((goal - self._position) * each, goal, 1.0)
        return self._paced_by_host(goal, each)

    def _paced_by_host(self, goal: float, each: float) -> _Pace:
        """Return what compute does until it reaches a position, while the host may hold it."""
        (begin, before), (end, after) = self._launched[max(self._knot - 1, 0)], self._launched[self._knot]
        goal, hosts = min(goal, end), (after - before) / (end - begin) if end > begin else 0.0
        behind = self._clock - (before + (self._position - begin) * hosts)  # seconds since the host was here
        if behind < 0 and not self._at_hosts_pace:
            return _Pace(-behind, at_hosts_pace=True)
        if hosts <= each:
            return _Pace((goal - self._position) * each, goal, 1.0)
        if self._at_hosts_pace:
            return _Pace((goal - self._position) * hosts, goal, each / hosts, at_hosts_pace=True)
        caught = self._position + behind / (hosts - each)
        if caught < goal:
            return _Pace((caught - self._position) * each, caught, 1.0, at_hosts_pace=True)
        return _Pace((goal - self._position) * each, goal, 1.0)


# What each strategy sends in a step, when each transfer can start, and what waits for it (docs/method.md 12).

# Backward has two matrix products for each one of forward: for the weights and for the inputs.
FORWARD_SHARE = 1 / 3


class Group(StrEnum):
    """The members: all GPUs, those that together hold one copy of the model, or those that hold the same shard."""

    ALL = "all"
    SHARD = "shard"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a step, by its message size as docs/method.md 2.1 has it.

    `ready` is the share of the step's compute after which it may start; `needed` the share at which compute waits for
    it, 1 for the optimizer. A transfer `after_optimizer` also waits for the optimizer.
    """

    operation: Operation
    size_bytes: int
    group: Group
    ready: float
    needed: float
    after_optimizer: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained: a network, bytes a parameter and a gradient are sent with, micro-batches a step.

    `shards` are the GPUs that hold one copy of the model under HSDP, `replicas` how many copies there are.
    """

    network: Network
    parameter_bytes: int
    gradient_bytes: int
    micro_batches: int = 1
    bucket_bytes: int = BUCKET_BYTES
    shards: int = 1
    replicas: int = 1

    @property
    def all_parameters(self) -> int:
        """Bytes of all parameters."""
        return self.network.parameters * self.parameter_bytes

    @property
    def last_backward(self) -> float:
        """The share of a step's compute before the last micro-batch's backward."""
        return 1 - (1 - FORWARD_SHARE) / self.micro_batches


def ddp(job: Job) -> Iterator[Transfer]:
    """Yield an all-reduce a bucket, on the last micro-batch alone."""
    yield from _bucketed(job, Operation.ALLREDUCE, job.last_backward)


def zero1(job: Job) -> Iterator[Transfer]:
    """Yield reduce-scatters of the gradients on the last micro-batch, then one all-gather of the new parameters."""
    yield from _bucketed(job, Operation.REDUCESCATTER, job.last_backward)
    yield Transfer(Operation.ALLGATHER, job.all_parameters, Group.ALL, 1.0, 1.0, after_optimizer=True)


def zero2(job: Job) -> Iterator[Transfer]:
    """Yield reduce-scatters of the gradients on every micro-batch, then one all-gather of the new parameters."""
    for number in range(job.micro_batches):
        yield from _bucketed(job, Operation.REDUCESCATTER, (number + FORWARD_SHARE) / job.micro_batches)
    yield Transfer(Operation.ALLGATHER, job.all_parameters, Group.ALL, 1.0, 1.0, after_optimizer=True)


def zero3(job: Job) -> Iterator[Transfer]:
    """Yield for every micro-batch and unit an all-gather before its forward and its backward, and a reduce-scatter."""
    return _sharded(job, Group.ALL, again=True)


def fsdp(job: Job) -> Iterator[Transfer]:
    """Yield the transfers of zero3, except that the root unit stays gathered from forward to backward."""
    return _sharded(job, Group.ALL, again=False)


def hsdp(job: Job) -> Iterator[Transfer]:
    """Yield FSDP's transfers among the GPUs of one copy, and after each reduce-scatter an all-reduce among copies."""
    return _sharded(job, Group.SHARD, again=False)


STRATEGIES: dict[str, Callable[[Job], Iterator[Transfer]]] = {
    "ddp": ddp,
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
    "fsdp": fsdp,
    "hsdp": hsdp,
}
ALL = "all"


def parse_strategies(text: str) -> tuple[str, ...]:
    """Return the strategies of a list such as "ddp,fsdp", or all of them. Raises UsageError."""
    if text.strip().lower() == ALL:
        return tuple(STRATEGIES)
    return tuple(dict.fromkeys(_strategy(part) for part in text.split(",")))


def _strategy(text: str) -> str:
    plain = text.strip().lower().replace("-", "").replace("_", "")
    if plain in STRATEGIES:
        return plain
    alike = get_close_matches(plain, STRATEGIES, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(alike)}? There are" if alike else "choose from"
    raise UsageError(f"--strategy '{text.strip()}' is unknown: {meant} {', '.join(STRATEGIES)} and {ALL}")


def _bucketed(job: Job, operation: Operation, start: float) -> Iterator[Transfer]:
    """Yield the gradients of one backward, which starts after the share `start` of the step's compute."""
    long = (1 - FORWARD_SHARE) / job.micro_batches
    for bucket in buckets(job.network, job.gradient_bytes, job.bucket_bytes):
        yield Transfer(operation, bucket.size_bytes, Group.ALL, min(start + bucket.ready * long, 1.0), 1.0)


def _sharded(job: Job, group: Group, *, again: bool) -> Iterator[Transfer]:
    """Yield each micro-batch: gathers, each while the unit before computes, and scatters behind each unit's backward.

    `again` gathers the root for its backward again. The order is that in which fully_shard issues them.
    """
    blocks, root = job.network.blocks, job.network.root_parameters
    forward = _running([unit.work for unit in job.network.units])
    backward = _running([unit.work for unit in reversed(job.network.units)])
    for number in range(job.micro_batches):
        shift = number + FORWARD_SHARE
        turn = shift / job.micro_batches
        # Where in the step each unit's forward begins, and where its backward ends, the last unit's first.
        starts = [(number + FORWARD_SHARE * share) / job.micro_batches for share in [0.0, *forward[:-1]]]
        ends = [(shift + (1 - FORWARD_SHARE) * share) / job.micro_batches for share in backward]
        yield from _gather(job, root, group, starts[0], starts[0])
        for position, block in enumerate(blocks):
            yield from _gather(job, block.parameters, group, starts[position], starts[position + 1])
        if again:
            yield from _gather(job, root, group, turn, turn)
        before = [turn, *ends]  # where each unit's backward begins, the last unit's first
        for position in range(len(blocks), -1, -1):
            at = len(blocks) - position
            if position:
                yield from _gather(job, blocks[position - 1].parameters, group, before[at], before[at + 1])
            if at:
                yield from _scatter(job, blocks[position].parameters, group, ends[at])
        yield from _scatter(job, root, group, ends[-1])


def _running(works: list[float]) -> list[float]:
    """Return the share of all work up to the end of each unit; the last is exactly 1."""
    total, done, shares = sum(works), 0.0, []
    for work in works:
        done += work
        shares.append(done / total)
    return [*shares[:-1], 1.0]


def _gather(job: Job, parameters: int, group: Group, ready: float, needed: float) -> Iterator[Transfer]:
    if parameters:
        yield Transfer(Operation.ALLGATHER, parameters * job.parameter_bytes, group, ready, needed)


def _scatter(job: Job, parameters: int, group: Group, ready: float) -> Iterator[Transfer]:
    """Yield the reduce-scatter of a unit's gradients, and with several copies of the model the all-reduce of shards."""
    if not parameters:
        return
    size, ready = parameters * job.gradient_bytes, min(ready, 1.0)
    yield Transfer(Operation.REDUCESCATTER, size, group, ready, 1.0)
    if group is Group.SHARD and job.replicas > 1:
        yield Transfer(Operation.ALLREDUCE, -(-size // job.shards), Group.REPLICA, ready, 1.0)


# The host in a training step: how far it has launched the kernels that the GPU runs.

# A position in the step (share of the GPU's compute), and the share of the host's time after which all before is
# launched.
Knot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Phases:
    """The host's time in forward, backward and optimizer, in any unit: only their ratios count."""

    forward: float
    backward: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum, in the same unit."""
        return self.forward + self.backward + self.optimizer

    @property
    def shares(self) -> tuple[float, float, float]:
        """The same with a sum of 1."""
        return self.forward / self.total, self.backward / self.total, self.optimizer / self.total


_PHASES = ("forward", "backward", "optimizer")
_MOST = 1e9  # a sum of such numbers is still finite
# If the host was not timed, it is as fast as the GPU, and nothing overlaps the optimizer, which is unknown.
AS_THE_GPU = Phases(FORWARD_SHARE, 1 - FORWARD_SHARE, 0.0)


@dataclass(frozen=True, slots=True)
class Host:
    """A host that may hold the GPU: `gpu_seconds` is the step if it did not; `knots` are its pace, ascending.

    The last knot is the end of backward; what is left of the host's time launches the optimizer.
    """

    gpu_seconds: float
    knots: tuple[Knot, ...]

    def seconds(self, step: float) -> float:
        """Return the seconds that the host takes to launch a step without communication, from the step's seconds.

        They are the most that do not lengthen the step: if it takes `gpu_seconds`, the host never holds the GPU.
        """
        waits = [(step - self.gpu_seconds * (1 - position)) / share for position, share in self.knots if share]
        return max(0.0, min([step, *waits]))


def pace(network: Network, micro_batches: int, phases: Phases) -> tuple[Knot, ...]:
    """Return the knots of a host whose time for each unit is in proportion to its tensors, and so to its kernels."""
    forward, backward, _ = phases.shares
    knots, begin = [(0.0, 0.0)], 0.0
    for number in range(micro_batches):
        turn = (number + FORWARD_SHARE) / micro_batches
        middle, end = begin + forward / micro_batches, begin + (forward + backward) / micro_batches
        knots += _stretch(network.units, (knots[-1][0], turn), (begin, middle))
        knots += _stretch(network.units[::-1], (turn, (number + 1) / micro_batches), (middle, end))
        begin = end
    return tuple(knots)


def _stretch(units: Sequence[Unit], positions: tuple[float, float], shares: tuple[float, float]) -> Iterator[Knot]:
    """Yield a knot at the end of each unit that computes: its position by work, the host's share by tensors."""
    computing = [unit for unit in units if unit.work]
    work, tensors = (sum(parts) for parts in zip(*((u.work, len(u.tensors)) for u in computing), strict=True))
    done, launched = 0.0, 0
    for unit in computing[:-1]:
        done, launched = done + unit.work, launched + len(unit.tensors)
        position, share = done / work, launched / tensors if tensors else done / work
        yield positions[0] + position * (positions[1] - positions[0]), shares[0] + share * (shares[1] - shares[0])
    yield positions[1], shares[1]


def parse_phases(text: str) -> Phases:
    """Return the phases that "12.1,14.3,9.8" are. Raises UsageError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    # Forward and backward launch kernels, so their time is above zero; the optimizer's may be zero.
    if len(numbers) != len(_PHASES) or not all(0 <= part <= _MOST for part in numbers) or 0 in numbers[:2]:
        raise UsageError(
            f"--host-phases '{text}' is not the host's time in {', '.join(_PHASES)}: write 12,14,9, in ms or any unit, "
            "as only their ratios count"
        )
    return Phases(*numbers)
