"""A recorded job: the collectives that its ranks sent, their order, groups, and the pauses between them.

A job repeats its steps a million times, so a rank's calls are kept folded: a *phase* is a sequence of calls and how
often it came in a row. The median time of each call and each pause is kept; some repetitions, the same ones on every
rank, are kept whole as *samples*, with the time of each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import floor
from typing import Annotated

from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.units import amount
from collbench.model.values import Count, Micros, Ordinal, Range

JOB = "collbench-job"  # the format of its file
MICRO = 1e-6  # seconds in a µs: a job's times are µs
MAX_RANKS = 2**20  # the largest clusters have a fifth of it
Ranks = Annotated[int, Range(1, MAX_RANKS, f"1 to {MAX_RANKS:,} ranks")]
MIN_COVERED = 0.9  # of its calls and bytes: figures of a step that covers less are not figures of the job
Share = Annotated[float, Range(0, 1, "0 to 1")]


class Source(StrEnum):
    """Where a job's calls were read from."""

    PLUGIN = "nccl-profiler-plugin"  # collbench record
    FLIGHT_RECORDER = "flight-recorder"  # torch's dump, one file a rank
    KINETO = "kineto"  # torch.profiler's trace, one file a rank
    EXECUTION_TRACE = "pytorch-et"  # torch's ExecutionTraceObserver


class Library(StrEnum):
    """What the calls were sent to."""

    NCCL = "nccl"
    GLOO = "gloo"  # torch's, on the CPU


class Unknown(StrEnum):
    """What a source cannot say. It is unknown in the whole job, and never guessed."""

    REDUCTION = "reduction"
    ROOT = "root"
    PEER = "peer"
    GROUP_RANKS = "group-ranks"  # which ranks are in a group
    PAUSES = "pauses"  # when the host made a call
    GPU_TIMES = "gpu-times"  # how long a call's kernel ran
    GRAPH_REPLAYS = "graph-replays"  # a captured call is seen once, not at every replay
    OVERLAP = "overlap"  # what computed concurrently
    SIZES = "sizes"  # of calls of 0 bytes
    SPLITS = "splits"  # whether each all-to-all has blocks of one size


class Ending(StrEnum):
    """How a rank's record ends."""

    COMPLETE = "complete"  # the process left NCCL, or the source has a whole trace
    CUT_OFF = "cut-off"  # it was killed, or is still running; all but its last moment is there


class StepSource(StrEnum):
    """What said where the job's steps begin."""

    MARKS = "marks"  # the job itself: collbench.step(), an NVTX range, or ProfilerStep# of torch.profiler
    GIVEN = "calls-per-step"  # the user
    FOLDED = "folded"  # its calls and pauses


class PointToPoint(StrEnum):
    """The two calls that are no collective: one rank's side of a message."""

    SEND = "send"
    RECV = "recv"


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one communicator."""

    ranks: tuple[int, ...]  # as job ranks, in the communicator's order; () if the source does not report them
    size: Annotated[int, Range(0, MAX_RANKS, f"0 to {MAX_RANKS:,} ranks")]  # their number, 0 if unknown
    name: str = ""  # what the framework calls it, "" if it does not say


@dataclass(frozen=True, slots=True)
class Call:
    """What one rank asked NCCL for: all but when. Calls that are equal are one entry of a job's table."""

    operation: str  # a collective's value in Operation, or a PointToPoint
    size_bytes: Count  # of the message, as nccl-tests counts it; of a send or receive, its bytes
    group: int  # in Job.groups
    dtype: str = ""
    reduction: str = ""
    root: int | None = None  # a rank of the group
    peer: int | None = None  # a rank of the group
    captured: bool = False  # inside a CUDA graph

    @property
    def collective(self) -> Operation | None:
        """The collective; None for a send or a receive."""
        return None if self.operation in set(PointToPoint) else Operation(self.operation)


@dataclass(frozen=True, slots=True)
class Position:
    """One call of a phase; times are medians over its repetitions, µs, None if unknown."""

    call: int  # in Job.calls
    together: bool = False  # NCCL got it in one group (ncclGroupStart) with the call before it
    # The host's time since the call before; of the first position, since the last one of the repetition before.
    pause: Micros | None = None
    gpu: Micros | None = None  # how long its kernel ran: on a rank that came early, the wait for the others included
    sizes: tuple[
        Count, ...
    ] = ()  # the least and the most bytes, of calls that NCCL got together their sum, if these vary


