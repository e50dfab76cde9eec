"""collbench from Python: choose GPUs inside a training program, and judge saved runs. Documented in docs/python.md."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from collbench.api.notices import SILENT
from collbench.model.errors import CollbenchError as Error
from collbench.model.errors import UsageError

if TYPE_CHECKING:
    from collbench.analysis.compare import Comparison
    from collbench.analysis.diagnose import Verdict
    from collbench.analysis.diagnose.causes import Check, LikelyCause
    from collbench.analysis.predict.predict import Prediction
    from collbench.analysis.select import Selection
    from collbench.analysis.tails import Tails
    from collbench.analysis.tiers import LinkRanking
    from collbench.api.looking import Topology
    from collbench.api.surveying import NodeSurvey
    from collbench.api.training import Launch
    from collbench.machine.doctor.findings import Finding
    from collbench.model.job import Job
    from collbench.model.run import Run
    from collbench.runfile.saved_runs import SavedRun

__all__ = [
    "Error",
    "check",
    "compare",
    "doctor",
    "explain",
    "import_job",
    "load",
    "load_job",
    "measure",
    "nodes",
    "overlap",
    "predict",
    "rank",
    "replay",
    "runs",
    "select",
    "tails",
    "topo",
    "train_command",
]

# Measuring commands without --dtype and --op.
_WITHOUT_DTYPE = ("copies", "latency", "check")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED [cuda.h]: this process has not called cuInit


def select(  # noqa: PLR0913 - keywords, each an option of the command line
    k: int,
    *,
    run: str | os.PathLike[str] | None = None,
    exclude: Iterable[int | str] = (),
    allow_busy: bool = False,
    verify: bool | None = None,
    size: int | str | None = None,
    fresh: bool = False,
    job: Job | None = None,
) -> Selection:
    """Choose this machine's best `k` GPUs, set CUDA_VISIBLE_DEVICES to them, and return them with the reasons.

    The options are those of `collbench select`: `run` is a run file to choose from, `exclude` indices or UUIDs, `size`
    bytes or a text such as "64M", and `job` a job from `load_job`, as with --for. With `verify` None, the finalists are
    measured if the choice matters. Call it before CUDA starts in this process. Worker processes take all measurements
    and end before it returns. Raises Error; the environment is then unchanged.
    """
    from collbench.api import values
    from collbench.api.selecting import DEFAULT_SIZE, SelectRequest, select_devices

    _check_alone("select")
    _check_cuda_is_down()
    if job is not None:
        _check_job(job)
        if size is not None:
            raise UsageError("job is replayed in its own sizes, and size is for all-reduces: use only one")
    request = SelectRequest(
        count=values.whole("k", k, least=1),
        backend="cuda",
        run=None if run is None else os.fspath(values.path(run)),
        exclude=values.excluded(exclude),
        allow_busy=values.flag("allow_busy", allow_busy),
        verify=None if verify is None else values.flag("verify", verify),
        size_bytes=values.size(DEFAULT_SIZE if size is None else size),
        fresh=values.flag("fresh", fresh),
        job=job,
    )
    selection = select_devices(request).check()
    os.environ.update(selection.environment)
    return selection


def measure(  # noqa: PLR0913 - keywords, each an option of the command line
    command: str = "pairs",
    *,
    devices: Iterable[int | str] | None = None,
    sizes: Iterable[int | str] | None = None,
    backend: str = "auto",
    fabric: str | None = None,
    dtype: str = "float32",
    redop: str = "sum",
    precision: float | None = None,
    budget: float | None = None,
    quick: bool = False,
    latency: int | None = None,
    nccl: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    registration: str = "none",
    nccl_config: Mapping[str, int] | None = None,
    skew: str = "uniform",
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> Run:
    """Measure what `collbench COMMAND` measures (pairs, latency, check, allreduce, …), and return the run.

    `devices` are indices or UUIDs, `sizes` bytes or texts such as "1M:1G", `precision` a ratio, `budget` seconds, and
    `latency` a number of single launches, as the options of these names. `registration` ("none", "buffer", "window",
    "all") and `nccl_config`, fields of ncclConfig_t, apply to collectives and pairs; `skew` ("uniform", "zipf:1.2" or a
    matrix file) to alltoallv. A worker process uses the GPUs; this process does not start CUDA. The run is saved as
    `output`, or as a new file that `runs` lists, unless `save` is False. Raises Error; partial failures are in the run
    (docs/run-file.md).
    """
    from collbench.api import requests, values
    from collbench.api.checking import confirmed
    from collbench.api.measuring import measure as measured
    from collbench.api.requests import parse_skew
    from collbench.model.capabilities import BACKENDS
    from collbench.model.nccl_options import checked_config
    from collbench.model.operations import COLLECTIVES, Operation, Registration
    from collbench.model.units import REDOPS, parse_dtype, parse_sizes
    from collbench.runfile import run_file, saved_runs

    _check_alone("measure")
    if not isinstance(command, str) or command not in requests.COMMANDS:
        raise UsageError(f"{command!r} is not a measurement: write one of {', '.join(requests.COMMANDS)}")
    if command in _WITHOUT_DTYPE and (dtype, redop) != ("float32", "sum"):
        raise UsageError(f"{command} takes no dtype and no redop: leave out dtype and redop")
    if command == "latency" and sizes is not None:
        raise UsageError("latency has fixed sizes: leave out sizes")
    if latency is not None and command not in COLLECTIVES:
        raise UsageError(f"{command} has no single launches: leave out latency, or measure a collective")
    config = checked_config(nccl_config or {})
    values.text("registration", registration, (*Registration, requests.EVERY_REGISTRATION))
    if command not in ("pairs", *COLLECTIVES) and (registration != "none" or config):
        raise UsageError(f"{command} does not use registration or nccl_config: leave them out")
    parsed_skew = parse_skew(values.text("skew", skew))
    if parsed_skew is not None and command != Operation.ALLTOALLV:
        raise UsageError(f"{command} sends blocks of one size: leave out skew, or measure alltoallv")
    device_list = None if devices is None else values.listed("devices", devices)
    size_list = None if sizes is None else values.listed("sizes", sizes)
    options = requests.MeasureOptions(
        devices=device_list,
        sizes=None if size_list is None else parse_sizes(size_list),
        backend=values.text("backend", backend, ("auto", *BACKENDS)),
        fabric=None if fabric is None else values.text("fabric", fabric),
        dtype=parse_dtype(values.text("dtype", dtype)),
        redop=values.text("redop", redop, REDOPS),
        precision=None if precision is None else values.number("precision", precision, below=1),
        budget=None if budget is None else values.number("budget", budget),
        quick=values.flag("quick", quick),
        nccl=None if nccl is None else os.fspath(values.path(nccl)),
        seed=None if seed is None else values.whole("seed", seed),
    )
    option_values = {"--devices": device_list, "--sizes": size_list, "--fabric": fabric}
    option_values |= {"--precision": None if precision is None else f"{precision:f}"}
    option_values |= {"--budget": None if budget is None else f"{budget:f}s"}
    command_line = [command, "--backend", backend]  # as one would type it: for people
    command_line += [] if command in _WITHOUT_DTYPE else ["--dtype", dtype, "--op", redop]
    command_line += [
        argument for option, value in option_values.items() if value is not None for argument in (option, value)
    ]
    command_line += ["--quick"] if quick else []
    command_line += [] if latency is None else ["--latency", str(values.whole("latency", latency, least=1))]
    command_line += [] if registration == "none" else ["--registration", registration]
    command_line += [] if skew == "uniform" else ["--skew", skew]
    command_line += ["--nccl-config", ",".join(f"{name}={value}" for name, value in config.items())] if config else []
    request = requests.COMMANDS[command](requests.request_of(command, options, command_line))
    works = requests.skewed(requests.registered(request.collectives, registration), parsed_skew)
    request = replace(request, collectives=works, nccl_config=config, latency=latency or 0)
    path = None if output is None else values.path(output)
    if path is None and values.flag("save", save):
        path = saved_runs.new_run(command, request.backend, SILENT.say)
    done = measured(request, path, SILENT, f"measuring {command}")
    if done.failure is not None:
        raise done.failure
    return confirmed(request, done, SILENT) if command == "check" else run_file.again(done.run)


def compare(base: Run, new: Run, *, fail_below: float = 0.05) -> Comparison:
    """Return what became faster or slower between two runs, as `collbench compare` judges it. Raises Error."""
    from collbench.analysis.compare import compare as compared

    _check_run(base, "compare")
    _check_run(new, "compare")
    if base.backend != new.backend:
        raise UsageError(f"a run of the {base.backend} backend and one of the {new.backend} backend cannot be compared")
    if isinstance(fail_below, bool) or not isinstance(fail_below, int | float) or not 0 <= fail_below < 1:
        raise UsageError(f"fail_below={fail_below!r} is not a ratio: write a number from 0 to below 1, such as 0.05")
    return compared(base, new, fail_below, None)


def load(path: str | os.PathLike[str]) -> Run:
    """Load a run file that collbench saved on any machine. Raises Error."""
    from collbench.api import values
    from collbench.runfile import run_file

    return run_file.load(values.path(path))


def runs(limit: int | None = None) -> tuple[SavedRun, ...]:
    """Return the runs that collbench saved, newest first, `limit` of them. Raises Error."""
    from collbench.api import saved

    return saved.runs(limit)


def rank(
    run: Run,
    operation: str = "allreduce",
    size: int | str | None = None,
    *,
    variant: str = "plain",
    numa_node: int | None = None,
    registration: str = "none",
) -> LinkRanking | None:
    """Return a run's links in tiers: directed links of a copy, pairs of a collective; None if it measured none.

    `operation` and `variant` are names from docs/run-file.md, `size` is in bytes or a text as for --sizes ("64M"), None
    for the largest. `numa_node` is the node of the host memory in host copies, if the run has several; `registration`
    is that of a collective's memory. Raises Error, also for a size at which no link was measured if others were.
    """
    from collbench.analysis.tiers import rank_links
    from collbench.api import values
    from collbench.model.operations import Operation, Registration, Variant, Work
    from collbench.model.units import format_size

    _check_run(run, "rank")
    size_bytes = None if size is None else values.size(size)
    try:
        work = Work(Operation(operation), Variant(variant), numa_node, Registration(registration))
    except ValueError as error:
        raise UsageError(f"cannot rank: {error}; docs/run-file.md lists operations and variants") from None
    if work.operation.irregular:  # a run has one skew, which has no name here
        run_works = (
            measurement.point.work
            for measurement in run.measured(work.variant)
            if measurement.point.operation is work.operation
        )
        work = next((other for other in run_works if other.registration is work.registration), work)
    points = [measurement.point for measurement in run.measured(work.variant) if measurement.point.work == work]
    # A communicator of more than two devices is not a link, nor are all devices concurrently.
    sizes = {point.size_bytes for point in points if len(point.members) <= 2 and not work.variant.at_once}
    if not sizes:
        return None
    if size_bytes is not None and size_bytes not in sizes:
        there = ", ".join(map(format_size, sorted(sizes)))
        raise UsageError(f"cannot rank {work} at {format_size(size_bytes)}: the run has {there}")
    return rank_links(run, work, max(sizes) if size_bytes is None else size_bytes)


def check(run: Run) -> tuple[Verdict, ...]:
    """Return the problems and notable facts of a run's machine; `explain` turns them into text. Raises Error."""
    from collbench.analysis.diagnose import judge

    _check_run(run, "check")
    return judge(run)


