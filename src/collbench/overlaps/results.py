"""What `collbench overlap` measures: what a run holds of it, and what its workers are asked and answer. Pure types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from collbench.model.errors import Failure, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Flag, Result, Run, Trial
from collbench.model.values import Count, Ordinal, Positive


class ComputeKind(StrEnum):
    """The compute that a collective overlaps. The row below defines one unit of it."""

    GEMM = "gemm"
    MEMORY = "memory"


class Priority(StrEnum):
    """The priority of the collective's stream; that of compute is always normal."""

    NORMAL = "normal"
    HIGH = "high"


# The unit's default size: of a matrix product its rows, of a sum the MiB of each operand.
DEFAULT_SIZES = {ComputeKind.GEMM: 8192, ComputeKind.MEMORY: 1024}
# Rows of a matrix, MiB: 65536² elements of bf16 are 8 GiB.
_LARGEST = 65536
_WORD = re.compile(r"([a-z-]+?)(?::(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Compute:
    """One kind of compute. `size`: N of a product of two N × N matrices, or MiB of each operand of a sum."""

    kind: ComputeKind
    size: Ordinal

    def __str__(self) -> str:
        """Return what the option --compute calls it: "gemm:8192"."""
        return f"{self.kind}:{self.size}"


def parse_compute(text: str) -> Compute:
    """Return the compute that "gemm", "gemm:8192" or "memory:256" names. Raises UsageError."""
    match = _WORD.fullmatch(text.strip().lower())
    if match is None or match[1] not in list(ComputeKind):
        raise UsageError(f"compute '{text}' is unknown: choose from {', '.join(f'{kind}:N' for kind in ComputeKind)}")
    kind = ComputeKind(match[1])
    size = int(match[2]) if match[2] else DEFAULT_SIZES[kind]
    if not 1 <= size <= _LARGEST:
        raise UsageError(f"compute '{text}' has a size outside 1 to {_LARGEST}: write {kind}:{DEFAULT_SIZES[kind]}")
    return Compute(kind, size)


@dataclass(frozen=True, slots=True)
class OverlapTrial:
    """One trial of a collective that overlaps compute: seconds by rank, in the order of `Overlap.members`.

    `calls` and `units` are a fixed amount of the collective and of the compute.
    """

    collective_alone: tuple[Positive, ...]  # mean seconds a call
    compute_alone: tuple[Positive, ...]  # mean seconds a unit of compute
    collective_beside: tuple[Positive, ...]  # the same while the other runs
    compute_beside: tuple[Positive, ...]
    beside_calls: tuple[Positive, ...]  # each call beside compute, on its slowest rank; begun at a random moment of it
    collective_amount: tuple[Positive, ...]  # the fixed amount alone
    compute_amount: tuple[Positive, ...]
    together: tuple[Positive, ...]  # both amounts at once, from their common start to the later end
    calls: Ordinal
    units: Ordinal
    covered_units: Ordinal  # ran while the collective did, on every rank: the seconds of `compute_beside` are theirs
    flags: tuple[Flag, ...] = ()  # as in Sample


@dataclass(slots=True)
class Overlap:
    """What a collective and compute cost each other when they run at the same time on each GPU."""

    work: Work
    members: tuple[int, ...]  # positions in the order of ranks
    size_bytes: Ordinal
    compute: Compute
    priority: Priority = Priority.NORMAL
    ctas: Ordinal | None = None  # thread blocks that NCCL was given (its channels); None: its own choice
    trials: list[OverlapTrial] = field(default_factory=list)
    wrong: Count | None = None  # elements of the collective that were not what they are alone; None: nothing compared
    wrong_compute: Count | None = None  # the same of the compute's result
    failure: Failure | None = None

    @property
    def wrong_data(self) -> bool:
        """True if a result of the collective or of the compute was not what it is alone."""
        return bool(self.wrong or self.wrong_compute)


# What the run file's reader needs (runfile/run_file.py).
NAME, CALLS = "overlaps", "beside_calls"
RESULT: type[Result] = Overlap


def check_calls(_result: Result, trial: Trial, where: str) -> None:
    """Raise ValueError for a trial without a call beside compute."""
    if not getattr(trial, CALLS):
        raise ValueError(f"{where} has no calls")


def overlaps_of(run: Run) -> list[Overlap]:
    """Return the overlaps of a run."""
    return run.sections.get(NAME, [])


# The messages to the workers, which load torch; this module does not.

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
