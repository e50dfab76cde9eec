"""What each way of training in parallel sends in one step, when it can start and what waits for it (METHOD.md §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from collbench.cost.buckets import BUCKET_BYTES, buckets
from collbench.cost.model import Network
from collbench.errors import UsageError
from collbench.operations import Operation

# Backward makes two matrix products for each one of forward: for the weights, and for what came in.
FORWARD_SHARE = 1 / 3


class Group(StrEnum):
    """Who takes part: all GPUs, those that hold one copy of the model together, or those that hold the same shard."""

    ALL = "all"
    SHARD = "shard"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a step, by its message size as METHOD.md §1 has it.

    `ready` is the share of the step's compute after which it may start; `needed` the share at which compute waits for
    it, 1 for the optimizer. What is sent `after_optimizer` waits for that, too.
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
    for number in range(job.micro_batches):
        yield from _sharded(job, number, Group.ALL, again=True)


def fsdp(job: Job) -> Iterator[Transfer]:
    """Yield the same but for the root unit, which stays gathered from forward to backward."""
    for number in range(job.micro_batches):
        yield from _sharded(job, number, Group.ALL, again=False)


def hsdp(job: Job) -> Iterator[Transfer]:
    """Yield FSDP's among the GPUs of one copy, and behind each reduce-scatter an all-reduce among the copies."""
    for number in range(job.micro_batches):
        yield from _sharded(job, number, Group.SHARD, again=False)


STRATEGIES: dict[str, Callable[[Job], Iterator[Transfer]]] = {
    "ddp": ddp,
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
    "fsdp": fsdp,
    "hsdp": hsdp,
}
ALL = "all"
_ONCE = "once a step, on the last micro-batch (no_sync before)"
_HALVES = "each unit's gather runs while the one before it computes"
_BUCKETED = "in DDP's buckets; the new parameters are gathered in one message after the optimizer"
# What is sent, in a sentence each.
ASSUMED = {
    "ddp": f"ddp: gradients are all-reduced {_ONCE}, in buckets as backward makes them",
    "zero1": f"zero1: gradients are reduce-scattered {_ONCE}, {_BUCKETED}",
    "zero2": f"zero2: gradients are reduce-scattered on every micro-batch, {_BUCKETED}",
    "zero3": f"zero3: every unit is gathered before its forward and its backward of every micro-batch; {_HALVES}",
    "fsdp": f"fsdp: PyTorch's fully_shard on every block, the root gathered from forward to backward; {_HALVES}",
    "hsdp": "hsdp: as fsdp among the GPUs of one copy, neighbours in rank, then an all-reduce among the copies; "
    "best and worst are by a collective over all of them",
}


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


def _sharded(job: Job, number: int, group: Group, *, again: bool) -> Iterator[Transfer]:
    """Yield one micro-batch: gathers, each while the unit before computes, and scatters behind each unit's backward.

    `again` gathers the root for its backward once more. The order is that in which fully_shard issues them.
    """
    starts, ends = _forward(job, number), _backward(job, number)
    blocks, root = job.network.blocks, job.network.root_parameters
    turn = (number + FORWARD_SHARE) / job.micro_batches
    yield from _gather(job, root, group, starts[0], starts[0])
    for place, block in enumerate(blocks):
        yield from _gather(job, block.parameters, group, starts[place], starts[place + 1])
    if again:
        yield from _gather(job, root, group, turn, turn)
    before = [turn, *ends]  # where each unit's backward begins, the last unit's first
    for place in range(len(blocks), -1, -1):
        at = len(blocks) - place
        if place:
            yield from _gather(job, blocks[place - 1].parameters, group, before[at], before[at + 1])
        if at:
            yield from _scatter(job, blocks[place].parameters, group, ends[at])
    yield from _scatter(job, root, group, ends[-1])


def _forward(job: Job, number: int) -> list[float]:
    """Return where in the step each unit's forward begins, the first unit's first."""
    shares = _running([unit.work for unit in job.network.units])
    return [(number + FORWARD_SHARE * share) / job.micro_batches for share in [0.0, *shares[:-1]]]


def _backward(job: Job, number: int) -> list[float]:
    """Return where in the step each unit's backward ends, the last unit's first."""
    shares = _running([unit.work for unit in reversed(job.network.units)])
    shift = number + FORWARD_SHARE
    return [(shift + (1 - FORWARD_SHARE) * share) / job.micro_batches for share in shares]


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
    """Yield the gradients of a unit, and where there are copies of the model what makes their shards equal."""
    if not parameters:
        return
    size, ready = parameters * job.gradient_bytes, min(ready, 1.0)
    yield Transfer(Operation.REDUCESCATTER, size, group, ready, 1.0)
    if group is Group.SHARD and job.replicas > 1:
        yield Transfer(Operation.ALLREDUCE, -(-size // job.shards), Group.REPLICA, ready, 1.0)
