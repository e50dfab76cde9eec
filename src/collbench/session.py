"""One measurement from the request to the finished run: open, plan, sweep, and keep what was measured on the way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from collbench import runfile
from collbench.backends.opening import Opened, nccl_settings, open_backend
from collbench.dtypes import DTYPE_BYTES
from collbench.errors import CollbenchError, DataCorruption, RunFileError, UsageError
from collbench.measure.plan import Members, Plan, collective_sizes, directed_links, unordered_pairs
from collbench.measure.sweep import EFFORTS, Watcher, sweep
from collbench.model import Operation, Run, Settings, Skipped
from collbench.units import format_approximate_size, format_size

# METHOD.md §2: the run is saved after finished rounds; more often than this, saving would be what is measured.
_SECONDS_BETWEEN_SAVES = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure. `copies` asks for the backend's copies; collectives run on `pairs` or on all devices at once.

    `sizes` None takes the backend's default. `backend` is "cuda" or "host".
    """

    backend: str
    devices: str | None
    sizes: tuple[int, ...] | None
    copies: bool
    collectives: tuple[Operation, ...]
    pairs: bool
    dtype: str
    redop: str
    nccl: str | None
    seed: int
    command: tuple[str, ...]


class Session:
    """One request on an open backend. `run` holds every finished visit at any moment, and so does the file `path`.

    A save that fails on the way is told once through `warn` and stays in `failure`; measuring goes on. Opening raises
    UsageError, MachineError, and RunFileError if `path` cannot be written, all before the first visit.
    """

    def __init__(self, request: Request, path: Path, warn: Callable[[str], None]) -> None:
        runfile.check_writable(path)
        self._request, self._path, self._warn = request, path, warn
        self._opened = open_backend(
            request.backend, request.devices, request.nccl, collectives=bool(request.collectives)
        )
        self._saved_at = time.monotonic()
        self.failure: RunFileError | None = None
        try:
            self._plan, skipped = make_plan(request, self._opened)
            self.run = _empty_run(request, self._opened, self._plan, skipped)
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def measure(self, progress: Callable[[int, int], None]) -> None:
        """Sweep the plan. However this ends, what was measured is saved. Raises BackendError, DataCorruption."""
        backend, effort = self._opened.backend, EFFORTS[self._request.backend]
        try:
            backend.reserve(max(self.run.settings.sizes))
            watcher = Watcher(progress, self._finished_round)
            sweep(backend, self._plan, self.run, effort, self._rng(), watcher)
        except DataCorruption as error:
            self.run.skipped.append(Skipped("all that was left", str(error)))  # whoever reads the file must know
            raise
        finally:
            if self.run.measurements:
                with suppress(CollbenchError):  # a GPU that fell off the bus has no health, but what it did is saved
                    self.run.health_after = self._opened.health()
                self._save(last=True)

    def _rng(self) -> random.Random:
        return random.Random(self._request.seed)  # noqa: S311  # an order of visits, no secret

    def _finished_round(self) -> None:
        if time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES:
            self._save()

    def _save(self, *, last: bool = False) -> None:
        try:
            runfile.save(self.run, self._path)
            self.failure = None
        except RunFileError as error:
            if self.failure is None and not last:  # the last failure is for the caller to raise
                self._warn(f"{error} (measuring goes on)")
            self.failure = error
        self._saved_at = time.monotonic()


def make_plan(request: Request, opened: Opened) -> tuple[Plan, list[Skipped]]:
    """Return what can be measured of the request, and what cannot, by name. Raises UsageError if nothing can."""
    backend, n = opened.backend, len(opened.backend.devices())
    sizes, skipped = _fitting(request.sizes or default_sizes(request.backend), opened)
    groups: dict[Operation, tuple[Members, ...]] = {}
    for operation in backend.copy_operations() if request.copies else ():
        reasons = {link: backend.can_copy(operation, *link) for link in directed_links(n)}
        groups[operation] = tuple(link for link, reason in reasons.items() if reason is None)
        skipped += [
            Skipped(f"{operation} {opened.backend.devices()[a].tag} → {opened.backend.devices()[b].tag}", reason)
            for (a, b), reason in reasons.items()
            if reason is not None
        ]
    for operation in request.collectives:
        groups[operation] = unordered_pairs(n) if request.pairs else (tuple(range(n)),)
    collective = collective_sizes(sizes, request.dtype)
    if request.collectives and len(collective) < len(sizes):
        small = ", ".join(format_size(size) for size in sizes if size < DTYPE_BYTES[request.dtype])
        if not collective:
            raise UsageError(f"--sizes {small}: one {request.dtype} takes {DTYPE_BYTES[request.dtype]} bytes")
        if small:
            skipped.append(Skipped(f"collectives of {small} bytes", f"smaller than one {request.dtype}"))
    return Plan(
        devices=n,
        groups={operation: found for operation, found in groups.items() if found},
        sizes={operation: sizes if operation.is_copy else collective for operation in groups},
        dtype=request.dtype,
        redop=request.redop,
        block_bytes=EFFORTS[request.backend].block_bytes,
        launch_loop=not request.copies,  # the page that shows copies has no column for it
    ), skipped


def default_sizes(backend: str) -> tuple[int, ...]:
    """Return powers of two from 8 B to 1 GiB; to 64 MiB on the host backend, whose cores would take minutes."""
    return tuple(2**exponent for exponent in range(3, 27 if backend == "host" else 31))


def _fitting(sizes: tuple[int, ...], opened: Opened) -> tuple[tuple[int, ...], list[Skipped]]:
    """Return the sizes that every device has room for; the others are skipped by name. Raises UsageError."""
    capacity = opened.backend.capacity_bytes()
    fitting = tuple(size for size in sizes if size <= capacity)
    room = f"the fullest device has room for messages of {format_approximate_size(capacity)}"
    if not fitting:
        raise UsageError(f"size {format_size(sizes[0])} does not fit: {room}; {_free(opened)}")
    too_large = ", ".join(format_size(size) for size in sizes if size > capacity)
    return fitting, [Skipped(f"sizes {too_large}", f"{room}; {_free(opened)}")] if too_large else []


def _free(opened: Opened) -> str:
    free = opened.backend.free_bytes()
    if not free:
        return "half of the free memory is shared among source, target and gloo's buffers"
    names = (device.tag for device in opened.backend.devices())
    amounts = ", ".join(f"{tag} {format_approximate_size(amount)}" for tag, amount in zip(names, free, strict=True))
    return f"free now: {amounts}, shared by three buffers beside NCCL's own"


def _empty_run(request: Request, opened: Opened, plan: Plan, skipped: list[Skipped]) -> Run:
    return Run(
        backend=opened.backend.name,
        version=version("collbench"),
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=opened.machine,
        devices=opened.backend.devices(),
        paths=opened.paths,
        settings=Settings(
            operations=tuple(plan.groups),
            sizes=tuple(sorted({size for sizes in plan.sizes.values() for size in sizes})),
            dtype=request.dtype,
            redop=request.redop,
            visits=EFFORTS[request.backend].screening,
            seed=request.seed,
            command=request.command,
            environment=nccl_settings(),
        ),
        skipped=skipped,
        health_before=opened.health(),
    )
