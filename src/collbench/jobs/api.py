"""Recorded jobs: recorded with NCCL's profiler plugin or imported from traces, loaded, shown, and predicted."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api import SILENT, Notices, keywords
from collbench.api.runs import format_of
from collbench.jobs import job_file, recording
from collbench.jobs.job import JOB, Ending, Job, check_sent_again
from collbench.machine import device_names
from collbench.model.errors import Interrupted, MachineError, RunFileError, UsageError
from collbench.model.run import Run, capabilities
from collbench.model.units import amount, counted, verb
from collbench.model.values import one_line
from collbench.runfile import atomic_write

if TYPE_CHECKING:
    from collbench.jobs.calls import Report
    from collbench.jobs.predict.recorded import PlacedJob, PredictedJob
    from collbench.jobs.recorded import Merged

# Runs, each with the name of its file.
NamedRuns = Sequence[tuple[str, Run]]


def load_job(path: str | os.PathLike[str]) -> Job:
    """Load a recorded job: a file of `collbench record` or `collbench import`. Raises Error."""
    return job_file.load(keywords.path(path))


# Recording: the job runs with the plugin, and what its processes left is merged into one file.


_NOTE = re.compile(r"\.failed-([0-9]{1,3})$")
_DOING = "save the job"
_NOTEWORTHY = 0.01  # of a step


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job's exit status, and what was recorded of it. If nothing was, `job` is None and `why` says why."""

    status: int
    job: Job | None
    why: str = ""


def record(  # noqa: PLR0913 - keywords, each an option of the command line
    command: Sequence[str],
    output: Path | None,
    *,
    streams: Path | None = None,
    gpu_times: bool = False,
    step_range: str | None = None,
    calls_per_step: int | None = None,
    force: bool = False,
    notices: Notices = SILENT,
) -> Recorded:
    """Run `command` and save what its ranks sent to `output`. If only the recording failed, `why` says why.

    With `streams` the ranks write into that folder, which is kept: several hosts share one. With `output` None the
    streams only stay there. With `gpu_times` NCCL (2.27 or newer) also says how long each call ran on the GPU. A step
    begins with each NVTX range `step_range`, or has `calls_per_step` calls. Raises UsageError, MachineError and
    RunFileError before the job is started.
    """
    recording.check(command)
    if output is not None:
        atomic_write.check(output, _DOING, force=force)
    plugin = recording.plugin()
    with recording.signals_held() as mask:
        folder = _streams_folder(streams)
        older = frozenset(folder.iterdir())  # of other jobs
        where = f"what was recorded is in {folder}: collbench record --streams {shlex.quote(str(folder))} -o FILE"
        job: Job | None = None

        def kept(problem: object) -> str:
            return f"{problem}; {where}" if set(folder.glob("*.stream")) - older else str(problem)

        try:
            variables = recording.environment(os.environ, plugin, folder, gpu_times=gpu_times, step_range=step_range)
            status = recording.run(command, variables, mask)
            if step_range and not set(folder.glob("*.marks")) - older:
                notices.say(
                    f"the job began no NVTX range '{one_line(step_range)}': its step is looked for in its calls"
                )
            if output is None:
                return Recorded(status, None)
            try:
                with recording.signals_heeded(mask):
                    job = merge(
                        folder,
                        output,
                        command,
                        older=older,
                        calls_per_step=calls_per_step,
                        force=force,
                        notices=notices,
                    )
            except (MachineError, RunFileError, OSError) as error:
                return Recorded(status, None, kept(error))
            except KeyboardInterrupt as error:
                raise Interrupted(kept("interrupted before the job was saved")) from error
            return Recorded(status, job)
        finally:
            if streams is None and (job is not None or not any(folder.glob("*.stream"))):
                shutil.rmtree(folder, ignore_errors=True)


def _streams_folder(named: Path | None) -> Path:
    """Return the folder that was named, or a new one. Raises UsageError."""
    try:
        if named is None:
            return Path(tempfile.mkdtemp(prefix="collbench-record-"))
        named.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write.try_folder(named)
        return named.resolve()
    except OSError as error:
        raise UsageError(f"cannot keep streams: {error}", "name another folder with --streams DIR") from error


