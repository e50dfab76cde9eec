"""One measurement from the request to the finished run: open, plan, sweep, save."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, Self

from collbench.measurement.backends.factory import Begun, open_backend
from collbench.measurement.backends.protocol import OpenDevices, Opened
from collbench.measurement.plan import Plan, Request, check_registrations, make_plan, settings_of
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, FailureKind
from collbench.model.run import CommandKind, Device, Run, Settings, Skipped, device_sets
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter


class LaunchedRanks(Protocol):
    """One process per device, which measure together: a launcher started them, and this process is rank 0."""

    def open(self) -> Opened:
        """Return the backend of all ranks."""


class Session:
    """One request on an open backend. `run` holds every finished trial at any moment.

    The file `path` follows within seconds, by the `writer`. A save that fails on the way is reported once through
    `warn`; measuring continues. Without a path (None) nothing is saved. Opening raises UsageError, MachineError, and
    RunFileError if `path` cannot be written, all before the first trial.
    """

    def __init__(
        self,
        request: Request,
        path: Path | None,
        warn: Callable[[str], None],
        ranks: LaunchedRanks | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Open the request's devices, those of all `ranks` if given; `begun` is what `factory.begin` returned."""
        if path is not None:
            run_file.check_writable(path, replace=request.force)
        self._request, self._warn = request, warn
        with ExitStack() as undo:
            check_registrations(request)
            self._opened = open_backend(request, begun) if ranks is None else ranks.open()
            undo.callback(self._opened.close)
            supported, lacking = request.supported_by(self._opened.machine.nccl)
            self._plan, skipped = make_plan(supported, self._opened.backend)
            skipped += lacking
            # First: the backend makes its communicators while this process reads the devices' health.
            self._opened.backend.reserve(self._plan.largest_bytes())
            collective = (groups for work, groups in self._plan.groups.items() if work.operation.is_collective)
            self._opened.backend.prepare(tuple(dict.fromkeys(members for groups in collective for members in groups)))
            self.run = empty_run(request, self._opened, self._plan, skipped)
            self.writer = RunWriter(self.run, path, warn, replace=request.force)
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()

    def measure(self, progress: Callable[[int, int], None]) -> None:
        """Sweep the plan. Results are saved however this ends. Raises BackendError, DataCorruption."""
        from collbench.measurement.sweep import Watcher, sweep, wrong_data  # late: numpy, while the GPUs are opened

        backend, corrupt = self._opened.backend, False
        rule = self._request.stopping_rule()
        if confirms := self._confirms():
            from collbench.measurement.confirm import confirm  # late: it judges; now, while NCCL starts
        try:
            watcher = Watcher(progress, self.writer.keep, self._opened.flags, self._opened.clock)
            order = random.Random(self._request.seed)  # noqa: S311  # no secret
            sweep(backend, self._plan, self.run, rule, order, watcher)
            if confirms:
                confirm(backend, self._plan, self.run, rule, watcher, self._warn)
        except DataCorruption as error:
            self.run.skipped.append(wrong_data(error))  # readers of the file must know
            corrupt = True
            if not rule.around_faults or error.wrong is None:
                raise
        finally:
            if self.run.measurements or corrupt:
                with suppress(CollbenchError):  # a GPU that fell off the bus has no health, but what it did is saved
                    self.run.health_after = self._opened.health()
                    read_ports_after(self.run, self._opened)
                backend.close()  # what it holds is released while the run is saved and shown
                self.writer.end()
        _check_success(self.run)

    def _confirms(self) -> bool:
        """Return whether what the run accuses is measured again."""
        kind = self._request.kind
        return kind == CommandKind.CHECK or (
            kind == CommandKind.PAIRS and not capabilities(self._request.backend).cores
        )


def _check_success(run: Run) -> None:
    """Raise BackendError if every data point failed; it names a hang first, and on which devices."""
    if run.measurements and not any(measurement.samples for measurement in run.measurements):
        failures = [(lost.point.members, lost.failure) for lost in run.measurements if lost.failure is not None]
        hangs = (failed for failed in failures if failed[1].kind is FailureKind.HANG)
        members, failure = next(hangs, failures[-1])
        where = device_sets([members], run.devices)
        raise BackendError(f"nothing could be measured: {where}: {failure}", failure=failure)


def empty_run(request: Request, opened: Opened, plan: Plan, skipped: list[Skipped]) -> Run:
    """Return the run of a request before its first trial: the machine and the settings."""
    if request.layers:  # the numbers of ranks depend on the devices
        request = replace(request, sets=next(iter(plan.groups.values())))
    settings = settings_of(
        request,
        operations=tuple(dict.fromkeys(work.operation for work in plan.groups)),
        sizes=tuple(sorted({size for sizes in plan.sizes.values() for size in sizes})),
        trials=request.stopping_rule().screening,
        opened=opened,
    )
    return replace(begun_run(opened, settings), skipped=skipped)


def begun_run(opened: Opened, settings: Settings) -> Run:
    """Return a run that starts now on the opened devices, without measurements."""
    run = new_run(opened.backend.name, opened.backend.devices(), opened, settings)
    run.ports_before = opened.ports() or ()
    return run


def read_ports_after(run: Run, opened: Opened) -> None:
    """Store the final counters of the network cards' ports. Raises BackendError."""
    ports = opened.ports()
    run.ports_after, run.ports_after_read = ports or (), ports is not None


def new_run(backend: str, devices: tuple[Device, ...], opened: OpenDevices, settings: Settings) -> Run:
    """Return a run that starts now on these devices, without measurements."""
    from importlib.metadata import version  # late: 15 ms, while the GPUs are opened

    return Run(
        backend=backend,
        version=version("collbench"),
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=opened.machine,
        devices=devices,
        paths=opened.paths,
        settings=settings,
        health_before=opened.health(),
    )
