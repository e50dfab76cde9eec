"""The commands about jobs: recorded, imported, replayed, and predicted on other links.

Late imports: a command loads what it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.api.runs import NamedRun, format_of, load_named, saved_files
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, echo, is_json, json_option, leaving, say, show_page
from collbench.jobs import job_file
from collbench.jobs.job import JOB, Job
from collbench.jobs.predict.network import BYTES, MAX_LAYERS, STRATEGIES, Step, parse_parameters
from collbench.model.errors import ExitStatus, RunFileError, UsageError
from collbench.model.run import BACKENDS, SIM
from collbench.model.units import amount
from collbench.model.values import one_line
from collbench.runfile import run_file

if TYPE_CHECKING:
    from collbench.ablations.ablation import ArmChange
    from collbench.jobs.api import NamedRuns
    from collbench.report.layout import Block

_FOLDER = click.Path(path_type=Path, file_okay=False)
_output = option("-o, --output FILE", "Save the job in this file.  [default: job.json, here]", options.OUTPUT)

_calls_per_step = option(
    "--calls-per-step N",
    "A step has N calls on each rank.  [default: where the job marks it, or found in its calls]",
    click.IntRange(min=1),
)


def _range_name(text: str) -> str:
    """Return the name of a range. Raises UsageError."""
    if not text.strip():
        raise UsageError(f"--step-range '{text}' names no NVTX range: write --step-range iteration")
    return text


@click.command(
    cls=options.CheckedCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
)
@options.apply(
    _output,
    options.force,
    option(
        "--streams DIR",
        "Folder for the ranks' files, shared by all hosts of the job; it is kept. Without -o no job file is "
        "written; without COMMAND the files in the folder are merged.",
        _FOLDER,
    ),
    option(
        "--gpu-times", "Also record how long each call ran on the GPU (NCCL 2.27 or newer). Slows captured CUDA graphs."
    ),
    option(
        "--step-range NAME",
        "A step begins with each NVTX range of the job that is called NAME, or NAME and a number.",
        _range_name,
    ),
    _calls_per_step,
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(*, output: Path | None, command: tuple[str, ...], **values: Any) -> None:
    """Run COMMAND and save every NCCL call of its ranks: function, size, group, order and time.

    The job runs unchanged: NCCL (2.23 or newer) loads a profiler plugin, which compresses repeated steps as they run.
    Output and exit status are the job's own, but 2 if a job that succeeded could not be recorded. If the job is killed,
    the calls until then are saved. docs/record.md lists what a plugin cannot see.

    \b
    Examples:
      collbench record -- torchrun --nproc-per-node 2 train.py
      collbench record -o job.json -- python train.py
      collbench record --gpu-times -- python train.py   # waiting, late ranks
      collbench record --streams /shared/rec -- mpirun -n 16 ./train
      collbench record --streams /shared/rec -o job.json   # merge, afterwards
    """
    from collbench.jobs import api as jobs

    streams: Path | None = values["streams"]
    if not command:
        for option_name in ("gpu_times", "step_range"):
            if values[option_name]:
                flag = f"--{option_name.replace('_', '-')}"
                raise UsageError(f"{flag} needs a command to record: streams already have what their job recorded")
        if streams is None:
            raise UsageError("no command to record: collbench record -- torchrun train.py")
        if not streams.is_dir():
            raise UsageError(
                f"folder {one_line(str(streams))} does not exist: --streams names the folder of a recording"
            )
        merged = output or Path("job.json")
        common = {name: values[name] for name in ("calls_per_step", "force")}
        _say_what_is_in(jobs.merge(streams, merged, notices=NOTICES, **common), merged)
        return
    path = output or (None if streams else Path("job.json"))
    ended = jobs.record(command, path, notices=NOTICES, **values)
    if path is None:
        say(f"merge the streams of all hosts with: collbench record --streams {one_line(str(streams))} -o job.json")
    elif ended.job is not None:
        _say_what_is_in(ended.job, path)
    else:
        say(ended.why)
    failed = ExitStatus.BAD_INPUT if ended.why else ExitStatus.DONE
    raise click.exceptions.Exit(ended.status or failed)


_NUMBER = re.compile(r"\d{1,4}", re.ASCII)


def _numbers(name: str, what: str, least: int = 0) -> Callable[[str], tuple[int, ...]]:
    """Return what reads an option's numbers, with commas, and raises UsageError for one that is not `what`."""

    def read(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        wrong = next((part for part in parts if not _NUMBER.fullmatch(part) or int(part) < least), None)
        if wrong is not None:
            raise UsageError(f"{name} '{wrong}' is not {what}")
        return tuple(map(int, parts))

    return read


@click.command(name="import")
@options.apply(
    _output,
    _calls_per_step,
    option(
        "--devices LIST",
        "Devices that the ranks had, nvidia-smi's indices in rank order: 0,1. Traces do not say it.",
        _numbers("--devices", "an index of nvidia-smi: write 0,1"),
    ),
    options.force,
)
@click.argument("files", nargs=-1, required=True, metavar="TRACE...", type=options.FILE)
def import_job(*, output: Path | None, files: tuple[Path, ...], **values: Any) -> None:
    """Convert the traces of a job's ranks to one job file, which show, replay and predict read.

    Each TRACE is one rank's: an export of torch.profiler, a dump of torch's Flight Recorder, or a trace of torch's
    ExecutionTraceObserver; it may be gzipped. What a trace does not contain stays unknown in the job; docs/import.md
    lists it. With --calls-per-step or --devices, TRACE may be a recorded job.

    \b
    Examples:
      collbench import trace-0.json.gz trace-1.json.gz
      collbench import -o job.json /tmp/nccl_trace_rank_*
    """
    from collbench.jobs import api as jobs

    path = output or Path("job.json")
    job = jobs.import_job(files, path, notices=NOTICES, **values)
    _say_what_is_in(job, path, "imported")


def _say_what_is_in(job: Job, path: Path, done: str = "recorded") -> None:
    """Say what a job file holds, after what its step does not cover."""
    if job.steps.source is not None and job.steps.reservation:
        say(job.steps.reservation)
    calls = sum(rank.calls for rank in job.ranks)
    steps = {(len(step.positions), step.repetitions) for rank in job.ranks if (step := rank.step)}
    longest_step = max(steps, key=lambda step: step[0] * step[1], default=None)
    repeated = f"no step was found ({job.steps.why})"
    if longest_step is not None:
        doubt = f" ({job.steps.why})" if job.steps.why else ""
        repeated = f"the step has {longest_step[0]:,} and ran {longest_step[1]:,} times{doubt}"
    say(f"{done} {calls:,} calls of {amount(len(job.ranks), 'rank')}; {repeated}: {one_line(str(path))}")


COMMANDS = {"import": import_job}  # "import" is a keyword of Python


# `collbench replay`


def _without(text: str) -> ArmChange:
    from collbench.jobs.replay.measure import parse_without

    return parse_without(text)


@click.command()
@click.argument("job", metavar="JOB", type=options.FILE)
@options.apply(
    option(
        "--devices LIST",
        "GPUs for the job's ranks, in rank order: nvidia-smi indices or UUIDs.  [default: the first GPUs]",
    ),
    option(
        "--without WHAT",
        "Replay it also without p2p, nvlink, shm or ib (several with commas), in turn, and compare.",
        _without,
    ),
    option("--trials N", "How often to time the step.  [default: 8; host: 6]", options.COUNT),
    *options.of_workers,
)
def replay(job: Path, **values: Any) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. One process for each GPU runs torch's NCCL. The page has
    the communication time of a step and the exposed part: the step's time minus that of the pauses alone. All data is
    verified.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3
      collbench replay job.json --without p2p
    """
    from collbench.cli.measuring import measure_with_workers, new_file
    from collbench.jobs.replay.measure import request_of
    from collbench.overlaps.workers import WorkerSession

    request = request_of(job_file.load(job), job.name, values, options.command_line("replay"), NOTICES)
    path = values["output"] or new_file("replay", request.backend)
    measure_with_workers(partial(WorkerSession, request, path, NOTICES))


# `collbench predict`

_OF_A_JOB = ("files", "devices", "recorded_links", "as_json")


@click.command()
@options.run_files
@options.apply(
    option("--devices LIST", "For a job: devices in rank order: 2,3."),
    option(
        "--recorded-links RUN",
        "For a job: a run of the links that it used.  [default: the same runs, on the job's devices]",
        options.RUN,
        multiple=True,
    ),
    option("--params COUNT", "Without a job: the network's parameters: 124M, 1.5B."),
    option("--strategy", "How it is trained.", click.Choice(list(STRATEGIES)), default="ddp"),
    option(
        "--layers N", "zero3, fsdp: its layers, each sent as one message.", click.IntRange(1, MAX_LAYERS), default=24
    ),
    option("--dtype", "Type of what is sent: fp32 for DDP with autocast.", click.Choice(list(BYTES)), default="bf16"),
    option(
        "--gpus LIST",
        "Numbers of GPUs to predict for: 2,4.  [default: all that the runs have]",
        _numbers("--gpus", "a number of GPUs from 2: write 2,4", least=2),
    ),
    json_option("Print JSON (docs/predict.md)."),
)
def predict(
    files: tuple[Path, ...],
    *,
    devices: str | None,
    recorded_links: tuple[Path, ...],
    params: str | None,
    gpus: tuple[int, ...] | None,
    **step_options: Any,
) -> None:
    """Predict how much longer a step takes on other links: without P2P, on another pair.

    With a recorded job as first file, it predicts the change of that job's step from the links that it used
    (--recorded-links) to those of the runs. Without a job, it predicts from the number of parameters what a step's
    collectives take on the fastest and the slowest GPUs that were measured. Without a run, it takes the newest saved
    run that was measured, never a simulated one.

    \b
    Examples:
      collbench predict job.json without-p2p.json --recorded-links with-p2p.json
      collbench predict job.json pairs.json --devices 2,3
      collbench predict pairs.json --params 124M --strategy fsdp
    """
    is_job = bool(files) and format_of(files[0]) == JOB
    if is_job:
        _check_of_a_job()
    else:
        _check_of_a_network(files, params, for_a_job=devices is not None or bool(recorded_links))
    run_files = files[is_job:]
    job = job_file.load(files[0]) if is_job else None
    name = one_line(str(files[0])) if is_job else ""
    taken: list[Path] = []
    if run_files:
        runs = load_named(run_files)
    else:
        path, runs = _newest_saved(job, devices, name)
        taken.append(path)
    used = load_named(recorded_links)
    from rich.text import Text

    from collbench.jobs.predict.page import contended, partly
    from collbench.judge.outcome import outcome
    from collbench.report.frame import ALARM, alarm

    named = dict((*runs, *used)).items()
    interrupted = [line for name, run in named for line in partly(name, run)]
    try:
        if job is not None:
            blocks, fields = _of_a_job(job, name, runs, devices, used)
        else:
            blocks, fields = _of_a_network(runs, Step(parse_parameters(params or ""), **step_options), gpus)
    except UsageError as error:
        raise error.reworded("; ".join([str(error), *interrupted])) from error
    lines = [line for name, run in named for line in contended(name, run)]
    status = max(outcome(run).status for _, run in runs)
    with leaving(status):
        if is_json():
            fields |= {"exit_status": status, "interrupted": interrupted, "contention": lines}
            echo(json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False))
        else:
            source = [Text(f"From the newest saved run, {one_line(str(path))}:\n") for path in taken]
            alarms = [block for _, run in runs for block in alarm(run)]
            show_page([*source, *alarms, *(Text(line, style=ALARM) for line in (*interrupted, *lines)), *blocks])


def _newest_saved(job: Job | None, devices: str | None, name: str) -> tuple[Path, list[NamedRun]]:
    """Return the newest saved run that serves, and its file. Raises what is wrong with the newest of GPUs if none does.

    Simulated runs and those of CPU cores do not serve: nobody named them.
    """
    files = saved_files(NOTICES, of_links=True)
    of_gpus = [path for path in files if _may_be_of_gpus(path)]
    if not of_gpus:
        simulated = [path for path in files if run_file.backend_of(path) == SIM.name]
        named = f", or name a simulated run, as the newest: {simulated[0]}" if simulated else ""
        raise UsageError(f"no saved run is of real GPUs: measure with 'collbench pairs' first{named}")
    refused: list[UsageError | RunFileError] = []
    for path in of_gpus:
        try:
            runs = _saved(path, job, devices, name)
        except (UsageError, RunFileError) as error:
            refused.append(error)
        else:
            NOTICES.say(f"the newest saved run{' that serves here' if path is not files[0] else ''}, {path}")
            return path, runs
    raise refused[0]


def _may_be_of_gpus(path: Path) -> bool:
    backend = run_file.backend_of(path)  # by its name: there may be many
    return backend not in BACKENDS or BACKENDS[backend].nvml


def _saved(path: Path, job: Job | None, devices: str | None, name: str) -> list[NamedRun]:
    """Return a saved run. Raises UsageError if it lacks a collective or the job's devices."""
    from collbench.jobs.predict.links import Links

    runs = load_named([path])
    links = Links(runs)
    if job is not None:
        from collbench.jobs.api import positions_of

        positions_of(job, links.run, devices, name)
    return runs


def _check_of_a_job() -> None:
    if others := options.typed_besides(_OF_A_JOB):
        raise UsageError(f"{others[0]} describes a network, and a recorded job already has its messages: leave it out")


def _check_of_a_network(files: Sequence[Path], params: str | None, *, for_a_job: bool) -> None:
    if params is not None and not for_a_job:
        return
    if files:
        run_file.load(files[0])  # a file that cannot be read is the more likely mistake
    if for_a_job:
        raise UsageError("--devices and --recorded-links are for a recorded job: name its file first, before the runs")
    raise UsageError("name a recorded job first, or give the network's parameters: --params 124M")


_Answer = tuple[Iterable["Block"], dict[str, Any]]  # a page, and the fields of its JSON


def _of_a_job(job: Job, name: str, runs: NamedRuns, devices: str | None, used: NamedRuns) -> _Answer:
    from collbench.jobs import api as jobs
    from collbench.jobs.predict import page

    predicted = jobs.predict_job(job, runs, devices=devices, recorded=used, name=name)
    return page.job_page(job, predicted), page.job_json(job, predicted)


def _of_a_network(runs: NamedRuns, step: Step, gpus: tuple[int, ...] | None) -> _Answer:
    from collbench.jobs.predict import network, page
    from collbench.jobs.predict.links import Links

    prediction = network.predict_step(Links(runs), step, gpus)
    return page.training_page(prediction), page.training_json(prediction)
