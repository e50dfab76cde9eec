"""`collbench predict`: what communication costs a training step on the best and the worst GPUs of saved runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.analysis.outcome import outcome
from collbench.cli import options
from collbench.cli.runs import all_named_or_newest
from collbench.cli.terminal import echo, show_page, verbose_option
from collbench.model.errors import UsageError
from collbench.model.printable import one_line
from collbench.model.units import parse_size
from collbench.runfile import run_file

if TYPE_CHECKING:
    from collbench.analysis.predict.networks import Network
    from collbench.analysis.predict.predict import Question
    from collbench.analysis.predict.timing import Evidence

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(us|ms|s)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
# A step of so many micro-batches is hours long, and all of its transfers are laid out.
_MOST_MICRO_BATCHES = 1024
_ALONE, _ON_BEST = "alone", "best"

_own_options = options.apply(
    click.option("--model", metavar="NAME", help="A network by name: gpt2, llama-3-8b, … (docs/predict.md)."),
    click.option("--params", metavar="COUNT", help="Any other network by its parameters: 124M, 1.5B."),
    click.option("--layers", metavar="N", type=click.IntRange(1, 1000), help="Its blocks.  [default: 24]"),
    click.option(
        "--strategy",
        metavar="LIST",
        default="ddp",
        show_default=True,
        help="ddp, zero1, zero2, zero3, fsdp, hsdp, a list of these, or all.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(list(_BYTES)),
        default="bf16",
        show_default=True,
        help="What parameters and gradients are sent as.",
    ),
    click.option(
        "--grad-dtype",
        type=click.Choice(list(_BYTES)),
        help="What gradients are sent as: fp32 for DDP with autocast.  [default: --dtype]",
    ),
    click.option(
        "--micro-batches",
        metavar="N",
        type=click.IntRange(1, _MOST_MICRO_BATCHES),
        default=1,
        show_default=True,
        help="Micro-batches a step.",
    ),
    click.option("--gpus", metavar="LIST", help="For how many GPUs: 2,4.  [default: 2, 4, 8, … and all of the runs]"),
    click.option("--step-time", metavar="TIME", help="One step of this job, 22ms: tells what compute hides."),
    click.option(
        "--timed-on",
        type=click.Choice([_ALONE, _ON_BEST]),
        default=_ALONE,
        show_default=True,
        help="Where that step was timed: one GPU alone, without communication, or the best set of --gpus.",
    ),
    click.option(
        "--gpu-time",
        metavar="TIME",
        help="That step if the GPU never waited for the host to launch kernels, as a profiler adds them up.  "
        "[default: it never does]",
    ),
    click.option(
        "--host-phases",
        metavar="F,B,O",
        help="The host's time in forward, backward and optimizer; their ratios count.  [default: 1,2,0]",
    ),
    click.option(
        "--head-share",
        metavar="SHARE",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="What head and loss take of the GPU's time, 0.41.  [default: of its multiply-adds]",
    ),
    click.option("--shard", metavar="N", type=click.IntRange(min=2), help="hsdp: GPUs that hold one copy."),
    click.option(
        "--bucket", metavar="SIZE", default="25M", show_default=True, help="Bucket of gradients: DDP's bucket_cap_mb."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/predict.md)."),
    verbose_option,
)


@click.command(short_help="Predict what communication costs a training step.")
@click.argument("files", metavar="[RUN.JSON]...", nargs=-1, type=click.Path(path_type=Path))
@_own_options
def predict(files: tuple[Path, ...], **given: Any) -> None:
    """Say what communication costs a training step on the best and on the worst GPUs.

    Reads saved runs of one machine: the one of 'pairs' ranks the sets of GPUs; runs of allreduce, allgather and
    reducescatter on as many GPUs as you train on make it surer. Prints what it had to assume.

    \b
    Examples:
      collbench predict run.json --model gpt2 --strategy all --step-time 22ms
      collbench predict pairs.json allgather.json --params 7B --strategy fsdp
    """
    # Late: numpy and scipy take as long to load as the rest of the program.
    from collbench.analysis.predict.predict import Predictor
    from collbench.analysis.predict.timing import gather
    from collbench.output.text import prediction
    from collbench.output.text.frame import alarm

    _check(given)
    network = _network(given)
    runs = [(one_line(str(file)), run_file.load(file)) for file in all_named_or_newest(files)]
    evidence = gather(runs)
    question = _question(given, network, evidence)
    answer = Predictor(evidence).predict(question)
    if given["as_json"]:
        echo(json.dumps(prediction.as_json(evidence.run, answer), indent=1, ensure_ascii=False))
    else:
        show_page([*(block for _, run in runs for block in alarm(run)), *prediction.page(evidence.run, answer)])
    status = max(outcome(run).status for _, run in runs)
    if status:
        sys.stdout.flush()  # a full disk is told before the status
        raise click.exceptions.Exit(status)


def _check(given: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other, before any file is read."""
    if (given["model"] is None) == (given["params"] is None):
        raise UsageError("which network? write either --model gpt2 or --params 124M")
    if given["layers"] is not None and given["model"] is not None:
        raise UsageError(f"--layers is for --params: {given['model']} has its own; leave one out")
    if given["timed_on"] == _ON_BEST and given["step_time"] is None:
        raise UsageError("--timed-on best says where a step was timed: add --step-time 22ms")
    if given["gpu_time"] is not None and given["step_time"] is None:
        raise UsageError("--gpu-time is the GPU's part of a step: add --step-time 22ms")
    if given["host_phases"] is not None and given["gpu_time"] is None:
        raise UsageError("--host-phases divides a step in which the GPU waits for the host: add --gpu-time 15ms")


