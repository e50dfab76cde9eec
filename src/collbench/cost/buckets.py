"""How gradients are put together into messages while backward makes them, as PyTorch's DDP does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collbench.cost.model import Network, Unit

# The first bucket is small, so that communication starts early [torch.distributed._DEFAULT_FIRST_BUCKET_BYTES].
FIRST_BUCKET_BYTES = 2**20
# What DDP(bucket_cap_mb=25) means.
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are sent together: bytes, and the share of backward after which the last of them is there."""

    size_bytes: int
    ready: float


def buckets(network: Network, gradient_bytes: int, cap_bytes: int) -> tuple[Bucket, ...]:
    """Return the buckets in the order of backward, `gradient_bytes` a parameter.

    A bucket is closed by the gradient that reaches the cap, and may be larger: a tensor is never cut
    [torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size].
    """
    found: list[Bucket] = []
    waiting, done, limit = 0, 0.0, min(FIRST_BUCKET_BYTES, cap_bytes)
    for parameters, ready in gradients(network):
        waiting, done = waiting + parameters * gradient_bytes, ready
        if waiting >= limit:
            found.append(Bucket(waiting, done))
            waiting, limit = 0, cap_bytes
    return tuple(found + [Bucket(waiting, done)] * (waiting > 0))


def gradients(network: Network) -> Iterator[tuple[int, float]]:
    """Yield the parameters of each tensor and the share of backward after which its gradient is complete."""
    total, done = sum(unit.work for unit in network.units), 0.0
    for unit in reversed(network.units):
        for tensor, share in _within(unit):
            yield tensor, min((done + share * unit.work) / total, 1.0)
        done += unit.work


def _within(unit: Unit) -> Iterator[tuple[int, float]]:
    """Yield a unit's tensors backwards, with the share of its backward that lies before each: as its parameters."""
    before = 0
    for tensor in reversed(unit.tensors):
        before += tensor
        yield tensor, before / unit.parameters
