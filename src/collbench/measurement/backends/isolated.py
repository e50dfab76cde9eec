"""The GPUs in a worker process: a hang, a crash or a broken context costs a step instead of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from collbench.machine import variables
from collbench.machine.kernel import usable_nodes
from collbench.measurement.backends.child_process import STARVED_S, Child, ChildLost, own_environment
from collbench.measurement.backends.protocol import (
    LONGEST_BATCH_S,
    Backend,
    BackendFacts,
    Call,
    Open,
    Prepared,
    Reply,
    Step,
    Timing,
    WorkerAnswer,
)
from collbench.model.errors import BackendError, Cause, CollbenchError, Failure, PeerLost, StepFailed, failure_of
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Device, Skipped

# How long silence may last before it is a hang: from the bytes that a step moves, or from its own earlier times.

# A message costs at least this many seconds on the slowest path that we know: small collectives over sockets.
_SECONDS_A_MESSAGE = 1e-4
# Ungraphed launches that warm up the timed ones, generously (nccl-tests: 5).
_LAUNCH_WARMUP = 10
# A step that took this much longer than the slowest of its kind before would be no measurement anyway.
_MULTIPLE = 20


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait, and the slowest rates in B/s that a message may have.

    Staged PCIe gen 3 reaches 3 GB/s, and a part of it if several pairs share it; 1 Gbit Ethernet between hosts reaches
    0.12 GB/s. Opening may start the driver on every GPU, a second each without nvidia-persistenced. Starting NCCL takes
    0.7 s on 4 × H200 [method/collectives.md 1], and much longer if it first looks for networks. A worker's first step
    loads code.
    """

    opening_s: float = 120.0
    communicators_s: float = 60.0
    first_s: float = 20.0
    floor_s: float = 5.0
    slowest_rate: float = 1e9
    slowest_network: float = 0.1e9
    copies_s: float = LONGEST_BATCH_S  # for a batch of copies, by the worker's own watch
    starved_s: float = STARVED_S

    def for_step(self, step: Step, known_s: float | None, *, network: bool) -> float:
        """Return the seconds for a step; `known_s` is the longest that a step of its kind took, None at first."""
        rate = self.slowest_network if network else self.slowest_rate
        return self.floor_s + (_expected_s(step, rate) if known_s is None else _MULTIPLE * known_s)


def _expected_s(step: Step, rate: float) -> float:
    messages = step.iterations * (step.warmup + step.batches)
    messages += step.launches + _LAUNCH_WARMUP if step.launches else 0
    messages += 2 * step.singles + _LAUNCH_WARMUP if step.singles else 0  # the untimed ones of its bursts, too
    operation, variant = step.work.operation, step.work.variant
    points = (DataPoint(operation, members, step.size_bytes, variant) for members in step.groups)
    ranks = len(step.groups[0]) if operation.is_collective else 1  # each of them sends the message about once
    if variant.covered:  # all members copy, and as much again behind what is timed, perhaps in both directions
        ranks = 2 * len(step.groups[0]) * (2 if variant.opposed else 1)
    return messages * (_SECONDS_A_MESSAGE + sum(point.moved_bytes for point in points) * ranks / rate)


# A worker that may crash in any step, and is then restarted, opened and prepared again.

_DOING = {
    "list_gpus": "listing the GPUs",
    "unique_id": "asking NCCL for an id",
    "can_run": "asking for peer access",
    "reserve": "allocating the buffers",
    "prepare": "preparing NCCL",
    "ready": "starting NCCL",
}
# Communicators that could not be made in two workers will not be made in a third.
_NCCL_STARTS = 2