def merge(
    folder: Path,
    output: Path,
    command: Sequence[str] = (),
    *,
    older: frozenset[Path] = frozenset(),
    calls_per_step: int | None = None,
    force: bool = False,
    notices: Notices = SILENT,
) -> Job:
    """Merge a folder's streams, but none of `older`, and save them as a job.

    Raises MachineError if there is none, and RunFileError.
    """
    from collbench.jobs import recorded  # late: numpy
    from collbench.jobs.streams import StreamError, marks, parse, read

    try:
        files = sorted(set(folder.iterdir()) - older)
    except OSError as error:
        raise RunFileError(f"cannot read {folder}: {error.strerror}") from error
    parsed_streams, left_out = [], 0
    seen: dict[int, Path] = {}
    for path in files:
        if path.suffix != ".stream":
            continue
        try:
            content = read(path)
            if (first := seen.setdefault(hash(content), path)) != path:
                raise StreamError(f"it is a copy of {first.name}")
            parsed_streams.append(parse(content))
        except StreamError as error:
            left_out += 1
            notices.say(f"the stream {one_line(str(path))} is left out: {error}")
        except OSError as error:
            raise RunFileError(f"cannot read {path}: {error.strerror}") from error
    _say_failures(files, notices)
    try:
        merged = recorded.merge(parsed_streams, command, marks(files), calls_per_step)
    except StreamError as error:
        raise RunFileError(f"cannot read the marks of steps in {folder}: {error}") from error
    except ValueError:
        raise MachineError(_nothing(len(parsed_streams), left_out)) from None
    job_file.save(merged.job, output, force=force)
    for finding in _findings(merged):
        notices.say(finding)
    return merged.job


def _findings(merged: Merged) -> Iterator[str]:
    """Yield a notice for each thing that an incomplete recording lacks."""
    if merged.others:
        streams = f"{amount(merged.others, 'other stream')} {verb(merged.others, 'is', 'are')}"
        yield f"{streams} of other jobs of this command: only the job that sent most is kept"
    if merged.missing:
        shown = ", ".join(map(str, merged.missing[:8])) + (", …" if len(merged.missing) > 8 else "")
        yield f"{len(merged.missing)} of {merged.job.world_size} ranks left no stream: {shown}"
    cut = [rank.rank for rank in merged.job.ranks if rank.ending is Ending.CUT_OFF]
    if cut:
        ended = f"{len(cut)} of {len(merged.job.ranks)} ranks {verb(len(cut), 'was', 'were')} killed"
        yield f"{ended}, or left by _exit(): their calls are recorded until then"
    dropped = sum(rank.dropped for rank in merged.job.ranks)
    if dropped:
        yield f"{dropped} calls are missing: a rank's recorder memory was full, or a call is of an unknown kind"
    if merged.too_old:
        nccl = f"this NCCL ({merged.job.nccl})" if merged.job.nccl else "this NCCL"
        yield f"no GPU times: {nccl} does not give them to a plugin, 2.27 or newer does: {recording.INSTEAD}"
    if merged.lacks:
        reasons = "; ".join(f"{count:,}: {why}" for why, count in merged.lacks.items())
        yield f"{sum(merged.lacks.values()):,} of NCCL's calls have no GPU time ({reasons})"


def _say_failures(files: Iterable[Path], notices: Notices) -> None:
    """Say why processes could write no stream: they left notes whose names say it."""
    numbers = {int(match[1]) for path in files if (match := _NOTE.search(path.name))}
    for number in sorted(numbers & errno.errorcode.keys()):
        notices.say(
            f"a process could not write its stream: {os.strerror(number)}; name another folder with --streams DIR"
        )


