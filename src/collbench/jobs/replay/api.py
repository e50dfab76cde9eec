"""A recorded step, replayed: from typed options and a job to a request, and to a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.api import SILENT, Notices, keywords
from collbench.api.measuring import WorkerSession, check_no_launcher, new_seed, resolved_backend
from collbench.api.runs import MeasuredRun
from collbench.jobs.job import Job, checked
from collbench.jobs.replay import measure as bench
from collbench.jobs.replay.measure import ReplayRequest
from collbench.jobs.replay.protocol import ReplayArm, ReplayBackend, ReplayOpened
from collbench.jobs.replay.schedule import Schedule, schedule_of
from collbench.launch import ablation
from collbench.model.capabilities import Capabilities, capabilities
from collbench.model.errors import UsageError
from collbench.model.run import Device, Run
from collbench.model.units import amount

# About as many as for a data point that overlaps compute (method/collectives.md 8): a median of eight has a 95%
# interval.
_GPU_TRIALS, _CORE_TRIALS = 8, 6


def parse_without(text: str) -> tuple[str, ...]:
    """Return what an arm goes without: "p2p,shm". Raises UsageError."""
    change = ablation.parse_change((text,))
    if change.given:
        raise UsageError(
            f"--without {change.given[0]} needs a script: a recorded job is replayed without "
            f"{', '.join(ablation.SWITCHES)}"
        )
    return change.switches


def request_of(
    job: Job,
    name: str,
    values: Mapping[str, Any],
    command: Sequence[str],
    notices: Notices = SILENT,
) -> ReplayRequest:
    """Return what the options of `collbench replay`, by name, ask for of a job, whose file is called `name`.

    The command line is `command`. Raises UsageError, for a job that cannot be replayed too.
    """
    check_no_launcher("replay")
    backend = resolved_backend(values["backend"], values["fabric"], notices)
    devices, without = values.get("devices"), values.get("without") or ()
    ranks = None if devices is None else len([device for device in devices.split(",") if device.strip()])
    schedule = schedule_of(job, ranks)
    backend_capabilities = capabilities(backend)
    _check_backend(backend_capabilities, without, schedule)
    if job.steps.reservation:
        notices.say(job.steps.reservation)
    for assumption in schedule.assumed:
        notices.say(f"replaying {assumption}")
    arms = [ReplayArm()]
    if without:
        arms.append(ReplayArm(without, _settings(without)))
    if "nvlink" in without:
        notices.say(ablation.NVLINK_NOTE)
    return ReplayRequest(
        backend=backend,
        job=name,
        recorded_ranks=job.world_size,
        schedule=schedule,
        arms=tuple(arms),
        trials=values.get("trials") or (_CORE_TRIALS if backend_capabilities.cores else _GPU_TRIALS),
        seed=new_seed() if values.get("seed") is None else values["seed"],
        command=tuple(command),
        devices=devices,
        fabric=values["fabric"],
        force=values.get("force", False),
    )


def _settings(without: Sequence[str]) -> dict[str, str]:
    return {name: value for switch in without for name, value in ablation.SWITCHES[switch].items()}


def _check_backend(backend: Capabilities, without: Sequence[str], schedule: Schedule) -> None:
    """Raise UsageError for what this backend cannot replay."""
    if without and not backend.nvml:
        raise UsageError(f"the {backend.name} backend has no {', '.join(without)} to deny NCCL: leave out --without")
    for name in _settings(without):
        if os.environ.get(name):
            raise UsageError(f"{name} is already set, so both arms would use it: unset it, or leave out --without")
    posts = {post for units in schedule.ranks for unit in units for post in unit.posts}
    for post in posts if backend.cores else ():
        if post.reduction == "avg" or post.dtype.startswith("float8"):
            what = "by avg" if post.reduction == "avg" else post.dtype
            raise UsageError(f"gloo cannot reduce {what} as the job does: replay it on GPUs")


class Replaying(WorkerSession[ReplayBackend]):
    """A request of `collbench replay` on open workers."""

    def __init__(self, request: ReplayRequest, path: Path | None, notices: Notices = SILENT) -> None:
        self._request = request
        super().__init__(path, notices, replace=request.force)

    def _open(self) -> ReplayOpened:
        request = self._request
        if capabilities(request.backend).simulated:
            from collbench.jobs.replay import simulated  # late: simulations are rare

            return simulated.open_replay(request.fabric, request.devices, request.seed, self._chosen)
        from collbench.jobs.replay.worlds import open_replay

        return open_replay(request.backend, request.devices, request.arms, self._chosen)

    def _chosen(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return a device for each rank: those that were named, else the first ones."""
        ranks = len(self._request.schedule.ranks)
        if len(devices) == ranks or (self._request.devices is None and len(devices) > ranks):
            return devices[:ranks]
        raise UsageError(
            f"the job has {amount(ranks, 'rank')} and {amount(len(devices), 'device')}: name one of --devices "
            "per rank, or fewer if every group of the job has all ranks"
        )

    def _begun(self, opened: ReplayOpened) -> Run:
        return bench.begun_run(self._request, opened)

    def _measure(self, opened: ReplayOpened, saved: Callable[[], None]) -> None:
        with self._notices.progress(f"replaying {self._request.job}") as progress:
            bench.measure(self._request, opened, self.run, saved, progress)


# The Python call.


def replay(  # noqa: PLR0913 - keywords, each an option of the command line
    job: Job,
    *,
    devices: Iterable[int | str] | None = None,
    without: str | None = None,
    trials: int | None = None,
    backend: str = "auto",
    fabric: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> MeasuredRun:
    """Replay a recorded job's step, as `collbench replay` does, and return the run: its results are in `replays`.

    The keywords are its options. Worker processes use the GPUs and torch; this process does not
    start CUDA. The run is saved as `output`, or as a new file that `runs` lists, unless `save` is False. Raises Error.
    """
    from collbench.cli.calls import called  # late: the command needs no other command

    keywords.check_only_process("replay")
    checked(job)
    given = {
        "devices": devices,
        "without": without,
        "trials": trials,
        "backend": backend,
        "fabric": fabric,
        "seed": seed,
    }
    context, words = called("replay", given, ["job"])
    request = request_of(job, "job", context.params, words)
    done = Replaying(request, keywords.run_path("replay", request.backend, output, save)).finish()
    return MeasuredRun.of(done.saved_run())