def explain(found: Verdict | LikelyCause | tuple[Check, ...] | LinkRanking, run: Run) -> str:
    """Return a verdict, its cause, its checks or a ranking of a run as text, as `check` and `rank` print it.

    The checks are shell commands. Raises Error.
    """
    from collbench.analysis.diagnose import Verdict
    from collbench.analysis.tiers import Ranking
    from collbench.output import causes, sentences

    _check_run(run, "explain")
    if isinstance(found, Verdict):
        return sentences.what(found, run)
    if isinstance(found, Ranking):
        return sentences.tiers(found)
    return causes.command(found, run) if isinstance(found, tuple) else causes.cause(found, run)


def tails(run: Run) -> tuple[Tails, ...]:
    """Return the statistics of the run's single launches (`--latency N`), one item per data point that has them.

    `transfer` and `waited` are spreads of times in seconds, `late` the ranks that are significantly late. Raises Error
    if `run` is not a run.
    """
    _check_run(run, "judge the tails of", "tails")
    from collbench.analysis.tails import tails as all_tails

    return tuple(all_tails(run))


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
    from collbench.api import predicting, values
    from collbench.model.operations import Registration

    all_runs = values.several(runs)
    for run in all_runs:
        _check_run(run, "predict")
    if not all_runs:
        raise UsageError("no run to predict from: collbench.load returns one")
    request = predicting.PredictRequest(
        model=None if model is None else values.text("model", model),
        params=None if params is None else str(params),
        layers=None if layers is None else values.whole("layers", layers, least=1),
        strategies=values.listed("strategy", strategy),
        dtype=values.text("dtype", dtype, predicting.BYTES),
        grad_dtype=None if grad_dtype is None else values.text("grad_dtype", grad_dtype, predicting.BYTES),
        micro_batches=values.whole("micro_batches", micro_batches, least=1),
        gpus=None if gpus is None else tuple(values.whole("gpus", count, least=2) for count in values.several(gpus)),
        step_seconds=None if step_time is None else values.number("step_time", step_time),
        on_best=values.text("timed_on", timed_on, ("alone", "best")) == "best",
        gpu_seconds=None if gpu_time is None else values.number("gpu_time", gpu_time),
        host_phases=None if host_phases is None else ",".join(map(str, values.several(host_phases))),
        head_share=None if head_share is None else values.number("head_share", head_share, below=1),
        shards=None if shard is None else values.whole("shard", shard, least=2),
        bucket_bytes=values.size(bucket),
        registration=Registration(values.text("registration", registration, [kind.value for kind in Registration])),
    )
    overlap_runs = [] if overlap is None else values.several(overlap)
    for run in overlap_runs:
        _check_run(run, "predict")
    runs_given = [(f"run {number}", run) for number, run in enumerate(all_runs, 1)]
    return predicting.predict(runs_given, request, [(f"overlap {n}", run) for n, run in enumerate(overlap_runs, 1)])[1]