def _nothing(streams: int, left_out: int) -> str:
    if left_out and not streams:
        are = verb(left_out, "is", "are")
        return f"nothing that was recorded can be read: {amount(left_out, 'stream')} {are} left out"
    if streams:
        return "nothing was recorded: NCCL loaded the plugin, but no rank sent data to another rank"
    return (
        "nothing was recorded: no NCCL loaded the plugin. The job created no communicator of two ranks, or its NCCL is "
        f"older than 2.23 or cannot load libraries: {recording.INSTEAD}"
    )


# Importing: the traces that another tool wrote.


def import_job(
    traces: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    calls_per_step: int | None = None,
    devices: Iterable[int] | None = None,
    force: bool = False,
    notices: Notices = SILENT,
) -> Job:
    """Save the traces that another tool wrote, one per rank, as one job, and return it (docs/import.md). Raises Error.

    The format of each file is detected, and it may be gzipped. `devices` are the indices of the ranks' devices, in rank
    order. With them or with `calls_per_step` a recorded job is a trace, too: it is saved with these devices, or with
    steps of so many calls.
    """
    from collbench.jobs import steps  # late: numpy
    from collbench.jobs.traces import folding, formats

    if isinstance(traces, str | bytes | os.PathLike) or not isinstance(traces, Iterable):
        raise UsageError("traces are a list of files, one for each rank")
    files = [keywords.path(trace) for trace in traces]
    path = keywords.path(output)
    if not files:
        raise UsageError("no trace to import: name one file for each rank")
    length = None if calls_per_step is None else keywords.whole("calls_per_step", calls_per_step, least=1)
    indices = None if devices is None else tuple(keywords.whole("devices", gpu) for gpu in keywords.several(devices))
    force = keywords.flag("force", force)
    if all(map(formats.title_of, files)):  # else reading says what is wrong with them
        atomic_write.check(path, _DOING, force=force)
    if (length or indices) and len(files) == 1 and format_of(files[0]) == JOB:
        job = job_file.load(files[0])
        job = _on_devices(job if length is None else steps.find(job, length), indices)
        job_file.save(job, path, force=force)
        return job
    read = formats.read(files)
    job = _on_devices(folding.job_of(read, length), indices)
    if left_out := folding.left_out(read):
        notices.say(f"rows were left out: {left_out}")
    if doubt := folding.of_several_jobs(job):
        notices.say(doubt)
    lost = sum(trace.lost for trace in read)
    if lost:
        notices.say(f"{lost} calls are missing: the Flight Recorder's ring had no room for them (TORCH_FR_BUFFER_SIZE)")
    called = [trace for trace in read if trace.calls]
    if not any(trace.world_size for trace in called) and not all(group.size for group in job.groups):
        notices.say(f"no trace says how many ranks the job has: it is taken to have {job.world_size}")
    missing = job.world_size - len(job.ranks)
    if missing:
        lacking = f"{missing} of {job.world_size} ranks {verb(missing, 'has', 'have')}"
        notices.say(f"{lacking} no trace with a call: name the files of all ranks")
    job_file.save(job, path, force=force)
    return job


def _on_devices(job: Job, indices: Sequence[int] | None) -> Job:
    """Return the job with these devices of its ranks, as it is for None. Raises UsageError."""
    if indices is None:
        return job
    if len(indices) != job.world_size or len(set(indices)) < len(indices):
        raise UsageError(
            f"--devices names {amount(len(set(indices)), 'device')}, and the job has {amount(job.world_size, 'rank')}: "
            "name one device of one host for each rank"
        )
    return replace(job, ranks=tuple(replace(rank, device=indices[rank.rank]) for rank in job.ranks))


# Recorded jobs and runs: what the links reach in isolation, and the step predicted on other links.


# Set for recording; the links do not depend on them.
_RECORDERS = ("NCCL_PROFILER_PLUGIN", "NCCL_VERSION")