class Supervised:
    """One worker at a time. Each new worker gets the requests of the one before it.

    Steps are submitted ahead and answered in order, so that the worker never waits for its parent.
    """

    def __init__(self, module: str, timeouts: Timeouts, extra: Mapping[str, str]) -> None:
        """Start nothing yet; `module` is what the worker runs, with our environment and `extra` variables."""
        self._module, self._timeouts, self._extra = module, timeouts, extra
        self._child: Child | None = None
        self._gone: list[Child] = []
        self._opening: Open | None = None
        self._opens = False  # whether the answer to `open` has not been read
        self._facts: BackendFacts | None = None
        self._setup: list[Call] = []
        self._waiting: deque[Step] = deque()
        self._sent = 0  # how many of the first waiting steps the child has
        self._warm = self._prepared = self._collects = False
        self._bare = False  # the child has not been set up as the last one was
        self._failed_starts, self._last_failure = 0, BackendError()
        self._seconds: dict[tuple[Work, int, int, int], float] = {}
        self._loading_s: float | None = None  # the longest first step of its workers, which loads code

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The process ids of the running worker, if there is one, and of those that were killed and not yet reaped."""
        return tuple(child.process.pid for child in (self._child, *self._gone) if child is not None)

    @property
    def waiting(self) -> int:
        """How many submitted steps are unanswered."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the process, if none runs, and return at once; it lists the GPUs meanwhile."""
        if self._child is None:
            # What NCCL prints on stdout under NCCL_DEBUG goes to our stderr: our stdout holds the page.
            self._child = Child(self._module, (), {**own_environment(), **self._extra}, stdout=_STDERR)
            self._warm = self._prepared = self._collects = self._bare = False

    def ask(self, method: str, *arguments: object) -> object:
        """Return the answer to a question. Raises what the worker reports, BackendError if it is lost."""
        return self._exchange(Call(method, arguments))

    def open(self, opening: Open) -> None:
        """Tell the running worker to open GPUs, and return at once; `facts` returns the result."""
        self.plan(opening)
        self._live.send(Call("open", (opening,)))
        self._facts, self._opens = None, True

    def plan(self, opening: Open) -> None:
        """Open these GPUs before the first step, in the worker that runs then."""
        self._opening = opening

    def facts(self) -> BackendFacts:
        """Wait until the GPUs are open. Raises what opening them raised."""
        if self._opens:
            self._opens = False
            self._facts = cast("BackendFacts", self._receive("opening the GPUs"))
        if self._facts is None:
            raise BackendError("the GPUs are not open: measure again")
        return self._facts

    def set_up(self, method: str, argument: object) -> None:
        """Reserve or prepare in this worker and in all later ones. Raises what the worker reports."""
        call = Call(method, (argument,))
        self._setup.append(call)
        if self._child is not None and not self._bare:
            self._prepared = self._prepared and method != "prepare"
            self._exchange(call)

    def submit(self, step: Step) -> None:
        """Append a step to the waiting ones."""
        self._waiting.append(step)

    def answer(self) -> tuple[Step, Timing | StepFailed]:
        """Return the first waiting step with its result; the others stay, to be sent again after a failure.

        Raises DataCorruption and any other error that is not a failure of the step alone.
        """
        return self._answer(len(self._waiting))

    def time(self, step: Step) -> Timing:
        """Time one step before the waiting ones, none of which may be with the worker yet. Raises StepFailed."""
        if self._sent:
            raise RuntimeError("steps are with the worker: nothing can be timed before them")
        self._waiting.appendleft(step)
        _, outcome = self._answer(1)
        if isinstance(outcome, StepFailed):
            raise outcome
        return outcome

    def _answer(self, ahead: int) -> tuple[Step, Timing | StepFailed]:
        """Answer the first waiting step, with the first `ahead` steps sent to the worker."""
        step = self._waiting[0]
        try:
            outcome: Timing | StepFailed = self._refusal(step) or self._outcome(step, ahead)
        except (ChildLost, StepFailed) as error:
            self.kill()  # after a CUDA or NCCL error the worker's context or communicators are broken
            outcome = self._failure(step, error)
        except BaseException:  # wrong data; or Ctrl-C, and an unread reply would answer the next step
            self.kill()
            raise
        self._waiting.popleft()
        self._sent = max(0, self._sent - 1)
        return step, outcome

    def forget(self) -> None:
        """Drop the waiting steps; end a worker that has some of them, because its answers would stay unread."""
        if self._sent:
            self.kill()
        self._waiting.clear()

    def kill(self) -> None:
        """End the worker without waiting for it. Safe to call twice."""
        if self._child is not None:
            self._child.kill()
            self._gone.append(self._child)
        self._child, self._sent, self._opens = None, 0, False

    def reap(self) -> None:
        """Wait for killed workers to be gone."""
        while self._gone:
            self._gone.pop().reap()

    @property
    def _live(self) -> Child:
        if self._child is None:
            raise BackendError("the GPU worker is no longer running: measure again")
        return self._child

    def _reply(self, timeout_s: float) -> WorkerAnswer | Prepared:
        """Return the worker's next reply. Raises the failure that it reports, or ChildLost."""
        reply: Reply = self._live.receive(timeout_s, self._timeouts.starved_s)
        if isinstance(reply, WorkerAnswer | Prepared):
            return reply
        raise reply

    def _receive(self, doing: str) -> object:
        """Return the answer to anything but a step."""
        try:
            return cast("WorkerAnswer", self._reply(self._timeouts.opening_s)).value
        except ChildLost as error:
            self.kill()
            raise BackendError(f"{doing} failed: {error}", failure=error.failure) from error

    def _exchange(self, call: Call) -> object:
        if self._opens:
            self.facts()
        self._live.send(call)
        return self._receive(_DOING[call.method])

    def reopen(self) -> None:
        """Start a worker for the planned GPUs, if none runs, and return at once; its first step waits for it.

        Raises BackendError.
        """
        if self._child is not None:
            return
        self.reap()  # else the new one would find the GPUs' memory still taken
        if self._opening is None:
            raise BackendError("no GPU was opened before the first step")
        self.start()
        self.open(self._opening)
        self._bare = True

    def _stand_by(self) -> None:
        """Wait for a worker that is set up as the last one was. Raises StepFailed if that is not possible."""
        try:
            self.reopen()
            self.facts()
            for call in self._setup if self._bare else ():
                self._exchange(call)
            self._bare = False
        except CollbenchError as error:
            why = failure_of(error)
            raise StepFailed(failure=Failure(why.kind, Cause.NO_WORKER, because=why)) from error

    def _refusal(self, step: Step) -> StepFailed | None:
        if step.work.operation.is_collective and self._failed_starts >= _NCCL_STARTS:
            last = self._last_failure.failure
            return StepFailed(failure=Failure(last.kind, Cause.NCCL_START, count=_NCCL_STARTS, because=last))
        return None

    def _outcome(self, step: Step, ahead: int) -> Timing:
        """Send the unsent steps, and return the first step's times. Raises what the worker reports, ChildLost."""
        if self._child is None or self._bare:
            self._stand_by()
        if self._opens:
            self.facts()
        while self._sent < ahead and not self._refusal(self._waiting[self._sent]):
            self._live.send(Call("time", (self._waiting[self._sent],)))
            self._sent += 1
        reply = self._reply(self._wait_s(step))
        if isinstance(reply, Prepared):
            self._prepared = True
            reply = self._reply(self._wait_s(step))
        answer = cast("WorkerAnswer", reply)
        self._note(step, answer)
        return cast("Timing", answer.value)

    def _wait_s(self, step: Step) -> float:
        network = self._opening is not None and self._opening.world is not None
        wait = self._timeouts.for_step(step, self._seconds.get(_kind(step)), network=network)
        wait += 0 if self._warm else self._first_s()
        collective = step.work.operation.is_collective
        if self._prepared:  # the first collective loads NCCL's code
            return wait + (self._timeouts.first_s if collective and not self._collects else 0)
        prepares = self._opening is not None and self._opening.collectives
        return wait + (self._timeouts.communicators_s if collective or prepares else 0)

    def _first_s(self) -> float:
        """Return how many seconds longer a first step may take: later workers load what the first worker did."""
        most = self._timeouts.first_s
        return most if self._loading_s is None else min(most, _MULTIPLE * self._loading_s)

    def _note(self, step: Step, answer: WorkerAnswer) -> None:
        if not self._warm:
            self._loading_s = max(self._loading_s or 0.0, answer.seconds)
        self._warm = True
        kind = _kind(step)
        self._seconds[kind] = max(self._seconds.get(kind, 0.0), answer.seconds)
        if step.work.operation.is_collective:
            self._prepared = self._collects = True
            self._failed_starts = 0

    def _failure(self, step: Step, error: BackendError) -> StepFailed:
        if step.work.operation.is_collective and not self._prepared:
            self._failed_starts, self._last_failure = self._failed_starts + 1, error
        if self._opening is not None and self._opening.world is not None:
            failed = PeerLost if isinstance(error, PeerLost) else BackendError
            rank = self._opening.world.position
            raise failed(f"rank {rank} cannot continue: {error}", failure=replace(error.failure, rank=rank)) from error
        return error if isinstance(error, StepFailed) else StepFailed(str(error), failure=error.failure)


