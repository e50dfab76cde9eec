"""The GPUs behind a child process, so that a hang, a crash or a broken context costs a step and not the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import cast

from collbench.backends.patience import Patience
from collbench.backends.protocol import Step, Timing
from collbench.backends.supervised import Supervised
from collbench.backends.worker_messages import (
    AwaitPrepared,
    CanRun,
    Facts,
    ListGpus,
    MakeUniqueId,
    Open,
    Prepare,
    Reserve,
    World,
)
from collbench.errors import BackendError, StepFailed
from collbench.machine.numa import usable_nodes
from collbench.model import Device, Refusal
from collbench.operations import Operation, Variant, Work

_WORKER = "collbench.backends.worker"
_PATIENCE = Patience()
# Steps with the worker: one that it times, and enough behind it to cover the parent's own work between two answers.
_AHEAD = 4


class IsolatedBackend:
    """Times steps on GPUs in a worker process that is started again when a step breaks it.

    In order: `start`, `list_gpus`, `open`, and the rest. The facts of opening are waited for when first needed.
    """

    name = "cuda"

    def __init__(
        self, module: str = _WORKER, patience: Patience = _PATIENCE, extra: Mapping[str, str] | None = None
    ) -> None:
        """Start nothing yet. `module` is what the worker runs, `patience` how long silence may last.

        The worker has our environment, and the `extra` variables.
        """
        self._worker = Supervised(module, patience, extra or {})
        # Without peer access, for copies through host memory; it stands still while the other one times.
        self._staging = Supervised(module, patience, extra or {})
        self._devices: tuple[Device, ...] = ()
        self._prepares = False

    def start(self) -> None:
        """Start the worker and return at once."""
        self._worker.start()

    def list_gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that CUDA shows, in its order. Raises MachineError without a driver."""
        return cast("tuple[str, ...]", self._worker.ask(ListGpus()))

    def unique_id(self, nccl_path: str | None) -> bytes:
        """Return 128 bytes by which the ranks of one world find this one. Raises MachineError without NCCL."""
        return cast("bytes", self._worker.ask(MakeUniqueId(nccl_path)))

    def open(
        self, devices: tuple[Device, ...], nccl_path: str | None, *, collectives: bool, world: World | None = None
    ) -> None:
        """Open the GPUs, of a `world` this rank's alone, and return at once. Errors come with the first question."""
        self._devices = devices
        self._worker.open(Open(devices, nccl_path, collectives=collectives, world=world))
        self._staging.plan(Open(devices, None, collectives=False, peers=False))

    @property
    def facts(self) -> Facts:
        """What opening found. Raises MachineError, BackendError."""
        return self._worker.facts()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that use the GPUs for us right now."""
        return self._worker.process_ids + self._staging.process_ids

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs by position, with a world by rank."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return what the worker can time so."""
        return self.facts.operations[variant]

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
        self._worker.set_up(Reserve(largest_bytes))
        self._staging.set_up(Reserve(largest_bytes))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return why these GPUs cannot do it, None where they can."""
        return cast("Refusal | None", self._worker.ask(CanRun(work, members)))

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making communicators and return at once; every step waits for them, or `ready` does before."""
        if groups:
            self._prepares = True
            self._worker.set_up(Prepare(groups))

    def ready(self) -> None:
        """Wait for the communicators, if any are being made."""
        if self._prepares:
            with suppress(BackendError):  # the first collective's own failure tells more
                self._worker.ask(AwaitPrepared())

    def time_copies(self, step: Step) -> Timing:
        """Time copies or pointer chases. Raises DataCorruption, StepFailed."""
        return self._worker_for(step).time(step)

    def time_collective(self, step: Step) -> Timing:
        """Time a collective. Raises DataCorruption, StepFailed; BackendError with a world, whose ranks need each other.

        A group without a rank of this worker has an empty tuple of seconds.
        """
        return self._worker_for(step).time(step)

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another, a few of them with the worker at any time.

        After a StepFailed none is, and `time_copies` and `time_collective` may be called before the next.
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
        return self._staging if step.variant is Variant.STAGED else self._worker