def positions_of(job: Job, run: Run, devices: str | None = None, name: str = "JOB.JSON") -> dict[int, int]:
    """Return the position in a run of each job rank's device.

    `devices` names them in the order of the ranks; None: the CUDA indices that were recorded, as nvidia-smi's. Raises
    UsageError where the run has other devices, or the job, of the file `name`, does not say which its ranks had.
    """
    if devices is not None:
        chosen = device_names.select(run.devices, devices)
        if len(chosen) != job.world_size:
            raise UsageError(
                f"--devices names {amount(len(chosen), 'device')}, and the job has {amount(job.world_size, 'rank')}: "
                "name one device per rank"
            )
        return {rank: run.devices.index(device) for rank, device in enumerate(chosen)}
    positions = {device.index: position for position, device in enumerate(run.devices)}
    indices = _known_devices(job)
    if indices is None:
        raise UsageError(_unknown_devices(job, name))
    missing = sorted(index for index in indices.values() if index not in positions)
    if missing:
        raise UsageError(
            f"the job ran on device {missing[0]}, which the run lacks: name a run that has it; predict takes other "
            "devices with --devices"
        )
    return {rank: positions[index] for rank, index in indices.items()}


def _known_devices(job: Job) -> dict[int, int] | None:
    """Return the index of each rank's device; None if the job does not say all, or they are not of one host."""
    indices = {rank.rank: rank.device for rank in job.ranks if rank.device is not None}
    return indices if len(set(indices.values())) == job.world_size else None


def _unknown_devices(job: Job, name: str) -> str:
    """Return why it is not known which devices a job's ranks had, and the command that says it."""
    if len(job.ranks) < job.world_size:
        return f"{name} has {len(job.ranks)} of the job's {job.world_size} ranks: import the traces of all ranks"
    if len({rank.host for rank in job.ranks}) > 1:
        return f"the ranks of {name} had devices of several hosts, and a run's links are those of one job's host"
    indices = ",".join(map(str, range(job.world_size)))
    output = f"{Path(name).stem}-devices.json"
    command = shlex.join(["collbench", "import", name, "--devices", indices, "-o", output])
    return f"{name} does not say which devices its ranks had: write a copy that does, in rank order: {command}"


def report(job: Job, rank: int | None = None, runs: NamedRuns = (), name: str = "JOB.JSON") -> Report:
    """Return what a job's step says, compared with what runs say of its calls; `name` is that of the job's file.

    Raises UsageError for a rank that sent nothing, and a run of other devices.
    """
    from collbench.jobs.calls import report as judged  # late: numpy

    if rank is not None and not 0 <= rank < job.world_size:
        raise UsageError(f"--rank {rank} is not one of the job's {job.world_size} ranks: 0 to {job.world_size - 1}")
    placed = _placed(runs, job, name=name) if runs else None
    prices = dict(enumerate(map(partial(placed.price, job), job.calls))) if placed else {}
    # A column of measured figures.
    isolated = {number: price.seconds for number, price in prices.items() if price and not price.assumed}
    judgement = judged(job, rank, isolated)
    if judgement is None:
        rank_text = "any rank" if rank is None else f"rank {rank}"
        raise UsageError(f"the job has no recorded collective of {rank_text}: there is nothing to show")
    return replace(
        judgement,
        compared_with=tuple(name for name, _ in runs),
        elsewhere=_elsewhere(job, placed.links.run) if placed else "",
        compared_simulated=any(capabilities(run.backend).simulated for _, run in runs),
        other_variables=tuple(_other_variables(job, placed.links.run)) if placed else (),
        slower=None if placed is None else _on_the_slowest(job, placed),
    )


def _elsewhere(job: Job, run: Run) -> str:
    """Return on which GPUs a run's links were measured; "" if on the job's machine, as far as it says its own."""
    hosts = {rank.host for rank in job.ranks} - {""}
    if hosts == {run.machine.hostname}:
        return ""
    gpus = counted(device.name for device in run.devices)
    ran = f"ran on {', '.join(sorted(hosts))}, which may differ" if hosts else "does not say on which machine it ran"
    return f"of {gpus} in {run.machine.fabric or run.machine.hostname}; the job {ran}"