def _network(given: dict[str, Any]) -> Network:
    from collbench.analysis.predict import networks

    if given["model"] is not None:
        network = networks.find(given["model"])
    else:
        network = networks.of_size(networks.parse_parameters(given["params"]), given["layers"])
    return network if given["head_share"] is None else network.with_head(given["head_share"])


def _question(given: dict[str, Any], network: Network, evidence: Evidence) -> Question:
    """Return what is asked. Raises UsageError."""
    from collbench.analysis.predict.predict import Question
    from collbench.analysis.predict.step import ALL, parse_phases, parse_strategies

    strategies = parse_strategies(given["strategy"])
    if given["strategy"].strip().lower() == ALL and given["shard"] is None:
        strategies = tuple(name for name in strategies if name != "hsdp")  # it cannot be asked for without --shard
    gpus = _counts(given["gpus"], evidence)
    if given["timed_on"] == _ON_BEST and len(gpus) != 1:
        raise UsageError("--timed-on best is one measured step: say on how many GPUs, with --gpus 2")
    parameter_bytes = _BYTES[given["dtype"]]
    step, gpu_time = (_seconds(given, option) for option in ("step_time", "gpu_time"))
    if step is not None and gpu_time is not None and gpu_time > step:
        raise UsageError(
            f"--gpu-time {given['gpu_time']} is more than --step-time {given['step_time']}, and no step is shorter "
            "than the GPU's own time: leave --gpu-time out where the GPU does not wait for the host"
        )
    return Question(
        network=network,
        strategies=strategies,
        gpus=gpus,
        parameter_bytes=parameter_bytes,
        gradient_bytes=_BYTES.get(given["grad_dtype"], parameter_bytes),
        micro_batches=given["micro_batches"],
        bucket_bytes=parse_size(given["bucket"]),
        shards=given["shard"],
        step_seconds=step,
        measured_on_best=given["timed_on"] == _ON_BEST,
        gpu_seconds=gpu_time,
        host_phases=None if given["host_phases"] is None else parse_phases(given["host_phases"]),
    )


def _counts(text: str | None, evidence: Evidence) -> tuple[int, ...]:
    """Return the numbers of GPUs, ascending: those asked for, else 2, 4, 8, … and all. Raises UsageError.

    Without pairs there are those that a collective was measured on.
    """
    if text is None:
        measured, devices = {len(members) for members in evidence.sets}, len(evidence.run.devices)
        doubled = {2**power for power in range(1, devices.bit_length())} | {devices}
        return tuple(sorted(doubled if 2 in measured else measured))
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not _NUMBER.fullmatch(part) or int(part) < 2), None)
    if wrong is not None:
        raise UsageError(f"--gpus '{wrong}' is not a number of GPUs from 2: write 2,4")
    return tuple(sorted({int(part) for part in parts}))


def _seconds(given: dict[str, Any], name: str) -> float | None:
    """Return the seconds that an option's "22ms", "0.022s" or "22400us" are, None without it. Raises UsageError."""
    text = given[name]
    if text is None:
        return None
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} '{text}' is not a time above zero: write 22ms, 0.022s or 22400us")
    return float(match[1]) * _SECONDS[match[2]]
