"""What the collectives of a training step take, from the size of the network: a band, before there is a job.

Options are read by what stands here: numpy is loaded only to predict.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from collbench.api import keywords
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Members, Run
from collbench.model.units import abridged

if TYPE_CHECKING:
    from collbench.jobs.predict.links import Links, NoEvidence

# What a parameter or a gradient is sent as, with its bytes.
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
MAX_LAYERS = 1000
_PARAMETERS = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_PARAMETERS = 10**14
_MIN_WITHOUT_UNIT = 10_000  # nobody trains fewer on several GPUs, but many leave out the M of 124M
# Steps differed by this share of the difference between links, with this mean error in ms over so many GPU-bound steps
# (each left out of the fit), and over all [benchmarks/results/2026-11-26-prediction].
SHARE = 0.3
MEAN_ERROR_MS, STEPS = (1.3, 4.0), (7, 20)
Span = tuple[float, float, float]  # seconds: with full overlap with compute, the estimate, without overlap
# DDP's buckets: the first is small, so that communication starts early [torch.distributed, bucket_cap_mb=25].
_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20


def parse_parameters(text: str) -> int:
    """Return how many parameters "124M", "1.5B" or "25557032" are, in powers of 1000. Raises UsageError."""
    match = _PARAMETERS.fullmatch(text.strip())
    count = 0 if match is None else round(float(match[1]) * _TIMES[match[2].upper()])
    if match is None or ("." in match[1] and not match[2]) or not 1 <= count <= _MAX_PARAMETERS:
        raise UsageError(f"--params '{text}' is not a number of parameters up to 100T: write 124M, 1.5B or 25557032")
    if not match[2] and count < _MIN_WITHOUT_UNIT:
        raise UsageError(
            f"--params {count} has no unit: write {count}M for millions, {count}B for billions, or {count}K"
        )
    return count


def ddp(parameters: int, _layers: int, width: int) -> Counter[tuple[Operation, int]]:
    """Return an all-reduce for each bucket of gradients."""
    size = parameters * width
    first = min(size, _FIRST_BUCKET)
    full, rest = divmod(size - first, _BUCKET)
    sizes = Counter({first: 1}) + Counter({_BUCKET: full}) + Counter({rest: 1 if rest else 0})
    return Counter({(Operation.ALLREDUCE, bucket): count for bucket, count in sizes.items()})


def sharded(parameters: int, layers: int, width: int) -> Counter[tuple[Operation, int]]:
    """Return for each layer an all-gather before forward and before backward, and a reduce-scatter of gradients."""
    layer = -(-parameters * width // layers)
    return Counter({(Operation.ALLGATHER, layer): 2 * layers, (Operation.REDUCESCATTER, layer): layers})


# FSDP's fully_shard on every block sends what ZeRO-3 does.
STRATEGIES = {"ddp": ddp, "zero3": sharded, "fsdp": sharded}


@dataclass(frozen=True, slots=True)
class Step:
    """The training step that is asked about: a network of equal layers, its strategy, and what it sends numbers as."""

    parameters: int
    layers: int = 24
    strategy: str = "ddp"
    dtype: str = "bf16"

    @property
    def messages(self) -> Counter[tuple[Operation, int]]:
        """How often the step sends each message, by operation and size."""
        return STRATEGIES[self.strategy](self.parameters, self.layers, BYTES[self.dtype])

    @property
    def sent_bytes(self) -> int:
        """The sum of the messages' sizes, as docs/method/measuring.md 1 defines them."""
        return sum(size * count for (_, size), count in self.messages.items())


