"""The messages to the workers that time a collective which overlaps compute. Does not load torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collbench.model.operations import Operation

# What training sends, and what torch.distributed sends without an option.
DTYPE = "bfloat16"
# The collectives of FSDP, DDP, tensor parallelism and mixture of experts; others would need their own verification.
OPERATIONS = (
    Operation.ALLREDUCE,
    Operation.ALLGATHER,
    Operation.REDUCESCATTER,
    Operation.BROADCAST,
    Operation.ALLTOALL,
)

# A GPU's stream takes 1,024 launches and events ahead. The next one waits until the GPU has begun some of them, which
# must not happen before a load's common start.
QUEUE_ENTRIES = 1000
# A sleep, the collective that synchronizes the ranks, the timed collective, and their events.
_ENTRIES_A_ROUND = 8
# From half of it on, a chunk of compute is one launch, a CUDA graph. That takes more entries than a launch does
# [2 × H100], so rounds are few enough at a time to do without.
LAUNCHES_AHEAD = QUEUE_ENTRIES // 2


@dataclass(frozen=True, slots=True)
class Load:
    """What every rank runs from a common start: chunks of the collective, chunks of compute, or both.

    The end of each chunk is timed. A chunk has `calls` of the collective, or `units` of compute. `delay_s` is how long
    the GPU waits before the start, so that all of it is queued by then.

    With `idle_s` each chunk of the collective has a round of its own: the ranks come together, compute begins its
    `compute_chunks` again, and the collective's stream rests so many seconds before the chunk, whose begin is timed.
    """

    collective_chunks: int
    calls: int
    compute_chunks: int
    units: int
    delay_s: float
    idle_s: tuple[float, ...] = ()

    @property
    def compute_launches(self) -> int:
        """The launches of compute that are queued before the common start, in all rounds, unit by unit."""
        return max(1, len(self.idle_s)) * self.compute_chunks * self.units

    def parts(self) -> Iterator[Load]:
        """Yield loads of so many rounds as a stream takes ahead; each launch and each event is one of its entries."""
        each = self.compute_chunks * self.units
        ahead = QUEUE_ENTRIES // (each + self.compute_chunks + _ENTRIES_A_ROUND)
        rounds = max(1, min(ahead, LAUNCHES_AHEAD // max(1, each)))
        for first in range(0, max(1, len(self.idle_s)), rounds):
            rests = self.idle_s[first : first + rounds]
            yield replace(self, collective_chunks=len(rests) or self.collective_chunks, idle_s=rests)


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's seconds from the common start to the end of each chunk, on its own device's clock.

    If the load has rounds, `begins` are the seconds to the begin of each chunk of the collective, and `compute` holds
    one round after another. `queued` is False if the start came before all was queued: then the times include the
    host's launches. `wrong` and `wrong_compute` count wrong elements of the last result of each; None if nothing was
    compared.
    """

    collective: tuple[float, ...]
    compute: tuple[float, ...]
    begins: tuple[float, ...] = ()
    queued: bool = True
    wrong: int | None = None
    wrong_compute: int | None = None