def _on_the_slowest(job: Job, placed: PlacedJob) -> PredictedJob | None:
    """Return the step on the slowest set that was measured; None if that is the job's own, or nothing says it."""
    from collbench.jobs.predict import recorded as prediction  # late: numpy and scipy

    try:
        _check_predictable(job)
        slowest = replace(placed, positions=dict(enumerate(placed.links.sets(job.world_size)[-1])))
        found = None if _other_variables(job, placed.links.run) else prediction.predict_job(job, slowest, placed)
    except UsageError:  # the page is right without it
        return None
    return found if found is not None and found.change[1] > _NOTEWORTHY * found.step else None


def _check_predictable(job: Job) -> None:
    """Raise UsageError for a job whose step is not known well enough."""
    check_sent_again(job)
    if job.steps.reservation:
        raise UsageError(f"{job.steps.reservation}, which says too little of the job to predict it")


def predict_job(
    job: Job, runs: NamedRuns, *, devices: str | None = None, recorded: NamedRuns = (), name: str = "JOB.JSON"
) -> PredictedJob:
    """Return the change of the recorded step on the links of these runs (docs/predict.md).

    `devices`, where the job would run, and `name` as in positions_of. `recorded` are runs of the links as the job had
    them, on its own devices; none: the same runs, where the job's NCCL_* variables are theirs. Raises UsageError.
    """
    from collbench.jobs.predict import recorded as prediction  # late: numpy and scipy

    _check_predictable(job)
    new = _placed(runs, job, devices, name)
    if recorded:
        old = _placed(recorded, job, _all_of(recorded, job), name)
        _check_one_kind(old.links.run, new.links.run)
    elif others := _other_variables(job, new.links.run):
        raise UsageError(
            f"the runs have other NCCL_* variables than the job ({', '.join(others)}): measure its links with the "
            "job's, 'collbench pairs -o links.json', and add --recorded-links links.json"
        )
    else:
        try:
            old = prediction.PlacedJob(new.links, positions_of(job, new.links.run, name=name))
        except UsageError as error:
            raise error.reworded(
                f"{error}; or add a run of the links that the job used, with --recorded-links RUN"
            ) from error
    return prediction.predict_job(job, new, old)


def _check_one_kind(recorded: Run, new: Run) -> None:
    """Raise UsageError for links of which only some are simulated: their difference says nothing about any machine."""
    kinds = [capabilities(run.backend).simulated for run in (recorded, new)]
    if len({*kinds}) > 1:
        which = (
            "the job's links are simulated and the others measured",
            "the job's links are measured and the others simulated",
        )
        raise UsageError(
            f"{which[kinds[1]]}, and their difference says nothing about any machine: give measured runs of both"
        )


def _all_of(runs: NamedRuns, job: Job) -> str | None:
    """Return the devices of a job's own links where only their runs say them: all that they have, one for each rank.

    --devices does not: it says where the job would run.
    """
    devices = max((run.devices for _, run in runs), key=len)
    if _known_devices(job) is not None or len(devices) != job.world_size:
        return None
    return ",".join(str(device.index) for device in devices)


def _placed(runs: NamedRuns, job: Job, devices: str | None = None, name: str = "JOB.JSON") -> PlacedJob:
    """Return what the links between the job's devices take. Raises UsageError for runs that do not fit."""
    from collbench.jobs.predict.links import Links
    from collbench.jobs.predict.recorded import PlacedJob

    links = Links(runs)
    return PlacedJob(links, positions_of(job, links.run, devices, name))


def _other_variables(job: Job, run: Run) -> list[str]:
    """Return the NCCL_* variables on which links depend and that differ, with both values, if the job's are known."""
    old, new = job.environment, run.settings.environment
    names = sorted(name for name in {*old, *new} if name.startswith("NCCL_") and name not in _RECORDERS)
    return [
        f"{name}: {old.get(name, 'not set')} in the job, {new.get(name, 'not set')} in the runs"
        for name in (names if old else ())
        if old.get(name) != new.get(name)
    ]
