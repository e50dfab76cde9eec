"""A worker that may be lost at any step, and is then started, opened and prepared again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import cast

from collbench.backends.child import Child, ChildLost
from collbench.backends.patience import Patience
from collbench.backends.protocol import Step, Timing
from collbench.backends.worker_messages import (
    Answer,
    AwaitPrepared,
    CanRun,
    Facts,
    ListGpus,
    MakeUniqueId,
    Open,
    Prepare,
    Prepared,
    Request,
    Reserve,
)
from collbench.errors import BackendError, CollbenchError, PeerLost, StepFailed, kind_of
from collbench.operations import Work

_DOING: dict[type, str] = {
    ListGpus: "listing the GPUs",
    MakeUniqueId: "asking NCCL for an id",
    CanRun: "asking for peer access",
    Reserve: "allocating the buffers",
    Prepare: "preparing NCCL",
    AwaitPrepared: "starting NCCL",
}
# Communicators that could not be made in two workers will not be made in a third.
_NCCL_STARTS = 2


class Supervised:
    """One worker at a time. What was asked of the first is asked of each that follows it.

    Steps are submitted ahead and answered in order, so that the worker never waits for its parent.
    """

    def __init__(self, module: str, patience: Patience, extra: Mapping[str, str]) -> None:
        """Start nothing yet; `module` is what the worker runs, with `extra` variables beside ours."""
        self._module, self._patience, self._extra = module, patience, extra
        self._child: Child | None = None
        self._gone: list[Child] = []
        self._opening: Open | None = None
        self._opens = False  # the answer to it has not been read
        self._facts: Facts | None = None
        self._setup: list[Reserve | Prepare] = []
        self._waiting: deque[Step] = deque()
        self._sent = 0  # so many of the first waiting steps are with the child
        self._warm = self._collects = False
        self._failed_starts, self._last_failure = 0, BackendError()
        self._seconds: dict[tuple[Work, int, int], float] = {}

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The running worker's process id, or none."""
        return (self._child.process_id,) if self._child else ()

    @property
    def waiting(self) -> int:
        """How many submitted steps are unanswered."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the process, if none runs, and return at once; it lists the GPUs meanwhile."""
        if self._child is None:
            self._child, self._warm, self._collects = Child(self._module, self._extra), False, False

    def ask(self, request: ListGpus | MakeUniqueId | CanRun | AwaitPrepared) -> object:
        """Return the answer to a question. Raises what the worker reports, BackendError if it is lost."""
        return self._exchange(request)

    def open(self, opening: Open) -> None:
        """Let the running worker open GPUs, and return at once; `facts` tells what became of it."""
        self.plan(opening)
        self._live.send(opening)
        self._facts, self._opens = None, True

    def plan(self, opening: Open) -> None:
        """Open these GPUs with the first step, in whatever worker runs then."""
        self._opening = opening

    def facts(self) -> Facts:
        """Wait until the GPUs are open. Raises what opening them raised."""
        if self._opens:
            self._opens = False
            self._facts = cast("Facts", self._receive("opening the GPUs"))
        if self._facts is None:
            raise BackendError("the GPUs are not open: measure again")
        return self._facts

    def set_up(self, request: Reserve | Prepare) -> None:
        """Reserve or prepare, in this worker and in each that follows. Raises what the worker reports."""
        self._setup.append(request)
        if self._child is not None:
            self._exchange(request)

    def submit(self, step: Step) -> None:
        """Put a step behind those that wait."""
        self._waiting.append(step)

    def answer(self) -> tuple[Step, Timing | StepFailed]:
        """Return the first waiting step with what became of it; the others stay, to be sent again after a failure.

        Raises DataCorruption and whatever else is no failure of the step alone.
        """
        return self._answer(len(self._waiting))

    def time(self, step: Step) -> Timing:
        """Time one step now, before those that wait, of which none may be with the worker. Raises StepFailed."""
        if self._sent:
            raise RuntimeError("steps are with the worker: nothing can be timed before them")
        self._waiting.appendleft(step)
        _, outcome = self._answer(1)
        if isinstance(outcome, StepFailed):
            raise outcome
        return outcome

    def _answer(self, ahead: int) -> tuple[Step, Timing | StepFailed]:
        """Answer the first step while the first `ahead` are with the worker."""
        step = self._waiting[0]
        try:
            outcome: Timing | StepFailed = self._refusal(step) or self._outcome(step, ahead)
        except (ChildLost, StepFailed) as error:
            self.kill()  # after a CUDA or NCCL error the worker's context or communicators are broken
            outcome = self._failure(step, error)
        except BaseException:  # wrong data; or Ctrl-C, and what nobody has read would answer the next step
            self.kill()
            raise
        self._waiting.popleft()
        self._sent = max(0, self._sent - 1)
        return step, outcome

    def forget(self) -> None:
        """Drop the waiting steps; a worker that has some of them is ended, because nobody will read its answers."""
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
            raise BackendError("the GPU worker is not running any more: measure again")
        return self._child

    def _receive(self, doing: str) -> object:
        """Return the answer to anything but a step."""
        try:
            return cast("Answer", self._live.receive(self._patience.opening_s)).value
        except ChildLost as error:
            self.kill()
            raise BackendError(f"{doing} failed: {error}") from error

    def _exchange(self, request: Request) -> object:
        if self._opens:
            self.facts()
        self._live.send(request)
        return self._receive(_DOING[type(request)])

    def _reopen(self) -> None:
        """Start a worker where the last one stood. Raises StepFailed where that is not possible."""
        self.reap()  # else the new one would find the GPUs' memory still taken
        if self._opening is None:
            raise BackendError("no GPU was opened before the first step")
        try:
            self.start()
            self.open(self._opening)
            self.facts()
            for request in self._setup:
                self._exchange(request)
        except CollbenchError as error:
            raise StepFailed(f"no new worker could be opened: {error}", kind_of(error)) from error

    def _refusal(self, step: Step) -> StepFailed | None:
        if step.operation.is_collective and self._failed_starts >= _NCCL_STARTS:
            last = self._last_failure
            return StepFailed(f"NCCL did not start in {_NCCL_STARTS} workers; the last time: {last}", last.kind)
        return None

    def _outcome(self, step: Step, ahead: int) -> Timing:
        """Send what is not sent yet, and return the first step's times. Raises what the worker reports, ChildLost."""
        if self._child is None:
            self._reopen()
        if self._opens:
            self.facts()
        while self._sent < ahead and not self._refusal(self._waiting[self._sent]):
            self._live.send(self._waiting[self._sent])
            self._sent += 1
        reply = self._live.receive(self._wait_s(step))
        if isinstance(reply, Prepared):
            self._collects = True
            reply = self._live.receive(self._wait_s(step) + self._patience.first_s)
        answer = cast("Answer", reply)
        self._note(step, answer)
        return cast("Timing", answer.value)

    def _wait_s(self, step: Step) -> float:
        network = self._opening is not None and self._opening.world is not None
        wait = self._patience.for_step(step, self._seconds.get(_kind(step)), network=network)
        wait += 0 if self._warm else self._patience.first_s
        prepares = any(isinstance(request, Prepare) for request in self._setup)
        starts = (step.operation.is_collective or prepares) and not self._collects
        return wait + (self._patience.communicators_s if starts else 0)

    def _note(self, step: Step, answer: Answer) -> None:
        self._warm = True
        kind = _kind(step)
        self._seconds[kind] = max(self._seconds.get(kind, 0.0), answer.seconds)
        if step.operation.is_collective:
            self._collects, self._failed_starts = True, 0

    def _failure(self, step: Step, error: BackendError) -> StepFailed:
        if step.operation.is_collective and not self._collects:
            self._failed_starts, self._last_failure = self._failed_starts + 1, error
        if self._opening is not None and self._opening.world is not None:
            failed = PeerLost if isinstance(error, PeerLost) else BackendError
            raise failed(f"rank {self._opening.world.rank} cannot go on: {error}", error.kind) from error
        return error if isinstance(error, StepFailed) else StepFailed(str(error), error.kind)


def _kind(step: Step) -> tuple[Work, int, int]:
    return step.work, step.size_bytes, len(step.groups[0])
