"""What communication costs a training step on the best and on the worst GPUs of saved runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.api import keywords
from collbench.jobs.api import NamedRuns
from collbench.model.errors import RunFileError, UsageError
from collbench.model.operations import Registration
from collbench.model.printable import one_line
from collbench.model.run import CommandKind, Run
from collbench.model.units import fixed, parse_size
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.jobs.predict.contention import OverlapCurve
    from collbench.jobs.predict.predict import Prediction
    from collbench.jobs.predict.timing import Evidence

# Saved runs of `overlap` that are read to find one of this machine; each takes 0.1 s, and others may share the home.
_RECENT = 10

# What parameters and gradients are sent as, with the bytes of each.
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
DEFAULT_BUCKET = "25M"
# A step of so many micro-batches is hours long, and all of its transfers are laid out.
MOST_MICRO_BATCHES, MOST_LAYERS = 1024, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """The training step that is asked about: a network by `model`, or by `params` and `layers`, and how it trains.

    `strategies` are words with commas. `step_seconds` is one step of this job, timed on one GPU alone or, with
    `on_best`, on the best set of `gpus`; `gpu_seconds` what it would be if the GPU never waited for the host, and
    `host_phases` how the host then divides its time. None: not said, or left to the method (docs/predict.md).
    `registration` is the memory that the job's collectives use.
    """

    model: str | None = None
    params: str | None = None
    layers: int | None = None
    head_share: float | None = None
    strategies: str = "ddp"
    dtype: str = "bf16"
    grad_dtype: str | None = None
    micro_batches: int = 1
    gpus: tuple[int, ...] | None = None
    step_seconds: float | None = None
    on_best: bool = False
    gpu_seconds: float | None = None
    host_phases: str | None = None
    shards: int | None = None
    bucket_bytes: int = parse_size(DEFAULT_BUCKET)
    registration: Registration = Registration.NONE

    def __post_init__(self) -> None:
        """Raise UsageError for what contradicts itself."""
        if (self.model is None) == (self.params is None):
            raise UsageError("name one network: write either --model gpt2 or --params 124M")
        if self.layers is not None and self.model is not None:
            raise UsageError(f"--layers is only for --params: {self.model} has a fixed number; use only one")
        if self.on_best and self.step_seconds is None:
            raise UsageError("--timed-on best needs the time of a step: add --step-time 22ms")
        if self.gpu_seconds is not None and self.step_seconds is None:
            raise UsageError("--gpu-time is the GPU's part of the step time: add --step-time 22ms")
        if self.host_phases is not None and self.gpu_seconds is None:
            raise UsageError("--host-phases divides a step in which the GPU waits for the host: add --gpu-time 15ms")
        if self.gpu_seconds is not None and self.step_seconds is not None and self.gpu_seconds > self.step_seconds:
            raise UsageError(
                f"--gpu-time {fixed(1e3 * self.gpu_seconds)}ms is more than --step-time "
                f"{fixed(1e3 * self.step_seconds)}ms, and "
                "a step is never shorter than its GPU time: leave --gpu-time out if the GPU does not wait for the host"
            )


def predict_step(runs: NamedRuns, request: PredictRequest, overlaps: NamedRuns | None = ()) -> tuple[Run, Prediction]:
    """Return the run whose GPUs are chosen from, and what a step costs on them; each run comes with its name.

    `overlaps` are runs of `collbench overlap`, None for the newest saved ones of this machine and these settings.
    Raises UsageError.
    """
    # Late: numpy and scipy take as long to load as the rest of the program.
    from collbench.jobs.predict import contention, networks
    from collbench.jobs.predict.predict import Predictor, Question
    from collbench.jobs.predict.step import ALL, parse_phases, parse_strategies
    from collbench.jobs.predict.timing import gather

    if request.model is not None:
        network = networks.find(request.model)
    else:
        network = networks.of_size(networks.parse_parameters(request.params or ""), request.layers)
    evidence = gather(runs, request.registration)
    if overlaps is None:  # where no step is predicted none counts
        curves = _newest(evidence) if request.step_seconds is not None else ()
    else:
        curves = contention.gather(evidence, overlaps)
    strategies = parse_strategies(request.strategies)
    if request.strategies.strip().lower() == ALL and request.shards is None:
        strategies = tuple(name for name in strategies if name != "hsdp")  # it cannot be asked for without its shards
    gpus = _counts(evidence) if request.gpus is None else tuple(sorted(set(request.gpus)))
    if request.on_best and len(gpus) != 1:
        raise UsageError("--timed-on best is one measured step: add its number of GPUs, such as --gpus 2")
    question = Question(
        network=network if request.head_share is None else network.with_head(request.head_share),
        strategies=strategies,
        gpus=gpus,
        parameter_bytes=BYTES[request.dtype],
        gradient_bytes=BYTES[request.grad_dtype or request.dtype],
        micro_batches=request.micro_batches,
        bucket_bytes=request.bucket_bytes,
        shards=request.shards,
        step_seconds=request.step_seconds,
        measured_on_best=request.on_best,
        gpu_seconds=request.gpu_seconds,
        host_phases=None if request.host_phases is None else parse_phases(request.host_phases),
    )
    from collbench.report.choice_text import refusals  # late: numpy

    with refusals():
        return evidence.run, Predictor(evidence, curves).predict(question, where_possible=request.gpus is None)


def _newest(evidence: Evidence) -> tuple[OverlapCurve, ...]:
    """Return what the newest saved runs of `overlap` say that fit the evidence: of each operation the newest one's."""
    from collbench.jobs.predict import contention

    gathered: list[OverlapCurve] = []
    saved = [path for path in saved_runs.believed().files if saved_runs.command_of(path) == CommandKind.OVERLAP]
    for path in saved[:_RECENT]:
        try:
            curves = contention.gather(evidence, [(one_line(str(path)), run_file.load(path))])
        except (RunFileError, UsageError):
            continue  # another machine's, or an older format: the page says where no overlap was known
        known_operations = {curve.operation for curve in gathered}
        gathered += [curve for curve in curves if curve.operation not in known_operations]
    return tuple(gathered)


