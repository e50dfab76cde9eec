"""The page of `collbench ablate`: how much longer one training job takes without a link, or on other devices."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean

from collbench.ablations.ablation import (
    Ablation,
    ArmResult,
    ArmsResult,
    GpuResult,
    Measure,
    Ratio,
    Stop,
    format_range,
    format_seconds,
    precise,
)
from collbench.model.run import capabilities
from collbench.model.units import DELTA, TELLING_BYTES, counted, figure, fixed, format_size, span
from collbench.report.frame import settings
from collbench.report.layout import Lines, Part, Table, prose, table

# What is timed, as the subject of a sentence.
_WHAT = {Measure.STEP: "a step", Measure.TRAIN_RUNTIME: "training", Measure.PROCESS: "the whole process"}

_STOPPED = {
    Stop.REPEATS: "",
    Stop.PRECISE: " until the precision was reached",
    Stop.BUDGET: " until the time budget was used",
    Stop.HOST: " until the host was found to bound both arms",
}


def page(ablation: Ablation) -> Iterator[Part]:
    """Yield the page's blocks: the result, the origin of the figures, both arms, and remarks."""
    yield prose(f"{verdict(ablation)}\n")
    yield Lines(f"{_header(ablation)}\n")
    yield _table(ablation)
    if any(arm.allreduce for arm in ablation.arms):
        yield prose("all-reduce: on these devices in the arm's environment, busbw in GB/s, below 1M the time")
    if remarks := list(_remarks(ablation)):
        yield prose("\n" + "\n".join(remarks))


def verdict(ablation: Ablation) -> str:
    """Return the result in one sentence; for an unfinished ablation, how many runs it has."""
    if ablation.result is None:
        good = sum(run.status == 0 for run in ablation.made)
        of = "" if ablation.budget_seconds is not None else f" of {2 * ablation.repeats}"
        return f"unfinished: {good}{of} runs, too few to compare"
    base, change = ablation.arms
    return effect(ablation.result.ratio, _WHAT[ablation.measure], (base.name, change.name), change.without)


def effect(ratio: Ratio, what: str, names: tuple[str, str], without: Sequence[str] = ()) -> str:
    """Return the meaning of a ratio of two arms: "without p2p a step of this job takes 28.0% longer (95% interval …)".

    `what` was timed in both arms, `names` are the arms' names, and `without` is what the second arm lacks if that is
    their only difference.
    """
    base, change = names
    if ratio.low <= 1 <= ratio.high:
        return _tied(ratio, change, what)
    low, high = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    more = f"{_percent(abs(ratio.middle - 1))}% {'longer' if ratio.low > 1 else 'less'}"
    interval = f"(95% interval {span((low, high), _percent, '–')}%)"
    if without:
        return f"without {' and '.join(without)} {what} of this job takes {more} {interval}"
    return f"{change} {what} of this job takes {more} than {base} {interval}"


def _tied(ratio: Ratio, change: str, what: str) -> str:
    beyond = max(1 - ratio.low, ratio.high - 1)
    if beyond <= DELTA:
        return f"no difference beyond ±{_percent(beyond)}%: {change} {what} of this job takes as long"
    return (
        f"undecided: {change} {what} of this job takes between {_percent(1 - ratio.low)}% less and "
        f"{_percent(ratio.high - 1)}% more (95%)"
    )


def _remarks(ablation: Ablation) -> Iterator[str]:
    """Yield whether the host bounds a step, and how many runs a precise ratio would need."""
    result = ablation.result
    if result is None:
        return
    if result.gpu is not None:
        yield from _on_gpu(ablation, result.gpu)
    elif result.needed is not None and ablation.measure is Measure.STEP:
        yield "unknown whether the host bounds a step: the script prints no gpu_time (docs/ablate.md)"
    run_count = len(ablation.arms[0].runs)
    if result.needed is not None and result.needed > run_count:
        runs = [run.wall_seconds for run in ablation.made if run.status == 0]
        seconds = 2 * result.needed * fmean(runs)
        spent = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
        precision = f"±{_percent(ablation.precision)}%"
        yield f"{precision} needs about {result.needed:,} repeats, {spent}{_why_so_many(result)}"
    elif result.rounding >= ablation.precision and not precise(result.ratio, ablation.precision):
        yield (
            f"±{_percent(ablation.precision)}% needs more digits: those that the script prints leave "
            f"±{_percent(result.rounding)}%, however often it is trained"
        )
    elif result.spread is not None and result.needed is None and not precise(result.ratio, ablation.precision):
        yield f"±{_percent(ablation.precision)}% would need more than 10,000 repeats: runs differ too much"


