"""What the collectives of a training step take, from the size of the network: a band, before there is a job."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.choose.choice import Members
from collbench.jobs.predict.links import Links, NoEvidence, unmeasured
from collbench.jobs.predict.step import Step
from collbench.model.errors import UsageError
from collbench.model.run import Run
from collbench.model.units import abridged

# The share of a difference between links by which steps differed, and its mean error in ms, of so many GPU-bound
# steps (each left out of the fit) and of all [benchmarks/results/2026-11-26-prediction].
SHARE = 0.3
MEAN_ERROR_MS, STEPS = (1.3, 4.0), (7, 20)

Span = tuple[float, float, float]  # seconds: with full overlap with compute, the estimate, without overlap


@dataclass(frozen=True, slots=True)
class Case:
    """A step on the fastest and the slowest measured set of k devices; seconds of its messages one after the other.

    `worst` is None where only one set was measured.
    """

    gpus: int
    best: Members
    best_seconds: float
    worst: Members | None = None
    worst_seconds: float | None = None

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
        cases.append(Case(k, fastest, best, slowest, worst))
        assumed |= dict.fromkeys((*of_best, *of_worst))
    if not cases:
        raise refused[counts[0]]
    unpredicted = tuple((k, str(error)) for k, error in refused.items())
    return Prediction(links.run, step, tuple(cases), tuple(assumed), unpredicted)