def _counts(evidence: Evidence) -> tuple[int, ...]:
    """Return 2, 4, 8, … and all GPUs, ascending; without pairs the numbers that a collective was measured on."""
    measured, devices = {len(members) for members in evidence.sets}, len(evidence.run.devices)
    doubled = {2**power for power in range(1, devices.bit_length())} | {devices}
    return tuple(sorted(doubled if 2 in measured else measured))


# The Python call.


def predict(  # noqa: PLR0913 - keywords, each an option of the command line
    runs: Run | Iterable[Run],
    *,
    model: str | None = None,
    params: int | str | None = None,
    layers: int | None = None,
    strategy: str | Iterable[str] = "ddp",
    dtype: str = "bf16",
    grad_dtype: str | None = None,
    micro_batches: int = 1,
    gpus: int | Iterable[int] | None = None,
    step_time: float | None = None,
    timed_on: str = "alone",
    gpu_time: float | None = None,
    host_phases: Iterable[float] | None = None,
    head_share: float | None = None,
    shard: int | None = None,
    bucket: int | str = "25M",
    overlap: Run | Iterable[Run] | None = None,
    registration: str = "none",
) -> Prediction:
    """Return what communication costs a training step on the best and the worst GPUs of one machine's runs.

    The keywords are the options of `collbench predict`; `step_time` and `gpu_time` are in seconds. `overlap` are runs
    of `collbench.overlap`; without one, the prediction assumes that overlap costs nothing. Raises Error.
    """
    all_runs = keywords.several(runs)
    for run in all_runs:
        keywords.check_run(run, "predict")
    if not all_runs:
        raise UsageError("no run to predict from: collbench.load returns one")
    gpu_counts = None
    if gpus is not None:
        gpu_counts = tuple(keywords.whole("gpus", count, least=2) for count in keywords.several(gpus))
    request = PredictRequest(
        model=keywords.optional(keywords.text, "model", model),
        params=keywords.optional(str, params),
        layers=keywords.optional(keywords.whole, "layers", layers, least=1, most=MOST_LAYERS),
        strategies=keywords.listed("strategy", strategy),
        dtype=keywords.text("dtype", dtype, choices=BYTES),
        grad_dtype=keywords.optional(keywords.text, "grad_dtype", grad_dtype, choices=BYTES),
        micro_batches=keywords.whole("micro_batches", micro_batches, least=1, most=MOST_MICRO_BATCHES),
        gpus=gpu_counts,
        step_seconds=keywords.optional(keywords.number, "step_time", step_time),
        on_best=keywords.text("timed_on", timed_on, choices=("alone", "best")) == "best",
        gpu_seconds=keywords.optional(keywords.number, "gpu_time", gpu_time),
        host_phases=None if host_phases is None else ",".join(map(str, keywords.several(host_phases))),
        head_share=keywords.optional(keywords.number, "head_share", head_share, below=1),
        shards=keywords.optional(keywords.whole, "shard", shard, least=2),
        bucket_bytes=keywords.size(bucket),
        registration=Registration(keywords.text("registration", registration, choices=tuple(Registration))),
    )
    overlap_runs = [] if overlap is None else keywords.several(overlap)
    for run in overlap_runs:
        keywords.check_run(run, "predict")
    named_runs = [(f"run {number}", run) for number, run in enumerate(all_runs, 1)]
    named_overlaps = [(f"overlap {number}", run) for number, run in enumerate(overlap_runs, 1)]
    return predict_step(named_runs, request, named_overlaps)[1]