def nodes(  # noqa: PLR0913 - keywords, each an option of the command line
    select: int | None = None,
    *,
    gpus: int | None = None,
    backend: str = "auto",
    fabric_cluster: str | os.PathLike[str] | None = None,
    size: int | str = "512M",
    budget: float = 75.0,
    one_way: bool = False,
    rails: bool = False,
    switches: str | os.PathLike[str] | None = None,
    nccl: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> NodeSurvey | None:
    """Find slow nodes and uplinks of a cluster, and the best `select` nodes, with the best `gpus` GPUs of each.

    Call it in every process of a launch, one per GPU: rank 0 gets the result, the other ranks None. Or simulate a
    cluster: backend="sim", fabric_cluster="tree-128". `budget` is in seconds. `rails` also measures each GPU with the
    GPU of the same index on other nodes. `switches` is a file that lists the switches of each node, or "slurm". The run
    is saved as `output`, or as a new file. `resume` names a run on rank 0's host to continue, with its size, budget,
    direction and seed. Raises Error.
    """
    from collbench.api import surveying, values
    from collbench.api.measuring import serve
    from collbench.api.requests import MeasureOptions, request_of
    from collbench.distributed.launchers import find_launch
    from collbench.model.capabilities import BACKENDS, is_simulated
    from collbench.runfile import saved_runs

    nodes_request = surveying.NodesRequest(
        count=None if select is None else values.whole("select", select, least=1),
        gpus=None if gpus is None else values.whole("gpus", gpus, least=1),
        size_bytes=values.size(size),
        budget_seconds=values.number("budget", budget),
        one_way=values.flag("one_way", one_way),
        rails=values.flag("rails", rails),
        switches=None if switches is None else os.fspath(values.path(switches)),
    )
    given_seed = None if seed is None else values.whole("seed", seed)
    cluster = None if fabric_cluster is None else os.fspath(values.path(fabric_cluster))
    saved = None if resume is None else values.path(resume)
    if saved is not None and ((size, budget, one_way) != ("512M", 75.0, False) or (seed, output) != (None, None)):
        raise UsageError("resume takes size, budget, one_way, seed and file from the run: leave them out")
    if is_simulated(values.text("backend", backend, ("auto", *BACKENDS))):
        if saved is not None:
            raise UsageError("a simulation measures nothing, so there is nothing to resume")
        return surveying.survey_simulated(nodes_request, cluster, given_seed)
    if cluster is not None:
        raise UsageError(f"fabric_cluster={cluster!r} is simulated: add backend='sim'")
    launch = find_launch(os.environ)
    if launch is None:
        raise UsageError(
            "nodes are measured by one process for each GPU: start them with srun, torchrun or mpirun, or simulate a "
            "cluster with backend='sim'"
        )
    library = None if nccl is None else os.fspath(values.path(nccl))
    if launch.rank > 0 and saved is not None and not saved.exists():
        saved = None  # it is on rank 0's host
    shared = request_of(
        "nodes", MeasureOptions(backend=backend, nccl=library, seed=given_seed, resume=saved), ("nodes",)
    )
    nodes_request = nodes_request if saved is None else surveying.resumed(nodes_request, shared)
    request = surveying.request_for(nodes_request, shared)
    if launch.rank > 0:
        serve(request, launch, SILENT)
        return None
    if saved is None:
        path = saved_runs.new_run("nodes", request.backend, SILENT.say) if output is None else values.path(output)
    else:
        path = saved
    survey = surveying.survey_launch(nodes_request, request, path, launch)
    if survey.failure is not None:
        raise survey.failure
    return survey


def overlap(  # noqa: PLR0913 - keywords, each an option of the command line
    operation: str = "allreduce",
    *,
    devices: Iterable[int | str] | None = None,
    sizes: Iterable[int | str] | None = None,
    compute: str | Iterable[str] | None = None,
    priority: str = "normal",
    ctas: int | Iterable[int] | None = None,
    trials: int | None = None,
    backend: str = "auto",
    fabric: str | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> Run:
    """Measure what `collbench overlap` measures, a collective that overlaps compute, and return the run.

    The keywords are its options: `sizes` in bytes or texts such as "64M", `compute` texts such as "gemm:8192". Worker
    processes use the GPUs and torch; this process does not start CUDA. The run is saved as `output`, or as a new file
    that `runs` lists, unless `save` is False. Raises Error; partial failures are in the run (docs/run-file.md).
    """
    from collbench.api import overlapping, values
    from collbench.model.capabilities import BACKENDS
    from collbench.model.units import parse_sizes
    from collbench.runfile import run_file, saved_runs

    _check_alone("overlap")
    device_list = None if devices is None else values.listed("devices", devices)
    size_list = None if sizes is None else values.listed("sizes", sizes)
    compute_list = None if compute is None else values.listed("compute", compute)
    cta_list = None if ctas is None else values.listed("ctas", ctas)
    options = overlapping.OverlapOptions(
        operation=overlapping.parse_operation(values.text("operation", operation)),
        sizes=None if size_list is None else parse_sizes(size_list),
        computes=None if compute_list is None else overlapping.parse_computes(compute_list),
        priorities=overlapping.PRIORITIES[values.text("priority", priority, overlapping.PRIORITIES)],
        ctas=None if cta_list is None else overlapping.parse_ctas(cta_list),
        trials=None if trials is None else values.whole("trials", trials, least=1),
        devices=device_list,
        backend=values.text("backend", backend, ("auto", *BACKENDS)),
        fabric=None if fabric is None else values.text("fabric", fabric),
        seed=None if seed is None else values.whole("seed", seed),
    )
    option_values = {
        "--devices": device_list,
        "--sizes": size_list,
        "--compute": compute_list,
        "--ctas": cta_list,
        "--fabric": fabric,
    }
    command_line = [
        "overlap",
        operation,
        "--priority",
        priority,
        "--backend",
        backend,
    ]  # as one would type it: for people
    command_line += [
        argument for option, value in option_values.items() if value is not None for argument in (option, value)
    ]
    request = overlapping.request_of(options, command_line)
    path = None if output is None else values.path(output)
    if path is None and values.flag("save", save):
        path = saved_runs.new_run("overlap", request.backend, SILENT.say)
    done = overlapping.Overlapping(request, path).finish()
    if done.failure is not None:
        raise done.failure
    return run_file.again(done.run)


def load_job(path: str | os.PathLike[str]) -> Job:
    """Load a recorded job: a file of `collbench record` or `collbench import`. Raises Error."""
    from collbench.api import values
    from collbench.runfile import job_file

    return job_file.load(values.path(path))


def import_job(
    traces: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    kind: str | None = None,
    force: bool = False,
) -> Job:
    """Save the traces that another tool wrote, one per rank, as one job, and return it (docs/import.md). Raises Error.

    `kind` is the format as for `--from`; None detects the format of each file.
    """
    from collbench.api import importing, values
    from collbench.model.job import IMPORTED, Source

    if isinstance(traces, str | bytes | os.PathLike):
        raise UsageError("traces are a list of files, one for each rank")
    files = [values.path(trace) for trace in traces]
    source = None if kind is None else Source(values.text("kind", kind, IMPORTED))
    return importing.import_job(files, values.path(output), kind=source, force=values.flag("force", force))


def replay(  # noqa: PLR0913 - keywords, each an option of the command line
    job: Job,
    *,
    devices: Iterable[int | str] | None = None,
    compute: str = "none",
    without: str | None = None,
    registration: str = "none",
    phase: int | None = None,
    trials: int | None = None,
    backend: str = "auto",
    fabric: str | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> Run:
    """Replay a recorded job's step, as `collbench replay` does, and return the run: its results are in `replays`.

    The keywords are its options; `phase` counts from 1. Worker processes use the GPUs and torch; this process does not
    start CUDA. The run is saved as `output`, or as a new file that `runs` lists, unless `save` is False. Raises Error.
    """
    from collbench.api import replaying, values
    from collbench.model.capabilities import BACKENDS
    from collbench.model.operations import Registration
    from collbench.model.run import Pauses
    from collbench.runfile import run_file, saved_runs

    _check_alone("replay")
    _check_job(job)
    device_list = None if devices is None else values.listed("devices", devices)
    options = replaying.ReplayOptions(
        phase=None if phase is None else values.whole("phase", phase, least=1),
        pauses=Pauses(values.text("compute", compute, tuple(Pauses))),
        without=() if without is None else (values.text("without", without, replaying.WITHOUT),),
        registration=Registration(values.text("registration", registration, tuple(Registration))),
        trials=None if trials is None else values.whole("trials", trials, least=1),
        devices=device_list,
        backend=values.text("backend", backend, ("auto", *BACKENDS)),
        fabric=None if fabric is None else values.text("fabric", fabric),
        seed=None if seed is None else values.whole("seed", seed),
    )
    option_values = {"--devices": device_list, "--without": without, "--fabric": fabric}
    command_line = ["replay", "--compute", compute, "--registration", registration, "--backend", backend]
    command_line += [
        argument for option, value in option_values.items() if value is not None for argument in (option, value)
    ]
    request = replaying.request_of(job, "job", options, command_line)
    path = None if output is None else values.path(output)
    if path is None and values.flag("save", save):
        path = saved_runs.new_run("replay", request.backend, SILENT.say)
    done = replaying.Replaying(request, path).finish()
    if done.failure is not None:
        raise done.failure
    return run_file.again(done.run)


def topo(
    file: str | os.PathLike[str] | None = None, *, backend: str = "auto", fabric: str | os.PathLike[str] | None = None
) -> Topology:
    """Return the devices and labeled paths of this machine, of saved 'nvidia-smi topo -m' text, or of a simulation.

    Raises Error.
    """
    from collbench.api import looking, values
    from collbench.model.capabilities import BACKENDS

    return looking.topology(
        None if file is None else os.fspath(values.path(file)),
        values.text("backend", backend, ("auto", *BACKENDS)),
        None if fabric is None else os.fspath(values.path(fabric)),
    )


def doctor(backend: str = "cuda", *, nccl: str | os.PathLike[str] | None = None) -> tuple[Finding, ...]:
    """Return what affects a run on this machine, as `collbench doctor` prints it. Raises Error."""
    from collbench.api import looking, values
    from collbench.model.capabilities import BACKENDS

    here = [name for name, row in BACKENDS.items() if not row.simulated]
    library = None if nccl is None else os.fspath(values.path(nccl))
    return looking.doctor(values.text("backend", backend, here), library)


def train_command(words: Iterable[str]) -> Launch:
    """Choose GPUs as `collbench train` does with these arguments, and return what it would start, without starting it.

    `command` are the arguments of the command, `changes` the variables to set for it. Raises Error.
    """
    from collbench.api import values
    from collbench.api.training import prepare
    from collbench.launch.arguments import split

    argument_list = values.several(words)
    if isinstance(words, str) or not argument_list or not all(isinstance(word, str) for word in argument_list):
        raise UsageError(f"{words!r} is not a list of words: write ['--auto-select', '2', 'train.py']")
    _check_alone("train_command")
    arguments = split(argument_list)
    if arguments.help:
        raise UsageError("--help works only on the command line: 'collbench train --help'")
    return prepare(arguments)


def _check_run(value: object, what: str, call: str = "") -> None:
    """Raise UsageError if `run` is not a run, most often a file name. `call` is the name of the function."""
    from collbench.model.run import Run

    if not isinstance(value, Run):
        advice = "collbench.load returns one"
        if isinstance(value, str | os.PathLike):
            advice = f"write collbench.{call or what}(collbench.load({os.fspath(value)!r}))"
        raise UsageError(f"cannot {what} a {type(value).__name__}: it is not a run; {advice}")


def _check_job(value: object) -> None:
    """Raise UsageError if `job` is not a job."""
    from collbench.model.job import Job

    if not isinstance(value, Job):
        raise UsageError(f"job is {type(value).__name__}: give what collbench.load_job returns")


def _check_alone(what: str) -> None:
    """Raise UsageError in one of several processes: each would choose on its own, and load the GPUs of the others.

    CUDA_VISIBLE_DEVICES, set in one of them, would also be too late for the others.
    """
    from collbench.distributed.launchers import find_launch

    launch = find_launch(os.environ)
    if launch is not None:
        raise UsageError(
            f"collbench.{what} was called in one of {launch.world_size} processes that {launch.launcher} started, and "
            "each would act for itself: do it before they start, with 'collbench train' or 'collbench select'"
        )


def _check_cuda_is_down() -> None:
    """Raise UsageError if CUDA has started in this process: it reads CUDA_VISIBLE_DEVICES only at its start."""
    user = _cuda_user()
    if user:
        raise UsageError(
            f"collbench.select came too late: {user} in this process, and CUDA reads CUDA_VISIBLE_DEVICES only when it "
            "starts; call select before anything uses a GPU"
        )


def _cuda_user() -> str:
    """Return what started CUDA in this process, as a clause; "" if nothing did.

    torch.cuda.is_available() may start the driver without torch knowing. RTLD_NOLOAD finds the driver only if it is
    loaded, and querying the number of devices starts nothing.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch has started CUDA"
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""
    status = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return "" if status == _NOT_INITIALIZED else "CUDA has started"
