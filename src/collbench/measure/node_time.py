"""How long a survey of nodes takes, before it is made: an estimate, whose assumptions each have a name here."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.measure.node_rounds import SCREENING
from collbench.operations import Operation
from collbench.units import busbw_factor

# Measured: NCCL's world and its splits took 0.65 s on 4 GPUs of one host [benchmarks/README.md]. Assumed between hosts:
# a round's communicators, which all start at once, take about twice that, and the world 10 ms more for each rank.
_ROUND_START_S = 1.5
_WORLD_START_S, _RANK_START_S = 0.65, 0.01
# Assumed: rank 0 writes each step to every rank's connection, and reads the answer.
_MESSAGE_S = 50e-6
VISITS, BLOCKS, WARMUP = 3, 2, 1  # of a round: as of every cell that is screened (METHOD.md §4)
_BLOCK_BYTES = 4 * 2**30  # as the longest blocks of copies: 20 ms on 8 cards of 400 Gb/s
_MOST_ITERATIONS = 20  # METHOD.md §2.2
# What simulated clusters with faults took beyond the screening, most of them less [benchmarks/cluster_plan.py].
TARGETED = 8


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the estimate: so many times so many seconds."""

    what: str
    times: int
    seconds: float

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.times * self.seconds


def iterations(size_bytes: int) -> int:
    """Return how many all-reduces of a size make one timed block."""
    return max(1, min(_MOST_ITERATIONS, _BLOCK_BYTES // size_bytes))


def start_seconds(nodes: int, gpus: int) -> float:
    """Return the seconds until all ranks have met."""
    return _WORLD_START_S + _RANK_START_S * nodes * gpus


def round_seconds(nodes: int, gpus: int, size_bytes: int, gbs: float) -> float:
    """Return the seconds of one round: communicators, then visits of `size_bytes` at `gbs` GB/s of busbw."""
    calls = WARMUP * iterations(size_bytes) + VISITS * BLOCKS * iterations(size_bytes)
    call = size_bytes * busbw_factor(Operation.ALLREDUCE, 2 * gpus) / (gbs * 1e9)
    return _ROUND_START_S + calls * call + VISITS * _MESSAGE_S * nodes * gpus


def estimate(nodes: int, gpus: int, size_bytes: int, gbs: float) -> tuple[Phase, ...]:
    """Return what a survey of `nodes` × `gpus` does, with times. `gbs` is what a healthy pair of nodes carries."""
    each = round_seconds(nodes, gpus, size_bytes, gbs)
    return (
        Phase("ranks meet, NCCL's world starts", 1, start_seconds(nodes, gpus)),
        Phase("rounds at random, or within and between leaves", SCREENING, each),
        Phase("rounds where it looks suspicious, about", TARGETED, each),
    )