@dataclass(frozen=True, slots=True)
class GpuTime:
    """How a GPU spent some time by its own clock, µs: each moment counts once, so that all but `overlapped` add up."""

    compute: Micros  # some kernel that is not NCCL's ran
    overlapped: Micros  # of `compute`: one of NCCL's ran too
    exposed: Micros  # only kernels of NCCL ran
    copies: Micros  # no kernel ran, only copies and memsets
    idle: Micros

    @property
    def total(self) -> float:
        """The whole time, µs."""
        return self.compute + self.exposed + self.copies + self.idle


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition of a phase, whole: times of each position in µs, () where any is unknown.

    Moments count from Job.started on the host's clock, which ranks of one host share.
    """

    repetition: Count
    starts: tuple[Micros, ...]  # when the host made the call
    gpu: tuple[Micros, ...] = ()  # how long its kernel ran; 0 for a single call whose time is unknown
    gpu_starts: tuple[Micros, ...] = ()  # when its kernel began, to some 10 µs; 0 likewise
    # Of a step: until the next one's first call, or its kernel where kernels' beginnings are known; 0 if unknown.
    step: Micros = 0.0
    exposed: tuple[Micros, ...] = ()  # of `gpu`: nothing was computed meanwhile
    exposed_waiting: tuple[Micros, ...] = ()  # of `exposed`: before the transfer; 0 of a call of unknown transfer
    gpu_time: GpuTime | None = None  # from its first kernel to that of the next repetition


@dataclass(frozen=True, slots=True)
class Phase:
    """A sequence of calls that came `repetitions` times in a row: a step of training, or what came once."""

    positions: tuple[Position, ...]
    repetitions: Ordinal = 1
    samples: tuple[Sample, ...] = ()

    @property
    def units(self) -> list[range]:
        """The places of the calls that NCCL got together, of a single call one."""
        heads = [at for at, position in enumerate(self.positions) if not (at and position.together)]
        return [range(*span) for span in pairwise([*heads, len(self.positions)])]


@dataclass(frozen=True, slots=True)
class JobRank:
    """What one rank sent."""

    rank: int  # the job's own numbering
    phases: tuple[Phase, ...]
    host: str = ""
    device: Count | None = None  # the CUDA index that its process saw, None if unknown
    ending: Ending = Ending.COMPLETE
    dropped: Count = 0  # calls that were seen but not kept, because the recorder's memory was full
    # How the phases came where some came again: places in `phases`, each with how often it was repeated there, together
    # a phase's `repetitions`; () if each phase came once, in the order of `phases`.
    order: tuple[tuple[int, int], ...] = ()
    gpu_time: GpuTime | None = None  # from the first kernel of the record to the last
    step: Phase | None = None  # what it repeats, as Job.steps says; None if that is not known
    before_step: Count = 0  # how many calls it sent before the first step

    @property
    def runs(self) -> Sequence[tuple[int, int]]:
        """How the phases came: places in `phases`, each with how often it was repeated there."""
        return self.order or [(index, phase.repetitions) for index, phase in enumerate(self.phases)]

    def positions(self) -> Iterator[Position]:
        """Yield the position of each call that it sent, in order, repetitions too."""
        for phase, repetitions in self.runs:
            for _ in range(repetitions):
                yield from self.phases[phase].positions

    def unfolded(self) -> Iterator[int]:
        """Yield each call that it sent, in order, as its place in Job.calls."""
        return (position.call for position in self.positions())

    @property
    def calls(self) -> int:
        """How many calls it sent, repetitions counted."""
        return sum(phase.repetitions * len(phase.positions) for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Steps:
    """How the steps were found, and what they cover: shares of the calls and of their bytes, of all ranks.

    Before the first and after the last step only calls count that a step has.

    If there is no source, no step is claimed, and `why` says why; of a step that was found, it says what is in doubt.
    """

    source: StepSource | None = None
    why: str = ""
    calls: Share = 0.0
    size_bytes: Share = 0.0

    @property
    def reservation(self) -> str:
        """What to say first where the step is not most of the job: "" where it is."""
        if self.source is None:
            return f"no step is known: {self.why}"
        if min(self.calls, self.size_bytes) >= MIN_COVERED:
            return ""
        return f"the step covers only {self.shares}"

    @property
    def shares(self) -> str:
        """What it covers, as text."""
        calls, size = (f"{floor(share * 100)}%" for share in (self.calls, self.size_bytes))
        return f"{calls} of the calls and {size} of the bytes from the first step to the last"


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """All that was recorded of a job. An empty field means "there was none", or "unknown" where `unknown` says so."""

    source: Source
    started: str  # UTC
    world_size: Ranks
    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    ranks: tuple[JobRank, ...]
    command: tuple[str, ...] = ()  # what was started, () for an import
    nccl: str = ""  # its version
    environment: dict[str, str] = field(default_factory=dict)  # the NCCL_* variables of rank 0
    unknown: tuple[Unknown, ...] = ()  # what the source cannot tell
    library: Library = Library.NCCL
    steps: Steps = Steps()

    def __repr__(self) -> str:
        """Return one line, for people."""
        calls = sum(rank.calls for rank in self.ranks)
        return f"<Job of {amount(self.world_size, 'rank')}, {self.source}, {self.started}: {amount(calls, 'call')}>"

    def called(self, phase: Phase) -> Sequence[Call]:
        """Return the calls of a phase, in order."""
        return [self.calls[position.call] for position in phase.positions]


def not_said(
    groups: Iterable[Group], calls: Iterable[Call], ranks: Iterable[JobRank], **others: bool
) -> tuple[Unknown, ...]:
    """Return what a job does not say, in Unknown's order: by its own tables, and the `others` that its source names."""
    table = [(call, call.collective) for call in calls]
    times = (position.gpu for rank in ranks for phase in rank.phases for position in phase.positions)
    unknown = {
        "REDUCTION": any(group and group.reduces and not call.reduction for call, group in table),
        "ROOT": any(group and group.rooted and call.root is None for call, group in table),
        "PEER": any(group is None and call.peer is None for call, group in table),
        "GROUP_RANKS": any(not group.ranks for group in groups),
        "GPU_TIMES": not any(times),
        **others,
    }
    return tuple(fact for fact in Unknown if unknown.get(fact.name))


def check_sent_again(job: Job) -> None:
    """Raise UsageError for calls that NCCL cannot be asked for again: of gloo, or of unknown bytes."""
    if job.library is not Library.NCCL:
        raise UsageError(f"the job's calls are of {job.library}: only those of NCCL can be replayed and predicted")
    if Unknown.SIZES in job.unknown:
        graphs = any(call.captured and not call.size_bytes for call in job.calls)
        how = "run it without CUDA graphs" if graphs else "profile with record_shapes=True"
        raise UsageError(f"the {job.source} traces do not say the bytes of all calls: {how}")


def checked(value: object) -> Job:
    """Return what a Python caller gave as a job. Raises UsageError if it is none."""
    if not isinstance(value, Job):
        raise UsageError(f"job is {type(value).__name__}: give what collbench.load_job returns")
    return value
