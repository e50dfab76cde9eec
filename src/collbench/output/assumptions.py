"""The assumptions of a prediction, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.analysis.predict.assumptions import (
    Assumed,
    BeyondSizes,
    EqualBlocks,
    General,
    HeadShare,
    LikeOperation,
    LikePair,
    LikeSet,
    OfStep,
    OfStrategy,
    OfTime,
)
from collbench.model.run import Device
from collbench.model.units import abridged, size_span
from collbench.output.sentences import band, band_basis

_MOST_SETS = 3

_ONCE = "once a step, on the last micro-batch (no_sync before)"
_HALVES = "each unit is gathered while the previous unit computes"
_BUCKETED = "in DDP's buckets; the new parameters are gathered in one message after the optimizer"
# What is sent, in a sentence each.
_STRATEGIES = {
    "ddp": f"gradients are all-reduced {_ONCE}, in buckets, as backward fills them",
    "zero1": f"gradients are reduce-scattered {_ONCE}, {_BUCKETED}",
    "zero2": f"gradients are reduce-scattered on every micro-batch, {_BUCKETED}",
    "zero3": f"every unit is gathered before its forward and its backward of every micro-batch; {_HALVES}",
    "fsdp": f"PyTorch's fully_shard on every block, the root gathered from forward to backward; {_HALVES}",
    "hsdp": "as fsdp among the GPUs of one copy, neighbors in rank, then an all-reduce among the copies; "
    "best and worst are by a collective over all GPUs",
}
_GENERAL = {
    General.BACKWARD: "backward takes 2/3 of a step's compute, each layer its share of the multiply-adds",
    General.OVERLAP_MEASURED: "one transfer at a time; while it overlaps compute, both are slower by the factors of "
    "the overlap runs",
    General.OVERLAP_FREE: "one transfer at a time, and it does not slow compute: communication kernels take no SMs "
    "from compute",
    General.HOST_LAUNCHES: "the GPU runs a kernel only after the host launched it; each layer takes a share of the "
    "host's time by its tensors; the host starts with the GPU and never waits for it; the step ends when both end",
    General.OPTIMIZER: "the optimizer's GPU time counts as backward",
    General.HOST_PHASES: "the host takes 1/3 of its time for forward, 2/3 for backward and none for the optimizer; "
    "--host-phases changes this",
}


def assumptions(assumeds: Sequence[Assumed], devices: Sequence[Device]) -> Iterator[str]:
    """Yield each assumption as a sentence; of a time, after the operations and devices that it is about."""
    for one in assumeds:
        where = ""
        if one.operations:
            *firsts, last = [operation.collective.title for operation in one.operations]
            operations = f"{', '.join(firsts)} and {last}" if firsts else last
            sets = abridged([_tags(positions, devices) for positions in one.sets], _MOST_SETS, "; ")
            where = f"{operations} on {sets}: "
        yield from (f"{where}{text}" for text in _texts(one.what, devices))


def of_times(assumed: Sequence[OfTime], devices: Sequence[Device]) -> str:
    """Return the assumptions about one time as text, "" for none."""
    return ", ".join(text for one in assumed for text in _texts(one, devices))


def _texts(what: OfTime | OfStep, devices: Sequence[Device]) -> Iterator[str]:
    match what:
        case LikeOperation(operation, share):
            times = {0.5: "half the bytes", 1.0: "the same bytes", 2.0: "twice the bytes"}[share]
            yield f"as long as the measured {operation.collective.title} of {times}"
        case LikeSet(positions, further):
            also = "".join(f", {text}" for text in _texts(further, devices)) if further else ""
            yield f"as on {_tags(positions, devices)}, which are predicted alike{also}"
        case LikePair(rates, operation, pair):
            shape = f"the {operation.collective.title} of {_tags(pair, devices)}"
            yield f"a ring at {band(rates)} ({band_basis(rates)}), shaped as {shape}"
        case BeyondSizes(least, most):
            yield f"sizes beyond the measured {size_span((least, most))} by extrapolation of latency and bandwidth"
        case EqualBlocks(count, guessed):
            if guessed:
                yield f"{count} layers, the default of --layers"
            yield f"all parameters are in {count} equal transformer blocks, none in embeddings"
        case HeadShare(share):
            others = "the other layers their share of the multiply-adds"
            yield f"head and loss take {share:.0%} of the GPU's time, {others}"
        case OfStrategy(name):
            yield f"{name}: {_STRATEGIES[name]}"
        case General():
            yield _GENERAL[what]


def _tags(positions: Sequence[int], devices: Sequence[Device]) -> str:
    return ", ".join(devices[position].tag for position in positions)