@dataclass(frozen=True, slots=True)
class Case:
    """A step on the fastest and the slowest measured set of k devices; seconds of its messages one after the other.

    `worst` is None where only one set was measured. Of `sets` of so many devices, `measured` were.
    """

    gpus: int
    best: Members
    best_seconds: float
    worst: Members | None = None
    worst_seconds: float | None = None
    measured: int = 1
    sets: int = 1

    @property
    def longer(self) -> Span | None:
        """Seconds by which a step is longer on the worst set."""
        if self.worst_seconds is None:
            return None
        apart = max(0.0, self.worst_seconds - self.best_seconds)
        return 0.0, SHARE * apart, apart


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """The cases by number of devices, and what was assumed of their messages; `unpredicted` numbers have a reason."""

    run: Run
    step: Step
    cases: tuple[Case, ...]
    assumed: tuple[str, ...]
    unpredicted: tuple[tuple[int, str], ...] = ()

    def __repr__(self) -> str:
        """Return one line, for people."""
        return (
            f"<Prediction of a {self.step.strategy} step: {abridged([f'{case.gpus} GPUs' for case in self.cases], 6)}>"
        )


def seconds_of(links: Links, step: Step, members: Members) -> tuple[float, tuple[str, ...]]:
    """Return the seconds of a step's messages one after the other, and what was assumed. Raises NoEvidence."""
    prices = [(links.price(operation, size, members), count) for (operation, size), count in step.messages.items()]
    assumed = dict.fromkeys(price.assumed for price, _ in prices if price.assumed)
    return sum(price.seconds * count for price, count in prices), tuple(assumed)


def predict_step(links: Links, step: Step, gpus: tuple[int, ...] | None = None) -> Prediction:
    """Return what a step's messages take on the fastest and the slowest measured set of so many devices.

    None stands for all numbers that were measured; then numbers without evidence are left out. Raises UsageError if
    nothing can be predicted.
    """
    from collbench.jobs.predict.links import NoEvidence, unmeasured  # late: numpy and scipy

    cases: list[Case] = []
    assumed: dict[str, None] = {}
    refused: dict[int, NoEvidence] = {}
    counts = links.counts() if gpus is None else tuple(sorted(set(gpus)))
    if not counts:
        raise UsageError("no number of GPUs to predict for: write 2,4")
    if missing := [k for k in counts if k not in links.counts()]:
        raise unmeasured(f"{', '.join(map(str, missing))} devices")
    for k in counts:
        try:
            fastest, *others = links.sets(k)
            slowest = others[-1] if others else None
            best, of_best = seconds_of(links, step, fastest)
            worst, of_worst = (None, ()) if slowest is None else seconds_of(links, step, slowest)
        except NoEvidence as error:
            refused[k] = error
            if gpus is not None:
                raise
            continue
        cases.append(Case(k, fastest, best, slowest, worst, 1 + len(others), comb(len(links.run.devices), k)))
        assumed |= dict.fromkeys((*of_best, *of_worst))
    if not cases:
        raise refused[counts[0]]
    unpredicted = tuple((k, str(error)) for k, error in refused.items())
    return Prediction(links.run, step, tuple(cases), tuple(assumed), unpredicted)


def predict(
    runs: Run | Iterable[Run],
    *,
    params: int | str,
    layers: int = 24,
    strategy: str = "ddp",
    dtype: str = "bf16",
    gpus: int | Iterable[int] | None = None,
) -> Prediction:
    """Return what the collectives of a training step take on the fastest and the slowest measured GPUs of these runs.

    The keywords are the options of `collbench predict`. Raises Error.
    """
    from collbench.jobs.predict.links import Links  # late: numpy and scipy

    all_runs = keywords.several(runs)
    for run in all_runs:
        keywords.check_run(run, "predict")
    if not all_runs:
        raise UsageError("no run to predict from: collbench.load returns one")
    step = Step(
        parse_parameters(str(params)),
        keywords.whole("layers", layers, least=1, most=MAX_LAYERS),
        keywords.named("strategy", strategy, STRATEGIES),
        keywords.named("dtype", dtype, BYTES),
    )
    counts = None
    if gpus is not None:
        counts = tuple(keywords.whole("gpus", count, least=2) for count in keywords.several(gpus))
    links = Links([(f"run {number}", run) for number, run in enumerate(all_runs, 1)])
    return predict_step(links, step, counts)