def _kind(step: Step) -> tuple[Work, int, int, int]:
    return step.work, step.size_bytes, len(step.groups[0]), step.singles


# The backend: one worker for most steps, and one without peer access for staged copies.

_WORKER = "collbench.measurement.backends.worker"
_STDERR = 2  # the file descriptor
_TIMEOUTS = Timeouts()
# For probes of links: on 4 × H200 NCCL starts in 0.7 s, and a step of 16 MiB takes milliseconds. A device works while
# its worker waits for a core, so only the worker's own watch can find a hang then.
OF_PROBES = Timeouts(opening_s=30.0, communicators_s=30.0, first_s=6.0, floor_s=2.0, copies_s=2.0)
# Steps with the worker: one that it times, and enough behind it to cover the parent's own work between two answers.
_AHEAD = 4


class IsolatedBackend(Backend):
    """Times steps on GPUs in a worker process that is started again when a step breaks it.

    Call in order: `start`, `list_gpus`, `open`, and the rest. The facts of opening are waited for when first needed.
    """

    name = "cuda"

    def __init__(
        self, module: str = _WORKER, timeouts: Timeouts = _TIMEOUTS, extra: Mapping[str, str] | None = None
    ) -> None:
        """Start nothing yet. `module` is what the worker runs, `timeouts` how long it may stay silent.

        The worker has our environment, and the `extra` variables.
        """
        self._timeouts = timeouts
        self._worker = Supervised(module, timeouts, extra or {})
        # Without peer access, for copies through host memory; it idles while the other worker times.
        self._staging = Supervised(module, timeouts, extra or {})
        self._devices: tuple[Device, ...] = ()
        self._prepares = self._stages = False

    def start(self) -> None:
        """Start the worker and return at once. Raises UsageError if a variable would make its figures false."""
        variables.refuse()
        self._worker.start()

    def list_gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that CUDA shows, in its order. Raises MachineError without a driver."""
        return cast("tuple[str, ...]", self._worker.ask("list_gpus"))

    def unique_id(self, nccl_path: str | None) -> bytes:
        """Return the 128 bytes of ncclGetUniqueId for the ranks of one world. Raises MachineError without NCCL."""
        return cast("bytes", self._worker.ask("unique_id", nccl_path))

    def open(self, opening: Open) -> None:
        """Open the GPUs, and return at once. The first question raises its errors; the worker watches its copies."""
        self._devices, copies_s = opening.devices, self._timeouts.copies_s
        self._worker.open(replace(opening, copies_s=copies_s))
        self._staged = Open(opening.devices, peers=False, copies_s=copies_s)
        self._staging.plan(self._staged)

    def open_staging(self) -> None:
        """Start the worker of staged copies as well, and return at once; else their first step waits for it."""
        self._staging.start()
        self._staging.open(self._staged)

    @property
    def facts(self) -> BackendFacts:
        """What opening found. Raises MachineError, BackendError."""
        return self._worker.facts()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that use the GPUs for us right now."""
        return self._worker.process_ids + self._staging.process_ids

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs by position."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return what the worker can time so."""
        return variant.gpu_operations

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that every GPU has room for."""
        return self.facts.capacity_bytes

    def free_bytes(self) -> tuple[int, ...]:
        """Return each GPU's free memory in bytes when it was opened first."""
        return self.facts.free_bytes

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes that this process, and so its worker, may use."""
        return usable_nodes()

    def reserve(self, largest_bytes: int) -> None:
        """Allocate the buffers for messages of up to `largest_bytes`. Raises BackendError."""
        self._worker.set_up("reserve", largest_bytes)
        self._staging.set_up("reserve", largest_bytes)

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        """Return why these GPUs cannot run it, None if they can."""
        refusal = cast("Skipped | None", self._worker.ask("can_run", work, members))
        self._stages = self._stages or (work.variant is Variant.STAGED and refusal is None)
        return refusal

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making communicators and return at once; every step waits for them, or `ready` does before."""
        if groups:
            self._prepares = True
            self._worker.set_up("prepare", groups)

    def ready(self) -> None:
        """Wait for the communicators, if any are being made; the worker of staged copies opens the GPUs meanwhile."""
        if self._stages:
            with suppress(BackendError):  # the first staged copy starts it again, and says why it fails
                self._staging.reopen()
        if self._prepares:
            with suppress(BackendError):  # the first collective's own failure says more
                self._worker.ask("ready")

    def time(self, step: Step) -> Timing:
        """Time a step. Raises DataCorruption, StepFailed; BackendError with a world, whose ranks need each other.

        A group without a rank of this worker has an empty tuple of seconds.
        """
        return self._worker_for(step).time(step)

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another, a few of them with the worker at any time.

        After a StepFailed the worker has none, and `time` may be called before the next.
        """
        source = iter(steps)
        step = next(source, None)
        while step is not None:
            worker = self._worker_for(step)
            try:
                while step is not None or worker.waiting:
                    # Two workers must never time at once: another one's step waits until this one has answered all.
                    while step is not None and worker is self._worker_for(step) and worker.waiting < _AHEAD:
                        worker.submit(step)
                        step = next(source, None)
                    if not worker.waiting:
                        break
                    yield worker.answer()
            finally:
                worker.forget()

    def close(self) -> None:
        """End the workers without waiting: they hold nothing that the driver does not take back."""
        self._worker.kill()
        self._staging.kill()

    def reap(self) -> None:
        """End the workers, and wait a few seconds for them to be gone, with their memory on the GPUs."""
        self.close()
        self._worker.reap()
        self._staging.reap()

    def _worker_for(self, step: Step) -> Supervised:
        return self._staging if step.work.variant is Variant.STAGED else self._worker
