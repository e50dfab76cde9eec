"""A recorded job against what links reach: shown, and predicted on other links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collbench.machine import visible_devices
from collbench.model.errors import RunFileError, UsageError
from collbench.model.job import Job
from collbench.model.printable import one_line
from collbench.model.run import CommandKind, Run
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.analysis.job import Report
    from collbench.analysis.predict.recorded import Links, PredictedJob
    from collbench.analysis.predict.timing import Evidence

Named = Sequence[tuple[str, Run]]

# Set for recording; the links do not depend on them.
_RECORDERS = ("NCCL_PROFILER_PLUGIN", "NCCL_VERSION")


def positions_of(job: Job, run: Run, devices: str | None = None) -> dict[int, int]:
    """Return the position in a run of each job rank's device.

    `devices` names them in the order of the ranks; None: the CUDA indices that were recorded, as nvidia-smi's. Raises
    UsageError where the run has other devices.
    """
    if devices is not None:
        chosen = visible_devices.select(run.devices, devices)
        if len(chosen) != job.world_size:
            raise UsageError(
                f"--devices names {len(chosen)} devices, and the job has {job.world_size} ranks: "
                "name one device per rank"
            )
        return {rank: run.devices.index(device) for rank, device in enumerate(chosen)}
    positions = {device.index: position for position, device in enumerate(run.devices)}
    indices = {rank.rank: rank.device for rank in job.ranks}
    if None in indices.values() or len(indices) < job.world_size or len(set(indices.values())) < job.world_size:
        raise UsageError(
            "the job does not say which devices of one host its ranks had: name the run's devices in the order of the "
            "ranks, with --devices"
        )
    missing = sorted(index for index in indices.values() if index is not None and index not in positions)
    if missing:
        raise UsageError(
            f"the job ran on device {missing[0]}, which the run lacks: name devices of the run in rank order, with "
            "--devices"
        )
    return {rank: positions[index] for rank, index in indices.items() if index is not None}


def report(job: Job, rank: int | None = None, runs: Named = (), overlaps: Named = ()) -> tuple[Report, str]:
    """Return what a job's step says, and the names of the runs it is compared with, "" for none.

    Without `runs` that is the newest saved one, where it is of the host and the devices that the job ran on. Raises
    UsageError for a rank that sent nothing, and a run of other devices.
    """
    from collbench.analysis.job import report as judged  # late: numpy
    from collbench.output.text.frame import sim

    if rank is not None and not 0 <= rank < job.world_size:
        raise UsageError(f"--rank {rank} is not one of the job's {job.world_size} ranks: 0 to {job.world_size - 1}")
    chosen = runs or _newest(job)
    alone: dict[int, float] = {}
    concurrent: dict[int, float] = {}
    if chosen:
        links = _links(chosen, job, overlaps=overlaps)
        for number, call in enumerate(job.calls):
            price = links.price(job, call)
            if price is not None and not price.assumed:  # a column of measured figures
                alone[number] = price.seconds[1]
                if overlaps:
                    concurrent[number] = price.seconds[1] * price.concurrent
    elif overlaps:
        raise UsageError("--overlap needs a run of the isolated calls: add --run RUN.JSON")
    judgement = judged(job, rank, alone, concurrent)
    if judgement is None:
        rank_text = "any rank" if rank is None else f"rank {rank}"
        raise UsageError(f"the job has no recorded collective of {rank_text}: there is nothing to show")
    return judgement, "".join(sim(run) for _, run in chosen[:1]) + ", ".join(name for name, _ in chosen)


def predict(
    job: Job,
    runs: Named,
    *,
    devices: str | None = None,
    recorded: Named = (),
    overlaps: Named = (),
) -> tuple[Run, PredictedJob]:
    """Return the run whose links are meant, and the recorded step there (docs/predict.md).

    `devices` as in positions_of. `recorded` are runs of the links as the job had them; none: the same runs, where the
    job's NCCL_* variables are theirs. Raises UsageError.
    """
    from collbench.analysis.predict.contention import gather as gathered  # late: numpy and scipy
    from collbench.analysis.predict.recorded import Links, predict_job
    from collbench.analysis.predict.timing import gather

    evidence = gather(runs)
    links = Links(evidence, positions_of(job, evidence.run, devices), gathered(evidence, overlaps))
    old: Links | None = None
    if recorded:
        devices_recorded = all(rank.device is not None for rank in job.ranks)
        old = _links(recorded, job, devices=None if devices_recorded else devices)
    elif job.environment and _of_links(job.environment) == _of_links(evidence.run.settings.environment):
        old = _own(job, evidence)
    return evidence.run, predict_job(job, links, old)


def _links(runs: Named, job: Job, overlaps: Named = (), devices: str | None = None) -> Links:
    from collbench.analysis.predict.contention import gather as gathered
    from collbench.analysis.predict.recorded import Links
    from collbench.analysis.predict.timing import gather

    evidence = gather(runs)
    return Links(evidence, positions_of(job, evidence.run, devices), gathered(evidence, overlaps))


def _own(job: Job, evidence: Evidence) -> Links | None:
    """Return the links that the job ran on, where the evidence has them."""
    from collbench.analysis.predict.recorded import Links

    try:
        return Links(evidence, positions_of(job, evidence.run))
    except UsageError:
        return None


def _of_links(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("NCCL_") and name not in _RECORDERS}


def _newest(job: Job) -> Named:
    """Return the newest saved run if it is of the job's only host and has its devices; none otherwise."""
    hosts = {rank.host for rank in job.ranks}
    if len(hosts) != 1 or "" in hosts:
        return ()
    files = saved_runs.believed().files
    saved = [path for path in files if CommandKind.of(saved_runs.command_of(path)).of_links]
    for path in saved[:1]:
        try:
            run = run_file.load(path)
            named = [(one_line(str(path)), run)]
            if run.machine.hostname in hosts and not run.machine.fabric:
                _links(named, job)  # it says so where it has no curves, or other devices
                return named
        except (RunFileError, UsageError):
            return ()
    return ()