def _why_so_many(result: ArmsResult) -> str:
    spread = result.spread
    if spread is None:
        return ""
    between = f"runs of one arm differ by {_percent(spread.between)}% (standard deviation)"
    if spread.within is None:
        return f": {between}"
    if spread.between > 2 * spread.within:
        return f": {between}, because starts differ: longer runs would not help, other --devices or free CPU cores may"
    return f": {between}, because their steps differ: more steps in a run would help"


def _on_gpu(ablation: Ablation, gpu: GpuResult) -> Iterator[str]:
    low, high = _percent(gpu.ratio.low - 1), _percent(gpu.ratio.high - 1)
    first, second = (f"{100 * share.middle:.0f}%" for share in gpu.shares)
    names = [arm.name for arm in ablation.arms]
    yield (
        f"the GPU is busy for {first} of a step {names[0]}, {second} {names[1]}; its GPU time, as the "
        f"script printed it: {fixed(gpu.ratio.middle)} times as long {names[1]} (95%: {low} to {high}% more)"
    )
    if all(gpu.host_bound):
        yield (
            "the host bounds a step of both arms and hides the effect of the links: try a larger batch, "
            "torch.compile or CUDA graphs"
        )
    elif any(gpu.host_bound):
        which = names[gpu.host_bound.index(True)]
        yield f"the host bounds a step {which}: with less host work, the ratio would differ"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.{0 if abs(percent) >= 100 else 1 if abs(percent) >= 1 else 2}f}"


def _header(ablation: Ablation) -> str:
    cores = ": gloo on CPU cores, which ignores NCCL variables" if capabilities(ablation.backend).cores else ""
    lines = [
        f"backend   {ablation.backend}{cores}",
        f"machine   {ablation.hostname}: {counted(ablation.gpus)}",
        f"script    {shlex.join(ablation.command)}",
    ]
    variables = settings(ablation.environment)
    if variables:
        lines.append(f"settings  {variables}")
    kind = "CPU" if capabilities(ablation.backend).cores else "GPU"
    for arm in ablation.arms:
        devices = ", ".join(f"{kind}{index}" for index in arm.devices)
        changes = ", ".join(f"{name}={value}" for name, value in arm.environment.items())
        lines.append(f"arm       {arm.name}: {devices}; {changes or 'no variable changed'}")
    why = _STOPPED[ablation.stop] if ablation.stop is not None else ""
    lines.append(
        f"trained   {ablation.started}, {ablation.repeats} repeats{why}, both arms in turn, seed {ablation.seed}"
    )
    lines.append(f"value     of a run: {_value(ablation)}")
    return "\n".join(lines)


def _value(ablation: Ablation) -> str:
    if ablation.measure is Measure.TRAIN_RUNTIME:
        return "train_runtime, as Hugging Face's Trainer printed it"
    if ablation.measure is Measure.PROCESS:
        return "wall time of the whole process, its start included, which does not depend on the links"
    if ablation.skip == 0:
        return "the median of all step times it printed"
    dropped = "tenth, three at least" if ablation.skip is None else f"{ablation.skip}"
    return f"the median of the step times it printed, without the first {dropped}"


def _table(ablation: Ablation) -> Table:
    sizes = sorted({call.size_bytes for arm in ablation.arms for call in arm.allreduce})
    own, heads = "GPU's own", (f"all-reduce {format_size(size)}" for size in sizes)
    gpu = None if ablation.result is None else ablation.result.gpu
    results: tuple[ArmResult | None, ...] = (None, None) if ablation.result is None else ablation.result.arms
    rows = []
    for number, (arm, result) in enumerate(zip(ablation.arms, results, strict=True)):
        good = sum(run.status == 0 for run in arm.runs)
        took = ("-", "-") if result is None else (format_seconds(result.seconds), format_range(*result.interval))
        worked = "-" if gpu is None else format_seconds(gpu.arms[number].seconds)
        timed = {
            call.size_bytes: format_seconds(call.seconds) if call.size_bytes < TELLING_BYTES else figure(call.busbw_gbs)
            for call in arm.allreduce
        }
        rows.append((arm.name, str(good), *took, worked, *(timed.get(size, "-") for size in sizes)))
    return table("arm", "runs", _WHAT[ablation.measure], "95%", own, *heads, rows=rows, optional=(own,))
