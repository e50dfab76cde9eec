"""`collbench record` and `collbench import`: a job, run and recorded, or from traces of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from collbench.cli import options
from collbench.cli.terminal import NOTICES, say
from collbench.jobs.job import Job
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.printable import one_line
from collbench.model.units import amount

_FOLDER = click.Path(path_type=Path, file_okay=False)
_output = click.option(
    "-o", "--output", metavar="FILE", type=options.FILE, help="Save the job in this file.  [default: job.json, here]"
)

_calls_per_step = click.option(
    "--calls-per-step",
    metavar="N",
    type=click.IntRange(min=1),
    help="A step has N calls on each rank.  [default: where the job calls collbench.step(), or found in its calls]",
)


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
)
@options.apply(
    _output,
    options.force,
    click.option(
        "--streams",
        metavar="DIR",
        type=_FOLDER,
        help="Folder for the ranks' files, shared by all hosts of the job; it is kept. Without -o no job file is "
        "written; without COMMAND the files in the folder are merged.",
    ),
    click.option(
        "--gpu-times",
        is_flag=True,
        help="Also record how long each call ran on the GPU (NCCL 2.27 or newer). Slows captured CUDA graphs.",
    ),
    _calls_per_step,
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(
    output: Path | None,
    force: bool,
    streams: Path | None,
    gpu_times: bool,
    calls_per_step: int | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and save every NCCL call of its ranks: function, size, group, order and time.

    The job runs unchanged: NCCL (2.23 or newer) loads a profiler plugin, which compresses repeated steps as they run.
    Exit status and output are the job's own. If the job is killed, the calls until then are saved. docs/record.md
    lists what a plugin cannot see.

    \b
    Examples:
      collbench record -- torchrun --nproc-per-node 2 train.py
      collbench record -o job.json -- python train.py
      collbench record --gpu-times -- python train.py   # waiting, late ranks
      collbench record --streams /shared/rec -- mpirun -n 16 ./train
      collbench record --streams /shared/rec -o job.json   # merge, afterwards
    """
    from collbench.jobs import api as jobs  # late: tempfile, subprocess

    if not command:
        if gpu_times:
            raise UsageError("--gpu-times needs a command to record: streams already have what their job recorded")
        if streams is None:
            raise UsageError("no command to record: collbench record -- torchrun train.py")
        if not streams.is_dir():
            raise UsageError(
                f"folder {one_line(str(streams))} does not exist: --streams names the folder of a recording"
            )
        merged = output or Path("job.json")
        job = jobs.merge(streams, merged, calls_per_step=calls_per_step, force=force, notices=NOTICES)
        say(_summary(job, merged))
        return
    path = output or (None if streams else Path("job.json"))
    ended = jobs.record(
        command,
        path,
        streams=streams,
        gpu_times=gpu_times,
        calls_per_step=calls_per_step,
        force=force,
        notices=NOTICES,
    )
    if path is None:
        say(f"merge the streams of all hosts with: collbench record --streams {one_line(str(streams))} -o job.json")
    elif ended.job is not None:
        say(_summary(ended.job, path))
    else:
        say(ended.why)
    failed = ExitStatus.BAD_INPUT if ended.why else ExitStatus.DONE
    raise click.exceptions.Exit(ended.status or failed)


@click.command(name="import")
@options.apply(
    _output,
    _calls_per_step,
    options.force,
)
@click.argument("files", nargs=-1, required=True, metavar="TRACE...", type=options.FILE)
def import_job(output: Path | None, calls_per_step: int | None, force: bool, files: tuple[Path, ...]) -> None:
    """Convert the traces of a job's ranks to one job file, which show, replay and predict read.

    Each TRACE is one rank's: an export of torch.profiler, a dump of torch's Flight Recorder, or a trace of torch's
    ExecutionTraceObserver; it may be gzipped. What a trace does not contain stays unknown in the job; docs/import.md
    lists it. With --calls-per-step, TRACE may be a recorded job.

    \b
    Examples:
      collbench import trace-0.json.gz trace-1.json.gz
      collbench import -o job.json /tmp/nccl_trace_rank_*
    """
    from collbench.jobs import api as jobs  # late: tempfile, subprocess

    path = output or Path("job.json")
    job = jobs.import_job(files, path, calls_per_step=calls_per_step, force=force, notices=NOTICES)
    say(_summary(job, path, "imported"))


def _summary(job: Job, path: Path, done: str = "recorded") -> str:
    """Return the line that says what a job file holds."""
    calls = sum(rank.calls for rank in job.ranks)
    steps = {(len(step.positions), step.repetitions) for rank in job.ranks if (step := rank.step)}
    longest_step = max(steps, key=lambda step: step[0] * step[1], default=None)
    repeated = f"no step was found ({job.steps.why})"
    if longest_step is not None:
        doubt = f" ({job.steps.why})" if job.steps.why else ""
        repeated = f"the step has {longest_step[0]:,} and ran {longest_step[1]:,} times{doubt}"
    return f"{done} {calls:,} calls of {amount(len(job.ranks), 'rank')}; {repeated}: {one_line(str(path))}"


COMMANDS = {"import": import_job}  # "import" is a word of Python's
